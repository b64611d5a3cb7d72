//! Atomicity: what a reader sees of a chunk was published as a whole, under that version, or is what a filter let pass of it, on
//! every host the same; and where contributions are marked and all passes, all elements of the chunk tell of the same updates. Of a
//! value that is shown version by version, a version is one value.

use super::Checker;
use crate::encodings::holds_back;
use crate::history::Observation;
use crate::marks::Marks;
use crate::rng::digest;
use crate::scenario::Scenario;
use crate::workload::{Kind, decode};
use penstock_kernels::Dtype;
use penstock_proto::TensorId;
use penstock_proto::consistency::Consistency;
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::TensorSpec;
use std::collections::{BTreeMap, BTreeSet};

/// Watches values.
#[derive(Debug)]
pub struct Atomicity {
    marks: Option<Marks>,
    chunk_elements: u64,
    /// Tensors of which a filter holds something back.
    filtered: BTreeSet<TensorId>,
    /// Tensors to which nobody contributes.
    loaded: BTreeSet<TensorId>,
    /// Tensors of which readers see versions only.
    versions_only: BTreeSet<TensorId>,
    /// Versions and digests of what readers may see.
    published: BTreeMap<(TensorId, u32), BTreeSet<(u64, u64)>>,
}

impl Atomicity {
    /// For the values of `scenario`.
    pub fn new(scenario: &Scenario) -> Self {
        let marks = match scenario.workload.kind {
            Kind::Marked(marks) => Some(marks),
            Kind::Descent => None,
        };
        let workload = &scenario.workload;
        let filtered = workload.ids().filter(|&tensor| holds_back(workload.spec(tensor))).collect();
        let loaded = workload.ids().filter(|&tensor| workload.is_loaded(tensor)).collect();
        let versions_only = workload.ids().filter(|&tensor| {
            let TensorSpec { propagation, consistency, .. } = *workload.spec(tensor);
            propagation == Propagation::Broadcast
                && matches!(consistency, Consistency::Ssp(_))
                && !workload.is_loaded(tensor)
        });
        let versions_only = versions_only.collect();
        Self {
            filtered,
            loaded,
            versions_only,
            ..Self::of(marks, u64::from(scenario.topology.chunk_bytes) / 8)
        }
    }

    fn of(marks: Option<Marks>, chunk_elements: u64) -> Self {
        let (filtered, loaded, versions_only, published) = Default::default();
        Self { marks, chunk_elements, filtered, loaded, versions_only, published }
    }

    fn read(&self, tensor: TensorId, chunk: u32, version: u64, value: &[u8]) -> Result<(), String> {
        let is_whole = !self.filtered.contains(&tensor);
        if let Some(marks) = self.marks.filter(|_| is_whole && !self.loaded.contains(&tensor)) {
            let first = u64::from(chunk) * self.chunk_elements;
            marks
                .read(first, decode(Dtype::F64, value))
                .map_err(|error| format!("version {version} of t{tensor}[{chunk}]: {error}"))?;
        }
        let published = self.published.get(&(tensor, chunk));
        if published.is_some_and(|published| published.contains(&(version, digest(value)))) {
            return Ok(());
        }
        Err(format!("a value of t{tensor}[{chunk}] was read that was never published as version {version}"))
    }
}

impl Checker for Atomicity {
    fn name(&self) -> &'static str {
        "atomicity"
    }

    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String> {
        match *observation {
            Observation::Published { tensor, chunk, version, held, .. } => {
                let published = self.published.entry((tensor, chunk)).or_default();
                published.insert((version, digest(held)));
                let values = published.range((version, 0)..=(version, u64::MAX)).count();
                if self.versions_only.contains(&tensor) && values > 1 {
                    return Err(format!("version {version} of t{tensor}[{chunk}] was shown as two values"));
                }
                Ok(())
            }
            Observation::Read { tensor, chunk, version, value, .. } => {
                self.read(tensor, chunk, version, value)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::encode;

    fn published(version: u64, value: &[u8]) -> Observation<'_> {
        Observation::Published { shard: 0, tensor: 0, chunk: 1, version, value, held: value }
    }

    fn read(version: u64, value: &[u8]) -> Observation<'_> {
        Observation::Read { rank: 0, tensor: 0, chunk: 1, slack: None, mirrored: false, version, value }
    }

    #[test]
    fn a_value_that_was_not_published_under_its_version_is_seen() {
        let mut checker = Atomicity::of(None, 512);
        checker.see(&published(1, &[1, 1])).unwrap();
        checker.see(&published(2, &[2, 2])).unwrap();
        checker.see(&read(1, &[1, 1])).unwrap();
        checker.see(&read(2, &[2, 1])).unwrap_err();
        checker.see(&read(2, &[1, 1])).unwrap_err();
        checker.see(&read(3, &[2, 2])).unwrap_err();
    }

    #[test]
    fn a_version_that_is_shown_as_two_values_is_seen_where_versions_are_all_that_is_shown() {
        let mut checker = Atomicity::of(None, 512);
        checker.see(&published(1, &[1, 1])).unwrap();
        checker.see(&published(1, &[2, 1])).unwrap();
        let mut checker = Atomicity { versions_only: BTreeSet::from([0]), ..Atomicity::of(None, 512) };
        checker.see(&published(1, &[1, 1])).unwrap();
        checker.see(&published(1, &[1, 1])).unwrap();
        checker.see(&published(2, &[2, 1])).unwrap();
        checker.see(&published(2, &[2, 2])).unwrap_err();
    }

    #[test]
    fn a_chunk_that_was_published_torn_is_seen() {
        let marks = Marks::new(2, 2);
        let mut checker = Atomicity::of(Some(marks), 512);
        let mut values = marks.contribution(1, 0, 8);
        let whole = encode(Dtype::F64, values.iter().copied());
        values[5..].fill(0.0);
        let torn = encode(Dtype::F64, values.into_iter());
        checker.see(&published(1, &whole)).unwrap();
        checker.see(&published(1, &torn)).unwrap();
        checker.see(&read(1, &whole)).unwrap();
        checker.see(&read(1, &torn)).unwrap_err();
    }
}
