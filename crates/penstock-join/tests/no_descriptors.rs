//! Rank 0 without a descriptor to spare. A test file of its own, because the limit on descriptors belongs to the process.

use penstock_join::exchange::{Verdict, given};
use penstock_join::patience::Patience;
use penstock_join::tcp::{Party, RendezvousAddress, RendezvousError, Root, Visitor};
use penstock_proto::message::Secret;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::net::TcpStream;
use std::thread::{sleep, spawn};
use std::time::Duration;

/// Time for what succeeds.
const LONG: Duration = Duration::from_secs(20);

fn never() -> bool {
    false
}

fn party(rank: u32) -> Party {
    Party { rank, size: 2, secret: Secret([7; 32]), job: "job".to_owned() }
}

/// What processor time the calling thread has used.
fn used() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it counts up")
}

/// Rank 0 and another meet while the process can open only what the other needs to come; returns rank 0's processor time.
/// `more`: the system would let it have others. `before_others`: how long rank 0 waits for one.
fn meet(more: bool, before_others: Duration) -> Duration {
    let at = |port| RendezvousAddress { host: "127.0.0.1".to_owned(), port };
    let mut root = Root::listen(party(0), &at(0), &Patience::new(LONG, &never)).expect("there is a port");
    let at = at(root.port());
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    if !more {
        limit.maximum = Some(64);
    }
    setrlimit(Resource::Nofile, limit).expect("it may be lowered");
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.pop().expect("there was one");

    let other = spawn(move || {
        let mut visitor = Visitor::new(party(1), at);
        visitor.deliver(&given(b"b"), &Patience::new(LONG, &never))?;
        visitor.await_verdict(&Patience::new(LONG, &never))
    });
    let root = spawn(move || {
        let patience = Patience::new(LONG, &never);
        let found = root.collect(&given(b"a"), &patience).expect("nobody interrupts");
        root.announce(&Verdict::over(&found.came).spell(), &patience).expect("nobody interrupts");
        used()
    });
    sleep(before_others);
    if !more {
        drop(taken);
    }
    let all = Verdict::Given(vec![b"a".to_vec(), b"b".to_vec()]);
    let told = other.join().expect("it ends").expect("rank 0 is there");
    assert_eq!(Verdict::read(&told, 2), Ok(all));
    root.join().expect("it ends")
}

/// Takes what descriptors there are; `spare` of them are given back.
fn take_all_but(spare: usize) -> Vec<File> {
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - spare);
    taken
}

// One host's silent connections kept all others out until they were dropped for their silence.
fn strangers_with_the_last_descriptors_go_for_whoever_comes() {
    let at = |port| RendezvousAddress { host: "127.0.0.1".to_owned(), port };
    let mut root = Root::listen(party(0), &at(0), &Patience::new(LONG, &never)).expect("there is a port");
    let at = at(root.port());
    let _silent: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(at.to_string()).expect("it listens")).collect();
    let other = spawn(move || {
        // Less than the time for which a stranger's silence is tolerated.
        Visitor::new(party(1), at).deliver(&given(b"b"), &Patience::new(Duration::from_secs(4), &never))
    });
    sleep(Duration::from_millis(200));
    let _taken = take_all_but(3);
    let found = root.collect(&given(b"a"), &Patience::new(LONG, &never)).expect("nobody interrupts");
    assert_eq!((found.came.len(), found.missing), (2, vec![]));
    assert_eq!(other.join().expect("it ends"), Ok(()));
}

// Rank 0 was blamed for one that never came, because a descriptor had been missing for another, which was let in.
fn what_kept_nobody_out_is_not_why_one_did_not_come() {
    let three = |rank| Party { size: 3, ..party(rank) };
    let at = RendezvousAddress { host: "127.0.0.1".to_owned(), port: 0 };
    let mut root = Root::listen(three(0), &at, &Patience::new(LONG, &never)).expect("there is a port");
    let at = RendezvousAddress { port: root.port(), ..at };
    let _silent: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(at.to_string()).expect("it listens")).collect();
    let other = spawn(move || Visitor::new(three(1), at).deliver(&given(b"b"), &Patience::new(LONG, &never)));
    sleep(Duration::from_millis(200));
    let _taken = take_all_but(3);
    let found = root.collect(&given(b"a"), &Patience::new(Duration::from_secs(2), &never));
    let found = found.expect("nobody interrupts");
    assert_eq!((found.came.len(), found.missing, found.no_room), (2, vec![2], None));
    assert_eq!(other.join().expect("it ends"), Ok(()));
}

// It was not said why rank 0 heard no process, or that a worker could not even try.
fn who_cannot_accept_or_connect_says_so() {
    let at = RendezvousAddress { host: "127.0.0.1".to_owned(), port: 0 };
    let mut root = Root::listen(party(0), &at, &Patience::new(LONG, &never)).expect("there is a port");
    let at = RendezvousAddress { port: root.port(), ..at };
    let _knocks = TcpStream::connect(at.to_string()).expect("it listens");
    let _taken = take_all_but(0);
    let found =
        root.collect(b"+", &Patience::new(Duration::from_millis(300), &never)).expect("nobody interrupts");
    assert_eq!((found.missing, found.no_room.as_deref()), (vec![1], Some("Too many open files")));
    let refused = Visitor::new(party(1), at).deliver(b"+", &Patience::new(LONG, &never));
    let reason = "Too many open files".to_owned();
    assert_eq!(refused, Err(RendezvousError::System { what: "open a socket", reason }));
}

// Without one it took a whole core. One test, because the second half takes from the process what the first needs.
#[test]
fn rank_0_takes_the_descriptors_that_it_may_have_and_without_one_waits_and_goes_on() {
    meet(true, Duration::ZERO);
    assert_ne!(getrlimit(Resource::Nofile).current, Some(64));
    let used = meet(false, Duration::from_secs(1));
    assert!(used < Duration::from_millis(200), "{used:?}");
    strangers_with_the_last_descriptors_go_for_whoever_comes();
    what_kept_nobody_out_is_not_why_one_did_not_come();
    who_cannot_accept_or_connect_says_so();
}
