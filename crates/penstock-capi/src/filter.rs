//! What of a push, and of the value, is sent now, and what later.

use crate::boundary::or;
use crate::status::{Failure, penstock_status};
use penstock_kernels::filter::SETTINGS;
use penstock_kernels::filter::sums::{self, Quantize};
use penstock_proto::travel::Filtering;

/// What is sent now of what is due of a chunk; the rest is sent later, with what is due then.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_filter_kind {
    /// All of it: no filter.
    PENSTOCK_EVERYTHING = 0,
    /// Elements beyond a bound: low, up, sufficient, relative, without_decay.
    PENSTOCK_DVF = 1,
    /// The largest elements, by magnitude: fraction.
    PENSTOCK_TOP_K = 2,
    /// Elements drawn at random, the same on every worker at the same clock: fraction, seed.
    PENSTOCK_RANDOM_K = 3,
    /// All elements, each as the nearest number of 16 bits; tensors of half precision go as they are.
    PENSTOCK_QUANTIZE_F16 = 4,
    /// Likewise, as bfloat16.
    PENSTOCK_QUANTIZE_BF16 = 5,
    /// All elements, each as a multiple from -127 to 127 of a power of two that 256 elements share.
    PENSTOCK_QUANTIZE_INT8 = 6,
    /// All elements: `threshold` where at least as much is due, its negative where at most that, else 0: threshold.
    PENSTOCK_QUANTIZE_2BIT = 7,
    /// All elements: their signs, with the mean magnitude of what is due of 1024 elements.
    PENSTOCK_QUANTIZE_1BIT = 8,
}

/// A filter. Zeroed: everything is sent. A number that its kind does not have must be 0.
///
/// What is held back of a push is added to this worker's next push of the tensor; what is held back of the value is the difference
/// between the servers' and what readers see, and waits for the next push of any worker. NaN and infinity are sent at once. What each
/// kind does, holds and costs: docs/filters.md.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct penstock_filter {
    /// One of penstock_filter_kind.
    pub kind: u32,
    /// Not 0: `low` and `up` are multiplied by the root mean square of what is due of the chunk.
    pub relative: u32,
    /// Not 0: the bound stays. 0: it is divided by the square root of t, the clock + 1; for values, the version.
    pub without_decay: u32,
    /// For later versions: 0.
    pub reserved: u32,
    /// An element waits while what is due of it is within this: 0 or above, in units of what is pushed; for values, of those.
    pub low: f64,
    /// The bound where the network presses the sender: `low` or above. 0: `low`, always.
    pub up: f64,
    /// The bandwidth that suffices, in bytes a second: while each connection of the sender has it, the bound is `low`, else `up`. 0:
    /// the bound rises while sending takes a noticeable part of the time.
    pub sufficient: f64,
    /// Which part of a chunk's elements is sent: above 0, at most 1.
    pub fraction: f64,
    /// In units of what is pushed: above 0. 0: 0.5, as in MXNet.
    pub threshold: f64,
    /// What is drawn: 0 to 2^53 - 1.
    pub seed: u64,
    /// For later versions: 0.
    pub reserved_too: [u64; 2],
}

/// A tensor's filters, each direction for itself. Zeroed: everything is sent both ways.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct penstock_filters {
    /// What of this worker's pushes is sent to the servers, on their own host too.
    pub push: penstock_filter,
    /// What of the value workers see, on the servers' host too. By those that quantize, what they have of an element moves towards the
    /// value. Not with PENSTOCK_REPLACE.
    pub broadcast: penstock_filter,
}

/// The value-bounded filter with this bound, which is divided by the square root of t (Parameter Flow, equations 10 and 11).
#[unsafe(no_mangle)]
pub extern "C" fn penstock_dvf(low: f64) -> penstock_filter {
    penstock_filter { low, ..penstock_filter::of(penstock_filter_kind::PENSTOCK_DVF) }
}

/// The filter that sends this part of the elements: the largest.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_top_k(fraction: f64) -> penstock_filter {
    penstock_filter { fraction, ..penstock_filter::of(penstock_filter_kind::PENSTOCK_TOP_K) }
}

/// The filter that sends this part of the elements, drawn at random.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_random_k(fraction: f64, seed: u64) -> penstock_filter {
    penstock_filter { fraction, seed, ..penstock_filter::of(penstock_filter_kind::PENSTOCK_RANDOM_K) }
}

/// Filters that hold nothing back while the network keeps up; where it does not, what matters least waits, in both directions. As
/// "auto" in Python: `low` 0, `up` 2, relative, without decay.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_auto() -> penstock_filters {
    let [low, decay, relative, up, sufficient] = Filtering::AUTO.settings;
    let auto = penstock_filter {
        low,
        up,
        sufficient,
        relative: u32::from(relative != 0.0),
        without_decay: u32::from(decay == 0.0),
        ..penstock_filter::of(penstock_filter_kind::PENSTOCK_DVF)
    };
    penstock_filters { push: auto, broadcast: auto }
}

/// Which way what is filtered goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Push,
    Broadcast,
}

impl penstock_filters {
    /// The filters of pushes and of values, as the core has them; it judges the numbers.
    pub(crate) fn read(&self, tensor: &str) -> Result<(Filtering, Filtering), Failure> {
        Ok((self.push.read(tensor, Direction::Push)?, self.broadcast.read(tensor, Direction::Broadcast)?))
    }
}

impl penstock_filter {
    fn of(kind: penstock_filter_kind) -> Self {
        Self { kind: kind as u32, ..Self::default() }
    }

    fn read(&self, tensor: &str, direction: Direction) -> Result<Filtering, Failure> {
        let which = match direction {
            Direction::Push => "push",
            Direction::Broadcast => "broadcast",
        };
        let refuse = |message: String, hint: &str| {
            let message = format!("`{tensor}`: {message}");
            Failure::new(penstock_status::PENSTOCK_BAD_SETTINGS, message, hint)
        };
        if (self.reserved, self.reserved_too) != (0, [0; 2]) {
            return Err(Failure::argument(format!(
                "`{tensor}`: expected 0 in what is reserved of the filter `{which}`: zero it first"
            )));
        }
        let row = self.row(tensor, which)?;
        let mut settings = [0.0; SETTINGS];
        for Number { name, in_c, given, value } in self.numbers() {
            if let Some(place) = row.settings.iter().position(|setting| *setting == name) {
                // Of -0.0 the same number with the bits that other workers declare.
                settings[place] = value + 0.0;
            } else if given != 0.0 {
                let message = format!("{} has no `{in_c}`, so it must be 0, got {given}", row.name);
                return Err(refuse(message, "penstock.h says beside each filter what it has"));
            }
        }
        if self.sufficient != 0.0 && self.up == 0.0 {
            let message = format!("expected `up` beside `sufficient`, got {} alone", self.sufficient);
            return Err(refuse(
                message,
                "there is no other bound to go to where the bandwidth does not suffice",
            ));
        }
        let settings = &settings[..row.settings.len()];
        let found = match direction {
            Direction::Push => Filtering::of_sums(row.name, settings),
            Direction::Broadcast => Filtering::of_values(row.name, settings),
        };
        // There is one for each direction.
        found
            .ok_or_else(|| refuse(format!("expected no {} for `{which}`", row.name), "leave it to the other"))
    }

    fn row(&self, tensor: &str, which: &str) -> Result<&'static sums::Entry, Failure> {
        let most = penstock_filter_kind::PENSTOCK_QUANTIZE_1BIT as u32;
        let row = sums::ALL.iter().find(|row| u32::from(row.number) == self.kind && self.kind <= most);
        row.ok_or_else(|| {
            let got = self.kind;
            Failure::argument(format!(
                "`{tensor}`: expected a filter from 0 to {most} for `{which}`, got {got}"
            ))
        })
    }

    /// What may be set of it.
    fn numbers(&self) -> [Number; 8] {
        let as_given = |name, given| Number { name, in_c: name, given, value: given };
        let flag = |given: u32| f64::from(u8::from(given != 0));
        let (relative, steady) = (flag(self.relative), flag(self.without_decay));
        [
            as_given("low", self.low),
            Number { name: "decay", in_c: "without_decay", given: steady, value: 1.0 - steady },
            as_given("relative", relative),
            Number { value: or(self.up, self.low), ..as_given("up", self.up) },
            as_given("sufficient", self.sufficient),
            as_given("fraction", self.fraction),
            as_given("seed", self.seed as f64),
            Number {
                value: or(self.threshold, Quantize::THRESHOLD),
                ..as_given("threshold", self.threshold)
            },
        ]
    }
}

/// A setting of a filter.
struct Number {
    /// As the core calls it.
    name: &'static str,
    /// As the program does.
    in_c: &'static str,
    /// What the program says; 0: nothing.
    given: f64,
    /// What that means.
    value: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(filter: penstock_filter, direction: Direction) -> Result<Filtering, String> {
        filter.read("w", direction).map_err(|failure| failure.message)
    }

    #[test]
    fn zeroed_everything_is_sent() {
        let zeroed = penstock_filters::default().read("w").ok();
        assert_eq!(zeroed, Some((Filtering::NONE, Filtering::NONE)));
    }

    #[test]
    fn the_numbers_go_where_the_core_looks_for_them() {
        let of = |filter| read(filter, Direction::Push).expect("they fit");
        assert_eq!(of(penstock_dvf(0.5)), Filtering { filter: 1, settings: [0.5, 1.0, 0.0, 0.5, 0.0] });
        let both =
            penstock_filter { up: 2.0, sufficient: 1e6, relative: 7, without_decay: 1, ..penstock_dvf(0.5) };
        assert_eq!(of(both), Filtering { filter: 1, settings: [0.5, 0.0, 1.0, 2.0, 1e6] });
        assert_eq!(of(penstock_dvf(-0.0)), of(penstock_dvf(0.0)));
        assert_eq!(Some(of(penstock_top_k(0.25))), Filtering::of_sums("TopK", &[0.25]));
        assert_eq!(Some(of(penstock_random_k(0.25, 9))), Filtering::of_sums("RandomK", &[0.25, 9.0]));
        let two_bits = penstock_filter::of(penstock_filter_kind::PENSTOCK_QUANTIZE_2BIT);
        assert_eq!(Some(of(two_bits)), Filtering::of_sums("Quantize 2bit", &[0.5]));
        let coarse = penstock_filter { threshold: 4.0, ..two_bits };
        assert_eq!(Some(of(coarse)), Filtering::of_sums("Quantize 2bit", &[4.0]));
        assert_eq!(penstock_auto().read("w").ok(), Some((Filtering::AUTO, Filtering::AUTO)));
    }

    #[test]
    fn each_kind_filters_either_direction() {
        for kind in 0..=penstock_filter_kind::PENSTOCK_QUANTIZE_1BIT as u32 {
            let filter = penstock_filter { kind, ..Default::default() };
            assert_eq!(read(filter, Direction::Push), read(filter, Direction::Broadcast));
        }
    }

    #[test]
    fn what_a_filter_does_not_have_is_refused_by_name() {
        let refused = |filter, said: &str| {
            let message = read(filter, Direction::Push).expect_err("it must be 0");
            assert!(message.contains(said), "{message}");
        };
        refused(
            penstock_filter { low: 1.0, ..penstock_top_k(0.5) },
            "TopK has no `low`, so it must be 0, got 1",
        );
        refused(penstock_filter { without_decay: 1, ..penstock_top_k(0.5) }, "TopK has no `without_decay`");
        refused(penstock_filter { seed: 1, ..Default::default() }, "everything has no `seed`");
        refused(penstock_filter { threshold: f64::NAN, ..penstock_dvf(1.0) }, "DVF has no `threshold`");
        refused(
            penstock_filter { sufficient: 5.0, ..penstock_dvf(1.0) },
            "`up` beside `sufficient`, got 5 alone",
        );
        refused(penstock_filter { reserved_too: [0, 1], ..penstock_dvf(1.0) }, "reserved");
        // A program's own filter is none of C's.
        refused(
            penstock_filter { kind: 9, ..Default::default() },
            "expected a filter from 0 to 8 for `push`, got 9",
        );
    }
}
