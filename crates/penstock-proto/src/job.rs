//! What a job goes by in frames, where its name would be too long.

use crate::checksum;

/// The number of a job, by its name: in frames, and in what is counted for each job.
pub fn job_number(name: &str) -> u64 {
    checksum::of(name.as_bytes())
}
