//! Every call, over real connections: what it does, and which callers it refuses.

mod common;

use common::{DEADLINE, Site, until};
use penstock_control::client::{Client, JobSpec, Target, Worker};
use penstock_control::manager::{Config, Manager, StartError, Timing};
use penstock_control::proto::servers_client::ServersClient;
use penstock_control::proto::{HeartbeatRequest, LeaveRequest, RegisterRequest};
use penstock_control::server_key::ServerKey;
use penstock_control::{Error, Reason};
use penstock_proto::message::Secret;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (Reason, String) {
    match result {
        Err(Error::Refused(refusal)) => (refusal.reason, refusal.message),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn a_worker_is_told_where_its_servers_are_and_what_the_job_says() {
    let site = Site::new();
    let (first, _a) = site.server("/a.sock", 100);
    let (second, _b) = site.server("tcp://10.0.0.1:7700?host=ab&unix=/b.sock", 100);
    until("both are known", || site.client().list_jobs(&site.admin()).unwrap().servers.len() == 2);
    let created = site
        .create("mnist", |spec| {
            (spec.servers, spec.memory, spec.share) = (2, 21, 0.5);
            spec.settings = vec![("consistency".to_owned(), "ssp:4".to_owned())];
        })
        .unwrap();
    let place = site.connect("mnist", &created.secret).unwrap();
    assert_eq!((place.rank, place.size), (0, 2));
    assert_eq!(place.settings, [("consistency".to_owned(), "ssp:4".to_owned())]);
    assert_eq!(place.servers.len(), 2);
    // Each server was given its own number, an even part of the memory, and the secret that the worker has.
    for (index, endpoint) in place.servers.iter().enumerate() {
        let host = if endpoint == "/a.sock" { &first } else { &second };
        let job = host.jobs.lock().unwrap()["mnist"].0.clone();
        assert_eq!((job.index, job.servers, job.workers, job.memory), (index as u32, 2, 2, 11));
        assert_eq!((job.share, job.options), (0.5, place.settings.clone()));
        assert_eq!(job.secret, created.secret);
    }
    assert_eq!(site.connect("mnist", &created.secret).unwrap().rank, 1);
    assert_eq!(refused(site.connect("mnist", &created.secret)).0, Reason::Full);
}

#[test]
fn a_worker_waits_for_servers_and_says_for_what_when_its_patience_ends() {
    let site = Site::new();
    let created = site.create("mnist", |_| {}).unwrap();
    let client = site.client();
    let patience = Duration::from_millis(200);
    let error = client.connect("mnist", &created.secret, &Worker::default(), patience).unwrap_err();
    assert!(matches!(&error, Error::NotReady { message, .. } if message.contains("servers")), "{error}");
    let waiting =
        std::thread::spawn(move || client.connect("mnist", &created.secret, &Worker::default(), DEADLINE));
    let _server = site.server("/a.sock", 100);
    assert_eq!(waiting.join().unwrap().unwrap().servers, ["/a.sock"]);
}

#[test]
fn a_new_job_does_not_wait_for_the_next_heartbeat() {
    // Each heartbeat would last longer than this test may.
    let timing = Timing { lease: DEADLINE * 5, heartbeat: DEADLINE + Duration::from_secs(5) };
    let site = Site::with(|config| config.timing = timing);
    let (host, _agent) = site.server("/a.sock", 100);
    until("the server is known", || site.client().list_jobs(&site.admin()).unwrap().servers.len() == 1);
    let created = site.create("mnist", |_| {}).unwrap();
    site.connect("mnist", &created.secret).unwrap();
    host.change("mnist", |status| status.ended = Some(Ok(())));
    until("its end is known", || site.state_of("mnist") == "ended");
}

#[test]
fn a_host_that_refuses_a_job_is_named_to_its_workers_and_asked_again() {
    let site = Site::with(|config| config.timing = common::SHORT);
    let (host, _agent) = site.server("/a.sock", 100);
    *host.refusal.lock().unwrap() = Some("no huge pages".to_owned());
    let created = site.create("mnist", |_| {}).unwrap();
    until("the refusal is known", || {
        site.client().show_job(&site.admin(), "mnist").unwrap().detail.contains("no huge pages")
    });
    *host.refusal.lock().unwrap() = None;
    assert!(site.connect("mnist", &created.secret).is_ok());
}

#[test]
fn a_job_goes_from_waiting_to_ended() {
    let site = Site::with(|config| config.timing = common::SHORT);
    let created = site.create("mnist", |_| {}).unwrap();
    assert_eq!(site.state_of("mnist"), "waiting");
    let (host, _agent) = site.server("/a.sock", 100);
    until("it is ready", || site.state_of("mnist") == "ready");
    site.connect("mnist", &created.secret).unwrap();
    host.change("mnist", |status| status.workers_joined = 2);
    until("it runs", || site.state_of("mnist") == "running");
    host.change("mnist", |status| status.ended = Some(Ok(())));
    until("it has ended", || site.state_of("mnist") == "ended");
    assert_eq!(refused(site.connect("mnist", &created.secret)).0, Reason::Ended);
    until("the server drops it", || !host.hosts("mnist"));
}

#[test]
fn a_deleted_job_is_dropped_and_its_name_is_free_for_another() {
    let site = Site::new();
    let (host, _agent) = site.server("/a.sock", 100);
    let first = site.create("mnist", |_| {}).unwrap();
    until("it is hosted", || host.hosts("mnist"));
    site.client().delete_job(&site.admin(), "mnist").unwrap();
    let second = site.create("mnist", |_| {}).unwrap();
    assert_ne!(first.secret, second.secret);
    assert_eq!(refused(site.connect("mnist", &first.secret)).0, Reason::JobSecret);
    site.connect("mnist", &second.secret).unwrap();
    assert_eq!(host.jobs.lock().unwrap()["mnist"].0.secret, second.secret);
    assert_eq!(refused(site.client().delete_job(&site.admin(), "other")).0, Reason::NoSuchJob);
    assert_eq!(refused(site.client().show_job(&site.admin(), "other")).0, Reason::NoSuchJob);
}

#[test]
fn a_name_is_given_once_and_memory_is_promised_once() {
    let site = Site::new();
    let _server = site.server("/a.sock", 100);
    until("it is known", || site.client().list_jobs(&site.admin()).unwrap().servers.len() == 1);
    site.create("a", |spec| spec.memory = 60).unwrap();
    assert_eq!(refused(site.create("a", |_| {})).0, Reason::JobExists);
    assert_eq!(refused(site.create("b", |spec| spec.memory = 41)).0, Reason::Quota);
    let created = site.create("b", |spec| spec.memory = 40).unwrap();
    assert_eq!((created.balance.most, created.balance.servers), (2.0, 1));
    assert_eq!(site.client().list_jobs(&site.admin()).unwrap().servers[0].memory_free, 0);
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let site = Site::with(|config| {
        config.check = Arc::new(|settings| match settings {
            [(name, _), ..] if name == "chunks" => Err("there is no option `chunks`".to_owned()),
            _ => Ok(()),
        });
    });
    let changes: [fn(&mut JobSpec); 12] = [
        |spec| spec.name.clear(),
        |spec| spec.name = "../up".to_owned(),
        |spec| spec.name = ".hidden".to_owned(),
        |spec| spec.name = "x".repeat(65),
        |spec| spec.workers = 0,
        |spec| spec.workers = 1 << 20,
        |spec| spec.servers = 0,
        |spec| spec.memory = 0,
        |spec| spec.share = 0.0,
        |spec| spec.share = f64::NAN,
        |spec| spec.settings = vec![("chunks".to_owned(), "1".to_owned())],
        |spec| spec.settings = vec![("certificate".to_owned(), "/etc/passwd".to_owned())],
    ];
    for change in changes {
        assert_eq!(refused(site.create("j", change)).0, Reason::Invalid);
    }
    assert!(site.client().list_jobs(&site.admin()).unwrap().jobs.is_empty());
}

#[test]
fn every_call_needs_its_own_token() {
    let site = Site::new();
    let created = site.create("mnist", |_| {}).unwrap();
    let client = site.client();
    for token in [Secret([0; 32]), site.token("server.token"), created.secret] {
        assert_eq!(refused(client.create_job(&token, &JobSpec::new("x", 1))).0, Reason::Token);
        assert_eq!(refused(client.list_jobs(&token)).0, Reason::Token);
        assert_eq!(refused(client.show_job(&token, "mnist")).0, Reason::Token);
        assert_eq!(refused(client.reveal_secret(&token, "mnist")).0, Reason::Token);
        assert_eq!(refused(client.delete_job(&token, "mnist")).0, Reason::Token);
    }
    for token in [Secret([0; 32]), site.admin(), site.token("server.token")] {
        assert_eq!(refused(site.connect("mnist", &token)).0, Reason::JobSecret);
    }
    for token in [Secret([0; 32]), site.admin(), created.secret] {
        let host = common::Memory::new("/a.sock", 1);
        let agent = penstock_control::agent::Agent::start(&Target::new(&site.address), token, host).unwrap();
        let ended = agent.wait(DEADLINE).expect("a wrong token ends it");
        assert_eq!(refused(ended).0, Reason::Token);
    }
    assert_eq!(client.reveal_secret(&site.admin(), "mnist").unwrap(), created.secret);
    assert_eq!(client.list_jobs(&site.admin()).unwrap().jobs.len(), 1);
}

#[test]
fn a_job_cannot_learn_that_another_exists() {
    let site = Site::new();
    let _server = site.server("/a.sock", 100);
    let one = site.create("one", |_| {}).unwrap();
    site.create("two", |_| {}).unwrap();
    let wrong = refused(site.connect("two", &one.secret));
    assert_eq!(refused(site.connect("three", &one.secret)), wrong);
    assert!(!wrong.1.contains("two"));
    let place = site.connect("one", &one.secret).unwrap();
    assert!(!format!("{place:?}").contains("two"));
}

#[test]
fn a_worker_of_another_size_or_rank_is_refused_before_it_waits() {
    let site = Site::new();
    let created = site.create("mnist", |_| {}).unwrap();
    let connect = |worker: Worker| site.client().connect("mnist", &created.secret, &worker, DEADLINE);
    let size = refused(connect(Worker { size: Some(3), ..Worker::default() }));
    assert!(size.0 == Reason::Full && size.1.contains("2 workers"), "{size:?}");
    let rank = refused(connect(Worker { rank: Some(2), ..Worker::default() }));
    assert!(rank.0 == Reason::Full && rank.1.contains("rank 2"), "{rank:?}");
}

#[test]
fn who_asks_again_keeps_its_rank() {
    let site = Site::new();
    let _server = site.server("/a.sock", 100);
    let created = site.create("mnist", |_| {}).unwrap();
    let client = site.client();
    let again = || client.connect("mnist", &created.secret, &Worker::default(), DEADLINE).unwrap().rank;
    assert_eq!((again(), again()), (0, 0));
    let given = Worker { rank: Some(1), size: Some(2), host: "h".to_owned() };
    assert_eq!(site.client().connect("mnist", &created.secret, &given, DEADLINE).unwrap().rank, 1);
}

#[test]
fn secrets_are_in_no_debug_output_and_no_error() {
    let site = Site::new();
    let created = site.create("mnist", |_| {}).unwrap();
    let hex = penstock_control::secret::hex(&created.secret.0);
    let admin = penstock_control::secret::hex(&site.admin().0);
    let wrong = site.connect("other", &created.secret).unwrap_err();
    let shown = format!("{created:?} {:?} {wrong:?} {wrong} {:?}", site.client(), site.manager);
    assert!(!shown.contains(&hex) && !shown.contains(&admin), "{shown}");
    assert!(!shown.contains(&format!("{:?}", created.secret.0)), "{shown}");
    // They are on disk, and only there.
    assert!(common::all_text(&site.state()).contains(&hex));
}

#[test]
fn the_health_check_of_grpc_answers_while_the_manager_serves() {
    let mut site = Site::new();
    assert_eq!(site.client().health(), Ok(true));
    site.stop();
    assert!(matches!(site.client().health(), Err(Error::Unreachable { .. })));
}

#[test]
fn a_wait_ends_when_its_caller_is_interrupted() {
    let site = Site::new();
    let created = site.create("mnist", |_| {}).unwrap();
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    let client = site.client().with_interrupt(Arc::new(move || seen.load(Ordering::Relaxed)));
    let waiting =
        std::thread::spawn(move || client.connect("mnist", &created.secret, &Worker::default(), DEADLINE));
    flag.store(true, Ordering::Relaxed);
    assert_eq!(waiting.join().unwrap(), Err(Error::Interrupted));
}

#[test]
fn other_hosts_are_not_listened_to_in_plain_text_unless_asked() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let config = Config::new("0.0.0.0:0", &state);
    let error = Manager::start(config.clone()).unwrap_err();
    assert!(matches!(error, StartError::NeedsTls { .. }));
    assert!(error.hint().unwrap().contains("penstock cert"), "{error}");
    assert!(!state.exists(), "nothing was begun");
    assert!(Manager::start(Config { insecure: true, ..config }).is_ok());
    // Nor is a token sent there.
    let client = Client::new(Target::new("192.0.2.1:7701")).unwrap();
    assert!(matches!(client.list_jobs(&Secret([0; 32])), Err(Error::NeedsTls { .. })));
}

#[test]
fn a_second_manager_is_refused_the_port_and_the_state() {
    let site = Site::new();
    let other = tempfile::tempdir().unwrap();
    let error = Manager::start(Config::new(&site.address, other.path())).unwrap_err();
    assert!(matches!(error, StartError::Listen { in_use: true, .. }), "{error}");
    let error = Manager::start(Config::new("127.0.0.1:0", site.state())).unwrap_err();
    assert!(matches!(error, StartError::State(_)), "{error}");
}

#[test]
fn who_has_only_the_servers_token_speaks_for_no_server_but_its_own() {
    let site = Site::new();
    let (host, _agent) = site.server("/a.sock", 100);
    let created = site.create("mnist", |_| {}).unwrap();
    until("it is hosted", || host.hosts("mnist"));
    let id = site.client().list_jobs(&site.admin()).unwrap().servers[0].id.clone();
    let token = site.token("server.token");
    let own = ServerKey::draw();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = common::server(&site.address, &token).await;
        let mut unsigned = ServersClient::new(channel.clone());
        let mut client = ServersClient::new(channel.signing(own));
        let refused = |status: tonic::Status| assert!(status.message().contains("key"), "{status:?}");
        let hello = RegisterRequest { id: id.clone(), endpoint: "/evil.sock".to_owned(), memory: 100 };
        refused(unsigned.register(hello.clone()).await.unwrap_err());
        refused(client.register(hello).await.unwrap_err());
        let said = HeartbeatRequest { id: id.clone(), hosted: Vec::new() };
        refused(client.heartbeat(said).await.unwrap_err());
        refused(client.leave(LeaveRequest { id }).await.unwrap_err());
    });
    assert_eq!(site.connect("mnist", &created.secret).unwrap().servers, ["/a.sock"]);
}
