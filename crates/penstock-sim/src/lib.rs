//! A whole job on one thread, from one seed: workers, links, shards and what goes wrong between them.
//!
//! The shards are the real machines of `penstock-proto`, their folds the real kernels, their connections the code of
//! `penstock-fabric` that a job runs; only bytes and time are simulated.
//! The same seed gives the same run, event by event, so that a failure is a number that anyone can replay:
//! `penstock-sim --seed N -v` (docs/simulation.md explains the lines).
//!
//! | file | word |
//! |---|---|
//! | [`scenario`] | all that a seed decides |
//! | [`workload`] | what the workers do, and the values that must come of it |
//! | [`marks`] | contributions that can be read back out of their sum |
//! | [`faults`] | what goes wrong |
//! | [`transport`] | links: in order within one, in any order between two; rings, and connections that break |
//! | [`trees`] | how values go from worker to worker, and what goes wrong there |
//! | [`planner`] | who feeds whom |
//! | [`liar`] | a worker that passes on something else than it was given |
//! | [`socket`] | an end of a connection, for as long as that lives: a link to the code that runs there |
//! | [`encodings`] | what tensors agreed to, and an encoding beside raw |
//! | [`remote`] | both ends of a connection to a shard of another host: the code of a real proxy and shard, and its memory |
//! | [`control`] | both ends of a control connection: the real machines, and what stands around them |
//! | [`shard_memory`] | a shard's memory: lanes, values, mirrors |
//! | [`worker`] | a worker on its way through its program |
//! | [`cluster`] | the event loop |
//! | [`history`] | what is seen, line by line |
//! | [`checkers`] | what must hold of it |
//! | [`sabotage`] | promises broken on purpose, for the checkers to see |
//! | [`items`] | tables of items: another run, with its own scenarios |
//! | [`leases`] | which processes are said to be lost, and when: another run |
//! | [`rates`] | how long a value takes to all workers, along the planner's trees: another run, with rates |
//! | [`rng`] | chance, from a seed |
//!
//! Cost: some milliseconds a job of 5 workers, 8 iterations and 10 chunks.
#![forbid(unsafe_code)]

pub mod checkers;
pub mod cluster;
pub mod control;
pub mod encodings;
pub mod faults;
pub mod history;
pub mod items;
pub mod leases;
pub mod liar;
pub mod marks;
pub mod planner;
pub mod rates;
pub mod remote;
pub mod rng;
pub mod sabotage;
pub mod scenario;
pub mod shard_memory;
pub mod socket;
pub mod transport;
pub mod trees;
pub mod worker;
pub mod workload;

pub use cluster::{Failure, Outcome};
pub use scenario::Scenario;
