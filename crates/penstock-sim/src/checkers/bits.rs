//! Bits: under BSP a version of a chunk has one value, whichever process publishes it, and whenever, and what is read of it is one
//! thing, too, on every host, where a filter holds something back; and two runs of one workload, whatever the links, chunk sizes, servers and shards, come to the same bits.

use super::Checker;
use crate::cluster::Outcome;
use crate::history::Observation;
use crate::rng::digest;
use crate::workload::Workload;
use penstock_proto::TensorId;
use std::collections::BTreeMap;

/// Watches the values of synchronous tensors.
#[derive(Debug)]
pub struct Bits {
    together: Vec<bool>,
    /// By version, and by whether it is what readers see.
    values: BTreeMap<(TensorId, u32, u64, bool), u64>,
}

impl Bits {
    /// For the tensors of `workload`.
    pub fn new(workload: &Workload) -> Self {
        // A load changes a value without a new version.
        let together =
            |tensor| workload.spec(tensor).consistency.folds_together() && !workload.is_loaded(tensor);
        Self { together: workload.ids().map(together).collect(), values: BTreeMap::new() }
    }

    fn value(
        &mut self,
        tensor: TensorId,
        chunk: u32,
        version: u64,
        seen: bool,
        value: &[u8],
    ) -> Result<(), String> {
        if !self.together[tensor as usize] {
            return Ok(());
        }
        let got = digest(value);
        let expected = *self.values.entry((tensor, chunk, version, seen)).or_insert(got);
        if got == expected {
            return Ok(());
        }
        Err(format!(
            "version {version} of t{tensor}[{chunk}] has two values, digests {expected:016x} and {got:016x}"
        ))
    }
}

impl Checker for Bits {
    fn name(&self) -> &'static str {
        "bits"
    }

    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String> {
        match *observation {
            Observation::Published { tensor, chunk, version, value, held, .. } => {
                self.value(tensor, chunk, version, false, value)?;
                self.value(tensor, chunk, version, true, held)
            }
            Observation::Read { tensor, chunk, version, value, .. } => {
                self.value(tensor, chunk, version, true, value)
            }
            _ => Ok(()),
        }
    }
}

/// Whether these values are bit for bit those expected.
pub fn agrees(got: &[Vec<u8>], expected: &[Vec<u8>]) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("expected {} tensors, got {}", expected.len(), got.len()));
    }
    for (tensor, (got, expected)) in got.iter().zip(expected).enumerate() {
        if got.len() != expected.len() {
            return Err(format!("t{tensor} has {} bytes, expected {}", got.len(), expected.len()));
        }
        if let Some(at) = (0..got.len()).find(|&at| got[at] != expected[at]) {
            return Err(format!(
                "t{tensor} differs from byte {at} on: {:#x} for {:#x}",
                got[at], expected[at]
            ));
        }
    }
    Ok(())
}

/// Whether two runs of one workload came to the same bits, and read the same bits on the way.
pub fn same(one: &Outcome, other: &Outcome) -> Result<(), String> {
    agrees(&one.values, &other.values)?;
    match one.reads.iter().find(|&(at, digest)| other.reads.get(at) != Some(digest)) {
        None if one.reads.len() == other.reads.len() => Ok(()),
        None => Err(format!("{} reads in one run, {} in the other", one.reads.len(), other.reads.len())),
        Some(((rank, tensor, position), _)) => {
            Err(format!("what worker {rank} read of t{tensor} at position {position} differs between runs"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_values_of_one_synchronous_version_are_seen() {
        let mut checker = Bits { together: vec![true, false], values: BTreeMap::new() };
        let published = |tensor, version, value| Observation::Published {
            shard: 0,
            tensor,
            chunk: 0,
            version,
            value,
            held: value,
        };
        checker.see(&published(0, 1, &[1])).unwrap();
        checker.see(&published(0, 2, &[2])).unwrap();
        let read = Observation::Read {
            rank: 0,
            tensor: 0,
            chunk: 0,
            slack: None,
            mirrored: false,
            version: 1,
            value: &[3],
        };
        checker.see(&read).unwrap_err();
        checker.see(&published(1, 1, &[1])).unwrap();
        checker.see(&published(1, 1, &[2])).unwrap();
    }

    #[test]
    fn what_is_read_of_a_synchronous_version_is_one_thing_on_every_host_though_it_is_not_the_value() {
        let mut checker = Bits { together: vec![true], values: BTreeMap::new() };
        let published =
            Observation::Published { shard: 0, tensor: 0, chunk: 0, version: 1, value: &[1], held: &[2] };
        checker.see(&published).unwrap();
        let read = |mirrored, value| Observation::Read {
            rank: 0,
            tensor: 0,
            chunk: 0,
            slack: None,
            mirrored,
            version: 1,
            value,
        };
        for mirrored in [true, false] {
            checker.see(&read(mirrored, &[2])).unwrap();
            checker.see(&read(mirrored, &[1])).unwrap_err();
        }
    }

    #[test]
    fn a_single_bit_is_a_difference() {
        let value = vec![vec![0u8; 40], vec![7; 3]];
        agrees(&value, &value.clone()).unwrap();
        let mut other = value.clone();
        other[1][2] ^= 1;
        let difference = agrees(&other, &value).unwrap_err();
        assert!(difference.contains("t1 differs from byte 2"), "{difference}");
        agrees(&value[..1], &value).unwrap_err();
    }
}
