//! The handshake and the frames of a rendezvous, without sockets.
//!
//! ```text
//! worker                                        rank 0
//!   MAGIC (8) | worker's nonce (32)        ->
//!                                          <-   rank 0's nonce (32)
//!   rank (4) | size (4) | proof (32)       ->
//!                                          <-   answer (1) | proof (32), or answer (1) alone
//! ```
//!
//! A proof is HMAC-SHA256 over the side's label, both nonces, rank and size, keyed with a key that HMAC derives from the job's
//! secret and name. The secret is never sent, a recorded conversation is of no use in another, and a side's own proof sent back
//! to it proves nothing, because the labels differ. Then each side sends frames:
//!
//! ```text
//! length (4) | tag (32) | payload (length)
//! ```
//!
//! whose tag is HMAC-SHA256 over the direction, the frame's number and the payload, keyed for this conversation: a frame
//! that was changed, repeated or left out ends it. Payloads are readable on the way; endpoint strings are not secret.
//! Numbers are little-endian.

use hmac::{Hmac, Mac as _};
use penstock_proto::mac;
use penstock_proto::message::Secret;
use sha2::Sha256;

/// First bytes of a worker's hello.
pub const MAGIC: [u8; 8] = *b"PSMEET\x00\x02";
/// Random bytes, drawn for one conversation.
pub type Nonce = [u8; 32];
/// A proof, or a frame's tag.
pub type Digest = [u8; 32];

/// Bytes of the worker's hello.
pub const HELLO_BYTES: usize = MAGIC.len() + size_of::<Nonce>();
/// Bytes of its rank and size, with its proof.
pub const CLAIM_BYTES: usize = 8 + size_of::<Digest>();
/// Bytes before a frame's payload.
pub const FRAME_HEAD_BYTES: usize = 4 + size_of::<Digest>();

/// Rank 0's answer to a claim: welcome. Its own proof follows.
pub const WELCOME: u8 = b'W';
/// Another secret or another job.
pub const WRONG_SECRET: u8 = b'S';
/// Another number of processes. The number that rank 0 expects follows, 4 bytes.
pub const WRONG_SIZE: u8 = b'N';
/// Another process has this rank. This may pass: an earlier connection has yet to end.
pub const TAKEN: u8 = b'T';

/// One of the two that talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that comes.
    Worker,
    /// Rank 0.
    Root,
}

impl Side {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Worker => b"worker\x00",
            Self::Root => b"root\x00",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Worker => Self::Root,
            Self::Root => Self::Worker,
        }
    }
}

/// What a worker says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its rank.
    pub rank: u32,
    /// How many processes it was told that there are.
    pub size: u32,
}

impl Claim {
    /// Its bytes.
    pub fn spell(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// Reads them.
    pub fn read(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self { rank: u32::from_le_bytes([a, b, c, d]), size: u32::from_le_bytes([e, f, g, h]) }
    }
}

/// What came is not the next frame of this conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected the next frame of this conversation, got something else")]
pub struct BadFrame;

/// What two sides that know the secret derive from both nonces.
pub struct Conversation {
    side: Side,
    nonces: [Nonce; 2],
    proving: Digest,
    framing: Digest,
    sent: u64,
    received: u64,
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Conversation").field("side", &self.side).finish_non_exhaustive()
    }
}

impl Conversation {
    /// Begins one. `nonces`: the worker's, then rank 0's.
    pub fn new(side: Side, secret: &Secret, job: &str, nonces: [Nonce; 2]) -> Self {
        let root = digest(&secret.0, &[b"penstock rendezvous 1\x00", job.as_bytes()]);
        let proving = digest(&root, &[b"prove\x00"]);
        let framing = digest(&root, &[b"frame\x00", &nonces[0], &nonces[1]]);
        Self { side, nonces, proving, framing, sent: 0, received: 0 }
    }

    /// That this side knows the secret.
    pub fn proof(&self, claim: Claim) -> Digest {
        self.proof_of(self.side, claim).finalize().into_bytes().into()
    }

    /// Whether the other side knows it.
    pub fn proves(&self, proof: &Digest, claim: Claim) -> bool {
        self.proof_of(self.side.other(), claim).verify_slice(proof).is_ok()
    }

    /// The next frame to send.
    pub fn frame(&mut self, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("a payload is short");
        let tag = self.tag_of(self.side, self.sent, payload).finalize().into_bytes();
        self.sent += 1;
        [&length.to_le_bytes(), &tag[..], payload].concat()
    }

    /// Takes the next frame that came, or refuses it.
    pub fn take(&mut self, tag: &Digest, payload: &[u8]) -> Result<(), BadFrame> {
        let expected = self.tag_of(self.side.other(), self.received, payload);
        expected.verify_slice(tag).map_err(|_| BadFrame)?;
        self.received += 1;
        Ok(())
    }

    fn proof_of(&self, side: Side, claim: Claim) -> Hmac<Sha256> {
        mac(&self.proving, &[side.label(), &self.nonces[0], &self.nonces[1], &claim.spell()])
    }

    fn tag_of(&self, side: Side, number: u64, payload: &[u8]) -> Hmac<Sha256> {
        mac(&self.framing, &[side.label(), &number.to_le_bytes(), payload])
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    mac::of(key, parts.iter().copied())
}

fn digest(key: &[u8], parts: &[&[u8]]) -> Digest {
    mac(key, parts).finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Claim = Claim { rank: 1, size: 2 };

    fn conversations(nonce: u8) -> (Conversation, Conversation) {
        let begin = |side| Conversation::new(side, &Secret([7; 32]), "job", [[nonce; 32], [2; 32]]);
        (begin(Side::Worker), begin(Side::Root))
    }

    fn taken(reader: &mut Conversation, frame: &[u8]) -> Result<(), BadFrame> {
        let tag = frame[4..FRAME_HEAD_BYTES].try_into().expect("it is one");
        reader.take(tag, &frame[FRAME_HEAD_BYTES..])
    }

    #[test]
    fn a_proof_is_worth_nothing_from_the_other_side_for_another_rank_or_in_another_conversation() {
        let (worker, root) = conversations(1);
        assert!(root.proves(&worker.proof(CLAIM), CLAIM));
        assert!(worker.proves(&root.proof(CLAIM), CLAIM));
        assert!(!worker.proves(&worker.proof(CLAIM), CLAIM), "reflected");
        assert!(!root.proves(&worker.proof(CLAIM), Claim { rank: 2, size: 3 }));
        assert!(!conversations(3).1.proves(&worker.proof(CLAIM), CLAIM), "replayed");
    }

    #[test]
    fn another_secret_or_another_job_proves_nothing() {
        let (worker, _) = conversations(1);
        for (secret, job) in [(Secret([8; 32]), "job"), (Secret([7; 32]), "another")] {
            let root = Conversation::new(Side::Root, &secret, job, [[1; 32], [2; 32]]);
            assert!(!root.proves(&worker.proof(CLAIM), CLAIM));
        }
    }

    #[test]
    fn a_frame_that_was_changed_repeated_reflected_or_left_out_is_found_out() {
        let (mut worker, mut root) = conversations(1);
        let (first, second) = (worker.frame(b"first"), worker.frame(b"second"));
        let mut changed = first.clone();
        *changed.last_mut().expect("it has bytes") = b'?';
        assert_eq!(taken(&mut root, &changed), Err(BadFrame));
        assert_eq!(taken(&mut root, &second), Err(BadFrame), "the first was left out");
        assert_eq!(taken(&mut worker, &first), Err(BadFrame), "reflected");
        assert_eq!(taken(&mut root, &first), Ok(()));
        assert_eq!(taken(&mut root, &first), Err(BadFrame), "repeated");
        assert_eq!(taken(&mut root, &second), Ok(()));
    }
}
