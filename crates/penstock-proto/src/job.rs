//! What a job goes by where its name would be too long.

use crate::checksum;

/// The number of a job, by its name: in frames and in the names of files.
pub fn job_number(name: &str) -> u64 {
    checksum::of(name.as_bytes())
}
