//! The control plane of Penstock: jobs, servers, and how workers find them.
//!
//! This is PHub's service (CreateService, ConnectService, InitService: Luo et al. 2018, section 3.1) as gRPC:
//!
//! | PHub | here | who, proving |
//! |---|---|---|
//! | CreateService | [`client::Client::create_job`] | an administrator, the admin token |
//! | ConnectService | [`client::Client::connect`] | a worker, its job's secret |
//! | InitService | [`agent::Agent`]: a server learns by heartbeat what to host | a server, the server token |
//!
//! ```
//! use penstock_control::client::{Client, JobSpec, Target};
//! use penstock_control::manager::{Config, Manager};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let state = folder.path();
//! let manager = Manager::start(Config::new("127.0.0.1:0", state))?;
//! let client = Client::new(Target::new(&manager.address().to_string()))?;
//! let admin = penstock_control::secret::read(&state.join("admin.token"))?;
//! let created = client.create_job(&admin, &JobSpec::new("mnist", 4))?;
//! assert_eq!(client.list_jobs(&admin)?.jobs[0].name, "mnist");
//! assert_eq!(created.job.state, "waiting"); // for a server
//! # Ok(())
//! # }
//! ```
//!
//! Tokens and secrets are [proved](client::Proving), never sent; what a manager answers is proved too.
//!
//! tokio runs in this crate and in none below it: no data goes through the control plane.

mod address;
pub mod agent;
mod body;
pub mod cert;
pub mod client;
mod error;
pub mod limits;
pub mod manager;
mod proof;
pub mod proto;
mod reply;
mod seal;
pub mod secret;
pub mod server_key;
mod settings;
mod tls;

pub use address::Address;
pub use error::{Error, Reason, Refusal};
pub use proof::Prover;
