//! What hosts' uplinks carry, as they find out themselves while they send, for the trees that are planned ([`crate::overlay`]).
//!
//! | file | word |
//! |---|---|
//! | `gauge.rs` | a host measures what it sends to those that it feeds, and what comes to it |
//! | `reports.rs` | when it tells a server, and what |
//! | `known.rs` | what a server makes of what all say: rates beside each other, in coarse steps |
//! | `turns.rs` | how often a plan is made anew for that |
//!
//! - **Busy time counts, and no other.** A link that has nothing to send says nothing of its rate.
//! - **All connections together**, since they share the uplink, looked at in the same moment.
//! - **Who reads slowly is not its sender's fault.** A connection that waits for its receiver, or for room in this host's own
//!   buffers, says nothing of the uplink.
//! - **To whom it went is told with it.** What goes to one host alone may be as slow as that one's downlink. So it is a word about
//!   the sender only, and is taken back when that host turns out to be the slow one.
//!
//! Times come from outside.

mod gauge;
mod known;
mod reports;
mod turns;

pub use gauge::{Carried, Gauge, To};
pub use known::{Known, Unknown, rates};
pub use reports::Reports;
pub use turns::Turns;

use crate::Rank;
use serde::{Deserialize, Serialize};

/// Bytes a second that no link of hosts has fewer of, or more: what says so is taken for these.
pub const LEAST: u64 = 1_000;
/// See there: 8 Tbit/s.
pub const MOST: u64 = 1_000_000_000_000;

/// What a host says of its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Bytes a second that its uplink carries, lately; 0: it has not been busy for long enough to know.
    pub sends: u64,
    /// The only worker that they went to, if there was only one.
    pub to: Option<Rank>,
    /// Bytes a second that have come to it, lately: its downlink carries as many at least. 0: not known.
    pub takes: u64,
}

impl Measured {
    /// The same with numbers that links can have.
    #[must_use]
    pub fn sane(self) -> Self {
        let sane = |rate: u64| if rate == 0 { 0 } else { rate.clamp(LEAST, MOST) };
        Self { sends: sane(self.sends), takes: sane(self.takes), ..self }
    }
}

/// Whether one rate is another but for what measuring is off by.
fn is_about(one: f64, other: f64) -> bool {
    one <= other * APART && other <= one * APART
}

/// Rates that are not further apart are the same.
const APART: f64 = 1.25;
