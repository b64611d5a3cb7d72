//! Producers that go between declaring a table and mapping their rows, or before they declare it: nobody waits for them, and who waits for
//! one that only stays away hears its name.

mod common;

use common::{Cluster, SECRET, Way, seconds};
use penstock::worker::{Error, TableDeclaration};
use penstock_fabric::socket::Connection;
use penstock_kernels::Dtype;
use penstock_proto::handshake::{Purpose, SOCKET_BINDING, WorkerHandshake};
use penstock_proto::items::control::{TableAnswer, TableAsk};
use penstock_proto::items::registry::Part;
use penstock_proto::items::{Propagation, RowSet, Slack, TableSpec};
use penstock_proto::message::{
    Answer, Ask, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, decode, encode,
};
use rustix::net::{RecvFlags, SendFlags};
use std::time::Duration;

const ROW_BYTES: u32 = 16;

fn declaration(timeout: Option<Duration>) -> TableDeclaration {
    TableDeclaration {
        name: "U".to_owned(),
        rows: 2,
        row_bytes: ROW_BYTES,
        element: Some(Dtype::F64),
        holds: String::new(),
        sum: false,
        produce: RowSet::from_rows([0]),
        consume: RowSet::from_rows([0, 1]),
        propagation: Propagation::Eager,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout,
    }
}

/// Worker 1, which speaks the protocol by hand.
struct Raw(Connection);

impl Raw {
    fn join(cluster: &Cluster) -> Self {
        let raw = Self(Connection::connect(&cluster.paths[0]).unwrap());
        let (handshake, hello) = WorkerHandshake::start("job", SECRET, Purpose::Control, [5; 32]).unwrap();
        let proof = handshake.answer(&raw.exchange(&hello), &SOCKET_BINDING).unwrap();
        WorkerHandshake::finish(&raw.exchange(&proof)).unwrap();
        let hello =
            Ask::Hello { version: PROTOCOL_VERSION, session: [0; 16], rank: 1, size: cluster.workers };
        assert!(matches!(raw.ask(1, hello), Answer::Welcome(_)));
        raw
    }

    fn exchange(&self, words: &[u8]) -> Vec<u8> {
        self.0.send(words, &[], SendFlags::empty()).unwrap();
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        let (length, _) = self.0.receive_with_descriptors(&mut buffer, RecvFlags::empty()).unwrap();
        buffer[..length].to_vec()
    }

    fn ask(&self, id: u64, body: Ask) -> Answer {
        let request = encode(&Request { id, settled: 0, body }).unwrap();
        decode::<Reply>(&self.exchange(&request)).unwrap().body
    }

    /// Declares that it produces row 1, and waits until all have declared. It maps nothing.
    fn declare(&self) {
        let (name, propagation) = ("U".to_owned(), Propagation::Eager);
        let sum = None;
        let spec = TableSpec {
            name: name.clone(),
            rows: 2,
            row_bytes: ROW_BYTES,
            sum,
            propagation,
            holds: String::new(),
        };
        let bytes = RowSet::from_rows([1]).encode();
        let asks = [
            TableAsk::Begin { spec, home: 0, near: true },
            TableAsk::Rows { name: name.clone(), part: Part::Produce, bytes },
            TableAsk::End { name: name.clone() },
            TableAsk::Join { name },
        ];
        for (ask, id) in asks.into_iter().zip(2..) {
            let last = self.ask(id, Ask::Table(ask));
            assert!(
                matches!(last, Answer::Table(TableAnswer::Done | TableAnswer::Joined { .. })),
                "{last:?}"
            );
        }
    }
}

/// Where the others may go on without a worker, they go on without its rows: nothing newer can come.
fn reads_nothing_of_worker_1(way: Way, prepare: impl FnOnce(&Cluster)) {
    let cluster = Cluster::over(way, 2, 1, &[("on_worker_loss", "continue"), ("deadline", "60")]);
    let job = cluster.join(0);
    std::thread::scope(|scope| {
        let declaring = scope.spawn(|| job.table(declaration(None)).unwrap());
        prepare(&cluster);
        let table = declaring.join().unwrap();
        table.set(&[0], &[1; ROW_BYTES as usize], Some(1)).unwrap();
        let mut out = vec![9; 2 * ROW_BYTES as usize];
        table.get(&[0, 1], &mut out, Some(1), Some(Slack::Bound(0)), None).unwrap();
        assert_eq!(out, [[1; ROW_BYTES as usize], [0; ROW_BYTES as usize]].concat(), "{way:?}");
    });
    job.leave(None).unwrap();
    assert_eq!(cluster.servers[0].wait(seconds(common::DEADLINE)), Some(Ok(())));
}

// The consumers waited for its rows' memory until their deadline.
#[test]
fn a_producer_that_is_lost_before_it_maps_its_rows_is_not_waited_for() {
    for way in [Way::Memory, Way::Tcp] {
        reads_nothing_of_worker_1(way, |cluster| Raw::join(cluster).declare());
    }
}

// The survivors were told that a row has no producer, and not who was to be it.
#[test]
fn rows_of_a_worker_that_is_lost_before_it_declares_them_are_as_it_left_them() {
    for way in [Way::Memory, Way::Tcp] {
        reads_nothing_of_worker_1(way, |cluster| drop(Raw::join(cluster)));
        let killed = |cluster: &Cluster| {
            cluster.servers[0].worker_ended(1, Some("was killed by SIGKILL".to_owned()));
        };
        reads_nothing_of_worker_1(way, killed);
    }
}

// The error named server 0, which was well.
#[test]
fn who_waits_for_a_producer_that_maps_nothing_hears_its_name() {
    let cluster = Cluster::new(2, 1, &[]);
    let job = cluster.join(0);
    let raw = Raw::join(&cluster);
    std::thread::scope(|scope| {
        let declaring = scope.spawn(|| job.table(declaration(Some(Duration::from_secs(1)))).unwrap_err());
        raw.declare();
        let error = declaring.join().unwrap();
        assert!(matches!(&error, Error::TableTimeout { missing, .. } if *missing == [1]), "{error}");
    });
}
