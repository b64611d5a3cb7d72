//! Links: bytes between two hosts, in order, without ever blocking.
//!
//! What is above a link (frames, records, messages about items, a worker's port at a shard) is generic over it, so that no byte
//! goes through a pointer to a function. A new one implements [`Link`] and passes the suite in `tests/link`.
//!
//! - **Order.** What is read is what was written at the other end, whole and in order, up to where the link ends.
//! - **No waiting.** Every call does what it can at once. A read that brings nothing and a write that takes nothing are not
//!   errors: the caller waits for what [`Link::interest`] says.
//! - **The end is for good.** It comes behind everything that was sent before it, and a link that has ended goes on saying so.
//! - **An error is told once** by reading: whatever was under way may be lost, the link has ended, and
//!   writing fails from then on.
//!
//! What a job's connections are is decided where they are made, by the worker's dialer and the server's acceptor; what carries
//! them between these and the threads that poll them names [`Stream`](super::stream::Stream) as well.

use penstock_kernels::Foreign;
use penstock_proto::pressure::Flow;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::time::Duration;

/// One end of a connection.
pub trait Link {
    /// Reads what is there into `parts`, in order. They have room for at least one byte.
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got>;

    /// Whether a read that brought less than there was room for has brought all that was there. Then another is in vain until a
    /// wait for more ends, one that ends at once while there is something to read (poll, not an edge-triggered epoll).
    fn short_is_all(&self) -> bool {
        false
    }

    /// Writes as much of `parts` as goes at once, in order; returns how many bytes. 0: none now. They hold at least one byte.
    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize>;

    /// Goes on sending what was written and is still held here; whether nothing is left.
    fn flush(&mut self) -> io::Result<bool>;

    /// Whether it holds bytes that were written and have not gone: wait until it can be written, then [`flush`](Self::flush).
    fn holds_output(&self) -> bool;

    /// Sizes what may be under way, each way, in bytes: a wish, which the link meets as far as it can.
    fn resize(&self, bytes: usize) -> io::Result<()>;

    /// Others send over the same line, to other hosts: each is to have its part of it. A wish, as that is.
    fn send_evenly(&self) {}

    /// Whether both ends are on this host.
    fn stays_here(&self) -> bool {
        false
    }

    /// What it has carried from here, and how fast; `None`: it does not know.
    fn flow(&self) -> Option<Flow> {
        None
    }

    /// A moment of its clock, by which it is measured how long compressing takes; `None`: it has none.
    fn now(&self) -> Option<Duration> {
        None
    }

    /// What to wait for before the link can go on. `more`: the caller has bytes that the link did not take.
    fn interest(&self, more: bool) -> Interest {
        Interest { read: true, write: more || self.holds_output() }
    }
}

/// Segments that a write is mostly given at most: a header and a payload for each frame of a batch.
pub(super) const SEGMENTS: usize = 32;

/// Bytes to be sent.
#[derive(Debug, Clone, Copy)]
pub enum Segment<'a> {
    /// That stand still.
    Own(&'a [u8]),
    /// That others may be writing: what is sent is what stands there then.
    Foreign(Foreign<'a>),
}

impl<'a> Segment<'a> {
    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Foreign(memory) => memory.len(),
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where they start.
    #[inline]
    pub(super) fn as_ptr(&self) -> *const u8 {
        match self {
            Self::Own(bytes) => bytes.as_ptr(),
            Self::Foreign(memory) => memory.as_ptr(),
        }
    }

    /// Some of them.
    ///
    /// # Panics
    /// If there are no such bytes.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Own(bytes) => Self::Own(&bytes[range]),
            Self::Foreign(memory) => Self::Foreign(memory.part(range)),
        }
    }

    /// Copies them.
    ///
    /// # Panics
    /// If `out` is not exactly as long.
    pub(super) fn copy_to(&self, out: &mut [u8]) {
        match self {
            Self::Own(bytes) => out.copy_from_slice(bytes),
            Self::Foreign(memory) => memory.copy_to(out),
        }
    }

    /// Adds them to `bytes`.
    pub(super) fn append_to(&self, bytes: &mut Vec<u8>) {
        let before = bytes.len();
        bytes.resize(before + self.len(), 0);
        self.copy_to(&mut bytes[before..]);
    }

    /// The first `most` bytes of `segments`, copied: for a link that keeps what it takes.
    pub fn copied(segments: &[Self], most: usize) -> Vec<u8> {
        let count = most.min(segments.iter().map(Self::len).sum());
        let mut bytes = Vec::with_capacity(count);
        for segment in segments {
            segment.slice(0..segment.len().min(count - bytes.len())).append_to(&mut bytes);
        }
        bytes
    }
}

/// What a read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The other end has closed.
    End,
}

/// What is waited for. A link that has a descriptor says so by [`AsFd`](rustix::fd::AsFd), and this is what to watch it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// That it can be read.
    pub read: bool,
    /// That it can be written.
    pub write: bool,
}
