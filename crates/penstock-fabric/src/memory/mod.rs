//! Chunks as their home and their readers see them, and lanes as both ends see them.
//!
//! Who may write what: a home's chunks are lent out as `&mut [u8]` by [`HomeMemory`], of which there is exactly one for each
//! shard and tensor; all others see them through [`Foreign`] loads between two looks at the header ([`crate::publish`]). What
//! is written while others look, or by more than one thread, is written through [`ForeignMut`] by one owner: a lane by its
//! [`OwnLane`], what a worker on another host sends by the [`LaneView`] of the shard that is home of it.
//!
//! | file | what |
//! |---|---|
//! | [`extent`] | how a server's part of a tensor lies in its regions |
//! | [`home`] | the chunks that a shard is home of |
//! | [`lane`] | contributions, as the shard and as the worker see them |
//! | [`worker`] | a tensor as a worker sees it |
//! | [`state`] | the optimizer's state |
//! | [`windows`] | where a worker sees what is mirrored: in its own memory, or in that of another worker |
//! | [`near`] | prefetching |

mod extent;
mod home;
mod lane;
mod near;
mod state;
#[cfg(test)]
mod tests;
mod windows;
mod worker;

pub use extent::ExtentLayout;
pub use home::{HomeChunk, HomeMemory, HomeRegions, ModelDescriptors, homes_in};
pub use lane::{LaneView, OwnLane};
pub(crate) use near::{bring_near, claim};
pub use state::{StateMirror, StateView};
pub use windows::{LendError, Lent, Look, Unread, Windows, untouched};
pub use worker::{Place, ServerPart, ValueCopy, WorkerMemory};
