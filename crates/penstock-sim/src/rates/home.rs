//! The home: the product's own end of each subscriber's connection, over as little memory as that takes.
//!
//! Nothing is folded: a version is there when the scenario says so. What stands around the ends in a job is
//! `crates/penstock/src/server/shard.rs`; routes are given out as there.

use super::model::Model;
use super::net::{Number, Socket};
use penstock_fabric::net::remote_peer::{Heard, Homed, RemotePeer, Taken};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::checksum::OncePublished;
use penstock_proto::consistency::Consistency;
use penstock_proto::encoding::{Agreed, Sent, Source};
use penstock_proto::factors::LowRank;
use penstock_proto::overlay::{Digests, Direct, Routes};
use penstock_proto::peer::PeerId;
use penstock_proto::propagation::Propagation;
use penstock_proto::remote::home::{Chunks, Event, Publication, Subscriber, Subscribers, tell};
use penstock_proto::remote::judge::LanePart;
use penstock_proto::seal::Sealer;
use penstock_proto::shard::Shard;
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::submission::Submission;
use penstock_proto::travel::Travel;
use penstock_proto::{Rank, TensorId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The only tensor.
pub(super) const TENSOR: TensorId = 0;

/// What of it stands published.
struct Memory {
    model: Rc<RefCell<Model>>,
    /// What stands there of each chunk, and what that is.
    values: Vec<Box<[u8]>>,
    published: Vec<Publication>,
    sums: Vec<OncePublished>,
    sealer: Sealer,
    by_trees: bool,
    digests: Digests,
}

impl Memory {
    fn publish(&mut self, local: usize, version: u64) {
        let model = self.model.borrow();
        let value = model.chunk(version, local as u32).expect("a version is made before it is published");
        self.values[local].copy_from_slice(value);
        let sequence = self.published[local].sequence + 2;
        self.published[local] = Publication { version, steps: version, sequence, changed: sequence };
        self.digests.count(local, version, sequence);
    }
}

impl Chunks for Memory {
    fn chunks(&self, _: TensorId) -> usize {
        self.values.len()
    }

    fn publication(&self, _: TensorId, local: usize) -> Publication {
        self.published[local]
    }

    fn local(&self, _: TensorId, chunk: u32) -> Option<usize> {
        Some(chunk as usize).filter(|&local| local < self.values.len())
    }

    fn broadcasts(&self, _: TensorId) -> bool {
        true
    }

    fn has_lane(&self, _: TensorId, _: Rank) -> bool {
        true
    }

    fn goes_by_trees(&self, _: TensorId) -> bool {
        self.by_trees
    }

    fn stripe(&self, _: TensorId, local: usize) -> usize {
        self.digests.stripe(local)
    }

    fn digest(&self, _: TensorId, stripe: usize) -> u64 {
        self.digests.of(stripe).unwrap_or(0)
    }
}

/// Nobody pushes.
impl Homed for Memory {
    fn homed(&self, _: TensorId, _: u32) -> Option<Range<usize>> {
        None
    }

    fn start(&self, _: TensorId, _: u32) -> Option<u64> {
        None
    }

    fn contributions(&self, _: TensorId) -> &Agreed {
        &Agreed::RAW
    }

    fn low_rank(&self, _: TensorId) -> Option<LowRank> {
        None
    }

    fn receive(&mut self, _: &LanePart) -> &mut [u8] {
        unreachable!("no chunk is homed where somebody pushes to")
    }

    fn chunk(&self, _: TensorId, local: usize) -> u32 {
        local as u32
    }

    fn value(&self, _: TensorId, local: usize, position: u64) -> (u32, &Agreed, Sent<'_>) {
        let source =
            Source::Published(&self.values[local], &self.sums[local], self.published[local].sequence);
        (local as u32, &Agreed::RAW, Sent { source, shadow: None, position })
    }

    fn sealer(&self) -> Option<&Sealer> {
        Some(&self.sealer)
    }

    fn state(&self, _: TensorId, _: usize) -> (u32, &[u8]) {
        unreachable!("nobody asks for an optimizer's state")
    }
}

/// The peers, by rank.
struct Peers(Vec<RemotePeer<Socket>>);

impl Subscribers for Peers {
    fn of(&mut self, peer: PeerId) -> Option<&mut Subscriber> {
        self.contributor(peer.rank()?)
    }

    fn contributor(&mut self, rank: Rank) -> Option<&mut Subscriber> {
        self.0.get_mut(rank as usize).map(RemotePeer::subscriber)
    }
}

/// A worker has left its parent, whose fault that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) rank: Rank,
    pub(super) parent: Rank,
}

/// All of it.
pub(super) struct Home {
    machine: Shard,
    overlay: Direct,
    memory: Memory,
    peers: Peers,
    /// By way, whose connection that is.
    of: BTreeMap<Number, usize>,
    routes: Arc<Routes>,
    routed: BTreeSet<Rank>,
    epoch: u32,
}

impl Home {
    pub(super) fn new(
        job: u64,
        model: &Rc<RefCell<Model>>,
        (chunks, chunk_bytes): (u32, usize),
        sealer: Sealer,
        sockets: Vec<Socket>,
    ) -> Self {
        let workers = sockets.len() as u32;
        let mut machine = Shard::new(workers);
        let elements = u64::from(chunks) * chunk_bytes as u64 / 4;
        let spec = TensorSpec {
            name: "w".to_owned(),
            shape: vec![elements],
            dtype: Dtype::F32,
            rule: Rule::Add,
            consistency: Consistency::Bsp,
            propagation: Propagation::Broadcast,
            reduce: Reduce::Sum,
            rescale: 1.0,
            clip: None,
            refuse_nonfinite: false,
            travel: Travel::default(),
        };
        machine.declare(TENSOR, spec, chunks, (0..chunks).collect());
        let nothing = Publication { version: 0, steps: 0, sequence: 0, changed: 0 };
        let count = chunks as usize;
        let memory = Memory {
            model: Rc::clone(model),
            values: vec![vec![0; chunk_bytes].into(); count],
            published: vec![nothing; count],
            sums: (0..count).map(|_| OncePublished::default()).collect(),
            sealer,
            by_trees: false,
            digests: Digests::new(TENSOR, count, chunk_bytes as u64, &[]),
        };
        let mut of = BTreeMap::new();
        let peers = sockets.into_iter().enumerate().map(|(rank, socket)| {
            let (comes, goes) = socket.ways();
            of.extend([(comes, rank), (goes, rank)]);
            let mut peer = RemotePeer::new(job, PeerId::worker(rank as Rank));
            peer.attach(socket);
            peer
        });
        let peers = Peers(peers.collect());
        let (overlay, routes, routed) = (Direct::default(), Arc::default(), BTreeSet::new());
        Self { machine, overlay, memory, peers, of, routes, routed, epoch: 0 }
    }

    /// Looks at connections that have something to read, or room again. Who has left a parent.
    pub(super) fn look(&mut self, news: &[Number]) -> Result<Vec<Stray>, String> {
        let ranks: BTreeSet<usize> = news.iter().filter_map(|way| self.of.get(way)).copied().collect();
        let mut strays = Vec::new();
        for rank in ranks {
            self.hear(rank, &mut strays)?;
            self.send(rank)?;
        }
        Ok(strays)
    }

    fn hear(&mut self, rank: usize, strays: &mut Vec<Stray>) -> Result<(), String> {
        let Self { machine, memory, peers, .. } = self;
        let room = peers.0[rank].link().is_some_and(Socket::has_room);
        peers.0[rank].ready(true, room);
        loop {
            match self.peers.0[rank].hear(machine, memory) {
                Heard::Submission(Taken { judged, .. }) => {
                    let submission = *judged.submission();
                    let subscriber = self.peers.0[rank].subscriber();
                    let peer = PeerId::worker(rank as Rank);
                    subscriber
                        .ask(peer, &submission, false, (machine, &mut self.overlay), memory)
                        .map_err(|error| error.to_string())?;
                    match submission {
                        Submission::Fetch { .. } => {
                            look_who_asks(&self.routes, &mut self.peers, memory);
                        }
                        Submission::Strayed { .. } => {
                            let blame = self.peers.0[rank].subscriber().take_blame();
                            strays.extend(blame.map(|parent| Stray { rank: rank as Rank, parent }));
                        }
                        _ => {}
                    }
                }
                Heard::Header | Heard::Alive => {}
                Heard::Nothing => return Ok(()),
                Heard::Ended(why) => return Err(format!("worker {rank}'s connection has ended: {why}")),
                Heard::Broke(what) => return Err(format!("worker {rank}: {what}")),
            }
        }
    }

    fn send(&mut self, rank: usize) -> Result<(), String> {
        let sent = self.peers.0[rank].send(&self.memory);
        sent.map(|_| ()).map_err(|error| format!("to worker {rank}: {error}"))
    }

    /// Sends to all what is due.
    pub(super) fn send_all(&mut self) -> Result<(), String> {
        (0..self.peers.0.len()).try_for_each(|rank| self.send(rank))
    }

    /// A version is there, of these chunks.
    pub(super) fn publish(&mut self, version: u64, chunks: Range<u32>) -> Result<(), String> {
        for local in chunks.map(|chunk| chunk as usize) {
            self.memory.publish(local, version);
            let event = Event::Published { tensor: TENSOR, local };
            tell(event, &self.overlay, &mut self.peers, &self.memory);
        }
        self.send_all()
    }

    /// Values go along other routes from now on.
    pub(super) fn reroute(&mut self, routes: Arc<Routes>) -> Result<(), String> {
        let is_cut_anew = routes.striping != self.routes.striping;
        self.routes = routes;
        if is_cut_anew {
            self.memory.digests.cut(&self.routes.shares);
            for peer in &mut self.peers.0 {
                peer.subscriber().recut(&self.memory);
            }
        }
        (0..self.peers.0.len()).for_each(|rank| self.tell_route(rank));
        look_who_asks(&self.routes, &mut self.peers, &mut self.memory);
        self.send_all()
    }

    /// One is told again how values come to it.
    pub(super) fn route_again(&mut self, rank: Rank) -> Result<(), String> {
        self.tell_route(rank as usize);
        self.send(rank as usize)
    }

    fn tell_route(&mut self, rank: usize) {
        let Self { routes, peers, memory, epoch, routed, .. } = self;
        if !routes.members.contains_key(&(rank as Rank)) && !routed.contains(&(rank as Rank)) {
            return;
        }
        routed.insert(rank as Rank);
        *epoch += 1;
        let (route, passes_on) = routes.of(rank as Rank, *epoch);
        let peer = &mut peers.0[rank];
        peer.passes_on(passes_on);
        peer.subscriber().route(route.epoch, route.parents(), route.encode().into(), memory);
    }
}

/// Whether others may pass the values on.
fn look_who_asks(routes: &Routes, peers: &mut Peers, memory: &mut Memory) {
    let may = routes.may_carry(|rank| peers.0[rank as usize].subscriber().asks_for_each(TENSOR));
    if std::mem::replace(&mut memory.by_trees, may) != may {
        for peer in &mut peers.0 {
            peer.subscriber().turned(TENSOR, memory);
        }
    }
}
