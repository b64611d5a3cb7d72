//! What a host's uplink carries, as its user says it: the option `rate`.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// What units stand for, in bits a second, as `tc` has them.
const UNITS: [(&str, f64); 5] = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("tbit", 1e12), ("bit", 1.0)];

/// Bytes a second of an uplink; 0: nobody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rate(pub u64);

impl Rate {
    /// The least and the most that a link may have, in bytes a second.
    pub const BOUNDS: (u64, u64) = (crate::uplink::LEAST, crate::uplink::MOST);

    /// Bytes a second, if somebody says.
    pub fn known(self) -> Option<f64> {
        (self.0 > 0).then_some(self.0 as f64)
    }

    /// Whether a link may have it.
    pub fn is_sane(self) -> bool {
        self.0 == 0 || (Self::BOUNDS.0..=Self::BOUNDS.1).contains(&self.0)
    }
}

/// A text is no rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got `{got}`", expected = Self::EXPECTED)]
pub struct RateError {
    /// What came.
    pub got: String,
}

impl RateError {
    /// What a rate is.
    pub const EXPECTED: &'static str = "a rate from 8kbit to 8tbit, a number and kbit, mbit, gbit or tbit, as in 10gbit or 2.5gbit, or nothing";
}

impl Display for Rate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bits = 8.0 * self.0 as f64;
        let unit = UNITS[..4].iter().rev().find(|(_, unit)| bits >= *unit);
        match unit {
            _ if self.0 == 0 => Ok(()),
            Some((name, unit)) => write!(f, "{}{name}", (bits / unit * 100.0).round() / 100.0),
            None => write!(f, "{bits}bit"),
        }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let lower = text.trim().to_ascii_lowercase();
        if lower.is_empty() {
            return Ok(Self(0));
        }
        let of = |&(name, unit): &(&str, f64)| Some((lower.strip_suffix(name)?.trim_end(), unit));
        let number = UNITS.iter().find_map(of).and_then(|(number, unit)| {
            let plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            Some(number.parse::<f64>().ok().filter(|_| plain)? * unit / 8.0)
        });
        let rate = number.map(|bytes| Self(bytes.round() as u64));
        rate.filter(|rate| rate.0 > 0 && rate.is_sane()).ok_or_else(|| RateError { got: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_a_unit_and_reads_back() {
        for (text, bytes) in [
            ("1gbit", 125_000_000),
            ("2.5gbit", 312_500_000),
            ("100mbit", 12_500_000),
            ("8kbit", 1_000),
            ("8tbit", 1_000_000_000_000),
        ] {
            let rate = Rate(bytes);
            assert_eq!((text.parse(), rate.to_string()), (Ok(rate), text.to_owned()));
        }
        assert_eq!("10 GBIT".parse(), Ok(Rate(1_250_000_000)));
        assert_eq!(("".parse(), Rate(0).to_string(), Rate(0).known()), (Ok(Rate(0)), String::new(), None));
    }

    #[test]
    fn what_is_no_rate_of_a_link_says_what_is() {
        for text in [
            "fast",
            "1",
            "0gbit",
            "-1gbit",
            "1gb",
            "nangbit",
            "infgbit",
            "1e9gbit",
            "9tbit",
            "7kbit",
            "gbit",
            "1.2.3gbit",
        ] {
            let error = text.parse::<Rate>().unwrap_err();
            assert!(error.to_string().contains("10gbit") && error.got == text, "{error}");
        }
    }
}
