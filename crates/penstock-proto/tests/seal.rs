//! Seals: what a home has sealed is known by itself, and nothing else is taken for it.

use penstock_kernels::compress::Compressor;
use penstock_proto::checksum;
use penstock_proto::compress::Packed;
use penstock_proto::encoding::Encoding;
use penstock_proto::frame::{Body, Header, Notice};
use penstock_proto::seal::{Forged, MAX_SEAL_BYTES, MOST_LEAVES, Scope, Sealer, Verifier};
use penstock_proto::submission::Submission;
use proptest::prelude::*;

const SCOPE: Scope = Scope { job: 11, server: 2, shard: 3 };
const SEED: [u8; 32] = [9; 32];

/// A frame, and its payload.
type Frame = (Header, Vec<u8>);

fn frame(notice: Notice, payload: &[u8]) -> Frame {
    (Header::bare(SCOPE.job, 5, Body::Notice(notice)).with_payload(payload), payload.to_vec())
}

fn value(chunk: u32) -> Frame {
    let notice =
        Notice::Value { tensor: 1, chunk, version: 3, steps: 4, publication: 6, base: 5, content: 6 };
    let (header, payload) = frame(notice, &vec![chunk as u8; 100 * (chunk as usize + 1)]);
    let packed = chunk.is_multiple_of(2).then_some(Packed { by: Compressor::Zstd, length: 3000 + chunk });
    (header.with_packed(packed), payload)
}

fn raised(chunk: u32) -> Frame {
    frame(Notice::Raised { tensor: 1, chunk, count: 3, version: 4, steps: 5, contents: [6, 1, 2, 3] }, &[])
}

/// A batch of so many, each another.
fn batch(count: usize) -> Vec<Frame> {
    (0..count as u32).map(|chunk| if chunk % 3 == 1 { raised(chunk) } else { value(chunk) }).collect()
}

fn seal(sealer: &Sealer, frames: &[Frame]) -> Vec<Vec<u8>> {
    let leaves: Vec<_> = frames.iter().map(|(header, payload)| sealer.leaf(header, payload)).collect();
    let mut proofs = Vec::new();
    sealer.seal(&leaves, |place, proof| {
        assert_eq!(place, proofs.len(), "in order");
        proofs.push(proof.to_vec());
    });
    proofs
}

fn verifier() -> Verifier {
    Verifier::new(&Sealer::new(&SEED, SCOPE).key(), SCOPE).expect("it is a sealer's")
}

/// Whether who has verified nothing yet takes it, and then, whether one that has verified the whole batch does: they must agree.
fn taken(proof: &[u8], (header, payload): &Frame, known: &mut Verifier) -> Result<(), Forged> {
    let first = verifier().check(proof, header, payload);
    assert_eq!(known.check(proof, header, payload), first, "what was verified before makes nothing genuine");
    first
}

/// The batch, its proofs, and who has verified all of them.
fn sealed(count: usize) -> (Vec<Frame>, Vec<Vec<u8>>, Verifier) {
    let frames = batch(count);
    let proofs = seal(&Sealer::new(&SEED, SCOPE), &frames);
    let mut known = verifier();
    for (proof, frame) in proofs.iter().zip(&frames) {
        assert_eq!(taken(proof, frame, &mut known), Ok(()));
    }
    (frames, proofs, known)
}

const SIGNATURE: Result<(), Forged> = Err(Forged::Signature { scope: SCOPE });

#[test]
fn each_frame_of_a_batch_of_any_size_is_known_by_itself_and_by_no_other_proof() {
    for count in 1..=MOST_LEAVES {
        let (frames, proofs, mut known) = sealed(count);
        assert_eq!(proofs.len(), count);
        for (of, proof) in proofs.iter().enumerate() {
            assert!(proof.len() <= MAX_SEAL_BYTES);
            for (at, frame) in frames.iter().enumerate().filter(|&(at, _)| at != of) {
                assert_eq!(taken(proof, frame, &mut known), SIGNATURE, "{of} for {at} of {count}");
            }
        }
    }
    assert_eq!(sealed(MOST_LEAVES).1[0].len(), MAX_SEAL_BYTES);
}

#[test]
fn frames_of_a_batch_are_known_in_any_order_also_where_some_never_come() {
    let (frames, proofs, _) = sealed(7);
    let mut verifier = verifier();
    for place in [6, 2, 0, 2] {
        assert_eq!(verifier.check(&proofs[place], &frames[place].0, &frames[place].1), Ok(()));
    }
}

#[test]
fn more_batches_than_a_receiver_remembers_are_known_all_the_same() {
    let sealer = Sealer::new(&SEED, SCOPE);
    let batches: Vec<_> =
        (0..200).map(|chunk| (value(chunk), seal(&sealer, &[value(chunk)]).remove(0))).collect();
    let mut verifier = verifier();
    for ((header, payload), proof) in batches.iter().chain(&batches) {
        assert_eq!(verifier.check(proof, header, payload), Ok(()));
    }
}

#[test]
fn a_frame_has_its_place_and_at_another_only_one_that_is_the_same() {
    let (frames, proofs, mut known) = sealed(6);
    for place in (0..=MOST_LEAVES as u8).filter(|&place| place != 2) {
        let mut moved = proofs[2].clone();
        moved[0] = place;
        assert!(taken(&moved, &frames[2], &mut known).is_err(), "{place}");
    }
    // One that stands twice is known at both.
    let twice = [value(1), value(0), value(1)];
    let proofs = seal(&Sealer::new(&SEED, SCOPE), &twice);
    let mut verifier = verifier();
    for at in [0, 2] {
        assert_eq!(verifier.check(&proofs[at], &twice[0].0, &twice[0].1), Ok(()));
    }
}

#[test]
fn what_is_sealed_for_a_shard_of_a_job_or_with_a_key_fits_no_other() {
    let frames = batch(5);
    let proofs = seal(&Sealer::new(&SEED, SCOPE), &frames);
    let key = Sealer::new(&SEED, SCOPE).key();
    let others = [
        Scope { job: SCOPE.job ^ 1, ..SCOPE },
        Scope { server: SCOPE.server + 1, ..SCOPE },
        Scope { shard: SCOPE.shard + 1, ..SCOPE },
        Scope { server: SCOPE.shard, shard: SCOPE.server, ..SCOPE },
    ];
    let refuse = |mut verifier: Verifier, scope| {
        for ((header, payload), proof) in frames.iter().zip(&proofs) {
            assert_eq!(verifier.check(proof, header, payload), Err(Forged::Signature { scope }));
        }
    };
    for scope in others {
        refuse(Verifier::new(&key, scope).expect("it is a sealer's"), scope);
    }
    let other_key = Sealer::new(&[8; 32], SCOPE).key();
    refuse(Verifier::new(&other_key, SCOPE).expect("it is a sealer's"), SCOPE);
}

#[test]
fn one_seed_makes_one_key_and_one_proof_and_another_seed_others() {
    let made = |seed| {
        let sealer = Sealer::new(&seed, SCOPE);
        (sealer.key(), seal(&sealer, &batch(3)))
    };
    assert_eq!(made([1; 32]), made([1; 32]));
    assert_ne!(made([1; 32]).0, made([2; 32]).0);
}

#[test]
fn raised_versions_that_are_told_otherwise_are_not_the_homes() {
    let (header, _) = raised(2);
    let proofs = seal(&Sealer::new(&SEED, SCOPE), &[value(0), raised(2)]);
    let mut known = verifier();
    assert_eq!(taken(&proofs[1], &(header, Vec::new()), &mut known), Ok(()));
    for notice in [
        Notice::Raised { tensor: 1, chunk: 2, count: 4, version: 4, steps: 5, contents: [6, 1, 2, 3] },
        Notice::Raised { tensor: 1, chunk: 2, count: 3, version: 5, steps: 5, contents: [6, 1, 2, 3] },
        Notice::Raised { tensor: 1, chunk: 1, count: 3, version: 4, steps: 5, contents: [6, 1, 2, 3] },
        Notice::Raised { tensor: 0, chunk: 2, count: 3, version: 4, steps: 5, contents: [6, 1, 2, 3] },
        Notice::Raised { tensor: 1, chunk: 2, count: 3, version: 4, steps: 6, contents: [6, 1, 2, 3] },
        Notice::Raised { tensor: 1, chunk: 2, count: 3, version: 4, steps: 5, contents: [7, 1, 2, 3] },
        Notice::Value { tensor: 1, chunk: 2, version: 4, steps: 5, publication: 6, base: 0, content: 0 },
    ] {
        assert_eq!(taken(&proofs[1], &frame(notice, &[]), &mut known), SIGNATURE, "{notice:?}");
    }
}

#[test]
fn how_a_payload_is_compressed_is_sealed() {
    let (frames, proofs, mut known) = sealed(3);
    for (at, packed) in [
        (0, None),
        (0, Some(Packed { by: Compressor::Lz4, length: 3000 })),
        (0, Some(Packed { by: Compressor::Zstd, length: 3001 })),
        (2, None),
    ] {
        let (header, payload) = frames[at].clone();
        assert!(header.packed.is_some());
        assert_eq!(taken(&proofs[at], &(header.with_packed(packed), payload), &mut known), SIGNATURE);
    }
}

#[test]
fn each_connection_has_its_own_sequence_numbers_and_the_seal_stays() {
    let (frames, proofs, mut known) = sealed(2);
    let (mut header, payload) = frames[0].clone();
    header.sequence += 100;
    assert_eq!(taken(&proofs[0], &(header, payload), &mut known), Ok(()));
}

#[test]
fn what_no_home_seals_is_no_sealed_frame() {
    let (_, proofs, mut known) = sealed(2);
    let state = Header::bare(SCOPE.job, 5, Body::Notice(Notice::State { tensor: 1, chunk: 0 }));
    let submission = Submission::Clock { clock: 1 };
    let bodies = [Body::Submission { submission, wanted: false }, Body::Alive, Body::Notice(Notice::Seal)];
    for header in bodies.map(|body| Header { body, ..state }).into_iter().chain([state]) {
        let forged = taken(&proofs[0], &(header, Vec::new()), &mut known);
        assert_eq!(forged, Err(Forged::NeverSealed { got: header.body }));
    }
}

#[test]
fn a_proof_of_another_shape_says_what_is_wrong_with_it() {
    let (frames, proofs, mut known) = sealed(3);
    let mut refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut proof = proofs[2].clone();
        change(&mut proof);
        taken(&proof, &frames[2], &mut known)
    };
    let of = |count, place, expected, got| Err(Forged::Hashes { place, count, expected, got });
    assert_eq!(refused(&|proof| proof.clear()), Err(Forged::TooShort { got: 0 }));
    assert_eq!(refused(&|proof| proof.truncate(65)), Err(Forged::TooShort { got: 65 }));
    assert_eq!(refused(&|proof| proof[1] = 0), Err(Forged::Count { got: 0 }));
    assert_eq!(refused(&|proof| proof[1] = 17), Err(Forged::Count { got: 17 }));
    assert_eq!(refused(&|proof| proof[0] = 3), Err(Forged::Place { place: 3, count: 3 }));
    assert_eq!(refused(&|proof| proof[1] = 4), of(4, 2, 130, 98));
    assert_eq!(refused(&|proof| proof[0] = 1), of(3, 1, 130, 98));
    assert_eq!(refused(&|proof| proof.truncate(66)), of(3, 2, 98, 66));
    assert_eq!(refused(&|proof| proof.push(0)), of(3, 2, 98, 99));
    assert_eq!(refused(&|proof| proof.resize(66 + 64 * 32, 0)), of(3, 2, 98, 66 + 64 * 32));
    let (header, payload) = &frames[2];
    let longer = [&payload[..], &[0]].concat();
    assert_eq!(
        known.check(&proofs[2], header, &longer),
        Err(Forged::Length { expected: header.length, got: longer.len() })
    );
}

/// The whole of docs/layout.md's section, once more and in other words: by hand, for three frames.
#[test]
fn a_seal_is_what_the_page_says() {
    let page = include_str!("../../../docs/layout.md");
    let section =
        page.split("## Seal").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("it is there");
    let hashes = ["leaf", "node"].map(|of| {
        let context = format!("penstock seal 1 {of}");
        assert!(section.contains(&format!("| {of} | `{context}` |")));
        let mut scope = SCOPE.job.to_le_bytes().to_vec();
        scope.extend([SCOPE.server, SCOPE.shard].iter().flat_map(|number| number.to_le_bytes()));
        let key = blake3::derive_key(&context, &scope);
        (scope, move |over: &[u8]| *blake3::keyed_hash(&key, over).as_bytes())
    });
    let [(scope, leaf), (_, node)] = hashes;
    let frames = batch(3);
    let leaves: Vec<_> = frames
        .iter()
        .map(|(header, payload)| {
            let bytes = header.encode();
            let (words, length) = (&bytes[6 * 8..14 * 8], &bytes[4 * 8..4 * 8 + 4]);
            let packed = header.packed.map_or([0; 11], |Packed { by, length }| {
                let mut behind = [0; 11];
                behind[0] = by.number();
                behind[3..7].copy_from_slice(&length.to_le_bytes());
                behind
            });
            leaf(&[&payload[..], words, length, &[header.encoding.0], &packed].concat())
        })
        .collect();
    let left = node(&[leaves[0], leaves[1]].concat());
    let root = node(&[left, leaves[2]].concat());
    assert!(section.contains("`penstock seal 1 ` with its last space"));
    let signed = [&b"penstock seal 1 "[..], &scope, &[3], &root].concat();
    let pair = ring::signature::Ed25519KeyPair::from_seed_unchecked(&SEED).expect("32 bytes");
    let head = |place: u8| [&[place, 3][..], pair.sign(&signed).as_ref()].concat();
    let proofs = [
        [&head(0)[..], &leaves[1], &leaves[2]].concat(),
        [&head(1)[..], &leaves[0], &leaves[2]].concat(),
        [&head(2)[..], &left].concat(),
    ];
    assert_eq!(seal(&Sealer::new(&SEED, SCOPE), &frames), proofs);
    let most = section.split("batch, at most ").nth(1).and_then(|rest| rest.split(',').next());
    assert_eq!(most.and_then(|most| most.parse().ok()), Some(MOST_LEAVES));
    assert!(section.contains(&format!("0 to {} times 32", (MAX_SEAL_BYTES - 66) / 32)));
}

#[test]
fn where_there_is_nothing_to_seal_nothing_is_said() {
    assert!(seal(&Sealer::new(&SEED, SCOPE), &[]).is_empty());
}

proptest! {
    #[test]
    fn any_flipped_bit_of_a_proof_is_refused(
        count in 1..=MOST_LEAVES, place in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>()
    ) {
        let (frames, mut proofs, mut known) = sealed(count);
        let place = place.index(count);
        let bit = bit.index(8 * proofs[place].len());
        proofs[place][bit / 8] ^= 1 << (bit % 8);
        prop_assert!(taken(&proofs[place], &frames[place], &mut known).is_err());
    }

    #[test]
    fn any_flipped_bit_of_a_payload_is_refused(
        count in 1..=MOST_LEAVES, place in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>()
    ) {
        let (mut frames, proofs, mut known) = sealed(count);
        let (place, payload) = (place.index(count), |frame: &Frame| frame.1.clone());
        let mut changed = payload(&frames[place]);
        prop_assume!(!changed.is_empty());
        let bit = bit.index(8 * changed.len());
        changed[bit / 8] ^= 1 << (bit % 8);
        // A relay puts the checksum right.
        frames[place].0.checksum = checksum::of(&changed);
        frames[place].1 = changed;
        prop_assert_eq!(taken(&proofs[place], &frames[place], &mut known), SIGNATURE);
    }

    #[test]
    fn any_other_encoding_is_refused(count in 1..=MOST_LEAVES, place in any::<prop::sample::Index>(), bits in 1u8..) {
        let (mut frames, proofs, mut known) = sealed(count);
        let place = place.index(count);
        frames[place].0.encoding = Encoding(frames[place].0.encoding.0 ^ bits);
        prop_assert_eq!(taken(&proofs[place], &frames[place], &mut known), SIGNATURE);
    }

    /// Over the bytes of the header, so that no word of a notice is forgotten: what reads as the same header says the same.
    #[test]
    fn any_flipped_bit_of_a_notice_is_refused(
        count in 1..=MOST_LEAVES, place in any::<prop::sample::Index>(), bit in 0usize..512
    ) {
        let (mut frames, proofs, mut known) = sealed(count);
        let place = place.index(count);
        let genuine = frames[place].0;
        let mut bytes = genuine.encode();
        bytes[48 + bit / 8] ^= 1 << (bit % 8);
        let sum = checksum::of(&bytes[..120]);
        bytes[120..].copy_from_slice(&sum.to_le_bytes());
        if let Ok(changed) = Header::decode(&bytes) && changed != genuine {
            frames[place].0 = changed;
            prop_assert!(taken(&proofs[place], &frames[place], &mut known).is_err());
        }
    }

    #[test]
    fn a_payload_that_is_cut_or_goes_on_is_refused(length in 0usize..300, byte: u8) {
        let (mut frames, proofs, mut known) = sealed(1);
        let mut changed = frames[0].1.clone();
        prop_assume!(length != changed.len());
        changed.resize(length, byte);
        frames[0].0 = frames[0].0.with_payload(&changed);
        frames[0].1 = changed;
        prop_assert_eq!(taken(&proofs[0], &frames[0], &mut known), SIGNATURE);
    }

    #[test]
    fn no_bytes_are_a_proof_or_make_the_verifier_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (frames, _, mut known) = sealed(1);
        prop_assert!(taken(&bytes, &frames[0], &mut known).is_err());
    }
}
