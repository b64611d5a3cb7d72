//! Trajectories of `torch.optim` itself, so that the oracle and the kernels cannot agree on a shared mistake.
//!
//! Four steps in float64 of three weights, made with torch 2.15 on CPU (`foreach=False`, its default there): the weights
//! start at 1, -0.5 and 0.25, the gradients are `GRADIENTS`. torch fuses some multiply-adds, so the last bits differ.

use super::chunk::{decode, encode};
use crate::optimizer::naive::Aligned;
use crate::{Dtype, Foreign, Plan, RULES, Rule, Settings, fold};

const GRADIENTS: [[f64; 3]; 4] =
    [[0.5, -1.25, 3.0], [0.25, 2.0, -0.125], [-1.5, 0.75, 0.0625], [0.1, 0.2, -0.3]];

/// The rule, its settings, the weights after four steps, and the state, slot by slot.
type Trajectory = (Rule, [f64; 5], [f64; 3], &'static [f64]);

#[rustfmt::skip]
const TRAJECTORIES: [Trajectory; 12] = [
    (Rule::Sgd { momentum: false, nesterov: false, maximize: false }, [0.1, 0.0, 0.0, 0.01, 0.0], [1.061055821051, -0.6679028231255, -0.013868138199750014], &[]),
    (Rule::Sgd { momentum: true, nesterov: false, maximize: true }, [0.1, 0.9, 0.3, 0.01, 0.0], [1.0192287180721928, -0.43266564041429656, 1.2415854134756859], &[0.3963920593780699, -0.8498149559070347, -1.928113540981858]),
    (Rule::Sgd { momentum: true, nesterov: true, maximize: false }, [0.1, 0.9, 0.0, 0.0, 0.0], [1.09677, -0.9171625, -0.8954800000000002], &[-0.683, 1.58375, 1.8420000000000003]),
    (Rule::Adagrad { maximize: false }, [0.1, 0.05, 1e-10, 0.01, 0.0], [0.9358143808367662, -0.5148555897243272, 0.16057004330371605], &[2.5635203403297404, 6.152348440632524, 9.123449958188912]),
    (Rule::RmsProp { momentum: false, centered: false, maximize: true }, [0.01, 0.9, 1e-08, 0.0, 0.0], [1.0185191929848, -0.49139243675371336, 0.2772922379216525], &[0.22678749999999998, 0.4925312499999999, 0.6667171875]),
    (Rule::RmsProp { momentum: true, centered: false, maximize: false }, [0.01, 0.9, 1e-08, 0.02, 0.8], [0.9207275575993011, -0.4936591030481034, 0.16214218406356923], &[0.2245140115079245, 0.48969541903529173, 0.6686560683519636, 0.45878615957756386, 1.1942228943510798, 1.2329394691719542]),
    (Rule::RmsProp { momentum: false, centered: true, maximize: false }, [0.01, 0.3, 1e-08, 0.0, 0.0], [0.9762739621877248, -0.5066434694307582, 0.23480666622845794], &[0.4881624999999999, 0.42765624999999996, 0.23490468749999993, -0.2198, 0.39987500000000004, -0.14805]),
    (Rule::RmsProp { momentum: true, centered: true, maximize: false }, [0.01, 0.9, 1e-08, 0.0, 0.8], [0.91471705575235, -0.49010628363117137, 0.15753417266454842], &[0.22678749999999998, 0.4925312499999999, 0.6667171875, 0.5220931764775516, 1.171882323806341, 1.297762311596254, -0.0683, 0.15837499999999996, 0.18419999999999997]),
    (Rule::Adam { amsgrad: false, maximize: false }, [0.01, 0.9, 0.99, 1e-08, 0.1], [0.9841712483535734, -0.49951251844009753, 0.22464307930960817], &[-0.034337844102735764, 0.14136723364636905, 0.19235182882831733, 0.02453825576890628, 0.05879217889039478, 0.08972957895275012]),
    (Rule::Adam { amsgrad: true, maximize: true }, [0.01, 0.4, 0.5, 1e-08, 0.0], [1.0082045204658263, -0.4959098229595153, 0.2642374043592258], &[0.2568, -0.44399999999999995, 0.061799999999999966, 0.5909375, 0.75828125, 0.6104296875, 1.171875, 2.390625, 4.5]),
    (Rule::AdamW { amsgrad: false, maximize: false }, [0.01, 0.9, 0.99, 1e-08, 0.1], [0.9826497282772535, -0.49847747446436735, 0.22398392356637747], &[-0.0683, 0.15837499999999996, 0.18419999999999997, 0.025413310000000022, 0.06033367187500006, 0.08841872250000009]),
    (Rule::AdamW { amsgrad: true, maximize: false }, [0.01, 0.9, 0.5, 1e-08, 0.1], [0.981577210662581, -0.4969201405590704, 0.22719617489180474], &[-0.0683, 0.15837499999999996, 0.18419999999999997, 0.5909375, 0.75828125, 0.6104296875, 1.171875, 2.390625, 4.5]),
];

#[track_caller]
fn assert_close(got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        // Relative to the terms that were added, which are around 1, not to what was left of them.
        let error = (got - expected).abs() / expected.abs().max(0.1);
        assert!(error < 1e-14, "{what}: got {got:e}, torch has {expected:e}");
    }
}

#[test]
fn the_powers_of_the_bias_correction_have_these_bits_on_every_system() {
    // As glibc 2.36 has them.
    let cases = [
        (0.9, 1.0, 0x3fec_cccc_cccc_cccd),
        (0.9, 7.0, 0x3fde_9c6a_99d1_cdbf),
        (0.999, 100.0, 0x3fec_f40e_a930_fdf5),
        (0.999, 12_345.0, 0x3ed2_2391_fb94_567e),
        (0.5, 1074.0, 1),
        (0.999_999, 1e9, 0),
    ];
    for (beta, t, bits) in cases {
        let power = libm::pow(beta, t).to_bits();
        assert_eq!(power, bits, "{beta} ** {t}: {power:#x}");
    }
}

// For these powers glibc 2.36 gives a different last bit, which both corrections pass on.
#[test]
fn adam_s_bias_corrections_have_these_bits_on_every_system() {
    let cases: [(f64, u64, [u64; 2]); 3] = [
        (0.9, 4, [0xbfd2_9c2c_f63f_926d, 0xbffd_abd8_0f50_0cb4]),
        (0.99, 19, [0xbfad_742e_4706_ce6e, 0xc010_ad5f_574a_5aa4]),
        (0.999, 16, [0xbfb0_1ece_9d00_c4a8, 0xc00f_e15d_98ff_626a]),
    ];
    let plan = |rule| Plan { dtype: Dtype::F64, rule, clip: None, refuse_nonfinite: true };
    for rule in
        [Rule::Adam { amsgrad: false, maximize: false }, Rule::AdamW { amsgrad: true, maximize: false }]
    {
        for (beta, t, bits) in cases {
            // One of the two betas is 0, and does not correct anything.
            for (betas, bits) in [[beta, 0.0], [0.0, beta]].into_iter().zip(bits) {
                let settings = Settings([1.0, betas[0], betas[1], 0.0, 0.0]);
                settings.check(rule).unwrap();
                let mut value = Aligned::new(&encode(Dtype::F64, &[0.0]));
                let mut state = Aligned::new(&vec![0; rule.slots().count() * 8]);
                let one = Aligned::new(&encode(Dtype::F64, &[1.0]));
                let lanes = [Foreign::of(&one)];
                fold(&plan(rule), &settings, t - 1, 1.0, &lanes, &mut value, &mut state).unwrap();
                let got = decode(Dtype::F64, &value)[0].to_bits();
                assert!(got == bits, "{rule}, step {t}, betas {betas:?}: expected {bits:#x}, got {got:#x}");
            }
        }
    }
}

#[test]
fn four_steps_of_every_rule_give_torch_s_weights_and_state() {
    for row in RULES.iter().filter(|row| !row.settings.is_empty()) {
        let has_one = TRAJECTORIES.iter().any(|(rule, ..)| rule.name() == row.name);
        assert!(has_one, "no step of torch's {} to compare with", row.name);
    }
    for (rule, settings, weights, state_of_torch) in TRAJECTORIES {
        let settings = Settings(settings);
        settings.check(rule).unwrap();
        let plan = Plan { dtype: Dtype::F64, rule, clip: None, refuse_nonfinite: true };
        let mut value = Aligned::new(&encode(Dtype::F64, &[1.0, -0.5, 0.25]));
        let mut state = Aligned::new(&vec![0; rule.slots().count() * 3 * 8]);
        for (step, gradient) in (0..).zip(GRADIENTS) {
            let lane = Aligned::new(&encode(Dtype::F64, &gradient));
            fold(&plan, &settings, step, 1.0, &[Foreign::of(&lane)], &mut value, &mut state).unwrap();
        }
        assert_close(&decode(Dtype::F64, &value), &weights, &format!("weights of {rule:?}"));
        assert_close(&decode(Dtype::F64, &state), state_of_torch, &format!("state of {rule:?}"));
    }
}
