//! The streams of a tensor's chunks at their home: what the receivers of values hold.
//!
//! Receivers do not all hold the same publication: one comes late, one is cut off and comes back, one is slow and skips some;
//! each is sent the newest when its turn comes. So three things are kept apart:
//!
//! - What receivers of the **newest publication** hold. Each is sent that, whatever it held before. It is what readers on the
//!   home's own host see, and takes no memory here. Where everything passes it is the value itself. Where a filter holds something
//!   back, the home keeps the value beside it, and the filter runs once for each publication that has something new, however many
//!   receivers there are. What is held back is the difference between the two, computed anew each time: none of it can be lost on
//!   the way.
//! - The **shadow**: what receivers of one earlier publication hold. Differences are taken against it, and it is kept only
//!   where an encoding uses it. It is the last publication before the newest that was sent to any receiver: one that was sent
//!   to none is held by none, and keeping it would cost a copy for nothing.
//! - Each receiver's **position**, the publication that it was sent last on this connection, which the machine of
//!   [`remote::home`](crate::remote::home) keeps for it. A receiver at the shadow's publication gets a difference; a receiver
//!   at any other, or at none, gets the chunk whole (E-1). From then on all are at the same one.
//!
//! So receivers that take each publication, such as workers in step, get differences, and so do those that skip some, if the
//! last publication that was sent at all was also sent to them. To serve more of them, more shadows would have to be kept, and
//! each costs as much memory as the value.
//!
//! What is loaded passes whole, and so does the first value: a filter's bound is for changes. Otherwise all that is small in a
//! fresh model would be zero elsewhere.

use crate::encoding::{Sent, Shadow, Source};
use crate::travel::Terms;
use std::cell::Cell;
use std::ops::Range;

/// One chunk's.
#[derive(Debug)]
struct Chunk {
    range: Range<usize>,
    /// The last publication that was sent to any receiver.
    sent: Cell<u64>,
    /// The publication that the shadow is of; 0: there is none.
    shadow: u64,
}

/// The streams of the chunks of one tensor that one shard is home of.
#[derive(Debug)]
pub struct Streams {
    chunks: Vec<Chunk>,
    shadow: Vec<u8>,
}

/// Bytes that [`Streams`] of so many chunks, of so many bytes in all, take; 0 where nothing has to be kept.
pub fn bytes_kept(terms: &Terms, chunks: u64, bytes: u64) -> u64 {
    if terms.values.uses_base() { bytes + chunks * size_of::<Chunk>() as u64 } else { 0 }
}

impl Streams {
    /// For chunks of these lengths, all zeros so far; `None` where nothing has to be kept.
    pub fn new(terms: &Terms, lengths: impl IntoIterator<Item = usize>) -> Option<Self> {
        if !terms.values.uses_base() {
            return None;
        }
        let mut bytes = 0;
        let chunk = |length: usize| {
            let range = bytes..bytes + length;
            bytes = range.end;
            Chunk { range, sent: Cell::new(0), shadow: 0 }
        };
        let chunks = lengths.into_iter().map(chunk).collect();
        Some(Self { chunks, shadow: vec![0; bytes] })
    }

    /// The chunk is about to go on from this publication, whose receivers hold this. Whatever changes that (a fold, a load, a commit)
    /// calls it first, and so does a publication of a value that has not changed. A second call for the same
    /// publication, or one for a number that was never published, does nothing.
    pub fn keep(&mut self, local: usize, publication: u64, held: &[u8]) {
        let Self { chunks, shadow } = self;
        let chunk = &mut chunks[local];
        if publication > 0 && chunk.sent.get() == publication && chunk.shadow != publication {
            shadow[chunk.range.clone()].copy_from_slice(held);
            chunk.shadow = publication;
        }
    }

    /// The newest publication, whose receivers are to hold this, to be sent to a receiver at this position.
    pub fn send<'a>(&'a self, local: usize, publication: u64, held: &'a [u8], position: u64) -> Sent<'a> {
        let Self { chunks, shadow } = self;
        let chunk = &chunks[local];
        chunk.sent.set(publication);
        let source = Source::Stands(held);
        let shadow = (chunk.shadow > 0)
            .then(|| Shadow { publication: chunk.shadow, bytes: &shadow[chunk.range.clone()] });
        Sent { source, shadow, position }
    }
}
