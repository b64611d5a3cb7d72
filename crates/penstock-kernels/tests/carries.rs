//! What every codec and every filter promises, of those that there are and of those that tests bring: bytes that cannot be
//! decoded change nothing (E-2).

mod travel;

use penstock_kernels::codec::{Base, Codec, Form, Raw, Sparse, Steps};
use penstock_kernels::filter::{self, Coordinates, Everything, Filter, Pressure};
use penstock_kernels::{Dtype, Foreign};
use proptest::prelude::*;
use travel::changes::{Changes, ENTRY};
use travel::loud::Loud;

const CODECS: [&dyn Codec; 11] = [
    &Raw,
    &Changes,
    &Sparse::<2>,
    &Sparse::<4>,
    &Sparse::<8>,
    &Steps::new(Form::Int8, Dtype::F32),
    &Steps::new(Form::Int8, Dtype::F16),
    &Steps::new(Form::F16, Dtype::F32),
    &Steps::new(Form::Bf16, Dtype::F64),
    &Steps::new(Form::TwoBits, Dtype::F32),
    &Steps::new(Form::OneBit, Dtype::Bf16),
];
const LOUD: Loud = Loud { quiet: 2 };
const AT: Coordinates = Coordinates { clock: 3, first: 0, pressure: Pressure::NONE };

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
            LOUD.next(AT, value, &mut held);
            for (at, byte) in held.iter().enumerate() {
                prop_assert!(*byte == before[at] || *byte == value[at]);
            }
        }
        for filter in [&Everything as &dyn Filter, &LOUD] {
            let mut held = values[0].0.clone();
            filter.next(AT, &values[0].0, &mut held);
            prop_assert_eq!(&held, &values[0].0, "{:?}: there was nothing to hold back", filter);
        }
        let (value, mut held) = (&values[0].0, vec![0xee; values[0].0.len()]);
        Everything.next(AT, value, &mut held);
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

fn number(dtype: Dtype, bytes: &[u8]) -> f64 {
    match dtype {
        Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
        Dtype::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        Dtype::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        Dtype::Bf16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
    }
}

fn bytes(dtype: Dtype, number: f64) -> Vec<u8> {
    match dtype {
        Dtype::F32 => (number as f32).to_le_bytes().to_vec(),
        Dtype::F64 => number.to_le_bytes().to_vec(),
        Dtype::F16 => half::f16::from_f64(number).to_le_bytes().to_vec(),
        Dtype::Bf16 => half::bf16::from_f64(number).to_le_bytes().to_vec(),
    }
}

/// Numbers whose differences are exact in every dtype, and some that are no numbers.
fn numbers() -> impl Strategy<Value = f64> {
    prop_oneof![
        20 => (-64_i32..64).prop_map(f64::from),
        2 => prop::sample::select(&[0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
    ]
}

/// The filter of values of that name.
fn made(name: &str, dtype: Dtype, settings: &[f64]) -> std::sync::Arc<dyn Filter> {
    let entry = filter::ALL.iter().find(|entry| entry.name == name).unwrap();
    (entry.make)(dtype, settings).unwrap()
}

/// What becomes of the elements: `None` where an element was the same before, else whether it passed.
fn passed(
    filter: &dyn Filter,
    dtype: Dtype,
    pairs: &[(f64, f64)],
    at: Coordinates,
) -> Vec<Option<(f64, bool)>> {
    let value: Vec<u8> = pairs.iter().flat_map(|&(value, _)| bytes(dtype, value)).collect();
    let before: Vec<u8> = pairs.iter().flat_map(|&(_, held)| bytes(dtype, held)).collect();
    let mut held = before.clone();
    filter.next(at, &value, &mut held);
    let size = dtype.size();
    let each = value.chunks(size).zip(before.chunks(size)).zip(held.chunks(size));
    each.map(|((value, before), held)| {
        assert!(held == value || held == before, "an element passes whole, or not at all");
        let difference = (number(dtype, value) - number(dtype, before)).abs();
        (value != before).then_some((difference, held == value))
    })
    .collect()
}

proptest! {
    #[test]
    fn what_a_bound_holds_back_of_values_is_within_it_and_what_passes_is_not(
        pairs in prop::collection::vec((numbers(), numbers()), 0..200),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        relative: bool,
        low in prop::sample::select(&[0.25, 1.0, 9.0]),
        clock in 0_u64..20,
    ) {
        let filter = made("DVF", dtype, &[low, 1.0, f64::from(relative), low, 0.0]);
        let passed = passed(&*filter, dtype, &pairs, Coordinates { clock, first: 0, pressure: Pressure::NONE });
        let squares = |each: &Option<(f64, bool)>| {
            each.map_or(0.0, |(by, _)| if by.is_finite() { by * by } else { 0.0 })
        };
        let mean = passed.iter().map(squares).sum::<f64>() / passed.len().max(1) as f64;
        let size = |each: &Option<(f64, bool)>| each.map_or(0.0, |(by, _)| if by.is_finite() { by } else { 0.0 });
        let most = passed.iter().map(size).fold(0.0, f64::max) * 0.875;
        let low = low / (clock as f64 + 1.0).sqrt();
        let bound = if relative { (low * mean.sqrt()).min(most) } else { low };
        for (by, passes) in passed.into_iter().flatten() {
            // The bound is a number of the accumulator's.
            if by.is_nan() || (by - bound).abs() > 1e-5 * bound {
                prop_assert_eq!(passes, by.is_nan() || by > bound, "{} beside {}", by, bound);
            }
        }
    }

    #[test]
    fn of_values_the_elements_that_are_furthest_behind_pass_and_of_equal_ones_the_first(
        pairs in prop::collection::vec((numbers(), numbers()), 1..200),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        fraction in prop::sample::select(&[0.01, 0.1, 0.5, 0.9]),
    ) {
        let passed = passed(&*made("TopK", dtype, &[fraction]), dtype, &pairs, AT);
        let wanted = ((passed.len() as f64 * fraction).round() as usize).max(1);
        let mut order: Vec<usize> = (0..passed.len()).filter(|&at| passed[at].is_some()).collect();
        let by = |at: &usize| passed[*at].unwrap().0;
        // NaN before infinity before the rest; the sort is stable.
        order.sort_by(|a, b| by(b).is_nan().cmp(&by(a).is_nan()).then(by(b).total_cmp(&by(a))));
        for (place, at) in order.iter().enumerate() {
            prop_assert_eq!(passed[*at].unwrap().1, place < wanted || !by(at).is_finite(), "{}", place);
        }
    }

    #[test]
    fn as_many_elements_of_values_are_drawn_as_are_asked_for_and_others_at_another_clock(
        elements in 100_usize..2000,
        dtype in prop::sample::select(&Dtype::ALL[..]),
        seed in 0_u32..9,
    ) {
        let filter = made("RandomK", dtype, &[0.1, seed.into()]);
        let draw = |clock| -> Vec<usize> {
            let passed = passed(&*filter, dtype, &vec![(2.0, 1.0); elements], Coordinates { clock, first: 5, pressure: Pressure::NONE });
            (0..elements).filter(|&at| passed[at].unwrap().1).collect()
        };
        prop_assert_eq!(draw(3).len(), (elements as f64 * 0.1).round() as usize);
        prop_assert_eq!(draw(3), draw(3));
        prop_assert_ne!(draw(3), draw(4));
        let whole = passed(&*filter, dtype, &[(f64::NAN, 1.0), (1.0, f64::INFINITY), (f64::NEG_INFINITY, 0.0)], AT);
        prop_assert!(whole.into_iter().flatten().all(|(_, passes)| passes));
    }
}

#[test]
fn a_filter_of_values_that_never_holds_back_keeps_no_copy() {
    for dtype in Dtype::ALL {
        for (name, settings) in [
            ("DVF", &[0.0, 1.0, 0.0, 0.0, 0.0][..]),
            ("DVF", &[0.0, 0.0, 1.0, 0.0, 0.0]),
            ("TopK", &[1.0]),
            ("RandomK", &[1.0, 7.0]),
        ] {
            assert!(!made(name, dtype, settings).holds_back(), "{name} with {settings:?}");
        }
        assert!(made("DVF", dtype, &[1e-300, 1.0, 0.0, 1e-300, 0.0]).holds_back());
    }
}
