//! Carried: between hosts, a contribution stands in the shard's copy of its lane bit for bit as it stands in the worker's,
//! however it was encoded. [`asked`](super::asked) checks that a value which comes is bit for bit one that was published.

use super::Checker;
use crate::history::Observation;

/// Watches what comes to shards from other hosts.
#[derive(Debug, Default)]
pub struct Carried;

impl Checker for Carried {
    fn name(&self) -> &'static str {
        "carried"
    }

    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String> {
        let Observation::Lodged { shard, rank, tensor, chunk, encoding, sent, came } = *observation else {
            return Ok(());
        };
        if sent == came {
            return Ok(());
        }
        let at = sent.iter().zip(came).position(|(sent, came)| sent != came);
        let at = at.unwrap_or_else(|| sent.len().min(came.len()));
        Err(format!(
            "what worker {rank} sent of t{tensor}[{chunk}] in encoding {} stands at shard {shard} otherwise, from byte {at} of {} on",
            encoding.0,
            sent.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_proto::encoding::Encoding;

    /// E-1.
    #[test]
    fn a_contribution_that_comes_otherwise_than_it_was_sent_is_seen() {
        let lodged = |sent, came| {
            let encoding = Encoding::RAW;
            let lodged = Observation::Lodged { shard: 0, rank: 1, tensor: 0, chunk: 2, encoding, sent, came };
            Carried.see(&lodged)
        };
        lodged(&[1, 2, 3], &[1, 2, 3]).unwrap();
        let other = lodged(&[1, 2, 3], &[1, 2, 7]).unwrap_err();
        assert!(other.contains("from byte 2 of 3 on"), "{other}");
        lodged(&[1, 2, 3], &[1, 2]).unwrap_err();
    }
}
