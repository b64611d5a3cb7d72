//! Both ends of a connection to a shard: the product's own code ([`remote_shard`],
//! [`remote_peer`](penstock_fabric::net::remote_peer)), and the memory that it works on here.
//!
//! What a [`Proxy`] and its worker tell each other is what `RemoteHome` is in a real job.

use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::shard_memory::{Aligned, Mirror};
use crate::socket::Socket;
use crate::worker::Need;
use crate::workload::Thin;
use penstock_fabric::net::link::Interest;
use penstock_fabric::net::remote_peer::RemotePeer;
use penstock_fabric::net::remote_shard::{self, Limits, RemoteShard, Submitter, Update, Value};
use penstock_fabric::publish::Published;
use penstock_kernels::codec::Undecodable;
use penstock_kernels::{Foreign, SumRoom};
use penstock_proto::chunk::Cut;
use penstock_proto::consistency::Consistency;
use penstock_proto::encoding::{Agreed, Encoding};
use penstock_proto::factors::LowRank;
use penstock_proto::frame::{Body, Notice};
use penstock_proto::peer::PeerId;
use penstock_proto::remote::asking::{self, AtPull, Known};
use penstock_proto::remote::home::{Subscriber, Subscribers};
use penstock_proto::spec::TensorSpec;
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::travel::Terms;
use penstock_proto::update::Updates;
use penstock_proto::worker::Requirement;
use penstock_proto::{Rank, TensorId};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// What stands in a mirror before anything has come.
const UNWRITTEN: u8 = 0xee;

/// What came to a proxy, to be seen.
#[derive(Debug)]
pub enum Deed {
    /// A value.
    Came {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Its version.
        version: u64,
        /// What its payload was encoded by.
        encoding: Encoding,
        /// The publication that it was a difference against; 0: it was whole.
        base: u64,
        /// The value.
        value: Rc<[u8]>,
    },
    /// An update, or value and state whole; the value is told of beside it.
    Updated {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Whether it was whole.
        whole: bool,
    },
    /// The optimizer's state of a chunk.
    Stated {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
    },
    /// A ticket.
    Returned {
        /// The tensor.
        tensor: TensorId,
        /// The ticket.
        ticket: u64,
    },
}

/// What a worker has of a tensor, as far as one shard of another host is home of it.
#[derive(Debug)]
pub struct Mirrored {
    id: TensorId,
    chunks: Vec<u32>,
    cut: Cut,
    /// Bytes of the optimizer's state of each chunk.
    state: Vec<usize>,
    values_as: Agreed,
    contributions_as: Agreed,
    low_rank: Option<LowRank>,
    broadcast: bool,
    deeds: Rc<RefCell<Vec<Deed>>>,
    /// Which promise is broken on purpose, if one is, and what says when.
    broken: Option<(Sabotage, Rng)>,
    /// What stands in the worker's lane.
    pub lane: Rc<[u8]>,
    /// What stands there instead, where a contribution travels as factors.
    factors: Option<Rc<Thin>>,
    /// Whether the right one of the last contribution is sent once more, on purpose.
    keeps_factor: bool,
    /// What came of each chunk.
    pub values: BTreeMap<u32, Mirror>,
    /// The optimizer's state beside it, where updates come.
    states: BTreeMap<u32, Vec<u8>>,
    updates: Option<Updates>,
    sum: SumRoom,
    /// The least version of all chunks + 1.
    pub progress: u64,
    /// Own contributions that were taken from the lane.
    pub folded: u64,
    /// The last ticket that was given out.
    pub ticket: u64,
    /// The last ticket that came back.
    pub fetched: u64,
    /// The ticket with which all that there was of the value was last fetched, after a barrier or a load.
    pub renewed: u64,
    /// Whether the result of the push that is under way is wanted as soon as it is there.
    pub wants: bool,
    /// The version + 1 that pushes have asked for.
    pub wanted: u64,
    /// Whether the value was pulled since the last push.
    pub pulled: bool,
    /// Whether it was asked for, so that what is new of a broadcast one comes unasked.
    pub asked: bool,
}

impl Mirrored {
    /// The chunk's version + 1; 0 before the first.
    fn chunk_progress(&self, chunk: u32) -> u64 {
        self.values.get(&chunk).map_or(0, |held| held.version + 1)
    }

    fn is_sent(&self) -> bool {
        self.broadcast && self.asked
    }

    fn breaks(&mut self, sabotage: Sabotage) -> bool {
        let broken = self.broken.as_mut().filter(|(broken, _)| *broken == sabotage);
        broken.is_some_and(|(_, rng)| rng.once_in(4))
    }

    /// A value of a chunk is here.
    fn came(
        &mut self,
        chunk: u32,
        value: Rc<[u8]>,
        Published { version, steps }: Published,
        encoding: Encoding,
        base: u64,
    ) {
        self.values.insert(chunk, Mirror { version, steps, value: Rc::clone(&value) });
        let tensor = self.id;
        self.deeds.borrow_mut().push(Deed::Came { tensor, chunk, version, encoding, base, value });
    }

    fn range(&self, chunk: u32) -> Option<Range<usize>> {
        self.chunks.binary_search(&chunk).ok()?;
        let range = self.cut.range(chunk);
        Some(range.start as usize..range.end as usize)
    }
}

impl remote_shard::Mirrored for Mirrored {
    fn chunks(&self) -> &[u32] {
        &self.chunks
    }

    fn values(&self) -> &Agreed {
        &self.values_as
    }

    fn contributions(&self) -> &Agreed {
        &self.contributions_as
    }

    fn bytes(&self, chunk: u32) -> Option<usize> {
        self.range(chunk).map(|range| range.len())
    }

    fn state_bytes(&self, chunk: u32) -> Option<usize> {
        Some(self.state[self.chunks.binary_search(&chunk).ok()?])
    }

    fn contribution(&self, chunk: u32) -> Foreign<'_> {
        Foreign::of(&self.lane[self.range(chunk).expect("it is homed there")])
    }

    fn low_rank(&self) -> Option<LowRank> {
        self.low_rank
    }

    fn range_of(&self, chunk: u32) -> Range<u64> {
        self.cut.range(chunk)
    }

    fn right_factor(&self, rank: u32, bytes: Range<usize>) -> Foreign<'_> {
        let thin = self.factors.as_ref().expect("factors stand there");
        debug_assert_eq!(thin.rank, rank);
        Foreign::of(&thin.v[bytes])
    }

    fn left_factor(&self, rank: u32, chunk: u32) -> Foreign<'_> {
        let thin = self.factors.as_ref().expect("factors stand there");
        let low_rank = self.low_rank.expect("they travel");
        let rows = low_rank.rows(self.cut.range(chunk));
        let row = low_rank.left(rank);
        Foreign::of(&thin.u[rows.start as usize * row..rows.end as usize * row])
    }

    fn is_broadcast(&self) -> bool {
        self.broadcast
    }

    /// So that both ways are simulated.
    fn is_lane_exposed(&self) -> bool {
        self.chunks.len().is_multiple_of(2)
    }

    fn wants(&self) -> bool {
        self.wants
    }

    fn wanted(&self) -> u64 {
        self.wanted
    }

    fn publish(&mut self, chunk: u32, value: &Value<'_>, published: Published) -> Result<(), Undecodable> {
        // It is decoded onto what the mirror holds; the header says whether any of that counts.
        let mut new: Rc<[u8]> = match self.values.get(&chunk) {
            Some(held) => Rc::from(&held.value[..]),
            None => vec![UNWRITTEN; self.bytes(chunk).expect("it is homed there")].into(),
        };
        let onto = Rc::get_mut(&mut new).expect("nobody else has it yet");
        value.decode(onto)?;
        if let Some((Sabotage::BelievesDamagedFrames, rng)) = &mut self.broken {
            flip(onto, Some(rng));
        }
        let base = match value.header.body {
            Body::Notice(Notice::Value { base, .. }) => base,
            _ => 0,
        };
        self.came(chunk, new, published, value.header.encoding, base);
        Ok(())
    }

    fn updates(&self) -> Option<&Updates> {
        self.updates.as_ref()
    }

    fn whole_bytes(&self, chunk: u32) -> Option<usize> {
        Some(self.bytes(chunk)? + self.state_bytes(chunk)?)
    }

    fn update(&mut self, chunk: u32, update: &Update<'_>, published: Published) -> Result<(), Undecodable> {
        let (tensor, whole) = (self.id, false);
        let skips = self.breaks(Sabotage::SkipsUpdates);
        let twice = self.breaks(Sabotage::AppliesUpdatesTwice);
        let Self { updates, values, states, sum, .. } = self;
        let Updates { plan, .. } = updates.as_ref().expect("it was asked whether updates come");
        let held = values.get(&chunk).expect("an update leads on from what came");
        let state = states.get_mut(&chunk).expect("the state came with it");
        let (mut value, mut arrays) = (Aligned::of(&held.value), Aligned::of(state));
        let sum = update.decode(plan, sum, value.len())?;
        let times = if skips { 0 } else { 1 + u32::from(twice) };
        (0..times).for_each(|_| update.fold(plan, sum, &mut value, &mut arrays));
        state.copy_from_slice(&arrays);
        self.deeds.borrow_mut().push(Deed::Updated { tensor, chunk, whole });
        self.came(chunk, Rc::from(&value[..]), published, Encoding::RAW, 0);
        Ok(())
    }

    fn whole(&mut self, chunk: u32, whole: &Value<'_>, published: Published) -> Result<(), Undecodable> {
        let mut both = vec![UNWRITTEN; self.whole_bytes(chunk).expect("it is homed there")];
        whole.decode(&mut both)?;
        let state = both.split_off(self.bytes(chunk).expect("it is homed there"));
        let keeps = matches!(self.broken, Some((Sabotage::KeepsTheOldState, _)));
        if !keeps || !self.states.contains_key(&chunk) {
            self.states.insert(chunk, state);
        }
        self.deeds.borrow_mut().push(Deed::Updated { tensor: self.id, chunk, whole: true });
        self.came(chunk, both.into(), published, whole.header.encoding, 0);
        Ok(())
    }

    fn raise(&mut self, chunk: u32, published: Published) {
        let Some(held) = self.values.get_mut(&chunk) else { return };
        let Published { version, steps } = published;
        (held.version, held.steps) = (version, steps);
        let (tensor, encoding, value) = (self.id, Encoding::RAW, Rc::clone(&held.value));
        self.deeds.borrow_mut().push(Deed::Came { tensor, chunk, version, encoding, base: 0, value });
    }

    fn progress(&mut self, progress: u64) {
        self.progress = progress;
    }

    fn state(&mut self, chunk: u32, _: &[u8]) {
        self.deeds.borrow_mut().push(Deed::Stated { tensor: self.id, chunk });
    }

    fn folded(&mut self, count: u64) {
        self.folded = count;
    }

    fn fetched(&mut self, ticket: u64) {
        self.fetched = ticket.max(self.fetched);
        self.deeds.borrow_mut().push(Deed::Returned { tensor: self.id, ticket });
    }
}

/// Flips a bit of a chunk, once in a while.
pub fn flip(chunk: &mut [u8], flips: Option<&mut Rng>) {
    if let Some(rng) = flips.filter(|_| !chunk.is_empty())
        && rng.once_in(8)
    {
        let at = rng.within(0..=chunk.len() as u64 - 1) as usize;
        chunk[at] ^= 1 << rng.within(0..=7);
    }
}

/// What a worker submits to one shard: its ring there, and its bell.
#[derive(Debug, Default)]
pub struct Submissions {
    /// What was not taken so far.
    pub ring: VecDeque<Submission>,
    /// What it was told of.
    told: RefCell<Vec<u32>>,
}

impl Submitter for Submissions {
    fn pop(&mut self) -> Option<Submission> {
        self.ring.pop_front()
    }

    fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    fn tell(&self, topic: u32) {
        self.told.borrow_mut().push(topic);
    }
}

/// A worker's stand-in for one shard of another host.
pub struct Proxy<'a> {
    /// What runs in a job.
    pub shard: RemoteShard<Mirrored, Submissions, Socket<'a>>,
    deeds: Rc<RefCell<Vec<Deed>>>,
    /// Whether the worker has said goodbye: what comes is not looked at any more.
    pub left: bool,
    /// Chunks that went and came compressed, as far as they were counted.
    pub squeezed: u64,
}

impl Proxy<'_> {
    /// A stand-in that has no connection. `job`: the job's number in frames.
    pub fn new(job: u64, workers: u32, rng: &mut Rng) -> Self {
        // Here chunks are short: two of the longest fit, or not one.
        let limits = Limits { unsent: rng.pick(&[1, 8, 4096]), read: rng.pick(&[4096, 32 * 1024]) };
        let mut shard = RemoteShard::new(job, Submissions::default(), limits);
        shard.of_workers(workers);
        Self { shard, deeds: Rc::default(), left: false, squeezed: 0 }
    }

    /// The declaration stands everywhere: a mirror is made of these chunks.
    pub fn declare(
        &mut self,
        id: TensorId,
        spec: &TensorSpec,
        terms: &Terms,
        (cut, chunks): (Cut, &[u32]),
        broken: Option<(Sabotage, Rng)>,
        keeps_factor: bool,
    ) {
        let state = |&chunk: &u32| {
            let bytes = cut.range(chunk).end - cut.range(chunk).start;
            spec.state_bytes(bytes / spec.dtype.size() as u64) as usize
        };
        let mirrored = Mirrored {
            id,
            chunks: chunks.to_vec(),
            cut,
            state: chunks.iter().map(state).collect(),
            values_as: terms.values,
            contributions_as: terms.contributions,
            low_rank: terms.low_rank,
            broadcast: terms.propagation.is_unasked(),
            deeds: Rc::clone(&self.deeds),
            broken,
            states: BTreeMap::new(),
            updates: terms.updates,
            sum: SumRoom::default(),
            lane: Rc::default(),
            factors: None,
            keeps_factor,
            values: BTreeMap::new(),
            progress: 0,
            folded: 0,
            ticket: 0,
            fetched: 0,
            renewed: 0,
            wants: false,
            wanted: 0,
            pulled: false,
            asked: false,
        };
        self.shard.declare(id, mirrored);
    }

    /// What came since this was asked last.
    pub fn take_deeds(&mut self) -> Vec<Deed> {
        self.deeds.take()
    }

    /// Whether it has told the worker of what it waits for since this was asked last.
    pub fn take_told(&mut self, topic: Option<u32>) -> bool {
        let told = self.shard.submitter().told.take();
        topic.is_some_and(|topic| told.contains(&topic))
    }

    /// Gives a ticket back, though nothing has come.
    pub fn return_ticket(&mut self, tensor: TensorId, ticket: u64) {
        if let Some(mirrored) = self.shard.tensor_mut(tensor) {
            remote_shard::Mirrored::fetched(mirrored, ticket);
        }
    }

    /// The worker has filled its lane of a tensor: `factors`, what stands there instead of their product.
    pub fn fill(&mut self, tensor: TensorId, lane: &Rc<[u8]>, factors: Option<&Rc<Thin>>) {
        let Some(mirrored) = self.shard.tensor_mut(tensor) else { return };
        mirrored.lane = Rc::clone(lane);
        let Some(factors) = factors else { return };
        let last = mirrored.factors.replace(Rc::clone(factors));
        if let Some(last) = last.filter(|last| mirrored.keeps_factor && last.rank == factors.rank) {
            mirrored.factors = Some(Rc::new(Thin { v: last.v.clone(), ..Thin::clone(factors) }));
        }
    }

    /// What a reader sees of a chunk.
    pub fn mirror(&self, tensor: TensorId, chunk: u32) -> Option<&Mirror> {
        self.shard.tensor(tensor)?.values.get(&chunk)
    }

    /// Whether what is needed of the shard is there.
    pub fn meets(&self, need: &Need) -> bool {
        let Some(mirrored) = self.shard.tensor(need.tensor) else { return false };
        let comes = |version| match &need.chunks {
            None => mirrored.progress > version,
            Some(chunks) => chunks.iter().all(|chunk| mirrored.chunk_progress(*chunk) > version),
        };
        need.version.is_none_or(comes) && mirrored.folded >= need.folded && mirrored.fetched >= need.ticket
    }

    /// A fetch of what has changed, once it has `version`, or of the optimizer's state.
    pub fn fetch(&mut self, tensor: TensorId, version: u64, state: bool) -> Option<Submission> {
        let mirrored = self.shard.tensor_mut(tensor)?;
        mirrored.ticket += 1;
        mirrored.asked |= !state;
        Some(Submission::Fetch { tensor, state, version, ticket: mirrored.ticket })
    }

    /// Asks for a version that is sent once it is there, without a ticket.
    pub fn want(&mut self, tensor: TensorId, version: u64) -> Submission {
        if let Some(mirrored) = self.shard.tensor_mut(tensor) {
            mirrored.asked = true;
        }
        Submission::Fetch { tensor, state: false, version, ticket: NO_TICKET }
    }

    /// What a pull asks for, in this order, and the ticket that it waits for. `anew`: the worker has passed a barrier, or loaded
    /// something, since it last asked.
    pub fn freshen(
        &mut self,
        tensor: TensorId,
        requirement: &Requirement,
        anew: bool,
    ) -> (Vec<Submission>, u64) {
        let Some(mirrored) = self.shard.tensor_mut(tensor) else { return (Vec::new(), NO_TICKET) };
        mirrored.pulled = true;
        let Mirrored { progress, wanted, .. } = *mirrored;
        let known = Known { progress, wanted, is_sent: mirrored.is_sent() };
        let asked: Vec<Submission> = match asking::at_pull(requirement, known, anew) {
            AtPull::Nothing => return (Vec::new(), mirrored.renewed),
            AtPull::Fetch { version } => self.fetch(tensor, version, false).into_iter().collect(),
            AtPull::Anew { want } => {
                let fetch = self.fetch(tensor, 0, false);
                fetch.into_iter().chain(want.map(|version| self.want(tensor, version))).collect()
            }
        };
        let Some(mirrored) = self.shard.tensor_mut(tensor) else { return (asked, NO_TICKET) };
        if anew {
            mirrored.renewed = mirrored.ticket;
        }
        (asked, mirrored.ticket)
    }

    /// What a pull of these chunks, ascending, asks for, in this order, and the ticket that it waits for.
    pub fn gather(
        &mut self,
        tensor: TensorId,
        requirement: &Requirement,
        anew: bool,
        chunks: &[u32],
    ) -> (Vec<Submission>, u64) {
        let Some(mirrored) = self.shard.tensor_mut(tensor) else { return (Vec::new(), NO_TICKET) };
        let asks = |chunk: &u32| {
            let (progress, wanted) = (mirrored.chunk_progress(*chunk), mirrored.wanted);
            asking::at_pull_of_chunk(requirement, Known { progress, wanted, is_sent: false }, anew)
        };
        let place = |chunk: &u32| mirrored.chunks.binary_search(chunk).ok();
        let places: Vec<usize> = chunks.iter().filter(|chunk| asks(chunk)).filter_map(place).collect();
        if places.is_empty() {
            return (Vec::new(), mirrored.renewed);
        }
        let mut asked = Vec::new();
        for run in places.chunk_by(|one, next| one + 1 == *next) {
            let (first, last) = (mirrored.chunks[run[0]], mirrored.chunks[run[run.len() - 1]]);
            mirrored.ticket += 1;
            let (count, version, ticket) = (last - first + 1, requirement.version, mirrored.ticket);
            asked.push(Submission::FetchChunks { tensor, first, count, version, ticket });
        }
        (asked, mirrored.ticket)
    }

    /// Asks for the last chunk's first value, without a ticket: all others have one then. The chunk; `None` if it is there.
    pub fn want_first(&mut self, tensor: TensorId) -> Option<(Submission, u32)> {
        let mirrored = self.shard.tensor(tensor)?;
        let first = *mirrored.chunks.last().filter(|&&last| mirrored.chunk_progress(last) == 0)?;
        Some((Submission::FetchChunks { tensor, first, count: 1, version: 0, ticket: NO_TICKET }, first))
    }

    /// A push, of the whole tensor or of a part: the version that it asks for, if it does.
    pub fn ask_for_result(
        &mut self,
        tensor: TensorId,
        stamp: u64,
        whole: bool,
        consistency: Consistency,
    ) -> Option<u64> {
        let mirrored = self.shard.tensor_mut(tensor)?;
        // Only here may a push be of a part, and what it leaves out is not asked for.
        let (pulled, is_sent) = (std::mem::take(&mut mirrored.pulled), mirrored.is_sent());
        let version = asking::at_push(pulled, is_sent, consistency, stamp).filter(|_| whole);
        mirrored.wants = version.is_some();
        mirrored.wanted = version.map_or(mirrored.wanted, |version| version + 1);
        version
    }
}

/// The shard's ends: of each worker on another host that it listens to.
pub struct Ports<'a>(pub Vec<Option<Port<'a>>>);

impl Subscribers for Ports<'_> {
    fn of(&mut self, peer: PeerId) -> Option<&mut Subscriber> {
        self.contributor(peer.rank()?)
    }

    fn contributor(&mut self, rank: Rank) -> Option<&mut Subscriber> {
        self.0[rank as usize].as_mut().map(|port| port.peer.subscriber())
    }
}

/// One of them.
pub struct Port<'a> {
    /// What runs in a job.
    pub peer: RemotePeer<Socket<'a>>,
    /// What the shard's poll watches.
    pub watched: Interest,
    /// The last ticket of each tensor that was asked for: of use to [`Sabotage`](crate::sabotage::Sabotage) alone.
    pub tickets: BTreeMap<TensorId, u64>,
    /// The number of the last route that it was told; 0: none.
    pub epoch: u32,
}

impl<'a> Port<'a> {
    /// The port of a worker that has no connection. `job`: the job's number in frames.
    pub fn new(job: u64, rank: Rank) -> Self {
        let (peer, watched) =
            (RemotePeer::new(job, PeerId::worker(rank)), Interest { read: true, write: false });
        Self { peer, watched, tickets: BTreeMap::new(), epoch: 0 }
    }

    /// A new connection.
    pub fn attach(&mut self, socket: Socket<'a>) {
        self.peer.attach(socket);
        self.watched = Interest { read: true, write: false };
    }

    /// What the poll says of the connection, as far as it watches it.
    pub fn poll(&mut self) {
        let Some((read, write)) = self.peer.link().map(Socket::poll) else { return };
        self.peer.ready(read && self.watched.read, write && self.watched.write);
    }
}
