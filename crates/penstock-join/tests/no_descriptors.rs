//! Rank 0 without a descriptor to spare. A test file of its own, because the limit on descriptors belongs to the process.

use penstock_join::exchange::{Verdict, given};
use penstock_join::patience::Patience;
use penstock_join::tcp::{Party, Place, Root, Visitor};
use penstock_proto::message::Secret;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
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

/// Rank 0 and another meet while the process can open only what the other needs to come; returns rank 0's processor time. `more`: the
/// system would let it have others. `before_others`: how long rank 0 waits for one.
fn meet(more: bool, before_others: Duration) -> Duration {
    let place = |port| Place { host: "127.0.0.1".to_owned(), port };
    let mut root = Root::listen(party(0), &place(0), &Patience::new(LONG, &never)).expect("there is a port");
    let place = place(root.port());
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
        let mut visitor = Visitor::new(party(1), place);
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

// Without one it took a whole core. One test, because the second half takes from the process what the first needs.
#[test]
fn rank_0_takes_the_descriptors_that_it_may_have_and_without_one_waits_and_goes_on() {
    meet(true, Duration::ZERO);
    assert_ne!(getrlimit(Resource::Nofile).current, Some(64));
    let used = meet(false, Duration::from_secs(1));
    assert!(used < Duration::from_millis(200), "{used:?}");
}
