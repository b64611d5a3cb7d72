//! Tables of items: rows with a clock, a producer (or several whose sum they are), and consumers (lapser.md, chapter 3).
//!
//! *Version* of a row: the clock that its newest value was given, or the iterations that its producer has completed, whichever is
//! larger. A get at clock t with slack s returns version >= t - s. An item that was never set is zeros, at version 0.
//!
//! | file | what |
//! |---|---|
//! | [`rows`] | sets of rows |
//! | [`spec`] | what a table is declared to be |
//! | [`registry`] | who produces and consumes what: the first server's book |
//! | `sweep` | who produces what others consume, found in one pass |
//! | [`control`] | control messages |
//! | [`wire`] | what travels where producer and consumer share no memory |
//! | [`row_memory`] | what the node needs of memory that holds rows |
//! | [`node`] | who is sent what, when: one machine for servers, producers and consumers |

pub mod control;
pub mod node;
pub mod registry;
pub mod row_memory;
pub mod rows;
pub mod spec;
mod sweep;
pub mod wire;

/// Version of the rows of a producer that has left: nothing newer can come.
pub const FINAL: u64 = u64::MAX >> 1;

pub use rows::RowSet;
pub use spec::{MAX_HOLDS_BYTES, Propagation, Slack, TableError, TableId, TableSpec};
