//! A worker of one job makes a service keep whatever it can: it asks and never reads, repeats itself, declares and
//! declares. The process stays within the tenant's quota, the other tenant's values are the same bit by bit, and the job is
//! stopped as quickly as any.

mod common;

use common::NO_SETTINGS;
use common::tenants::{
    EVIL, SESSION, enter, evil_shard, evil_worker, frame, hear, say, service_of, service_with, train,
    train_for,
};
use penstock::service::{JobConfig, Service};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::clock::MAX_CLOCK;
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::{JobFailure, Refusal};
use penstock_proto::first::Say;
use penstock_proto::frame::{Body, Header};
use penstock_proto::handshake::Purpose;
use penstock_proto::items::control::{PART_BYTES, TableAsk};
use penstock_proto::items::registry::Part;
use penstock_proto::items::rows::RowSet;
use penstock_proto::items::spec::{Propagation, TableSpec};
use penstock_proto::items::wire::{Encoder, Message, PartitionId, Shape};
use penstock_proto::job::job_number;
use penstock_proto::knot::Goal;
use penstock_proto::message::{
    Answer, Ask, Joining, MAX_MESSAGE_BYTES, MAX_TENSORS, PROTOCOL_VERSION, Reply, Request, decode, encode,
};
use penstock_proto::peer::PeerId;
use penstock_proto::placement::{self, Extent};
use penstock_proto::propagation;
use penstock_proto::record::{Records, length_bytes};
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::submission::Submission;
use penstock_proto::travel::{Filtering, Travel};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// What each tenant may take.
const QUOTA: u64 = 64 * MIB;
/// What there may be beside it: stacks, buffers, what is under way, and this test's own.
const MARGIN: u64 = 64 * MIB;

/// Descriptors that the process may have, from the test that lowers them on. One of several jobs may have a quarter, which a hundred
/// workers of one have to find room in.
const PROCESS_DESCRIPTORS: u64 = 2048;
/// What the attacker's connections and the other tenant take, at both ends: all live in this process.
const OWN_DESCRIPTORS: usize = 64;

/// Held by whichever test measures, limits and exhausts what all of this process has; shared by those that it would disturb.
static PROCESS: RwLock<()> = RwLock::new(());

fn undisturbed() -> RwLockReadGuard<'static, ()> {
    PROCESS.read().unwrap_or_else(PoisonError::into_inner)
}

/// A number that the kernel shows of this process, in KiB there.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn count(directory: &str) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// What an attacker does, and keeps open.
type Attack = fn(SocketAddr) -> Vec<TcpStream>;

/// The same service as the others', where it is the `index`th of two servers of the attacker's job.
fn service_that_is(index: u32) -> (Service, SocketAddr) {
    service_where_evil_has((index, 2), 2)
}

/// The same, where it is one of so many servers of the attacker's job, which has so many workers.
fn service_where_evil_has((index, servers): (u32, u32), workers: u32) -> (Service, SocketAddr) {
    let (service, address) = service_with(QUOTA);
    assert!(service.delete("evil"));
    let given = [("chunk_bytes", "4KiB"), ("shards", "2"), ("lease", "5"), ("pin", "off")];
    let options = given.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let (name, memory, share) = ("evil".to_owned(), QUOTA, 1.0);
    service
        .create(JobConfig { name, secret: EVIL, index, servers, workers, options, memory, share })
        .unwrap();
    (service, address)
}

/// The honest tenant's values while `attack` goes on and stays, and how long the service took to stop then.
fn beside(
    what: &str,
    (service, address): (Service, SocketAddr),
    attack: Attack,
) -> (Vec<Vec<f64>>, Duration) {
    // From here on the peak is counted anew.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let (descriptors, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    let open = attack(address);
    let seen = train(address);
    let peak = status("VmHWM");
    assert!(peak <= before + QUOTA + MARGIN, "{what}: {} MiB resident, {} before", peak / MIB, before / MIB);
    let most = descriptors + (PROCESS_DESCRIPTORS / 4) as usize + OWN_DESCRIPTORS;
    assert!(count("/proc/self/fd") <= most, "{what}: {} descriptors", count("/proc/self/fd"));
    assert!(count("/proc/self/task") < threads + 8, "{what}: {} threads", count("/proc/self/task"));
    let since = Instant::now();
    assert!(service.delete("evil"));
    drop(service);
    let stopped = since.elapsed();
    drop(open);
    (seen, stopped)
}

/// Sends as much as the other end takes without being read.
fn pour(stream: &mut TcpStream, messages: impl Iterator<Item = Vec<u8>>) {
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut stream = std::io::BufWriter::with_capacity(64 * 1024, stream);
    for message in messages {
        if stream.write_all(&message).is_err() {
            break;
        }
    }
    let _ = stream.flush();
}

fn request(id: u64, body: Ask) -> Vec<u8> {
    penstock_proto::record::record(&encode(&Request { id, settled: id, open: Vec::new(), body }).unwrap())
}

fn tensor(name: &str, elements: u64, rule: Rule) -> Ask {
    let spec = TensorSpec {
        name: name.to_owned(),
        shape: vec![elements],
        dtype: Dtype::F32,
        rule,
        consistency: Bsp,
        propagation: propagation::Propagation::Pull,
        reduce: Reduce::Sum,
        rescale: 1.0,
        clip: None,
        refuse_nonfinite: false,
        travel: Travel::default(),
    };
    Ask::Declare { spec, decided: None }
}

fn asked(control: &mut TcpStream, id: u64, body: Ask) {
    say(control, &encode(&Request { id, settled: id, open: Vec::new(), body }).unwrap());
    hear(control).unwrap();
}

fn fetches_of_a_state_that_are_never_read(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    let rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
    asked(&mut control, 2, tensor("w", MIB, rule));
    let mut shard = evil_shard(address);
    let fetch = |ticket| Submission::Fetch { tensor: 0, state: true, version: 0, ticket };
    pour(&mut shard, (1..20_000).map(|at| frame("evil", at, fetch(at)).encode().to_vec()));
    vec![control, shard]
}

fn items(address: SocketAddr) -> TcpStream {
    enter(address, "evil", EVIL, Purpose::Items { peer: PeerId::worker(0), session: SESSION }).unwrap()
}

fn message(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::message(&mut bytes, message);
    bytes
}

const PARTITION: PartitionId = PartitionId { table: 0, rank: 0 };

fn fetches_of_rows_that_are_never_read(address: SocketAddr) -> Vec<TcpStream> {
    let (control, mut items) = (evil_worker(address), items(address));
    let shape = Shape { slots: 500_000, row_bytes: 1, propagation: Propagation::Lazy };
    let rows = RowSet::from_ranges(std::iter::once(0..500_000));
    let begin = [
        message(&Message::Offer { partition: PARTITION, shape }),
        message(&Message::Subscribe { partition: PARTITION, shape, done: 0, serial: 1, rows: rows.clone() }),
    ];
    let fetch =
        |ticket| Message::Fetch { partition: PARTITION, ticket, version: 1 << 40, places: rows.clone() };
    pour(&mut items, begin.into_iter().chain((1..2_000).map(|ticket| message(&fetch(ticket)))));
    vec![control, items]
}

fn flushes_whose_answers_are_never_read(address: SocketAddr) -> Vec<TcpStream> {
    let (control, mut items) = (evil_worker(address), items(address));
    // Each answer is as long as the question: as many of them as do not fit, whatever else there may be.
    let flush = message(&Message::Flush { id: u64::MAX });
    let block = flush.repeat((MIB as usize).div_ceil(flush.len()));
    pour(&mut items, (0..2 * (QUOTA + MARGIN) / MIB).map(|_| block.clone()));
    vec![control, items]
}

/// Bytes of the densest set of rows there is: two a range.
fn dense(bytes: usize) -> Vec<u8> {
    vec![1; bytes]
}

fn subscriptions_that_decode_to_many_times_their_bytes(address: SocketAddr) -> Vec<TcpStream> {
    let (control, mut items) = (evil_worker(address), items(address));
    // Twelve times as much once it is decoded; this test's own copy counts too.
    let rows = RowSet::decode(&dense(1 << 20)).unwrap();
    let shape = Shape { slots: 1 << 30, row_bytes: 1, propagation: Propagation::Eager };
    let subscribe = |table| {
        let partition = PartitionId { table, rank: 0 };
        message(&Message::Subscribe { partition, shape, done: 0, serial: 1, rows: rows.clone() })
    };
    pour(&mut items, (0..64).map(subscribe));
    vec![control, items]
}

fn needs_of_rows_that_nobody_offers(address: SocketAddr) -> Vec<TcpStream> {
    let (control, mut items) = (evil_worker(address), items(address));
    let shape = Shape { slots: 1, row_bytes: 1, propagation: Propagation::Bounded };
    let rows = RowSet::from_ranges(std::iter::once(0..1));
    let ask = |table| {
        let partition = PartitionId { table, rank: 1 };
        let subscribe = Message::Subscribe { partition, shape, done: 0, serial: 1, rows: rows.clone() };
        let versions = (0..1024).map(|version| version + (1 << 20)).collect();
        [message(&subscribe), message(&Message::Need { partition, versions })].concat()
    };
    pour(&mut items, (0..60_000).map(ask));
    vec![control, items]
}

fn table(name: &str) -> TableSpec {
    let (name, propagation) = (name.to_owned(), Propagation::Eager);
    TableSpec { name, rows: 1 << 40, row_bytes: 8, sum: None, propagation, holds: String::new() }
}

fn declarations_of_rows_without_end(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    let begin = TableAsk::Begin { spec: table("U"), home: 0, near: false };
    asked(&mut control, 2, Ask::Table(begin));
    let rows = |part| TableAsk::Rows { name: "U".to_owned(), part, bytes: dense(PART_BYTES) };
    pour(&mut control, (3..8_000).map(|id| request(id, Ask::Table(rows(Part::Consume)))));
    vec![control]
}

fn waits_for_a_table_without_end(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    let name = "U".repeat(500);
    let begin = TableAsk::Begin { spec: table(&name), home: 0, near: false };
    asked(&mut control, 2, Ask::Table(begin));
    let wait = |id: u64| match id % 2 {
        0 => TableAsk::Join { name: name.clone() },
        _ => TableAsk::Ready { name: name.clone() },
    };
    pour(&mut control, (3..50_000).map(|id| request(id, Ask::Table(wait(id)))));
    vec![control]
}

fn questions_that_every_shard_is_asked(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    asked(&mut control, 2, tensor("w", 1, Rule::Add));
    let ask = |id: u64| match id % 2 {
        0 => Ask::Missing { tensor: 0, version: 1 },
        _ => Ask::Clocks,
    };
    pour(&mut control, (3..50_000).map(|id| request(id, ask(id))));
    vec![control]
}

fn tensors_with_a_region_each(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    pour(&mut control, (2..5_000).map(|id| request(id, tensor(&format!("t{id}"), 64 * 1024, Rule::Add))));
    vec![control]
}

fn tiny_tensors_without_end(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    pour(&mut control, (2..5_000).map(|id| request(id, tensor(&format!("t{id}"), 1, Rule::Add))));
    vec![control]
}

fn a_declaration_repeated(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    pour(&mut control, (2..5_000).map(|id| request(id, tensor("w", MIB, Rule::Add))));
    vec![control]
}

/// A tensor of two chunks, as a worker tells a server that is not the first.
fn decided(name: &str, id: u32, extents: [(u32, u32); 2]) -> Ask {
    let Ask::Declare { spec, .. } = tensor(name, 2048, Rule::Add) else { unreachable!() };
    let extents = extents.map(|(first, count)| Extent { first, count }).to_vec();
    Ask::Declare { spec, decided: Some((id, extents)) }
}

// Such a number was an index: everything below it was allocated.
fn a_tensor_with_the_largest_number(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    let last = MAX_TENSORS - 1;
    asked(&mut control, 2, decided("w", last, [(0, 0), (0, 2)]));
    let mut shard = evil_shard(address);
    // What is owed to a worker is kept by number too. Its submission is taken when something of it comes back.
    let submissions = [
        Submission::Zero { tensor: last },
        Submission::Fetch { tensor: last, state: false, version: 0, ticket: 1 },
    ];
    for (submission, sequence) in submissions.into_iter().zip(1..) {
        shard.write_all(&frame("evil", sequence, submission).encode()).unwrap();
    }
    shard.read_exact(&mut [0; 4096]).unwrap();
    vec![control, shard]
}

// Nothing of them is homed here, so nothing was charged.
fn names_of_tensors_that_are_elsewhere(address: SocketAddr) -> Vec<TcpStream> {
    let mut control = evil_worker(address);
    let mut answers = control.try_clone().unwrap();
    // Read, or the worker would be lost for that: until the job ends, since at its pace the last answer is long in coming.
    std::thread::spawn(move || while matches!(answers.read(&mut [0; 1 << 16]), Ok(1..)) {});
    let ask = |id: u64| request(id, decided(&format!("{id:0512}"), id as u32, [(0, 2), (2, 0)]));
    // Twice what it may ask at once. More would be taken at its pace, and this would write at that for half a minute.
    pour(&mut control, (2..4_000).map(ask));
    vec![control]
}

/// Partitions that the thread which passes rows on looks at for each connection that it is given.
const OFFERS: u32 = 4_000;
/// Connections for rows that are opened one after the other, faster than that.
const CONNECTIONS: usize = 4_000;

// They waited for that thread, charged to nobody, until the process had no descriptor left for the other tenant.
fn connections_for_rows_without_end(address: SocketAddr) -> Vec<TcpStream> {
    let (mut control, mut first) = (evil_worker(address), items(address));
    let shape = Shape { slots: 1, row_bytes: 8, propagation: Propagation::Eager };
    let offer = |table| message(&Message::Offer { partition: PartitionId { table, rank: 0 }, shape });
    let offers = (0..OFFERS).flat_map(offer).chain(message(&Message::Flush { id: 1 }));
    first.write_all(&offers.collect::<Vec<u8>>()).unwrap();
    assert!(first.read(&mut [0; 64]).unwrap() > 0, "all of them were heard");
    let before = count("/proc/self/fd");
    for at in 0..CONNECTIONS {
        // On a busy machine they take longer than the lease of a worker that says nothing.
        if at.is_multiple_of(50) {
            asked(&mut control, 2 + at as u64, Ask::Clocks);
        }
        drop(items(address));
        let now = count("/proc/self/fd");
        assert!(now < before + OWN_DESCRIPTORS, "{} descriptors more for {at} connections", now - before);
    }
    vec![control, first]
}

/// One test, not one for each: they count what the whole process keeps.
#[test]
fn whatever_a_tenant_asks_the_process_keeps_no_more_than_its_quota_and_the_other_does_not_notice() {
    let _alone = PROCESS.write().unwrap_or_else(PoisonError::into_inner);
    let attacks: [(&str, Attack); 11] = [
        ("states", fetches_of_a_state_that_are_never_read),
        ("rows", fetches_of_rows_that_are_never_read),
        ("flushes", flushes_whose_answers_are_never_read),
        ("subscriptions", subscriptions_that_decode_to_many_times_their_bytes),
        ("needs", needs_of_rows_that_nobody_offers),
        ("declarations of rows", declarations_of_rows_without_end),
        ("waits", waits_for_a_table_without_end),
        ("questions", questions_that_every_shard_is_asked),
        ("tensors", tensors_with_a_region_each),
        ("tiny tensors", tiny_tensors_without_end),
        ("a declaration repeated", a_declaration_repeated),
    ];
    // The service takes all that it may have: so that is lowered.
    let most = Some(PROCESS_DESCRIPTORS);
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    let alone = train(service_with(QUOTA).1);
    let (service, address) = service_with(2048 * MIB);
    let open = connections_for_rows_without_end(address);
    assert!(train(address) == alone, "connections for rows: the honest tenant saw other values");
    drop((open, service));
    let elsewhere: [(&str, Attack); 2] = [
        ("the largest number", a_tensor_with_the_largest_number),
        ("names", names_of_tensors_that_are_elsewhere),
    ];
    let withstands = |what: &str, service: &dyn Fn() -> (Service, SocketAddr), attack| {
        let stops = || {
            let (seen, stopped) = beside(what, service(), attack);
            assert!(seen == alone, "{what}: the honest tenant saw other values");
            stopped
        };
        // On a busy machine not each time.
        let took: Vec<Duration> = (0..3).map(|_| stops()).take_while(|took| took.as_secs() >= 2).collect();
        assert!(took.len() < 3, "{what}: it took {took:?} to stop");
    };
    for (what, attack) in attacks {
        withstands(what, &|| service_with(QUOTA), attack);
    }
    for (what, attack) in elsewhere {
        withstands(what, &|| service_that_is(1), attack);
    }
}

/// A count of what is done, not a time: however fast or busy this machine is, no more is answered.
#[test]
fn a_tenant_that_only_asks_is_answered_at_its_pace_beside_another() {
    let _shared = undisturbed();
    /// What a tenant may ask at once and in a second, and some that are taken before it is looked at.
    const AT_ONCE: u64 = 1_000;
    const A_SECOND: f64 = 100.0;
    const UNDER_WAY: u64 = 100;
    let (_service, address) = service_with(QUOTA);
    let mut control = evil_worker(address);
    let asks = AT_ONCE + UNDER_WAY + 2 * A_SECOND as u64;
    are_answered_at_a_pace(
        &mut control,
        asks,
        || Ask::Clocks,
        |took| (AT_ONCE + UNDER_WAY) as f64 + A_SECOND * took,
    );
}

/// Asks so many questions, and is answered no more of them than are allowed within so many seconds.
fn are_answered_at_a_pace(
    control: &mut TcpStream,
    asks: u64,
    question: impl Fn() -> Ask,
    most: impl Fn(f64) -> f64,
) {
    let (began, mut answered) = (Instant::now(), 0);
    while answered < asks {
        // Many at once: to wait for each answer would itself be a pace.
        // Above all that was asked before: what is said to be settled is not carried out.
        let ids = answered + 100_000..answered + 100_020;
        let questions: Vec<u8> = ids.clone().flat_map(|id| request(id, question())).collect();
        control.write_all(&questions).unwrap();
        ids.for_each(|_| drop(hear(control).unwrap()));
        answered += 20;
        let took = began.elapsed();
        assert!(answered as f64 <= most(took.as_secs_f64()), "{answered} answers in {took:?}");
    }
}

/// What came of many workers at once was taken in one turn, and what that was beyond what may be asked at once was forgiven.
#[test]
fn workers_that_ask_all_at_once_are_answered_at_a_pace_too() {
    let _shared = undisturbed();
    /// One more than are heard in one look at the sockets.
    const WORKERS: u32 = 65;
    const AT_ONCE: usize = 1_000;
    /// Each is heard once in a turn, and a turn that so many have asked in is followed by a fifth of a second.
    const A_SECOND: f64 = WORKERS as f64 / 0.2;
    const UNDER_WAY: usize = 100 + 2 * WORKERS as usize;
    let (_service, address) = service_where_evil_has((0, 1), WORKERS);
    let mut controls = evil_workers(address, WORKERS);
    let began = Instant::now();
    let questions: Vec<u8> = (2..66).flat_map(|id| request(id, Ask::Clocks)).collect();
    for control in &mut controls {
        control.write_all(&questions).unwrap();
        control.set_nonblocking(true).unwrap();
    }
    let mut heard: Vec<Records> = controls.iter().map(|_| Records::new(MAX_MESSAGE_BYTES)).collect();
    let mut answered = 0;
    while began.elapsed() < Duration::from_secs(3) {
        for (control, records) in controls.iter_mut().zip(&mut heard) {
            let mut bytes = [0; 1 << 14];
            match control.read(&mut bytes) {
                Ok(read) => records.feed(&bytes[..read]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            while records.take().unwrap().is_some() {
                answered += 1;
            }
        }
        let most = (AT_ONCE + UNDER_WAY) as f64 + A_SECOND * began.elapsed().as_secs_f64();
        assert!(answered as f64 <= most, "{answered} answers in {:?}", began.elapsed());
    }
    assert!(answered >= AT_ONCE, "{answered} answers");
}

/// The pace is all workers' of a job together: what one of them asked was all that its job could have answered.
#[test]
fn a_worker_that_asks_without_end_keeps_no_other_of_its_job_from_being_heard() {
    let _shared = undisturbed();
    let (_service, address) = service_with(QUOTA);
    let mut flooding = evil_worker(address);
    let (peer, session) = (PeerId::worker(1), [8; 16]);
    let mut other = enter(address, "evil", EVIL, Purpose::Control).unwrap();
    asked(
        &mut other,
        1,
        Ask::Hello { version: PROTOCOL_VERSION, session, peer, size: 2, overlay: Joining::default() },
    );
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            flooding.set_nonblocking(true).unwrap();
            let beats: Vec<u8> = (2..2_002).flat_map(|id| request(id, Ask::Beat)).collect();
            let (mut sent, mut answers) = (0, [0; 1 << 16]);
            while !stop.load(Ordering::Relaxed) {
                sent += flooding.write(&beats[sent..]).unwrap_or(0);
                sent %= beats.len();
                let _ = flooding.read(&mut answers);
            }
        });
        // Until what may be asked at once is spent, and then for as long again.
        let (began, mut id, mut longest) = (Instant::now(), 2, Duration::ZERO);
        other.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        while began.elapsed() < Duration::from_secs(6) && longest < Duration::from_secs(1) {
            let asks = Instant::now();
            say(
                &mut other,
                &encode(&Request { id, settled: id, open: Vec::new(), body: Ask::Clocks }).unwrap(),
            );
            let _ = hear(&mut other);
            longest = longest.max(asks.elapsed());
            id += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(longest < Duration::from_secs(1), "an answer came after {longest:?}");
    });
}

/// So many workers of the other job that have said hello; their control connections.
fn evil_workers(address: SocketAddr, workers: u32) -> Vec<TcpStream> {
    let hello = |rank| {
        let mut control = enter(address, "evil", EVIL, Purpose::Control).unwrap();
        let (peer, session) = (PeerId::worker(rank), [rank as u8; 16]);
        let hello = Ask::Hello {
            version: PROTOCOL_VERSION,
            session,
            peer,
            size: workers,
            overlay: Joining::default(),
        };
        say(&mut control, &encode(&Request { id: 1, settled: 1, open: Vec::new(), body: hello }).unwrap());
        let reply: Reply = decode(&hear(&mut control).unwrap()).unwrap();
        assert!(matches!(reply.body, Answer::Welcome(_)), "{reply:?}");
        control
    };
    (0..workers).map(hello).collect()
}

/// Each such question had a server go over all workers, and cost what a beat does.
#[test]
fn who_asks_who_waits_for_whom_pays_for_the_waits_that_are_gone_over() {
    let _shared = undisturbed();
    const WORKERS: u32 = 1_000;
    /// A question counts for itself and for two looks at all workers. Where nothing is left it is answered without a search.
    const AT_ONCE: u64 = 20_000 / 3;
    const A_SECOND: f64 = 2_000.0;
    const UNDER_WAY: u64 = 100;
    let (_service, address) = service_where_evil_has((0, 1), WORKERS);
    let (peer, session) = (PeerId::worker(0), [7; 16]);
    let mut control = enter(address, "evil", EVIL, Purpose::Control).unwrap();
    asked(
        &mut control,
        1,
        Ask::Hello { version: PROTOCOL_VERSION, session, peer, size: WORKERS, overlay: Joining::default() },
    );
    let goal = Goal::Ranks { what: "`w`".to_owned(), ranks: (1..WORKERS).collect() };
    let waits = || Ask::Waits { wait: 1, goal: Some(goal.clone()), alone: true };
    are_answered_at_a_pace(&mut control, 2 * AT_ONCE, waits, |took| {
        (AT_ONCE + UNDER_WAY) as f64 + A_SECOND * took
    });
}

/// Each such request had a server settle all tables that anybody waited for, and cost what a beat does.
#[test]
fn who_asks_for_a_table_pays_for_the_waits_that_are_gone_over() {
    let _shared = undisturbed();
    const WORKERS: u32 = 10;
    const TABLES: u64 = 250;
    /// A request counts for itself, and for four for each of a thousand waits.
    const AT_ONCE: u64 = 20_000 / 11;
    const A_SECOND: f64 = 2_000.0 / 11.0;
    const UNDER_WAY: u64 = 100;
    let (_service, address) = service_where_evil_has((0, 1), WORKERS);
    let mut controls = evil_workers(address, WORKERS);
    let begin = |spec| Ask::Table(TableAsk::Begin { spec, home: 0, near: false });
    let join = |name: &str| Ask::Table(TableAsk::Join { name: name.to_owned() });
    // Long, and alike up to their ends.
    let name = |at: u64| format!("{}{at:06}", "U".repeat(494));
    for at in 0..TABLES {
        asked(&mut controls[0], 2 + at, begin(table(&name(at))));
    }
    // It fails, and whoever asks for it is told so at once.
    let failed = table(&name(TABLES));
    asked(&mut controls[0], 2 + TABLES, begin(failed.clone()));
    asked(&mut controls[1], 2, begin(TableSpec { row_bytes: 16, ..failed.clone() }));
    for control in &mut controls {
        let waits: Vec<u8> = (0..TABLES).flat_map(|at| request(10_000 + at, join(&name(at)))).collect();
        control.write_all(&waits).unwrap();
        asked(control, 20_000, Ask::Beat);
    }
    let (control, others) = controls.split_last_mut().unwrap();
    let (others, questions) = (&*others, Cell::new(0));
    let question = || {
        // The others live.
        if questions.replace(questions.get() + 1) % 100 == 0 {
            others.iter().for_each(|mut other| other.write_all(&request(30_000, Ask::Beat)).unwrap());
        }
        join(&failed.name)
    };
    are_answered_at_a_pace(control, 3_000, question, |took| (AT_ONCE + UNDER_WAY) as f64 + A_SECOND * took);
}

/// Each such request counted as one, however long: 2,000 of them a second took most of a core.
#[test]
fn who_tells_the_rows_of_a_table_pays_for_their_bytes() {
    let _shared = undisturbed();
    const BYTES: u64 = 32 << 10;
    /// A request counts for itself, and for one for each 2 KiB.
    const COST: u64 = 1 + BYTES / 2048;
    const AT_ONCE: u64 = 20_000 / COST;
    const UNDER_WAY: u64 = 100;
    let (_service, address) = service_with(QUOTA);
    // The worker that never comes has no lease.
    let mut control = evil_worker(address);
    // Refused at once, as of a table that was not begun: it was read all the same.
    let rows = || {
        let (name, part) = ("unknown".to_owned(), Part::Produce);
        Ask::Table(TableAsk::Rows { name, part, bytes: [1; BYTES as usize].to_vec() })
    };
    are_answered_at_a_pace(&mut control, AT_ONCE + 400, rows, |took| {
        (AT_ONCE + UNDER_WAY) as f64 + 2_000.0 / COST as f64 * took
    });
}

/// Its memory was made and cleared first, some ten milliseconds of the control thread for a request: neighbours took up to six times
/// as long.
#[test]
fn a_declaration_for_which_there_is_no_entry_has_no_memory_touched() {
    let _alone = PROCESS.write().unwrap_or_else(PoisonError::into_inner);
    const DECLARATIONS: u64 = 200;
    let (_service, address) = service_with(QUOTA);
    let mut controls = evil_workers(address, 2);
    let control = &mut controls[1];
    let waits = |id| request(id, Ask::First(Say::Waits { what: "x".to_owned(), done: 0, begun: 0 }));
    control.write_all(&(2..302).flat_map(waits).collect::<Vec<u8>>()).unwrap();
    let spent = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (before, mut refused) = (spent(), 0);
    for id in 1_000..1_000 + DECLARATIONS {
        control.write_all(&request(id, tensor(&id.to_string(), 4 << 20, Rule::Add))).unwrap();
        // Waits for which there was no entry are told so too.
        loop {
            let reply = decode::<Reply>(&hear(control).unwrap()).unwrap();
            let exhausted = matches!(reply.body, Answer::Refused(Refusal::Exhausted { .. }));
            assert!(exhausted, "{:?}", reply.body);
            refused += u64::from(reply.id >= 1_000);
            if reply.id == id {
                break;
            }
        }
    }
    let took = spent() - before;
    assert_eq!(refused, DECLARATIONS);
    assert!(took < Duration::from_millis(800), "{took:?} of processor time");
}

/// Whoever had the secret, and said hello to nobody, asked on at the workers' cost.
#[test]
fn a_connection_that_asks_before_it_says_hello_is_refused_and_closed() {
    let _shared = undisturbed();
    let (_service, address) = service_with(QUOTA);
    let mut stranger = enter(address, "evil", EVIL, Purpose::Control).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    say(&mut stranger, &encode(&Request { id: 1, settled: 1, open: Vec::new(), body: Ask::Clocks }).unwrap());
    let told = decode::<Reply>(&hear(&mut stranger).unwrap()).unwrap().body;
    assert_eq!(told, Answer::Refused(Refusal::Authentication));
    assert!(matches!(stranger.read(&mut [0]), Ok(0)), "it stays open");
}

/// It said hello again and again, at the length of any message, and what it was told and did not read was kept: 4 MiB for each of
/// 256 connections, at nobody's charge.
#[test]
fn who_is_not_let_in_is_answered_once_and_hung_up_on() {
    let _shared = undisturbed();
    let (_service, address) = service_with(QUOTA);
    let hello = |named: u64, size| {
        let body = Ask::Hello {
            version: PROTOCOL_VERSION,
            session: SESSION,
            peer: PeerId::worker(0),
            size,
            overlay: Joining::default(),
        };
        encode(&Request { id: 1, settled: named, open: (0..named).collect(), body }).unwrap()
    };
    // Sooner than the ten seconds in which anybody has to be let in.
    let stranger = || {
        let stranger = enter(address, "evil", EVIL, Purpose::Control).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stranger
    };
    let is_over = |stream: &mut TcpStream| match stream.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    let mut refused = stranger();
    say(&mut refused, &hello(0, 77));
    let told = decode::<Reply>(&hear(&mut refused).unwrap()).unwrap().body;
    assert!(matches!(told, Answer::Refused(Refusal::SizeMismatch { .. })), "{told:?}");
    assert!(is_over(&mut refused), "it stays open");
    // This one would be let in, and names requests as a worker does that has been.
    let mut long = stranger();
    say(&mut long, &hello(1000, 2));
    assert!(is_over(&mut long), "a hello of any length is taken");
    // What has come of it would be kept until it is whole.
    let mut begun = stranger();
    begun.write_all(&length_bytes(1001)).unwrap();
    assert!(is_over(&mut begun), "a hello of any length is waited for");
    evil_worker(address);
}

/// More workers than the control thread hears in one look at the sockets, and all that they may ask is spent: each is heard all the
/// same, and the one that says nothing is noticed.
#[test]
fn of_many_workers_that_ask_too_much_the_silent_one_is_lost_and_no_other() {
    let _shared = undisturbed();
    const WORKERS: u32 = 100;
    const SILENT: u32 = WORKERS - 1;
    let (_service, address) = service_where_evil_has((0, 1), WORKERS);
    let mut controls = evil_workers(address, WORKERS);
    let began = Instant::now();
    // Either is a sign of life; a beat costs its sender less.
    let questions: Vec<u8> =
        (2..130).flat_map(|id| request(id, if id % 2 == 0 { Ask::Clocks } else { Ask::Beat })).collect();
    let mut sent = vec![0; WORKERS as usize];
    let mut heard: Vec<Records> = controls.iter().map(|_| Records::new(MAX_MESSAGE_BYTES)).collect();
    controls.iter_mut().for_each(|control| control.set_nonblocking(true).unwrap());
    let mut failure = None;
    while failure.is_none() {
        assert!(began.elapsed() < Duration::from_secs(30), "its lease is 5 s, and nobody was lost");
        for (rank, (control, records)) in controls.iter_mut().zip(&mut heard).enumerate() {
            if rank as u32 != SILENT {
                sent[rank] += control.write(&questions[sent[rank]..]).unwrap_or(0);
                sent[rank] %= questions.len();
            }
            let mut bytes = [0; 1 << 14];
            let read = control.read(&mut bytes).unwrap_or(0);
            records.feed(&bytes[..read]);
            while let Some(message) = records.take().unwrap() {
                if let Answer::Failed(told) = decode::<Reply>(message).unwrap().body {
                    failure = Some(told);
                }
            }
        }
    }
    let took = began.elapsed();
    assert!(matches!(failure, Some(JobFailure::WorkerLost { rank: SILENT, .. })), "{failure:?}");
    assert!(took < Duration::from_secs(12), "{failure:?} after {took:?}");
}

/// Processor time that the attacker's own thread may take, in parts of one processor. What the service
/// spends on it is not capped.
const CAP: f64 = 0.1;
/// Iterations of the other tenant's two workers, and runs of each kind, which take turns.
const MEASURED: u64 = 20_000;
/// A run by itself scatters by a third: of fifteen, the ratio of two medians is known to seven hundredths only.
const RUNS: usize = 61;
/// How many times as long the other tenant may take.
const MOST: f64 = 1.10;

/// What the attacker's clocks have a shard publish: several hundred chunks.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// Of zeros.
    Plain,
    /// Of which a filter holds something back.
    Filtered,
}

/// The attacker's other worker passes everything by: each clock of worker 0 has a shard publish. What has to stay open.
fn pass_by(address: SocketAddr) -> [TcpStream; 2] {
    let (peer, session) = (PeerId::worker(1), [8; 16]);
    let mut other = enter(address, "evil", EVIL, Purpose::Control).unwrap();
    asked(
        &mut other,
        1,
        Ask::Hello { version: PROTOCOL_VERSION, session, peer, size: 2, overlay: Joining::default() },
    );
    let mut passes = enter(address, "evil", EVIL, Purpose::Shard { peer, session, shard: 0 }).unwrap();
    passes.write_all(&frame("evil", 1, Submission::Clock { clock: MAX_CLOCK }).encode()).unwrap();
    [other, passes]
}

/// Has a filter hold back something of each chunk of a shard; how many frames were sent.
fn hold_back(control: &mut TcpStream, shard: &mut TcpStream) -> u64 {
    let Ask::Declare { mut spec, decided } = tensor("w", MIB, Rule::Add) else { unreachable!() };
    let top = Filtering::of_values("TopK", &[0.01]).unwrap();
    spec.travel = Travel::filtered(Filtering::NONE, top, Dtype::F32);
    asked(control, 2, Ask::Declare { spec, decided });
    shard.write_all(&frame("evil", 1, Submission::Zero { tensor: 0 }).encode()).unwrap();
    let payload: Vec<u8> = (1..1025).flat_map(|number| (number as f32).to_le_bytes()).collect();
    let shard_of = placement::shards(&mut [0; 2], std::iter::repeat_n(payload.len() as u64, 1024));
    let mut sequence = 1;
    for (&of, first) in shard_of.iter().zip(0..) {
        if of == 0 {
            sequence += 1;
            let push = Submission::Push { tensor: 0, first, count: 1, stamp: 0, settings: NO_SETTINGS };
            let header = Header::bare(
                job_number("evil"),
                sequence,
                Body::Submission { submission: push, wanted: false },
            );
            shard.write_all(&header.with_payload(&payload).encode()).unwrap();
            shard.write_all(&payload).unwrap();
        }
    }
    sequence
}

/// Asks the control thread, and all shards by it, and submits clocks to a shard, until `stop`.
fn flood(address: SocketAddr, target: Target, stop: &AtomicBool) {
    let (mut control, mut shard) = (evil_worker(address), evil_shard(address));
    let _open = pass_by(address);
    let mut sequence = match target {
        Target::Plain => {
            asked(&mut control, 2, tensor("w", MIB, Rule::Add));
            shard.write_all(&frame("evil", 1, Submission::Zero { tensor: 0 }).encode()).unwrap();
            1
        }
        Target::Filtered => hold_back(&mut control, &mut shard),
    };
    shard.set_nonblocking(true).unwrap();
    let own_time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let (began, used) = (Instant::now(), own_time());
    let mut id = 3;
    let mut unsent: Vec<u8> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        asked(&mut control, id, Ask::Clocks);
        id += 1;
        if unsent.is_empty() {
            for _ in 0..64 {
                sequence += 1;
                unsent.extend(frame("evil", sequence, Submission::Clock { clock: sequence }).encode());
            }
        }
        match shard.write(&unsent) {
            Ok(sent) => drop(unsent.drain(..sent)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        let _ = shard.read(&mut [0; 4096]);
        while (own_time() - used).as_secs_f64() > CAP * began.elapsed().as_secs_f64() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// For how many seconds, and how many times, each of the process's threads, by its number, has run.
fn times_of_threads() -> HashMap<u32, [f64; 2]> {
    let thread = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let ran = fs::read_to_string(path.join("schedstat")).ok()?;
        let mut numbers = ran.split_ascii_whitespace().map(str::parse::<f64>);
        let (nanoseconds, slices) = (numbers.next()?.ok()?, numbers.nth(1)?.ok()?);
        Some((path.file_name()?.to_str()?.parse().ok()?, [nanoseconds / 1e9, slices]))
    };
    fs::read_dir("/proc/self/task").unwrap().filter_map(thread).collect()
}

#[test]
#[expect(clippy::print_stdout, reason = "what it measures is read by a person")]
#[ignore = "a measurement: cargo test --release -p penstock --test hostile_tenant -- --ignored --nocapture"]
fn how_long_the_other_tenant_takes_beside_an_attacker_of_little_processor_time() {
    // Seconds, and what the flood takes of each: parts of a processor, the attacker's and the service's for it, and how often one
    // of their threads is given a core.
    let timed = |attack: Option<Target>| {
        let (_service, address) = service_of(QUOTA, &[("lease", "60")]);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if let Some(target) = attack {
                let stop = &stop;
                scope.spawn(move || flood(address, target, stop));
                // What it may have done at once is done by then: this is what a flood costs that goes on.
                std::thread::sleep(Duration::from_secs(1));
            }
            let (since, before) = (Instant::now(), times_of_threads());
            train_for(address, MEASURED);
            let seconds = since.elapsed().as_secs_f64();
            let after = times_of_threads();
            stop.store(true, Ordering::Relaxed);
            // The honest job's have ended by then; this one waits for its workers.
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            let taken = |which: usize| {
                let ran =
                    |(thread, before): (&u32, &[f64; 2])| Some(after.get(thread)?[which] - before[which]);
                before.iter().filter(|(thread, _)| **thread != own).filter_map(ran).sum::<f64>() / seconds
            };
            [seconds, taken(0), taken(1)]
        })
    };
    let attacks = [None, Some(Target::Plain), Some(Target::Filtered)];
    let mut runs = attacks.map(|_| vec![]);
    for run in 0..RUNS {
        for (runs, attack) in runs.iter_mut().zip(attacks) {
            let [seconds, taken, woken] = timed(attack);
            println!(
                "run {run}, {attack:?}: {seconds:.3} s, of which the flood took {taken:.3} of a processor, {woken:.0} times a second"
            );
            runs.push(seconds);
        }
    }
    runs.iter_mut().for_each(|runs| runs.sort_by(f64::total_cmp));
    let median = |runs: &[f64]| runs[RUNS / 2];
    let mut ratios = vec![];
    for (runs_beside, attack) in runs.iter().zip(attacks) {
        let ratio = median(runs_beside) / median(&runs[0]);
        println!(
            "{attack:?}, {CAP} of a processor: {ratio:.2} times as long (medians of {RUNS}: {:.3} s in {:.3} to {:.3})",
            median(runs_beside),
            runs_beside[0],
            runs_beside[RUNS - 1]
        );
        ratios.push(ratio);
    }
    assert!(ratios.iter().all(|&ratio| ratio <= MOST), "{ratios:.3?} times as long, {MOST} allowed");
}
