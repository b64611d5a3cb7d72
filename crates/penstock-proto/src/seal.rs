//! Seals: by what a worker that gets a frame from another worker knows that the home has made it.
//!
//! A home does not sign frame by frame. It hashes each frame to a *leaf*, makes a tree of the leaves of one batch, and signs the tree's
//! root: one signature for up to [`MOST_LEAVES`] frames. What goes before each frame, its *proof*, is that signature, the frame's
//! place in the tree, and the hashes beside its way up to the root. So each frame is known by itself, in whatever order frames come,
//! and whoever passes some on has to keep nothing of the others. (Such trees: Merkle 1987; over the packets of a stream: Wong and
//! Lam 1998.) All of it is drawn in docs/layout.md.
//!
//! The number of leaves is signed too and fixes the tree's shape, so a leaf fits at its own place alone. A leaf cannot be taken for a
//! node, nor what belongs to one [scope](Scope) for what belongs to another, because their hashes have other keys. What a header
//! says beside notice, encoding, lengths and compressor is not sealed: its sequence number is each connection's own, and its checksum is made
//! from the payload.
//!
//! Speed of light: every sealed byte is read once more, by the home and by each receiver, and each batch costs one signature there
//! and its verification here; `cargo bench -p penstock-proto --bench seal` has what that is.
//!
//! A seal says who has made a frame, not that it is news: an old frame is as good as on its first day. That it changes nothing is
//! its receiver's part, at which publications and versions never fall.

use crate::compress::Packed;
use crate::frame::{Body, Header, Notice};
use crate::hex::hex;
use crate::overlay::MAX_STRIPES;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use std::collections::VecDeque;
use std::iter;

/// Frames under one signature, at most: those of one batch.
pub const MOST_LEAVES: usize = 16;
/// Bytes of one frame's proof, at most.
pub const MAX_SEAL_BYTES: usize = HEAD_BYTES + MOST_HASHES * HASH_BYTES;
/// Verified roots that a receiver keeps, so that each signature is verified once: one for each stripe, of each of which the frames
/// of another batch may be on their way.
const KEPT: usize = MAX_STRIPES;

const HASH_BYTES: usize = blake3::OUT_LEN;
const SIGNATURE_BYTES: usize = 64;
/// Place, number of leaves, signature.
const HEAD_BYTES: usize = 2 + SIGNATURE_BYTES;
/// Hashes beside a leaf's way, at most.
const MOST_HASHES: usize = MOST_LEAVES.ilog2() as usize;
const _: () = assert!(MOST_LEAVES.is_power_of_two() && MOST_LEAVES <= u8::MAX as usize);

/// What BLAKE3 derives the keys of leaves and nodes from, besides the scope.
const LEAF: &str = "penstock seal 1 leaf";
/// See [`LEAF`].
const NODE: &str = "penstock seal 1 node";
/// What every signed message begins with.
const SIGNED: &[u8; 16] = b"penstock seal 1 ";
const SIGNED_BYTES: usize = SIGNED.len() + SCOPE_BYTES + 1 + HASH_BYTES;
const SCOPE_BYTES: usize = 16;

type Hash = [u8; HASH_BYTES];

/// The key by which a home's signatures are verified.
pub type Key = [u8; 32];

/// Whose frames: what is sealed for one shard of one job fits no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The job's number.
    pub job: u64,
    /// The server's number in it.
    pub server: u32,
    /// The shard's number at the server.
    pub shard: u32,
}

impl Scope {
    fn encode(self) -> [u8; SCOPE_BYTES] {
        let mut bytes = [0; SCOPE_BYTES];
        bytes[..8].copy_from_slice(&self.job.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.server.to_le_bytes());
        bytes[12..].copy_from_slice(&self.shard.to_le_bytes());
        bytes
    }
}

/// What of a frame is sealed, as a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf(Hash);

/// Why a frame is not taken for the home's. It was not applied, and nothing has changed; whoever has passed it on, or somebody before,
/// is to be left for the home itself.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Forged {
    /// A frame that no home seals.
    #[error("expected a sealed frame to be a value or raised versions, got {got:?}")]
    NeverSealed {
        /// What it says.
        got: Body,
    },
    /// The frame's payload is longer or shorter than its header says.
    #[error("expected {expected} bytes in a sealed frame, got {got}")]
    Length {
        /// What the header says.
        expected: u32,
        /// What came.
        got: usize,
    },
    /// A proof that is shorter than any.
    #[error("expected a seal of at least {HEAD_BYTES} bytes, got {got}")]
    TooShort {
        /// Its length.
        got: usize,
    },
    /// A proof of a frame among too many, or none.
    #[error("expected a seal of 1 to {MOST_LEAVES} frames, got one of {got}")]
    Count {
        /// How many.
        got: usize,
    },
    /// A proof of a frame that is not among those.
    #[error("expected a seal of one of {count} frames, got one of number {place}, counted from 0")]
    Place {
        /// Its place.
        place: usize,
        /// How many there are.
        count: usize,
    },
    /// A proof with more or fewer hashes than its place in the tree has beside it.
    #[error("expected a seal of {expected} bytes for frame {place} of {count}, counted from 0, got {got}")]
    Hashes {
        /// Its place.
        place: usize,
        /// How many there are.
        count: usize,
        /// How long it has to be.
        expected: usize,
        /// How long it is.
        got: usize,
    },
    /// The signature is not the home's, or not for this frame.
    #[error("expected a frame that server {}, shard {} has sealed, got another, or one that was changed", scope.server, scope.shard)]
    Signature {
        /// Whose it should be.
        scope: Scope,
    },
}

/// A key under which anyone can sign: no home has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a key under which only its home can sign, got {}", hex(got))]
pub struct WeakKey {
    /// It.
    pub got: Key,
}

/// The keys of one scope's hashes.
#[derive(Debug, Clone)]
struct Hashes {
    scope: Scope,
    leaf: Hash,
    node: Hash,
}

impl Hashes {
    fn new(scope: Scope) -> Self {
        let bytes = scope.encode();
        Self { scope, leaf: blake3::derive_key(LEAF, &bytes), node: blake3::derive_key(NODE, &bytes) }
    }

    /// The payload comes first: behind something shorter than BLAKE3's own chunks of 1 KiB its vectors fill late, and 32 KiB took 2.6
    /// times as long. What comes behind it has one length, so that nothing can be read in two ways.
    fn leaf(&self, notice: &Notice, header: &Header, payload: &[u8]) -> Leaf {
        let mut behind = [0; 80];
        for (bytes, word) in behind.chunks_exact_mut(8).zip(notice.encode()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        behind[64..68].copy_from_slice(&header.length.to_le_bytes());
        behind[68] = header.encoding.0;
        if let Some(Packed { by, length }) = header.packed {
            behind[69] = by.number();
            behind[72..76].copy_from_slice(&length.to_le_bytes());
        }
        let mut hasher = blake3::Hasher::new_keyed(&self.leaf);
        hasher.update(payload).update(&behind);
        Leaf(*hasher.finalize().as_bytes())
    }

    fn node(&self, left: &Hash, right: &Hash) -> Hash {
        let mut both = [0; 2 * HASH_BYTES];
        both[..HASH_BYTES].copy_from_slice(left);
        both[HASH_BYTES..].copy_from_slice(right);
        *blake3::keyed_hash(&self.node, &both).as_bytes()
    }

    /// What is signed.
    fn signed(&self, count: usize, root: &Hash) -> [u8; SIGNED_BYTES] {
        let mut bytes = [0; SIGNED_BYTES];
        let (what, rest) = bytes.split_at_mut(SIGNED.len());
        let (scope, rest) = rest.split_at_mut(SCOPE_BYTES);
        what.copy_from_slice(SIGNED);
        scope.copy_from_slice(&self.scope.encode());
        rest[0] = count as u8;
        rest[1..].copy_from_slice(root);
        bytes
    }
}

/// The way from a leaf to the root: each height where there is a hash beside it, and the place there of what is on the way. An even
/// place is a left one, and the hash beside it the next.
fn way(place: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    iter::successors(Some((place, count)), |&(place, count)| Some((place / 2, count.div_ceil(2))))
        .take_while(|&(_, count)| count > 1)
        .enumerate()
        .filter(|&(_, (place, count))| place ^ 1 < count)
        .map(|(height, (place, _))| (height, place))
}

/// The notice, if a home seals such.
fn sealed(header: &Header) -> Option<&Notice> {
    match &header.body {
        Body::Notice(notice @ (Notice::Value { .. } | Notice::Raised { .. })) => Some(notice),
        _ => None,
    }
}

/// The home's side: what it seals frames with.
#[derive(Debug)]
pub struct Sealer {
    pair: Ed25519KeyPair,
    hashes: Hashes,
}

impl Sealer {
    /// What seals for this scope, with the pair of keys that belongs to `seed`: whoever knows that can seal too.
    pub fn new(seed: &[u8; 32], scope: Scope) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are a seed");
        Self { pair, hashes: Hashes::new(scope) }
    }

    /// By what receivers verify.
    pub fn key(&self) -> Key {
        self.pair.public_key().as_ref().try_into().expect("it has 32 bytes")
    }

    /// The leaf of a frame, whoever it goes to.
    ///
    /// # Panics
    /// If it is neither a value nor raised versions, or the payload is not the one that its header announces.
    pub fn leaf(&self, header: &Header, payload: &[u8]) -> Leaf {
        let notice = sealed(header).expect("only values and raised versions are sealed");
        assert_eq!(payload.len(), header.length as usize, "the payload is the header's");
        self.hashes.leaf(notice, header, payload)
    }

    /// Signs all of them at once, and gives each one's proof, in order.
    ///
    /// # Panics
    /// If there are more than [`MOST_LEAVES`].
    pub fn seal(&self, leaves: &[Leaf], mut each: impl FnMut(usize, &[u8])) {
        let count = leaves.len();
        assert!(count <= MOST_LEAVES, "{count} frames in a batch");
        if count == 0 {
            return;
        }
        // The lowest row first.
        let mut rows = [[[0; HASH_BYTES]; MOST_LEAVES]; MOST_HASHES + 1];
        for (hash, leaf) in rows[0].iter_mut().zip(leaves) {
            *hash = leaf.0;
        }
        let (mut height, mut length) = (0, count);
        while length > 1 {
            let (below, above) = rows.split_at_mut(height + 1);
            for (hash, pair) in above[0].iter_mut().zip(below[height][..length].chunks(2)) {
                *hash = match pair {
                    [left, right] => self.hashes.node(left, right),
                    alone => alone[0],
                };
            }
            (height, length) = (height + 1, length.div_ceil(2));
        }
        let signature = self.pair.sign(&self.hashes.signed(count, &rows[height][0]));

        let mut proof = [0; MAX_SEAL_BYTES];
        proof[1] = count as u8;
        proof[2..HEAD_BYTES].copy_from_slice(signature.as_ref());
        for place in 0..count {
            proof[0] = place as u8;
            let mut end = HEAD_BYTES;
            for (height, on_the_way) in way(place, count) {
                proof[end..end + HASH_BYTES].copy_from_slice(&rows[height][on_the_way ^ 1]);
                end += HASH_BYTES;
            }
            each(place, &proof[..end]);
        }
    }
}

/// What was signed, and the signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Signed {
    root: Hash,
    count: usize,
    signature: [u8; SIGNATURE_BYTES],
}

/// A proof, of the right shape.
struct Proof<'a> {
    place: usize,
    count: usize,
    signature: &'a [u8; SIGNATURE_BYTES],
    beside: &'a [Hash],
}

impl<'a> Proof<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Forged> {
        let got = bytes.len();
        let Some((&[place, count], rest)) = bytes.split_first_chunk() else {
            return Err(Forged::TooShort { got });
        };
        let Some((signature, rest)) = rest.split_first_chunk() else {
            return Err(Forged::TooShort { got });
        };
        let (place, count) = (usize::from(place), usize::from(count));
        if !(1..=MOST_LEAVES).contains(&count) {
            return Err(Forged::Count { got: count });
        }
        if place >= count {
            return Err(Forged::Place { place, count });
        }
        let expected = HEAD_BYTES + way(place, count).count() * HASH_BYTES;
        if got != expected {
            return Err(Forged::Hashes { place, count, expected, got });
        }
        Ok(Self { place, count, signature, beside: rest.as_chunks().0 })
    }

    /// What must have been signed, if this is the leaf.
    fn signed(&self, hashes: &Hashes, leaf: Leaf) -> Signed {
        let root = way(self.place, self.count).zip(self.beside).fold(leaf.0, |hash, ((_, place), beside)| {
            if place % 2 == 0 { hashes.node(&hash, beside) } else { hashes.node(beside, &hash) }
        });
        Signed { root, count: self.count, signature: *self.signature }
    }
}

/// A receiver's side: what it knows the home's frames by.
#[derive(Debug, Clone)]
pub struct Verifier {
    key: Key,
    hashes: Hashes,
    /// What was verified last, the newest last. Together with the signatures: another one over the same root is not the home's.
    verified: VecDeque<Signed>,
}

impl Verifier {
    /// For what the home with this key seals for this scope. A key under which anyone can sign is refused, such as zeros that stand
    /// where nobody has put one.
    pub fn new(key: &Key, scope: Scope) -> Result<Self, WeakKey> {
        if is_weak(key) {
            return Err(WeakKey { got: *key });
        }
        Ok(Self { key: *key, hashes: Hashes::new(scope), verified: VecDeque::with_capacity(KEPT) })
    }

    /// Whether the home has sealed this frame: its payload, its notice, and how it is encoded.
    pub fn check(&mut self, proof: &[u8], header: &Header, payload: &[u8]) -> Result<(), Forged> {
        let notice = sealed(header).ok_or(Forged::NeverSealed { got: header.body })?;
        if payload.len() != header.length as usize {
            return Err(Forged::Length { expected: header.length, got: payload.len() });
        }
        let proof = Proof::read(proof)?;
        let signed = proof.signed(&self.hashes, self.hashes.leaf(notice, header, payload));
        if self.verified.iter().rev().any(|verified| *verified == signed) {
            return Ok(());
        }
        let message = self.hashes.signed(signed.count, &signed.root);
        if UnparsedPublicKey::new(&ED25519, &self.key).verify(&message, &signed.signature).is_err() {
            return Err(Forged::Signature { scope: self.hashes.scope });
        }
        if self.verified.len() == KEPT {
            self.verified.pop_front();
        }
        self.verified.push_back(signed);
        Ok(())
    }
}

/// Whether a key is one of the curve's points of small order, in any spelling: a few multiples of it are all there are, so that a
/// signature can be found by trying. `ring` does not look. Without the sign, the last byte's highest bit, they are seven.
fn is_weak(key: &Key) -> bool {
    let mut y = *key;
    y[31] &= 0x7f;
    SMALL_ORDER.contains(&y)
}

/// The y of order 4, 1 and 2; the two of order 8; and 0 and 1 once more, as p and p + 1, where p is 2^255 - 19.
const SMALL_ORDER: [Key; 7] = [
    [0; 32],
    small(1, 0, 0),
    small(0xec, 0xff, 0x7f),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
        0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
        0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ],
    small(0xed, 0xff, 0x7f),
    small(0xee, 0xff, 0x7f),
];

/// A key of this first byte, this last one, and thirty alike between.
const fn small(first: u8, between: u8, last: u8) -> Key {
    let mut key = [between; 32];
    key[0] = first;
    key[31] = last;
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope = Scope { job: 1, server: 2, shard: 3 };

    #[test]
    fn a_key_under_which_anyone_can_sign_is_refused_as_is_one_that_nobody_has_set() {
        // The point of order 1 adds nothing to any signature: this one fits every message.
        let forged = [&small(1, 0, 0)[..], &[0; 32]].concat();
        let fits = |key: &Key| UnparsedPublicKey::new(&ED25519, key).verify(b"any message", &forged).is_ok();
        assert!(fits(&small(1, 0, 0)), "ring does not look");
        for weak in SMALL_ORDER {
            for sign in [0, 0x80] {
                let mut key = weak;
                key[31] |= sign;
                assert_eq!(Verifier::new(&key, SCOPE).map(|_| ()), Err(WeakKey { got: key }));
            }
        }
        assert!(Verifier::new(&Sealer::new(&[0; 32], SCOPE).key(), SCOPE).is_ok());
    }

    /// All multiples of the points of small order, as the curve's own law has them: signatures are found by trying, a few at most.
    #[test]
    fn under_each_weak_key_a_signature_is_found_by_trying() {
        // R is one of the eight points, s is 0: the signature fits when the hash's remainder by the order says so.
        let tries = |key: Key| {
            (0..64u8).any(|message| {
                SMALL_ORDER.iter().flat_map(|point| [0, 0x80].map(|sign| (point, sign))).any(
                    |(point, sign)| {
                        let mut signature = [0; 64];
                        signature[..32].copy_from_slice(point);
                        signature[31] |= sign;
                        UnparsedPublicKey::new(&ED25519, &key).verify(&[message], &signature).is_ok()
                    },
                )
            })
        };
        for weak in SMALL_ORDER {
            assert!(tries(weak), "{}", hex(&weak));
        }
        assert!(!tries(Sealer::new(&[0; 32], SCOPE).key()));
    }

    #[test]
    fn leaves_nodes_and_scopes_are_hashed_apart() {
        let hashes = Hashes::new(SCOPE);
        let (left, right) = ([1; 32], [2; 32]);
        let both = [left, right].concat();
        let node = hashes.node(&left, &right);
        assert_ne!(node, hashes.node(&right, &left));
        assert_ne!(node, *blake3::keyed_hash(&hashes.leaf, &both).as_bytes());
        for scope in [Scope { job: 2, ..SCOPE }, Scope { server: 3, ..SCOPE }, Scope { shard: 2, ..SCOPE }] {
            let other = Hashes::new(scope);
            assert_ne!(other.node(&left, &right), node);
            assert_ne!(other.leaf, hashes.leaf);
            assert_ne!(other.signed(1, &left), hashes.signed(1, &left));
        }
    }

    #[test]
    fn a_way_has_a_hash_beside_it_at_each_height_but_where_the_last_one_is_alone() {
        let lengths = |count| (0..count).map(|place| way(place, count).count()).collect::<Vec<_>>();
        assert_eq!(lengths(1), [0]);
        assert_eq!(lengths(3), [2, 2, 1]);
        assert_eq!(lengths(5), [3, 3, 3, 3, 1]);
        assert_eq!(lengths(16), [4; 16]);
    }
}
