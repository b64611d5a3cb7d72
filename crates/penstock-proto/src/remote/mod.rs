//! A tensor between hosts: the two machines at the ends of a connection.
//!
//! | file | word |
//! |---|---|
//! | [`asking`] | at the subscriber: what a pull and a push ask for |
//! | [`home`] | at the shard: which frames of a subscriber were taken, and what is owed to it |
//! | `awaited` | versions that were asked for and are not there |
//! | [`ledger`] | at the shard: what it keeps of a tensor's chunks beside their bytes |
//! | [`judge`] | at both: what a frame may be, before its payload is let in |
//! | [`mirror`] | at the subscriber: what is to be sent, which versions have come, what is asked for again on a new connection |
//! | `trial` | at the subscriber: whether it was a parent's fault that something was late |
//! | `returning` | at the subscriber: tickets that came before what others bring |
//!
//! Frames and bytes are left to others: to the server and the worker over sockets, and to the simulator over links that break.
//! What the two promise together:
//!
//! - **S-1** of [`outbox`](crate::outbox): submissions are taken all, in order, once.
//! - **S-2** What was asked for comes, at the version that was asked for or a newer one, wherever connections break.
//! - **S-3** A ticket comes back behind everything that was there when it was asked for and that was fetched with it or before,
//!   as new as it was then; it waits for no version that is still to come, whether pushes or fetches asked for that.
//! - **S-4** What is owed is chunk numbers, each at most once: a subscriber that asks and does not read cannot make the list
//!   longer.
//! - **S-5** Of what is broadcast everything that is published comes, once the value was asked for, as new as it is when its turn
//!   comes, wherever connections break.

pub mod asking;
mod awaited;
mod contents;
mod feeding;
pub mod home;
pub mod judge;
mod lag;
pub mod ledger;
pub mod mirror;
mod returning;
mod trial;

pub use contents::{Contents, contents};
pub use returning::Holding;
