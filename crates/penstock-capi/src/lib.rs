//! The C interface: `libpenstock.so`, `libpenstock.a` and `penstock.h`.
//!
//! A thin seam over the crate `penstock`. What a C program sees is written here, above each item: `penstock.h` is made from
//! these texts by cbindgen, and `tests/header.rs` compares the committed one with the sources.
//!
//! | file | what |
//! |---|---|
//! | [`status`] | what calls return, and the text that belongs to it |
//! | [`face`] | hints in the words of a C program |
//! | [`boundary`] | pointers, sizes and panics, judged before anything else happens |
//! | [`job`] | joining, clock, barrier, leaving |
//! | [`optimizer`] | what a tensor does with contributions |
//! | [`filter`] | what of it is sent now, and what later |
//! | [`tensor`] | push and pull |
//! | [`sparse`] | the same of some rows or elements, and of factors |
//! | [`held`] | what filters hold back |
//! | [`table`] | item tables: set, add, get |
//! | [`call`] | what a single call may be told beside its arguments |
//! | [`request`] | start, test, wait |
//! | [`stats`] | counters |
//! | [`join`] | how a process finds the servers of its job: as `penstock.init()` does in Python |
#![allow(non_camel_case_types, reason = "these are C's names")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what holds for all pointers stands once, at the head of penstock.h"
)]

mod boundary;
mod face;
mod join;

// In the order in which penstock.h has them.
pub mod status;

pub mod job;

pub mod optimizer;

pub mod filter;

pub mod call;

pub mod tensor;

pub mod sparse;

pub mod held;

pub mod table;

pub mod request;

pub mod stats;

/// What penstock.h says of threads, as the compiler sees it.
const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<job::penstock_job>();
    any_thread::<tensor::penstock_tensor>();
    any_thread::<table::penstock_table>();
    any_thread::<table::views::penstock_view>();
};
