//! Another user of the host takes nothing: not the job's secret, nor a place in its job, whatever name it takes first.
//!
//! The user `nobody` here is a thread: the kernel keeps users by thread, and a socket's by the thread that listened or connected.

mod common;

use common::{Cluster, NO_SETTINGS, SECRET, Way, bytes, declare, options, pull, socket_path};
use penstock::worker::{Error, Job, Membership};
use penstock_fabric::socket::{Connection, Listener, own_user};
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::handshake::{
    Purpose, SOCKET_BINDING, ServerHandshake, Verdict, WorkerHandshake, verdict,
};
use penstock_proto::message::{Answer, MAX_MESSAGE_BYTES, Reply, Secret, decode};
use penstock_proto::peer::PeerId;
use penstock_proto::record::record;
use rustix::fs::Mode;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Uid;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;

/// A thread of another user does `work`; `false`, aloud, where this process may not make one.
#[expect(clippy::print_stderr, reason = "a skip is said aloud")]
fn as_nobody(work: impl FnOnce() + Send) -> bool {
    if own_user() != 0 {
        eprintln!("SKIPPED: only root can act as another user");
        return false;
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let nobody = Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            work();
        });
        other.join().unwrap();
    });
    true
}

fn membership(path: &Path) -> Membership {
    let (servers, job) = (vec![path.to_owned().into()], "job".to_owned());
    Membership { servers, job, secret: SECRET, rank: 0, size: 1 }
}

fn open_to_all(path: &Path, mode: u32) {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).unwrap();
}

/// A directory in which every user may make sockets.
fn public_directory() -> PathBuf {
    let path = socket_path().with_extension("public");
    std::fs::create_dir(&path).unwrap();
    open_to_all(&path, 0o777);
    path
}

/// All that comes until the other end hangs up.
fn all_from(connection: &Connection) -> Vec<u8> {
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    let mut all = Vec::new();
    while let Ok(length) = connection.receive(&mut buffer, RecvFlags::empty())
        && length > 0
    {
        all.extend_from_slice(&buffer[..length]);
    }
    all
}

fn accept(listener: &Listener) -> Connection {
    use rustix::event::{PollFd, PollFlags, poll};
    poll(&mut [PollFd::new(listener, PollFlags::IN)], None).unwrap();
    listener.accept().unwrap()
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_worker_says_nothing_at_all_to_a_socket_of_another_user() {
    let directory = public_directory();
    let path = directory.join("s");
    std::thread::scope(|scope| {
        // Root may connect to any socket, and waits until there is one.
        let worker =
            || (own_user() == 0).then(|| Job::connect(&membership(&path), options(&[])).unwrap_err());
        let worker = scope.spawn(worker);
        let came = as_nobody(|| {
            let listener = Listener::bind(&path).unwrap();
            assert_eq!(all_from(&accept(&listener)), Vec::<u8>::new());
        });
        let expected = Error::OtherUser { server: 0, expected: own_user(), got: NOBODY };
        assert_eq!(worker.join().unwrap(), came.then_some(expected));
    });
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn another_user_that_reaches_a_servers_socket_is_not_heard() {
    let cluster = Cluster::new(1, 1, &[]);
    // As if an administrator had been careless.
    open_to_all(&cluster.paths[0], 0o666);
    as_nobody(|| {
        let connection = Connection::connect(&cluster.paths[0]).unwrap();
        // It knows the secret, even.
        let (_, hello) = WorkerHandshake::start("job", SECRET, Purpose::Control, [1; 32]).unwrap();
        let _ = connection.send(&hello, &[], SendFlags::empty());
        assert_eq!(WorkerHandshake::finish(&all_from(&connection)), Err(Refusal::Authentication));
    });
    cluster.join(0).leave(None).unwrap();
}

/// What a worker says to a process of its own user that took the socket's name and answers with `answer`.
fn said_to(answer: impl Fn(&[u8]) -> Vec<u8>) -> (Vec<u8>, Error) {
    let path = socket_path();
    let listener = Listener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| Job::connect(&membership(&path), options(&[])).unwrap_err());
        let connection = accept(&listener);
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        let length = connection.receive(&mut buffer, RecvFlags::empty()).unwrap();
        let mut all = buffer[..length].to_vec();
        connection.send(&answer(&all), &[], SendFlags::empty()).unwrap();
        all.extend(all_from(&connection));
        (all, worker.join().unwrap())
    })
}

#[test]
fn who_does_not_know_the_secret_does_not_learn_it_from_a_worker() {
    let challenge = |secret: Secret| {
        move |hello: &[u8]| ServerHandshake::start(hello).unwrap().challenge(secret, [2; 32], SOCKET_BINDING)
    };
    let (said, error) = said_to(challenge(Secret([9; 32])));
    assert!(!contains(&said, &SECRET.0) && !contains(&said, &SECRET.0[..8]), "{said:?}");
    assert_eq!(error, Error::Refused(Refusal::Authentication));
    // Nor does a proof that was meant for the network help here.
    let (said, error) =
        said_to(|hello| ServerHandshake::start(hello).unwrap().challenge(SECRET, [2; 32], [0; 32]));
    assert!(!contains(&said, &SECRET.0), "{said:?}");
    assert_eq!(error, Error::Refused(Refusal::Authentication));
}

fn ended_by_another() -> Vec<u8> {
    let lost = JobFailure::WorkerLost { rank: 1, loss: Loss::Died };
    verdict(&Verdict::Refused(Refusal::Ended(lost)))
}

#[test]
fn who_does_not_know_the_secret_blames_nobody_for_the_end_of_a_job() {
    let (_, error) = said_to(|_| ended_by_another());
    assert_eq!(error, Error::Refused(Refusal::Authentication));
}

/// A server's place on the network, which a stranger can take, and give back.
struct Place {
    address: SocketAddr,
    shared: Arc<Taken>,
}

#[derive(Default)]
struct Taken {
    /// What the stranger answers to a hello, while it is there; and all connections.
    by: Mutex<(Option<Vec<u8>>, Vec<TcpStream>)>,
    told: AtomicU32,
}

impl Place {
    fn of(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Self { address: listener.local_addr().unwrap(), shared: Arc::default() };
        let shared = Arc::clone(&place.shared);
        std::thread::spawn(move || {
            for from in listener.incoming().flatten() {
                let mut by = shared.by.lock().unwrap();
                if let Some(words) = &by.0 {
                    let _ = tell(from, words);
                    shared.told.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let Ok(to) = TcpStream::connect(server) else { continue };
                for (mut from, mut to) in [(&from, &to), (&to, &from)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
                by.1.extend([from, to]);
            }
        });
        place
    }

    /// Every connection ends, and whoever comes is told this.
    fn take(&self, words: Vec<u8>) {
        let mut by = self.shared.by.lock().unwrap();
        by.0 = Some(words);
        for end in by.1.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    fn give_back(&self) {
        self.shared.by.lock().unwrap().0 = None;
    }

    /// Waits until the stranger has told so many more.
    fn wait_until_told(&self, more: u32) {
        let told = || self.shared.told.load(Ordering::Relaxed);
        let (before, since) = (told(), Instant::now());
        while told() < before + more {
            assert!(since.elapsed() < Duration::from_secs(20), "nobody came");
            std::thread::yield_now();
        }
    }
}

fn tell(mut whom: TcpStream, words: &[u8]) -> std::io::Result<()> {
    whom.set_read_timeout(Some(Duration::from_secs(1)))?;
    let _ = whom.read(&mut [0; 4096])?;
    whom.write_all(&record(words))?;
    let _ = whom.read_to_end(&mut Vec::new());
    Ok(())
}

// The worker believed it at once, and told the other servers so.
#[test]
fn a_stranger_in_the_place_of_a_server_ends_no_job_and_when_it_stays_the_server_counts_as_lost() {
    let joined = |lease| {
        let cluster = Cluster::over(Way::Tcp, 1, 2, &[("lease", lease)]);
        let place = Place::of(cluster.servers[1].addresses()[0]);
        let mut membership = cluster.membership(0);
        membership.servers[1] = format!("tcp://{}", place.address).parse().unwrap();
        let job = cluster.try_join(&membership).unwrap();
        let tensor = declare(&job, "w", 8 << 10, Bsp);
        (cluster, place, job, tensor)
    };
    let (_cluster, place, job, tensor) = joined("30");
    let no_proof = vec![9; 64];
    let refusals = [Refusal::Over, Refusal::TlsRequired, Refusal::NotAdmitted { peer: PeerId::worker(0) }];
    let refusals = refusals.map(|refusal| verdict(&Verdict::Refused(refusal)));
    for words in [ended_by_another(), no_proof].into_iter().chain(refusals) {
        place.take(words);
        place.wait_until_told(4);
        place.give_back();
        tensor.push(Some(&bytes(&[1.0; 8 << 10])), NO_SETTINGS, false, None).unwrap();
        job.clock().unwrap();
        pull(&tensor, None).unwrap();
        job.barrier(None).unwrap();
    }
    assert_eq!(pull(&tensor, None).unwrap().1, [5.0; 8 << 10]);
    job.leave(None).unwrap();
    let (_cluster, place, job, tensor) = joined("3");
    let since = Instant::now();
    place.take(ended_by_another());
    let error = job.barrier(None).and_then(|_| pull(&tensor, None).map(drop));
    let until = Instant::now() + Duration::from_secs(20);
    let error = error.and_then(|()| {
        while Instant::now() < until {
            job.check()?;
            std::thread::yield_now();
        }
        Ok(())
    });
    let Err(Error::Failed(JobFailure::ServerLost { server: 1, reason })) = error else { panic!("{error:?}") };
    assert!(reason.contains("no sign of life"), "{reason}");
    assert!(since.elapsed() >= Duration::from_millis(1500), "{:?}", since.elapsed());
}

/// What a local connection says and hears, one message each.
fn ask(connection: &Connection, words: &[u8]) -> Vec<u8> {
    connection.send(words, &[], SendFlags::empty()).unwrap();
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    let length = connection.receive(&mut buffer, RecvFlags::empty()).unwrap();
    buffer[..length].to_vec()
}

// The last of them kept every worker out, and the workers took the server for lost.
#[test]
fn connections_that_do_not_say_who_they_are_keep_no_worker_out() {
    let cluster = Cluster::new(1, 1, &[]);
    let connect = || Connection::connect(&cluster.paths[0]);
    let silent: Vec<Connection> = (0..300)
        .map(|_| {
            loop {
                // The queue may be full for a moment.
                match connect() {
                    Ok(connection) => break connection,
                    Err(_) => std::thread::yield_now(),
                }
            }
        })
        .collect();
    cluster.join(0).leave(None).unwrap();
    drop(silent);
}

/// A connection of a worker that has proved that it belongs to the job, and says no more.
fn proved(cluster: &Cluster) -> Connection {
    let connection = Connection::connect(&cluster.paths[0]).unwrap();
    let (handshake, hello) = WorkerHandshake::start("job", SECRET, Purpose::Control, [1; 32]).unwrap();
    let proof = handshake.answer(&ask(&connection, &hello), &SOCKET_BINDING).unwrap();
    WorkerHandshake::finish(&ask(&connection, &proof)).unwrap();
    connection
}

// It heard that the server had ended.
#[test]
fn a_worker_that_is_stopped_while_it_says_who_it_is_is_told_to_come_again() {
    let cluster = Cluster::new(1, 1, &[]);
    let late = Connection::connect(&cluster.paths[0]).unwrap();
    let (handshake, hello) = WorkerHandshake::start("job", SECRET, Purpose::Control, [1; 32]).unwrap();
    let challenge = ask(&late, &hello);
    let later = proved(&cluster);
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    let proof = handshake.answer(&challenge, &SOCKET_BINDING).unwrap();
    // The server listens for ten seconds. Then they go on, before they hear anything.
    let mut heard = |connection: &Connection, says: &[u8]| {
        connection.receive(&mut buffer, RecvFlags::PEEK).unwrap();
        let _ = connection.send(says, &[], SendFlags::empty());
        // Where that lay unread when the server hung up, a reset is told before what it said.
        let mut take = || connection.receive(&mut buffer, RecvFlags::empty());
        let length = take().or_else(|_| take()).unwrap();
        buffer[..length].to_vec()
    };
    assert!(matches!(WorkerHandshake::finish(&heard(&late, &proof)), Err(Refusal::Busy)));
    let refused = decode::<Reply>(&heard(&later, &[0])).unwrap();
    assert_eq!(refused.body, Answer::Refused(Refusal::Busy));
    cluster.join(0).leave(None).unwrap();
}

#[test]
fn who_has_proved_to_belong_to_the_job_and_says_no_more_keeps_no_worker_out_either() {
    let cluster = Cluster::new(1, 1, &[]);
    let proved = || proved(&cluster);
    let first = proved();
    let others: Vec<Connection> = (0..280).map(|_| proved()).collect();
    // The oldest was told to come again.
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    let length = first.receive(&mut buffer, RecvFlags::empty()).unwrap();
    let reply: Reply = decode(&buffer[..length]).unwrap();
    assert_eq!(reply.body, Answer::Refused(Refusal::Busy));
    cluster.join(0).leave(None).unwrap();
    drop(others);
}
