//! What callers that have proved nothing cost the manager. Alone in its process, whose memory it measures.

mod common;

use common::Site;
use http_body_util::{BodyExt, Full};
use penstock_control::limits;
use penstock_control::proto::Prover;
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::Request;
use tower::ServiceExt;

const CONNECTIONS: usize = 4;
/// As much as a server may say, all but the end.
static SAID: [u8; limits::SERVER_BYTES] = [0; limits::SERVER_BYTES];

/// Bytes of this process, manager and strangers together, that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn requests_without_a_proof_and_without_an_end_take_no_memory() {
    let site = Site::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (grown, channels) = runtime.block_on(async {
        let nonces = common::nonces(&site.address, Prover::Server, "").await;
        let digits = "0".repeat(64);
        let shown = format!("Penstock-Proof-2 {nonces} {digits} {digits}");
        let (before, mut channels, mut calls) = (resident(), Vec::new(), tokio::task::JoinSet::new());
        for _ in 0..CONNECTIONS {
            let channel = common::channel(&site.address).await;
            for _ in 0..limits::CALLS_PER_CONNECTION {
                let body = Full::new(Bytes::from_static(&SAID)).with_trailers(std::future::pending());
                let request = Request::post("http://manager/penstock.v1.Servers/Heartbeat")
                    .header("content-type", "application/grpc")
                    .header("authorization", &shown)
                    .body(Body::new(body))
                    .unwrap();
                let call = tokio::time::timeout(Duration::from_secs(3), channel.clone().oneshot(request));
                calls.spawn(call);
            }
            channels.push(channel);
        }
        let mut grown = 0;
        while calls.join_next().await.is_some() {
            grown = grown.max(resident().saturating_sub(before));
        }
        (grown, channels)
    });
    drop(channels);
    let said = CONNECTIONS * limits::CALLS_PER_CONNECTION as usize * SAID.len();
    assert!(grown < said / 8, "{} MiB for {} MiB that nobody has proved", grown >> 20, said >> 20);
}
