//! One suite, instantiated for every variant: each gives the oracle's bits, so all give the same.

use proptest::prelude::*;

use super::chunk::{Chunk, Numbers, accumulator, assert_same, decode, encode};
use crate::optimizer::naive::Aligned;
use crate::{
    Arch, Dtype, Flag, NonFinite, Plan, RULES, Row, Rule, Settings, accumulate_on, first_nonfinite_on,
    fold_on,
};

/// Around every vector and tail that any variant has, and whole default chunks.
const LENGTHS: [usize; 18] = [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1023, 1025, 8191, 8192];

/// Every rule with every set of flags that makes sense.
fn every_rule() -> Vec<Rule> {
    let sets = |row: &'static Row| {
        (0..1 << row.flags.len()).map(|set| {
            let chosen = row.flags.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1);
            row.plain.with(chosen.map(|(_, flag)| *flag).collect())
        })
    };
    let makes_sense = |rule: &Rule| {
        let flags = rule.flags();
        flags.iter().filter_map(Flag::needs).all(|needed| flags.has(needed))
    };
    RULES.iter().flat_map(sets).filter(makes_sense).collect()
}

/// Settings that the rule accepts, with a decay or without.
fn settings(rule: Rule, beta: f64, decay: f64) -> Settings {
    let mut settings = Settings::NONE;
    for (number, setting) in settings.0.iter_mut().zip(rule.row().settings) {
        if setting.is_read(rule.flags()) {
            *number = match setting.name {
                "lr" => 0.1,
                "weight_decay" => decay,
                "lr_decay" => 0.01,
                "momentum" | "alpha" | "beta1" => beta,
                "dampening" if !rule.flags().has(Flag::Nesterov) => 0.25,
                _ => setting.default,
            };
        }
    }
    settings.check(rule).expect("test settings are valid");
    settings
}

prop_compose! {
    pub(super) fn chunks()(
        rule in prop::sample::select(every_rule()),
        dtype in prop::sample::select(&Dtype::ALL),
        clip in prop::option::of(prop::sample::select(&[0.0, 0.5, 1e30])),
        (lanes, elements) in (1_usize..=5, prop::sample::select(&LENGTHS)),
        beta in prop::sample::select(&[0.0, 0.4, 0.9]),
        decay in prop::sample::select(&[0.0, 0.01]),
        step in prop::sample::select(&[0_u64, 1, 7, 100_000]),
        scale in prop::sample::select(&[1.0, 0.5, 1.0 / 3.0]),
        seed in any::<u64>(),
        awkward in prop::sample::select(&[0, 5, 50]),
    ) -> Chunk {
        let plan = Plan { dtype, rule, clip, refuse_nonfinite: false };
        let mut numbers = Numbers { seed, awkward };
        let chunk = Chunk::new(plan, settings(rule, beta, decay), lanes, elements, &mut numbers);
        Chunk { step, scale, ..chunk }
    }
}

fn matches_the_oracle(arch: Arch, chunk: &Chunk) {
    let (done, value, state) =
        chunk.folded(|p, s, t, c, l, v, o| fold_on(arch, p, s, t, c, l, v, o).expect("this machine has it"));
    assert_eq!(done, Ok(()));
    let (expected_value, expected_state) = chunk.expected();
    let what = format!("{arch:?} {:?} {:?} step {}", chunk.plan, chunk.settings, chunk.step);
    assert_same(accumulator(chunk.plan.dtype), &state, &expected_state, &format!("state, {what}"));
    assert_same(chunk.plan.dtype, &value, &expected_value, &format!("value, {what}"));
}

/// One chunk with a bad number in one lane is refused by that lane's rank, and left alone.
fn refuses(arch: Arch, dtype: Dtype, elements: usize, at: usize, lane: usize, bad: f64) {
    let rule = Rule::Adam { amsgrad: false, maximize: false };
    let plan = Plan { dtype, rule, clip: Some(1.0), refuse_nonfinite: true };
    let mut chunk =
        Chunk::new(plan, settings(rule, 0.9, 0.0), 3, elements, &mut Numbers { seed: 3, awkward: 0 });
    let mut numbers = decode(dtype, &chunk.lanes[lane]);
    numbers[at] = bad;
    chunk.lanes[lane] = Aligned::new(&encode(dtype, &numbers));
    let (done, value, state) =
        chunk.folded(|p, s, t, c, l, v, o| fold_on(arch, p, s, t, c, l, v, o).expect("this machine has it"));
    assert_eq!(done, Err(NonFinite { lane }), "{arch:?} {dtype:?} {elements} {at} {bad}");
    assert_eq!((value, state), (chunk.value.to_vec(), chunk.state.to_vec()));
}

fn accumulates(arch: Arch, dtype: Dtype, elements: usize, shift: usize, numbers: &mut Numbers) {
    let (a, b) = (encode(dtype, &numbers.take(elements)), encode(dtype, &numbers.take(elements)));
    let mut dst = vec![0; shift].into_iter().chain(a.iter().copied()).collect::<Vec<u8>>();
    let src = vec![0; 2 * shift].into_iter().chain(b.iter().copied()).collect::<Vec<u8>>();
    accumulate_on(arch, dtype, &mut dst[shift..], &src[2 * shift..]).expect("this machine has it");
    let sums = decode(dtype, &a).into_iter().zip(decode(dtype, &b));
    // In the accumulator: f64 sums of f32 numbers would round twice.
    let sums: Vec<f64> = match dtype {
        Dtype::F64 => sums.map(|(a, b)| a + b).collect(),
        _ => sums.map(|(a, b)| (a as f32 + b as f32).into()).collect(),
    };
    assert_same(dtype, &dst[shift..], &encode(dtype, &sums), &format!("{arch:?} {dtype:?} shift {shift}"));
}

fn finds_the_first(arch: Arch, dtype: Dtype, elements: usize, at: usize, bad: f64) {
    let mut numbers = Numbers { seed: 9, awkward: 0 }.take(elements);
    let find = |numbers: &[f64]| {
        let data = [vec![0], encode(dtype, numbers)].concat();
        first_nonfinite_on(arch, dtype, &data[1..]).expect("this machine has it")
    };
    assert_eq!(find(&numbers), None);
    numbers[at..].fill(bad);
    assert_eq!(find(&numbers), Some(at), "{arch:?} {dtype:?} {elements}");
}

macro_rules! suite {
    ($name:ident, $arch:expr) => {
        mod $name {
            use super::*;

            /// Says aloud that the machine lacks the variant, so that a green run is not mistaken for a tested one.
            fn skipped() -> bool {
                let lacks = !$arch.is_available();
                if lacks {
                    eprintln!("skipped: this machine has no {}", $arch.name());
                }
                lacks
            }

            proptest! {
                #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 400 }, failure_persistence: None, ..Default::default() })]
                #[test]
                fn a_fold_gives_the_oracle_s_bits(chunk in chunks().no_shrink()) {
                    if !skipped() {
                        matches_the_oracle($arch, &chunk);
                    }
                }
            }

            #[test]
            fn every_rule_and_dtype_gives_the_oracle_s_bits_on_a_whole_chunk_and_its_tail() {
                if skipped() {
                    return;
                }
                for rule in every_rule() {
                    for (dtype, step) in Dtype::ALL.into_iter().flat_map(|dtype| [(dtype, 0), (dtype, 3)]) {
                        let plan = Plan { dtype, rule, clip: None, refuse_nonfinite: false };
                        let mut numbers = Numbers { seed: step, awkward: 40 };
                        let chunk = Chunk::new(plan, settings(rule, 0.9, 0.01), 3, 8192 + 61, &mut numbers);
                        matches_the_oracle($arch, &Chunk { step, ..chunk });
                    }
                }
            }

            #[test]
            fn a_number_that_is_not_finite_is_refused_by_its_lane_and_nothing_changes() {
                if skipped() {
                    return;
                }
                for dtype in Dtype::ALL {
                    for (elements, at) in [(1, 0), (17, 16), (64, 63), (1025, 0), (1025, 512), (1025, 1024)] {
                        for (lane, bad) in [(0, f64::NAN), (1, f64::INFINITY), (2, f64::NEG_INFINITY)] {
                            refuses($arch, dtype, elements, at, lane, bad);
                        }
                    }
                }
            }

            #[test]
            fn accumulate_gives_the_oracle_s_bits_at_any_alignment() {
                if skipped() {
                    return;
                }
                let mut numbers = Numbers { seed: 5, awkward: 10 };
                for dtype in Dtype::ALL {
                    for (index, elements) in LENGTHS.into_iter().enumerate().filter(|(_, n)| !cfg!(miri) || *n < 130) {
                        accumulates($arch, dtype, elements, index % 5, &mut numbers);
                    }
                }
            }

            #[test]
            fn the_first_number_that_is_not_finite_is_found_wherever_it_stands() {
                if skipped() {
                    return;
                }
                for dtype in Dtype::ALL {
                    assert_eq!(first_nonfinite_on($arch, dtype, &[]), Some(None));
                    let places = [(1, 0), (63, 62), (64, 0), (65, 64), (200, 130), (8191, 8190)];
                    for (elements, at) in places.into_iter().filter(|(n, _)| !cfg!(miri) || *n < 300) {
                        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                            finds_the_first($arch, dtype, elements, at, bad);
                        }
                    }
                }
            }

            #[test]
            fn every_half_precision_number_survives_widening_and_narrowing() {
                if skipped() {
                    return;
                }
                for dtype in [Dtype::F16, Dtype::Bf16] {
                    let plan = Plan { dtype, rule: Rule::Replace, clip: None, refuse_nonfinite: false };
                    let mut chunk = Chunk::new(plan, Settings::NONE, 1, 1 << 16, &mut Numbers { seed: 0, awkward: 0 });
                    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
                    chunk.lanes = vec![Aligned::new(&all)];
                    // Scaled by 1 every number comes back; by 1/3 it is rounded, and small ones become denormal.
                    for scale in [1.0, 1.0 / 3.0] {
                        chunk.scale = scale;
                        matches_the_oracle($arch, &chunk);
                    }
                }
            }
        }
    };
}

suite!(generic, Arch::Generic);
suite!(avx2, Arch::Avx2);
suite!(avx512, Arch::Avx512);
