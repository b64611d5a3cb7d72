//! The page that readers sleep on.

use super::super::waiters::{Announcing, LINES, Line, Summary, Wanted};
use super::rows::Rows;
use crate::layout::PAGE;
use crate::region::{Access, Mapping, Part, Region, Writers};
use rustix::fd::BorrowedFd;
use rustix::io;
use std::sync::Arc;
use std::time::Duration;

/// The page that readers of one partition sleep on.
#[derive(Debug, Clone)]
pub struct Waiters {
    mapping: Arc<Mapping>,
}

/// Bytes of the page.
pub const WAITERS_BYTES: usize = PAGE;

impl Waiters {
    /// Makes a page for readers in several processes.
    pub fn make() -> io::Result<(Self, Region)> {
        let region = Region::new("penstock-waiters", WAITERS_BYTES, Writers::Holders)?;
        Ok((Self { mapping: Arc::clone(region.mapping()) }, region))
    }

    /// A page for readers of this process.
    pub fn private() -> io::Result<Self> {
        Ok(Self { mapping: Mapping::private(WAITERS_BYTES)? })
    }

    /// Maps the page of another process.
    pub fn open(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let part = Part { fd, offset: 0, bytes: WAITERS_BYTES };
        Ok(Self { mapping: Mapping::new(&[part], Access::Write)? })
    }

    fn summary(&self) -> &Summary {
        self.mapping.at(0)
    }

    fn line(&self, line: usize) -> &Line {
        self.mapping.at(size_of::<Summary>() + line * size_of::<Line>())
    }

    /// For the writer, after publishing: wakes the readers whose row has come; whether the follower must be rung.
    pub fn wake(&self, rows: &Rows) -> bool {
        // The slot comes from the page, which every reader may write.
        let served =
            |wanted: Wanted| wanted.slot >= rows.layout.slots || rows.version(wanted.slot) >= wanted.version;
        let lines = (0..LINES).map(|line| self.line(line));
        self.summary().published(lines, served, Line::ring)
    }

    /// For the follower: it is about to sleep.
    pub fn announce_follower(&self, by: &Announcing) {
        self.summary().announce_follower(by);
    }

    /// For a reader: a line of its own, if one is free.
    pub fn seat(&self) -> Option<Seat<'_>> {
        (0..LINES)
            .map(|line| self.line(line))
            .find(|line| line.claim())
            .map(|line| Seat { waiters: self, line })
    }
}

/// A reader's line.
#[derive(Debug)]
pub struct Seat<'a> {
    waiters: &'a Waiters,
    pub(super) line: &'a Line,
}

impl Seat<'_> {
    /// Announces that the reader is about to sleep until the row has the version; it must look once more before it does.
    pub fn announce(&self, slot: u32, version: u64) -> u32 {
        self.waiters.summary().announce(self.line, Wanted { slot, version })
    }

    /// Sleeps until a ring after the one counted in `rings`, at most for `longest`. May return early.
    pub fn sleep(&self, rings: u32, longest: Duration) {
        self.line.sleep(rings, longest);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.line.release();
    }
}
