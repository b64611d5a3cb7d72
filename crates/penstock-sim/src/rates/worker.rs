//! A worker: the product's proxy, with a mirror that keeps nothing but which version it has come to.
//!
//! What stands around it in a job, and who dials for it, is `crates/penstock/src/worker/link`.

use super::home::TENSOR;
use super::model::Model;
use super::net::{Socket, Time};
use penstock_fabric::net::remote_shard::{
    Left, Limits, Looked, Mirrored, Over, RemoteShard, Submitter, Value, Wish,
};
use penstock_fabric::publish::Published;
use penstock_kernels::Foreign;
use penstock_kernels::codec::Undecodable;
use penstock_proto::encoding::Agreed;
use penstock_proto::factors::LowRank;
use penstock_proto::submission::Submission;
use penstock_proto::uplink::{Gauge, Reports};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Frames taken in one look, as a proxy does.
const FRAMES: usize = 32;

/// What all mirrors share.
pub(super) struct Shared {
    pub(super) model: Rc<RefCell<Model>>,
    pub(super) chunks: Vec<u32>,
    pub(super) chunk_bytes: usize,
    /// The time; chunks that came with other bits than the home's.
    pub(super) now: Cell<Time>,
    pub(super) wrong: Cell<u64>,
    /// Where a value is decoded to be looked at.
    pub(super) scratch: RefCell<Vec<u8>>,
}

/// The mirror. Every value is compared with the home's, and forgotten.
pub(super) struct Mirror {
    shared: Rc<Shared>,
    /// The least version + 1 of all chunks, and when it came to that.
    pub(super) progress: u64,
    pub(super) since: Time,
}

impl Mirrored for Mirror {
    fn chunks(&self) -> &[u32] {
        &self.shared.chunks
    }

    fn values(&self) -> &Agreed {
        &Agreed::RAW
    }

    fn contributions(&self) -> &Agreed {
        &Agreed::RAW
    }

    fn bytes(&self, chunk: u32) -> Option<usize> {
        ((chunk as usize) < self.shared.chunks.len()).then_some(self.shared.chunk_bytes)
    }

    fn state_bytes(&self, _: u32) -> Option<usize> {
        None
    }

    fn contribution(&self, _: u32) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn low_rank(&self) -> Option<LowRank> {
        None
    }

    fn range_of(&self, _: u32) -> Range<u64> {
        unreachable!("nobody pushes")
    }

    fn right_factor(&self, _: u32, _: Range<usize>) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn left_factor(&self, _: u32, _: u32) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn is_broadcast(&self) -> bool {
        true
    }

    fn is_lane_exposed(&self) -> bool {
        false
    }

    fn wants(&self) -> bool {
        false
    }

    fn wanted(&self) -> u64 {
        0
    }

    fn publish(&mut self, chunk: u32, value: &Value<'_>, published: Published) -> Result<(), Undecodable> {
        let mut scratch = self.shared.scratch.borrow_mut();
        value.decode(&mut scratch)?;
        let model = self.shared.model.borrow();
        if model.chunk(published.version, chunk) != Some(&scratch[..]) {
            self.shared.wrong.set(self.shared.wrong.get() + 1);
        }
        Ok(())
    }

    fn raise(&mut self, _: u32, _: Published) {}

    fn progress(&mut self, progress: u64) {
        (self.progress, self.since) = (progress, self.shared.now.get());
    }

    fn state(&mut self, _: u32, _: &[u8]) {}

    fn folded(&mut self, _: u64) {}

    fn fetched(&mut self, _: u64) {}
}

/// It asks for the value once, and pushes nothing.
pub(super) struct Asks(Option<Submission>);

impl Submitter for Asks {
    fn pop(&mut self) -> Option<Submission> {
        self.0.take()
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn tell(&self, _: u32) {}
}

/// One worker.
pub(super) struct Worker {
    pub(super) shard: RemoteShard<Mirror, Asks, Socket>,
    /// Parents that are being dialed.
    pub(super) wished: Vec<Wish>,
    /// Whether it does nothing any more, though its connections stand.
    pub(super) hangs: bool,
    /// Whether it is to look at the clock.
    pub(super) ticks: bool,
    /// What its host's link carries, and what the home was told of that.
    pub(super) gauge: Gauge,
    pub(super) reports: Reports,
}

impl Worker {
    pub(super) fn new(job: u64, shared: &Rc<Shared>, socket: Socket) -> Self {
        let asks = Asks(Some(Submission::Fetch { tensor: TENSOR, state: false, version: 0, ticket: 1 }));
        let limits = Limits { read: 4 * shared.chunk_bytes, ..Limits::USUAL };
        let mut shard = RemoteShard::new(job, asks, limits);
        shard.declare(TENSOR, Mirror { shared: Rc::clone(shared), progress: 0, since: 0 });
        shard.attach(socket);
        let (gauge, reports) = (Gauge::default(), Reports::default());
        Self { shard, wished: Vec::new(), hangs: false, ticks: false, gauge, reports }
    }

    pub(super) fn mirror(&self) -> &Mirror {
        self.shard.tensor(TENSOR).expect("it was declared")
    }

    /// Looks until there is nothing to do.
    pub(super) fn look(&mut self) -> Result<(), String> {
        loop {
            let room = self.shard.link().is_some_and(Socket::has_room);
            self.shard.ready(true, room);
            self.shard.links_ready();
            match self.shard.look(FRAMES, |_| {}) {
                Looked { over: Some(Over::Ended(what) | Over::Broke(what)), .. } => return Err(what),
                Looked { busy: true, .. } => {}
                Looked { busy: false, .. } => return Ok(()),
            }
        }
    }

    /// Looks at the clock.
    pub(super) fn tick(&mut self, now: Time) {
        self.shard.tick(Duration::from_nanos(now));
    }

    /// Parents to be dialed, and those that were left.
    pub(super) fn others(&mut self) -> (Vec<Wish>, Vec<Left>) {
        let wishes = self.shard.take_wishes();
        for wish in &wishes {
            self.wished.retain(|before| before.stripes.and(wish.stripes).is_empty());
            self.wished.push(wish.clone());
        }
        (wishes, self.shard.take_left())
    }
}
