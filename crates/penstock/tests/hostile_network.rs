//! What strangers and hostile workers do on a network connection, while an honest job trains behind the same door. The honest
//! job's values are the same, bit by bit, as when it is alone.

mod common;

use common::{NO_SETTINGS, declare, options, pull};
use penstock::service::{JobConfig, Service};
use penstock::worker::{Error, Job, Membership};
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::Refusal;
use penstock_proto::frame::{Body, Header, Notice, job_number};
use penstock_proto::handshake::{MAX_HANDSHAKE_BYTES, Purpose, WorkerHandshake};
use penstock_proto::message::{
    Answer, Ask, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Secret, decode, encode,
};
use penstock_proto::record::{Records, record};
use penstock_proto::submission::Submission;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const GOOD: Secret = Secret([1; 32]);
const EVIL: Secret = Secret([2; 32]);
const SESSION: [u8; 16] = [9; 16];
/// First byte of a connection without TLS.
const PLAIN: u8 = b'P';
const ITERATIONS: u64 = 40;
const ELEMENTS: u64 = 3 * 512 + 7;

/// A door with two jobs behind it, of two workers each.
fn service() -> (Service, SocketAddr) {
    let service = Service::start(&["127.0.0.1:0".parse().unwrap()], options(&[])).unwrap();
    for (name, secret) in [("good", GOOD), ("evil", EVIL)] {
        let given =
            [("chunk_bytes", "4KiB"), ("shards", "2"), ("lease", "5"), ("pin", "off"), ("memory", "256MiB")];
        let options = given.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let (name, memory, share) = (name.to_owned(), 0, 1.0);
        service
            .create(JobConfig { name, secret, index: 0, servers: 1, workers: 2, options, memory, share })
            .unwrap();
    }
    let address = service.addresses()[0];
    (service, address)
}

fn join(address: SocketAddr, job: &str, secret: Secret, rank: u32) -> Result<Job, Error> {
    let servers = vec![format!("tcp://{address}").parse().unwrap()];
    let membership = Membership { servers, job: job.to_owned(), secret, rank, size: 2 };
    Job::connect(&membership, options(&[]))
}

/// Both workers of the honest job, to their end: every value that they saw.
fn train(address: SocketAddr) -> Vec<Vec<f64>> {
    let work = |rank: u32| {
        let job = join(address, "good", GOOD, rank).unwrap();
        let tensor = declare(&job, "w", ELEMENTS, Bsp);
        let mut seen = Vec::new();
        for clock in 0..ITERATIONS {
            let value = f64::from(rank + 1) / (clock + 3) as f64;
            tensor.push(Some(&common::bytes(&[value; ELEMENTS as usize])), NO_SETTINGS, false, None).unwrap();
            seen.extend(pull(&tensor, None).unwrap().1);
            job.clock().unwrap();
        }
        job.close(None);
        seen
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|rank| scope.spawn(move || work(rank))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

/// Runs the honest job while `hostile` goes on and on, and compares it with a run alone.
fn beside(hostile: impl Fn(SocketAddr) + Sync) {
    let (first, address) = service();
    let alone = train(address);
    drop(first);
    let (service, address) = service();
    let done = AtomicBool::new(false);
    let together = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                hostile(address);
            }
        });
        let together = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| train(address)));
        done.store(true, Ordering::Relaxed);
        together
    });
    drop(service);
    assert!(together.unwrap() == alone, "the honest job saw other values");
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn say(stream: &mut TcpStream, message: &[u8]) -> bool {
    stream.write_all(&record(message)).is_ok()
}

/// One record; `None` when the other end has closed.
fn hear(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut records = Records::new(MAX_MESSAGE_BYTES);
    loop {
        if let Some(message) = records.take().ok()? {
            return Some(message.to_vec());
        }
        let mut bytes = vec![0; records.missing()];
        stream.read_exact(&mut bytes).ok()?;
        records.feed(&bytes);
    }
}

/// A connection that has proved to belong to the job.
fn enter(address: SocketAddr, job: &str, secret: Secret, purpose: Purpose) -> Result<TcpStream, Refusal> {
    let mut stream = dial(address);
    stream.write_all(&[PLAIN]).unwrap();
    let (handshake, hello) = WorkerHandshake::start(job, secret, purpose, [5; 32]).unwrap();
    say(&mut stream, &hello);
    let proof = handshake.answer(&hear(&mut stream).unwrap(), &[0; 32])?;
    say(&mut stream, &proof);
    WorkerHandshake::finish(&hear(&mut stream).unwrap())?;
    Ok(stream)
}

/// A worker of the other job that has said hello; its control connection.
fn evil_worker(address: SocketAddr) -> TcpStream {
    let mut control = enter(address, "evil", EVIL, Purpose::Control).unwrap();
    let hello = Ask::Hello { version: PROTOCOL_VERSION, session: SESSION, rank: 0, size: 2 };
    say(&mut control, &encode(&Request { id: 1, settled: 1, body: hello }).unwrap());
    let reply: Reply = decode(&hear(&mut control).unwrap()).unwrap();
    assert!(matches!(reply.body, Answer::Welcome(_)), "{reply:?}");
    control
}

fn evil_shard(address: SocketAddr) -> TcpStream {
    enter(address, "evil", EVIL, Purpose::Shard { rank: 0, session: SESSION, shard: 0 }).unwrap()
}

fn frame(job: &str, sequence: u64, submission: Submission) -> Header {
    Header::bare(job_number(job), sequence, Body::Submission { submission, wanted: true })
}

/// Whether the server hangs up rather than go on.
fn hangs_up(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).is_ok() || rest.len() < 1 << 20
}

#[test]
fn strangers_that_are_silent_slow_or_talk_garbage_disturb_nobody() {
    beside(|address| {
        let mut silent: Vec<TcpStream> = (0..50).filter_map(|_| TcpStream::connect(address).ok()).collect();
        for (index, stream) in silent.iter_mut().enumerate() {
            let _ = match index % 5 {
                0 => stream.write_all(&[0x16, 3, 1]),             // TLS, cut short
                1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"), // no protocol of ours
                2 => stream.write_all(&[PLAIN, 0xff, 0xff, 0xff, 0xff, 0]), // a record without end
                3 => stream.write_all(&[PLAIN, 40]),              // and then nothing
                _ => Ok(()),
            };
        }
    });
}

#[test]
fn thousands_of_half_open_connections_keep_nobody_out() {
    raise_descriptor_limit();
    let (_service, address) = service();
    let alone = train(address);
    let (_service, address) = service();
    let half_open: Vec<TcpStream> = (0..3000).map_while(|_| TcpStream::connect(address).ok()).collect();
    assert!(half_open.len() > 1000, "only {} connections came about", half_open.len());
    assert!(train(address) == alone);
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[test]
fn a_wrong_token_and_another_jobs_name_are_refused_alike_while_the_job_goes_on() {
    beside(|address| {
        for (job, secret) in [("good", EVIL), ("evil", GOOD), ("nobody's", EVIL)] {
            assert_eq!(
                enter(address, job, secret, Purpose::Control).err(),
                Some(Refusal::Authentication),
                "{job}"
            );
        }
    });
}

#[test]
fn a_recorded_handshake_is_worthless_the_second_time() {
    let (_service, address) = service();
    let (handshake, hello) = WorkerHandshake::start("good", GOOD, Purpose::Control, [5; 32]).unwrap();
    let mut first = dial(address);
    first.write_all(&[PLAIN]).unwrap();
    say(&mut first, &hello);
    let proof = handshake.answer(&hear(&mut first).unwrap(), &[0; 32]).unwrap();
    say(&mut first, &proof);
    WorkerHandshake::finish(&hear(&mut first).unwrap()).unwrap();
    let mut again = dial(address);
    again.write_all(&[PLAIN]).unwrap();
    say(&mut again, &hello);
    hear(&mut again).unwrap();
    say(&mut again, &proof);
    assert_eq!(WorkerHandshake::finish(&hear(&mut again).unwrap()), Err(Refusal::Authentication));
    assert!(hello.len() < MAX_HANDSHAKE_BYTES);
}

/// Waits until a job has ended.
fn how_it_ended(service: &Service, job: &str) -> Result<(), penstock_proto::error::JobFailure> {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        let status = service.status().into_iter().find(|status| status.name == job);
        if let Some(ended) = status.and_then(|status| status.ended) {
            return ended;
        }
        std::thread::yield_now();
    }
    panic!("the job {job} goes on");
}

#[test]
fn frames_of_a_hostile_job_reach_no_other_and_end_its_worker() {
    let push = Submission::Push { tensor: 0, first: 0, count: 1, stamp: 0, settings: NO_SETTINGS };
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("another job's frame", frame("good", 1, push).encode().to_vec()),
        ("a tensor that was not declared", frame("evil", 1, push).encode().to_vec()),
        ("a frame out of order", frame("evil", 7, Submission::Clock { clock: 1 }).encode().to_vec()),
        ("a clock beyond any", frame("evil", 1, Submission::Clock { clock: u64::MAX }).encode().to_vec()),
        (
            "a payload for nothing",
            frame("evil", 1, Submission::Clock { clock: 1 }).with_payload(b"x").encode().to_vec(),
        ),
        (
            "a shard's frame",
            Header::bare(job_number("evil"), 1, Body::Notice(Notice::Taken)).encode().to_vec(),
        ),
    ];
    for (what, bytes) in bad {
        let (service, address) = service();
        let _control = evil_worker(address);
        let mut shard = evil_shard(address);
        let _ = shard.write_all(&bytes);
        assert!(hangs_up(shard), "{what}");
        // The hostile worker's own job ends, with its name on it; the other does not notice.
        let failed = how_it_ended(&service, "evil").unwrap_err().to_string();
        assert!(
            failed.contains("worker 0 was lost") && failed.contains("broke the protocol"),
            "{what}: {failed}"
        );
        train(address);
        drop(service);
    }
}

#[test]
fn a_connection_with_another_session_is_not_the_workers() {
    let (_service, address) = service();
    let _control = evil_worker(address);
    let purpose = Purpose::Shard { rank: 0, session: [8; 16], shard: 0 };
    assert!(hangs_up(enter(address, "evil", EVIL, purpose).unwrap()));
}

#[test]
fn a_worker_that_never_reads_what_it_is_sent_holds_up_nobody_else() {
    let (_service, address) = service();
    let honest = train(address);
    let (_service, address) = service();
    let _control = evil_worker(address);
    let mut shard = evil_shard(address);
    // It asks, and asks, and never takes an answer: what is owed to it is not kept as bytes.
    shard.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut sequence = 0;
    while sequence < 20_000 {
        sequence += 1;
        if shard.write_all(&frame("evil", sequence, Submission::Clock { clock: sequence }).encode()).is_err()
        {
            break;
        }
    }
    assert!(train(address) == honest);
}
