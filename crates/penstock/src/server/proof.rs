//! What the other end of a connection has proved. Over the network the [acceptor](super::acceptor) has seen to it before the
//! control thread hears of a connection; on a Unix socket the control thread does, by the same
//! [handshake](penstock_proto::handshake).

use crate::limits::lacking;
use crate::wire::random;
use penstock_proto::error::Refusal;
use penstock_proto::handshake::{SOCKET_BINDING, ServerHandshake, Verdict, verdict};
use penstock_proto::message::Secret;

/// How far it has come.
pub(super) enum Proof {
    /// Nothing was said.
    Wanted,
    /// It was asked for its proof.
    Asked(Box<ServerHandshake>),
    /// It knows the job's secret.
    Given,
}

impl Proof {
    pub(super) fn is_given(&self) -> bool {
        matches!(self, Self::Given)
    }

    /// Takes its next words: what to answer, or the refusal that ends the connection. The job's name is not compared: the socket
    /// is one job's alone, and a peer that knows the secret belongs to it.
    pub(super) fn hear(&mut self, words: &[u8], secret: Secret) -> Result<Vec<u8>, Refusal> {
        match std::mem::replace(self, Self::Wanted) {
            Self::Wanted => {
                let mut handshake = ServerHandshake::start(words)?;
                let nonce = random::bytes().map_err(lacking("draw a nonce"))?;
                let challenge = handshake.challenge(secret, nonce, SOCKET_BINDING);
                *self = Self::Asked(Box::new(handshake));
                Ok(challenge)
            }
            Self::Asked(handshake) => {
                handshake.finish(words)?;
                *self = Self::Given;
                Ok(verdict(&Verdict::Accepted))
            }
            Self::Given => Err(Refusal::Malformed { what: "it proved twice who it is".to_owned() }),
        }
    }
}
