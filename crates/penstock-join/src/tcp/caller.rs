//! What rank 0 makes of the bytes of one connection: a machine without sockets.
//!
//! A caller that sends anything but the next message of the handshake is a [`Stranger`], whose connection is dropped. Before a
//! connection has proved itself it costs the bytes of one read.

use super::proof::{
    CLAIM_BYTES, Claim, Conversation, Digest, FRAME_HEAD_BYTES, HELLO_BYTES, MAGIC, Nonce, Side, TAKEN,
    WELCOME, WRONG_SECRET, WRONG_SIZE,
};
use crate::exchange::MESSAGE_LIMIT;
use penstock_proto::message::Secret;
use std::fmt;

/// Bytes of a connection that are kept until they are asked for.
const READ_AHEAD_LIMIT: usize = 2 * (FRAME_HEAD_BYTES + 1 + MESSAGE_LIMIT);

/// What arrived does not belong here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what arrived does not belong here")]
pub struct Stranger;

/// What rank 0 waits for.
#[derive(Debug)]
pub struct Expected {
    /// How many processes there are, rank 0 among them.
    pub size: u32,
    /// The job's.
    pub secret: Secret,
    /// Its name.
    pub job: String,
}

/// A process that has connected to rank 0, whether it has proved itself or not.
pub struct Caller {
    nonce: Nonce,
    received: Vec<u8>,
    /// What is to be sent, and was not yet.
    pub to_send: Vec<u8>,
    conversation: Option<Conversation>,
    admitted: bool,
    unproved: bool,
}

/// Without what was said: it may hold the job's secret.
impl fmt::Debug for Caller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Caller").field("admitted", &self.admitted).finish_non_exhaustive()
    }
}

impl Caller {
    /// A connection that has said nothing. `nonce` is drawn for it.
    pub fn new(nonce: Nonce) -> Self {
        Self {
            nonce,
            received: Vec::new(),
            to_send: Vec::new(),
            conversation: None,
            admitted: false,
            unproved: false,
        }
    }

    /// Takes bytes that came; nothing is made of them yet.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Stranger> {
        self.received.extend_from_slice(bytes);
        if self.received.len() > READ_AHEAD_LIMIT { Err(Stranger) } else { Ok(()) }
    }

    /// Whether nothing has come.
    pub fn is_silent(&self) -> bool {
        self.received.is_empty() && self.conversation.is_none()
    }

    /// Whether it has tried to prove that it knows the secret of a job of this name, and did not.
    pub fn is_unproved(&self) -> bool {
        self.unproved
    }

    /// Goes on with the handshake as far as the bytes allow; the rank, once the connection has proved itself. `here` says whether
    /// another process is here under a rank. What a stranger is to be told is in `to_send`.
    pub fn shake_hands(
        &mut self,
        expected: &Expected,
        here: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, Stranger> {
        if self.conversation.is_none() && !self.greet(expected)? {
            return Ok(None);
        }
        let Some(conversation) = &self.conversation else { return Ok(None) };
        let Some(bytes) = take::<CLAIM_BYTES>(&mut self.received) else { return Ok(None) };
        let (claim, proof) = bytes.split_first_chunk().expect("a claim is longer");
        let claim = Claim::read(*claim);
        let proof: Digest = proof.try_into().expect("the rest is the proof");
        if !conversation.proves(&proof, claim) {
            self.unproved = true;
            self.to_send.push(WRONG_SECRET);
        } else if claim.size != expected.size || !(1..expected.size).contains(&claim.rank) {
            self.to_send.push(WRONG_SIZE);
            self.to_send.extend_from_slice(&expected.size.to_le_bytes());
        } else if here(claim.rank) {
            self.to_send.push(TAKEN);
        } else {
            self.to_send.push(WELCOME);
            self.to_send.extend_from_slice(&conversation.proof(claim));
            self.admitted = true;
            return Ok(Some(claim.rank));
        }
        Err(Stranger)
    }

    /// Whether a whole hello has come.
    fn greet(&mut self, expected: &Expected) -> Result<bool, Stranger> {
        let begun = self.received.len().min(MAGIC.len());
        if self.received[..begun] != MAGIC[..begun] {
            return Err(Stranger);
        }
        let Some(hello) = take::<HELLO_BYTES>(&mut self.received) else { return Ok(false) };
        let worker = hello[MAGIC.len()..].try_into().expect("the rest is the nonce");
        let nonces = [worker, self.nonce];
        self.conversation = Some(Conversation::new(Side::Root, &expected.secret, &expected.job, nonces));
        self.to_send.extend_from_slice(&self.nonce);
        Ok(true)
    }

    /// The payload of the next frame, once it is whole. Only of a caller that has proved itself.
    pub fn message(&mut self) -> Result<Option<Vec<u8>>, Stranger> {
        let Some(conversation) = self.conversation.as_mut().filter(|_| self.admitted) else {
            return Err(Stranger);
        };
        let Some((head, behind)) = self.received.split_first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(None);
        };
        let (length, tag) = head.split_first_chunk().expect("a head is longer");
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_LIMIT + 1 {
            return Err(Stranger);
        }
        let Some(payload) = behind.get(..length) else { return Ok(None) };
        let tag = tag.try_into().expect("the rest is the tag");
        conversation.take(tag, payload).map_err(|_| Stranger)?;
        let payload = payload.to_vec();
        self.received.drain(..FRAME_HEAD_BYTES + length);
        Ok(Some(payload))
    }

    /// Says something to a caller that has proved itself.
    pub fn tell(&mut self, payload: &[u8]) {
        if let Some(conversation) = &mut self.conversation {
            self.to_send.extend(conversation.frame(payload));
        }
    }
}

/// The next `N` bytes, if they have come.
fn take<const N: usize>(received: &mut Vec<u8>) -> Option<[u8; N]> {
    let taken = *received.first_chunk()?;
    received.drain(..N);
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: Secret = Secret([7; 32]);
    const OURS: Nonce = [1; 32];

    fn expected() -> Expected {
        Expected { size: 3, secret: SECRET, job: "job".to_owned() }
    }

    /// What a worker whose nonce is known says in one go, and its end of the conversation.
    fn hello(secret: Secret, claim: Claim) -> (Vec<u8>, Conversation) {
        let talk = Conversation::new(Side::Worker, &secret, "job", [[2; 32], OURS]);
        ([&MAGIC[..], &[2; 32], &claim.spell(), &talk.proof(claim)].concat(), talk)
    }

    #[test]
    fn a_caller_is_let_in_however_its_bytes_are_cut() {
        let (bytes, mut talk) = hello(SECRET, Claim { rank: 1, size: 3 });
        let bytes = [bytes, talk.frame(b"a")].concat();
        for piece in [1, 7, 41, bytes.len()] {
            let mut caller = Caller::new(OURS);
            let (mut rank, mut heard) = (None, None);
            for piece in bytes.chunks(piece) {
                caller.receive(piece).expect("it is short");
                if rank.is_none() {
                    rank = caller.shake_hands(&expected(), |_| false).expect("it belongs here");
                }
                if rank.is_some() {
                    heard = caller.message().expect("it belongs here");
                }
            }
            assert_eq!((rank, heard.as_deref()), (Some(1), Some(&b"a"[..])));
            assert_eq!(caller.to_send.len(), 32 + 1 + 32);
        }
    }

    #[test]
    fn who_does_not_fit_is_told_why() {
        let cases = [
            (Secret([8; 32]), Claim { rank: 1, size: 3 }, vec![WRONG_SECRET]),
            (SECRET, Claim { rank: 1, size: 4 }, vec![WRONG_SIZE, 3, 0, 0, 0]),
            (SECRET, Claim { rank: 3, size: 3 }, vec![WRONG_SIZE, 3, 0, 0, 0]),
            (SECRET, Claim { rank: 0, size: 3 }, vec![WRONG_SIZE, 3, 0, 0, 0]),
            (SECRET, Claim { rank: 2, size: 3 }, vec![TAKEN]),
        ];
        for (secret, claim, answer) in cases {
            let mut caller = Caller::new(OURS);
            caller.receive(&hello(secret, claim).0).expect("it is short");
            assert_eq!(caller.shake_hands(&expected(), |rank| rank == 2), Err(Stranger));
            assert_eq!(caller.is_unproved(), answer[0] == WRONG_SECRET);
            assert_eq!(caller.to_send[32..], answer);
        }
    }

    #[test]
    fn a_frame_that_announces_too_much_is_refused_before_it_has_come() {
        let (bytes, _) = hello(SECRET, Claim { rank: 1, size: 3 });
        let mut caller = Caller::new(OURS);
        caller.receive(&bytes).expect("it is short");
        assert_eq!(caller.shake_hands(&expected(), |_| false), Ok(Some(1)));
        caller.receive(&[&(1_u32 << 30).to_le_bytes()[..], &[0; 32]].concat()).expect("it is short");
        assert_eq!(caller.message(), Err(Stranger));
    }

    #[test]
    fn nobody_is_heard_before_it_has_proved_itself() {
        let mut talk = Conversation::new(Side::Worker, &SECRET, "job", [[2; 32], OURS]);
        let mut caller = Caller::new(OURS);
        caller.receive(&[&MAGIC[..], &[2; 32]].concat()).expect("it is short");
        assert_eq!(caller.shake_hands(&expected(), |_| false), Ok(None));
        caller.receive(&talk.frame(b"a")).expect("it is short");
        assert_eq!(caller.message(), Err(Stranger));
    }

    #[test]
    fn no_more_is_kept_than_two_messages() {
        let mut caller = Caller::new(OURS);
        assert_eq!(caller.receive(&[0; READ_AHEAD_LIMIT]), Ok(()));
        assert_eq!(caller.receive(&[0]), Err(Stranger));
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_stranger_let_it_in(
            begun in 0..3_usize,
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            piece in 1..300_usize,
        ) {
            let begins: [&[u8]; 3] = [b"", &MAGIC, &[&MAGIC[..], &[2; 32]].concat()];
            let mut caller = Caller::new(OURS);
            for piece in [begins[begun], &bytes].concat().chunks(piece) {
                prop_assert!(caller.receive(piece).is_ok());
                match caller.shake_hands(&expected(), |_| false) {
                    Ok(rank) => prop_assert_eq!(rank, None),
                    Err(Stranger) => break,
                }
                prop_assert!(caller.message().is_err());
            }
        }
    }
}
