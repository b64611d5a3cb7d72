//! A rendezvous over TCP: a process that knows the secret gets everyone's messages; any other gets nothing and harms none.

use penstock_join::exchange::{GONE, MESSAGE_LIMIT, Verdict, failed, given};
use penstock_join::patience::{Interrupted, Patience};
use penstock_join::tcp::proof::{CLAIM_BYTES, Claim, Conversation, HELLO_BYTES, MAGIC, Side, WELCOME};
use penstock_join::tcp::{
    Cause, Collected, Party, Rendezvous, RendezvousAddress, RendezvousError, Root, RoundError, STRANGERS,
    Visitor,
};
use penstock_proto::message::Secret;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

/// Time for what succeeds.
const LONG: Duration = Duration::from_secs(20);
const SECRET: Secret = Secret([7; 32]);

fn never() -> bool {
    false
}

fn patience(longest: Duration) -> Patience<'static> {
    Patience::new(longest, &never)
}

fn party(rank: u32, size: u32) -> Party {
    Party { rank, size, secret: SECRET, job: "job".to_owned() }
}

fn here(port: u16) -> RendezvousAddress {
    RendezvousAddress { host: "127.0.0.1".to_owned(), port }
}

fn root(size: u32) -> (Root, RendezvousAddress) {
    let root = Root::listen(party(0, size), &here(0), &patience(LONG)).expect("there is a port");
    let at = here(root.port());
    (root, at)
}

/// A round of rank 0, whose verdict all are told.
fn round(root: &mut Root, own: &[u8]) -> Collected {
    let found = root.collect(own, &patience(LONG)).expect("nobody interrupts");
    root.announce(&Verdict::over(&found.came).spell(), &patience(LONG)).expect("nobody interrupts");
    found
}

/// A round of another, in a thread of its own.
fn coming(
    party: Party,
    at: &RendezvousAddress,
    message: &[u8],
) -> JoinHandle<Result<Verdict, RendezvousError>> {
    let (mut visitor, message) = (Visitor::new(party.clone(), at.clone()), given(message));
    spawn(move || {
        visitor.deliver(&message, &patience(LONG))?;
        let verdict = visitor.await_verdict(&patience(LONG))?;
        Ok(Verdict::read(&verdict, party.size).expect("it is one"))
    })
}

#[test]
fn everyone_gets_the_messages_of_all_in_rank_order_round_after_round() {
    for size in [2, 3, 9] {
        let (mut root, at) = root(size);
        let others = (1..size).map(|rank| {
            let mut visitor = Visitor::new(party(rank, size), at.clone());
            spawn(move || {
                for round in 0..3 {
                    visitor.deliver(&given(&[round, rank as u8]), &patience(LONG)).expect("rank 0 is there");
                    let verdict = visitor.await_verdict(&patience(LONG)).expect("rank 0 is there");
                    let all = (0..size).map(|rank| vec![round, rank as u8]).collect();
                    assert_eq!(Verdict::read(&verdict, size), Ok(Verdict::Given(all)));
                }
            })
        });
        let others: Vec<_> = others.collect();
        for number in 0..3 {
            assert!(round(&mut root, &given(&[number, 0])).missing.is_empty());
        }
        others.into_iter().for_each(|other| other.join().expect("it got all"));
    }
}

#[test]
fn messages_as_long_as_allowed_arrive_whole() {
    let (mut root, at) = root(4);
    let message = vec![b'x'; MESSAGE_LIMIT];
    let others: Vec<_> = (1..4).map(|rank| coming(party(rank, 4), &at, &message)).collect();
    round(&mut root, &given(&message));
    for other in others {
        assert_eq!(other.join().expect("it ends"), Ok(Verdict::Given(vec![message.clone(); 4])));
    }
}

#[test]
fn who_comes_before_rank_0_listens_waits_for_it() {
    let (first, at) = root(2);
    drop(first);
    let waiting = coming(party(1, 2), &at, b"b");
    std::thread::sleep(Duration::from_millis(100));
    let mut root = Root::listen(party(0, 2), &at, &patience(LONG)).expect("the port is free again");
    round(&mut root, &given(b"a"));
    assert_eq!(waiting.join().expect("it ends"), Ok(Verdict::Given(vec![b"a".to_vec(), b"b".to_vec()])));
}

#[test]
fn who_does_not_come_is_named() {
    let (mut root, at) = root(4);
    let here = coming(party(2, 4), &at, b"");
    let found = root.collect(&given(b""), &patience(Duration::from_secs(2))).expect("nobody interrupts");
    assert_eq!(found.missing, [1, 3]);
    drop(root);
    assert_eq!(here.join().expect("it ends"), Err(RendezvousError::Left { at: at.clone() }));
    let late = Visitor::new(party(1, 4), at.clone()).deliver(b"+", &patience(Duration::from_millis(200)));
    let cause = refused_at(&at);
    assert_eq!(late, Err(RendezvousError::Late { at, cause }));
}

fn refused_at(at: &RendezvousAddress) -> Cause {
    let address = at.to_string().parse().expect("it is one");
    Cause::Unreachable { address, reason: "connection refused".to_owned() }
}

/// Why rank 1 of 2 did not get there in a short time.
fn late(at: &RendezvousAddress) -> Cause {
    let short = patience(Duration::from_millis(300));
    match Visitor::new(party(1, 2), at.clone()).deliver(b"+", &short) {
        Err(RendezvousError::Late { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

// Each was told only that it had waited for rank 0.
#[test]
fn who_does_not_reach_rank_0_is_told_what_became_of_its_attempts() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let at = here(listener.local_addr().expect("it listens").port());
    // The kernel takes the connection, and nothing answers.
    assert_eq!(late(&at), Cause::Silent);
    let ends = spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut first = [0];
            if stream.read(&mut first).is_ok_and(|count| count == 1 && first == *b"!") {
                return;
            }
        }
    });
    assert_eq!(late(&at), Cause::Ended);
    let mut end = TcpStream::connect(("127.0.0.1", at.port)).expect("it listens");
    end.write_all(b"!").expect("it listens");
    ends.join().expect("it ends");
    assert_eq!(late(&at), refused_at(&at));
    let error = RendezvousError::Late { cause: refused_at(&at), at: at.clone() };
    let expected = format!("rank 0 was not reached at {at}: connection refused at {at}");
    assert_eq!(error.to_string(), expected);
    let nowhere = RendezvousAddress { host: "no-such-host.invalid".to_owned(), port: 7 };
    let cause = late(&nowhere);
    assert!(matches!(&cause, Cause::NoAddress { .. } | Cause::Unresolved { .. }), "{cause:?}");
}

// It waited for the whole deadline, and was told then that rank 0 had not come.
#[test]
fn a_second_process_of_the_same_rank_is_told_so_and_does_not_wait_for_its_deadline() {
    let (mut root, at) = root(3);
    let going = spawn(move || round(&mut root, &given(b"a")));
    let first = coming(party(1, 3), &at, b"first");
    let (began, second) = (Instant::now(), Visitor::new(party(1, 3), at.clone()));
    std::thread::sleep(Duration::from_millis(200));
    let refused = { second }.deliver(b"+second", &patience(Duration::from_secs(60)));
    assert_eq!(refused, Err(RendezvousError::Taken { at: at.clone(), rank: 1 }));
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(coming(party(2, 3), &at, b"c").join().expect("it ends").is_ok());
    assert!(first.join().expect("it ends").is_ok());
    going.join().expect("it ends");
}

#[test]
fn one_that_cannot_go_on_ends_the_wait_of_all() {
    let (mut root, at) = root(5); // two of which never come: none has to wait for them any more
    let waiting = coming(party(1, 5), &at, b"");
    let mut fails = Visitor::new(party(3, 5), at);
    let fails = spawn(move || fails.deliver(&failed("no memory"), &patience(LONG)).map(|()| fails));
    assert!(round(&mut root, &given(b"")).missing.is_empty());
    let text = "rank 3 could not join: no memory".to_owned();
    assert_eq!(waiting.join().expect("it ends"), Ok(Verdict::Failed { text }));
    assert!(fails.join().expect("it ends").is_ok());
}

#[test]
fn one_that_goes_away_between_rounds_is_noticed_at_once() {
    let (mut root, at) = root(3);
    let others: Vec<_> = (1..3).map(|rank| coming(party(rank, 3), &at, b"")).collect();
    round(&mut root, &given(b""));
    others.into_iter().for_each(|other| drop(other.join()));
    let found = root.collect(&given(b""), &patience(LONG)).expect("nobody interrupts");
    assert!(found.missing.is_empty() && found.came.values().any(|one| one == GONE));
}

#[test]
fn one_of_another_job_is_refused_at_once_and_the_job_goes_on() {
    let (mut root, at) = root(2);
    let going = spawn(move || round(&mut root, &given(b"a")));
    let different = [
        Party { secret: Secret([8; 32]), ..party(1, 2) },
        Party { job: "another".to_owned(), ..party(1, 2) },
    ];
    for party in different {
        let refused = Visitor::new(party, at.clone()).deliver(b"+stolen", &patience(LONG));
        assert_eq!(refused, Err(RendezvousError::OtherSecret { at: at.clone(), rank: 1 }));
    }
    let refused = Visitor::new(party(1, 3), at.clone()).deliver(b"+stolen", &patience(LONG));
    assert_eq!(refused, Err(RendezvousError::OtherSize { at: at.clone(), expected: 2, rank: 1, size: 3 }));
    let all = Verdict::Given(vec![b"a".to_vec(), b"b".to_vec()]);
    assert_eq!(coming(party(1, 2), &at, b"b").join().expect("it ends"), Ok(all));
    assert_eq!(going.join().expect("it ends").came.len(), 2);
}

// Rank 0 waited for it until its deadline, and then knew nothing but that it had not come.
#[test]
fn rank_0_says_who_came_with_another_secret_where_somebody_is_missing() {
    let at = RendezvousAddress { host: "127.0.0.1".to_owned(), port: 0 };
    for (secret, job) in [(Secret([8; 32]), "job"), (Secret([7; 32]), "another")] {
        let mut end = Rendezvous::open(party(0, 2), &at, &patience(LONG)).expect("there is a port");
        let Rendezvous::Root(root) = &end else { panic!("rank 0's end") };
        let other = Party { secret, job: job.to_owned(), ..party(1, 2) };
        let mut visitor = Visitor::new(other, here(root.port()));
        let other = spawn(move || visitor.deliver(&given(b"b"), &patience(LONG)));
        let late = end.gather(b"a", 2, &patience(Duration::from_secs(1))).expect_err("nobody else came");
        assert!(matches!(other.join().expect("it ends"), Err(RendezvousError::OtherSecret { .. })));
        let RoundError::Late { missing, cause, .. } = late else { panic!("{late:?}") };
        assert_eq!(missing, [1]);
        let cause = cause.expect("it knows one").to_string();
        assert_eq!(cause, "a process from 127.0.0.1 used a different secret or job name");
    }
}

#[test]
fn a_second_process_of_the_same_rank_takes_nothing_from_the_first() {
    let (mut root, at) = root(3);
    let going = spawn(move || round(&mut root, &given(b"a")));
    let mut first = Visitor::new(party(1, 3), at.clone());
    first.deliver(b"+first", &patience(LONG)).expect("rank 0 is there");
    let second =
        Visitor::new(party(1, 3), at.clone()).deliver(b"+second", &patience(Duration::from_millis(300)));
    let cause = Cause::Taken { rank: 1 };
    assert_eq!(second, Err(RendezvousError::Late { at: at.clone(), cause }));
    let third = coming(party(2, 3), &at, b"c").join().expect("it ends");
    assert_eq!(third, Ok(Verdict::Given(vec![b"a".to_vec(), b"first".to_vec(), b"c".to_vec()])));
    assert!(first.await_verdict(&patience(LONG)).is_ok());
    going.join().expect("it ends");
}

/// A process that has proved itself as rank 1 of 2, and has said nothing yet.
fn silent_process(at: &RendezvousAddress) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", at.port)).expect("somebody listens");
    let mut theirs = [0; 32];
    stream.write_all(&[&MAGIC[..], &[5; 32]].concat()).expect("it listens");
    stream.read_exact(&mut theirs).expect("rank 0 answers");
    let claim = Claim { rank: 1, size: 2 };
    let talk = Conversation::new(Side::Worker, &SECRET, "job", [[5; 32], theirs]);
    stream.write_all(&[&claim.spell()[..], &talk.proof(claim)].concat()).expect("it listens");
    let mut answer = [0];
    stream.read_exact(&mut answer).expect("rank 0 answers");
    assert_eq!(answer, [WELCOME]);
    stream
}

// It held the rank for ever, and the process that came next was told that its rank was taken.
#[test]
fn one_that_proves_itself_and_says_nothing_leaves_its_rank_to_the_next() {
    let (mut root, at) = root(2);
    let going = spawn(move || round(&mut root, &given(b"a")));
    let _silent = silent_process(&at);
    let all = Verdict::Given(vec![b"a".to_vec(), b"b".to_vec()]);
    assert_eq!(coming(party(1, 2), &at, b"b").join().expect("it ends"), Ok(all));
    going.join().expect("it ends");
}

// It was told that rank 0 was not there.
#[test]
fn who_waits_longer_than_rank_0_takes_is_told_that_rank_0_is_there() {
    let (mut root, at) = root(3);
    let going = spawn(move || root.collect(b"+", &patience(LONG)));
    let mut visitor = Visitor::new(party(1, 3), at.clone());
    visitor.deliver(b"+", &patience(LONG)).expect("rank 0 is there");
    let undecided = visitor.await_verdict(&patience(Duration::ZERO));
    assert_eq!(undecided, Err(RendezvousError::Undecided { at: at.clone() }));
    // And the last of the three, for which rank 0 waited, ends its wait.
    assert!(coming(party(2, 3), &at, b"").join().expect("it ends").is_err());
    assert!(going.join().expect("it ends").is_ok());
}

#[test]
fn rank_0_that_is_gone_after_the_first_round_has_left() {
    let (mut root, at) = root(2);
    let mut visitor = Visitor::new(party(1, 2), at.clone());
    let going = spawn(move || drop(round(&mut root, &given(b"a"))));
    visitor.deliver(b"+b", &patience(LONG)).expect("rank 0 is there");
    visitor.await_verdict(&patience(LONG)).expect("rank 0 is there");
    going.join().expect("it ends");
    // The first is taken by the kernel, which is told then that nothing is there.
    let sent = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        visitor.deliver(b"+", &patience(LONG)).err()
    });
    assert_eq!(sent, Some(RendezvousError::Left { at }));
}

// Rank 0 itself returned it as it came.
#[test]
fn rank_0_shows_a_reason_clean_and_short() {
    let (first, at) = root(2);
    let mut root = Rendezvous::Root(Box::new(first));
    let raw = [b"-\x1b[2J".to_vec(), vec![b'x'; MESSAGE_LIMIT - 8]].concat();
    let fails = spawn(move || Visitor::new(party(1, 2), at).deliver(&raw, &patience(LONG)));
    let failed = root.gather(b"", 2, &patience(LONG));
    let Err(RoundError::Failed { text }) = failed else { panic!("{failed:?}") };
    assert!(text.len() <= 2000 && !text.contains(char::is_control), "{text}");
    assert_eq!(fails.join().expect("it ends"), Ok(()));
}

#[test]
fn more_processes_than_a_job_may_have_are_refused_before_they_meet() {
    let refused = RendezvousError::TooMany { size: 1025 };
    let root = Root::listen(party(0, 1025), &here(0), &patience(LONG));
    assert_eq!(root.map(drop), Err(refused.clone()));
    let visitor = Visitor::new(party(1, 1025), here(9)).deliver(b"+", &patience(LONG));
    assert_eq!(visitor, Err(refused));
    assert!(Root::listen(party(0, 1024), &here(0), &patience(LONG)).is_ok());
}

/// What others may say to a listener.
fn garbage() -> Vec<Vec<u8>> {
    let hello = [&MAGIC[..], &[0; HELLO_BYTES - MAGIC.len()]].concat();
    let mut noise = 1_u32;
    let noise = std::iter::repeat_with(move || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 24) as u8
    });
    vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[0; 500]].concat(),
        MAGIC.to_vec(),
        hello.clone(),
        [&hello[..], &[0; CLAIM_BYTES]].concat(),
        [&MAGIC[..], &[0; 1 << 16]].concat(),
        noise.take(1 << 16).collect(),
    ]
}

#[test]
fn strangers_get_nothing_and_harm_nobody() {
    for hangs_up in [true, false] {
        let (mut root, at) = root(2);
        let going = spawn(move || round(&mut root, &given(b"a")));
        let strangers = garbage().into_iter().map(|garbage| {
            let mut stranger = TcpStream::connect(("127.0.0.1", at.port)).expect("somebody listens");
            // It may be dropped before it has said all.
            let _ = stranger.write_all(&garbage);
            if hangs_up {
                let _ = stranger.shutdown(Shutdown::Both);
            }
            stranger
        });
        let _open: Vec<TcpStream> = strangers.collect();
        let all = Verdict::Given(vec![b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(coming(party(1, 2), &at, b"b").join().expect("it ends"), Ok(all));
        going.join().expect("it ends");
    }
}

#[test]
fn more_silent_connections_than_there_are_places_keep_nobody_out() {
    let (mut root, at) = root(2);
    let going = spawn(move || round(&mut root, &given(b"a")));
    let connect = || TcpStream::connect(("127.0.0.1", at.port)).expect("somebody listens");
    let silent: Vec<TcpStream> = (0..STRANGERS + 50).map(|_| connect()).collect();
    let others = coming(party(1, 2), &at, b"b");
    // The oldest was dropped for the newest: no more are held than there are places.
    silent[0].set_read_timeout(Some(LONG)).expect("it is a time");
    assert_eq!((&silent[0]).read(&mut [0]).ok(), Some(0));
    assert!(others.join().expect("it ends").is_ok());
    going.join().expect("it ends");
}

/// A connection that comes from this address of the loopback network.
fn from(host: [u8; 4], at: &RendezvousAddress) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("there is one");
    bind(&socket, &SocketAddr::from((host, 0))).expect("it is this host's");
    connect(&socket, &SocketAddr::from(([127, 0, 0, 1], at.port))).expect("somebody listens");
    socket.into()
}

// The first to come went, wherever the newest came from.
#[test]
fn one_host_cannot_take_the_places_of_another() {
    let (mut root, at) = root(2);
    let going = spawn(move || round(&mut root, &given(b"a")));
    let mut slow = from([127, 0, 0, 2], &at);
    slow.write_all(&MAGIC).expect("somebody listens");
    let silent: Vec<TcpStream> = (0..STRANGERS + 50).map(|_| from([127, 0, 0, 3], &at)).collect();
    silent[0].set_read_timeout(Some(LONG)).expect("it is a time");
    assert_eq!((&silent[0]).read(&mut [0]).ok(), Some(0));
    slow.write_all(&[0; HELLO_BYTES - MAGIC.len()]).expect("it was let in");
    slow.read_exact(&mut [0; 32]).expect("rank 0 answers");
    assert!(coming(party(1, 2), &at, b"b").join().expect("it ends").is_ok());
    going.join().expect("it ends");
}

#[test]
fn a_worker_does_not_believe_a_rank_0_that_does_not_know_the_secret() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let at = here(listener.local_addr().expect("it listens").port());
    let pretending = spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        stream.read_exact(&mut [0; HELLO_BYTES]).expect("it greets");
        stream.write_all(&[3; 32]).expect("it listens");
        stream.read_exact(&mut [0; CLAIM_BYTES]).expect("it says who it is");
        stream.write_all(&[&[WELCOME][..], &[4; 32]].concat()).expect("it listens");
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    });
    let refused = Visitor::new(party(1, 2), at.clone()).deliver(b"+mine", &patience(LONG));
    assert_eq!(refused, Err(RendezvousError::OtherSecret { at, rank: 1 }));
    assert_eq!(pretending.join().expect("it ends"), b"");
}

#[test]
fn a_taken_port_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = listener.local_addr().expect("it listens").port();
    let refused = Root::listen(party(0, 2), &here(port), &patience(LONG)).expect_err("it is taken");
    assert_eq!(refused, RendezvousError::InUse { port });
}

#[test]
fn a_wait_at_a_rendezvous_ends_when_the_caller_is_interrupted() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let stop = || STOP.load(Ordering::Relaxed);
    let began = Instant::now();
    let (mut root, _) = root(2);
    spawn(|| {
        std::thread::sleep(Duration::from_millis(100));
        STOP.store(true, Ordering::Relaxed);
    });
    let interrupted = Err(RendezvousError::Interrupted(Interrupted));
    assert_eq!(root.collect(b"+", &Patience::new(LONG, &stop)).map(drop), interrupted);
    // Nothing answers there: rank 0 of another rendezvous accepts only while it collects.
    let (_silent, at) = self::root(2);
    let visitor = &mut Visitor::new(party(1, 2), at);
    assert_eq!(visitor.deliver(b"+", &Patience::new(LONG, &stop)), interrupted);
    assert!(began.elapsed() < LONG);
}
