//! What quantizing filters send, beside the same in a few obvious lines; and that the codecs find the few bits again.

use super::chunk::{Numbers, accumulator, assert_same, decode, encode};
use crate::codec::{self, Base, Codec, Form, Quantized};
use crate::filter::Unfit;
use crate::filter::sums::{ALL, Pressure, Quantize, empty};
use crate::optimizer::naive::Aligned;
use crate::{Arch, Dtype, Foreign, ForeignMut};
use proptest::prelude::*;

const FORMS: [Form; 5] = [Form::F16, Form::Bf16, Form::Int8, Form::TwoBits, Form::OneBit];
/// Around every vector, block and tail.
const LENGTHS: [usize; 13] = [0, 1, 7, 9, 17, 63, 65, 255, 257, 1023, 1025, 2049, 8192];
const THRESHOLD: f64 = 0.375;

/// Those that there are of such elements.
fn cases() -> Vec<(Form, Dtype)> {
    let there_is = |&(form, dtype): &(Form, Dtype)| filter(form, dtype).is_some();
    FORMS.into_iter().flat_map(|form| Dtype::ALL.map(|dtype| (form, dtype))).filter(there_is).collect()
}

fn filter(form: Form, dtype: Dtype) -> Option<Quantize> {
    let shorter = dtype.size() > 2 || !matches!(form, Form::F16 | Form::Bf16);
    shorter.then(|| Quantize::new(form, dtype, THRESHOLD).unwrap())
}

fn variants() -> impl Iterator<Item = Arch> {
    Arch::ALL.into_iter().filter(|arch| arch.is_available())
}

fn rounded(dtype: Dtype, number: f64) -> f64 {
    decode(dtype, &encode(dtype, &[number]))[0]
}

fn largest(dtype: Dtype) -> f64 {
    [f32::MAX.into(), f64::MAX, 65504.0, half::bf16::MAX.to_f64()][dtype as usize]
}

/// The nearest number of half precision, in arithmetic that is exact.
fn nearest(half: Dtype, number: f64) -> f64 {
    if number == 0.0 {
        return number;
    }
    let (digits, least) = if half == Dtype::F16 { (10, -24) } else { (7, -133) };
    let step = 2_f64.powi((number.abs().log2().floor() as i32 - digits).max(least));
    // With its sign where it is too small to be one.
    ((number / step).round_ties_even() * step).copysign(number)
}

/// What is sent of a block's elements; of one that is not finite, itself.
fn expected(form: Form, dtype: Dtype, due: &[f64]) -> Vec<f64> {
    let finite = || due.iter().filter(|due| due.is_finite()).map(|due| due.abs());
    let each = |number: &dyn Fn(f64) -> f64| {
        due.iter().map(|&due| if due.is_finite() { number(due) } else { due }).collect::<Vec<f64>>()
    };
    let whole = |due: f64| rounded(dtype, due.clamp(-largest(dtype), largest(dtype)));
    let half = |half: Dtype| each(&|due| if due.abs() > largest(half) { due } else { nearest(half, due) });
    match form {
        Form::F16 => half(Dtype::F16),
        Form::Bf16 => half(Dtype::Bf16),
        Form::Int8 => {
            let most = finite().fold(0.0, f64::max);
            let (least, greatest) = match dtype {
                Dtype::F64 => (-1022, 1017),
                Dtype::F16 => (-24, 9),
                _ => (-126, 121),
            };
            let exponent =
                if most == 0.0 { least } else { (most.log2().floor() as i32 - 6).clamp(least, greatest) };
            let step = 2_f64.powi(exponent);
            each(&|due| {
                let steps = (due / step).round_ties_even();
                match exponent == greatest && steps.abs() > 127.0 {
                    true => whole(due),
                    false => steps.clamp(-127.0, 127.0) * step + 0.0,
                }
            })
        }
        Form::TwoBits => each(&|due| match due.abs() {
            much if much >= THRESHOLD * 1024.0 => whole(due),
            some if some >= THRESHOLD => THRESHOLD.copysign(due),
            _ => 0.0,
        }),
        Form::OneBit => {
            let mean = finite().map(|magnitude| magnitude / due.len() as f64).sum::<f64>();
            each(&|due| rounded(dtype, mean.min(largest(dtype))).copysign(due))
        }
    }
}

fn matches_the_oracle(
    arch: Arch,
    form: Form,
    dtype: Dtype,
    elements: usize,
    mut numbers: Numbers,
) -> (Vec<u8>, Vec<u8>) {
    let sum = Aligned::new(&encode(dtype, &numbers.take(elements)));
    let tidy = |x: f64| if rounded(accumulator(dtype), x).is_finite() && x != 0.0 { x } else { -0.0 };
    let carried: Vec<f64> = numbers.take(elements).into_iter().map(tidy).collect();
    let mut carry = Aligned::new(&encode(accumulator(dtype), &carried));
    let due: Vec<f64> = decode(dtype, &sum)
        .iter()
        .zip(decode(accumulator(dtype), &carry))
        .map(|(sum, carry)| rounded(accumulator(dtype), sum + carry))
        .collect();
    let mut both = Aligned::new(&sum);
    let mut memory = ForeignMut::of(&mut both);
    // SAFETY: `both` lives and is not looked at otherwise meanwhile; only this thread writes it.
    let same = unsafe { Foreign::new(memory.as_foreign().as_ptr(), sum.len()) };
    let filter = filter(form, dtype).expect("there is such a form");
    filter.split_on(arch, same, &mut memory, &mut carry).expect("this machine has it");
    let sent = decode(dtype, &both);
    let what = format!("{arch:?} {form:?} {dtype:?}");
    let expected: Vec<f64> = due.chunks(form.block()).flat_map(|due| expected(form, dtype, due)).collect();
    if form == Form::OneBit {
        // Of what order a sum has the oracle knows nothing.
        for (sent, expected) in sent.iter().zip(&expected).filter(|(_, expected)| expected.is_finite()) {
            let near = (sent - expected).abs() <= expected.abs() * 2_f64.powi(-7) + 1e-7;
            assert!(
                near && sent.is_sign_negative() == expected.is_sign_negative(),
                "{what}: {sent} {expected}"
            );
        }
    } else {
        assert_same(dtype, &both, &encode(dtype, &expected), &format!("sent, {what}"));
    }
    let left = |(&due, &sent): (&f64, &f64)| {
        let left = rounded(accumulator(dtype), due - sent);
        if left == 0.0 || !left.is_finite() { -0.0 } else { left }
    };
    let left: Vec<f64> = due.iter().zip(&sent).map(left).collect();
    assert_same(accumulator(dtype), &carry, &encode(accumulator(dtype), &left), &format!("carry, {what}"));
    (both.to_vec(), carry.to_vec())
}

/// What a filter sends of numbers of about that size, all of them finite.
fn sent(form: Form, dtype: Dtype, elements: usize, size: f64, seed: u64) -> Vec<u8> {
    sent_of(form, dtype, elements, size, seed).1
}

/// The same, behind the numbers.
fn sent_of(form: Form, dtype: Dtype, elements: usize, size: f64, seed: u64) -> (Vec<f64>, Vec<u8>) {
    let most = largest(dtype);
    let number = |number: f64| (number * size).clamp(-most, most);
    let numbers: Vec<f64> = Numbers { seed, awkward: 0 }.take(elements).into_iter().map(number).collect();
    let sum = encode(dtype, &numbers);
    let mut carry = vec![0; elements * dtype.accumulator_size()];
    empty(dtype, &mut carry);
    let mut sent = Aligned::new(&sum);
    let filter = filter(form, dtype).expect("there is such a form");
    filter.split_on(Arch::best(), Foreign::of(&sum), &mut ForeignMut::of(&mut sent), &mut carry);
    (decode(dtype, &sum), sent.to_vec())
}

fn encoded(arch: Arch, codec: Quantized, chunk: &[u8]) -> Option<Vec<u8>> {
    let most = *codec.lengths(chunk.len()).end();
    let mut out = vec![0xee; most + 64];
    let length = codec.encode_on(arch, Foreign::of(chunk), &mut out[..most]).expect("this machine has it");
    assert!(out[most..].iter().all(|&byte| byte == 0xee), "nothing behind its room is touched");
    assert!(length.is_none_or(|length| length == most));
    length.map(|length| out[..length].to_vec())
}

proptest! {
    #[test]
    fn every_variant_sends_the_few_bits_and_carries_what_they_lack(
        (form, dtype) in prop::sample::select(cases()),
        elements in prop::sample::select(&LENGTHS),
        awkward in prop::sample::select(&[0, 4, 40]),
        seed: u64,
    ) {
        let all: Vec<_> =
            variants().map(|arch| matches_the_oracle(arch, form, dtype, elements, Numbers { seed, awkward })).collect();
        // Which payload of a NaN survives is not promised.
        prop_assert!(awkward != 0 || all.iter().all(|one| *one == all[0]), "the variants differ");
    }

    #[test]
    fn what_was_sent_takes_the_fewest_bits_and_comes_back(
        (form, dtype) in prop::sample::select(cases()),
        elements in prop::sample::select(&LENGTHS),
        about in prop::sample::select(&[1.0, 0.0, 1e-320, 1e-300, 1e-44, 1e-38, 1e-7, 6e4, 1e20, 1e38, 1e300, 1e308]),
        seed: u64,
    ) {
        let (due, chunk) = sent_of(form, dtype, elements, about, seed);
        let codec = Quantized::new(form, dtype);
        let expected: Vec<f64> = due.chunks(form.block()).flat_map(|due| expected(form, dtype, due)).collect();
        if form != Form::OneBit {
            assert_same(dtype, &chunk, &encode(dtype, &expected), &format!("sent, {form:?} {dtype:?}"));
        }
        let blocks = elements.div_ceil(form.block());
        let (size, eighth) = (dtype.size(), |elements: usize| elements.div_ceil(8));
        let last = if elements == 0 { 0 } else { (elements - 1) % form.block() + 1 };
        let bytes = match form {
            Form::F16 | Form::Bf16 => 2 * elements,
            Form::Int8 => 2 * blocks + elements,
            Form::TwoBits => blocks * size + 2 * (blocks.saturating_sub(1) * 128 + eighth(last)),
            Form::OneBit => blocks * size + blocks.saturating_sub(1) * 128 + eighth(last),
        };
        let length = (bytes < chunk.len()).then_some(bytes);
        let payload = encoded(Arch::best(), codec, &chunk);
        // What is sent whole is not of the form: half precision has no such numbers, or steps end there. Of thresholds a block may
        // have that one alone.
        let whole = due.iter().any(|due| match form {
            Form::F16 => due.abs() > largest(Dtype::F16),
            Form::Bf16 => due.abs() > largest(Dtype::Bf16),
            Form::Int8 => (due.abs() / 2_f64.powi(codec::largest_step(dtype))).round_ties_even() > 127.0,
            Form::TwoBits => due.abs() >= THRESHOLD * 1024.0,
            Form::OneBit => false,
        });
        let found = payload.as_ref().map(Vec::len);
        let pays = if whole { found.is_none() || form == Form::TwoBits } else { found == length };
        prop_assert!(pays, "{:?} and not {:?}", found, length);
        for arch in variants() {
            prop_assert_eq!(&encoded(arch, codec, &chunk), &payload, "{:?}", arch);
            let Some(payload) = &payload else { continue };
            let mut again = Aligned::new(&vec![0xee; chunk.len()]);
            prop_assert_eq!(codec.decode_on(arch, payload, &mut again).unwrap(), Ok(()));
            prop_assert_eq!(&*again, &chunk[..], "{:?}", arch);
        }
    }

    #[test]
    fn one_number_of_another_kind_does_not_pay(
        (form, dtype) in prop::sample::select(cases()),
        place in 0_usize..1500,
        seed: u64,
    ) {
        let (mut chunk, codec) = (sent(form, dtype, 1500, 1.0, seed), Quantized::new(form, dtype));
        let element = &mut chunk[place * dtype.size()..][..dtype.size()];
        // Of a half the lowest bits are all there is.
        let odd = if dtype.size() == 2 { [0x55, 0x35].to_vec() } else { element.iter().map(|_| 0x35).collect() };
        element.copy_from_slice(&odd);
        for arch in variants() {
            prop_assert_eq!(encoded(arch, codec, &chunk), None);
        }
    }

    #[test]
    fn a_damaged_payload_is_refused_and_changes_nothing_or_is_that_of_another_chunk(
        (form, dtype) in prop::sample::select(cases()),
        elements in prop::sample::select(&[9_usize, 100, 300, 1030]),
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        seed: u64,
    ) {
        let (chunk, codec) = (sent(form, dtype, elements, 1.0, seed), Quantized::new(form, dtype));
        let Some(mut payload) = encoded(Arch::best(), codec, &chunk) else { return Ok(()) };
        let length = payload.len();
        places.iter().for_each(|(place, byte)| payload[place.index(length)] = *byte);
        for arch in variants() {
            let mut again = Aligned::new(&vec![0xee; chunk.len()]);
            match codec.decode_on(arch, &payload, &mut again).unwrap() {
                Ok(()) => prop_assert_eq!(encoded(arch, codec, &again), Some(payload.clone()), "{:?}", arch),
                Err(_) => prop_assert!(again.iter().all(|&byte| byte == 0xee)),
            }
        }
    }
}

#[test]
fn each_filter_names_a_codec_that_carries_its_elements() {
    for (form, dtype) in cases() {
        let number = Quantized::new(form, dtype).number();
        let entry = codec::ALL.iter().find(|entry| entry.number == number).expect("it is in the list");
        assert!(
            Dtype::ALL.into_iter().all(|other| entry.codec.carries(other) == (other == dtype)),
            "{entry:?}"
        );
    }
    let mut numbers: Vec<u8> = codec::ALL.iter().map(|entry| entry.number).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), codec::ALL.len(), "each number once, ascending");
}

#[test]
fn a_payload_of_another_length_and_a_chunk_that_would_grow_are_refused() {
    let codec = Quantized::new(Form::OneBit, Dtype::F32);
    let mut chunk = [0xee; 4];
    for payload in [&[0; 4][..], &[0; 5]] {
        assert!(codec.decode(payload, Base::Zeros, &mut chunk).is_err(), "{payload:?}");
    }
    let mut chunk = [0xee; 64];
    for payload in [&[0; 5][..], &[0; 7]] {
        assert!(codec.decode(payload, Base::Zeros, &mut chunk).is_err(), "{payload:?}");
    }
    assert_eq!(codec.decode(&[0; 6], Base::Zeros, &mut chunk), Ok(()));
    assert_eq!(chunk, [0; 64]);
    assert!(codec.lengths(4).is_empty() && codec.lengths(64) == (6..=6));
}

/// At both ends of the steps that each dtype has.
#[test]
fn the_smallest_and_the_largest_numbers_are_multiples_of_the_last_steps() {
    for dtype in Dtype::ALL {
        for size in [1e-320, 1e-308, 1e-44, 1e-38, 1e-7, 5e-6, 500.0, 6e4, 1e38, 3e38, 1e300, 1e308] {
            let (due, chunk) = sent_of(Form::Int8, dtype, 300, size, 7);
            let expected: Vec<f64> =
                due.chunks(256).flat_map(|due| expected(Form::Int8, dtype, due)).collect();
            assert_same(dtype, &chunk, &encode(dtype, &expected), &format!("{dtype:?} {size:e}"));
        }
    }
}

/// As a library may leave the thread that starts ours: see `promises.rs`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn the_bits_are_the_same_under_whatever_control_word_the_thread_has() {
    use crate::control_word::word;
    use crate::filter::sums::{Coordinates, SumFilter};
    for (form, dtype) in cases() {
        // Odd thirds, and denormals of float32 and of half precision.
        let small = |n: i32| if n % 2 == 0 { 1e-40 } else { 1e-7 };
        let numbers: Vec<f64> = (1..300).map(|n| f64::from(n) / 3.0 * small(n)).collect();
        let sum = encode(dtype, &numbers);
        let run = || {
            let filter = Quantize::new(form, dtype, 1e-6 / 3.0).unwrap();
            let mut carry = vec![0; numbers.len() * dtype.accumulator_size()];
            empty(dtype, &mut carry);
            let mut sent = Aligned::new(&sum);
            filter.split(
                Coordinates { clock: 0, first: 0, pressure: Pressure::NONE },
                Foreign::of(&sum),
                &mut ForeignMut::of(&mut sent),
                &mut carry,
            );
            let codec = Quantized::new(form, dtype);
            let mut payload = vec![0; *codec.lengths(sent.len()).end()];
            let length = codec.encode(Foreign::of(&sent), None, &mut payload);
            let mut again = vec![0; sent.len()];
            codec.decode(&payload, Base::Zeros, &mut again).unwrap();
            (sent.to_vec(), carry, payload, length, again)
        };
        let expected = run();
        assert!(expected.3.is_some() && expected.4 == expected.0, "{form:?} {dtype:?}");
        word::write(word::DEFAULT | 0x8000 | 0x0040 | 0x6000);
        let got = run();
        word::write(word::DEFAULT);
        assert!(got == expected, "{form:?} {dtype:?}");
    }
}

#[test]
fn halves_are_left_as_they_are_and_thresholds_that_no_element_can_hold_are_refused() {
    let make = |name: &str, dtype, settings: &[f64]| {
        (ALL.iter().find(|entry| entry.name == name).unwrap().make)(dtype, settings)
            .map(|made| made.is_some())
    };
    for name in ["Quantize f16", "Quantize bf16"] {
        for dtype in Dtype::ALL {
            assert_eq!(make(name, dtype, &[]), Ok(dtype.size() > 2), "a model may have several dtypes");
        }
    }
    let expected = "a number above 0 that an element can hold";
    for (dtype, threshold) in [
        (Dtype::F32, 0.0),
        (Dtype::F32, -1.0),
        (Dtype::F32, 1e-60),
        (Dtype::F16, 1e6),
        (Dtype::F64, f64::NAN),
    ] {
        assert_eq!(make("Quantize 2bit", dtype, &[threshold]), Err(Unfit::Setting { place: 0, expected }));
    }
    assert_eq!(make("Quantize 2bit", Dtype::F64, &[1e-60]), Ok(true));
}

/// Error feedback: of what is pushed again and again the sum arrives, however few bits there are.
#[test]
fn what_arrives_of_many_equal_pushes_is_their_sum_but_for_little() {
    for (form, dtype) in cases() {
        let sum: Vec<f64> = (0..300).map(|at| f64::from(at % 13 - 6) / 64.0).collect();
        let bytes = encode(dtype, &sum);
        let mut carry = vec![0; 300 * dtype.accumulator_size()];
        empty(dtype, &mut carry);
        let mut arrived = vec![0.0; 300];
        for _ in 0..1000 {
            let mut sent = Aligned::new(&bytes);
            let filter = filter(form, dtype).unwrap();
            filter.split_on(Arch::best(), Foreign::of(&bytes), &mut ForeignMut::of(&mut sent), &mut carry);
            arrived.iter_mut().zip(decode(dtype, &sent)).for_each(|(all, sent)| *all += sent);
        }
        for ((arrived, sum), carried) in arrived.iter().zip(&sum).zip(decode(accumulator(dtype), &carry)) {
            let what = format!("{form:?} {dtype:?}: {arrived} and {carried} of {}", 1000.0 * sum);
            assert!((arrived + carried - 1000.0 * sum).abs() <= 1e-3, "{what}");
            assert!(carried.abs() <= THRESHOLD, "{what}");
        }
    }
}

/// What a carry could not tell from what is left of it was sent again and again, and nothing less was due.
#[test]
fn what_few_bits_would_never_catch_up_with_is_sent_whole() {
    for (form, dtype) in cases() {
        let filter = filter(form, dtype).unwrap();
        let much = largest(dtype).min(2_f64.powi(40));
        let mut carry = vec![0; 9 * dtype.accumulator_size()];
        empty(dtype, &mut carry);
        let mut arrived = 0.0;
        for push in 0..3000 {
            let mut sum = vec![0.0; 9];
            sum[4] = if push == 0 { much } else { 0.0 };
            let bytes = encode(dtype, &sum);
            let mut sent = Aligned::new(&bytes);
            filter.split_on(Arch::best(), Foreign::of(&bytes), &mut ForeignMut::of(&mut sent), &mut carry);
            arrived += decode(dtype, &sent)[4];
        }
        let left = decode(accumulator(dtype), &carry)[4];
        let what = format!("{form:?} {dtype:?}: {arrived} and {left} of {much}");
        assert!((arrived + left - much).abs() <= much * 1e-5, "{what}");
        assert!(form == Form::OneBit || left.abs() <= much * 1e-2, "{what}");
    }
}

/// What is left of many thresholds, none of them short in binary, was rounded the same way with each of them: 40 were lost.
#[test]
fn of_many_thresholds_that_go_one_by_one_none_is_lost() {
    for (threshold, much) in [(0.1, 102.3), (0.1, 6500.0), (0.3, 307.1), (0.3, 19000.0), (1.0 / 3.0, 341.0)] {
        let filter = Quantize::new(Form::TwoBits, Dtype::F32, threshold).unwrap();
        let mut carry = vec![0; 4];
        empty(Dtype::F32, &mut carry);
        let mut arrived = 0.0;
        for push in 0..1100 {
            let sum = encode(Dtype::F32, &[if push == 0 { much } else { 0.0 }]);
            let mut sent = Aligned::new(&sum);
            filter.split_on(Arch::best(), Foreign::of(&sum), &mut ForeignMut::of(&mut sent), &mut carry);
            arrived += decode(Dtype::F32, &sent)[0];
        }
        let (left, pushed) = (decode(Dtype::F32, &carry)[0], rounded(Dtype::F32, much));
        let lost = (arrived + left - pushed).abs();
        assert!(left.abs() < threshold && lost <= threshold / 32.0, "{threshold}: {lost} of {pushed}");
    }
}
