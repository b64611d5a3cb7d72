//! Items: rows with one writer, in memory that its readers map and look at by themselves (lapser.md, 3.2).
//!
//! | file | what |
//! |---|---|
//! | [`slot`] | the protocol of one row, and of many at once: two buffers, each with the number of the set that wrote it |
//! | [`steps`] | in which order a writer does what; for the program and for the models |
//! | [`written`] | what of a set that is dropped the change log lists no longer |
//! | [`change_log`] | which rows were written, for the node that passes them on |
//! | [`together`] | whether rows that were looked at one after the other belong together |
//! | [`waiters`] | how readers that must wait sleep, and are woken by the writer |
//! | [`partition_memory`] | rows as the node that passes them on sees them |
//! | [`partition`] | where everything lies; the writer's end and the readers' end |
//!
//! A *set* is one call that writes rows; sets of one partition are numbered from 1. A partition is written by one process: the
//! producer, or a process that keeps a mirror of its rows. All others map it read-only.
//!
//! - **I-1** What a reader gets of a row is value, number and clock of one set, unmixed.
//! - **I-2** The numbers and clocks that one reader gets of one row never fall.
//! - **I-3** Rows that one set wrote are seen together or not at all, by a reader that reads them together; also when the
//!   writer dies inside.
//! - **I-4** No reader sleeps through a set that brings what it waits for.
//!
//! Lapser's algorithms 3.1 to 3.4 guard a row by a checksum over value and clock, and a reader that meets a writer waits for it.
//! Here the writer writes beside the newest value: a reader never waits for a writer that is inside, and a writer that dies
//! inside leaves the row as it was. It costs a second buffer a row.

pub mod change_log;
pub mod slot;
mod steps;
pub mod together;
pub mod waiters;
mod written;

#[cfg(all(test, loom))]
mod model;
#[cfg(not(loom))]
pub mod partition;
#[cfg(not(loom))]
pub mod partition_memory;
