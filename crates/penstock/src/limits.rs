//! What the system lets a process have: when it refuses something, this says which limit was reached and how it is raised.

use penstock_proto::error::Refusal;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs;

/// Open descriptors that this process may have.
pub(crate) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Mappings that this process may have.
pub(crate) fn mappings() -> u64 {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}

/// What the system said, and the limit that was reached, if it was one.
pub(crate) fn explain(errno: Errno) -> String {
    match errno {
        Errno::MFILE => format!(
            "{errno}: this process has its {} open files; raise the limit (`ulimit -n`)",
            descriptors()
        ),
        Errno::NOMEM if mapped() + 64 >= mappings() => format!(
            "{errno}: this process has its {} mappings; raise `vm.max_map_count` (sysctl)",
            mappings()
        ),
        errno => errno.to_string(),
    }
}

/// The same of an error of the standard library's.
pub(crate) fn explain_io(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |code| explain(Errno::from_raw_os_error(code)))
}

/// The refusal of what cannot be done because the system lacks something; with the limit that was reached, if it was one.
pub(crate) fn lacking<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Refusal {
    let what = what.into();
    move |error| Refusal::System { what, reason: explain_io(&error.into()) }
}

fn mapped() -> u64 {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_reached_is_named_with_its_value_and_what_raises_it() {
        let text = explain(Errno::MFILE);
        assert!(text.contains(&descriptors().to_string()) && text.contains("ulimit -n"), "{text}");
        assert!(!explain(Errno::NOMEM).contains("max_map_count"), "memory is not mappings");
    }
}
