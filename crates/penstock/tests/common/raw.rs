//! A worker that speaks the protocol by hand.

use super::{Cluster, SECRET};
use penstock_fabric::layout::{Count, page};
use penstock_fabric::region::{Access, Mapping, Part};
use penstock_fabric::ring::{Producer, Ring};
use penstock_fabric::socket::Connection;
use penstock_proto::handshake::{Purpose, SOCKET_BINDING, WorkerHandshake};
use penstock_proto::items::control::{PART_BYTES, TableAnswer, TableAsk};
use penstock_proto::items::registry::Part as Set;
use penstock_proto::items::{RowSet, TableSpec};
use penstock_proto::message::{
    Answer, Ask, Joining, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Welcome, decode, encode,
};
use penstock_proto::peer::PeerId;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, SendFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) struct Raw {
    pub(crate) connection: Connection,
    pub(crate) welcome: Welcome,
    pub(crate) page: Arc<Mapping>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

pub(crate) fn tell(connection: &Connection, id: u64, body: Ask) {
    let bytes = encode(&Request { id, settled: 0, open: Vec::new(), body }).unwrap();
    connection.send(&bytes, &[], SendFlags::empty()).unwrap();
}

pub(crate) fn hear(connection: &Connection) -> (Reply, Vec<OwnedFd>) {
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    let (length, came) = connection.receive_with_descriptors(&mut buffer, RecvFlags::empty()).unwrap();
    (decode(&buffer[..length]).unwrap(), came.descriptors)
}

pub(crate) fn say(connection: &Connection, id: u64, body: Ask) -> (Answer, Vec<OwnedFd>) {
    tell(connection, id, body);
    let (reply, descriptors) = hear(connection);
    (reply.body, descriptors)
}

pub(crate) fn hello(rank: u32, size: u32) -> Ask {
    Ask::Hello {
        version: PROTOCOL_VERSION,
        session: [0; 16],
        peer: PeerId::worker(rank),
        size,
        overlay: Joining::default(),
    }
}

pub(crate) fn exchange(connection: &Connection, words: &[u8]) -> Vec<u8> {
    connection.send(words, &[], SendFlags::empty()).unwrap();
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    let length = connection.receive(&mut buffer, RecvFlags::empty()).unwrap();
    buffer[..length].to_vec()
}

/// Proves that it knows the job's secret.
pub(crate) fn prove(connection: &Connection) {
    let (handshake, hello) = WorkerHandshake::start("job", SECRET, Purpose::Control, [5; 32]).unwrap();
    let challenge = exchange(connection, &hello);
    let proof = handshake.answer(&challenge, &SOCKET_BINDING).unwrap();
    WorkerHandshake::finish(&exchange(connection, &proof)).unwrap();
}

/// A connection that has proved to belong to the job.
pub(crate) fn enter(cluster: &Cluster, server: usize) -> Connection {
    let connection = Connection::connect(&cluster.paths[server]).unwrap();
    prove(&connection);
    connection
}

impl Raw {
    /// At the first server.
    pub(crate) fn join(cluster: &Cluster, rank: u32) -> Self {
        Self::join_at(cluster, 0, rank)
    }

    pub(crate) fn join_at(cluster: &Cluster, server: usize, rank: u32) -> Self {
        let connection = enter(cluster, server);
        let (answer, descriptors) = say(&connection, 1, hello(rank, cluster.workers));
        let Answer::Welcome(welcome) = answer else { panic!("{answer:?}") };
        let part = Part { fd: descriptors[0].as_fd(), offset: 0, bytes: page::bytes(welcome.shards) };
        let page = Mapping::new(&[part], Access::Write).unwrap();
        Self { connection, welcome, page, descriptors }
    }

    pub(crate) fn ask(&self, id: u64, body: Ask) -> Answer {
        say(&self.connection, id, body).0
    }

    /// Shows that it lives.
    pub(crate) fn beat(&self) {
        self.page.at::<Count>(page::HEARTBEAT).0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn submit(&self, words: [u64; 8]) {
        for shard in 0..self.welcome.shards {
            let ring: &Ring = self.page.at(page::ring(shard));
            Producer::default().push(ring, words).unwrap();
            rustix::io::write(&self.descriptors[2 + shard as usize], &1u64.to_le_bytes()).unwrap();
        }
    }

    /// Tells its rows of a table, which it homes at server 0; returns the number of the next request.
    pub(crate) fn declare(&self, spec: &TableSpec, produce: &RowSet, consume: &RowSet) -> u64 {
        let name = || spec.name.clone();
        let part = |part, set: &RowSet| {
            let rows = |bytes: &[u8]| TableAsk::Rows { name: name(), part, bytes: bytes.to_vec() };
            set.encode().chunks(PART_BYTES).map(rows).collect::<Vec<_>>()
        };
        let begin = TableAsk::Begin { spec: spec.clone(), home: 0, near: true };
        let asks = [begin].into_iter().chain(part(Set::Produce, produce)).chain(part(Set::Consume, consume));
        let mut next = 2;
        for ask in asks.chain([TableAsk::End { name: name() }]) {
            assert_eq!(self.ask(next, Ask::Table(ask)), Answer::Table(TableAnswer::Done));
            next += 1;
        }
        next
    }

    /// Waits until the server has hung up.
    pub(crate) fn wait_for_the_end(&self) {
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        while matches!(self.connection.receive(&mut buffer, RecvFlags::empty()), Ok(length) if length > 0) {}
    }
}
