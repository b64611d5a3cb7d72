//! What a shard owes to a subscriber on another host.
//!
//! Kept as chunk numbers, not as bytes: a chunk is sent from where it stands, as new as it is then. So a subscriber that does
//! not read costs a shard a few bytes a chunk and one batch of frames, however slow it is (S-4).

use crate::TensorId;
use crate::numbered::Numbered;
use crate::outbox::{Inbox, OutOfOrder};
use crate::submission::{NO_TICKET, Submission};
use std::collections::VecDeque;

/// What stands published of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publication {
    /// Its version.
    pub version: u64,
    /// Optimizer steps behind it.
    pub steps: u64,
    /// The number of this publication; 0 before the first.
    pub sequence: u64,
}

/// The chunks that the shard is home of, by tensor and by their place among them.
pub trait Chunks {
    /// How many there are of a tensor.
    fn chunks(&self, tensor: TensorId) -> usize;
    /// What stands published of one.
    fn publication(&self, tensor: TensorId, local: usize) -> Publication;
}

/// What is to be sent to the subscriber next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owing {
    /// A chunk's value, as it stands.
    Value {
        /// The tensor.
        tensor: TensorId,
        /// The chunk's place among those homed here.
        local: usize,
        /// What stands there.
        publication: Publication,
        /// The subscriber's position in the chunk's stream: the publication that was sent last on this connection, or 0.
        position: u64,
    },
    /// A chunk's optimizer state, as it stands.
    State {
        /// The tensor.
        tensor: TensorId,
        /// The chunk's place among those homed here.
        local: usize,
    },
    /// How many of its contributions were folded.
    Folded {
        /// The tensor.
        tensor: TensorId,
        /// Contributions since the start.
        count: u64,
    },
    /// Everything that was fetched with this ticket or before has been sent.
    Fetched {
        /// The tensor.
        tensor: TensorId,
        /// The ticket.
        ticket: u64,
    },
}

/// What is owed of one chunk. What a push asks for is kept apart from what a fetch asks for: it may be newer than a fetch with slack
/// needs, which must not wait for it.
#[derive(Debug, Clone, Copy, Default)]
struct OwedChunk {
    /// The version that a push asked for + 1; 0: none.
    wanted: u64,
    /// The version that a fetch asked for + 1; 0: none.
    fetched: u64,
    /// Whether it stands in the queue.
    queued: bool,
    /// The publication that was sent last on this connection.
    seen: u64,
}

impl OwedChunk {
    /// Whether what stands published is new enough for anything that was asked for.
    fn is_due(&self, published: &Publication) -> bool {
        let reaches = |asked: u64| asked > 0 && published.version + 1 >= asked;
        published.sequence > 0 && (reaches(self.wanted) || reaches(self.fetched))
    }
}

/// What is owed of one tensor.
#[derive(Debug, Default)]
struct Owed {
    chunks: Vec<OwedChunk>,
    /// Results that pushes asked for.
    results: usize,
    /// Chunks that fetches asked for.
    open: usize,
    /// The ticket to be returned when none of those is left. A later one stands for those before it.
    ticket: Option<u64>,
    /// A fetch that waits for own contributions.
    held: Option<Held>,
    /// The ticket that is to be returned, and stands in the queue.
    returned: Option<u64>,
    /// The optimizer's state, if it is asked for.
    state: Option<OwedState>,
    /// Contributions that were folded, and whether that is due to be told.
    count: u64,
    folded: bool,
}

/// A fetch that is taken up when so many of the subscriber's contributions were folded. A later one stands for those before it.
#[derive(Debug, Clone, Copy)]
struct Held {
    folded: u64,
    version: u64,
    ticket: u64,
}

/// What is still to be sent of a tensor's state: so many chunks, from this one on and round. One that is asked for again while it is
/// sent goes round once more, whoever asks how often.
#[derive(Debug, Clone, Copy)]
struct OwedState {
    next: usize,
    left: usize,
    ticket: u64,
}

/// What stands in the queue: each of these at most once.
#[derive(Debug, Clone, Copy)]
enum Due {
    Value { tensor: TensorId, local: usize },
    State { tensor: TensorId },
    Folded { tensor: TensorId },
    Fetched { tensor: TensorId },
}

/// It said goodbye, and went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it went on after it had said goodbye")]
pub struct WentOn;

/// One subscriber, as a shard keeps it over all its connections.
#[derive(Debug, Default)]
pub struct Subscriber {
    connected: bool,
    inbox: Inbox,
    /// What it was last told of the inbox, on this connection.
    told: Option<u64>,
    owed: Numbered<Owed>,
    due: VecDeque<Due>,
    /// Contributions that came, and how many of them were folded.
    contributed: (u64, u64),
    left: bool,
}

impl Subscriber {
    /// A new connection: whatever the old one carried is forgotten, but not what was taken. The subscriber asks again for what it
    /// misses.
    pub fn connect(&mut self) {
        self.connected = true;
        self.told = None;
        self.due.clear();
        for (id, owed) in self.owed.iter_mut() {
            owed.chunks.fill(OwedChunk::default());
            (owed.results, owed.open) = (0, 0);
            (owed.ticket, owed.held, owed.returned, owed.state) = (None, None, None, None);
            owed.folded = true;
            self.due.push_back(Due::Folded { tensor: id });
        }
    }

    /// The connection is over; there may be another.
    pub fn disconnect(&mut self) {
        self.connected = false;
        self.due.clear();
    }

    /// It has said goodbye: nothing may follow.
    pub fn let_go(&mut self) {
        self.left = true;
    }

    // What comes

    /// Whether this frame is the next.
    pub fn expect(&self, sequence: u64) -> Result<(), OutOfOrder> {
        self.inbox.expect(sequence)
    }

    /// The frame that was expected is here, whole and verified, with this submission.
    pub fn take(&mut self, submission: &Submission) -> Result<(), WentOn> {
        if self.left {
            return Err(WentOn);
        }
        self.inbox.take();
        if matches!(submission, Submission::Push { .. } | Submission::Load { .. }) {
            self.contributed.0 += 1;
        }
        Ok(())
    }

    /// Contributions that wait for other workers'.
    pub fn lead(&self) -> u64 {
        self.contributed.0 - self.contributed.1
    }

    /// It wants this chunk's `version` as soon as it is published.
    pub fn want(&mut self, id: TensorId, local: usize, version: u64, home: &impl Chunks) {
        let owed = self.owed(id, home);
        let chunk = &mut owed.chunks[local];
        owed.results += usize::from(chunk.wanted == 0);
        chunk.wanted = chunk.wanted.max(version + 1);
        self.settle(id, local, home);
    }

    /// It wants every chunk that has changed since it was sent, and that has this version or once it has: all that once `folded` of its
    /// contributions were folded ([`Shard::promised`](crate::shard::Shard::promised)). With [`NO_TICKET`] it is as if pushes had asked.
    pub fn fetch(&mut self, id: TensorId, version: u64, ticket: u64, folded: u64, home: &impl Chunks) {
        let owed = self.owed(id, home);
        if ticket != NO_TICKET && owed.count < folded {
            let before = owed.held.unwrap_or(Held { folded, version, ticket });
            owed.held = Some(Held {
                folded: folded.max(before.folded),
                version: version.max(before.version),
                ticket: ticket.max(before.ticket),
            });
            return;
        }
        for local in 0..home.chunks(id) {
            let chunk = &mut self.known(id).chunks[local];
            let published = home.publication(id, local);
            if chunk.seen == published.sequence && published.version >= version && published.sequence > 0 {
                continue;
            }
            if ticket == NO_TICKET {
                self.want(id, local, version, home);
                continue;
            }
            let new = chunk.fetched == 0;
            chunk.fetched = chunk.fetched.max(version + 1);
            self.known(id).open += usize::from(new);
            self.settle(id, local, home);
        }
        self.pay(id, ticket);
    }

    /// It wants the optimizer's state, as it is now.
    pub fn fetch_state(&mut self, id: TensorId, ticket: u64, home: &impl Chunks) {
        let chunks = home.chunks(id);
        let owed = self.owed(id, home);
        if chunks == 0 {
            return self.pay(id, ticket);
        }
        match &mut owed.state {
            Some(state) => (state.left, state.ticket) = (chunks, ticket.max(state.ticket)),
            None => {
                owed.state = Some(OwedState { next: 0, left: chunks, ticket });
                self.due.push_back(Due::State { tensor: id });
            }
        }
    }

    // What happens at home

    /// A chunk was published.
    pub fn published(&mut self, id: TensorId, local: usize, home: &impl Chunks) {
        if self.connected && self.owed.get(id).is_some_and(|owed| owed.open + owed.results > 0) {
            self.settle(id, local, home);
        }
    }

    /// So many of its contributions to the tensor were folded.
    pub fn folded(&mut self, id: TensorId, count: u64, home: &impl Chunks) {
        let owed = self.owed(id, home);
        let new = !std::mem::replace(&mut owed.folded, true);
        let before = std::mem::replace(&mut owed.count, count);
        self.contributed.1 += count - before;
        if new {
            self.due.push_back(Due::Folded { tensor: id });
        }
        if let Some(Held { version, ticket, .. }) = self.known(id).held.take_if(|held| held.folded <= count) {
            self.fetch(id, version, ticket, 0, home);
        }
    }

    // What goes

    /// Whether there may be something to send.
    pub fn has_due(&self) -> bool {
        !self.due.is_empty() || self.must_tell()
    }

    /// Whether it does not know how many of its frames were taken.
    pub fn must_tell(&self) -> bool {
        self.told != Some(self.inbox.count())
    }

    /// It is told again, though nothing has changed: a sign of life.
    pub fn tell_again(&mut self) {
        self.told = None;
    }

    /// How many of its frames were taken, which is said with everything that is sent.
    pub fn tell(&mut self) -> u64 {
        self.told = Some(self.inbox.count());
        self.inbox.count()
    }

    /// What is to be sent next: this call counts it as sent.
    pub fn next(&mut self, home: &impl Chunks) -> Option<Owing> {
        while let Some(due) = self.due.pop_front() {
            match due {
                Due::Value { tensor, local } => {
                    let publication = home.publication(tensor, local);
                    let owed = self.known(tensor);
                    let chunk = &mut owed.chunks[local];
                    chunk.queued = false;
                    if !chunk.is_due(&publication) {
                        continue; // a newer one is wanted by now, and comes when it is published
                    }
                    let position = std::mem::replace(&mut chunk.seen, publication.sequence);
                    let reached = |asked: &mut u64| {
                        let reached = *asked > 0 && publication.version + 1 >= *asked;
                        *asked = if reached { 0 } else { *asked };
                        usize::from(reached)
                    };
                    owed.results -= reached(&mut chunk.wanted);
                    owed.open -= reached(&mut chunk.fetched);
                    self.close(tensor);
                    return Some(Owing::Value { tensor, local, publication, position });
                }
                Due::State { tensor } => {
                    if let Some(local) = self.next_of_state(tensor) {
                        return Some(Owing::State { tensor, local });
                    }
                }
                Due::Folded { tensor } => {
                    let owed = self.known(tensor);
                    owed.folded = false;
                    return Some(Owing::Folded { tensor, count: owed.count });
                }
                Due::Fetched { tensor } => {
                    if let Some(ticket) = self.known(tensor).returned.take() {
                        return Some(Owing::Fetched { tensor, ticket });
                    }
                }
            }
        }
        None
    }

    fn owed(&mut self, id: TensorId, home: &impl Chunks) -> &mut Owed {
        if self.owed.get(id).is_none() {
            let chunks = vec![OwedChunk::default(); home.chunks(id)];
            self.owed.insert(id, Owed { chunks, ..Owed::default() });
        }
        self.known(id)
    }

    /// The same of a tensor of which something was owed before.
    fn known(&mut self, id: TensorId) -> &mut Owed {
        self.owed.get_mut(id).expect("what is due was owed")
    }

    /// Queues a chunk that is asked for and fresh enough.
    fn settle(&mut self, id: TensorId, local: usize, home: &impl Chunks) {
        let published = home.publication(id, local);
        let chunk = &mut self.known(id).chunks[local];
        if chunk.is_due(&published) && !chunk.queued {
            chunk.queued = true;
            self.due.push_back(Due::Value { tensor: id, local });
        }
    }

    /// Notes a ticket that is to be returned as soon as it may.
    fn pay(&mut self, id: TensorId, ticket: u64) {
        let owed = self.known(id);
        if ticket != NO_TICKET {
            owed.ticket = owed.ticket.max(Some(ticket));
        }
        self.close(id);
    }

    /// Returns the ticket if all that was fetched has been sent, no fetch waits and no state is under way: any of them may have been asked for
    /// first (S-3).
    fn close(&mut self, id: TensorId) {
        let owed = self.known(id);
        if owed.open == 0
            && owed.state.is_none()
            && owed.held.is_none()
            && let Some(ticket) = owed.ticket.take()
        {
            self.give_back(id, ticket);
        }
    }

    fn give_back(&mut self, id: TensorId, ticket: u64) {
        let returned = &mut self.known(id).returned;
        match returned {
            Some(before) => *before = ticket.max(*before),
            None => {
                *returned = Some(ticket);
                self.due.push_back(Due::Fetched { tensor: id });
            }
        }
    }

    /// The chunk whose state is sent now. The rest goes to the end of the queue, behind what others wait for.
    fn next_of_state(&mut self, id: TensorId) -> Option<usize> {
        let owed = self.known(id);
        let OwedState { next, left, ticket } = owed.state.take()?;
        if left > 1 {
            let chunks = owed.chunks.len();
            owed.state = Some(OwedState { next: (next + 1) % chunks, left: left - 1, ticket });
            self.due.push_back(Due::State { tensor: id });
        } else {
            self.pay(id, ticket);
        }
        Some(next)
    }
}
