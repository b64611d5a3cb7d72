//! A fold in two steps comes to what one comes to, and so does who is given the sum alone.

use proptest::prelude::*;

use super::chunk::{Chunk, assert_same};
use super::variants::chunks;
use crate::optimizer::naive::Aligned;
use crate::{
    Dtype, Foreign, NonFinite, Plan, Rule, Settings, SumRoom, apply, fold, fold_summed, sums_exactly,
};

/// Folds it in two steps; the sum, and what became of value and state.
fn in_two(chunk: &Chunk) -> (Result<(), NonFinite>, Vec<u8>, Vec<u8>, Vec<u8>) {
    let mut sum = Aligned::new(&chunk.value);
    let (sum, sum_after) = (&mut sum[..], std::cell::RefCell::new(Vec::new()));
    let sum = std::cell::RefCell::new(sum);
    let (done, value, state) = chunk.folded(|plan, settings, step, scale, lanes, value, state| {
        let mut sum = sum.borrow_mut();
        let done = fold_summed(plan, settings, step, scale, lanes, &mut sum, value, state);
        *sum_after.borrow_mut() = sum.to_vec();
        done
    });
    (done, value, state, sum_after.into_inner())
}

proptest! {
    #[test]
    fn who_applies_the_sum_to_what_stood_there_has_the_home_s_bits(chunk in chunks()) {
        let Plan { dtype, .. } = chunk.plan;
        prop_assume!(sums_exactly(dtype));
        let (once, value, state) = chunk.folded(fold);
        let (twice, home_value, home_state, sum) = in_two(&chunk);
        prop_assert_eq!((once, twice), (Ok(()), Ok(())));
        let sum = Aligned::new(&sum);
        let (mut its_value, mut its_state) = (Aligned::new(&chunk.value), Aligned::new(&chunk.state));
        apply(&chunk.plan, &chunk.settings, chunk.step, Foreign::of(&sum), &mut its_value, &mut its_state);
        for (value_of, state_of, who) in
            [(&home_value[..], &home_state[..], "the home"), (&its_value[..], &its_state[..], "a mirror")]
        {
            assert_same(dtype, value_of, &value, &format!("{who}'s value, {chunk:?}"));
            assert_same(dtype, state_of, &state, &format!("{who}'s state, {chunk:?}"));
        }
    }
}

#[test]
fn a_sum_that_is_refused_changes_neither_value_nor_state() {
    let rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
    let plan = Plan { dtype: Dtype::F32, rule, clip: None, refuse_nonfinite: true };
    let bad = Aligned::new(&f32::NAN.to_le_bytes());
    let (mut sum, mut value, mut state) =
        (Aligned::new(&[9; 4]), Aligned::new(&[1; 4]), Aligned::new(&[2; 4]));
    let settings = Settings([0.1, 0.9, 0.0, 0.0, 0.0]);
    let lanes = [Foreign::of(&bad)];
    let done = fold_summed(&plan, &settings, 0, 1.0, &lanes, &mut sum, &mut value, &mut state);
    assert_eq!(done, Err(NonFinite { lane: 0 }));
    assert_eq!((&value[..], &state[..]), (&[1; 4][..], &[2; 4][..]));
}

#[test]
fn room_for_a_sum_starts_on_a_cache_line_whatever_was_asked_for_before() {
    let mut room = SumRoom::default();
    for bytes in [0, 4, 4096, 40, 1 << 20] {
        let sum = room.of(bytes);
        assert_eq!((sum.len(), sum.as_ptr().align_offset(crate::ALIGNMENT)), (bytes, 0));
        assert!(Foreign::of(sum).is_aligned());
    }
}
