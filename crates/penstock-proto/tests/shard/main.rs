//! The shard's machine through its public face, over plain numbers: one `f64` for each chunk, so that every sum is exact.

mod cases;
mod interleavings;
mod rig;
