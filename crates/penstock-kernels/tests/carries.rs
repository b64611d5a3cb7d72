//! What every codec and every filter promises, of those that there are and of those that tests bring: bytes that cannot be
//! decoded change nothing (E-2).

mod travel;

use penstock_kernels::Foreign;
use penstock_kernels::codec::{Base, Codec, Raw, Sparse};
use penstock_kernels::filter::{Everything, Filter};
use proptest::prelude::*;
use travel::changes::{Changes, ENTRY};
use travel::loud::Loud;

const CODECS: [&dyn Codec; 5] = [&Raw, &Changes, &Sparse::<2>, &Sparse::<4>, &Sparse::<8>];
const LOUD: Loud = Loud { quiet: 2 };

/// A chunk and what its receiver holds, which differ in a few bytes.
fn chunks() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12);
    (prop::collection::vec(any::<u8>(), 1..300), edits).prop_map(|(held, edits)| {
        let mut chunk = held.clone();
        edits.into_iter().for_each(|(at, byte)| *at.get_mut(&mut chunk) = byte);
        (chunk, held)
    })
}

proptest! {
    #[test]
    fn who_holds_the_base_holds_the_chunk_afterwards_bit_for_bit((chunk, held) in chunks(), whole: bool) {
        for codec in CODECS {
            let (base, onto) = if whole { (None, Base::Zeros) } else { (Some(&held[..]), Base::Held) };
            let lengths = codec.lengths(chunk.len());
            let mut out = vec![0; *lengths.end()];
            let Some(length) = codec.encode(Foreign::of(&chunk), base, &mut out) else { continue };
            prop_assert!(lengths.contains(&length));
            prop_assert!(length == chunk.len() || !codec.is_verbatim());
            let mut receiver = held.clone();
            prop_assert_eq!(codec.decode(&out[..length], onto, &mut receiver), Ok(()));
            prop_assert_eq!(&receiver, &chunk, "{:?}", codec);
            prop_assert!(!codec.is_verbatim() || out == chunk);
        }
    }

    /// E-2.
    #[test]
    fn a_payload_of_any_bytes_is_decoded_or_refused_and_what_is_refused_changes_nothing(
        (chunk, held) in chunks(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in 0usize..20,
        garbage in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        for codec in CODECS {
            let mut out = vec![0; *codec.lengths(chunk.len()).end()];
            let length = codec.encode(Foreign::of(&chunk), Some(&held), &mut out).unwrap_or(0);
            out.truncate(length.saturating_sub(cut));
            if !out.is_empty() {
                edits.iter().for_each(|(at, byte)| *at.get_mut(&mut out) = *byte);
            }
            for payload in [&out, &garbage] {
                for base in [Base::Held, Base::Zeros] {
                    let mut receiver = held.clone();
                    if codec.decode(payload, base, &mut receiver).is_err() {
                        prop_assert_eq!(&receiver, &held, "{:?}", codec);
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_filter_holds_back_is_what_is_left_between_value_and_held(values in prop::collection::vec(chunks(), 1..6)) {
        let bytes = values.iter().map(|(value, _)| value.len()).min().unwrap_or(0);
        let mut held = vec![0; bytes];
        for (value, _) in &values {
            let value = &value[..bytes];
            let before = held.clone();
            LOUD.next(value, &mut held);
            for (at, byte) in held.iter().enumerate() {
                prop_assert!(*byte == before[at] || *byte == value[at]);
            }
        }
        for filter in [&Everything as &dyn Filter, &LOUD] {
            let mut held = values[0].0.clone();
            filter.next(&values[0].0, &mut held);
            prop_assert_eq!(&held, &values[0].0, "{:?}: there was nothing to hold back", filter);
        }
        let (value, mut held) = (&values[0].0, vec![0xee; values[0].0.len()]);
        Everything.next(value, &mut held);
        prop_assert!(held == *value && !Everything.holds_back());
    }
}

#[test]
fn what_a_payload_says_of_no_chunk_is_refused_by_what_it_says() {
    let entry = |index: u32, word: [u8; 4]| {
        let mut entry = [0; ENTRY];
        entry[..4].copy_from_slice(&index.to_le_bytes());
        entry[4..].copy_from_slice(&word);
        entry
    };
    let mut chunk = [1; 10];
    for (payload, said) in [
        (entry(3, [9; 4]).to_vec(), "a payload's last word: expected 2, got 3"),
        (entry(u32::MAX, [9; 4]).to_vec(), "a payload's last word: expected 2, got 4294967295"),
        (entry(2, [9; 4]).to_vec(), "a payload's byte behind the chunk: expected 0, got 9"),
        ([entry(1, [9; 4]), entry(1, [8; 4])].concat(), "a payload's least word: expected 2, got 1"),
        (vec![0; 7], "a payload's bytes behind its entries: expected 0, got 7"),
    ] {
        for base in [Base::Zeros, Base::Held] {
            assert_eq!(Changes.decode(&payload, base, &mut chunk).unwrap_err().to_string(), said);
            assert_eq!(chunk, [1; 10]);
        }
    }
}
