//! What both ends of a network connection do in the same way, beside [frames](penstock_fabric::net::frames).
//!
//! | file | what |
//! |---|---|
//! | [`items`] | messages about items |
//! | [`records`] | control messages of a stream and onto it |
//! | [`vigil`] | whether the other end lives, and showing it that this one does |
//! | [`dial`] | a worker's way to a server: connect, encrypt, prove identity |
//! | [`redial`] | the same again, after a connection has ended |
//! | [`travel`] | which codecs and filters there are |
//! | [`random`] | nonces |

pub(crate) mod dial;
pub(crate) mod items;
pub(crate) mod random;
pub(crate) mod records;
pub(crate) mod redial;
pub(crate) mod travel;
pub(crate) mod vigil;

use std::io;

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It broke, or brought damaged bytes: another may be made.
    Connection(io::Error),
    /// The peer did what no honest one does.
    Peer(String),
}

impl Ended {
    /// The line changed bytes on their way.
    pub(crate) fn damaged(what: &impl ToString) -> Self {
        Self::Connection(io::Error::other(what.to_string()))
    }
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<Ended> for io::Error {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Connection(error) => error,
            Ended::Peer(what) => Self::new(io::ErrorKind::InvalidData, what),
        }
    }
}
