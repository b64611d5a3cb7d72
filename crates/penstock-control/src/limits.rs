//! Every limit of the control plane: its unit, its reason, and what happens at it.

use crate::client::TIMEOUT;
use std::time::Duration;

/// Most bytes of a request from a caller that has proved nothing (for a challenge, or about health), and of an answer that
/// proves nothing. A longer request is refused while it arrives, before it is decoded; so are those below.
pub const STRANGER_BYTES: usize = 4 << 10;
/// Bytes of a worker's request: it says who it is, and for how long it waits.
pub const WORKER_BYTES: usize = 4 << 10;
/// Bytes of an administrator's request. A job with all its settings takes less than 20 KiB.
pub const ADMIN_BYTES: usize = 64 << 10;
/// Bytes of a server's request: a heartbeat of [`JOBS`] jobs stays below it.
pub const SERVER_BYTES: usize = 1 << 20;
/// Bytes of a reply that is proved: a list of [`JOBS`] jobs with all their servers stays below it. A client refuses a longer one.
pub const REPLY_BYTES: usize = 64 << 20;
/// Bytes of replies that a client takes before it looks at them: of one that nobody has proved, no more than these arrive. One
/// that is longer comes at this many bytes for each time to the manager and back. Only lists of very many jobs are that long:
/// one of [`REPLY_BYTES`] takes 256 such times, which fit into [`TIMEOUT`] where one takes up to 39 ms. Over a longer way it is
/// not answered in time.
pub const AHEAD_BYTES: u32 = 256 << 10;
/// Calls of one connection that are served at once. What comes beyond that waits in the client, or is refused as busy.
pub const CALLS_PER_CONNECTION: u32 = 64;
/// Workers of one job that wait in `Connect` at once, beside one for each rank. The others are refused as busy.
pub const SPARE_WAITS_PER_JOB: usize = 16;
/// Connections at once (about 30 KiB each), and at most half of the descriptors that the process may have. At the limit,
/// the oldest one that is not protected by a valid token makes room.
pub const CONNECTIONS: usize = 4096;
/// Time for TLS and the preface of HTTP/2 on a new connection, after which it is closed.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// Silence after which a connection is asked whether it is alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Time to answer that; then the connection is closed.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest life of a call on the manager.
pub const CALL: Duration = Duration::from_secs(30);
/// The same of a call that proves nothing: its answer waits for the end of its request, which comes with its headers, and at
/// most for the disk. A caller that sends it byte by byte is cut off.
pub const STRANGER_CALL: Duration = Duration::from_secs(5);
/// Longest wait of one `Connect`, which is also over when its proof is; a client with more patience calls again.
pub const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Bytes of all headers of a request, as HTTP/2 counts them (RFC 9113, section 6.5.2); one with more is refused. Ours have
/// less than half of that, so a proxy has room for its own.
pub const HEADER_BYTES: u32 = 4 * 1024;
/// Life of a challenge: a call that has not proved itself with it by then takes another, and none is carried out later, also if
/// it was held back on the way, or waits in `Connect` or for the disk. Above what a call needs on the way, and no shorter than
/// a client waits for what the manager does at once; in `Connect` a client waits for up to five seconds more.
pub const PROOF_LIFE: Duration = Duration::from_secs(10);
const _: () =
    assert!(PROOF_LIFE.as_secs() == TIMEOUT.as_secs(), "proofs.proto and docs/threat_model.md say both");
/// Used challenges that are kept for the admin token, the server token and each job's secret (about 50 bytes each), so that
/// none is used twice. Above it, those older than the oldest kept are no longer valid, and a call that has one of them takes
/// another.
pub const USED_PROOFS: usize = 4096;
/// Silence after which a server counts as lost.
pub const LEASE: Duration = Duration::from_secs(10);
/// Longest time that a heartbeat's reply is held back.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// Jobs that a manager keeps. The next one is refused.
pub const JOBS: usize = 4096;
/// Servers that a manager keeps. The next one is refused.
pub const SERVERS: usize = 1024;
/// Settings of a job.
pub const SETTINGS: usize = 64;
/// Bytes of a setting's name and value together.
pub const SETTING_BYTES: usize = 256;
/// Bytes of a job's name.
pub const NAME_BYTES: usize = 64;
/// Bytes of an endpoint string.
pub const ENDPOINT_BYTES: usize = 512;

const _: () =
    assert!(SETTINGS * (SETTING_BYTES + 16) + NAME_BYTES + 1024 <= ADMIN_BYTES, "every job can be asked for");
const _: () =
    assert!(REPLY_BYTES / AHEAD_BYTES as usize * 39 < TIMEOUT.as_millis() as usize, "the longest list");
const _: () = assert!(CONNECT_WAIT.as_millis() < CALL.as_millis(), "a wait ends before its call is cut off");
const _: () = assert!(STRANGER_CALL.as_secs() < CALL.as_secs(), "who proves nothing is heard for less long");
const _: () = assert!(HEARTBEAT.as_millis() * 3 <= LEASE.as_millis(), "two heartbeats may be lost");
