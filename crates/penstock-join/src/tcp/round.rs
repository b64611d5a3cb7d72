//! A whole round, whichever end this process has.

use super::{Cause, Party, RendezvousAddress, RendezvousError, Root, Visitor};
use crate::exchange::{MESSAGE_LIMIT, NoVerdict, Verdict, failed, given};
use crate::patience::Patience;
use std::time::Duration;

/// Why a round gave no messages.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RoundError {
    /// The rendezvous itself.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// Rank 0's answer.
    #[error(transparent)]
    Verdict(#[from] NoVerdict),
    /// What this process gives.
    #[error("expected a message of at most {MESSAGE_LIMIT} bytes, got {got}")]
    TooLong {
        /// Its bytes.
        got: usize,
    },
    /// Not every process came.
    #[error("not every process came: {missing:?} did not")]
    Late {
        /// Ranks that did not.
        missing: Vec<u32>,
        /// How long they were waited for.
        waited: Duration,
        /// Where rank 0 was not reached, or did not let all in: why.
        cause: Option<Cause>,
    },
    /// Another process could not go on.
    #[error("{text}")]
    Failed {
        /// Which one, and why.
        text: String,
    },
}

/// This process's end of a rendezvous.
#[derive(Debug)]
pub enum Rendezvous {
    /// Rank 0's.
    Root(Box<Root>),
    /// Everyone else's.
    Visitor(Box<Visitor>),
}

impl Rendezvous {
    /// The end of `party`; rank 0 listens from now on.
    pub fn open(
        party: Party,
        at: &RendezvousAddress,
        patience: &Patience<'_>,
    ) -> Result<Self, RendezvousError> {
        Ok(match party.rank {
            0 => Self::Root(Box::new(Root::listen(party, at, patience)?)),
            _ => Self::Visitor(Box::new(Visitor::new(party, at.clone()))),
        })
    }

    /// Gives `message` and returns everyone's. `size`: how many processes there are.
    pub fn gather(
        &mut self,
        message: &[u8],
        size: u32,
        patience: &Patience<'_>,
    ) -> Result<Vec<Vec<u8>>, RoundError> {
        if message.len() > MESSAGE_LIMIT {
            return Err(RoundError::TooLong { got: message.len() });
        }
        match self.round(&given(message), size, patience)? {
            Verdict::Given(messages) => Ok(messages),
            Verdict::Late { missing, waited, no_room } => {
                let cause = no_room.map(|reason| Cause::NoRoom { reason }).or_else(|| self.unproved());
                Err(RoundError::Late { missing, waited, cause })
            }
            Verdict::Failed { text } => Err(RoundError::Failed { text }),
        }
    }

    /// Rank 0 saw a process come that could not prove itself: most likely one of those that are missing.
    fn unproved(&self) -> Option<Cause> {
        match self {
            Self::Root(root) => root.unproved().map(|host| Cause::Unproved { host }),
            Self::Visitor(_) => None,
        }
    }

    /// Takes part in a round as one that cannot go on: the others get the reason, shortened, in place of messages.
    pub fn fail(&mut self, why: &str, size: u32, patience: &Patience<'_>) {
        let why = failed(why);
        // Its own error is the one to be told.
        match self {
            Self::Root(_) => drop(self.round(&why, size, patience)),
            Self::Visitor(visitor) => drop(visitor.deliver(&why, patience)),
        }
    }

    fn round(
        &mut self,
        contribution: &[u8],
        size: u32,
        patience: &Patience<'_>,
    ) -> Result<Verdict, RoundError> {
        match self {
            Self::Root(root) => {
                let found = root.collect(contribution, patience)?;
                let verdict = if found.missing.is_empty() {
                    Verdict::over(&found.came)
                } else {
                    Verdict::Late {
                        missing: found.missing,
                        waited: patience.waited(),
                        no_room: found.no_room,
                    }
                };
                root.announce(&verdict.spell(), patience)?;
                Ok(verdict)
            }
            Self::Visitor(visitor) => {
                let told =
                    visitor.deliver(contribution, patience).and_then(|()| visitor.await_verdict(patience));
                match told {
                    Ok(verdict) => Ok(Verdict::read(&verdict, size)?),
                    Err(RendezvousError::Late { cause, .. }) => {
                        let (missing, waited) = (vec![0], patience.waited());
                        Err(RoundError::Late { missing, waited, cause: Some(cause) })
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}
