//! What filters of sums promise: equations 6 and 10 in a few obvious lines, and that nothing is lost.

use super::chunk::{Numbers, accumulator, assert_same, decode, encode};
use crate::filter::Unfit;
use crate::filter::sums::{
    ALL, Coordinates, Follows, Pressure, SumFilter, empty, held_back, release, split_on,
};
use crate::optimizer::naive::Aligned;
use crate::{Arch, Dtype, Foreign, ForeignMut};
use proptest::prelude::*;
use std::sync::Arc;

/// Around every vector and tail that any variant has.
const LENGTHS: [usize; 12] = [0, 1, 7, 8, 15, 17, 63, 64, 65, 127, 1025, 8192];

const NONE: Coordinates = Coordinates { clock: 0, first: 0, pressure: Pressure::NONE };

fn filter(name: &str, dtype: Dtype, settings: &[f64]) -> Arc<dyn SumFilter> {
    let entry = ALL.iter().find(|entry| entry.name == name).unwrap();
    (entry.make)(dtype, settings).unwrap().unwrap()
}

/// One that holds something back, of each kind.
fn every(dtype: Dtype) -> [Arc<dyn SumFilter>; 7] {
    [
        filter("DVF", dtype, &[0.5, 0.0, 0.0, 0.5, 0.0]),
        filter("DVF", dtype, &[2.0, 1.0, 0.0, 2.0, 0.0]),
        filter("DVF", dtype, &[1.0, 0.0, 1.0, 1.0, 0.0]),
        filter("TopK", dtype, &[0.25]),
        filter("RandomK", dtype, &[0.25, 7.0]),
        filter("Quantize int8", dtype, &[]),
        filter("Quantize 2bit", dtype, &[0.5]),
    ]
}

fn fresh(dtype: Dtype, elements: usize) -> Aligned {
    let mut carry = Aligned::new(&vec![0; elements * dtype.accumulator_size()]);
    empty(dtype, &mut carry);
    carry
}

/// What is sent of a sum.
fn split(filter: &dyn SumFilter, at: Coordinates, sum: &[u8], carry: &mut [u8]) -> Vec<u8> {
    let mut sent = Aligned::new(&vec![0xee; sum.len()]);
    filter.split(at, Foreign::of(sum), &mut ForeignMut::of(&mut sent), carry);
    sent.to_vec()
}

/// As a dtype has it.
fn rounded(dtype: Dtype, number: f64) -> f64 {
    decode(dtype, &encode(dtype, &[number]))[0]
}

/// An element of a sum: what is sent, and what is carried.
fn expected(dtype: Dtype, sum: f64, carry: f64, limit: f64) -> (f64, f64) {
    let accumulate = |number| rounded(accumulator(dtype), number);
    let due = accumulate(sum + carry);
    if due.is_finite() && due.abs() <= accumulate(limit) {
        return (0.0, if due == 0.0 { -0.0 } else { due });
    }
    let largest = match dtype {
        Dtype::F16 => 65504.0,
        Dtype::Bf16 => half::bf16::MAX.to_f64(),
        _ => f64::MAX,
    };
    let sent = if due.is_finite() { rounded(dtype, due.clamp(-largest, largest)) } else { due };
    let left = accumulate(due - sent);
    (sent, if left == 0.0 || !left.is_finite() { -0.0 } else { left })
}

fn matches_the_oracle(arch: Arch, dtype: Dtype, elements: usize, limit: f64, mut numbers: Numbers) {
    let sum = Aligned::new(&encode(dtype, &numbers.take(elements)));
    // As a carry is: finite, and -0.0 where it is empty.
    let tidy = |x: f64| if rounded(accumulator(dtype), x).is_finite() && x != 0.0 { x } else { -0.0 };
    let carried: Vec<f64> = numbers.take(elements).into_iter().map(tidy).collect();
    let carry = encode(accumulator(dtype), &carried);
    let (sums, carries) = (decode(dtype, &sum), decode(accumulator(dtype), &carry));
    let of = |(&sum, &carry): (&f64, &f64)| expected(dtype, sum, carry, limit);
    let (sent, left): (Vec<f64>, Vec<f64>) = sums.iter().zip(&carries).map(of).unzip();
    let what = format!("{arch:?} {dtype:?} limit {limit}");
    let check = |got: &[u8], carry: &[u8]| {
        assert_same(dtype, got, &encode(dtype, &sent), &format!("sent, {what}"));
        assert_same(accumulator(dtype), carry, &encode(accumulator(dtype), &left), &format!("carry, {what}"));
    };
    let (mut to, mut kept) = (Aligned::new(&vec![0xee; sum.len()]), Aligned::new(&carry));
    let split = |sum, to: &mut ForeignMut<'_>, kept: &mut [u8]| {
        split_on(arch, dtype, Some(sum), to, kept, limit).expect("this machine has it");
    };
    split(Foreign::of(&sum), &mut ForeignMut::of(&mut to), &mut kept);
    check(&to, &kept);
    // In place.
    let (mut both, mut kept) = (Aligned::new(&sum), Aligned::new(&carry));
    let mut memory = ForeignMut::of(&mut both);
    // SAFETY: `both` lives and is not looked at otherwise meanwhile; only this thread writes it.
    let same = unsafe { Foreign::new(memory.as_foreign().as_ptr(), sum.len()) };
    split(same, &mut memory, &mut kept);
    check(&both, &kept);
}

proptest! {
    #[test]
    fn every_variant_sends_what_is_beyond_the_limit_and_carries_the_rest(
        dtype in prop::sample::select(&Dtype::ALL),
        elements in prop::sample::select(&LENGTHS),
        limit in prop::sample::select(&[-1.0, 0.0, 0.3, 1.0, 1e39, f64::INFINITY]),
        awkward in prop::sample::select(&[0, 4, 40]),
        seed: u64,
    ) {
        for arch in Arch::ALL.into_iter().filter(|arch| arch.is_available()) {
            matches_the_oracle(arch, dtype, elements, limit, Numbers { seed, awkward });
        }
    }

    /// Equation 6. Whole numbers so small that no sum of them is rounded.
    #[test]
    fn what_was_sent_and_what_is_carried_are_what_was_computed(
        dtype in prop::sample::select(&Dtype::ALL),
        elements in prop::sample::select(&LENGTHS),
        rounds in 1_u64..6,
        seed: u64,
    ) {
        for filter in every(dtype) {
            let mut numbers = Numbers { seed, awkward: 0 };
            let mut carry = fresh(dtype, elements);
            let (mut computed, mut sent) = (vec![0.0; elements], vec![0.0; elements]);
            for clock in 0..rounds {
                let sum: Vec<f64> = numbers.take(elements).iter().map(|x| (x * 8.0).round()).collect();
                computed.iter_mut().zip(&sum).for_each(|(all, x)| *all += x);
                let went = split(&*filter, Coordinates { clock, first: 0, pressure: Pressure::NONE }, &encode(dtype, &sum), &mut carry);
                sent.iter_mut().zip(decode(dtype, &went)).for_each(|(all, x)| *all += x);
            }
            let carried = decode(accumulator(dtype), &carry);
            for at in 0..elements {
                prop_assert_eq!(sent[at] + carried[at], computed[at], "{:?}", filter);
            }
            let held = held_back(dtype, &carry);
            prop_assert_eq!(held.elements, carried.iter().filter(|&&x| x != 0.0).count() as u64);
            let norm = carried.iter().map(|x| x * x).sum::<f64>().sqrt();
            prop_assert!((held.norm() - norm).abs() <= 1e-9 * norm);
            let mut last = Aligned::new(&vec![0; elements * dtype.size()]);
            release(dtype, None, &mut ForeignMut::of(&mut last), &mut carry);
            let last = decode(dtype, &last);
            (0..elements).for_each(|at| assert_eq!(sent[at] + last[at], computed[at]));
            prop_assert_eq!(held_back(dtype, &carry).elements, 0);
        }
    }

    #[test]
    fn the_largest_are_sent_as_many_as_were_asked_for_and_of_equal_ones_the_first(
        dtype in prop::sample::select(&Dtype::ALL),
        sum in prop::collection::vec(-4_i32..=4, 1..200),
        fraction in prop::sample::select(&[0.01, 0.25, 0.9]),
    ) {
        let sum: Vec<f64> = sum.into_iter().map(f64::from).collect();
        let top = filter("TopK", dtype, &[fraction]);
        let mut carry = fresh(dtype, sum.len());
        let sent = decode(dtype, &split(&*top, NONE, &encode(dtype, &sum), &mut carry));
        let wanted = ((sum.len() as f64 * fraction).round() as usize).max(1);
        let mut order: Vec<usize> = (0..sum.len()).collect();
        order.sort_by(|&a, &b| sum[b].abs().total_cmp(&sum[a].abs()).then(a.cmp(&b)));
        let mut expected = vec![0.0; sum.len()];
        order[..wanted].iter().for_each(|&at| expected[at] = sum[at]);
        prop_assert_eq!(sent, expected);
    }

    // What rounding left of an element that was sent was as large as the least that was to be sent, and took its place.
    #[test]
    fn the_largest_are_those_that_were_due_whatever_rounding_leaves_of_them(
        dtype in prop::sample::select(&[Dtype::Bf16, Dtype::F16]),
        exponents in prop::collection::vec((-14_i32..=2, any::<bool>(), -14_i32..=2), 1..200),
        fraction in prop::sample::select(&[0.01, 0.25, 0.5, 0.9]),
    ) {
        let top = filter("TopK", dtype, &[fraction]);
        let power = |exponent: i32| 2_f64.powi(exponent);
        let before: Vec<f64> = exponents.iter().map(|&(at, minus, _)| if minus { -power(at) } else { power(at) }).collect();
        let sum: Vec<f64> = exponents.iter().map(|&(_, _, at)| power(at)).collect();
        let mut carry = Aligned::new(&encode(Dtype::F32, &before));
        let sent = decode(dtype, &split(&*top, NONE, &encode(dtype, &sum), &mut carry));
        let left = decode(Dtype::F32, &carry);
        let due: Vec<f64> = sum.iter().zip(&before).map(|(a, b)| a + b).collect();
        let wanted = ((sum.len() as f64 * fraction).round() as usize).max(1);
        let mut order: Vec<usize> = (0..sum.len()).collect();
        order.sort_by(|&a, &b| due[b].abs().total_cmp(&due[a].abs()).then(a.cmp(&b)));
        for (place, at) in order.into_iter().enumerate() {
            let goes = place < wanted && due[at] != 0.0;
            prop_assert_eq!(sent[at], if goes { rounded(dtype, due[at]) } else { 0.0 }, "element {}", at);
            prop_assert_eq!(sent[at] + left[at], due[at], "element {}", at);
        }
    }

    #[test]
    fn as_many_are_drawn_as_were_asked_for_and_not_the_same_at_the_next_clock(
        elements in 200_usize..5000,
        seed in 0_u64..1 << 53,
        clock in 0_u64..1000,
    ) {
        let random = filter("RandomK", Dtype::F32, &[0.1, seed as f64]);
        let ones = encode(Dtype::F32, &vec![1.0; elements]);
        let drawn = |clock, first| {
            let mut carry = fresh(Dtype::F32, elements);
            let sent = decode(Dtype::F32, &split(&*random, Coordinates { clock, first, pressure: Pressure::NONE }, &ones, &mut carry));
            (0..elements).filter(|&at| sent[at] == 1.0).collect::<Vec<_>>()
        };
        let now = drawn(clock, 0);
        prop_assert_eq!(now.len(), (elements as f64 * 0.1).round() as usize);
        prop_assert_eq!(&now, &drawn(clock, 0), "whoever draws");
        prop_assert_ne!(&now, &drawn(clock + 1, 0));
        prop_assert_ne!(&now, &drawn(clock, 8192));
    }
}

/// What is not finite would swallow all that comes after it, were it carried.
#[test]
fn what_is_not_finite_is_sent_at_once_and_leaves_nothing_behind() {
    for dtype in Dtype::ALL {
        for filter in every(dtype) {
            let mut sum = vec![1e-3; 100];
            for at in (0..100).step_by(2) {
                sum[at] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][at % 3];
            }
            let mut carry = fresh(dtype, sum.len());
            let sent = decode(dtype, &split(&*filter, NONE, &encode(dtype, &sum), &mut carry));
            let arrived = |at: usize| sent[at] == sum[at] || sent[at].is_nan() && sum[at].is_nan();
            assert!((0..100).step_by(2).all(arrived), "{filter:?}: {sent:?}");
            assert!(decode(accumulator(dtype), &carry).iter().all(|x| x.is_finite()), "{filter:?}");
        }
    }
}

#[test]
fn every_element_is_drawn_about_as_often_as_any_other() {
    let random = filter("RandomK", Dtype::F32, &[0.1, 1.0]);
    let ones = encode(Dtype::F32, &[1.0; 100]);
    let mut times = [0; 100];
    for clock in 0..4000 {
        let mut carry = fresh(Dtype::F32, 100);
        let sent = decode(
            Dtype::F32,
            &split(&*random, Coordinates { clock, first: 0, pressure: Pressure::NONE }, &ones, &mut carry),
        );
        times.iter_mut().zip(sent).for_each(|(times, sent)| *times += u32::from(sent != 0.0));
    }
    // 400 expected, with a deviation of 19.
    assert!(times.iter().all(|times| (300..500).contains(times)), "{times:?}");
}

/// A bound that is in units of what the gradients are has no effect on their scale; a shrinking one goes with the root of the clock.
#[test]
fn a_relative_bound_scales_with_the_sum_and_one_that_decays_with_the_clock() {
    let sum: Vec<f64> = (1..=64).map(f64::from).collect();
    let times = |factor: f64| sum.iter().map(|x| x * factor).collect::<Vec<_>>();
    let kept = |filter: &dyn SumFilter, clock, sum: &[f64]| {
        let mut carry = fresh(Dtype::F64, 64);
        split(
            filter,
            Coordinates { clock, first: 0, pressure: Pressure::NONE },
            &encode(Dtype::F64, sum),
            &mut carry,
        );
        held_back(Dtype::F64, &carry).elements
    };
    let relative = filter("DVF", Dtype::F64, &[1.0, 0.0, 1.0, 1.0, 0.0]);
    let root_mean_square = (sum.iter().map(|x| x * x).sum::<f64>() / 64.0).sqrt();
    assert_eq!(kept(&*relative, 0, &sum), root_mean_square as u64);
    assert_eq!(kept(&*relative, 9, &times(1024.0)), root_mean_square as u64);
    let decaying = filter("DVF", Dtype::F64, &[32.0, 1.0, 0.0, 32.0, 0.0]);
    for (clock, expected) in [(0, 32), (3, 16), (15, 8), (1023, 1), (1024, 0)] {
        assert_eq!(kept(&*decaying, clock, &sum), expected, "clock {clock}");
    }
}

#[test]
fn settings_out_of_their_range_are_refused_by_their_place_and_those_that_hold_nothing_back_make_no_filter() {
    let make = |name: &str, settings: &[f64]| {
        (ALL.iter().find(|entry| entry.name == name).unwrap().make)(Dtype::F32, settings)
    };
    for (name, settings, at) in [
        ("DVF", &[-1e-9, 0.0, 0.0, -1e-9, 0.0][..], 0),
        ("DVF", &[1.0, 2.0, 0.0, 1.0, 0.0], 1),
        ("DVF", &[1.0, 0.0, 0.0, 0.5, 0.0], 3),
        ("DVF", &[1.0, 0.0, 0.0, 1.0, -1.0], 4),
        ("DVF", &[1.0, 0.0, 0.5, 1.0, 0.0], 2),
        ("TopK", &[0.0], 0),
        ("TopK", &[1.01], 0),
        ("RandomK", &[f64::MIN_POSITIVE, -1.0], 1),
        ("RandomK", &[0.5, 0.5], 1),
        ("RandomK", &[0.5, 9_007_199_254_740_992.0], 1),
        ("RandomK", &[2.0, 0.0], 0),
        ("Own", &[-1.0], 0),
        ("Own", &[0.5], 0),
    ] {
        let refused = make(name, settings).unwrap_err();
        assert!(matches!(refused, Unfit::Setting { place, .. } if place == at), "{name} {settings:?}");
    }
    for (name, settings) in [
        ("everything", &[][..]),
        ("DVF", &[0.0, 1.0, 1.0, 0.0, 0.0]),
        ("TopK", &[1.0]),
        ("RandomK", &[1.0, 3.0]),
    ] {
        assert!(make(name, settings).unwrap().is_none(), "{name}");
    }
}

/// The program's word is not heard here.
#[test]
fn a_programs_own_filter_holds_back_by_itself_only_what_rounding_cuts_off() {
    for dtype in Dtype::ALL {
        let own = filter("Own", dtype, &[281_474_976_710_655.0]);
        let mut carry = fresh(dtype, 3);
        for sum in [[1.5, -0.25, 1e-3], [0.0, 0.5, -3.0]] {
            let sum = encode(dtype, &sum);
            assert_eq!(split(&*own, NONE, &sum, &mut carry), sum, "{dtype:?}");
            assert_eq!(held_back(dtype, &carry).elements, 0, "{dtype:?}");
        }
        assert_eq!(own.codec(), None, "most of what is sent is 0");
    }
}

/// Two pushes that float16 holds may have a sum that it does not.
#[test]
fn what_half_precision_cannot_hold_is_sent_in_part_and_the_rest_is_carried() {
    let bounded = filter("DVF", Dtype::F16, &[50000.0, 0.0, 0.0, 50000.0, 0.0]);
    let mut carry = fresh(Dtype::F16, 3);
    let mut push =
        |sum: [f64; 3]| decode(Dtype::F16, &split(&*bounded, NONE, &encode(Dtype::F16, &sum), &mut carry));
    assert_eq!(push([48000.0, -48000.0, 1.0]), [0.0; 3]);
    assert_eq!(push([48000.0, -48000.0, 1.0]), [65504.0, -65504.0, 0.0]);
    assert_eq!(push([20000.0, -20000.0, 1.0]), [50496.0, -50496.0, 0.0]);
}

/// Between hosts zeros take no bytes, and -0.0 is none.
#[test]
fn where_nothing_is_held_back_a_release_sends_plain_zeros() {
    for dtype in Dtype::ALL {
        let mut carry = fresh(dtype, 100);
        let mut sent = Aligned::new(&vec![0xee; 100 * dtype.size()]);
        release(dtype, None, &mut ForeignMut::of(&mut sent), &mut carry);
        assert!(sent.iter().all(|&byte| byte == 0), "{dtype:?}");
    }
}

/// Where the network presses the sender, a bound goes from `low` to `up`, in equal steps.
#[test]
fn a_bound_follows_the_network_from_one_end_to_the_other() {
    let sum: Vec<f64> = (1..=64).map(f64::from).collect();
    let kept = |filter: &dyn SumFilter, steps, clock| {
        let mut carry = fresh(Dtype::F64, 64);
        let at = Coordinates { clock, first: 0, pressure: Pressure::of(steps) };
        split(filter, at, &encode(Dtype::F64, &sum), &mut carry);
        held_back(Dtype::F64, &carry).elements
    };
    let (still, decaying) = (&[10.0, 0.0, 0.0, 50.0, 0.0], &[10.0, 1.0, 0.0, 50.0, 0.0]);
    for (steps, at_once, later) in
        [(0, 10, 5), (1, 20, 10), (2, 30, 15), (3, 40, 20), (4, 50, 25), (200, 50, 25)]
    {
        assert_eq!(kept(&*filter("DVF", Dtype::F64, still), steps, 3), at_once);
        assert_eq!(kept(&*filter("DVF", Dtype::F64, decaying), steps, 3), later);
    }
    let from_nothing = filter("DVF", Dtype::F64, &[0.0, 0.0, 0.0, 32.0, 0.0]);
    assert_eq!([0, 1, 4].map(|steps| kept(&*from_nothing, steps, 0)), [0, 8, 32]);
    // Not even the sign of a zero is lost where nothing presses.
    let mut carry = fresh(Dtype::F64, 2);
    let zeros = encode(Dtype::F64, &[-0.0, 0.0]);
    assert_eq!(split(&*from_nothing, NONE, &zeros, &mut carry), zeros);
    let follows = |settings| filter("DVF", Dtype::F64, settings).follows();
    assert_eq!(follows(&[1.0, 0.0, 0.0, 1.0, 5.0]), None, "there is only one bound");
    assert_eq!(follows(&[1.0, 0.0, 0.0, 2.0, 0.0]), Some(Follows::Time));
    assert_eq!(follows(&[1.0, 0.0, 0.0, 2.0, 5.0]), Some(Follows::Bandwidth(5.0)));
}

/// Of equal numbers none is beyond their root mean square: without a limit they would wait for ever.
#[test]
fn a_relative_bound_never_holds_everything_back() {
    let relative = filter("DVF", Dtype::F32, &[100.0, 0.0, 1.0, 100.0, 0.0]);
    let mut carry = fresh(Dtype::F32, 64);
    let sent = split(&*relative, NONE, &encode(Dtype::F32, &[-2.0; 64]), &mut carry);
    assert_eq!(decode(Dtype::F32, &sent), [-2.0; 64]);
    let sum: Vec<f64> = (1..=64).map(f64::from).collect();
    let sent = split(&*relative, NONE, &encode(Dtype::F32, &sum), &mut carry);
    assert_eq!(decode(Dtype::F32, &sent).iter().filter(|sent| **sent != 0.0).count(), 8);
}

#[test]
fn a_relative_bound_is_one_also_where_squares_are_too_large_to_be_numbers() {
    let relative = filter("DVF", Dtype::F64, &[1.0, 0.0, 1.0, 1.0, 0.0]);
    let sum: Vec<f64> = (1..=64).map(|x| f64::from(x) * 1e200).collect();
    let mut carry = fresh(Dtype::F64, 64);
    split(&*relative, NONE, &encode(Dtype::F64, &sum), &mut carry);
    assert_eq!(held_back(Dtype::F64, &carry).elements, 37);
}
