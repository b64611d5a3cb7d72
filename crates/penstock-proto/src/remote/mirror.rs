//! What a subscriber has of a shard on another host, and what it asks of that shard.
//!
//! It stands in for the shard: its worker's submissions go in here, become frames, and are kept until the shard has taken them;
//! the shard's notices come in here and say what to do with the bytes that came with them. A connection that is made again goes
//! on where the shard says that it stands, and what had been asked for and had not come is asked for again (S-2).

mod borrowed;
mod effect;
mod passed;

pub use borrowed::Stands;
pub use effect::{Broken, Effect};
pub use passed::Fault;

use self::borrowed::{Answer, Doubt, Value};
use super::awaited::Awaited;
use super::contents::{Contents, contents};
use super::lag::Lag;
use super::returning::{Holding, Returning};
use crate::TensorId;
use crate::clock::MAX_CLOCK;
use crate::factors::{self, LowRank};
use crate::frame::Notice;
use crate::numbered::Numbered;
use crate::outbox::Outbox;
use crate::overlay::{Digests, Route, Stripes};
use crate::progress::Progress;
use crate::submission::{HELD, LOST, NO_MORE, NO_TICKET, Submission};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One frame to be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    /// Its number.
    pub sequence: u64,
    /// What it says; of a push or load one chunk.
    pub submission: Submission,
    /// The part of the lane that goes with it.
    pub payload: Option<Carried>,
}

/// What a frame carries of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    /// A chunk, encoded as was agreed.
    Chunk {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
    },
    /// Of factors that stand there the rows of the left one that a chunk has a part of.
    Rows {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// The factors'.
        rank: u32,
    },
    /// A piece of the right one.
    Piece {
        /// The tensor.
        tensor: TensorId,
        /// The factors'.
        rank: u32,
        /// Which: its number.
        index: u32,
    },
}

/// One tensor.
#[derive(Debug)]
struct Mirrored {
    /// Those that the shard is home of, ascending.
    chunks: Vec<u32>,
    /// Whether contributions may travel as factors.
    low_rank: Option<LowRank>,
    /// Whether the shard, once it was asked for the value, sends what is new of it unasked; and whether it was asked.
    broadcast: bool,
    asked: bool,
    /// Each one's version + 1; 0 before the first.
    versions: Vec<u64>,
    /// The position in each one's stream: the publication that came last on this connection, or 0.
    positions: Vec<u64>,
    progress: Progress,
    /// Versions that fetches asked for, until they are seen to have come.
    awaited: Awaited,
    /// The newest ticket that has not come back of those of the value, with the least version that was asked for with one of
    /// them, and of those of the state.
    open: [Option<Submission>; 2],
    /// Chunks that were asked for by themselves and have not come, by their place.
    singles: BTreeMap<usize, Single>,
    /// By chunk: the last publication that changed what is held of it.
    contents: Vec<u64>,
    /// By chunk: whether something of it has come since it was last doubted that all does.
    fresh: Vec<bool>,
    /// Whether the home was asked for it whole, as a difference did not fit that others passed on.
    misfits: Vec<bool>,
    /// How the route cuts it, and what is held of each stripe.
    digests: Digests,
    /// Tickets that wait for what others bring.
    returning: Returning,
    /// Whether its values stand in memory that another worker lends; and of chunks whose value the home sent nevertheless, or that were
    /// lost with that memory, the publication from which on it is right again: the home believes that more is held of them than is.
    borrowed: bool,
    lost: BTreeMap<usize, u64>,
    /// By chunk, once anything was borrowed: what is held of it as a lender alone has said. What the home says of it that has taken this
    /// many frames, it says behind all that stood there.
    doubts: Vec<Doubt>,
    behind: u64,
    /// Whether the home has said on this connection what should be held of it: it goes by trees. And values that it sent since then,
    /// though they are borrowed.
    by_trees: bool,
    direct: usize,
}

/// What was asked for of one chunk by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Single {
    /// Versions that have not come.
    awaited: Awaited,
    /// The newest ticket that has not come back; 0: none.
    ticket: u64,
    /// The least version that was asked for with one of those.
    version: u64,
}

impl Single {
    fn is_over(&self) -> bool {
        self.awaited == Awaited::default() && self.ticket == NO_TICKET
    }
}

impl Mirrored {
    /// Notes a fetch that is to be repeated if the connection breaks. It stands for those of its kind before it too.
    fn expect(&mut self, mut fetch: Submission) {
        let Submission::Fetch { version, state, ticket, .. } = &mut fetch else { return };
        if !*state {
            self.asked = true;
            self.awaited.want(*version);
        }
        if *ticket == NO_TICKET {
            return;
        }
        let open = &mut self.open[usize::from(*state)];
        if let Some(Submission::Fetch { version: before, ticket: newest, .. }) = *open {
            (*version, *ticket) = (before.min(*version), newest.max(*ticket));
        }
        *open = Some(fetch);
    }

    /// Versions that are to be asked for again without a ticket. Of what is broadcast everything is: what was sent on the
    /// connection that broke and did not arrive is not known here.
    fn missed(&mut self, wanted: u64) -> impl Iterator<Item = u64> + use<> {
        let all = self.broadcast && self.asked;
        let (first, last) =
            self.missing(wanted).fold((None, None), |(first, _), it| (first.or(Some(it)), Some(it)));
        let rest = last.filter(|_| first != last && !all);
        if all { Some(0) } else { first }.into_iter().chain(rest)
    }

    /// Notes a fetch of some chunks, likewise.
    fn expect_singles(&mut self, locals: Range<usize>, version: u64, ticket: u64) {
        for local in locals {
            let lacks = self.versions[local] <= version;
            if !lacks && ticket == NO_TICKET {
                continue;
            }
            let single = self.singles.entry(local).or_default();
            if lacks {
                single.awaited.want(version);
            }
            if ticket != NO_TICKET {
                single.version =
                    if single.ticket == NO_TICKET { version } else { single.version.min(version) };
                single.ticket = single.ticket.max(ticket);
            }
        }
    }

    /// Notes that chunks have come to this version.
    fn singles_came(&mut self, locals: Range<usize>, version: u64) {
        // Most tensors are fetched whole.
        if self.singles.is_empty() {
            return;
        }
        let mut over = Vec::new();
        for (&local, single) in self.singles.range_mut(locals) {
            single.awaited.came(version);
            if single.is_over() {
                over.push(local);
            }
        }
        over.iter().for_each(|local| _ = self.singles.remove(local));
    }

    /// Notes that fetches up to `ticket` have come back.
    fn fetched(&mut self, ticket: u64) {
        for open in &mut self.open {
            *open = open.filter(|fetch| ticket_of(fetch) > ticket);
        }
        self.singles.retain(|_, single| {
            if single.ticket <= ticket {
                single.ticket = NO_TICKET;
            }
            !single.is_over()
        });
    }

    /// Chunks that are to be asked for again by themselves. The last brings the newest ticket back, unless all of the value is asked
    /// for with it, which then stands for theirs: an earlier one would pass those behind it (S-3).
    fn missed_singles(&self, tensor: TensorId) -> Vec<Submission> {
        // By version; those behind, of which something was asked for with a ticket.
        let mut runs: BTreeMap<(bool, u64), Vec<Range<usize>>> = BTreeMap::new();
        for (&local, single) in &self.singles {
            let is_open = single.ticket != NO_TICKET && self.open[0].is_none();
            let open = is_open.then_some(single.version);
            let (first, last) = single.awaited.bounds().unzip();
            // What the ticket is for is asked for with it.
            let wants = [first, last.filter(|_| first != last)].into_iter().filter(|&want| want != open);
            let asks = wants.flatten().map(|version| (false, version));
            for ask in asks.chain(open.map(|version| (true, version))) {
                let runs = runs.entry(ask).or_default();
                match runs.last_mut().filter(|last| last.end == local) {
                    Some(last) => last.end += 1,
                    None => runs.push(local..local + 1),
                }
            }
        }
        let brings = runs.keys().next_back().is_some_and(|&(is_open, _)| is_open);
        let all =
            runs.into_iter().flat_map(|((_, version), runs)| runs.into_iter().map(move |run| (version, run)));
        let fetch = |(version, run): (u64, Range<usize>)| {
            let (first, last) = (self.chunks[run.start], self.chunks[run.end - 1]);
            Submission::FetchChunks { tensor, first, count: last - first + 1, version, ticket: NO_TICKET }
        };
        let mut fetches: Vec<Submission> = all.map(fetch).collect();
        if let Some(Submission::FetchChunks { ticket, .. }) = fetches.last_mut().filter(|_| brings) {
            *ticket = self.newest_ticket();
        }
        fetches
    }

    /// The newest ticket that has not come back; 0: none.
    fn newest_ticket(&self) -> u64 {
        let singles = self.singles.values().map(|single| single.ticket);
        self.open.iter().flatten().map(ticket_of).chain(singles).max().unwrap_or(NO_TICKET)
    }

    /// What is to be asked for again. Only the last brings a ticket back, and it stands for all: which of the value and the
    /// state was asked for first is not known any more, and a ticket comes back behind both (S-3).
    fn unfetched(&self) -> impl Iterator<Item = Submission> {
        let [mut value, state] = self.open;
        let newest = self.newest_ticket();
        let singles = self.singles.values().filter(|single| single.ticket != NO_TICKET);
        let least = singles.map(|single| single.version).min();
        if let (Some(Submission::Fetch { version, .. }), Some(least)) = (&mut value, least) {
            *version = least.min(*version);
        }
        let follows = value.is_some() || least.is_some();
        let state = state.map(|fetch| with_ticket(fetch, if follows { NO_TICKET } else { newest }));
        state.into_iter().chain(value.map(|fetch| with_ticket(fetch, newest)))
    }

    /// Versions that have not come: `wanted` - 1, if that is one of them, and those that fetches asked for. The least and the
    /// greatest stand for all.
    fn missing(&mut self, wanted: u64) -> impl Iterator<Item = u64> + use<> {
        let least = self.progress.least().unwrap_or(0);
        if least > 0 {
            self.awaited.came(least - 1);
        }
        if wanted > least {
            self.awaited.want(wanted - 1);
        }
        let (first, last) = self.awaited.bounds().unzip();
        first.into_iter().chain(last.filter(|_| first != last))
    }

    /// Notes what is held of a chunk by now.
    fn holds(&mut self, local: usize, version: u64, content: u64) {
        self.digests.count(local, version, content);
        self.returning.holds(local, Holding { content, version });
        self.fresh[local] = true;
        if !self.lost.is_empty() && !self.borrowed {
            self.lost.remove(&local);
        }
        if let Some(doubt) = self.doubts.get_mut(local) {
            *doubt = if self.borrowed { Doubt::All } else { Doubt::None };
        }
        (self.versions[local], self.contents[local]) = (version + 1, content);
    }

    /// What is held of so many of the chunks, from this one on; `None`: they are not all here.
    fn contents(&self, chunk: u32, count: u32) -> Option<Contents> {
        let first = self.chunks.binary_search(&chunk).ok()?;
        let held = self.contents.get(first..first.checked_add(count as usize)?)?;
        Some(contents(held.iter().copied()))
    }

    /// What is held of a chunk, and of those beside it, to be told once until something of it comes.
    fn asks_whole(&mut self, local: usize, tensor: TensorId, epoch: u32) -> Option<Submission> {
        let asked = std::mem::replace(&mut self.misfits[local], true);
        (!asked).then(|| self.held_from(local, tensor, epoch))
    }

    /// What is held of some chunks from this one on.
    fn held_from(&self, start: usize, tensor: TensorId, epoch: u32) -> Submission {
        let mut positions = [NO_MORE; HELD];
        for (local, position) in (start..self.chunks.len()).zip(&mut positions) {
            *position = if self.lost.contains_key(&local) { LOST } else { self.positions[local] };
        }
        Submission::Holds { tensor, first: self.chunks[start], epoch, positions }
    }

    /// What is held of the chunks of these stripes, to be told.
    fn held(&self, tensor: TensorId, epoch: u32, stripes: Stripes) -> impl Iterator<Item = Submission> {
        (0..self.chunks.len()).step_by(HELD).filter_map(move |start| {
            let locals = start..(start + HELD).min(self.chunks.len());
            if !locals.into_iter().any(|local| stripes.has(self.digests.stripe(local))) {
                return None;
            }
            Some(self.held_from(start, tensor, epoch))
        })
    }

    /// Whether a chunk may come to this version.
    fn check_version(&self, local: usize, version: u64) -> Result<(), Broken> {
        let chunk = self.chunks[local];
        if version > MAX_CLOCK {
            return Err(Broken::TooNew { chunk, version });
        }
        if version + 1 < self.versions[local] {
            return Err(Broken::Fell { chunk, version });
        }
        Ok(())
    }

    /// A chunk's value has come; what there is to be told of the least version of all.
    fn take(&mut self, local: usize, version: u64, publication: u64, content: u64) -> Option<u64> {
        self.positions[local] = publication;
        self.misfits[local] = false;
        self.singles_came(local..local + 1, version);
        let was = self.versions[local];
        self.holds(local, version, content);
        if version + 1 > was {
            self.progress.leaves(was);
            return self.progress.risen(self.versions.iter().copied());
        }
        None
    }

    /// So many of the chunks, from this one on, have come to a version with what is mirrored of them; what there is to be told of
    /// the least of all.
    fn raise(&mut self, chunk: u32, count: u32, version: u64) -> Result<Option<u64>, Broken> {
        let unsent = Broken::Unsent { chunk, count, version };
        let first = self.chunks.binary_search(&chunk).map_err(|_| unsent)?;
        let end = first.checked_add(count as usize).filter(|&end| end <= self.chunks.len()).ok_or(unsent)?;
        if version > MAX_CLOCK {
            return Err(Broken::TooNew { chunk, version });
        }
        if self.positions[first..end].contains(&0) {
            return Err(unsent);
        }
        if self.versions[first..end].iter().any(|&was| version + 1 < was) {
            return Err(Broken::Fell { chunk, version });
        }
        self.singles_came(first..end, version);
        let mut risen = false;
        for local in first..end {
            let was = self.versions[local];
            self.holds(local, version, self.contents[local]);
            if was <= version {
                self.progress.leaves(was);
                risen = true;
            }
        }
        Ok(if risen { self.progress.risen(self.versions.iter().copied()) } else { None })
    }

    /// Frames of a right factor.
    fn pieces(&self, rank: u32) -> u32 {
        self.low_rank.map_or(0, |low_rank| factors::pieces(low_rank.right(rank)))
    }

    /// This is to be held, of the chunks from `first` on, before the ticket that comes next is returned.
    fn expects(&mut self, first: u32, all: impl IntoIterator<Item = Holding>) {
        let Ok(start) = self.chunks.binary_search(&first) else { return };
        let all = all.into_iter().take_while(|&one| one != Holding::NONE);
        for (local, expected) in (start..self.chunks.len()).zip(all) {
            let held = self.versions[local].checked_sub(1);
            let held = held.map(|version| Holding { content: self.contents[local], version });
            if expected != Holding::UNPUBLISHED && held.is_none_or(|held| !held.reaches(expected)) {
                self.returning.expect(local, expected);
            }
        }
    }

    /// Places of the chunks among `first..first + count`.
    fn locals(&self, first: u32, count: u32) -> Range<usize> {
        let at = |chunk: u32| self.chunks.partition_point(|&homed| homed < chunk);
        at(first)..at(first.saturating_add(count))
    }
}

fn ticket_of(fetch: &Submission) -> u64 {
    match fetch {
        Submission::Fetch { ticket, .. } => *ticket,
        _ => 0,
    }
}

fn with_ticket(mut fetch: Submission, new: u64) -> Submission {
    if let Submission::Fetch { ticket, .. } = &mut fetch {
        *ticket = new;
    }
    fetch
}

/// A subscriber's side of one shard, over all its connections.
#[derive(Debug, Default)]
pub struct Mirror {
    outbox: Outbox,
    tensors: Numbered<Mirrored>,
    /// Whether the shard has said how many frames it has taken: before that nothing is sent.
    resumed: bool,
    /// Whether the worker has said goodbye: nothing may follow that.
    left: bool,
    /// How values come to it, as the home says; `None`: from the home, on this connection.
    route: Option<Route>,
    /// Stripes of which they come from others.
    fed: Stripes,
    lag: Lag,
    /// Tensors of which tickets wait for what others bring.
    keeping: BTreeSet<TensorId>,
    /// How often it was doubted that all has come that others feed.
    doubts: u32,
    /// Whether the home is still to be told what is held of tensors that were borrowed, as their lender said.
    gave_back: bool,
}

impl Mirror {
    /// A tensor, of which the shard is home of these chunks, ascending. `broadcast`: it sends what is new of them unasked, once
    /// it was asked for the value. `chunk_bytes`: of each but the tensor's last.
    pub fn declare(&mut self, id: TensorId, chunks: Vec<u32>, chunk_bytes: u64, broadcast: bool) {
        let (versions, progress) = (vec![0; chunks.len()], Progress::of_zeros(chunks.len()));
        let (positions, awaited) = (versions.clone(), Awaited::default());
        let (open, singles) = ([None; 2], BTreeMap::new());
        let asked = false;
        let contents = versions.clone();
        let shares = self.route.as_ref().map_or(&[][..], |route| &route.shares);
        let digests = Digests::new(id, chunks.len(), chunk_bytes, shares);
        let mirrored = Mirrored {
            chunks,
            low_rank: None,
            broadcast,
            asked,
            versions,
            positions,
            progress,
            awaited,
            open,
            singles,
            fresh: vec![false; contents.len()],
            misfits: vec![false; contents.len()],
            contents,
            digests,
            returning: Returning::default(),
            borrowed: false,
            lost: BTreeMap::new(),
            doubts: Vec::new(),
            behind: 0,
            by_trees: false,
            direct: 0,
        };
        self.tensors.insert(id, mirrored);
    }

    /// Contributions to a tensor, which was declared, may travel as factors.
    pub fn declare_factors(&mut self, id: TensorId, low_rank: LowRank) {
        if let Some(mirrored) = self.tensors.get_mut(id) {
            mirrored.low_rank = Some(low_rank);
        }
    }

    /// A connection stands, on which nothing was said. The first value of each chunk comes whole on it.
    pub fn connect(&mut self) {
        self.resumed = false;
        (self.route, self.fed) = (None, Stripes::default());
        self.keeping.clear();
        self.lag.clear();
        self.gave_back = false;
        for (_, mirrored) in self.tensors.iter_mut() {
            mirrored.positions.fill(0);
            mirrored.lost.clear();
            (mirrored.behind, mirrored.by_trees, mirrored.direct) = (0, false, 0);
            mirrored.returning.clear();
        }
    }

    /// Whether the shard has spoken on this connection.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Takes what the worker says to the shard. What it names was declared.
    pub fn submit(&mut self, submission: Submission) {
        let frames = match submission {
            Submission::Push { tensor, first, count, .. } | Submission::Load { tensor, first, count, .. } => {
                self.tensors.get(tensor).map_or(0, |mirrored| mirrored.locals(first, count).len())
            }
            Submission::Fetch { tensor, .. } => {
                if let Some(mirrored) = self.tensors.get_mut(tensor) {
                    mirrored.expect(submission);
                }
                1
            }
            Submission::FetchChunks { tensor, first, count, version, ticket } => {
                let mirrored = self.tensors.get_mut(tensor);
                mirrored.map_or(0, |mirrored| {
                    let locals = mirrored.locals(first, count);
                    mirrored.expect_singles(locals, version, ticket);
                    1
                })
            }
            Submission::Skip { tensor, first, count, .. } => {
                let locals = self.tensors.get(tensor).map(|mirrored| mirrored.locals(first, count));
                usize::from(locals.is_some_and(|locals| !locals.is_empty()))
            }
            Submission::PushProduct { tensor, first, count, rank, .. } => {
                self.tensors.get(tensor).map_or(0, |mirrored| {
                    let chunks = mirrored.locals(first, count).len();
                    if chunks == 0 { 0 } else { mirrored.pieces(rank) as usize + chunks }
                })
            }
            Submission::Zero { .. }
            | Submission::Flush { .. }
            | Submission::Clock { .. }
            | Submission::Factor { .. }
            | Submission::Attached { .. }
            | Submission::Strayed { .. }
            | Submission::Holds { .. } => 1,
            Submission::Leave => {
                self.left = true;
                1
            }
        };
        if frames > 0 {
            self.outbox.submit(submission, frames as u32);
        }
    }

    /// The next frame to be sent; it stays the next until [`Mirror::sent`]. `None`: there is none, or nothing may be sent yet.
    pub fn due(&self) -> Option<Frame> {
        if !self.resumed {
            return None;
        }
        let due = self.outbox.due()?;
        let chunk_at = |tensor: TensorId, first: u32, count: u32, index: u32| {
            let mirrored = self.tensors.get(tensor)?;
            mirrored.chunks.get(mirrored.locals(first, count).start + index as usize).copied()
        };
        let chunk = |tensor, first, count| chunk_at(tensor, first, count, due.index);
        let (submission, payload) = match due.submission {
            Submission::Push { tensor, first, count, stamp, settings } => {
                let chunk = chunk(tensor, first, count)?;
                let push = Submission::Push { tensor, first: chunk, count: 1, stamp, settings };
                (push, Some(Carried::Chunk { tensor, chunk }))
            }
            Submission::Load { tensor, first, count, slot, part, steps } => {
                let chunk = chunk(tensor, first, count)?;
                let load = Submission::Load { tensor, first: chunk, count: 1, slot, part, steps };
                (load, Some(Carried::Chunk { tensor, chunk }))
            }
            Submission::PushProduct { tensor, first, count, stamp, settings, rank } => {
                let mirrored = self.tensors.get(tensor)?;
                let pieces = mirrored.pieces(rank);
                if due.index < pieces {
                    let piece = factors::piece(mirrored.low_rank?.right(rank), due.index);
                    let factor = Submission::Factor { tensor, rank, at: piece.start as u64 };
                    (factor, Some(Carried::Piece { tensor, rank, index: due.index }))
                } else {
                    let chunk = chunk_at(tensor, first, count, due.index - pieces)?;
                    let push = Submission::Push { tensor, first: chunk, count: 1, stamp, settings };
                    (push, Some(Carried::Rows { tensor, chunk, rank }))
                }
            }
            other => (other, None),
        };
        Some(Frame { sequence: due.sequence, submission, payload })
    }

    /// The frame that was due has been handed to the connection.
    pub fn sent(&mut self) {
        self.outbox.sent();
    }

    /// Frames that were submitted and not sent on this connection.
    pub fn unsent(&self) -> u64 {
        self.outbox.unsent()
    }

    /// How many frames were taken, of how many that were submitted.
    pub fn progress(&self) -> (u64, u64) {
        self.outbox.progress()
    }

    /// Whether everything that was submitted was taken.
    pub fn is_delivered(&self) -> bool {
        self.outbox.is_empty()
    }

    /// The shard has spoken: it has taken `taken` frames in all, and says this. `wanted` is the version + 1 of a tensor
    /// that pushes have asked for.
    pub fn hear(
        &mut self,
        taken: u64,
        notice: &Notice,
        wanted: impl Fn(TensorId) -> u64,
    ) -> Result<Effect, Broken> {
        if std::mem::replace(&mut self.resumed, true) {
            self.outbox.taken(taken)?;
            self.lag.taken(taken);
        } else {
            self.resume(taken, wanted)?;
        }
        let of = match *notice {
            Notice::Value { tensor, .. }
            | Notice::Update { tensor, .. }
            | Notice::Whole { tensor, .. }
            | Notice::Raised { tensor, .. }
            | Notice::State { tensor, .. }
            | Notice::Folded { tensor, .. }
            | Notice::Fetched { tensor, .. } => tensor,
            Notice::Standing { tensor, stripe, digest } => {
                self.stands(tensor, stripe, digest);
                return Ok(Effect::Nothing);
            }
            Notice::Expected { tensor, first, held } => {
                if let Some(mirrored) = self.tensors.get_mut(tensor) {
                    mirrored.expects(first, held);
                }
                return Ok(Effect::Nothing);
            }
            Notice::Taken | Notice::Seal | Notice::Route | Notice::Factor { .. } | Notice::Lent { .. } => {
                return Ok(Effect::Nothing);
            }
        };
        let (is_routed, fed) = (self.route.is_some(), self.fed);
        let Some(mirrored) = self.tensors.get_mut(of) else { return Ok(Effect::Nothing) };
        match *notice {
            Notice::Value { tensor, chunk, version, steps, publication, base, content } => {
                let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return Ok(Effect::Nothing) };
                if version > MAX_CLOCK {
                    return Err(Broken::TooNew { chunk, version });
                }
                if mirrored.borrowed {
                    let is_fed = fed.has(mirrored.digests.stripe(local));
                    mirrored.sent_nevertheless(local, is_fed, (version, publication, content));
                    return Ok(Effect::Nothing);
                }
                let what = Value { version, steps, publication, base, content };
                match mirrored.hear_doubted((tensor, local), taken, what) {
                    Answer::Sure => {}
                    Answer::Is(effect) => return Ok(effect),
                    Answer::Unusable => {
                        if let Some(epoch) = self.route.as_ref().map(|route| route.epoch) {
                            let holds = mirrored.held_from(local, tensor, epoch);
                            self.outbox.submit(holds, 1);
                        }
                        return Ok(Effect::Nothing);
                    }
                }
                let was = mirrored.versions[local];
                // It has come by another way, or something newer has.
                if is_routed && publication <= mirrored.positions[local] {
                    return Ok(Effect::Nothing);
                }
                // Or the same has, and was raised since.
                if is_routed && version + 1 < was && content == mirrored.contents[local] {
                    mirrored.positions[local] = publication;
                    return Ok(Effect::Nothing);
                }
                if version + 1 < was {
                    return Err(Broken::Fell { chunk, version });
                }
                let held = mirrored.positions[local];
                if base > 0 && base != held {
                    return Err(Broken::Baseless { chunk, held, got: base });
                }
                let progress = mirrored.take(local, version, publication, content);
                Ok(Effect::Publish { tensor, chunk, version, steps, progress })
            }
            Notice::Update { tensor, chunk, version, steps, publication, base } => {
                let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return Ok(Effect::Nothing) };
                mirrored.check_version(local, version)?;
                let held = mirrored.contents[local];
                if mirrored.positions[local] == 0 || base != held || publication <= base || steps == 0 {
                    return Err(Broken::Misfit { chunk, held, got: base, publication, steps });
                }
                let progress = mirrored.take(local, version, publication, publication);
                Ok(Effect::Update { tensor, chunk, version, steps, progress })
            }
            Notice::Whole { tensor, chunk, version, steps, publication, content } => {
                let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return Ok(Effect::Nothing) };
                mirrored.check_version(local, version)?;
                let progress = mirrored.take(local, version, publication, content);
                Ok(Effect::Whole { tensor, chunk, version, steps, progress })
            }
            Notice::Raised { tensor, chunk, count, version, steps, contents } => {
                if mirrored.borrowed {
                    mirrored.raised_nevertheless(chunk, count, version, contents);
                    return Ok(Effect::Nothing);
                }
                if let Some(epoch) = self.route.as_ref().map(|route| route.epoch)
                    && mirrored.is_doubted(chunk, count)
                    && taken >= mirrored.behind
                {
                    if version > MAX_CLOCK {
                        return Err(Broken::TooNew { chunk, version });
                    }
                    let progress = match mirrored.raised_doubted(chunk, count, version, contents) {
                        Ok(progress) => progress,
                        Err(is_new) => {
                            let lost = mirrored.locals(chunk, count).step_by(HELD).filter(|_| is_new);
                            lost.for_each(|at| self.outbox.submit(mirrored.held_from(at, tensor, epoch), 1));
                            return Ok(Effect::Nothing);
                        }
                    };
                    return Ok(Effect::Raise { tensor, chunk, count, version, steps, progress });
                }
                // Something newer has come by another way.
                if is_routed && mirrored.contents(chunk, count).is_some_and(|held| held != contents) {
                    return Ok(Effect::Nothing);
                }
                let progress = match mirrored.raise(chunk, count, version) {
                    Err(Broken::Fell { .. }) if is_routed => return Ok(Effect::Nothing),
                    raised => raised?,
                };
                Ok(Effect::Raise { tensor, chunk, count, version, steps, progress })
            }
            Notice::State { tensor, chunk } => Ok(Effect::State { tensor, chunk }),
            Notice::Folded { tensor, count } => Ok(Effect::Folded { tensor, count }),
            Notice::Fetched { tensor, ticket } => {
                if !mirrored.returning.came_back(ticket) {
                    self.keeping.insert(tensor);
                    return Ok(Effect::Nothing);
                }
                mirrored.fetched(ticket);
                Ok(Effect::Fetched { tensor, ticket })
            }
            Notice::Taken
            | Notice::Seal
            | Notice::Factor { .. }
            | Notice::Standing { .. }
            | Notice::Expected { .. }
            | Notice::Lent { .. }
            | Notice::Route => Ok(Effect::Nothing),
        }
    }

    /// Behind an effect on a tensor: the newest ticket that came back before, and of which everything is published now.
    pub fn take_returned(&mut self, tensor: TensorId) -> Option<u64> {
        let mirrored = self.tensors.get_mut(tensor).filter(|_| self.keeping.contains(&tensor))?;
        let ticket = mirrored.returning.take()?;
        if !mirrored.returning.keeps() {
            self.keeping.remove(&tensor);
        }
        mirrored.fetched(ticket);
        Some(ticket)
    }

    /// The shard's first word on a connection: goes on behind what it has taken, and asks again for what has not come.
    fn resume(&mut self, taken: u64, wanted: impl Fn(TensorId) -> u64) -> Result<(), Broken> {
        self.outbox.resume(taken)?;
        // What was said of parents, and of what they had brought, was of that connection.
        let is_over = |submission: &Submission| {
            matches!(
                submission,
                Submission::Attached { .. } | Submission::Strayed { .. } | Submission::Holds { .. }
            )
        };
        if self.left {
            self.outbox.drop_untaken(is_over);
            return Ok(()); // what would come is not looked at
        }
        // Chunks that were asked for by themselves are asked for behind everything: more may be asked for with the same frames.
        // So is the value then, which may stand for them: what a worker has pushed by then is to be in both.
        let opens = |tensor: TensorId| {
            let singles = self.tensors.get(tensor).into_iter().flat_map(|mirrored| mirrored.singles.values());
            singles.into_iter().any(|single| single.ticket != NO_TICKET)
        };
        self.outbox.drop_untaken(|submission| match *submission {
            Submission::FetchChunks { .. } => true,
            Submission::Fetch { tensor, state: false, ticket, .. } => ticket != NO_TICKET && opens(tensor),
            _ => is_over(submission),
        });
        // All else that is open is asked for again: where it is asked for already in a frame that was not taken, there, so that a
        // line that breaks again and again makes nothing longer. What else stands there brings no ticket back: it would pass
        // those whose answers were lost.
        let mut untaken: Vec<&mut Submission> = self.outbox.untaken().collect();
        let mut standing: BTreeMap<TensorId, Standing> = BTreeMap::new();
        for (place, submission) in untaken.iter_mut().enumerate() {
            if let Submission::Fetch { tensor, state, ticket, .. } = &mut **submission {
                let at = standing.entry(*tensor).or_default();
                match (state, std::mem::replace(ticket, NO_TICKET)) {
                    (true, _) => at.state = Some(place),
                    (false, NO_TICKET) => at.wants = [Some(place), at.wants[0]],
                    (false, _) => at.value = Some(place),
                }
            }
        }
        let mut behind = Vec::new();
        for (tensor, mirrored) in self.tensors.iter_mut() {
            let at = standing.remove(&tensor).unwrap_or_default();
            let mut ask = |place: Option<usize>, fetch| match place {
                Some(place) => *untaken[place] = fetch,
                None => behind.push(fetch),
            };
            for (version, place) in mirrored.missed(wanted(tensor)).zip(at.wants) {
                ask(place, Submission::Fetch { tensor, state: false, version, ticket: NO_TICKET });
            }
            // The value is asked for behind the state, with the ticket that stands for both.
            let follows = mirrored.open[1].is_none() || at.state.is_some() && at.value > at.state;
            for fetch in mirrored.unfetched() {
                let is_state = matches!(fetch, Submission::Fetch { state: true, .. });
                ask(if is_state { at.state } else { at.value.filter(|_| follows) }, fetch);
            }
            behind.extend(mirrored.missed_singles(tensor));
        }
        behind.into_iter().for_each(|fetch| self.outbox.submit(fetch, 1));
        Ok(())
    }
}

/// Where the last frame stands, among those that were not taken, that asks for a tensor's value with a ticket and for its
/// state, and the last two that ask for versions without one.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    value: Option<usize>,
    state: Option<usize>,
    wants: [Option<usize>; 2],
}
