//! What a worker can say of tables that do not exist, and how long it can occupy the thread that keeps the leases: nothing of it
//! stays when it goes, and no other worker is lost for it.

mod common;

use common::raw::{Raw, hear, tell};
use common::tenants::{self, far};
use common::{Cluster, SECRET, Way, seconds};
use penstock::worker::{Due, Error, Job, Table, TableDeclaration};
use penstock_fabric::items::partition::{Layout, Writer};
use penstock_kernels::Dtype;
use penstock_proto::error::Refusal;
use penstock_proto::handshake::Purpose;
use penstock_proto::items::control::{PART_BYTES, TableAnswer, TableAsk};
use penstock_proto::items::registry::Part;
use penstock_proto::items::wire::{Encoder, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet, Slack, TableError, TableSpec};
use penstock_proto::message::{Answer, Ask, Departure, Reply, Request, decode, encode};
use penstock_proto::peer::PeerId;
use penstock_proto::record::{self, LENGTH_BYTES};
use rustix::fd::AsFd;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
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

/// Whether a refusal says which worker it is about.
fn names(answer: &Answer, rank: u32) -> bool {
    matches!(answer, Answer::Refused(refusal) if refusal.to_string().contains(&format!("worker {rank}")))
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
    assert!(reply.id == 2 && is_refused(&reply.body) && names(&reply.body, 1), "{reply:?}");
    assert_eq!(hear(&near.connection).0.body, none);
    let refused = near.ask(5, partition(7, 1, 100));
    assert!(is_refused(&refused) && names(&refused, 1), "{refused:?}");
    let how = Departure::Failed { what: "no".to_owned() };
    tenants::say(
        &mut control,
        &encode(&Request { id: 2, settled: 2, open: Vec::new(), body: Ask::Leave { how } }).unwrap(),
    );
    while tenants::hear(&mut control).is_some() {}
    // What it never had belongs to no one; what it sent is not replaced by that, as the node's tests show.
    assert_eq!(near.ask(6, partition(7, 1, 100)), Answer::Table(TableAnswer::Partition));
}

// Its consumers there tried to map them, and were told that this broke the protocol, and not who had.
#[test]
fn who_says_that_its_rows_are_in_memory_that_it_does_not_share_is_refused_and_named() {
    let cluster = Cluster::over(Way::Mixed, 2, 1, &[]);
    let mut far = Far { control: far(&cluster, 0, 1), next: 1 };
    let begin = |near| Ask::Table(TableAsk::Begin { spec: few_rows("U"), home: 0, near });
    let refused = far.ask(begin(true));
    assert!(is_refused(&refused) && names(&refused, 1), "{refused:?}");
    assert_eq!(far.ask(begin(false)), Answer::Table(TableAnswer::Done));
    let near = Raw::join(&cluster, 0);
    assert_eq!(near.ask(2, begin(true)), Answer::Table(TableAnswer::Done));
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
    assert!(reply.id == 2 && is_refused(&reply.body) && names(&reply.body, 0), "{reply:?}");
    assert!(is_refused(&other.ask(4, partition(0, 0, 9))));
}

// The first server compared with the tables that there are; another took any number, and its control thread panicked.
#[test]
fn a_partition_of_more_rows_than_there_can_be_is_refused_by_every_server() {
    let cluster = Cluster::new(2, 2, &[("on_worker_loss", "continue")]);
    for server in [0, 1] {
        let raw = Raw::join_at(&cluster, server, 1);
        for (id, slots) in (2..).zip([0, (1 << 31) + 1, u32::MAX]) {
            let answer = raw.ask(id, partition(7, 1, slots));
            assert!(is_refused(&answer), "{slots} rows at server {server}: {answer:?}");
        }
        // It goes on.
        let users = raw.ask(9, Ask::Table(TableAsk::Users { id: 0 }));
        assert_eq!(users, Answer::Table(TableAnswer::Absent { ranks: Vec::new() }));
    }
}

/// Ranges of the set that the flood asks about.
const RANGES: u64 = 3_000_000;
/// Questions that stand in the socket at once.
const QUESTIONS: u64 = 192;

/// The table declared by a worker that neither produces nor consumes; the others of it are never ready.
fn declared_in_vain(job: &Job, spec: &TableSpec) -> Result<Table, Error> {
    job.table(TableDeclaration {
        name: spec.name.clone(),
        rows: spec.rows,
        row_bytes: spec.row_bytes,
        element: Some(Dtype::F64),
        holds: String::new(),
        sum: false,
        produce: RowSet::default(),
        consume: RowSet::default(),
        propagation: spec.propagation,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout: Some(Duration::from_millis(500)),
    })
}

/// Whether that is how it ended: at its deadline, whether or not the server was done with the others' rows by then.
fn is_in_vain(declared: &Result<Table, Error>) -> bool {
    matches!(declared, Err(Error::TableTimeout { .. } | Error::Unanswered { server: 0, .. }))
}

// A turn of the control thread took as many of them as it found, however long each took.
#[test]
fn questions_that_take_long_make_nobody_think_that_the_server_is_lost() {
    let cluster = Cluster::new(3, 1, &[("lease", "3"), ("memory", "2GiB")]);
    let job = cluster.join(0);
    let raws = [Raw::join(&cluster, 1), Raw::join(&cluster, 2)];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&over);
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
        let declared = declared_in_vain(&job, &spec);
        assert!(is_in_vain(&declared), "the others are never ready: {declared:?}");
        let flood = &raws[1].connection;
        // Until the answer is known, one that asks again has given up on what it asked before.
        let joined = raws[1].ask(next, Ask::Table(TableAsk::Join { name: name.clone() }));
        assert!(matches!(joined, Answer::Table(TableAnswer::Joined { .. })), "{joined:?}");
        for id in next + 1..=next + QUESTIONS {
            tell(flood, id, Ask::Table(TableAsk::Join { name: name.clone() }));
        }
        for _ in 0..QUESTIONS {
            let (reply, _) = hear(flood);
            assert!(matches!(reply.body, Answer::Table(TableAnswer::Joined { .. })), "{reply:?}");
        }
        assert_eq!(job.check(), Ok(()));
    });
}

/// Says that it is over, also where an assertion fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Workers of a table whose rows are in many ranges.
const MANY: u32 = 64;

// Whoever joined first had all ranges sorted anew for each worker: 74 seconds with 128 of them, in one request.
#[test]
fn rows_in_many_ranges_are_gone_over_once_and_not_for_each_worker() {
    let cluster = Cluster::new(MANY, 1, &[("lease", "8"), ("memory", "4GiB")]);
    let job = cluster.join(0);
    let raws: Vec<Raw> = (1..MANY).map(|rank| Raw::join(&cluster, rank)).collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                raws.iter().for_each(Raw::beat);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let (name, propagation) = ("U".to_owned(), Propagation::Eager);
        let rows = 2 * RANGES;
        let spec = TableSpec { name, rows, row_bytes: 8, sum: None, propagation, holds: String::new() };
        let none = RowSet::default();
        let every_second = RowSet::from_ranges((0..RANGES).map(|row| 2 * row..2 * row + 1));
        let next = raws[0].declare(&spec, &every_second, &every_second);
        raws[1..].iter().for_each(|raw| _ = raw.declare(&spec, &none, &none));
        let table = declared_in_vain(&job, &spec);
        let joined = raws[0].ask(next, Ask::Table(TableAsk::Join { name: spec.name.clone() }));
        let stands = job.check();
        over.store(true, Ordering::Relaxed);
        assert!(is_in_vain(&table), "the others are never ready: {table:?}");
        assert!(matches!(joined, Answer::Table(TableAnswer::Joined { .. })), "{joined:?}");
        assert_eq!(stands, Ok(()));
    });
}

const ROWS: u64 = 2;
/// So long that each row stands by itself.
const ROW_BYTES: u32 = 2048;

/// A row of one number.
fn row(value: f64) -> Vec<u8> {
    value.to_le_bytes().repeat(ROW_BYTES as usize / 8)
}

/// A table of few rows, which one worker produces and another reads.
fn few_rows(name: &str) -> TableSpec {
    let (name, propagation) = (name.to_owned(), Propagation::Eager);
    TableSpec { name, rows: ROWS, row_bytes: ROW_BYTES, sum: None, propagation, holds: String::new() }
}

/// The same for the worker of a job, which produces them or reads them, or neither.
fn declared(job: &Job, name: &str, produces: bool, consumes: bool) -> Result<Table, Error> {
    let rows = |any| RowSet::from_ranges(std::iter::once(0..if any { ROWS } else { 0 }));
    job.table(TableDeclaration {
        name: name.to_owned(),
        rows: ROWS,
        row_bytes: ROW_BYTES,
        element: Some(Dtype::F64),
        holds: String::new(),
        sum: false,
        produce: rows(produces),
        consume: rows(consumes),
        propagation: Propagation::Eager,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout: None,
    })
}

/// What stands in them, whatever its version.
fn all_of(table: &Table, timeout: Duration) -> Result<Vec<f64>, Error> {
    let mut out = vec![0; ROWS as usize * ROW_BYTES as usize];
    table.get(&[0, 1], &mut out, None, Some(Slack::Unbounded), Some(timeout))?;
    Ok(out.chunks(ROW_BYTES as usize).map(|row| common::numbers(row)[0]).collect())
}

/// The first get behind a barrier fails, and says so and whose rows did not come.
fn waits_in_vain_for(table: &Table, rank: u32) {
    let got = all_of(table, Duration::from_millis(500));
    let expected = (Due::BeforeBarrier, rank);
    assert!(
        matches!(got, Err(Error::GetTimeout { due, producer, .. }) if (due, producer) == expected),
        "{got:?}"
    );
}

/// A worker of another host that speaks by hand, one question after the other.
struct Far {
    control: TcpStream,
    next: u64,
}

impl Far {
    fn ask(&mut self, body: Ask) -> Answer {
        self.next += 1;
        let request = Request { id: self.next, settled: self.next, open: Vec::new(), body };
        assert!(tenants::say(&mut self.control, &encode(&request).unwrap()));
        decode::<Reply>(&tenants::hear(&mut self.control).unwrap()).unwrap().body
    }

    /// Declares a table, whose rows it produces or not; its number, once all have.
    fn declare(&mut self, name: &str, produces: bool) -> u32 {
        let spec = few_rows(name);
        let name = || spec.name.clone();
        let mut asks = vec![TableAsk::Begin { spec: spec.clone(), home: 0, near: false }];
        let rows = RowSet::from_ranges(std::iter::once(0..if produces { ROWS } else { 0 })).encode();
        let part = |bytes: &[u8]| TableAsk::Rows { name: name(), part: Part::Produce, bytes: bytes.to_vec() };
        asks.extend(rows.chunks(PART_BYTES).map(part));
        for ask in asks.into_iter().chain([TableAsk::End { name: name() }]) {
            assert_eq!(self.ask(Ask::Table(ask)), Answer::Table(TableAnswer::Done));
        }
        match self.ask(Ask::Table(TableAsk::Join { name: name() })) {
            Answer::Table(TableAnswer::Joined { id, .. }) => id,
            other => panic!("{other:?}"),
        }
    }

    fn ready(&mut self, name: &str) {
        let ready = Ask::Table(TableAsk::Ready { name: name.to_owned() });
        assert_eq!(self.ask(ready), Answer::Table(TableAnswer::Done));
    }
}

// A consumer could neither declare its next table nor pass a barrier nor leave, and the job ended in its name.
#[test]
fn a_producer_that_offers_rows_and_brings_none_delays_only_those_who_read_them() {
    let cluster = Cluster::over(Way::Tcp, 3, 1, &[("lease", "60")]);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let job = cluster.join(0);
            let its = declared(&job, "U", false, true).unwrap();
            let honest = declared(&job, "V", false, true).unwrap();
            job.barrier(None).unwrap();
            assert_eq!(
                all_of(&honest, seconds(common::DEADLINE)),
                Ok(vec![7.0; 2]),
                "set before the barrier"
            );
            waits_in_vain_for(&its, 1);
            waits_in_vain_for(&its, 1);
            assert_eq!(all_of(&honest, seconds(common::DEADLINE)), Ok(vec![7.0; 2]));
            job.barrier(None).unwrap();
            job.leave(None)
        });
        let honest = scope.spawn(|| {
            let job = cluster.join(2);
            declared(&job, "U", false, false).unwrap();
            let rows = declared(&job, "V", true, false).unwrap();
            rows.set(&[0, 1], &row(7.0).repeat(2), Some(1)).unwrap();
            job.barrier(None).unwrap();
            job.barrier(None).unwrap();
            job.leave(None)
        });
        let mut silent = Far { control: far(&cluster, 0, 1), next: 1 };
        let table = silent.declare("U", true);
        let purpose = Purpose::Items { peer: PeerId::worker(1), session: tenants::SESSION };
        let mut items = tenants::enter(cluster.servers[0].addresses()[0], "job", SECRET, purpose).unwrap();
        let (partition, propagation) = (PartitionId { table, rank: 1 }, Propagation::Eager);
        let shape = Shape { slots: ROWS as u32, row_bytes: ROW_BYTES, propagation };
        let mut words = Vec::new();
        Encoder::message(&mut words, &Message::Offer { partition, shape });
        Encoder::message(&mut words, &Message::Flush { id: 1 });
        items.write_all(&words).unwrap();
        assert!(items.read(&mut [0; 64]).unwrap() > 0, "its rows are known at their home");
        silent.ready("U");
        silent.declare("V", false);
        silent.ready("V");
        for _ in 0..2 {
            let passed = silent.ask(Ask::Barrier);
            assert!(matches!(passed, Answer::BarrierPassed { .. }), "{passed:?}");
        }
        assert_eq!(honest.join().unwrap(), Ok(()));
        assert_eq!(reader.join().unwrap(), Ok(()));
    });
}

// N-6. The same.
#[test]
fn a_producer_that_leaves_rows_torn_in_its_memory_delays_only_those_who_read_them() {
    let cluster = Cluster::over(Way::Mixed, 2, 1, &[("lease", "60")]);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let job = cluster.join(1);
            let its = declared(&job, "U", false, true).unwrap();
            job.barrier(None).unwrap();
            assert_eq!(all_of(&its, seconds(common::DEADLINE)), Ok(vec![5.0; 2]));
            job.barrier(None).unwrap(); // it tears them
            job.barrier(None).unwrap();
            waits_in_vain_for(&its, 0);
            job.barrier(None).unwrap();
            job.leave(None)
        });
        let raw = Raw::join(&cluster, 0);
        let (rows, spec) = (RowSet::from_rows(0..ROWS), few_rows("U"));
        let mut next = raw.declare(&spec, &rows, &RowSet::default());
        let mut ask = |ask| {
            next += 1;
            common::raw::say(&raw.connection, next, ask)
        };
        let name = || spec.name.clone();
        let (joined, _) = ask(Ask::Table(TableAsk::Join { name: name() }));
        let Answer::Table(TableAnswer::Joined { id, .. }) = joined else { panic!("{joined:?}") };
        let (id, slots, propagation) = (PartitionId { table: id, rank: 0 }, ROWS as u32, spec.propagation);
        let asks = TableAsk::Partition { partition: id, slots, row_bytes: ROW_BYTES, propagation };
        let (_, descriptors) = ask(Ask::Table(asks));
        let layout = Layout::new(ROWS as u32, ROW_BYTES);
        let mut writer = Writer::shared(layout, descriptors[0].as_fd()).unwrap();
        let done = (Answer::Table(TableAnswer::Done), 0);
        for said in [TableAsk::Mapped { partition: id }, TableAsk::Ready { name: name() }] {
            let (answer, descriptors) = ask(Ask::Table(said));
            assert_eq!((answer, descriptors.len()), done);
        }
        let value = row(5.0);
        let mut both = writer.begin(2);
        (0..2).for_each(|slot| both.put(slot, 1, &value));
        both.finish();
        let mut barrier = || {
            let (passed, _) = ask(Ask::Barrier);
            assert!(matches!(passed, Answer::BarrierPassed { .. }), "{passed:?}");
        };
        barrier();
        barrier();
        // Both of its places say that a set wrote them which is not finished, and the change log names the row.
        writer.open(2, 1);
        writer.put_from(0, 2, 2, &value);
        (100..102).for_each(|number| writer.refresh(0, number, 2, 0, Some(&value)));
        writer.finish();
        assert!(writer.rows().read(0, writer.rows().now(), &mut value.clone()).is_err(), "torn");
        barrier();
        barrier();
        assert_eq!(reader.join().unwrap(), Ok(()));
    });
}

/// Partitions that the flood makes its server keep, and questions that it sends at once.
const OFFERS: u32 = 4_000;
const FLUSHES: u64 = 300_000;
/// Of which each takes long.
const SLOW_FLUSHES: u64 = 150_000;

/// Says so often that its worker lives.
const PULSE: Duration = Duration::from_millis(100);

// Each looked at all partitions, and while they were answered nobody was shown that the server lived.
#[test]
fn flushes_beside_many_partitions_make_nobody_think_that_the_server_is_lost() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("lease", "4"), ("memory", "2GiB")]);
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let job = cluster.join(0);
            let _rows = declared(&job, "U", true, false).unwrap();
            job.barrier(None).unwrap();
            while !over.load(Ordering::Relaxed) && job.check().is_ok() {
                thread::sleep(PULSE);
            }
            job.check()
        });
        let mut flood = Far { control: far(&cluster, 0, 1), next: 1 };
        flood.declare("U", false);
        flood.ready("U");
        let passed = flood.ask(Ask::Barrier);
        assert!(matches!(passed, Answer::BarrierPassed { .. }), "{passed:?}");
        let purpose = Purpose::Items { peer: PeerId::worker(1), session: tenants::SESSION };
        let mut items = tenants::enter(cluster.servers[0].addresses()[0], "job", SECRET, purpose).unwrap();
        let mut its_words = items.try_clone().unwrap();
        scope.spawn(move || {
            let Far { mut control, next } = flood;
            let beats = |id| encode(&Request { id, settled: id, open: Vec::new(), body: Ask::Beat }).unwrap();
            for id in (next + 1..).take_while(|_| !over.load(Ordering::Relaxed)) {
                tenants::say(&mut control, &beats(id));
                thread::sleep(PULSE);
            }
        });
        scope.spawn(move || {
            let (propagation, mut words) = (Propagation::Eager, Vec::new());
            let shape = Shape { slots: 1, row_bytes: 8, propagation };
            for table in 1000..1000 + OFFERS {
                let partition = PartitionId { table, rank: 1 };
                Encoder::message(&mut words, &Message::Offer { partition, shape });
            }
            (1..=FLUSHES).for_each(|id| Encoder::message(&mut words, &Message::Flush { id }));
            while its_words.write_all(&words).is_ok() && !over.load(Ordering::Relaxed) {
                words = record::length_bytes(0).to_vec();
                thread::sleep(PULSE);
            }
        });
        let (mut head, mut last) = ([0; LENGTH_BYTES], 0);
        while last < FLUSHES && items.read_exact(&mut head).is_ok() {
            let mut message = vec![0; record::length(&head, 1 << 20).unwrap()];
            items.read_exact(&mut message).unwrap();
            if let Ok(Message::Flushed { id }) = Message::decode(&message) {
                last = id;
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!((honest.join().unwrap(), last), (Ok(()), FLUSHES));
    });
}

/// Partitions beside which each flush takes long.
const MANY_OFFERS: u32 = 8_000;

// All that had come of it was heard before anybody else was: for a minute no row was passed on, and the others were lost.
#[test]
fn who_resets_a_connection_full_of_questions_delays_nobody_elses_rows() {
    let more = [("lease", "5"), ("memory", "2GiB"), ("on_worker_loss", "continue")];
    let cluster = Cluster::over(Way::Tcp, 3, 1, &more);
    let (over, (reset, is_reset)) = (&AtomicBool::new(false), mpsc::channel());
    thread::scope(|scope| {
        let cluster = &cluster;
        let producer = scope.spawn(move || {
            let job = cluster.join(0);
            let rows = declared(&job, "U", true, false).unwrap();
            job.barrier(None).unwrap();
            is_reset.recv().unwrap();
            rows.set(&[0, 1], &row(7.0).repeat(2), Some(1)).unwrap();
            while !over.load(Ordering::Relaxed) && job.check().is_ok() {
                thread::sleep(PULSE);
            }
            job.check()
        });
        let reader = scope.spawn(|| {
            let job = cluster.join(2);
            let rows = declared(&job, "U", false, true).unwrap();
            job.barrier(None).unwrap();
            let mut out = vec![0; 2 * ROW_BYTES as usize];
            let deadline = seconds(common::DEADLINE);
            let got = rows.get(&[0, 1], &mut out, Some(1), Some(Slack::Bound(0)), Some(deadline));
            over.store(true, Ordering::Relaxed);
            (got, job.check())
        });
        let mut flood = Far { control: far(cluster, 0, 1), next: 1 };
        flood.declare("U", false);
        flood.ready("U");
        let passed = flood.ask(Ask::Barrier);
        assert!(matches!(passed, Answer::BarrierPassed { .. }), "{passed:?}");
        let purpose = Purpose::Items { peer: PeerId::worker(1), session: tenants::SESSION };
        let mut items = tenants::enter(cluster.servers[0].addresses()[0], "job", SECRET, purpose).unwrap();
        scope.spawn(move || {
            let Far { mut control, next } = flood;
            let beats = |id| encode(&Request { id, settled: id, open: Vec::new(), body: Ask::Beat }).unwrap();
            for id in (next + 1..).take_while(|_| !over.load(Ordering::Relaxed)) {
                tenants::say(&mut control, &beats(id));
                thread::sleep(PULSE);
            }
        });
        let mut words = Vec::new();
        let shape = Shape { slots: 1, row_bytes: 8, propagation: Propagation::Lazy };
        for table in 1000..1000 + MANY_OFFERS {
            let partition = PartitionId { table, rank: 1 };
            let rows = || RowSet::from_rows([0]);
            Encoder::message(&mut words, &Message::Offer { partition, shape });
            let subscribe = Message::Subscribe { partition, shape, done: 0, serial: 1, rows: rows() };
            Encoder::message(&mut words, &subscribe);
            let fetch = Message::Fetch { partition, ticket: 1, version: 1 << 40, places: rows() };
            Encoder::message(&mut words, &fetch);
        }
        Encoder::message(&mut words, &Message::Flush { id: 1 });
        items.write_all(&words).unwrap();
        let (mut head, mut heard) = ([0; LENGTH_BYTES], false);
        while !heard {
            items.read_exact(&mut head).unwrap();
            let mut message = vec![0; record::length(&head, 1 << 20).unwrap()];
            items.read_exact(&mut message).unwrap();
            heard = matches!(Message::decode(&message), Ok(Message::Flushed { id: 1 }));
        }
        words.clear();
        (2..=SLOW_FLUSHES).for_each(|id| Encoder::message(&mut words, &Message::Flush { id }));
        // As many as there is room for on the way. A busy server makes room for more, slowly.
        items.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let (mut rest, until) = (&words[..], Instant::now() + Duration::from_secs(3));
        while let (false, Ok(bytes)) = (rest.is_empty() || Instant::now() > until, items.write(rest)) {
            rest = &rest[bytes..];
        }
        rustix::net::sockopt::set_socket_linger(&items, Some(Duration::ZERO)).unwrap();
        drop(items);
        reset.send(()).unwrap();
        let (got, stands) = reader.join().unwrap();
        assert!(got.is_ok(), "{got:?}");
        assert_eq!((stands, producer.join().unwrap()), (Ok(()), Ok(())));
    });
}
