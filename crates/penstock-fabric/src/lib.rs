//! Memory that several processes share, and the protocols over it.
//!
//! Levels, slow to fast:
//!
//! | level | file | what |
//! |---|---|---|
//! | network | [`net`] | TCP connections that never block, plain or under TLS; the names of servers |
//! | control | [`socket`] | one datagram a message over a Unix socket, descriptors beside it |
//! | region | [`region`], [`layout`] | sealed memfds, mapped once, touched once; where everything lies in them |
//! | memory | [`memory`] | chunks as their home and their readers see them; lanes |
//! | process | [`forked`] | which process made something: a child of `fork` is another |
//! | process | [`signals`] | which signal has asked this one to end |
//! | wake-up | [`doorbell`] | spin, yield, then sleep; who sleeps says so |
//! | submission | [`ring`] | 64 bytes from a worker to a shard, without a system call while the shard is awake |
//! | publication | [`publish`] | version and payload: writer, reader |
//!
//! `publish`, `ring` and `doorbell` are model-checked with loom (`RUSTFLAGS="--cfg loom" cargo test -p penstock-fabric --release`).
//!
//! Each ordering was weakened once by hand, to see the models catch it: both fences and both orderings of `publish`, the
//! release and acquire on a ring's tail, and all four fences of `doorbell` fail at once. Two survive: the release and acquire
//! on a ring's head. They keep the shard's loads of a slot before the worker's next stores to it, and loom never lets a load
//! see a store that runs later; they stay by the memory model's word (load buffering), not the model checker's.
//!
//! # Architecture invariant
//! Nearly all unsafe code of the project lives here and in `penstock-kernels/src/arch`, behind doors that check once.
//! Memory that another process may write is read once, as atomics or through [`penstock_kernels::Foreign`], and judged
//! from the copy.

pub mod doorbell;
pub mod items;
pub mod publish;
pub mod ring;
pub mod sync;

#[cfg(not(loom))]
pub mod forked;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod net;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod signals;
#[cfg(not(loom))]
pub mod slab;
#[cfg(not(loom))]
pub mod socket;
