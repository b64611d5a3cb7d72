//! Streams of datagrams between two hosts: sent at one rate, and received with the time at which the kernel had each.
//!
//! A stream is a number of *messages*, one every `gap`. A message is one datagram at low rates and several, handed to the kernel
//! at once, at high ones, where a call for each datagram would take longer than the gap. Where the rate is above what the path
//! has to spare, each message waits longer than the one before (Jain and Dovrolis 2002); who judges that, and chooses the next
//! rate, stands above this crate.
//!
//! | at 1514 bytes a frame | datagrams a message | messages a second | calls a second without messages |
//! |---|---|---|---|
//! | 100 Mbit/s | 1 | 8 256 | 8 256 |
//! | 1 Gbit/s | 5 | 16 513 | 82 563 |
//! | 10 Gbit/s | 42 | 19 658 | 825 627 |
//!
//! The sender spins, since a timer wakes it 50 us late or more, which is a message. The receiver may come late: the kernel stamps
//! a datagram when the device hands it over.

mod datagram;
mod receive;
mod send;
mod socket;

pub use datagram::{HEADER, TOKEN};
pub use receive::{Heard, Message, Receiver};
pub use send::{Sent, Stream};
pub use socket::Socket;

/// Bytes of the largest UDP payload over IPv4.
pub const MOST_PAYLOAD: usize = 65_507;
/// Datagrams of a message: what every kernel that has `UDP_SEGMENT` takes.
pub const MOST_TOGETHER: usize = 64;
/// Messages of a stream: each costs the receiver 32 bytes.
pub const MOST_MESSAGES: u32 = 1 << 16;
