//! Bytes between hosts: a TCP connection that never blocks, plain or under TLS 1.3, and the names of servers.
//!
//! | file | what |
//! |---|---|
//! | [`stream`] | a connection: reads and writes what it can at once |
//! | [`tls`] | who is trusted, and with which certificate a server shows itself |
//! | [`endpoint`] | how a server is named |

pub mod endpoint;
pub mod stream;
pub mod tls;
