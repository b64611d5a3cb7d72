//! What a link did not take, until it does.

use super::link::{Link, Segment};
use std::io;

/// Bytes that have gone and are still kept before those that wait: to move those up each time more is held would cost more.
const MOST_GONE: usize = 64 << 10;

/// Bytes that wait for a link, in the order in which they go.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    held: Vec<u8>,
    /// Bytes of it that have gone.
    at: usize,
}

impl Backlog {
    /// Whether none wait.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.at == self.held.len()
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.held.len() - self.at
    }

    /// Has these wait behind the others.
    pub(super) fn hold(&mut self, bytes: Segment<'_>) {
        self.forget_gone();
        bytes.append_to(&mut self.held);
    }

    /// Gives back what has gone: a reader that is always a little behind never lets all of it go. Only where at least as much
    /// has gone as waits, so that no byte is moved more often than it was sent.
    fn forget_gone(&mut self) {
        if self.at > MOST_GONE && self.at >= self.len() {
            self.held.drain(..self.at);
            self.at = 0;
        }
    }

    /// Goes on with what waits; whether the link took it all.
    pub(super) fn flush<L: Link>(&mut self, link: &mut L) -> io::Result<bool> {
        while !self.is_clear() {
            match link.write(&[Segment::Own(&self.held[self.at..])])? {
                0 => return Ok(false),
                bytes => self.at += bytes,
            }
        }
        self.held.clear();
        self.at = 0;
        link.flush()
    }

    /// Bytes for which there is room.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.held.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::Got;
    use super::*;
    use std::io::IoSliceMut;

    /// Takes so many bytes in all, at most 7 at a time.
    #[derive(Default)]
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
        flushes: usize,
    }

    impl Link for Narrow {
        fn read(&mut self, _: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
            Ok(Got::Nothing)
        }

        fn short_is_all(&self) -> bool {
            false
        }

        fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
            let bytes = Segment::copied(&parts[..1], 7.min(self.room - self.taken.len()));
            self.taken.extend_from_slice(&bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<bool> {
            self.flushes += 1;
            Ok(true)
        }

        fn holds_output(&self) -> bool {
            false
        }

        fn resize(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_waits_goes_once_and_in_order_however_little_the_link_takes() {
        let all: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        let (mut backlog, mut link) = (Backlog::default(), Narrow::default());
        for part in all.chunks(30_000) {
            backlog.hold(Segment::Own(part));
            // A little less than was added, so that something always waits, and what has gone is forgotten now and then.
            link.room += part.len() - 100;
            assert!(!backlog.flush(&mut link).unwrap());
            assert!(!backlog.is_clear());
        }
        assert_eq!(backlog.len(), all.len() - link.taken.len());
        assert!(backlog.capacity() < all.len() / 2, "{} bytes are kept", backlog.capacity());
        assert_eq!(link.flushes, 0, "not before all has gone");
        link.room = all.len();
        assert!(backlog.flush(&mut link).unwrap() && backlog.is_clear());
        assert!(link.taken == all);
    }
}
