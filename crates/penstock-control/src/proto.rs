//! The messages and services of `proto/penstock/v1`, as code. Generated; see `examples/generate.rs`.

#[allow(
    missing_docs,
    unreachable_pub,
    unnameable_types,
    clippy::all,
    clippy::use_self,
    reason = "generated code keeps no house rules"
)]
mod generated {
    include!("generated/penstock.v1.rs");
}

pub use generated::*;
use std::fmt;

/// What stands where a secret would.
struct Hidden;

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

// By hand, because a derived Debug would put secrets into logs.

impl fmt::Debug for CreateJobReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateJobReply")
            .field("job", &self.job)
            .field("secret", &Hidden)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ShowJobReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShowJobReply").field("job", &self.job).field("secret", &Hidden).finish()
    }
}

impl fmt::Debug for HostedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostedJob")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("secret", &Hidden)
            .finish_non_exhaustive()
    }
}
