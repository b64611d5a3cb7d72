//! Clients that want to exhaust the manager: silent, slow, garbled, and very many.

mod common;

use common::{DEADLINE, Site};
use http_body_util::{BodyExt, Full};
use penstock_control::client::{Client, Target, Worker};
use penstock_control::proto::jobs_client::JobsClient;
use penstock_control::proto::proofs_client::ProofsClient;
use penstock_control::proto::{ChallengeRequest, ConnectRequest, Prover};
use penstock_control::secret::hex;
use penstock_control::{Error, Reason, limits};
use penstock_proto::message::Secret;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response};
use tower::ServiceExt;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[test]
fn connections_that_say_nothing_do_not_keep_others_out() {
    let site = Site::with(|config| config.connections = 32);
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&site.address).unwrap()).collect();
    assert_eq!(site.client().health(), Ok(true));
    drop(silent);
}

#[test]
fn connections_that_begin_http_and_stop_do_not_keep_others_out() {
    let site = Site::with(|config| config.connections = 32);
    let begun: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&site.address).unwrap();
            // The peer may have been put out already.
            let _ = stream.write_all(PREFACE);
            stream
        })
        .collect();
    assert_eq!(site.client().health(), Ok(true));
    drop(begun);
}

#[test]
fn a_client_that_has_proved_its_secret_is_not_put_out_by_strangers() {
    let site = Site::with(|config| config.connections = 8);
    let created = site.create("mnist", |_| {}).unwrap();
    let client = site.client();
    let secret = created.secret;
    let waiting = std::thread::spawn(move || client.connect("mnist", &secret, &Worker::default(), DEADLINE));
    let strangers: Vec<_> = (0..64).map(|_| TcpStream::connect(&site.address).unwrap()).collect();
    let _server = site.server("/a.sock", 100);
    assert_eq!(waiting.join().unwrap().unwrap().rank, 0);
    drop(strangers);
}

#[test]
fn garbage_is_closed_and_harms_nobody() {
    let site = Site::new();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0xff; 64], PREFACE] {
        let mut stream = TcpStream::connect(&site.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let _ = stream.write_all(garbage);
        let _ = stream.write_all(&[0xff; 1024]);
        // Closed, in order or not; never an answer that goes on for ever.
        let mut rest = Vec::new();
        let ended = stream.take(1 << 20).read_to_end(&mut rest);
        let timed_out = matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!timed_out, "{garbage:?} was left open");
    }
    assert_eq!(site.client().health(), Ok(true));
}

#[test]
fn a_request_above_the_limit_is_refused() {
    let site = Site::new();
    let huge = "x".repeat(2 << 20);
    let error = site.create(&huge, |_| {}).unwrap_err();
    let Error::Refused(refusal) = &error else { panic!("expected a refusal, got {error:?}") };
    assert_eq!(refusal.reason, Reason::Invalid);
    assert!(error.to_string().len() < 1000, "it is not sent back");
    assert_eq!(site.client().health(), Ok(true));
}

#[test]
fn the_largest_job_that_there_may_be_is_below_the_limit() {
    let site = Site::new();
    let value = "x".repeat(limits::SETTING_BYTES - 8);
    let settings = (0..limits::SETTINGS).map(|index| (format!("name{index:04}"), value.clone())).collect();
    site.create(&"x".repeat(limits::NAME_BYTES), |spec| spec.settings = settings).unwrap();
}

#[test]
fn who_has_not_proved_itself_is_refused_before_its_request_ends() {
    let site = Site::new();
    site.create("mnist", |_| {}).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let digits = "0".repeat(64);
    let (made_up, token) =
        (format!("Penstock-Proof-2 {digits} {digits} {digits} {digits}"), format!("Bearer {digits}"));
    let mnist = hex(b"mnist");
    // The nonce is the manager's own: anyone may ask for one.
    let genuine = |prover, job: &str| {
        let nonces = runtime.block_on(common::nonces(&site.address, prover, job));
        format!("Penstock-Proof-2 {nonces} {digits} {digits} {}", hex(job.as_bytes())).trim_end().to_owned()
    };
    let (admin, server, worker) = ("Admin/CreateJob", "Servers/Heartbeat", "Jobs/Connect");
    let earlier = genuine(Prover::Admin, "").replace("-2", "");
    for (method, shown, word, text) in [
        (admin, &earlier[..], "token", "same version"),
        (admin, "", "token", "wrong or missing"),
        (server, "", "token", "wrong or missing"),
        (worker, "", "job-secret", "no such job"),
        (worker, "Penstock-Proof 00", "job-secret", "same version"),
        (admin, &made_up, "stale-proof", "too old"),
        (server, &made_up, "stale-proof", "too old"),
        (worker, &format!("{made_up} {mnist}"), "stale-proof", "too old"),
        (admin, &genuine(Prover::Admin, ""), "token", "wrong or missing"),
        (server, &genuine(Prover::Server, ""), "token", "wrong or missing"),
        (worker, &genuine(Prover::Worker, "mnist"), "job-secret", "no such job"),
        (worker, &genuine(Prover::Worker, "other"), "job-secret", "no such job"),
        (admin, &token, "token", "proofs, not tokens"),
        (worker, &token, "job-secret", "proofs, not tokens"),
    ] {
        let response = runtime.block_on(common::call_without_end(&site.address, method, shown));
        assert_eq!(response.headers()["penstock-reason"], word, "{method} {shown}");
        let status = Status::from_header_map(response.headers()).unwrap();
        assert!(status.message().contains(text), "{method} {shown}: {status:?}");
    }
}

#[test]
fn who_asks_for_nothing_that_needs_a_proof_and_never_ends_is_cut_off_soon() {
    let site = Site::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = common::channel(&site.address).await;
        let mut calls = tokio::task::JoinSet::new();
        let paths = ["/penstock.v1.Proofs/Challenge", "/grpc.health.v1.Health/Check"];
        for path in paths.iter().cycle().take(limits::CALLS_PER_CONNECTION as usize) {
            let call = channel.clone().oneshot(common::without_end(path, ""));
            calls.spawn(tokio::time::timeout(limits::CALL / 2, call));
        }
        while let Some(answer) = calls.join_next().await {
            let answer = answer.unwrap().expect("it is kept for very long").unwrap();
            let status = Status::from_header_map(answer.headers()).unwrap();
            assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        }
        // Their places on the connection are free.
        let nonce = vec![7; 32];
        let asked = ChallengeRequest { nonce, prover: Prover::Admin.into(), job: String::new() };
        ProofsClient::new(channel).challenge(asked).await.unwrap();
    });
}

/// The status of an answer, once it is whole.
async fn status_of(answer: Response<Body>) -> Option<tonic::Code> {
    let (parts, body) = answer.into_parts();
    let whole = body.collect().await.unwrap();
    let status = whole.trailers().or(Some(&parts.headers)).and_then(Status::from_header_map);
    status.map(|status| status.code())
}

// A stream of the service's health stayed open for as long as its connection; of many messages all but the first were thrown away.
#[test]
fn what_anyone_may_ask_is_one_short_question_with_one_answer() {
    let site = Site::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = async |path: &str, messages: usize| {
        let body = Full::new(Bytes::from([0; 5].repeat(messages)));
        let request = Request::post(format!("http://manager{path}")).body(Body::new(body)).unwrap();
        let channel = common::channel(&site.address).await;
        status_of(tokio::time::timeout(limits::CALL / 2, channel.oneshot(request)).await.unwrap().unwrap())
            .await
    };
    runtime.block_on(async {
        assert_eq!(ask("/grpc.health.v1.Health/Check", 1).await, Some(tonic::Code::Ok));
        assert_eq!(ask("/grpc.health.v1.Health/Watch", 1).await, Some(tonic::Code::Unimplemented));
        assert_eq!(ask("/grpc.health.v1.Health/Check", 3000).await, Some(tonic::Code::InvalidArgument));
    });
}

#[test]
fn headers_above_the_limit_are_refused() {
    let site = Site::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = |bytes: usize| {
        let path = "/penstock.v1.Admin/ListJobs";
        let call = async {
            common::channel(&site.address).await.oneshot(common::without_end(path, &"x".repeat(bytes))).await
        };
        runtime.block_on(call).unwrap().status().as_u16()
    };
    assert_eq!(answer(limits::HEADER_BYTES as usize * 3 / 4), 200);
    assert_eq!(answer(limits::HEADER_BYTES as usize), 431);
    assert_eq!(site.client().health(), Ok(true));
}

/// A call that waits until it is cut off.
fn long_wait() -> ConnectRequest {
    ConnectRequest { worker: "7".repeat(32), wait_milliseconds: 10_000, ..ConnectRequest::default() }
}

#[test]
fn workers_of_one_job_cannot_wait_in_unlimited_number() {
    let site = Site::new();
    let created = site.create("mnist", |spec| spec.workers = 1).unwrap();
    let most = 1 + limits::SPARE_WAITS_PER_JOB;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = common::worker(&site.address, "mnist", &created.secret).await;
        let (ended, mut answers) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..most + 8 {
            let channel = channel.clone();
            let ended = ended.clone();
            tokio::spawn(async move { ended.send(JobsClient::new(channel).connect(long_wait()).await) });
        }
        for _ in 0..8 {
            let answer = answers.recv().await.unwrap();
            assert_eq!(answer.unwrap_err().code(), tonic::Code::ResourceExhausted);
        }
    });
    // Another job's workers are not in their way.
    let other = site.create("other", |spec| spec.workers = 1).unwrap();
    let patience = Duration::from_millis(100);
    let error = site.client().connect("other", &other.secret, &Worker::default(), patience).unwrap_err();
    assert!(matches!(error, Error::NotReady { .. }), "{error}");
}

#[test]
fn a_flood_of_calls_on_one_connection_leaves_others_alone() {
    let site = Site::new();
    let created = site.create("mnist", |spec| spec.workers = 500).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = common::worker(&site.address, "mnist", &created.secret).await;
        let calls: Vec<_> = (0..500)
            .map(|_| {
                let channel = channel.clone();
                tokio::spawn(async move { JobsClient::new(channel).connect(long_wait()).await })
            })
            .collect();
        let address = site.address.clone();
        let other = tokio::task::spawn_blocking(move || Client::new(Target::new(&address)).unwrap().health());
        assert_eq!(other.await.unwrap(), Ok(true));
        calls.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

#[test]
fn a_flood_of_wrong_tokens_leaves_the_manager_serving() {
    let site = Site::new();
    let address = site.address.clone();
    let floods: Vec<_> = (0..4)
        .map(|_| {
            let client = Client::new(Target::new(&address)).unwrap();
            std::thread::spawn(move || (0..50).filter(|_| client.list_jobs(&Secret([1; 32])).is_ok()).count())
        })
        .collect();
    assert!(site.create("mnist", |_| {}).is_ok());
    assert!(floods.into_iter().all(|flood| flood.join().unwrap() == 0));
}
