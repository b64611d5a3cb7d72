//! Values that move by steps: what receivers hold follows the value, and the codec finds the steps again.

use super::chunk::{decode, encode};
use crate::codec::{Base, Codec, Steps};
use crate::filter::{ALL, Coordinates, Filter, Pressure};
use crate::{Arch, Dtype, Foreign};
use proptest::prelude::*;
use std::sync::Arc;

const AT: Coordinates = Coordinates { clock: 0, first: 0, pressure: Pressure::NONE };

fn filter(dtype: Dtype) -> Arc<dyn Filter> {
    let entry = ALL.iter().find(|entry| entry.name == "Quantize int8").unwrap();
    (entry.make)(dtype, &[]).unwrap()
}

fn payload(dtype: Dtype, chunk: &[u8], base: Option<&[u8]>) -> Option<Vec<u8>> {
    let codec = Steps::new(dtype);
    let mut out = vec![0xee; *codec.lengths(chunk.len()).end()];
    let length = codec.encode(Foreign::of(chunk), base, &mut out)?;
    assert_eq!(length, out.len());
    Some(out)
}

/// Bits of an element's fraction, the hidden one among them.
fn digits(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::F32 => 24,
        Dtype::F64 => 53,
        Dtype::F16 => 11,
        Dtype::Bf16 => 8,
    }
}

proptest! {
    #[test]
    fn what_is_held_follows_the_value_within_half_a_step_and_a_receiver_of_the_steps_holds_the_same(
        dtype in prop::sample::select(&Dtype::ALL[..]),
        pairs in prop::collection::vec((-4.0_f64..4.0, -1.0_f64..1.0), 1..700),
        scale in prop::sample::select(&[1.0, 1e-3, 16.0]),
    ) {
        let numbers = |which: fn(&(f64, f64)) -> f64| pairs.iter().map(|pair| scale * which(pair)).collect::<Vec<_>>();
        let value = encode(dtype, &numbers(|pair| pair.0));
        let before = encode(dtype, &numbers(|pair| pair.1));
        let mut held = before.clone();
        filter(dtype).next(AT, &value, &mut held);
        let (now, there, moved) = (decode(dtype, &value), decode(dtype, &before), decode(dtype, &held));
        for ((now, there), moved) in now.chunks(256).zip(there.chunks(256)).zip(moved.chunks(256)) {
            let largest = now.iter().zip(there).map(|(now, there)| (now - there).abs()).fold(0.0, f64::max);
            for (now, moved) in now.iter().zip(moved) {
                // Half a step, of which the largest difference is 64 or more, and two roundings.
                let most = largest / 128.0 + 2.0 * (4.0 * scale + largest) * 2.0_f64.powi(-digits(dtype));
                prop_assert!((now - moved).abs() <= most, "{} of {}", moved, now);
            }
        }
        if let Some(payload) = payload(dtype, &held, Some(&before)) {
            prop_assert_eq!(payload.len(), pairs.len() + 2 * pairs.len().div_ceil(256));
            for arch in Arch::ALL.into_iter().filter(|arch| arch.is_available()) {
                let mut receiver = before.clone();
                let decoded = Steps::new(dtype).decode_on(arch, &payload, Base::Held, &mut receiver);
                prop_assert_eq!(decoded, Some(Ok(())));
                prop_assert_eq!(&receiver, &held);
                let mut out = vec![0; payload.len()];
                let length = Steps::new(dtype).encode_on(arch, Foreign::of(&held), Some(&before), &mut out);
                prop_assert_eq!(length, Some(Some(payload.len())));
                prop_assert_eq!(&out, &payload);
            }
        } else {
            // Numbers whose last bit is more than a step may move by more steps than a byte holds.
            prop_assert!(dtype.size() < 4, "it pays for ordinary numbers");
        }
    }

    /// E-2.
    #[test]
    fn what_is_refused_changes_nothing_and_what_is_taken_comes_back(
        dtype in prop::sample::select(&Dtype::ALL[..]),
        held in prop::collection::vec(-9.0_f64..9.0, 2..300),
        bytes in prop::collection::vec(any::<u8>(), 0..320),
        exponent in -30_i16..30,
        whole: bool,
    ) {
        let (codec, held) = (Steps::new(dtype), encode(dtype, &held));
        let mut payload = bytes;
        payload.resize(*codec.lengths(held.len()).end(), 64);
        for first in payload.chunks_mut(258).filter(|first| first.len() > 2) {
            first[..2].copy_from_slice(&exponent.to_le_bytes());
        }
        let base = if whole { Base::Zeros } else { Base::Held };
        let mut receiver = held.clone();
        if codec.decode(&payload, base, &mut receiver).is_err() {
            prop_assert_eq!(receiver, held);
        }
    }
}

#[test]
fn a_value_that_rests_is_reached_in_a_few_choices() {
    for (dtype, choices) in [(Dtype::F32, 6), (Dtype::F64, 9), (Dtype::F16, 4), (Dtype::Bf16, 4)] {
        let value = encode(dtype, &(0..1000).map(|at| f64::from(at).sin()).collect::<Vec<_>>());
        let mut held = encode(dtype, &vec![0.0; 1000]);
        (0..choices).for_each(|_| filter(dtype).next(AT, &value, &mut held));
        assert_eq!(decode(dtype, &held), decode(dtype, &value), "{dtype:?}");
        let before = held.clone();
        filter(dtype).next(AT, &value, &mut held);
        assert_eq!(held, before);
        // Nothing moves: no bit changes, not even of zeros.
        let payload = payload(dtype, &held, Some(&before)).unwrap();
        assert!(payload.chunks(258).all(|block| block[2..].iter().all(|byte| *byte == 0)));
    }
    let (value, mut held) = (encode(Dtype::F32, &[0.0]), encode(Dtype::F32, &[-0.0]));
    filter(Dtype::F32).next(AT, &value, &mut held);
    assert_eq!(held, encode(Dtype::F32, &[-0.0]));
}

#[test]
fn what_is_no_finite_step_passes_as_it_is_and_its_chunk_goes_by_another_codec() {
    for dtype in Dtype::ALL {
        let largest = match dtype {
            Dtype::F16 => 65504.0,
            Dtype::Bf16 => f64::from(half::bf16::MAX),
            Dtype::F32 => f32::MAX.into(),
            Dtype::F64 => f64::MAX,
        };
        let before = encode(dtype, &[1.0, f64::NAN, f64::INFINITY, -largest, 2.0, 3.0]);
        let value = encode(dtype, &[f64::NAN, 1.0, 2.0, largest, f64::NEG_INFINITY, 3.0]);
        let mut held = before.clone();
        filter(dtype).next(AT, &value, &mut held);
        assert_eq!(held, value, "{dtype:?}");
        assert_eq!(payload(dtype, &held, Some(&before)), None);
    }
}

/// Also NaN that signals, which widening to float32 makes quiet.
#[test]
fn what_does_not_move_keeps_its_bits() {
    for (dtype, signals) in [(Dtype::F16, 0x7c01_u16), (Dtype::Bf16, 0x7f81)] {
        let before: Vec<u8> =
            [signals, 0x8000, 0].repeat(100).into_iter().flat_map(u16::to_le_bytes).collect();
        let mut value = before.clone();
        value[4..6].copy_from_slice(&encode(dtype, &[1.0]));
        let mut held = before.clone();
        filter(dtype).next(AT, &value, &mut held);
        assert_eq!(held, value, "{dtype:?}");
        let payload = payload(dtype, &held, Some(&before)).unwrap();
        let mut receiver = before.clone();
        Steps::new(dtype).decode(&payload, Base::Held, &mut receiver).unwrap();
        assert_eq!(receiver, held, "{dtype:?}");
        let mut other = before.clone();
        other[0] ^= 2;
        assert_eq!(super::steps::payload(dtype, &before, Some(&other)), None, "{dtype:?}: bits differ");
    }
}

#[test]
fn payloads_that_no_sender_writes_are_refused_by_what_is_wrong_with_them() {
    let codec = Steps::new(Dtype::F32);
    let mut chunk = vec![7; 16];
    for (payload, said) in [
        (vec![0; 5], "a payload's bytes: expected 6, got 5"),
        (vec![0, 0, 1, 2, 3, 63], "a payload's least steps of the largest: expected 64, got 63"),
        (vec![0, 0, 0x80, 0, 0, 0], "a payload's most steps: expected 127, got 128"),
        (
            vec![122, 0, 64, 0, 0, 0],
            "a payload's largest exponent of a step, and 2^15: expected 32889, got 32890",
        ),
    ] {
        assert_eq!(codec.decode(&payload, Base::Held, &mut chunk).unwrap_err().to_string(), said);
        assert_eq!(chunk, [7; 16]);
    }
    let mut odd = vec![7; 15];
    assert!(codec.decode(&[0; 5], Base::Held, &mut odd).is_err());
}
