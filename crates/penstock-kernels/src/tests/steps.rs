//! Values that move by numbers that take few bits: what receivers hold follows the value, and the codec finds the moves again.

use super::chunk::{decode, encode};
use crate::codec::{Base, Codec, Form, Steps};
use crate::filter::{ALL, Coordinates, Filter, Pressure};
use crate::{Arch, Dtype, Foreign};
use proptest::prelude::*;
use std::sync::Arc;

const AT: Coordinates = Coordinates { clock: 0, first: 0, pressure: Pressure::NONE };
const THRESHOLD: f64 = 0.25;
const FORMS: [Form; 5] = [Form::F16, Form::Bf16, Form::Int8, Form::TwoBits, Form::OneBit];

fn filter_by(form: Form, dtype: Dtype, threshold: f64) -> Arc<dyn Filter> {
    let (name, settings) = match form {
        Form::F16 => ("Quantize f16", &[][..]),
        Form::Bf16 => ("Quantize bf16", &[][..]),
        Form::Int8 => ("Quantize int8", &[][..]),
        Form::TwoBits => ("Quantize 2bit", &[threshold][..]),
        Form::OneBit => ("Quantize 1bit", &[][..]),
    };
    let entry = ALL.iter().find(|entry| entry.name == name).unwrap();
    (entry.make)(dtype, settings).unwrap()
}

fn filter(form: Form, dtype: Dtype) -> Arc<dyn Filter> {
    filter_by(form, dtype, THRESHOLD)
}

/// Those that there are: of elements that have 16 bits halves would be no shorter.
fn moves() -> impl Iterator<Item = (Form, Dtype)> {
    let all = FORMS.into_iter().flat_map(|form| Dtype::ALL.map(|dtype| (form, dtype)));
    all.filter(|(form, dtype)| !form.is_half() || dtype.size() > 2)
}

fn payload(form: Form, dtype: Dtype, chunk: &[u8], base: Option<&[u8]>) -> Option<Vec<u8>> {
    let codec = Steps::new(form, dtype);
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

/// How far an element may be from the value after it has moved, but for roundings, given how far elements of its block were.
fn left(form: Form, of_block: &[f64], by: f64) -> f64 {
    let largest = of_block.iter().copied().fold(0.0, f64::max);
    match form {
        Form::F16 => by * 2.0_f64.powi(-11) + 2.0_f64.powi(-25),
        Form::Bf16 => by * 2.0_f64.powi(-8),
        // Half a step, of which the largest difference is 64 or more.
        Form::Int8 => largest / 128.0,
        Form::TwoBits if by >= THRESHOLD => by - THRESHOLD,
        Form::TwoBits => by,
        Form::OneBit => (by - of_block.iter().sum::<f64>() / of_block.len() as f64).abs(),
    }
}

proptest! {
    #[test]
    fn what_is_held_follows_the_value_and_a_receiver_of_the_moves_holds_the_same(
        (form, dtype) in prop::sample::select(moves().collect::<Vec<_>>()),
        pairs in prop::collection::vec((-4.0_f64..4.0, -1.0_f64..1.0), 1..2300),
        scale in prop::sample::select(&[1.0, 1e-3, 16.0]),
    ) {
        let numbers = |which: fn(&(f64, f64)) -> f64| pairs.iter().map(|pair| scale * which(pair)).collect::<Vec<_>>();
        let value = encode(dtype, &numbers(|pair| pair.0));
        let before = encode(dtype, &numbers(|pair| pair.1));
        let mut held = before.clone();
        filter(form, dtype).next(AT, &value, &mut held);
        let (now, there, moved) = (decode(dtype, &value), decode(dtype, &before), decode(dtype, &held));
        let block = form.block();
        for ((now, there), moved) in now.chunks(block).zip(there.chunks(block)).zip(moved.chunks(block)) {
            let off: Vec<f64> = now.iter().zip(there).map(|(now, there)| (now - there).abs()).collect();
            let largest = off.iter().copied().fold(0.0, f64::max);
            for ((now, moved), &by) in now.iter().zip(moved).zip(&off) {
                let roundings = 4.0 * (4.0 * scale + largest) * 2.0_f64.powi(-digits(dtype).min(40));
                prop_assert!((now - moved).abs() <= left(form, &off, by) + roundings, "{} of {}", moved, now);
            }
        }
        let codec = Steps::new(form, dtype);
        if let Some(payload) = payload(form, dtype, &held, Some(&before)) {
            for arch in Arch::ALL.into_iter().filter(|arch| arch.is_available()) {
                let mut receiver = before.clone();
                let decoded = codec.decode_on(arch, &payload, Base::Held, &mut receiver);
                prop_assert_eq!(decoded, Some(Ok(())));
                prop_assert_eq!(&receiver, &held);
                let mut out = vec![0; payload.len()];
                let length = codec.encode_on(arch, Foreign::of(&held), Some(&before), &mut out);
                prop_assert_eq!(length, Some(Some(payload.len())));
                prop_assert_eq!(&out, &payload);
            }
        } else {
            // Numbers whose last bit is more than a step may move by more steps than a byte holds. And of a few elements what opens a
            // block is as long as they are.
            let short = codec.lengths(held.len()).is_empty();
            prop_assert!(dtype.size() < 4 && form == Form::Int8 || short, "{form:?} of {dtype:?} pays for ordinary numbers");
        }
    }

    /// The fewer say what the magnitude is, the likelier that the one number is beside what roundings leave of their bounds.
    #[test]
    fn of_few_elements_too_the_magnitude_is_found(
        (form, dtype) in prop::sample::select(moves().filter(|(form, _)| !form.is_half() && *form != Form::Int8).collect::<Vec<_>>()),
        pairs in prop::collection::vec((-4.0_f64..4.0, -1.0_f64..1.0), 9..36),
    ) {
        for pairs in (9..=pairs.len()).map(|elements| &pairs[..elements]) {
            let value = encode(dtype, &pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
            let before = encode(dtype, &pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
            let mut held = before.clone();
            filter(form, dtype).next(AT, &value, &mut held);
            prop_assert!(payload(form, dtype, &held, Some(&before)).is_some(), "{:?} of {:?}", form, dtype);
        }
    }

    /// E-2.
    #[test]
    fn what_is_refused_changes_nothing_and_what_is_taken_comes_back(
        (form, dtype) in prop::sample::select(moves().collect::<Vec<_>>()),
        held in prop::collection::vec(-9.0_f64..9.0, 24..300),
        bytes in prop::collection::vec(any::<u8>(), 0..320),
        exponent in -30_i16..30,
        whole: bool,
    ) {
        let (codec, held) = (Steps::new(form, dtype), encode(dtype, &held));
        let mut payload = bytes;
        payload.resize(*codec.lengths(held.len()).end(), 64);
        if form == Form::Int8 {
            for first in payload.chunks_mut(258).filter(|first| first.len() > 2) {
                first[..2].copy_from_slice(&exponent.to_le_bytes());
            }
        }
        let base = if whole { Base::Zeros } else { Base::Held };
        let mut receiver = held.clone();
        if codec.decode(&payload, base, &mut receiver).is_err() {
            prop_assert_eq!(receiver, held);
        } else if decode(dtype, &receiver).iter().all(|number| number.is_finite()) {
            let onto = (base == Base::Held).then_some(&held[..]);
            if let Some(again) = self::payload(form, dtype, &receiver, onto) {
                let mut same = held.clone();
                prop_assert_eq!(codec.decode(&again, base, &mut same), Ok(()));
                prop_assert_eq!(same, receiver);
            }
        }
    }

    /// Whatever is held, whatever it moved by: a sender never tells a receiver what comes to other bits.
    #[test]
    fn of_numbers_of_any_size_what_a_receiver_is_told_comes_to_the_senders_bits(
        (form, dtype) in prop::sample::select(moves().collect::<Vec<_>>()),
        held in prop::collection::vec((any::<bool>(), -160_i32..130, 1.0_f64..2.0), 24..200),
        value in prop::collection::vec((any::<bool>(), -160_i32..130, 1.0_f64..2.0), 200),
        threshold in prop::sample::select(&[1e-6, 0.5, 3e3]),
    ) {
        let numbers = |of: &[(bool, i32, f64)]| -> Vec<u8> {
            let number = |&(sign, power, digits): &(bool, i32, f64)| {
                if sign { -digits * 2.0_f64.powi(power) } else { digits * 2.0_f64.powi(power) }
            };
            encode(dtype, &of.iter().map(number).collect::<Vec<_>>())
        };
        let (before, value) = (numbers(&held), numbers(&value[..held.len()]));
        let mut moved = before.clone();
        for _ in 0..3 {
            let base = moved.clone();
            filter_by(form, dtype, threshold).next(AT, &value, &mut moved);
            if let Some(payload) = payload(form, dtype, &moved, Some(&base)) {
                let mut receiver = base.clone();
                prop_assert_eq!(Steps::new(form, dtype).decode(&payload, Base::Held, &mut receiver), Ok(()));
                prop_assert_eq!(&receiver, &moved);
            }
        }
    }
}

#[test]
fn a_value_that_rests_is_reached_in_a_few_choices() {
    for (form, dtype, choices) in [
        (Form::Int8, Dtype::F32, 6),
        (Form::Int8, Dtype::F64, 9),
        (Form::Int8, Dtype::F16, 4),
        (Form::Int8, Dtype::Bf16, 4),
        (Form::F16, Dtype::F32, 4),
        (Form::F16, Dtype::F64, 6),
        (Form::Bf16, Dtype::F32, 4),
        (Form::Bf16, Dtype::F64, 8),
    ] {
        let value = encode(dtype, &(0..1000).map(|at| f64::from(at).sin()).collect::<Vec<_>>());
        let mut held = encode(dtype, &vec![0.0; 1000]);
        (0..choices).for_each(|_| filter(form, dtype).next(AT, &value, &mut held));
        let furthest = decode(dtype, &held)
            .iter()
            .zip(decode(dtype, &value))
            .fold(0.0, |most, (held, value)| f64::max(most, (held - value).abs()));
        // The least that binary16 has is more than the last bit of some wider numbers.
        let least = if form == Form::F16 { 2.0_f64.powi(-25) } else { 0.0 };
        assert!(furthest <= least, "{form:?} of {dtype:?}: {furthest:e}");
        let before = held.clone();
        filter(form, dtype).next(AT, &value, &mut held);
        assert_eq!(held, before);
    }
}

/// By thresholds it is reached to within one, and by mean distances on the whole.
#[test]
fn a_value_that_rests_is_neared_by_one_magnitude() {
    for dtype in Dtype::ALL {
        let value: Vec<f64> = (0..2048).map(|at| f64::from(at).sin()).collect();
        let distance = |held: &[u8]| {
            let off: Vec<f64> =
                decode(dtype, held).iter().zip(&value).map(|(held, value)| (held - value).abs()).collect();
            (off.iter().sum::<f64>() / off.len() as f64, off.iter().copied().fold(0.0, f64::max))
        };
        let chunk = encode(dtype, &value);
        let mut held = encode(dtype, &vec![0.0; 2048]);
        (0..8).for_each(|_| filter(Form::TwoBits, dtype).next(AT, &chunk, &mut held));
        assert!(distance(&held).1 <= THRESHOLD * 1.02, "{dtype:?}: {:?}", distance(&held));
        let mut held = encode(dtype, &vec![0.0; 2048]);
        let mut last = distance(&held).0;
        for _ in 0..3 {
            filter(Form::OneBit, dtype).next(AT, &chunk, &mut held);
            let now = distance(&held).0;
            assert!(now < last, "{dtype:?}: {now} after {last}");
            last = now;
        }
    }
}

#[test]
fn where_nothing_differs_nothing_moves_and_no_bit_changes() {
    for (form, dtype) in moves() {
        let value = encode(dtype, &(0..2000).map(|at| f64::from(at).cos()).collect::<Vec<_>>());
        let mut held = value.clone();
        filter(form, dtype).next(AT, &value, &mut held);
        assert_eq!(held, value);
        // Not even of zeros.
        let told = payload(form, dtype, &held, Some(&value)).unwrap();
        let mut receiver = value.clone();
        Steps::new(form, dtype).decode(&told, Base::Held, &mut receiver).unwrap();
        assert_eq!(receiver, value);
        let (value, mut held) = (encode(dtype, &[0.0]), encode(dtype, &[-0.0]));
        filter(form, dtype).next(AT, &value, &mut held);
        assert_eq!(held, encode(dtype, &[-0.0]), "{form:?} of {dtype:?}");
    }
}

#[test]
fn what_is_no_finite_step_passes_as_it_is_and_its_chunk_goes_by_another_codec() {
    for (form, dtype) in moves() {
        let largest = match dtype {
            Dtype::F16 => 65504.0,
            Dtype::Bf16 => f64::from(half::bf16::MAX),
            Dtype::F32 => f32::MAX.into(),
            Dtype::F64 => f64::MAX,
        };
        let among = |numbers: [f64; 6]| {
            encode(dtype, &numbers.into_iter().chain(std::iter::repeat_n(3.0, 50)).collect::<Vec<_>>())
        };
        // The mean distance is one of all, and twice the largest number of binary16 is none that is too large for its accumulator.
        let far = if (form, dtype) == (Form::OneBit, Dtype::F16) { (7.0, 7.0) } else { (-largest, largest) };
        let before = among([1.0, f64::NAN, f64::INFINITY, far.0, 3.0, 3.0]);
        let value = among([f64::NAN, 1.0, 2.0, far.1, f64::NEG_INFINITY, 3.0]);
        let mut held = before.clone();
        filter(form, dtype).next(AT, &value, &mut held);
        assert_eq!(held, value, "{form:?} of {dtype:?}");
        assert_eq!(payload(form, dtype, &held, Some(&before)), None);
    }
}

/// Also NaN that signals, which widening to float32 makes quiet.
#[test]
fn what_does_not_move_keeps_its_bits() {
    for (form, (dtype, signals)) in [Form::Int8, Form::TwoBits]
        .into_iter()
        .flat_map(|form| [(Dtype::F16, 0x7c01_u16), (Dtype::Bf16, 0x7f81)].map(|of| (form, of)))
    {
        let before: Vec<u8> =
            [signals, 0x8000, 0].repeat(100).into_iter().flat_map(u16::to_le_bytes).collect();
        let mut value = before.clone();
        value[4..6].copy_from_slice(&encode(dtype, &[THRESHOLD]));
        let mut held = before.clone();
        filter(form, dtype).next(AT, &value, &mut held);
        assert_eq!(held, value, "{form:?} of {dtype:?}");
        let told = payload(form, dtype, &held, Some(&before)).unwrap();
        let mut receiver = before.clone();
        Steps::new(form, dtype).decode(&told, Base::Held, &mut receiver).unwrap();
        assert_eq!(receiver, held, "{form:?} of {dtype:?}");
        let mut other = before.clone();
        other[0] ^= 2;
        assert_eq!(payload(form, dtype, &before, Some(&other)), None, "{dtype:?}: bits differ");
    }
}

#[test]
fn a_value_has_a_filter_of_each_form_and_no_other_threshold_than_an_element_holds() {
    for name in ["f16", "bf16", "int8", "2bit", "1bit"] {
        let entry = ALL.iter().find(|entry| entry.name == format!("Quantize {name}")).unwrap();
        assert_eq!(entry.settings.len(), usize::from(name == "2bit"));
    }
    let two_bits = ALL.iter().find(|entry| entry.name == "Quantize 2bit").unwrap();
    for (dtype, threshold) in
        [(Dtype::F32, 0.0), (Dtype::F16, 1e-30), (Dtype::F16, 1e30), (Dtype::F64, f64::NAN)]
    {
        assert!((two_bits.make)(dtype, &[threshold]).is_err(), "{dtype:?} {threshold}");
    }
    for form in [Form::F16, Form::Bf16] {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            assert!(!filter(form, dtype).holds_back(), "it has 16 bits already");
        }
    }
}

#[test]
fn payloads_that_no_sender_writes_are_refused_by_what_is_wrong_with_them() {
    let codec = Steps::new(Form::Int8, Dtype::F32);
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
    let two_bits = Steps::new(Form::TwoBits, Dtype::F32);
    for (payload, said) in [
        (vec![0, 0, 0, 0x80, 1, 0], "a payload's sign of a magnitude: expected 0, got 1"),
        (vec![0, 0, 0x80, 0x3f, 0, 0], "a payload's elements that are not 0, or none: expected 1, got 0"),
        (vec![0, 0, 0x80, 0x3f, 1, 2], "a payload's signs of elements that are 0: expected 0, got 2"),
        (vec![0, 0, 0x80, 0x3f, 0x11, 0], "a payload's bits behind the last element: expected 0, got 1"),
    ] {
        assert_eq!(two_bits.decode(&payload, Base::Held, &mut chunk).unwrap_err().to_string(), said);
        assert_eq!(chunk, [7; 16]);
    }
}
