//! Another user of the host takes nothing: not the job's secret, nor a place in its job, whatever name it takes first.
//!
//! The user `nobody` here is a thread: the kernel keeps users by thread, and a socket's by the thread that listened or connected.

mod common;

use common::{Cluster, SECRET, options, socket_path};
use penstock::worker::{Error, Job, Membership};
use penstock_fabric::socket::{Connection, Listener, own_user};
use penstock_proto::error::Refusal;
use penstock_proto::handshake::{Purpose, SOCKET_BINDING, ServerHandshake, WorkerHandshake};
use penstock_proto::message::{Answer, MAX_MESSAGE_BYTES, Reply, Secret, decode};
use rustix::fs::Mode;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Uid;
use std::path::{Path, PathBuf};

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

#[test]
fn who_has_proved_to_belong_to_the_job_and_says_no_more_keeps_no_worker_out_either() {
    let cluster = Cluster::new(1, 1, &[]);
    let proved = || {
        let connection = Connection::connect(&cluster.paths[0]).unwrap();
        let (handshake, hello) = WorkerHandshake::start("job", SECRET, Purpose::Control, [1; 32]).unwrap();
        let proof = handshake.answer(&ask(&connection, &hello), &SOCKET_BINDING).unwrap();
        WorkerHandshake::finish(&ask(&connection, &proof)).unwrap();
        connection
    };
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
