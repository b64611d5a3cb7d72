//! What a job goes by where its name would be too long.

use xxhash_rust::xxh3::xxh3_64;

/// The number of a job, by its name: in frames and in the names of files.
pub fn job_number(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}
