//! Tokens, secrets and servers' keys are proved and never sent: what stands between a client and its manager learns none
//! of them, and can use nothing that it hears.

mod common;

use common::{DEADLINE, Memory, Site, until};
use http_body_util::{BodyExt, Full};
use penstock_control::agent::Agent;
use penstock_control::client::{Client, Target, Worker};
use penstock_control::proto::jobs_client::JobsClient;
use penstock_control::proto::proofs_client::ProofsClient;
use penstock_control::proto::proofs_server::{Proofs, ProofsServer};
use penstock_control::proto::{ChallengeReply, ChallengeRequest, ConnectRequest, Prover};
use penstock_control::secret::hex;
use penstock_control::{Error, Reason, limits};
use penstock_proto::message::Secret;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tonic::body::Body;
use tonic::codegen::http::request::Parts;
use tonic::codegen::http::{HeaderMap, Request, Response, Uri};
use tonic::codegen::{BoxFuture, Bytes, Service};
use tonic::transport::server::{Server, TcpIncoming};
use tonic::transport::{Channel, Endpoint};
use tower::ServiceExt;

/// Everything that went by, headers and bodies.
type Heard = Arc<Mutex<Vec<u8>>>;
/// What is done to a call on its way.
type Change = Arc<dyn Fn(&mut Parts, &mut Bytes) + Send + Sync>;

/// What is done to an answer on its way: the path of its call comes first.
type Rewrite = Arc<dyn Fn(&str, &mut Answer) + Send + Sync>;

/// An answer; how the call ended stands in the trailers, or in the headers if there is no body.
#[derive(Clone)]
struct Answer {
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
    /// If so, instead of trailers bytes without end, as many as are taken: counted here.
    without_end: Option<Arc<AtomicUsize>>,
}

impl Answer {
    /// What comes after the headers.
    fn into_body(self) -> Body {
        let Self { body, trailers, without_end, .. } = self;
        let Some(taken) = without_end else {
            return Body::new(Full::new(body).with_trailers(async move { trailers.map(Ok) }));
        };
        let (mut sender, sent) = http_body_util::channel::Channel::<Bytes, tonic::Status>::new(1);
        tokio::spawn(async move {
            let mut piece = body;
            while sender.send_data(piece.clone()).await.is_ok() {
                taken.fetch_add(piece.len(), Ordering::Relaxed);
                piece = Bytes::from_static(&[0; 4096]);
            }
        });
        Body::new(sent)
    }
}

/// Stands where a client looks for its manager.
#[derive(Clone)]
struct Between {
    heard: Heard,
    /// The manager; none: it answers itself, and knows nothing.
    manager: Option<Channel>,
    change: Change,
    rewrite: Rewrite,
    /// How often a call is passed on; the last answer counts.
    times: usize,
    pretender: Pretender,
}

/// A manager of no token and no job.
#[derive(Clone, Copy, Default)]
struct Pretender {
    /// What it refuses challenges with; none: it answers them.
    code: Option<tonic::Code>,
    /// The word beside that.
    word: Option<&'static str>,
}

/// What it says: it would clear a terminal, and set a title.
const LIES: &str = "\u{1b}[2J\u{1b}]0;all is well\u{7}\r\nwhat a stranger says\u{9b}31m";

#[tonic::async_trait]
impl Proofs for Pretender {
    async fn challenge(
        &self,
        request: tonic::Request<ChallengeRequest>,
    ) -> Result<tonic::Response<ChallengeReply>, tonic::Status> {
        if let Some(code) = self.code {
            let mut status = tonic::Status::new(code, LIES);
            if let Some(word) = self.word {
                status.metadata_mut().insert("penstock-reason", word.parse().unwrap());
            }
            return Err(status);
        }
        // What it was sent, sent back, is not a proof either.
        let nonce = request.into_inner().nonce;
        Ok(tonic::Response::new(ChallengeReply { proof: nonce.clone(), nonce }))
    }
}

fn note(heard: &Heard, headers: &HeaderMap, body: &[u8]) {
    let mut heard = heard.lock().unwrap();
    for (name, value) in headers {
        heard.extend_from_slice(name.as_str().as_bytes());
        heard.extend_from_slice(b": ");
        heard.extend_from_slice(value.as_bytes());
        heard.push(b'\n');
    }
    heard.extend_from_slice(body);
}

impl Between {
    async fn pass_on(self, request: Request<Body>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let mut body = body.collect().await.unwrap().to_bytes();
        note(&self.heard, &parts.headers, parts.uri.path().as_bytes());
        note(&self.heard, &HeaderMap::new(), &body);
        let Some(manager) = self.manager else {
            let request = Request::from_parts(parts, Body::new(Full::new(body)));
            let mut answer = ProofsServer::new(self.pretender).oneshot(request).await.unwrap();
            answer.headers_mut().insert("grpc-status-details-bin", "no base 64".parse().unwrap());
            return answer;
        };
        let path = parts.uri.path().to_owned();
        (self.change)(&mut parts, &mut body);
        let mut answer = None;
        for _ in 0..self.times {
            let request = Request::from_parts(parts.clone(), Body::new(Full::new(body.clone())));
            answer = Some(manager.clone().oneshot(request).await.unwrap());
        }
        let (mut parts, body) = answer.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        let headers = std::mem::take(&mut parts.headers);
        let mut answer = Answer { headers, body: body.to_bytes(), trailers, without_end: None };
        note(&self.heard, &answer.headers, &answer.body);
        (self.rewrite)(&path, &mut answer);
        // Whatever length it has now.
        answer.headers.remove("content-length");
        parts.headers = std::mem::take(&mut answer.headers);
        Response::from_parts(parts, answer.into_body())
    }
}

impl Service<Request<Body>> for Between {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let between = self.clone();
        Box::pin(async move { Ok(between.pass_on(request).await) })
    }
}

/// Something that listens where clients look for their manager, as long as this lives.
struct Listener {
    address: String,
    heard: Heard,
    _runtime: tokio::runtime::Runtime,
}

impl Listener {
    /// One that knows nothing.
    fn alone() -> Self {
        Self::pretending(Pretender::default())
    }

    /// One that knows nothing, and refuses challenges with this word.
    fn refusing(word: &'static str) -> Self {
        Self::pretending(Pretender { code: Some(tonic::Code::FailedPrecondition), word: Some(word) })
    }

    fn pretending(pretender: Pretender) -> Self {
        Self::start(None, Arc::new(|_, _| {}), 1, Arc::new(|_, _| {}), pretender)
    }

    /// One that passes everything on, `times` over, with this change.
    fn before(
        site: &Site,
        times: usize,
        change: impl Fn(&mut Parts, &mut Bytes) + Send + Sync + 'static,
    ) -> Self {
        let kept = Arc::new(|_: &str, _: &mut Answer| {});
        Self::start(Some(&site.address), Arc::new(change), times, kept, Pretender::default())
    }

    /// One that passes everything on, and changes the answers.
    fn rewriting(site: &Site, rewrite: impl Fn(&str, &mut Answer) + Send + Sync + 'static) -> Self {
        let kept = Arc::new(|_: &mut Parts, _: &mut Bytes| {});
        Self::start(Some(&site.address), kept, 1, Arc::new(rewrite), Pretender::default())
    }

    fn start(
        manager: Option<&str>,
        change: Change,
        times: usize,
        rewrite: Rewrite,
        pretender: Pretender,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let heard = Heard::default();
        let address = runtime.block_on(async {
            let manager =
                manager.map(|at| Endpoint::from_shared(format!("http://{at}")).unwrap().connect_lazy());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let heard = Arc::clone(&heard);
            let between = Between { heard, manager, change, rewrite, times, pretender };
            tokio::spawn(Server::builder().serve_with_incoming(between, TcpIncoming::from(listener)));
            address
        });
        Self { address, heard, _runtime: runtime }
    }

    fn target(&self) -> Target {
        Target::new(&self.address)
    }

    fn client(&self) -> Client {
        Client::new(self.target()).unwrap()
    }

    fn has_heard(&self, what: &[u8]) -> bool {
        self.heard_of(what) > 0
    }

    /// How often.
    fn heard_of(&self, what: &[u8]) -> usize {
        self.heard.lock().unwrap().windows(what.len()).filter(|part| *part == what).count()
    }

    #[track_caller]
    fn has_not_heard(&self, secret: &Secret) {
        let digits = hex(&secret.0);
        for what in [&secret.0[..], digits.as_bytes(), digits.to_uppercase().as_bytes()] {
            assert!(!self.has_heard(what), "a secret was sent");
        }
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Reason {
    match result {
        Err(Error::Refused(refusal)) => refusal.reason,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn who_listens_in_a_managers_place_is_told_nothing_and_found_out_at_once() {
    let site = Site::new();
    let created = site.create("mnist", |_| {}).unwrap();
    let (admin, token) = (site.admin(), site.token("server.token"));
    let listener = Listener::alone();
    let started = Instant::now();
    assert_eq!(
        refused(listener.client().create_job(&admin, &penstock_control::client::JobSpec::new("x", 1))),
        Reason::Token
    );
    assert_eq!(refused(listener.client().reveal_secret(&admin, "mnist")), Reason::Token);
    let patience = DEADLINE * 10;
    let connect = listener.client().connect("mnist", &created.secret, &Worker::default(), patience);
    let Err(Error::Refused(refusal)) = connect else { panic!("expected a refusal, got {connect:?}") };
    assert_eq!(refusal.reason, Reason::JobSecret);
    assert!(refusal.message.contains("what answers"), "{refusal}");
    let host = Memory::new("/a.sock", 100);
    let agent = Agent::start(&listener.target(), token, host).unwrap();
    assert_eq!(refused(agent.wait(DEADLINE).expect("it ends")), Reason::Token);
    assert!(started.elapsed() < DEADLINE, "nobody waits for a manager that will not become theirs");
    assert!(listener.has_heard(b"/penstock.v1.Proofs/Challenge") && listener.has_heard(b"mnist"));
    for what in [&b"/penstock.v1.Admin"[..], b"/penstock.v1.Jobs", b"/penstock.v1.Servers", b"/a.sock"] {
        assert!(!listener.has_heard(what), "they said more than a challenge");
    }
    [admin, token, created.secret].iter().for_each(|secret| listener.has_not_heard(secret));
}

#[test]
fn what_a_listener_says_instead_of_a_proof_is_not_believed() {
    let secret = Secret([7; 32]);
    let connect = |listener: &Listener, patience| {
        listener.client().connect("mnist", &secret, &Worker::default(), patience)
    };
    let started = Instant::now();
    for word in [
        "token",
        "job-secret",
        "job-exists",
        "no-such-job",
        "quota",
        "invalid",
        "stale-proof",
        "full",
        "ended",
        "failed",
        "not-ready",
        "unknown-server",
        "state",
    ] {
        let listener = Listener::refusing(word);
        let connected = connect(&listener, DEADLINE * 10);
        let Err(Error::Refused(refusal)) = connected else { panic!("expected a refusal, got {connected:?}") };
        assert_eq!(refusal.reason, Reason::JobSecret, "{word}");
        assert!(refusal.message.contains("what answers"), "{refusal}");
        assert_eq!(refused(listener.client().list_jobs(&secret)), Reason::Token, "{word}");
    }
    assert!(started.elapsed() < DEADLINE, "nobody waits for who proves nothing");
    // A manager that says nothing at all is waited for; so is one that says it is busy.
    let connected = connect(&Listener::refusing("busy"), Duration::from_millis(200));
    let Err(Error::Refused(refusal)) = connected else { panic!("expected a refusal, got {connected:?}") };
    assert_eq!(refusal.reason, Reason::Busy);
    assert!(!refusal.message.contains("stranger"), "{refusal}");
}

// Whoever named the wrong port hears so at once. So whatever answers there first, even if it proves nothing, ends a server that
// has never registered.
#[test]
fn an_answer_that_says_nothing_of_a_later_one_ends_a_server_that_has_never_registered_and_no_other() {
    let token = Secret([7; 32]);
    let waits = [tonic::Code::Unavailable, tonic::Code::DeadlineExceeded];
    let ends = [tonic::Code::Unimplemented, tonic::Code::Internal, tonic::Code::NotFound];
    for code in ends.into_iter().chain(waits) {
        let listener = Listener::pretending(Pretender { code: Some(code), word: None });
        let agent = Agent::start(&listener.target(), token, Memory::new("/a.sock", 100)).unwrap();
        if waits.contains(&code) {
            until("it asks again", || listener.heard_of(b"/penstock.v1.Proofs/Challenge") > 1);
            assert!(agent.wait(Duration::ZERO).is_none(), "{code:?}");
        } else {
            let ended = agent.wait(DEADLINE).expect("it ends").unwrap_err();
            assert!(matches!(ended, Error::Protocol { .. }), "{code:?}: {ended}");
        }
    }
    let site = Site::with(|config| config.timing = common::SHORT);
    let (lies, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (on, count) = (Arc::clone(&lies), Arc::clone(&told));
    let listener = Listener::rewriting(&site, move |_, answer| {
        if on.load(Ordering::Relaxed) {
            (answer.body, answer.trailers) = (Bytes::new(), None);
            let code = tonic::Code::Unimplemented as i32;
            answer.headers = HeaderMap::new();
            answer.headers.insert("content-type", "application/grpc".parse().unwrap());
            answer.headers.insert("grpc-status", code.into());
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let host = Memory::new("/a.sock", 100);
    let token = site.token("server.token");
    let agent = Agent::start(&listener.target(), token, Arc::<Memory>::clone(&host)).unwrap();
    until("it has registered", || site.client().list_jobs(&site.admin()).unwrap().servers.len() == 1);
    lies.store(true, Ordering::Relaxed);
    until("it was told so", || told.load(Ordering::Relaxed) >= 3);
    lies.store(false, Ordering::Relaxed);
    site.create("mnist", |_| {}).unwrap();
    until("it goes on", || host.hosts("mnist"));
    assert!(agent.wait(Duration::ZERO).is_none());
}

#[test]
fn what_listens_in_a_managers_place_says_nothing_in_a_users_terminal() {
    let secret = Secret([7; 32]);
    let words = [None, Some("failed"), Some("busy")];
    for (code, word) in (1..=16).flat_map(|code| words.map(|word| (tonic::Code::from(code), word))) {
        let listener = Listener::pretending(Pretender { code: Some(code), word });
        let client = listener.client();
        let connect = client.connect("mnist", &secret, &Worker::default(), Duration::ZERO);
        let errors =
            [client.list_jobs(&secret).unwrap_err(), connect.unwrap_err(), client.health().unwrap_err()];
        for error in errors {
            let shown = error.to_string();
            assert!(!shown.contains(char::is_control), "{code:?} {word:?}: {shown:?}");
            assert!(!shown.contains("well") && !shown.contains("stranger"), "{code:?} {word:?}: {shown:?}");
        }
    }
}

#[test]
fn what_a_server_reports_controls_no_terminal() {
    let site = Site::with(|config| config.timing = common::SHORT);
    let (host, _agent) = site.server("/a.sock", 100);
    *host.refusal.lock().unwrap() = Some(LIES.to_owned());
    let created = site.create("mnist", |_| {}).unwrap();
    let detail = || site.client().show_job(&site.admin(), "mnist").unwrap().detail;
    until("its refusal is known", || detail().contains("stranger"));
    assert!(!detail().contains(char::is_control), "{:?}", detail());
    let connect = site.client().connect("mnist", &created.secret, &Worker::default(), Duration::ZERO);
    let shown = connect.unwrap_err().to_string();
    assert!(shown.contains("stranger") && !shown.contains(char::is_control), "{shown:?}");
}

/// Replaces text by as much other text, wherever it stands in an answer.
fn replace(answer: &mut Answer, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut body = answer.body.to_vec();
    while let Some(at) = body.windows(from.len()).position(|part| part == from.as_bytes()) {
        body[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    answer.body = body.into();
}

#[track_caller]
fn not_proved<T: std::fmt::Debug>(result: Result<T, Error>, reason: Reason) {
    let Err(Error::Refused(refusal)) = result else { panic!("expected a refusal, got {result:?}") };
    assert_eq!(refusal.reason, reason, "{refusal}");
    assert!(refusal.message.contains("not proved"), "{refusal}");
}

#[test]
fn where_servers_are_and_how_to_talk_to_them_cannot_be_changed_on_the_way() {
    let site = Site::new();
    let _server = site.server("tcp://127.0.0.1:7700?host=ab&unix=/b.sock", 100);
    let created = site
        .create("mnist", |spec| {
            (spec.workers, spec.settings) = (9, vec![("transport".to_owned(), "shm".to_owned())]);
        })
        .unwrap();
    let connect = |rewrite: fn(&mut Answer)| {
        let listener = Listener::rewriting(&site, move |path, answer| {
            if path == "/penstock.v1.Jobs/Connect" {
                rewrite(answer);
            }
        });
        listener.client().connect("mnist", &created.secret, &Worker::default(), DEADLINE * 10)
    };
    let started = Instant::now();
    assert_eq!(connect(|_| {}).unwrap().settings, [("transport".to_owned(), "shm".to_owned())]);
    let rewrites: [fn(&mut Answer); 7] = [
        |answer| replace(answer, "7700?host=ab&unix=/b.sock", "6666?host=xx&unix=/x.sock"),
        |answer| replace(answer, "shm", "tcp"),
        |answer| drop(answer.headers.remove("penstock-reply-proof")),
        |answer| drop(answer.headers.insert("penstock-reply-proof", "0".repeat(64).parse().unwrap())),
        |answer| answer.body = Bytes::from_static(&[0; 5]),
        |answer| {
            answer.body = Bytes::new();
            answer.trailers = None;
            answer.headers.insert("grpc-status", "9".parse().unwrap());
            answer.headers.insert("penstock-reason", "failed".parse().unwrap());
            answer.headers.insert("grpc-message", "all%20is%20well".parse().unwrap());
        },
        |answer| drop(answer.trailers.as_mut().unwrap().insert("grpc-status", "13".parse().unwrap())),
    ];
    for rewrite in rewrites {
        not_proved(connect(rewrite), Reason::JobSecret);
    }
    assert!(started.elapsed() < DEADLINE, "nobody waits for what is not the manager");
}

/// A length of 60 MiB, as headers say it.
const LONG: &str = "0000c00300000000";

/// The headers of an answer prove this.
fn show(answer: &mut Answer, proof: &str) {
    answer.headers.insert("penstock-reply-proof", proof.parse().unwrap());
}

#[test]
fn an_answer_without_end_is_not_taken_whatever_its_headers_say() {
    let site = Site::new();
    let _server = site.server("/a.sock", 100);
    let created = site.create("mnist", |_| {}).unwrap();
    let headers: [fn(&mut Answer); 4] = [
        |answer| drop(answer.headers.remove("penstock-reply-proof")),
        |answer| show(answer, &format!("{LONG}{}", format!(" {:064}", 0).repeat(3))),
        // The manager's, of another length.
        |answer| {
            let proof = answer.headers["penstock-reply-proof"].to_str().unwrap();
            show(answer, &format!("{LONG}{}", &proof[16..]));
        },
        // The manager's own.
        |_| {},
    ];
    for (number, say) in headers.into_iter().enumerate() {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let listener = Listener::rewriting(&site, move |path, answer| {
            if path != "/penstock.v1.Proofs/Challenge" {
                say(answer);
                answer.without_end = Some(Arc::clone(&counted));
            }
        });
        let client = listener.client();
        let listed = client.list_jobs(&site.admin()).unwrap_err();
        let connected = client.connect("mnist", &created.secret, &Worker::default(), DEADLINE).unwrap_err();
        for error in [listed, connected] {
            assert!(matches!(error, Error::Protocol { .. }), "{number}: {error}");
        }
        let taken = taken.load(Ordering::Relaxed);
        // Of either answer no more than arrives before the client looks.
        let most = 3 * limits::AHEAD_BYTES as usize;
        assert!(taken < most, "{number}: {} KiB were taken", taken >> 10);
    }
}

#[test]
fn what_an_administrator_is_told_is_this_calls_and_the_managers() {
    let site = Site::new();
    let first = Mutex::new(None);
    // The answer to an earlier call, proof and all.
    let listener = Listener::rewriting(&site, move |path, answer| {
        if path == "/penstock.v1.Admin/ListJobs" {
            *answer = first.lock().unwrap().get_or_insert_with(|| answer.clone()).clone();
        }
    });
    assert!(listener.client().list_jobs(&site.admin()).unwrap().jobs.is_empty());
    site.create("mnist", |_| {}).unwrap();
    not_proved(listener.client().list_jobs(&site.admin()), Reason::Token);
    // Refusals are proved too.
    let show = |header: &'static str, value: &'static str| {
        let listener = Listener::rewriting(&site, move |path, answer| {
            if path == "/penstock.v1.Admin/ShowJob" {
                answer.headers.insert(header, value.parse().unwrap());
            }
        });
        listener.client().show_job(&site.admin(), "other")
    };
    assert_eq!(refused(show("something", "else")), Reason::NoSuchJob);
    for (header, value) in [("penstock-reason", "quota"), ("grpc-status", "7"), ("grpc-message", "look")] {
        not_proved(show(header, value), Reason::Token);
    }
}

#[test]
fn a_server_drops_no_job_because_something_on_the_way_says_so() {
    let site = Site::with(|config| config.timing = common::SHORT);
    let (lies, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (on, count) = (Arc::clone(&lies), Arc::clone(&told));
    let listener = Listener::rewriting(&site, move |path, answer| {
        if path == "/penstock.v1.Servers/Heartbeat" && on.load(Ordering::Relaxed) {
            // No job at all.
            answer.body = Bytes::from_static(&[0; 5]);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let host = Memory::new("/a.sock", 100);
    let token = site.token("server.token");
    let _agent = Agent::start(&listener.target(), token, Arc::<Memory>::clone(&host)).unwrap();
    site.create("mnist", |_| {}).unwrap();
    until("it is hosted", || host.hosts("mnist"));
    lies.store(true, Ordering::Relaxed);
    until("it was told to drop it", || told.load(Ordering::Relaxed) >= 3);
    lies.store(false, Ordering::Relaxed);
    until("it is heard of again", || site.state_of("mnist") == "ready");
    assert_eq!(host.log(), ["create mnist"]);
}

#[test]
fn who_repeats_headers_that_it_has_heard_is_not_listened_to() {
    let site = Site::new();
    let heard = Arc::new(Mutex::new(String::new()));
    let note = Arc::clone(&heard);
    let listener = Listener::before(&site, 1, move |parts, _| {
        if let Some(shown) = parts.headers.get("authorization") {
            *note.lock().unwrap() = shown.to_str().unwrap().to_owned();
        }
    });
    listener.client().list_jobs(&site.admin()).unwrap();
    let shown = heard.lock().unwrap().clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(common::call_without_end(&site.address, "Admin/ListJobs", &shown));
    assert_eq!(answer.headers()["penstock-reason"], "stale-proof");
}

#[test]
fn who_hears_all_that_a_manager_and_its_clients_say_learns_no_secret() {
    let site = Site::with(|config| config.timing = common::SHORT);
    let listener = Listener::before(&site, 1, |_, _| {});
    let client = listener.client();
    let spec = penstock_control::client::JobSpec {
        memory: 10,
        ..penstock_control::client::JobSpec::new("mnist", 1)
    };
    let created = client.create_job(&site.admin(), &spec).unwrap();
    assert_eq!(client.reveal_secret(&site.admin(), "mnist").unwrap(), created.secret);
    let host = Memory::new("/a.sock", 100);
    let token = site.token("server.token");
    let agent = Agent::start(&listener.target(), token, Arc::<Memory>::clone(&host)).unwrap();
    let place = client.connect("mnist", &created.secret, &Worker::default(), DEADLINE).unwrap();
    assert_eq!(place.servers, ["/a.sock"]);
    assert_eq!(host.jobs.lock().unwrap()["mnist"].0.secret, created.secret);
    drop(agent);
    for what in
        [&b"/penstock.v1.Admin/ShowJob"[..], b"Penstock-Proof-2 ", b"penstock-server-proof: ", b"/a.sock"]
    {
        assert!(listener.has_heard(what), "it was not heard at all");
    }
    [site.admin(), token, created.secret].iter().for_each(|secret| listener.has_not_heard(secret));
}

#[test]
fn our_headers_are_less_than_half_of_what_a_manager_takes() {
    let site = Site::with(|config| config.timing = common::SHORT);
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let listener = Listener::before(&site, 1, move |parts, _| {
        // As HTTP/2 counts them: 32 bytes more for each. Four more say the method, the path, the scheme and the host.
        let named: usize =
            parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        seen.fetch_max(named + parts.uri.to_string().len() + 4 * (32 + 10), Ordering::Relaxed);
    });
    let name = "x".repeat(limits::NAME_BYTES);
    let created = site.create(&name, |_| {}).unwrap();
    let host = Memory::new("/a.sock", 100);
    let _agent = Agent::start(&listener.target(), site.token("server.token"), host).unwrap();
    listener.client().connect(&name, &created.secret, &Worker::default(), DEADLINE).unwrap();
    listener.client().delete_job(&site.admin(), &name).unwrap();
    let most = most.load(Ordering::Relaxed);
    assert!((500..limits::HEADER_BYTES as usize / 2).contains(&most), "{most} bytes");
}

#[test]
fn a_call_whose_headers_have_grown_too_long_on_the_way_is_refused_for_that() {
    let site = Site::new();
    let proxy = Listener::before(&site, 1, |parts, _| {
        parts.headers.insert("via", "x".repeat(limits::HEADER_BYTES as usize).parse().unwrap());
    });
    let error = proxy.client().list_jobs(&site.admin()).unwrap_err();
    assert!(error.to_string().contains("headers are longer than it takes"), "{error}");
}

#[test]
fn what_a_client_said_counts_once() {
    let site = Site::new();
    let twice = Listener::before(&site, 2, |_, _| {});
    assert_eq!(refused(twice.client().list_jobs(&site.admin())), Reason::StaleProof);
    let host = Memory::new("/a.sock", 100);
    let _agent = Agent::start(&twice.target(), site.token("server.token"), host).unwrap();
    until("its first words count", || site.client().list_jobs(&site.admin()).unwrap().servers.len() == 1);
}

#[test]
fn a_proof_is_for_one_method_and_one_request() {
    let site = Site::new();
    site.create("one", |_| {}).unwrap();
    site.create("two", |_| {}).unwrap();
    // The same bytes name the job to show and the job to delete.
    let other_method = Listener::before(&site, 1, |parts, _| {
        if parts.uri.path() == "/penstock.v1.Admin/ShowJob" {
            parts.uri = Uri::from_static("http://manager/penstock.v1.Admin/DeleteJob");
        }
    });
    assert_eq!(refused(other_method.client().show_job(&site.admin(), "one")), Reason::Token);
    let other_job = Listener::before(&site, 1, |parts, body| {
        if parts.uri.path() == "/penstock.v1.Admin/DeleteJob" {
            *body = body.iter().map(|&byte| if byte == b'n' { b'w' } else { byte }).collect();
        }
    });
    assert_eq!(refused(other_job.client().delete_job(&site.admin(), "one")), Reason::Token);
    let jobs = site.client().list_jobs(&site.admin()).unwrap().jobs;
    assert_eq!(jobs.iter().map(|job| &job.name).collect::<Vec<_>>(), ["one", "two"]);
    other_job.client().show_job(&site.admin(), "one").unwrap();
}

// A client of another version does not believe the answer: it would do again, or undo, what had been done.
#[test]
fn a_call_of_another_version_is_refused_before_it_is_carried_out() {
    let site = Site::new();
    site.create("mnist", |_| {}).unwrap();
    let earlier = Listener::before(&site, 1, |parts, _| {
        if let Some(shown) = parts.headers.get_mut("authorization") {
            *shown = shown.to_str().unwrap().replace("Penstock-Proof-2 ", "Penstock-Proof ").parse().unwrap();
        }
    });
    not_proved(earlier.client().delete_job(&site.admin(), "mnist"), Reason::Token);
    assert_eq!(site.state_of("mnist"), "waiting");
}

#[test]
fn a_challenge_that_the_manager_does_not_know_is_asked_for_again() {
    let site = Site::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let listener = Listener::before(&site, 1, move |parts, _| {
        if parts.uri.path() == "/penstock.v1.Admin/ListJobs" && seen.fetch_add(1, Ordering::Relaxed) == 0 {
            let header = parts.headers["authorization"].to_str().unwrap();
            let mut words: Vec<_> = header.split(' ').collect();
            let digits = "0".repeat(64);
            words[1] = &digits;
            parts.headers.insert("authorization", words.join(" ").parse().unwrap());
        }
    });
    assert!(listener.client().list_jobs(&site.admin()).is_ok());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn a_job_that_does_not_exist_answers_as_one_whose_secret_is_wrong() {
    let site = Site::new();
    let created = site.create("mnist", |_| {}).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answers = ["mnist", "other", &"x".repeat(1000)].map(|job| {
        runtime.block_on(async {
            let channel = common::channel(&site.address).await;
            let asked =
                ChallengeRequest { nonce: vec![7; 32], prover: Prover::Worker.into(), job: job.to_owned() };
            let reply = ProofsClient::new(channel.clone()).challenge(asked).await.unwrap().into_inner();
            assert_eq!((reply.nonce.len(), reply.proof.len()), (32, 32));
            let said = format!("{} {} {}", hex(&reply.nonce), hex(&[7; 32]), "0".repeat(64));
            let job = hex(job.as_bytes());
            let mut answers = Vec::new();
            // A wrong proof, none, the manager's own, and a secret that is shown instead of proved: the right one too.
            for shown in [
                Some(format!("Penstock-Proof-2 {said} {} {job}", "0".repeat(64))),
                None,
                Some(format!("Penstock-Proof-2 {said} {} {job}", hex(&reply.proof))),
                Some(format!("Bearer {}", hex(&created.secret.0))),
            ] {
                let mut request = tonic::Request::new(ConnectRequest::default());
                if let Some(shown) = shown {
                    request.metadata_mut().insert("authorization", shown.parse().unwrap());
                }
                let status = JobsClient::new(channel.clone()).connect(request).await.unwrap_err();
                assert_eq!(status.metadata().get("penstock-reason").unwrap(), "job-secret");
                answers.push((status.code(), status.message().to_owned()));
            }
            answers
        })
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2], "a name that no job can have");
}

#[test]
fn a_challenge_of_nobody_or_without_a_nonce_is_refused() {
    let site = Site::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = ProofsClient::new(common::channel(&site.address).await);
        for (nonce, prover) in [(32, Prover::Unspecified), (31, Prover::Admin), (33, Prover::Server)] {
            let asked = ChallengeRequest { nonce: vec![0; nonce], prover: prover.into(), job: String::new() };
            let status = client.challenge(asked).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
        }
    });
}

#[test]
fn challenges_without_end_keep_nobody_from_proving_itself() {
    let site = Site::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let channel = runtime.block_on(common::channel(&site.address));
    let (asked, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let flood = |_| {
        let mut client = ProofsClient::new(channel.clone());
        let (asked, stop) = (Arc::clone(&asked), Arc::clone(&stop));
        runtime.spawn(async move {
            let request =
                ChallengeRequest { nonce: vec![0; 32], prover: Prover::Admin.into(), job: String::new() };
            while !stop.load(Ordering::Relaxed) {
                client.challenge(request.clone()).await.unwrap();
                asked.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let floods: Vec<_> = (0..16).map(flood).collect();
    until("many were asked for", || asked.load(Ordering::Relaxed) > 500);
    let before = asked.load(Ordering::Relaxed);
    for _ in 0..20 {
        site.client().list_jobs(&site.admin()).unwrap();
    }
    assert!(asked.load(Ordering::Relaxed) > before, "nobody asked for more meanwhile");
    stop.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|flood| runtime.block_on(flood).unwrap());
}
