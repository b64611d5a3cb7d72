//! Managers and servers that go away, and come back.

mod common;

use common::{DEADLINE, SHORT, Site, until};
use penstock_control::agent::Agent;
use penstock_control::client::{Target, Worker};
use penstock_control::proto::servers_client::ServersClient;
use penstock_control::proto::{HeartbeatRequest, HostedJob, HostedStatus, RegisterRequest};
use penstock_control::server_key::ServerKey;
use penstock_control::{Error, Reason};

#[test]
fn a_manager_started_again_goes_on_where_it_was_and_jobs_never_notice() {
    let mut site = Site::with(|config| config.timing = SHORT);
    let (host, _agent) = site.server("/a.sock", 100);
    let created = site.create("mnist", |_| {}).unwrap();
    assert_eq!(site.connect("mnist", &created.secret).unwrap().rank, 0);
    let admin = site.admin();
    site.stop();
    site.start(|config| config.timing = SHORT);
    assert_eq!(site.admin(), admin);
    // The second worker gets the next rank, on the same server, with the same secret.
    let place = site.connect("mnist", &created.secret).unwrap();
    assert_eq!((place.rank, place.servers), (1, vec!["/a.sock".to_owned()]));
    assert_eq!(refused(site.connect("mnist", &created.secret)), Reason::Full);
    assert_eq!(host.log(), ["create mnist"], "the server was neither told to drop it nor to create it again");
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Reason {
    match result {
        Err(Error::Refused(refusal)) => refusal.reason,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn a_worker_that_waits_outlives_its_manager() {
    let mut site = Site::new();
    let created = site.create("mnist", |_| {}).unwrap();
    let client = site.client();
    let secret = created.secret;
    let waiting = std::thread::spawn(move || client.connect("mnist", &secret, &Worker::default(), DEADLINE));
    site.stop();
    site.start(|_| {});
    let _server = site.server("/a.sock", 100);
    assert_eq!(waiting.join().unwrap().unwrap().servers, ["/a.sock"]);
}

#[test]
fn a_server_that_was_there_first_is_found_when_the_manager_starts() {
    let mut site = Site::new();
    let token = site.token("server.token");
    site.stop();
    let host = common::Memory::new("/a.sock", 100);
    let agent = Agent::start(&Target::new(&site.address), token, host).unwrap();
    site.start(|_| {});
    until("it is known", || site.client().list_jobs(&site.admin()).unwrap().servers.len() == 1);
    drop(agent);
}

/// A server that takes its jobs and then falls silent, without a goodbye.
fn fall_silent_after_hosting(site: &Site, jobs: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let key = ServerKey::draw();
        let channel = common::server(&site.address, &site.token("server.token")).await;
        let mut client = ServersClient::new(channel.signing(key.clone()));
        let id = key.identity();
        let hello = RegisterRequest { id: id.clone(), endpoint: "/silent.sock".to_owned(), memory: 100 };
        client.register(hello).await.unwrap();
        let mut hosted = Vec::new();
        while hosted.len() < jobs {
            let said = HeartbeatRequest { id: id.clone(), hosted: hosted.clone() };
            let told = client.heartbeat(said).await.unwrap().into_inner();
            let status =
                |job: HostedJob| HostedStatus { name: job.name, id: job.id, ..HostedStatus::default() };
            hosted = told.jobs.into_iter().map(status).collect();
        }
        let said = HeartbeatRequest { id, hosted };
        client.heartbeat(said).await.unwrap();
    });
}

#[test]
fn a_job_moves_away_from_a_silent_server_only_if_nobody_uses_it() {
    let site = Site::with(|config| config.timing = SHORT);
    let used = site.create("used", |_| {}).unwrap();
    let idle = site.create("idle", |_| {}).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| fall_silent_after_hosting(&site, 2));
        assert_eq!(site.connect("used", &used.secret).unwrap().servers, ["/silent.sock"]);
    });
    let (other, _agent) = site.server("/b.sock", 100);
    until("it has moved", || other.hosts("idle"));
    assert_eq!(site.connect("idle", &idle.secret).unwrap().servers, ["/b.sock"]);
    until("the loss is noticed", || site.state_of("used") == "server-lost");
    assert!(!other.hosts("used"), "its state was on the other server");
}

#[test]
fn what_another_manager_gave_a_server_is_not_dropped() {
    let mut site = Site::with(|config| config.timing = SHORT);
    let token = site.token("server.token");
    let (host, _agent) = site.server("/a.sock", 100);
    site.create("old", |_| {}).unwrap();
    until("it is hosted", || host.hosts("old"));
    site.stop();
    // The state is lost, all but the token.
    std::fs::remove_dir_all(site.state()).unwrap();
    std::fs::create_dir(site.state()).unwrap();
    let path = site.state().join("server.token");
    std::fs::write(path, penstock_control::secret::hex(&token.0)).unwrap();
    site.start(|config| config.timing = SHORT);
    let created = site.create("new", |_| {}).unwrap();
    site.connect("new", &created.secret).unwrap();
    assert!(host.hosts("old") && host.hosts("new"));
    host.change("old", |status| status.ended = Some(Ok(())));
    until("it has ended and is dropped", || !host.hosts("old"));
}
