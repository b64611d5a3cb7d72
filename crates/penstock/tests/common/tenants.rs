//! Two jobs behind one acceptor: an honest one, and one whose malicious worker speaks the protocol by hand.

use super::{NO_SETTINGS, bytes, declare, options, pull};
use penstock::service::{JobConfig, Service};
use penstock::worker::{Error, Job, Membership};
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::Refusal;
use penstock_proto::frame::{Body, Header};
use penstock_proto::handshake::{Purpose, WorkerHandshake};
use penstock_proto::job::job_number;
use penstock_proto::message::{
    Answer, Ask, Joining, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Secret, decode, encode,
};
use penstock_proto::peer::PeerId;
use penstock_proto::record::{Records, record};
use penstock_proto::submission::Submission;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) const GOOD: Secret = Secret([1; 32]);
pub(crate) const EVIL: Secret = Secret([2; 32]);
pub(crate) const SESSION: [u8; 16] = [9; 16];
/// First byte of a connection without TLS.
pub(crate) const PLAIN: u8 = b'P';
pub(crate) const ITERATIONS: u64 = 40;
pub(crate) const ELEMENTS: u64 = 3 * 512 + 7;

/// An acceptor with two jobs behind it, of two workers each.
pub(crate) fn service() -> (Service, SocketAddr) {
    service_with(256 << 20)
}

/// The same; each job may take so many bytes.
pub(crate) fn service_with(memory: u64) -> (Service, SocketAddr) {
    service_of(memory, &[])
}

/// The same with more options.
pub(crate) fn service_of(memory: u64, more: &[(&str, &str)]) -> (Service, SocketAddr) {
    let service = Service::start(&["127.0.0.1:0".parse().unwrap()], options(&[])).unwrap();
    for (name, secret) in [("good", GOOD), ("evil", EVIL)] {
        let given = [("chunk_bytes", "4KiB"), ("shards", "2"), ("lease", "5"), ("pin", "off")];
        let all = given.iter().chain(more);
        let options = all.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let (name, share) = (name.to_owned(), 1.0);
        service
            .create(JobConfig { name, secret, index: 0, servers: 1, workers: 2, options, memory, share })
            .unwrap();
    }
    let address = service.addresses()[0];
    (service, address)
}

pub(crate) fn join(address: SocketAddr, job: &str, secret: Secret, rank: u32) -> Result<Job, Error> {
    let servers = vec![format!("tcp://{address}").parse().unwrap()];
    let membership = Membership { servers, job: job.to_owned(), secret, rank, size: 2 };
    Job::connect(&membership, options(&[]))
}

/// Both workers of the honest job, to their end: every value that they saw.
pub(crate) fn train(address: SocketAddr) -> Vec<Vec<f64>> {
    train_for(address, ITERATIONS)
}

/// The same for so many iterations.
pub(crate) fn train_for(address: SocketAddr, iterations: u64) -> Vec<Vec<f64>> {
    let work = |rank: u32| {
        let job = join(address, "good", GOOD, rank).unwrap();
        let tensor = declare(&job, "w", ELEMENTS, Bsp);
        let mut seen = Vec::new();
        for clock in 0..iterations {
            let value = f64::from(rank + 1) / (clock + 3) as f64;
            tensor.push(Some(&bytes(&[value; ELEMENTS as usize])), NO_SETTINGS, false, None).unwrap();
            seen.extend(pull(&tensor, None).unwrap().1);
            job.clock().unwrap();
        }
        job.leave(None).unwrap();
        seen
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|rank| scope.spawn(move || work(rank))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

pub(crate) fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

pub(crate) fn say(stream: &mut TcpStream, message: &[u8]) -> bool {
    stream.write_all(&record(message)).is_ok()
}

/// One record; `None` when the other end has closed.
pub(crate) fn hear(stream: &mut TcpStream) -> Option<Vec<u8>> {
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
pub(crate) fn enter(
    address: SocketAddr,
    job: &str,
    secret: Secret,
    purpose: Purpose,
) -> Result<TcpStream, Refusal> {
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
pub(crate) fn evil_worker(address: SocketAddr) -> TcpStream {
    join_by_hand(address, "evil", EVIL)
}

/// A worker of either job that has said hello; its control connection.
pub(crate) fn join_by_hand(address: SocketAddr, job: &str, secret: Secret) -> TcpStream {
    let mut control = enter(address, job, secret, Purpose::Control).unwrap();
    let hello = Ask::Hello {
        version: PROTOCOL_VERSION,
        session: SESSION,
        peer: PeerId::worker(0),
        size: 2,
        overlay: Joining::default(),
    };
    say(&mut control, &encode(&Request { id: 1, settled: 1, open: Vec::new(), body: hello }).unwrap());
    let reply: Reply = decode(&hear(&mut control).unwrap()).unwrap();
    assert!(matches!(reply.body, Answer::Welcome(_)), "{reply:?}");
    control
}

pub(crate) fn evil_shard(address: SocketAddr) -> TcpStream {
    enter(address, "evil", EVIL, Purpose::Shard { peer: PeerId::worker(0), session: SESSION, shard: 0 })
        .unwrap()
}

pub(crate) fn frame(job: &str, sequence: u64, submission: Submission) -> Header {
    Header::bare(job_number(job), sequence, Body::Submission { submission, wanted: true })
}

/// A worker that comes over the network; its control connection.
pub(crate) fn far(cluster: &super::Cluster, server: usize, rank: u32) -> TcpStream {
    let (control, answer) = greet(cluster, server, rank);
    assert!(matches!(answer, Answer::Welcome(_)), "{answer:?}");
    control
}

/// The same, whatever it is answered.
pub(crate) fn greet(cluster: &super::Cluster, server: usize, rank: u32) -> (TcpStream, Answer) {
    let address = cluster.servers[server].addresses()[0];
    let mut control = enter(address, "job", super::SECRET, Purpose::Control).unwrap();
    let (version, session, peer) = (PROTOCOL_VERSION, SESSION, PeerId::worker(rank));
    let hello = Ask::Hello { version, session, peer, size: cluster.workers, overlay: Joining::default() };
    say(&mut control, &encode(&Request { id: 1, settled: 1, open: Vec::new(), body: hello }).unwrap());
    let reply: Reply = decode(&hear(&mut control).unwrap()).unwrap();
    (control, reply.body)
}
