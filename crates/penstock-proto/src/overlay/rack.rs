//! Where a host stands, as its user says it: the option `rack`.

use crate::text::is_harmless;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// Longest text of a rack and its zone, in bytes: each worker's hello has one.
pub const MAX_RACK_BYTES: usize = 96;

/// The names of a rack and of the zone that it is in; empty where they are not known. Racks of two zones are two, whatever their
/// names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Rack {
    /// Racks that share a layer of switches.
    pub zone: String,
    /// Hosts that share a switch.
    pub rack: String,
}

impl Rack {
    /// Where Slurm says that this host stands: `address` names the switches above it, from the highest to its own, and the host, and
    /// `pattern` says which is what (`SLURM_TOPOLOGY_ADDR` and its pattern). Its own switch is its rack, the one above that its zone.
    /// `None`: no switch is named, or none that could be a rack.
    pub fn of_slurm(address: &str, pattern: &str) -> Option<Self> {
        let named = address.split('.').zip(pattern.split('.'));
        let switches: Vec<&str> = named.filter(|(_, what)| *what == "switch").map(|(name, _)| name).collect();
        match switches[..] {
            [] => None,
            [rack] => rack.parse().ok(),
            [.., zone, rack] => format!("{zone}/{rack}").parse().ok(),
        }
    }
}

/// A text is no rack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got `{got}`", expected = Self::expected())]
pub struct RackError {
    /// What came.
    pub got: String,
}

impl RackError {
    /// What a rack is.
    pub fn expected() -> String {
        format!("a rack, as in r7 or zone2/r7, of at most {MAX_RACK_BYTES} bytes in one line, or nothing")
    }
}

impl Display for Rack {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (&self.zone[..], &self.rack[..]) {
            ("", rack) => f.write_str(rack),
            (zone, rack) => write!(f, "{zone}/{rack}"),
        }
    }
}

impl FromStr for Rack {
    type Err = RackError;

    fn from_str(text: &str) -> Result<Self, RackError> {
        let (zone, rack) = text.split_once('/').unwrap_or(("", text));
        let named = |name: &str| !name.is_empty() && name.trim() == name && !name.contains('/');
        let is_one = text.is_empty() || named(rack) && (named(zone) || !text.contains('/'));
        if !is_one || text.len() > MAX_RACK_BYTES || !is_harmless(text) {
            return Err(RackError { got: text.to_owned() });
        }
        Ok(Self { zone: zone.to_owned(), rack: rack.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_names_the_switches_above_a_host() {
        let of = |address, pattern| Rack::of_slurm(address, pattern).map(|rack| rack.to_string());
        assert_eq!(of("s0.s4.tux1", "switch.switch.node").as_deref(), Some("s0/s4"));
        assert_eq!(of("core.s0.s4.tux1", "switch.switch.switch.node").as_deref(), Some("s0/s4"));
        assert_eq!(of("leaf.tux1", "switch.node").as_deref(), Some("leaf"));
        for (address, pattern) in [("tux1", "node"), ("", ""), ("a//b.tux1", "switch.node"), ("s0", "")] {
            assert_eq!(of(address, pattern), None, "{address} {pattern}");
        }
    }

    #[test]
    fn a_rack_stands_in_a_zone_or_in_one_that_is_not_known() {
        let rack = |zone: &str, rack: &str| Rack { zone: zone.to_owned(), rack: rack.to_owned() };
        for (text, read) in [("", rack("", "")), ("r7", rack("", "r7")), ("zone 2/r7", rack("zone 2", "r7"))]
        {
            assert_eq!((text.parse(), read.to_string()), (Ok(read.clone()), text.to_owned()));
        }
        let long = "r".repeat(MAX_RACK_BYTES + 1);
        for text in ["/", "a/", "/a", "a/b/c", " a", "a/ b", "a\nb", "a\u{1b}[2J", &long] {
            let error = text.parse::<Rack>().unwrap_err();
            assert_eq!(error, RackError { got: text.to_owned() });
            assert!(error.to_string().starts_with("expected a rack, as in "), "{error}");
        }
    }
}
