//! A worker's side of a job.
//!
//! | file | what |
//! |---|---|
//! | [`job`] | a job: joining it, its clock, barriers |
//! | [`leaving`] | leaving the job: cleanly, or because of an error |
//! | [`tensor`] | push, pull, and what they wait for |
//! | [`table`] | items: set, get, and what they wait for |
//! | [`fate`] | whether the job goes on, for all that have to do with it |
//! | [`link`] | one server: its socket, page and rings, and the thread that keeps the lease |
//! | [`circle`] | whether a long wait is part of a circle of waits |
//! | [`error`] | what can go wrong, for whom, and what to do |

mod circle;
mod error;
mod fate;
mod job;
mod leaving;
mod link;
mod table;
mod tensor;

pub use error::{Due, Error};
pub use job::{Gathered, Job, Membership, Stats};
pub use table::{Chosen, Table, TableDeclaration, TableStats, View};
pub use tensor::{Asked, Declaration, Divided, Tensor, propagation};
