//! Whether what is mirrored goes past the caches: it is so much that each value is gone from them before it is read.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of values that are mirrored in this process, of all tensors of all jobs.
static MIRRORED: AtomicU64 = AtomicU64::new(0);

/// Bytes of the last cache of a core of this host, shared with others or not.
static LAST_CACHE: LazyLock<u64> =
    LazyLock::new(|| last_cache(Path::new("/sys/devices/system/cpu/cpu0/cache")));

/// Where the system does not say how long it is: no longer than most.
const UNKNOWN: u64 = 32 << 20;

/// Sizes that are believed: 1 MiB to 4 GiB.
const BELIEVED: RangeInclusive<u64> = 1 << 20..=4 << 30;

fn last_cache(caches: &Path) -> u64 {
    let entries = std::fs::read_dir(caches).into_iter().flatten().flatten();
    let sizes =
        entries.filter_map(|entry| bytes(std::fs::read_to_string(entry.path().join("size")).ok()?.trim()));
    sizes.max().filter(|size| BELIEVED.contains(size)).unwrap_or(UNKNOWN)
}

/// Such as `32768K`.
fn bytes(size: &str) -> Option<u64> {
    let (number, unit) = match size.as_bytes().last()? {
        b'K' => (size.strip_suffix('K')?, 1 << 10),
        b'M' => (size.strip_suffix('M')?, 1 << 20),
        b'G' => (size.strip_suffix('G')?, 1 << 30),
        _ => (size, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// One mirror's share of what is mirrored.
#[derive(Debug)]
pub(super) struct Passing(u64);

impl Passing {
    /// A mirror of so many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        MIRRORED.fetch_add(bytes, Ordering::Relaxed);
        Self(bytes)
    }

    /// Whether a value that is written now is gone from the caches when all have been.
    pub(super) fn is_gone_before_it_is_read(&self) -> bool {
        MIRRORED.load(Ordering::Relaxed) > *LAST_CACHE
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        MIRRORED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_cache_counts_and_what_the_system_does_not_say_is_no_long_one() {
        let caches = std::env::temp_dir().join(format!("penstock-test-{}-caches", std::process::id()));
        for (at, size) in ["32K\n", "1024K\n", "48M\n", "nothing", "12X"].into_iter().enumerate() {
            let cache = caches.join(format!("index{at}"));
            std::fs::create_dir_all(&cache).unwrap();
            std::fs::write(cache.join("size"), size).unwrap();
        }
        let found = last_cache(&caches);
        std::fs::remove_dir_all(&caches).unwrap();
        assert_eq!((found, last_cache(&caches)), (48 << 20, UNKNOWN));
        assert_eq!(
            ["", "K", "7", "99999999999999999999K", "1G"].map(bytes),
            [None, None, Some(7), None, Some(1 << 30)]
        );
    }

    #[test]
    fn values_pass_the_caches_while_so_much_is_mirrored_and_no_longer() {
        let small = Passing::new(4096);
        let large = Passing::new(*LAST_CACHE + 1);
        assert!(small.is_gone_before_it_is_read());
        drop(large);
        assert!(!small.is_gone_before_it_is_read());
    }
}
