//! The protocol of Penstock, without input or output: state machines that are fed with events.
//!
//! There is no thread, no socket and no clock on the wall in this crate, so that a whole job runs in one deterministic test
//! (`penstock-sim`) and the server runs exactly the code that was tested.
//!
//! | file | word |
//! |---|---|
//! | [`clock`] | how far each worker has come, and which are live |
//! | [`consistency`] | what version a reader must see |
//! | [`adaptive`] | how much slack waiting is worth |
//! | [`chunk`] | how a tensor is cut |
//! | [`placement`] | which server and shard is a chunk's home |
//! | [`spec`] | what a tensor is declared to be |
//! | [`submission`] | the 64 bytes by which a worker tells a shard that its lane is ready |
//! | [`numbered`] | what is kept by a tensor's number |
//! | [`shard`] | the home's machine: contribution in, fold due, publish out |
//! | [`worker`] | the worker's machine: stamps, and what a pull has to wait for |
//! | [`items`] | tables of rows with a producer and consumers |
//! | [`peer`] | what is sent to and received from: a worker, or another |
//! | [`membership`] | who joined, who left, who was lost; barriers |
//! | [`first`] | what worker 0 does for all, while they wait |
//! | [`vigil`] | who is late, and when |
//! | [`redial`] | when a connection is tried again |
//! | [`knot`] | workers that wait for each other in a circle |
//! | [`account`] | what a peer makes a process keep |
//! | [`job`] | what a job goes by where its name would be too long |
//! | [`message`] | the control plane's messages |
//! | [`request`] | what is asked once, over connections that break |
//! | [`frame`] | what travels between a worker and a shard of another host |
//! | [`propagation`] | who moves values, and when they are seen |
//! | [`choice`] | which propagation `auto` is |
//! | [`travel`] | what a tensor's declaration says of how its chunks travel |
//! | [`pressure`] | how hard the network presses a sender |
//! | [`uplink`] | what hosts find that their links carry, and what that says of each |
//! | [`encoding`] | into which bytes a chunk is encoded, and whether bytes that come can be a chunk |
//! | [`stream`] | what those hold that receive values |
//! | [`outbox`] | frames until they are taken: reconnecting without loss or repetition |
//! | [`remote`] | a tensor between hosts: what a shard owes to a subscriber, and what that has of it |
//! | [`overlay`] | which peer passes on to which |
//! | [`seal`] | by what who is passed a frame on knows that the home has made it |
//! | [`progress`] | the least of many counts |
//! | [`handshake`] | both ends of a network connection prove that they know the job's secret |
//! | [`strangers`] | which of those that have not proved it goes when there is no room |
//! | [`record`] | control messages on a stream |
//! | [`mac`] | proofs that one knows a key |
//! | [`hex`] | bytes as digits |
//! | [`checksum`] | whether bytes came as they were sent |
//! | [`error`] | one enum per operation |
//! | `text.rs` | what a peer says: how long it may be, and in which characters |
//!
//! # Architecture invariant
//! Nothing here reads a clock, starts a thread or opens a socket (`clippy.toml` forbids it), and nothing is unsafe.
#![forbid(unsafe_code)]

pub mod account;
pub mod adaptive;
pub mod checksum;
pub mod choice;
pub mod chunk;
pub mod clock;
pub mod compress;
pub mod consistency;
mod cost;
pub mod encoding;
pub mod error;
pub mod factors;
pub mod first;
pub mod frame;
pub mod handshake;
pub mod hex;
pub mod items;
pub mod job;
pub mod knot;
pub mod layer;
pub mod mac;
pub mod membership;
pub mod message;
pub mod numbered;
pub mod outbox;
pub mod overlay;
pub mod peer;
pub mod placement;
pub mod pressure;
pub mod progress;
pub mod propagation;
pub mod record;
pub mod redial;
pub mod remote;
pub mod request;
pub mod seal;
pub mod shard;
pub mod spec;
pub mod strangers;
pub mod stream;
pub mod submission;
mod text;
pub mod travel;
pub mod update;
pub mod uplink;
pub mod vigil;
pub mod worker;

/// A worker's number in its job, `0..size`.
pub type Rank = u32;

/// A tensor's number in its job, in order of first declaration on the first server.
pub type TensorId = u32;
