//! The one magnitude by which elements of a block have moved, from where they came to stand.
//!
//! An element that stands at `s` and was held at `h` was moved by a number within half of its last bit of `s - h`: each says so much of
//! the magnitude, and what all say is the narrower the more there are. Of those numbers any does, as the sender tries it before it
//! sends it; the middle is the likeliest to be one that rounding of these bounds has not moved out.

use super::Moved;
use crate::number::{Number, Real, exponent, power_of_two};
use crate::sweep::ScalarOf;
use crate::vector::{Element, TAIL, Vector};

/// The middle of what all say; what the one says that says most; the numbers on either side of both. Where few say it, and in f64,
/// whose bounds are rounded as the elements are, the one number that does may be a last bit beside.
pub(super) const GUESSES: usize = 6;

/// Half of the last bit of an element, of numbers as large as this. Of the smallest of f64 it may be more.
#[inline(always)]
fn half_a_bit<E: Element>(number: f64) -> f64 {
    // The largest number has all digits, and so many that are not zeros in f64; its exponent and the least are each other's negative.
    let digits = 53 - E::LARGEST.to_bits().trailing_zeros() as i32;
    let least = 1 - exponent(E::LARGEST);
    power_of_two((exponent(number).max(least) - digits).max(-1022))
}

/// A number so many last bits of an element from here.
#[inline(always)]
fn beside<E: Element>(number: f64, bits: f64) -> f64 {
    number + bits * 2.0 * half_a_bit::<E>(number)
}

/// A guess at the magnitude, as an element holds it; 0 where nothing has moved. `all`: those that stand where they were have moved by it
/// as well, and it is too small for them.
#[inline(always)]
pub(super) fn guess<E: Element>(guess: usize, moved: Moved<'_>, all: bool) -> f64 {
    let words = ScalarOf::<E>::words(moved.off).iter().zip(ScalarOf::<E>::words(moved.held));
    let (mut least, mut most, mut tightest) = (0.0, f64::INFINITY, (f64::INFINITY, 0.0));
    let mut any = false;
    for (off, held) in words {
        let (off, held) = (ScalarOf::<E>::read(*off).wide(), ScalarOf::<E>::read(*held).wide());
        let (by, around) = (off.abs(), half_a_bit::<E>(held + off));
        if by != 0.0 || all {
            any |= by != 0.0;
            least = f64::max(least, by - around);
            most = f64::min(most, by + around);
        }
        if by != 0.0 && around < tightest.0 {
            tightest = (around, by);
        }
    }
    let middle = least + (most - least) / 2.0;
    let guess = match guess {
        _ if !any => 0.0,
        0 => middle,
        1 => tightest.1,
        2 => beside::<E>(middle, 1.0),
        3 => beside::<E>(middle, -1.0),
        4 => beside::<E>(tightest.1, 1.0),
        _ => beside::<E>(tightest.1, -1.0),
    };
    let guess = if guess > 0.0 && guess <= E::LARGEST { guess } else { 0.0 };
    let (mut element, mut wide) = ([0; TAIL], [0; TAIL]);
    E::store(E::Vector::splat(ScalarOf::<E>::of(guess)), &mut element);
    E::State::store(E::load(&element), &mut wide);
    ScalarOf::<E>::read(ScalarOf::<E>::words(&wide)[0]).wide()
}
