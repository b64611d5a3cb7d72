//! Penstock: shared model state that many workers read and update while they train.
//!
//! This crate is the product: threads, sockets and time around the state machines of `penstock-proto` and the memory of
//! `penstock-fabric`. A [`server::Server`] homes the chunks of one job, a [`service::Service`] those of many; each worker holds
//! a [`worker::Job`].
//!
//! ```
//! use penstock::options::Options;
//! use penstock::worker::{Declaration, Job};
//! use penstock_kernels::{Rule, Settings};
//!
//! # fn main() -> Result<(), penstock::worker::Error> {
//! let job = Job::embedded(Options::load([])?)?;
//! let rule = Rule::Sgd { momentum: false, nesterov: false, maximize: false };
//! let w = job.declare(Declaration::new("w", &[4], rule))?;
//! w.initialize(None, None)?;
//!
//! let gradient: Vec<u8> = [1.0f32; 4].iter().flat_map(|x| x.to_le_bytes()).collect();
//! w.push(Some(&gradient), Settings([0.5, 0.0, 0.0, 0.0, 0.0]), false, None)?;
//! let mut value = [0; 16];
//! w.pull_into(&mut value, None, None)?;
//! assert_eq!(value[..4], (-0.5f32).to_le_bytes());
//! job.clock()?;
//! # Ok(())
//! # }
//! ```

mod directory;
pub mod environment;
pub mod host;
mod limits;
pub mod log;
mod notes;
pub mod options;
mod pools;
pub mod server;
pub mod service;
mod sockets;
mod thread;
mod uplink;
pub mod user_directory;
mod wait;
mod wire;
pub mod worker;

/// What the C interface lets threads take turns with.
pub use penstock_fabric::turn;
