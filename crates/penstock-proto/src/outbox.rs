//! Outboxes: what a worker has said to a shard of another host, until the shard has taken it.
//!
//! Every frame of a worker to a shard has a number, from 1, that goes on over reconnects. The shard takes them in order and
//! says with everything it sends how many it has taken; its first word on a new connection is that count, and the worker goes
//! on with the frame after it. So a frame that was under way when a connection broke is neither lost nor taken twice:
//!
//! - **S-1** The frames that a shard takes are those that the worker submitted: all, in order, once, however often and
//!   wherever connections break.
//!
//! The lane is the buffer: a frame's payload is read from it when the frame is sent, again after a reconnect. That is sound
//! because a lane is not written again before its contribution is folded, and what is folded was taken before.
//!
//! Pure state. Memory: 100 bytes for each submission that is not wholly taken.

use crate::submission::Submission;
use std::collections::VecDeque;

/// One frame to be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// Its number.
    pub sequence: u64,
    /// The submission that it is of.
    pub submission: Submission,
    /// Which of the submission's frames, from 0.
    pub index: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Number of its first frame.
    first: u64,
    frames: u32,
    submission: Submission,
}

/// A shard that counts what was never sent to it, or counts backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it took {got} frames, expected {least} to {most}")]
pub struct Miscounted {
    /// It had taken as many before.
    pub least: u64,
    /// No more than this was sent to it.
    pub most: u64,
    /// What it says.
    pub got: u64,
}

/// A worker's frames to one shard.
#[derive(Debug)]
pub struct Outbox {
    entries: VecDeque<Entry>,
    /// Number of the next frame of the next submission.
    end: u64,
    /// Number of the next frame to be sent.
    next: u64,
    /// The entry that it is of.
    cursor: usize,
    /// Frames that were ever sent.
    sent: u64,
    taken: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { entries: VecDeque::new(), end: 1, next: 1, cursor: 0, sent: 0, taken: 0 }
    }
}

impl Outbox {
    /// Submits something in `frames` frames, at least 1.
    pub fn submit(&mut self, submission: Submission, frames: u32) {
        debug_assert!(frames > 0, "a submission without a frame would never be taken");
        self.entries.push_back(Entry { first: self.end, frames, submission });
        self.end += u64::from(frames);
    }

    /// Submissions of which no frame has been taken yet, in order. They may be changed, as long as they keep their number of
    /// frames.
    pub fn untaken(&mut self) -> impl Iterator<Item = &mut Submission> {
        let untaken = self.entries.iter_mut().filter(|entry| entry.first > self.taken);
        untaken.map(|entry| &mut entry.submission)
    }

    /// Drops submissions of which no frame has been taken, where `drops` says so: on a connection on which nothing was sent so far.
    /// Those behind them have their numbers then.
    pub fn drop_untaken(&mut self, drops: impl Fn(&Submission) -> bool) {
        debug_assert_eq!(self.next, self.taken + 1, "nothing was sent on this connection");
        self.entries.retain(|entry| entry.first <= self.taken || !drops(&entry.submission));
        self.end = self.entries.front().map_or(self.taken + 1, |entry| entry.first.min(self.taken + 1));
        for entry in &mut self.entries {
            entry.first = self.end;
            self.end += u64::from(entry.frames);
        }
        self.cursor = 0;
        self.sent = self.sent.min(self.end - 1);
    }

    /// The next frame to be sent; it stays the next until [`Outbox::sent`].
    pub fn due(&self) -> Option<Due> {
        let entry = self.entries.get(self.cursor)?;
        let index = (self.next - entry.first) as u32;
        Some(Due { sequence: self.next, submission: entry.submission, index })
    }

    /// The frame that was due has been handed to the connection.
    pub fn sent(&mut self) {
        let Some(entry) = self.entries.get(self.cursor) else { return };
        self.sent = self.sent.max(self.next);
        self.next += 1;
        if self.next == entry.first + u64::from(entry.frames) {
            self.cursor += 1;
        }
    }

    /// Frames that were submitted and not sent on this connection.
    pub fn unsent(&self) -> u64 {
        self.end - self.next
    }

    /// How many frames were taken, of how many that were submitted.
    pub fn progress(&self) -> (u64, u64) {
        (self.taken, self.end - 1)
    }

    /// Whether everything that was submitted was taken.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The shard has taken `count` frames in all. It cannot have taken what was not sent on this connection or before its start.
    pub fn taken(&mut self, count: u64) -> Result<(), Miscounted> {
        self.note_taken(count, self.next - 1)
    }

    fn note_taken(&mut self, count: u64, most: u64) -> Result<(), Miscounted> {
        if count < self.taken || count > most {
            return Err(Miscounted { least: self.taken, most, got: count });
        }
        self.taken = count;
        while let Some(entry) = self.entries.front()
            && entry.first + u64::from(entry.frames) <= count + 1
        {
            self.entries.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
        }
        Ok(())
    }

    /// A new connection stands, and the shard says that it has taken `count` frames in all: goes on behind them.
    pub fn resume(&mut self, count: u64) -> Result<(), Miscounted> {
        self.note_taken(count, self.sent)?;
        self.next = count + 1;
        let behind = |entry: &Entry| self.next < entry.first + u64::from(entry.frames);
        self.cursor = self.entries.iter().position(behind).unwrap_or(self.entries.len());
        Ok(())
    }
}

/// The shard's side: frames are taken in order, each once.
#[derive(Debug, Default)]
pub struct Inbox {
    taken: u64,
}

/// A frame out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it sent frame {got} after frame {after}")]
pub struct OutOfOrder {
    /// The last frame taken.
    pub after: u64,
    /// What came.
    pub got: u64,
}

impl Inbox {
    /// Frames taken in all.
    pub fn count(&self) -> u64 {
        self.taken
    }

    /// Whether this frame is the next.
    pub fn expect(&self, sequence: u64) -> Result<(), OutOfOrder> {
        if sequence == self.taken + 1 {
            return Ok(());
        }
        Err(OutOfOrder { after: self.taken, got: sequence })
    }

    /// The frame that was expected is here, whole and verified.
    pub fn take(&mut self) {
        self.taken += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn zero(tensor: u32) -> Submission {
        Submission::Zero { tensor }
    }

    proptest! {
        /// S-1, with a connection that loses what is under way at any point.
        #[test]
        fn every_frame_is_taken_once_and_in_order_wherever_connections_break(
            sizes in prop::collection::vec(1u32..5, 1..20),
            moves in prop::collection::vec((0u8..5, 0usize..6), 0..300),
        ) {
            let (mut outbox, mut inbox) = (Outbox::default(), Inbox::default());
            let mut to_submit = sizes.iter().zip(0u32..);
            let (mut wire, mut acks): (VecDeque<Due>, VecDeque<u64>) = Default::default();
            let mut got = Vec::new();
            let mut expected = Vec::new();
            let finish = std::iter::repeat_n([(0, 0), (1, 3), (2, 3), (3, 3)], 100).flatten();
            for (what, how_many) in moves.into_iter().chain(finish) {
                match what {
                    0 => if let Some((&frames, tensor)) = to_submit.next() {
                        outbox.submit(zero(tensor), frames);
                        expected.extend((0..frames).map(|index| (tensor, index)));
                    },
                    1 => for _ in 0..how_many {
                        if let Some(due) = outbox.due() {
                            wire.push_back(due);
                            outbox.sent();
                        }
                    },
                    2 => for due in wire.drain(..how_many.min(wire.len())) {
                        prop_assert_eq!(inbox.expect(due.sequence), Ok(()));
                        inbox.take();
                        let Submission::Zero { tensor } = due.submission else { unreachable!() };
                        got.push((tensor, due.index));
                        acks.push_back(inbox.count());
                    },
                    3 => for count in acks.drain(..how_many.min(acks.len())) {
                        prop_assert_eq!(outbox.taken(count), Ok(()));
                    },
                    _ => { // the connection breaks, and another is made
                        wire.clear();
                        acks.clear();
                        prop_assert_eq!(outbox.resume(inbox.count()), Ok(()));
                        if how_many == 5 {
                            // One in three of what was not taken at all is not wanted any more.
                            let drops = |tensor: u32| tensor.is_multiple_of(3);
                            let begun = got.last().map_or(0, |&(tensor, _)| tensor + 1);
                            outbox.drop_untaken(
                                |submission| matches!(submission, Submission::Zero { tensor } if drops(*tensor)),
                            );
                            expected.retain(|&(tensor, _)| tensor < begun || !drops(tensor));
                        }
                    }
                }
            }
            prop_assert_eq!(got, expected);
            prop_assert!(outbox.is_empty());
        }
    }

    #[test]
    fn a_shard_that_counts_what_it_was_not_sent_is_found_out() {
        let mut outbox = Outbox::default();
        outbox.submit(zero(0), 2);
        assert_eq!(outbox.taken(1), Err(Miscounted { least: 0, most: 0, got: 1 }));
        outbox.sent();
        assert_eq!(outbox.taken(1), Ok(()));
        assert!(outbox.taken(0).is_err(), "it counts backwards");
        assert!(outbox.resume(3).is_err());
    }

    #[test]
    fn a_shard_that_says_it_took_more_than_this_connection_brought_is_found_out() {
        let mut outbox = Outbox::default();
        outbox.submit(zero(0), 5);
        (0..5).for_each(|_| outbox.sent());
        outbox.resume(2).unwrap();
        assert_eq!(outbox.taken(4), Err(Miscounted { least: 2, most: 2, got: 4 }));
        assert_eq!(outbox.due().unwrap().sequence, 3);
    }

    #[test]
    fn a_frame_that_is_repeated_or_skips_one_is_found_out() {
        let mut inbox = Inbox::default();
        inbox.expect(1).unwrap();
        inbox.take();
        assert_eq!(inbox.expect(1), Err(OutOfOrder { after: 1, got: 1 }));
        assert_eq!(inbox.expect(3), Err(OutOfOrder { after: 1, got: 3 }));
    }
}
