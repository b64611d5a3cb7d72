//! Where a table's rows of one producer lie: progress, change log, slots, row groups.
//!
//! | file | what |
//! |---|---|
//! | [`layout`] | geometry |
//! | [`writer`] | the writer's end |
//! | [`rows`] | the readers' end |
//! | [`follower`] | which rows change, for the node that passes them on |
//! | [`sleep`] | the page that readers sleep on |

mod follower;
mod layout;
mod rows;
mod sleep;
#[cfg(test)]
mod tests;
mod writer;

pub use super::together::Together;
pub use follower::Follower;
pub use layout::{Layout, MAX_ROW_BYTES, MAX_SLOTS};
pub use rows::{Rows, Shown};
pub use sleep::{Seat, WAITERS_BYTES, Waiters};
pub use writer::{Set, Writer};

use super::slot::{Progress, RowGroup, Slot};
use super::waiters::{Line, Summary};
use crate::layout::Shared;
use crate::region::Region;
use crate::sync::OwnedU64;
use rustix::io;

// SAFETY: `AtomicU64`s only.
unsafe impl Shared for Slot {}
// SAFETY: `AtomicU64`s only.
unsafe impl Shared for RowGroup {}
// SAFETY: `AtomicU64`s only.
unsafe impl Shared for Progress {}
// SAFETY: two `AtomicU32`.
unsafe impl Shared for Summary {}
// SAFETY: `AtomicU32`s and an `AtomicU64`.
unsafe impl Shared for Line {}
// SAFETY: an atomic.
unsafe impl Shared for OwnedU64 {}

/// Makes a partition that other processes map: any process that gets the descriptor may write until it is [sealed](Region::seal).
/// Its memory is still to be touched.
pub fn make(layout: &Layout) -> io::Result<Region> {
    Region::open_to_writers("penstock-items", layout.total())
}
