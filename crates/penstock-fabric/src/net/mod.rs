//! Bytes between hosts: links, frames over them, and the names of servers.
//!
//! | file | what |
//! |---|---|
//! | [`link`] | a connection that never blocks, whatever it is made of |
//! | [`stream`] | one over TCP, plain or under TLS 1.3 |
//! | [`quiet`] | writing to a socket without a signal where its peer has gone |
//! | [`tls`] | who is trusted, and with which certificate a server shows itself |
//! | [`frames`] | frames of a link and onto it |
//! | [`endpoint`] | how a server is named |

pub mod endpoint;
pub mod frames;
pub mod link;
pub mod quiet;
pub mod stream;
pub mod tls;
