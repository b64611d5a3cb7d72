//! What callers rely on beyond the arithmetic.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::chunk::{Chunk, Numbers, decode, encode};
use crate::optimizer::naive::Aligned;
use crate::{
    ALIGNMENT, Arch, Dtype, Foreign, ForeignMut, NonFinite, Plan, Rule, Settings, cpu_features, fold,
};

const ADD: Plan = Plan { dtype: Dtype::F32, rule: Rule::Add, clip: None, refuse_nonfinite: false };

fn fold_lanes(
    plan: Plan,
    settings: [f64; 5],
    lanes: &[&[f64]],
    value: &[f64],
) -> Result<Vec<f64>, NonFinite> {
    let bytes: Vec<Aligned> = lanes.iter().map(|lane| Aligned::new(&encode(plan.dtype, lane))).collect();
    let lanes: Vec<Foreign<'_>> = bytes.iter().map(|lane| Foreign::of(lane)).collect();
    let mut value = Aligned::new(&encode(plan.dtype, value));
    let mut state = Aligned::new(&vec![0; plan.rule.slots().count() * value.len()]);
    fold(&plan, &Settings(settings), 0, 1.0, &lanes, &mut value, &mut state)?;
    Ok(decode(plan.dtype, &value))
}

#[test]
fn lanes_are_summed_in_rank_order() {
    let (big, small) = (&[1e8][..], &[1.0][..]);
    assert_eq!(fold_lanes(ADD, [0.0; 5], &[big, &[-1e8], small], &[0.0]), Ok(vec![1.0]));
    assert_eq!(fold_lanes(ADD, [0.0; 5], &[big, small, &[-1e8]], &[0.0]), Ok(vec![0.0]));
}

#[test]
fn what_is_kept_in_words_comes_from_and_goes_to_any_place() {
    let given: Vec<u8> = (0..64).map(|at: u32| (at * 31 % 251) as u8).collect();
    for (from, bytes) in (0..9).flat_map(|from| (0..41).map(move |bytes| (from, bytes))) {
        let row = &given[from..from + bytes];
        let mut words = Aligned::new(&[0xee; 48]);
        let whole = bytes.next_multiple_of(8);
        ForeignMut::of(&mut words[..whole]).copy_words_from(Foreign::of(row));
        assert!(words[..bytes] == *row && words[bytes..whole].iter().all(|&byte| byte == 0));
        assert!(words[whole..].iter().all(|&byte| byte == 0xee), "{bytes} bytes from {from}");
        let mut back = [0xee; 64];
        ForeignMut::of(&mut back[from..from + bytes]).copy_from_words(Foreign::of(&words[..whole]));
        assert!(back[from..from + bytes] == *row, "{bytes} bytes to {from}");
        assert!(back[..from].iter().chain(&back[from + bytes..]).all(|&byte| byte == 0xee));
    }
}

#[test]
fn half_precision_lanes_are_summed_in_f32_and_rounded_once() {
    let plan = Plan { dtype: Dtype::F16, ..ADD };
    // In f16, 2048 + 1 is 2048: only a wider sum sees that both ones together count.
    assert_eq!(fold_lanes(plan, [0.0; 5], &[&[2048.0], &[1.0], &[1.0]], &[0.0]), Ok(vec![2050.0]));
}

#[test]
fn without_weight_decay_an_infinite_weight_stays_infinite() {
    let plan = Plan { rule: Rule::Sgd { momentum: false, nesterov: false, maximize: false }, ..ADD };
    assert_eq!(
        fold_lanes(plan, [0.1, 0.0, 0.0, 0.0, 0.0], &[&[1.0]], &[f64::INFINITY]),
        Ok(vec![f64::INFINITY])
    );
}

#[test]
fn clipping_bounds_both_signs_and_infinity_but_hides_no_nan() {
    let plan = Plan { clip: Some(0.5), rule: Rule::Replace, ..ADD };
    let lane = [2.0, -2.0, 0.25, f64::INFINITY, f64::NAN];
    let got = fold_lanes(plan, [0.0; 5], &[&lane], &[0.0; 5]).unwrap();
    assert_eq!(got[..4], [0.5, -0.5, 0.25, 0.5]);
    assert!(got[4].is_nan());
}

#[test]
fn finite_lanes_whose_sum_overflows_are_refused_at_the_lane_that_does_it() {
    let plan = Plan { refuse_nonfinite: true, ..ADD };
    let huge = &[3e38][..];
    assert_eq!(fold_lanes(plan, [0.0; 5], &[huge, &[1.0], huge, huge], &[0.0]), Err(NonFinite { lane: 2 }));
}

#[test]
fn a_sum_that_only_its_scale_makes_infinite_is_refused_at_the_last_lane() {
    let plan = Plan { refuse_nonfinite: true, ..ADD };
    let mut chunk = Chunk::new(plan, Settings::NONE, 3, 40, &mut Numbers { seed: 1, awkward: 0 });
    chunk.scale = f64::from(f32::MAX);
    chunk.lanes[1] = Aligned::new(&encode(Dtype::F32, &[1e3; 40]));
    let (done, value, _) = chunk.folded(fold);
    assert_eq!(done, Err(NonFinite { lane: 2 }));
    assert_eq!(value, chunk.value.to_vec());
}

/// A page that a thread of ours rewrites while it is folded, as a hostile worker would: in the words in which the
/// portable kernels read it, since to Miri atomics of two sizes that meet are undefined. No hardware cares about that,
/// and no other process asks.
#[repr(align(64))]
struct Hostile([AtomicU64; WORDS]);

/// Several vectors and a tail; less where an interpreter goes through them.
const WORDS: usize = if cfg!(miri) { 9 } else { 513 };

#[test]
fn a_lane_rewritten_while_it_is_folded_never_brings_a_nan_in() {
    let lane = Hostile([const { AtomicU64::new(0) }; WORDS]);
    let stop = AtomicBool::new(false);
    let plan = Plan { refuse_nonfinite: true, rule: Rule::Replace, ..ADD };
    // Both outcomes must come up, or the race was never met.
    let (mut folded, mut refused, enough) = (0, 0, if cfg!(miri) { 2 } else { 200 });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for bits in [f32::NAN, 1.0].map(|value| u64::from(value.to_bits()) * 0x1_0000_0001) {
                    lane.0.iter().for_each(|word| word.store(bits, Ordering::Relaxed));
                    // Lingers in each state, so that a writer that loses its core leaves either behind.
                    (0..if cfg!(miri) { 3000 } else { 1000 }).for_each(|_| std::hint::spin_loop());
                }
            }
        });
        let mut value = Aligned::new(&[0; size_of::<[AtomicU64; WORDS]>()]);
        while (folded < enough || refused < enough) && folded + refused < 20_000_000 {
            // SAFETY: the lane outlives the scope, and only atomics and this touch it; its type is aligned to a cache line.
            let foreign = unsafe { Foreign::new(lane.0.as_ptr().cast(), value.len()) };
            match fold(&plan, &Settings::NONE, 0, 1.0, &[foreign], &mut value, &mut []) {
                Ok(()) => folded += 1,
                Err(NonFinite { lane }) => {
                    assert_eq!(lane, 0);
                    refused += 1;
                }
            }
            assert_eq!(crate::first_nonfinite(Dtype::F32, Foreign::of(&value)), None);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(
        folded >= enough && refused >= enough,
        "the race was not met: {folded} folded, {refused} refused"
    );
}

#[test]
fn a_sum_that_changed_after_its_check_counts_as_zero_where_it_is_not_finite() {
    use crate::arch::Isa;
    use crate::arch::{Dispatch, on};
    use crate::optimizer::update::Add;
    use crate::sweep::{Gather, Sweep};

    /// The sweep alone: what a fold does to lanes that were finite only while they were checked.
    struct Unchecked<'a>(&'a [Foreign<'a>], &'a mut [u8]);
    impl Dispatch for Unchecked<'_> {
        type Output = ();
        fn on<I: Isa>(self, isa: I) {
            let gather = Gather::new(self.0, 1.0, None, true);
            isa.run(Sweep::<I::Bf16, _> { gather, rule: Add, value: self.1, state: &mut [] });
        }
    }

    let lane = [1.0, f64::NAN, f64::INFINITY, 2.0].repeat(20);
    let lane = Aligned::new(&encode(Dtype::Bf16, &lane));
    for arch in Arch::ALL.into_iter().filter(|arch| arch.is_available()) {
        let mut value = Aligned::new(&encode(Dtype::Bf16, &[3.0; 80]));
        on(arch, Unchecked(&[Foreign::of(&lane)], &mut value)).unwrap();
        assert_eq!(decode(Dtype::Bf16, &value), [4.0, 3.0, 3.0, 5.0].repeat(20), "{arch:?}");
    }
}

#[test]
fn the_variant_in_use_is_one_that_this_machine_has() {
    let named = Arch::ALL.into_iter().find(|arch| arch.name() == cpu_features()).unwrap();
    assert!(named.is_available());
    assert!(Arch::Generic.is_available());
}

#[test]
#[should_panic(expected = "a lane is as long as its chunk")]
fn a_lane_of_another_length_is_a_bug_of_the_caller() {
    let (lane, mut value) = (Aligned::new(&[0; 8]), Aligned::new(&[0; 12]));
    let _ = fold(&ADD, &Settings::NONE, 0, 1.0, &[Foreign::of(&lane)], &mut value, &mut []);
}

#[test]
#[should_panic(expected = "an accumulator per slot and element")]
fn a_state_of_another_length_is_a_bug_of_the_caller() {
    let (lane, mut value) = (Aligned::new(&[0; 8]), Aligned::new(&[0; 8]));
    let plan = Plan { rule: Rule::Adagrad { maximize: false }, ..ADD };
    let _ = fold(&plan, &Settings::NONE, 0, 1.0, &[Foreign::of(&lane)], &mut value, &mut [0; 4]);
}

#[test]
#[should_panic(expected = "a value must start on a cache line")]
fn a_value_inside_a_cache_line_is_a_bug_of_the_caller() {
    let (lane, mut value) = (Aligned::new(&[0; 8]), Aligned::new(&[0; ALIGNMENT + 8]));
    let _ = fold(&ADD, &Settings::NONE, 0, 1.0, &[Foreign::of(&lane)], &mut value[4..12], &mut []);
}

#[test]
#[should_panic(expected = "at least one lane")]
fn a_fold_of_no_lane_is_a_bug_of_the_caller() {
    let _ = fold(&ADD, &Settings::NONE, 0, 1.0, &[], &mut Aligned::new(&[0; 8]), &mut []);
}

#[test]
#[should_panic(expected = "a lane must start on a cache line")]
fn a_lane_that_starts_inside_a_cache_line_is_a_bug_of_the_caller() {
    let (lane, mut value) = (Aligned::new(&[0; 16]), Aligned::new(&[0; 8]));
    let _ = fold(&ADD, &Settings::NONE, 0, 1.0, &[Foreign::of(&lane[8..])], &mut value, &mut []);
}

/// Denormals are zero, results are flushed to zero, rounding is towards zero: as a library may leave the thread that starts ours.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn the_bits_are_the_same_under_whatever_control_word_the_thread_has() {
    use crate::control_word::word;
    let rules = [
        (Rule::Add, [0.0; 5]),
        (Rule::Sgd { momentum: true, nesterov: false, maximize: false }, [0.1, 0.9, 0.0, 0.01, 0.0]),
        (Rule::Adam { amsgrad: false, maximize: false }, [1e-3, 0.9, 0.999, 1e-8, 0.01]),
    ];
    for (arch, dtype) in Arch::ALL
        .into_iter()
        .filter(|arch| arch.is_available())
        .flat_map(|arch| Dtype::ALL.map(|dtype| (arch, dtype)))
    {
        for (rule, settings) in rules {
            // Odd thirds, denormals of f32 and of half precision, and a few that fill no vector.
            let numbers: Vec<f64> =
                (1..300).map(|n| f64::from(n) / 3.0 * if n % 2 == 0 { 1e-40 } else { 1e-7 }).collect();
            let lane = Aligned::new(&encode(dtype, &numbers));
            let plan = Plan { dtype, rule, ..ADD };
            let run = || {
                let mut value = lane.to_vec();
                let mut state =
                    Aligned::new(&vec![0; rule.slots().count() * numbers.len() * dtype.accumulator_size()]);
                crate::accumulate_on(arch, dtype, &mut value, &lane).unwrap();
                let mut value = Aligned::new(&value);
                let lanes = [Foreign::of(&lane), Foreign::of(&lane)];
                crate::fold_on(
                    arch,
                    &plan,
                    &Settings(settings),
                    6,
                    1.0 / 3.0,
                    &lanes,
                    &mut value,
                    &mut state,
                )
                .unwrap()
                .unwrap();
                (value.to_vec(), state.to_vec())
            };
            let expected = run();
            word::write(word::DEFAULT | 0x8000 | 0x0040 | 0x6000);
            let got = run();
            word::write(word::DEFAULT);
            assert!(got == expected, "{arch:?} {dtype:?} {rule:?}");
        }
    }
}

/// Each rule, with settings under which it ignores zeros and others under which it does not.
#[test]
fn where_a_rule_ignores_zeros_a_step_by_them_changes_nothing_and_elsewhere_it_does() {
    let maximize = false;
    let [sgd, momentum] = [false, true].map(|momentum| Rule::Sgd { momentum, nesterov: false, maximize });
    let (ignoring, minding) = (true, false);
    let adam = [0.1, 0.9, 0.99, 1e-3, 0.0];
    for (rule, settings, ignores) in [
        (Rule::Add, [0.0; 5], ignoring),
        (Rule::Replace, [0.0; 5], minding),
        (sgd, [0.1, 0.0, 0.0, 0.0, 0.0], ignoring),
        (sgd, [0.1, 0.0, 0.0, 0.5, 0.0], minding),
        (momentum, [0.1, 0.0, 0.0, 0.0, 0.0], ignoring),
        (momentum, [0.1, 0.9, 0.0, 0.0, 0.0], minding),
        (momentum, [0.1, 0.0, 0.0, 0.5, 0.0], minding),
        (Rule::Adagrad { maximize }, [0.1, 0.5, 1e-3, 0.0, 0.0], ignoring),
        (Rule::Adagrad { maximize }, [0.1, 0.0, 1e-3, 0.5, 0.0], minding),
        (Rule::Adagrad { maximize }, [0.1, 0.0, 1e-30, 0.0, 0.0], ignoring),
        (Rule::RmsProp { momentum: false, centered: false, maximize }, [0.1, 0.9, 1e-3, 0.0, 0.0], minding),
        (Rule::Adam { amsgrad: false, maximize }, adam, minding),
        (Rule::AdamW { amsgrad: true, maximize }, adam, minding),
    ] {
        let settings = Settings(settings);
        assert_eq!(settings.check(rule), Ok(()), "{rule} {settings:?}");
        assert_eq!(rule.ignores_zeros(&settings), ignores, "{rule} {settings:?}");
        for dtype in Dtype::ALL {
            let numbers: Vec<f64> = (1..40).map(|at| f64::from(at) / 8.0).collect();
            let mut value = Aligned::new(&encode(dtype, &numbers));
            let one = dtype.accumulator_size() / dtype.size() * value.len();
            // Some as they were at the start.
            let state: Vec<u8> = (0..numbers.len() * rule.slots().count())
                .map(|at| if at % 3 == 0 { 0.0 } else { 1.5_f64 })
                .flat_map(|number| match dtype {
                    Dtype::F64 => number.to_le_bytes().to_vec(),
                    _ => (number as f32).to_le_bytes().to_vec(),
                })
                .collect();
            assert_eq!(state.len(), one * rule.slots().count());
            let mut state = Aligned::new(&state);
            let (value_before, state_before) = (value.to_vec(), state.to_vec());
            let zeros = Aligned::new(&vec![0; value.len()]);
            let plan = Plan { dtype, rule, ..ADD };
            fold(&plan, &settings, 3, 1.0, &[Foreign::of(&zeros)], &mut value, &mut state).unwrap();
            let same = *value == *value_before && *state == *state_before;
            assert_eq!(same, ignores, "{rule} {settings:?} {dtype:?}");
        }
    }
}

#[test]
fn what_the_accumulators_cannot_hold_makes_something_of_zeros() {
    let adagrad = Rule::Adagrad { maximize: false };
    for (lr, eps) in [(0.1, 0.0), (0.1, 1e-46), (1e300, 1e-3)] {
        assert!(!adagrad.ignores_zeros(&Settings([lr, 0.0, eps, 0.0, 0.0])), "{lr}, {eps}");
    }
    let sgd = Rule::Sgd { momentum: false, nesterov: false, maximize: false };
    for (lr, ignores) in [(0.1, true), (1e300, false)] {
        assert_eq!(sgd.ignores_zeros(&Settings([lr, 0.0, 0.0, 0.0, 0.0])), ignores, "{lr}");
    }
}
