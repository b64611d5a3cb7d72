//! Both ends of a control connection: the real machines of `penstock_proto`, and what stands around them.
//!
//! What a worker does when it stands at a barrier (`crates/penstock/src/worker/link/barrier.rs`) is written once more here and in
//! `cluster/requests.rs`, and so is what the server's control thread does with requests (`crates/penstock/src/server/control`).
//! Numbers, repetition, answers, records, messages and the roster are the real ones.

use crate::rng::Rng;
use penstock_proto::Rank;
use penstock_proto::handshake::Session;
use penstock_proto::membership::Roster;
use penstock_proto::message::{Answer, Ask, Reply, Request, encode};
use penstock_proto::record::{CHECKSUM_BYTES, LENGTH_BYTES};
use penstock_proto::request::{Answers, Requests};
use std::collections::{BTreeMap, BTreeSet};

/// Number of every hello.
pub const HELLO: u64 = u64::MAX;
/// Number of every sign of life.
pub const BEAT: u64 = u64::MAX - 1;
/// Number of the word that the last word was heard.
pub const HEARD: u64 = u64::MAX - 2;
/// Bytes of a record in front of its message.
pub const HEAD_BYTES: usize = LENGTH_BYTES + CHECKSUM_BYTES;

/// A request that is not repeated.
pub fn request(id: u64, body: Ask) -> Vec<u8> {
    encode(&Request { id, settled: 0, open: Vec::new(), body }).expect("it is short")
}

/// An answer.
pub fn reply(id: u64, body: Answer) -> Vec<u8> {
    encode(&Reply { id, body }).expect("it is short")
}

/// A sign of life of a worker that asks for nothing.
pub fn beat() -> Vec<u8> {
    request(BEAT, Ask::Beat)
}

/// A sign of life that says which requests are open.
pub fn beat_of(requests: &Requests<Asked>) -> Vec<u8> {
    let (settled, open) = requests.settled();
    encode(&Request { id: BEAT, settled, open, body: Ask::Beat }).expect("it is short")
}

/// What a worker has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// To stand at the barrier.
    Barrier,
    /// To be taken back from it.
    Withdraw,
    /// To be let go.
    Leave,
}

/// A worker at a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtBarrier {
    /// It stands there, by this request.
    Stands(u64),
    /// It has asked to be taken back.
    Withdraws {
        /// The request by which it stood there.
        barrier: u64,
        /// The request to be taken back.
        withdrawal: u64,
        /// Whether the barrier has opened, if it was told so meanwhile.
        opened: Option<bool>,
    },
    /// It waits to hear what became of an earlier attempt.
    Doubts(u64),
}

/// A worker's end.
#[derive(Debug)]
pub struct Link {
    /// Tells that it is the same worker that comes again.
    pub session: Session,
    /// What has no answer.
    pub requests: Requests<Asked>,
    /// Whether it was welcomed.
    pub joined: bool,
    /// The request to a barrier of which it is not known whether this worker has passed it, and what was heard of it since.
    pub doubtful: Option<(u64, Option<bool>)>,
    /// Whether its present wait has an end.
    pub impatient: bool,
    /// Grows whenever a wait begins or ends: an alarm that was set for another does not count.
    pub waits: u64,
}

impl Link {
    /// Before it has joined.
    pub fn new(rng: &mut Rng) -> Self {
        let mut session = [0; 16];
        session.as_chunks_mut::<8>().0.iter_mut().for_each(|bytes| *bytes = rng.word().to_le_bytes());
        Self {
            session,
            requests: Requests::default(),
            joined: false,
            doubtful: None,
            impatient: false,
            waits: 0,
        }
    }
}

/// What the server keeps of a worker that is here.
#[derive(Debug)]
pub struct Clerk {
    /// By which it comes again.
    pub session: Session,
    /// What it may have to be told again.
    pub answers: Answers,
    /// The request that stands at the barrier.
    pub at_barrier: Option<u64>,
    /// The request to be let go.
    pub leaving: Option<u64>,
}

/// The server's end.
#[derive(Debug)]
pub struct Desk {
    /// Which workers are here.
    pub roster: Roster,
    /// What is kept of them.
    pub clerks: BTreeMap<Rank, Clerk>,
    /// Shards that have taken each worker's goodbye.
    pub departed: BTreeMap<Rank, BTreeSet<usize>>,
    /// Which workers have said hello on the present connection.
    pub greeted: BTreeSet<Rank>,
    /// Which workers were let go, and may come again because they have not heard so.
    pub parted: BTreeMap<Rank, Session>,
}

impl Desk {
    /// None is here.
    pub fn new(workers: u32) -> Self {
        Self {
            roster: Roster::new(workers),
            clerks: BTreeMap::new(),
            departed: BTreeMap::new(),
            greeted: BTreeSet::new(),
            parted: BTreeMap::new(),
        }
    }
}
