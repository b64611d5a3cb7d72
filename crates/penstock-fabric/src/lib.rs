//! Memory that several processes share, and the protocols over it.
//!
//! Levels, slow to fast:
//!
//! | level | file | what |
//! |---|---|---|
//! | network | [`net`] | links that never block (TCP, plain or under TLS); frames over them, and what a proxy and a shard do with these; the names of servers |
//! | control | [`socket`] | one datagram a message over a Unix socket, descriptors beside it |
//! | region | [`region`], [`layout`] | sealed memfds, mapped once, touched once; where everything lies in them |
//! | memory | [`memory`] | chunks as their home and their readers see them; lanes |
//! | process | [`forked`] | which process made something: a child of `fork` is another |
//! | process | [`descriptors`] | how many may be open |
//! | process | [`signals`] | which signal has asked this one to end |
//! | process | [`this_thread`] | which of its threads this is |
//! | waiting | [`turn`] | one thread after the other, or many together and one alone; threads of one process |
//! | wake-up | [`doorbell`] | spin, yield, then sleep; a sleeper says so |
//! | submission | [`ring`] | 64 bytes from a worker to a shard, without a system call while the shard is awake |
//! | submission | [`inlet`] | what a shard, or its stand-in, takes of one worker |
//! | publication | [`publish`] | version and payload: writer, reader |
//!
//! What stands over [`sync`] is model-checked with loom (`make test-model`): `publish`, `ring`, `doorbell`, `turn`, and of
//! [`items`] `slot`, `steps`, `change_log`, `together` and `waiters`. The models run the code that runs: the order in which a
//! writer of rows does what stands in `items/steps.rs` alone, and a thread that sleeps there truly sleeps, so a thread that is
//! forgotten is a deadlock.
//!
//! # What a model notices
//! Each ordering was weakened once by hand, and each step left out or moved, to see the models catch it.
//! All fail but those below.
//!
//! | where | weakened or left out | noticed by a model of |
//! |---|---|---|
//! | `publish` | both fences; release and acquire of the sequence | `publish` |
//! | `ring` | release and acquire of the tail | `ring` |
//! | `doorbell` | each of the four fences | `doorbell` |
//! | `slot`, a buffer | release fence of `begin`, acquire fences of the two ways to read a row, of a row group's, and of `still`; no `begin`; no `part` | `slot` |
//! | `slot`, a buffer | release of the number, acquire of `within`; numbers before payloads | `slot`: rows of a mirror that come late |
//! | `slot`, progress | release and acquire of `done` and of `floor`; no `begin_several` | `slot` |
//! | `slot`, a mirror | release and acquire of `as_of`; no `confirm` | `together` |
//! | `change_log` | release and acquire of `logged`, both fences; no `begin_log`; no `end_log`, or one that ends an entry too early; a row that is not logged | `change_log`, `slot`: followers |
//! | `steps` | a set that is finished before its entries are | `change_log`: a mirror as of a set |
//! | `waiters` | release of the summary, acquire of the swap that takes it, all three fences; a summary that is not set again | `waiters` |
//! | `turn` | each ordering of a turn; a waiter does not say so; one that leaves wakes none | `turn` |
//! | `turn`, a floor | acquire on coming in, release on leaving; one that leaves, or gives up, does not ring; a ring that does not count | `turn` |
//!
//! These survive, and why they stay:
//! - Release and acquire on a ring's head keep the shard's loads of a slot before the worker's next stores to it. Loom never
//!   lets a load see a store that runs later; they stay by the memory model's word (load buffering), not the model checker's.
//! - Release and acquire of a waiter's line as it changes hands keep the stores of its last owner before those of the next. Loom
//!   gives the stores of one word the order in which they run.
//! - The fences of `begin_several` and `belong_together`, and the acquire of `several`: a reader that found a row of the set
//!   has acquired its number, and with it that the set was begun. They would be needed by a look at a row that does not.
//! - Of a line, release and acquire of `armed`, and of `rings` here and of a bell: the writer that takes the summary has acquired
//!   the line, and a reader that was rung looks again behind a fence of its own. The same holds for taking the follower, by a
//!   swap that acquires and releases. They cost nothing beside the system call, and spare the next reader that proof.
//! - The acquires of a ring's `is_empty`, `waiting` and `taken`, and of a region's `floor` by itself: no model has them. What
//!   they say is a hint, and a thread that acts on it looks again.
//!
//! # Architecture invariant
//! Nearly all unsafe code of the project lives here and in `penstock-kernels/src/arch`, behind functions that check
//! once. Memory that another process may write is read once, as atomics or through [`penstock_kernels::Foreign`],
//! and judged from the copy; but a lane that is sent from where it stands is read by the kernel as well.

pub mod doorbell;
pub mod items;
pub mod publish;
pub mod ring;
pub mod sync;
pub mod turn;

#[cfg(not(loom))]
pub mod descriptors;
#[cfg(not(loom))]
pub mod forked;
#[cfg(not(loom))]
pub mod inlet;
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
pub mod spent;
#[cfg(not(loom))]
pub mod this_thread;
