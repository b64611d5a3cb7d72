//! How many descriptors this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Takes all that the system allows: what it allows at first is little, so that old programs that use `select` need not fear for their
/// tables. Returns whether there are more than before.
pub fn raise_limit() -> io::Result<bool> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(false);
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(true)
}
