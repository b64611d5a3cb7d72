//! What this machine can do at best, so that our own figures and the peers' have something to stand beside.
//!
//! | function | what it measures |
//! |---|---|
//! | [`limit::sgd`] | `w -= lr * (g0 + g1 + ...)` over plain memory by plain vector code |
//! | [`cores::distance_ns`] | one cache line to another core and back: virtual cores drift between *near* and *far* |
//! | [`link`] | streams of datagrams at one rate, and when each came: what the bandwidth between two hosts is read from |
//!
//! Nothing here uses Penstock: no lanes, no chunks, no versions, no other process.

pub mod cores;
mod huge_pages;
pub mod limit;
pub mod link;
mod step;
