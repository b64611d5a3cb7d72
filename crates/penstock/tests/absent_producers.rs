//! Producers that go between declaring a table and mapping their rows, or before they declare it: no worker waits for them, and
//! one that waits for a producer that only stays away hears its name.

mod common;

use common::raw::Raw;
use common::tenants::{self, SESSION, enter, far, frame};
use common::{Cluster, Way, seconds};
use penstock::worker::{Error, Table, TableDeclaration};
use penstock_kernels::Dtype;
use penstock_proto::handshake::Purpose;
use penstock_proto::items::control::{TableAnswer, TableAsk};
use penstock_proto::items::registry::Part;
use penstock_proto::items::{FINAL, Propagation, RowSet, Slack, TableSpec};
use penstock_proto::message::{Answer, Ask, Departure, Reply, Request, decode, encode};
use penstock_proto::peer::PeerId;
use penstock_proto::submission::Submission;
use std::io::Write;
use std::net::TcpStream;
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

fn spec() -> TableSpec {
    let (name, propagation) = ("U".to_owned(), Propagation::Eager);
    TableSpec { name, rows: 2, row_bytes: ROW_BYTES, sum: None, propagation, holds: String::new() }
}

/// Worker 1 declares that it produces row 1, and waits until all have declared. It maps nothing.
fn declare(raw: &Raw) {
    let next = raw.declare(&spec(), &RowSet::from_rows([1]), &RowSet::default());
    let last = raw.ask(next, Ask::Table(TableAsk::Join { name: spec().name }));
    assert!(matches!(last, Answer::Table(TableAnswer::Joined { .. })), "{last:?}");
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
        assert_eq!(versions(&table), [1, 0], "{way:?}: it was lost");
    });
    job.leave(None).unwrap();
    assert_eq!(cluster.servers[0].wait(seconds(common::DEADLINE)), Some(Ok(())));
}

fn versions(table: &Table) -> [u64; 2] {
    let mut versions = [9; 2];
    table.versions(&[0, 1], &mut versions).unwrap();
    versions
}

/// Worker 1 asks a server with one shard, by hand: on its host, or by the network.
enum ByHand {
    Here(Raw),
    There(TcpStream, TcpStream),
}

impl ByHand {
    fn join(cluster: &Cluster) -> Self {
        if cluster.way != Way::Mixed {
            return Self::Here(Raw::join(cluster, 1));
        }
        let control = far(cluster, 0, 1);
        let purpose = Purpose::Shard { peer: PeerId::worker(1), session: SESSION, shard: 0 };
        let shard = enter(cluster.servers[0].addresses()[0], "job", common::SECRET, purpose).unwrap();
        Self::There(control, shard)
    }

    fn declare(&mut self) {
        let Self::There(control, _) = self else {
            let Self::Here(raw) = self else { return };
            return declare(raw);
        };
        let name = || spec().name;
        let rows = |part, set: RowSet| Ask::Table(TableAsk::Rows { name: name(), part, bytes: set.encode() });
        let asks = [
            Ask::Table(TableAsk::Begin { spec: spec(), home: 0, near: false }),
            rows(Part::Produce, RowSet::from_rows([1])),
            rows(Part::Consume, RowSet::default()),
            Ask::Table(TableAsk::End { name: name() }),
            Ask::Table(TableAsk::Join { name: name() }),
        ];
        for (body, id) in asks.into_iter().zip(2..) {
            let answer = ask(control, id, body);
            assert!(
                matches!(&answer, Answer::Table(TableAnswer::Done | TableAnswer::Joined { .. })),
                "{answer:?}"
            );
        }
    }

    fn leave(mut self) {
        let body = Ask::Leave { how: Departure::Done };
        let answer = match &mut self {
            Self::Here(raw) => {
                raw.submit(Submission::Leave.encode());
                raw.ask(20, body)
            }
            Self::There(control, shard) => {
                shard.write_all(&frame("job", 1, Submission::Leave).encode()).unwrap();
                ask(control, 20, body)
            }
        };
        assert_eq!(answer, Answer::Left);
    }
}

fn ask(control: &mut TcpStream, id: u64, body: Ask) -> Answer {
    tenants::say(control, &encode(&Request { id, settled: id - 1, open: Vec::new(), body }).unwrap());
    decode::<Reply>(&tenants::hear(control).unwrap()).unwrap().body
}

// They stayed at version 0, as those of a lost worker: a gather went on without one that had left.
#[test]
fn rows_that_a_worker_never_mapped_are_final_once_it_has_left() {
    for way in [Way::Memory, Way::Tcp, Way::Mixed] {
        for on_loss in ["stop", "continue"] {
            let cluster = Cluster::over(way, 2, 1, &[("on_worker_loss", on_loss), ("shards", "1")]);
            let job = cluster.join(0);
            std::thread::scope(|scope| {
                let declaring = scope.spawn(|| job.table(declaration(None)).unwrap());
                let mut one = ByHand::join(&cluster);
                one.declare();
                one.leave();
                let table = declaring.join().unwrap();
                table.set(&[0], &[1; ROW_BYTES as usize], Some(1)).unwrap();
                let mut out = vec![9; 2 * ROW_BYTES as usize];
                let least = table.get(&[1], &mut out[16..], Some(1), Some(Slack::Bound(0)), None).unwrap();
                assert_eq!((least, &out[16..]), (FINAL, &[0; ROW_BYTES as usize][..]), "{way:?}");
                let least = table.get(&[0, 1], &mut out, Some(1), Some(Slack::Bound(0)), None).unwrap();
                assert_eq!((least, versions(&table)), (1, [1, FINAL]), "{way:?}");
                assert_eq!(job.clocks().unwrap(), [0, -1], "how it has gone is not told there");
            });
            job.leave(None).unwrap();
        }
    }
}

// The consumers waited for its rows' memory until their deadline.
#[test]
fn a_producer_that_is_lost_before_it_maps_its_rows_is_not_waited_for() {
    for way in [Way::Memory, Way::Tcp] {
        reads_nothing_of_worker_1(way, |cluster| declare(&Raw::join(cluster, 1)));
    }
}

// The survivors were told that a row has no producer, and not which worker was to be it.
#[test]
fn rows_of_a_worker_that_is_lost_before_it_declares_them_are_as_it_left_them() {
    for way in [Way::Memory, Way::Tcp] {
        reads_nothing_of_worker_1(way, |cluster| drop(Raw::join(cluster, 1)));
        let killed = |cluster: &Cluster| {
            cluster.servers[0].worker_ended(1, Some("was killed by SIGKILL".to_owned()));
        };
        reads_nothing_of_worker_1(way, killed);
    }
    // Also where it was on another host than the worker that maps them.
    reads_nothing_of_worker_1(Way::Mixed, |cluster| {
        let mut control = far(cluster, 0, 1);
        let how = Departure::Failed { what: "no".to_owned() };
        tenants::say(
            &mut control,
            &encode(&Request { id: 2, settled: 2, open: Vec::new(), body: Ask::Leave { how } }).unwrap(),
        );
        while tenants::hear(&mut control).is_some() {}
    });
}

// The error named server 0, which was well.
#[test]
fn who_waits_for_a_producer_that_maps_nothing_hears_its_name() {
    let cluster = Cluster::new(2, 1, &[]);
    let job = cluster.join(0);
    let raw = Raw::join(&cluster, 1);
    std::thread::scope(|scope| {
        let declaring = scope.spawn(|| job.table(declaration(Some(Duration::from_secs(1)))).unwrap_err());
        declare(&raw);
        let error = declaring.join().unwrap();
        assert!(matches!(&error, Error::TableTimeout { missing, .. } if *missing == [1]), "{error}");
    });
}
