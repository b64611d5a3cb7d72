//! How many descriptors this process may have open, and what says that it has no room for another.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Takes all that the system allows: what it allows at first is little, for the sake of programs that use `select`, which
/// cannot name more. Returns whether there are more than before.
pub fn raise_limit() -> io::Result<bool> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(false);
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(true)
}

/// Whether a call failed because the process or the system has no descriptor or no memory left for one more connection.
pub fn is_no_room(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}
