//! What strangers and hostile workers do on a network connection, while an honest job trains behind the same acceptor. The honest
//! job's values are the same, bit by bit, as when it is alone.

mod common;

use common::tenants::{
    ELEMENTS, EVIL, GOOD, PLAIN, SESSION, dial, enter, evil_shard, evil_worker, frame, hear, join, say,
    service, train,
};
use common::{Cluster, NO_SETTINGS, SECRET, Way, at_once, bytes, declare, pull};
use penstock::service::{JobConfig, Service};
use penstock::worker::Error;
use penstock_proto::consistency::Consistency::{Bsp, Ssp};
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::frame::{Body, Header, Notice};
use penstock_proto::handshake::{MAX_HANDSHAKE_BYTES, Purpose, WorkerHandshake};
use penstock_proto::items::control::{PART_BYTES, TableAsk};
use penstock_proto::items::registry::Part;
use penstock_proto::items::spec::{Propagation, TableSpec};
use penstock_proto::items::wire::{Encoder, Message};
use penstock_proto::job::job_number;
use penstock_proto::message::{
    Answer, Ask, Departure, Joining, PROTOCOL_VERSION, Reply, Request, decode, encode,
};
use penstock_proto::peer::{PeerId, Role};
use penstock_proto::submission::Submission;
use rustix::net;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
                1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"), // not a protocol of ours
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

/// A connection from another address of this host.
fn dial_from(from: Ipv4Addr, address: SocketAddr) -> TcpStream {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddrV4::new(from, 0)).unwrap();
    net::connect(&socket, &address).unwrap();
    socket.into()
}

// The host with a handful of workers had more strangers than any of those, and lost them.
#[test]
fn silent_connections_from_thousands_of_addresses_do_not_push_out_workers_that_come() {
    raise_descriptor_limit();
    let (_service, address) = service();
    let came = || {
        // A connection that is refused now was let in when all before had been: the acceptor's queue is short.
        let mut last = dial(address);
        last.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        hangs_up(last);
    };
    let silent = |hosts: Range<u32>| -> Vec<TcpStream> {
        let from = |n: u32| {
            if n.is_multiple_of(60) {
                came();
            }
            dial_from(Ipv4Addr::from_bits(0x7f01_0000 + n), address)
        };
        let all = hosts.map(from).collect();
        came();
        all
    };
    let _before = silent(0..2040);
    let mut honest: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = dial(address);
            stream.write_all(&[PLAIN]).unwrap();
            let (handshake, hello) = WorkerHandshake::start("good", GOOD, Purpose::Control, [5; 32]).unwrap();
            say(&mut stream, &hello);
            let proof = handshake.answer(&hear(&mut stream).unwrap(), &[0; 32]).unwrap();
            (stream, proof)
        })
        .collect();
    let _after = silent(2040..2140);
    for (stream, proof) in &mut honest {
        say(stream, proof);
        let verdict = hear(stream).expect("it was pushed out");
        assert_eq!(WorkerHandshake::finish(&verdict), Ok(()));
    }
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
    at_once(bad, |(what, bytes)| {
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
    });
}

// What a worker is sent is charged to it when it declares: what others had declared it got for nothing.
#[test]
fn a_worker_that_fetches_what_only_others_have_declared_is_removed() {
    at_once([false, true], |state| {
        let (service, address) = service();
        let _control = evil_worker(address);
        let other = join(address, "evil", EVIL, 1).unwrap();
        let _declared = declare(&other, "w", ELEMENTS, Bsp);
        let mut shard = evil_shard(address);
        let fetch = Submission::Fetch { tensor: 0, state, version: 0, ticket: 1 };
        shard.write_all(&frame("evil", 1, fetch).encode()).unwrap();
        assert!(hangs_up(shard));
        let failed = how_it_ended(&service, "evil").unwrap_err().to_string();
        assert!(
            failed.contains("worker 0 was lost") && failed.contains("which it has not declared"),
            "state {state}: {failed}"
        );
    });
}

#[test]
fn a_connection_with_another_session_is_not_the_workers() {
    let (_service, address) = service();
    let _control = evil_worker(address);
    let purpose = Purpose::Shard { peer: PeerId::worker(0), session: [8; 16], shard: 0 };
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

/// Says that it is alive, and nothing else, as fast as it can until it is told to stop: 20 seconds at most, so that a test which
/// waits for the flood's end fails.
fn flood(mut shard: TcpStream, job: &str, stop: &AtomicBool) {
    let alive = Header::bare(job_number(job), 0, Body::Alive).encode().repeat(1 << 14);
    let until = Instant::now() + Duration::from_secs(20);
    shard.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    while !stop.load(Ordering::Relaxed) && Instant::now() < until {
        // A write that was cut short would break a frame in two: what is left of it goes first.
        let mut rest = &alive[..];
        while !rest.is_empty() && !stop.load(Ordering::Relaxed) && Instant::now() < until {
            match shard.write(rest) {
                Ok(bytes) => rest = &rest[bytes..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

// Such a frame counted as nothing: a shard read them as long as they came, and neither its orders nor its other workers.
#[test]
fn signs_of_life_without_end_keep_no_service_from_stopping() {
    let (first, address) = service();
    let alone = train(address);
    drop(first);
    let (service, address) = service();
    let _control = evil_worker(address);
    let shard = evil_shard(address);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| flood(shard, "evil", &stop));
        assert!(train(address) == alone);
        let since = Instant::now();
        assert!(service.delete("evil"));
        let told = since.elapsed();
        // Its name is free again at once.
        let job = JobConfig {
            name: "evil".to_owned(),
            secret: EVIL,
            index: 0,
            servers: 1,
            workers: 1,
            options: Vec::new(),
            memory: 16 << 20,
            share: 1.0,
        };
        service.create(job).unwrap();
        drop(service);
        let stopped = since.elapsed();
        stop.store(true, Ordering::Relaxed);
        // Well before the flood ends by itself, however busy the machine is.
        assert!(told < Duration::from_secs(10), "it took {told:?} to delete a job");
        assert!(stopped < Duration::from_secs(12), "it took {stopped:?} to stop");
    });
}

#[test]
fn who_says_without_end_that_it_lives_holds_up_no_other_worker_of_its_job_and_can_be_lost() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("on_worker_loss", "continue"), ("shards", "1")]);
    let address = cluster.servers[0].addresses()[0];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let job = cluster.join(0);
        let mut control = raw_worker(address, 1);
        let purpose = Purpose::Shard { peer: PeerId::worker(1), session: SESSION, shard: 0 };
        let shard = enter(address, "job", SECRET, purpose).unwrap();
        let tensor = declare(&job, "w", 8, Ssp(1 << 20));
        scope.spawn(|| flood(shard, "job", &stop));
        let since = Instant::now();
        let step = || {
            tensor.push(Some(&bytes(&[1.0; 8])), NO_SETTINGS, false, None).unwrap();
            job.clock().unwrap();
            pull(&tensor, None).unwrap()
        };
        (0..20).for_each(|_| _ = step());
        let how = Departure::Failed { what: "no".to_owned() };
        say(
            &mut control,
            &encode(&Request { id: 2, settled: 2, open: Vec::new(), body: Ask::Leave { how } }).unwrap(),
        );
        // Without the other nothing holds the clock back.
        while step().0 < 20 {}
        let took = since.elapsed();
        stop.store(true, Ordering::Relaxed);
        assert!(took < Duration::from_secs(15), "it took {took:?}");
        job.leave(None).unwrap();
    });
}

fn hello(peer: PeerId) -> Vec<u8> {
    let hello = Ask::Hello {
        version: PROTOCOL_VERSION,
        session: SESSION,
        peer,
        size: 2,
        overlay: Joining::default(),
    };
    encode(&Request { id: 1, settled: 1, open: Vec::new(), body: hello }).unwrap()
}

fn asks(control: &mut TcpStream, id: u64, body: Ask) -> Option<Answer> {
    say(control, &encode(&Request { id, settled: id, open: Vec::new(), body }).unwrap());
    decode::<Reply>(&hear(control)?).ok().map(|reply| reply.body)
}

/// Another worker that speaks by hand.
fn raw_worker(address: SocketAddr, rank: u32) -> TcpStream {
    let mut control = enter(address, "job", SECRET, Purpose::Control).unwrap();
    say(&mut control, &hello(PeerId::worker(rank)));
    let reply: Reply = decode(&hear(&mut control).unwrap()).unwrap();
    assert!(matches!(reply.body, Answer::Welcome(_)), "{reply:?}");
    control
}

#[test]
fn a_peer_that_is_no_worker_or_comes_back_is_refused_by_type_and_the_job_goes_on() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[]);
    let address = cluster.servers[0].addresses()[0];
    let returned = PeerId { incarnation: 1, ..PeerId::worker(1) };
    for peer in [PeerId::first(Role::Follower, 0), PeerId::first(Role::Relay, 1), returned] {
        let mut control = enter(address, "job", SECRET, Purpose::Control).unwrap();
        say(&mut control, &hello(peer));
        let reply: Reply = decode(&hear(&mut control).unwrap()).unwrap();
        assert_eq!(reply.body, Answer::Refused(Refusal::NotAdmitted { peer }));
        // Nor does its connection to a shard count for anything.
        let purpose = Purpose::Shard { peer, session: SESSION, shard: 0 };
        let mut frames = enter(address, "job", SECRET, purpose).unwrap();
        assert_eq!(hear(&mut frames), None, "{peer}");
    }
    raw_worker(address, 1);
}

/// a message of another thread may have been faster, and what nobody waits for any more must not be done.
#[test]
fn a_request_that_its_worker_has_said_to_be_settled_is_not_carried_out() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[]);
    let mut raw = raw_worker(cluster.servers[0].addresses()[0], 1);
    let honest = cluster.join(0);
    let say_more = |raw: &mut TcpStream, id, settled, open: &[u64], body| {
        say(raw, &encode(&Request { id, settled, open: open.to_vec(), body }).unwrap());
    };
    // 8 has been settled by 9; 11 by nobody, though 12 is behind it.
    assert!(matches!(asks(&mut raw, 9, Ask::Clocks), Some(Answer::Clocks { .. })));
    say_more(&mut raw, 8, 8, &[], Ask::Barrier);
    assert!(matches!(asks(&mut raw, 10, Ask::Clocks), Some(Answer::Clocks { .. })));
    match honest.barrier(Some(Duration::from_millis(100))) {
        Err(Error::BarrierTimeout { missing, .. }) => assert_eq!(missing, [1]),
        other => panic!("{other:?}"),
    }
    say_more(&mut raw, 12, 12, &[11], Ask::Clocks);
    assert!(hear(&mut raw).is_some());
    say_more(&mut raw, 11, 11, &[], Ask::Barrier);
    honest.barrier(None).unwrap();
}

#[test]
fn who_says_of_its_requests_what_cannot_be_is_lost() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[]);
    let mut raw = raw_worker(cluster.servers[0].addresses()[0], 1);
    let honest = cluster.join(0);
    say(&mut raw, &encode(&Request { id: 9, settled: 4, open: vec![5], body: Ask::Clocks }).unwrap());
    let lost = honest.barrier(None).unwrap_err();
    assert!(lost.to_string().contains("what it says of its requests before 4 makes no sense"), "{lost}");
}

#[test]
fn who_was_lost_is_not_listened_to_about_rows_either() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("on_worker_loss", "continue")]);
    let address = cluster.servers[0].addresses()[0];
    let job = cluster.join(0);
    let mut control = raw_worker(address, 1);
    let mut items =
        enter(address, "job", SECRET, Purpose::Items { peer: PeerId::worker(1), session: SESSION }).unwrap();
    items.set_read_timeout(Some(common::seconds(common::DEADLINE))).unwrap();
    let mut flush = Vec::new();
    Encoder::message(&mut flush, &Message::Flush { id: 1 });
    let mut is_heard = || {
        let said = items.write_all(&flush).is_ok();
        said && matches!(items.read(&mut [0; 64]), Ok(bytes) if bytes > 0)
    };
    assert!(is_heard());
    let how = Departure::Failed { what: "no".to_owned() };
    say(
        &mut control,
        &encode(&Request { id: 2, settled: 2, open: Vec::new(), body: Ask::Leave { how } }).unwrap(),
    );
    let until = Instant::now() + common::seconds(common::DEADLINE);
    while is_heard() {
        assert!(Instant::now() < until, "it is answered as ever");
    }
    job.leave(None).unwrap();
}

#[test]
fn who_comes_again_and_again_after_the_end_keeps_no_server() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("lease", "3")]);
    let address = cluster.servers[0].addresses()[0];
    let (_control, mut other) = (raw_worker(address, 0), raw_worker(address, 1));
    let how = Departure::Failed { what: "no".to_owned() };
    say(
        &mut other,
        &encode(&Request { id: 2, settled: 2, open: Vec::new(), body: Ask::Leave { how } }).unwrap(),
    );
    // Neither says that it has heard of it. They take turns, a second apart, so that one or the other is always waited for.
    let since = Instant::now();
    let until = since + common::seconds(common::DEADLINE);
    while cluster.servers[0].wait(Duration::from_millis(20)).is_none() {
        assert!(Instant::now() < until, "the server does not end");
        let both = since.elapsed() > Duration::from_secs(1);
        for rank in if both { 0..2 } else { 1..2 } {
            if let Ok(mut again) = enter(address, "job", SECRET, Purpose::Control) {
                say(&mut again, &hello(PeerId::worker(rank)));
                let _ = hear(&mut again);
            }
        }
    }
}

#[test]
fn who_takes_all_the_memory_that_it_gets_leaves_the_other_workers_some() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("memory", "16MiB"), ("on_worker_loss", "continue")]);
    let address = cluster.servers[0].addresses()[0];
    let (mut greedy, mut honest) = (raw_worker(address, 0), raw_worker(address, 1));
    let begin = |name: &str| {
        let (name, propagation) = (name.to_owned(), Propagation::Eager);
        let spec =
            TableSpec { name, rows: 1 << 40, row_bytes: 8, sum: None, propagation, holds: String::new() };
        Ask::Table(TableAsk::Begin { spec, home: 0, near: false })
    };
    let rows = |name: &str, bytes: usize| {
        let (name, part) = (name.to_owned(), Part::Produce);
        Ask::Table(TableAsk::Rows { name, part, bytes: vec![1; bytes] })
    };
    let mut id = 2;
    let mut bytes = PART_BYTES;
    asks(&mut greedy, id, begin("U")).unwrap();
    // To the last byte that it gets.
    while bytes > 0 {
        id += 1;
        if let Some(Answer::Refused(_)) = asks(&mut greedy, id, rows("U", bytes)) {
            bytes /= 2;
        }
    }
    for (id, body) in [(2, begin("V")), (3, rows("V", PART_BYTES))] {
        let answer = asks(&mut honest, id, body);
        assert!(matches!(answer, Some(Answer::Table(_))), "{answer:?}");
    }
}

/// Comes to the server as worker 1 of 2, for the first time or again, and says that it heard the job fail;
/// `false` if it is not welcome.
fn comes_and_heard(address: SocketAddr) -> bool {
    let Ok(mut control) = enter(address, "job", SECRET, Purpose::Control) else { return false };
    let hello = Ask::Hello {
        version: PROTOCOL_VERSION,
        session: SESSION,
        peer: PeerId::worker(1),
        size: 2,
        overlay: Joining::default(),
    };
    let hello = encode(&Request { id: 1, settled: 1, open: Vec::new(), body: hello }).unwrap();
    say(&mut control, &hello);
    let welcome = hear(&mut control).and_then(|reply| decode::<Reply>(&reply).ok());
    if !matches!(welcome, Some(Reply { body: Answer::Welcome(_), .. })) {
        // What it is told again and again and does not read would be kept.
        say(&mut control, &hello);
        assert!(hear(&mut control).is_none(), "it is told once");
        return false;
    }
    let lie = JobFailure::NonFinite { rank: 0, name: "w".to_owned() };
    let how = Departure::Heard(lie);
    say(
        &mut control,
        &encode(&Request { id: 2, settled: 2, open: Vec::new(), body: Ask::Leave { how } }).unwrap(),
    );
    true
}

// Each time gave it two seconds more, in which neither its lease nor its process's end was looked at: the
// others waited for it for ever.
#[test]
fn who_says_again_and_again_that_it_heard_the_job_fail_is_judged_all_the_same() {
    at_once(["stop", "continue"], |way_on| {
        let cluster = Cluster::over(Way::Tcp, 2, 1, &[("on_worker_loss", way_on), ("lease", "4")]);
        let address = cluster.servers[0].addresses()[0];
        let job = cluster.join(0);
        assert!(comes_and_heard(address));
        let tensor = declare(&job, "w", 4, Bsp);
        let pulled = std::thread::scope(|scope| {
            let pull = scope.spawn(|| {
                tensor.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None)?;
                tensor.pull_into(&mut [0u8; 32], None, None)
            });
            while !pull.is_finished() {
                std::thread::sleep(Duration::from_millis(300));
                assert!(!comes_and_heard(address), "it is welcome again");
            }
            pull.join().unwrap()
        });
        match pulled {
            Ok(version) => assert!(way_on == "continue" && version == 1),
            Err(Error::Failed(JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what } })) => {
                assert!(way_on == "stop" && what.starts_with("it heard: "), "{what}");
            }
            other => panic!("{way_on}: {other:?}"),
        }
        job.fail("over");
    });
}
