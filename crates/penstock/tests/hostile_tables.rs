//! What a worker can say of tables that do not exist, and how long it can occupy the thread that keeps the leases: nothing of it
//! stays when it goes, and no other worker is lost for it.

mod common;

use common::raw::{Raw, hear, tell};
use common::tenants::{self, far};
use common::{Cluster, SECRET, Way, seconds};
use penstock::worker::{Error, TableDeclaration};
use penstock_kernels::Dtype;
use penstock_proto::error::Refusal;
use penstock_proto::handshake::Purpose;
use penstock_proto::items::control::{TableAnswer, TableAsk};
use penstock_proto::items::wire::{Encoder, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet, Slack, TableError, TableSpec};
use penstock_proto::message::{Answer, Ask, Departure, Request, encode};
use penstock_proto::peer::PeerId;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn partition(table: u32, rank: u32, slots: u32) -> Ask {
    let (partition, propagation) = (PartitionId { table, rank }, Propagation::Eager);
    Ask::Table(TableAsk::Partition { partition, slots, row_bytes: 8, propagation })
}

fn discard(id: u32) -> Ask {
    Ask::Table(TableAsk::Drop { name: "nobody's".to_owned(), id })
}

fn is_refused(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(Refusal::Table(TableError::OutOfTurn { .. })))
}

/// Waits until a server has taken so much memory.
fn wait_until_taken(cluster: &Cluster, server: usize, bytes: u64) {
    let until = Instant::now() + seconds(common::DEADLINE);
    while cluster.servers[server].memory_taken() != bytes {
        assert!(Instant::now() < until, "{} bytes, not {bytes}", cluster.servers[server].memory_taken());
        thread::yield_now();
    }
}

// They were charged to the job, and stayed when the worker that had asked for them went.
#[test]
fn partitions_of_tables_that_there_are_not_are_refused_or_go_with_who_asked_for_them() {
    let cluster = Cluster::new(2, 2, &[("on_worker_loss", "continue"), ("lease", "2")]);
    let known = Raw::join_at(&cluster, 0, 1);
    for rank in [0, 1] {
        let answer = known.ask(2 + u64::from(rank), partition(7, rank, 1000));
        assert!(is_refused(&answer), "the first server knows which tables there are: {answer:?}");
    }
    let before = cluster.servers[1].memory_taken();
    let raw = Raw::join_at(&cluster, 1, 1);
    assert_eq!(raw.ask(2, partition(7, 1, 100_000)), Answer::Table(TableAnswer::Partition));
    let mapped = Ask::Table(TableAsk::Mapped { partition: PartitionId { table: 7, rank: 1 } });
    assert_eq!(raw.ask(3, mapped), Answer::Table(TableAnswer::Done));
    tell(&raw.connection, 4, partition(8, 0, 100_000)); // waits for worker 0
    tell(&raw.connection, 5, discard(7)); // likewise
    for id in 6..300 {
        assert_eq!(
            raw.ask(id, discard(1000 + id as u32)),
            Answer::Table(TableAnswer::Done),
            "nothing is there"
        );
    }
    assert!(cluster.servers[1].memory_taken() > before + 100_000);
    drop(raw);
    wait_until_taken(&cluster, 1, before);
}

// Its consumers heard of a server of that number.
#[test]
fn a_home_that_there_is_not_is_refused_to_the_producer_that_names_it() {
    let cluster = Cluster::new(1, 2, &[]);
    let raw = Raw::join_at(&cluster, 0, 0);
    let name = "t".to_owned();
    let propagation = Propagation::Eager;
    let spec = TableSpec { name, rows: 4, row_bytes: 8, sum: None, propagation, holds: String::new() };
    let begin = |home| Ask::Table(TableAsk::Begin { spec: spec.clone(), home, near: true });
    assert!(is_refused(&raw.ask(2, begin(2))));
    assert_eq!(raw.ask(3, begin(1)), Answer::Table(TableAnswer::Done));
}

// An empty partition took the place of the rows that it had sent, and their consumers were lost.
#[test]
fn nobody_maps_rows_of_a_worker_of_another_host() {
    let cluster = Cluster::over(Way::Mixed, 2, 2, &[("on_worker_loss", "continue")]);
    let near = Raw::join_at(&cluster, 1, 0);
    tell(&near.connection, 2, partition(7, 1, 100)); // waits: it is not known where worker 1 will be
    let users = || Ask::Table(TableAsk::Users { id: 0 });
    let none = Answer::Table(TableAnswer::Absent { ranks: Vec::new() });
    assert_eq!(near.ask(3, users()), none);
    let mut control = far(&cluster, 1, 1);
    tell(&near.connection, 4, users());
    let (reply, _) = hear(&near.connection);
    assert!(reply.id == 2 && is_refused(&reply.body), "{reply:?}");
    assert_eq!(hear(&near.connection).0.body, none);
    assert!(is_refused(&near.ask(5, partition(7, 1, 100))));
    let how = Departure::Failed { what: "no".to_owned() };
    tenants::say(&mut control, &encode(&Request { id: 2, settled: 2, body: Ask::Leave { how } }).unwrap());
    while tenants::hear(&mut control).is_some() {}
    // What it never had belongs to no one; what it sent is not replaced by that, as the node's tests show.
    assert_eq!(near.ask(6, partition(7, 1, 100)), Answer::Table(TableAnswer::Partition));
}

// It mapped them as well, and what it had offered was replaced, along with its subscribers.
#[test]
fn a_worker_that_shares_its_rows_in_memory_does_not_offer_them_too() {
    let cluster = Cluster::over(Way::Mixed, 2, 1, &[("on_worker_loss", "continue")]);
    let _near = Raw::join(&cluster, 0);
    let purpose = Purpose::Items { peer: PeerId::worker(0), session: [0; 16] };
    let mut items = tenants::enter(cluster.servers[0].addresses()[0], "job", SECRET, purpose).unwrap();
    let (partition, propagation) = (PartitionId { table: 0, rank: 0 }, Propagation::Eager);
    let mut words = Vec::new();
    Encoder::message(&mut words, &Message::Flush { id: 1 });
    items.write_all(&words).unwrap();
    assert!(items.read(&mut [0; 64]).unwrap() > 0, "it is heard: it may want rows of other hosts");
    let shape = Shape { slots: 2, row_bytes: 8, propagation };
    words.clear();
    Encoder::message(&mut words, &Message::Offer { partition, shape });
    Encoder::message(&mut words, &Message::Flush { id: 2 });
    items.write_all(&words).unwrap();
    assert!(!matches!(items.read(&mut [0; 64]), Ok(bytes) if bytes > 0), "it is lost");
}

// A worker that named other rows of a table first kept its producer from it.
#[test]
fn a_partition_has_the_rows_that_its_producer_names() {
    let cluster = Cluster::new(2, 2, &[]);
    let (producer, other) = (Raw::join_at(&cluster, 1, 0), Raw::join_at(&cluster, 1, 1));
    tell(&other.connection, 2, partition(0, 0, 9));
    let barrier = other.ask(3, Ask::Table(TableAsk::Users { id: 0 }));
    assert_eq!(barrier, Answer::Table(TableAnswer::Absent { ranks: Vec::new() }));
    assert_eq!(producer.ask(2, partition(0, 0, 2)), Answer::Table(TableAnswer::Partition));
    let (reply, _) = hear(&other.connection);
    assert!(reply.id == 2 && is_refused(&reply.body), "{reply:?}");
    assert!(is_refused(&other.ask(4, partition(0, 0, 9))));
}

/// Ranges of the set that the flood asks about.
const RANGES: u64 = 3_000_000;
/// Questions that stand in the socket at once.
const QUESTIONS: u64 = 64;

// A turn of the control thread took as many of them as it found, however long each took.
#[test]
fn questions_that_take_long_make_nobody_think_that_the_server_is_lost() {
    let cluster = Cluster::new(3, 1, &[("lease", "1"), ("memory", "2GiB")]);
    let job = cluster.join(0);
    let raws = [Raw::join(&cluster, 1), Raw::join(&cluster, 2)];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                raws.iter().for_each(Raw::beat);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let name = "U".to_owned();
        let (rows, propagation) = (2 * RANGES, Propagation::Eager);
        let spec = TableSpec {
            name: name.clone(),
            rows,
            row_bytes: 8,
            sum: None,
            propagation,
            holds: String::new(),
        };
        let none = RowSet::default();
        raws[0].declare(&spec, &RowSet::from_ranges(std::iter::once(0..rows)), &none);
        let every_second = RowSet::from_ranges((0..RANGES).map(|row| 2 * row..2 * row + 1));
        let next = raws[1].declare(&spec, &none, &every_second);
        let declared = job.table(TableDeclaration {
            name: name.clone(),
            rows,
            row_bytes: 8,
            element: Some(Dtype::F64),
            holds: String::new(),
            sum: false,
            produce: none.clone(),
            consume: none.clone(),
            propagation,
            slack: Slack::Bound(0),
            adaptive: None,
            timeout: Some(Duration::from_millis(500)),
        });
        assert!(matches!(declared, Err(Error::TableTimeout { .. })), "the others are never ready");
        let flood = &raws[1].connection;
        for id in next..next + QUESTIONS {
            tell(flood, id, Ask::Table(TableAsk::Join { name: name.clone() }));
        }
        for _ in 0..QUESTIONS {
            let (reply, _) = hear(flood);
            assert!(matches!(reply.body, Answer::Table(TableAnswer::Joined { .. })), "{reply:?}");
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(job.check(), Ok(()));
    });
}
