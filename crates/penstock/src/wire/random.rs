//! Random bytes of the operating system.

use rustix::rand::{GetRandomFlags, getrandom};

/// `N` bytes that cannot be guessed.
pub(crate) fn bytes<const N: usize>() -> rustix::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        at += rustix::io::retry_on_intr(|| getrandom(&mut bytes[at..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}
