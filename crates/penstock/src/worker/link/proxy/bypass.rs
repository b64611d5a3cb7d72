//! Whether values bypass the caches on their way into a mirror: where so much is mirrored that each is evicted before it is read.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is mirrored in this process. No cell that is filled once: a child of `fork()` might wait for its parent's thread to fill it.
static HERE: Mirrored = Mirrored::beside(NOT_READ);

/// No size of a cache: the system has not been asked.
const NOT_READ: u64 = 0;

/// Where the system does not say how large the last-level cache is: no larger than most.
const UNKNOWN: u64 = 32 << 20;

/// Sizes that are believed: 1 MiB to 4 GiB.
const BELIEVED: RangeInclusive<u64> = 1 << 20..=4 << 30;

/// Bytes of a core's last-level cache, shared with others or not.
fn last_level(caches: &Path) -> u64 {
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

/// How much is mirrored, of all tensors of all jobs, and how much of it the cache holds.
#[derive(Debug)]
pub(super) struct Mirrored {
    bytes: AtomicU64,
    cache: AtomicU64,
}

impl Mirrored {
    /// Nothing yet.
    pub(super) const fn beside(cache: u64) -> Self {
        Self { bytes: AtomicU64::new(0), cache: AtomicU64::new(cache) }
    }

    fn cache(&self) -> u64 {
        let known = self.cache.load(Ordering::Relaxed);
        if known != NOT_READ {
            return known;
        }
        // Twice does no harm: it is the same.
        let found = last_level(Path::new("/sys/devices/system/cpu/cpu0/cache"));
        self.cache.store(found, Ordering::Relaxed);
        found
    }
}

/// One mirror's share of that.
#[derive(Debug)]
pub(super) struct Share {
    of: &'static Mirrored,
    bytes: u64,
}

impl Share {
    /// A mirror of so many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        Self::of(&HERE, bytes)
    }

    /// The same of what is counted elsewhere.
    pub(super) fn of(of: &'static Mirrored, bytes: u64) -> Self {
        of.bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { of, bytes }
    }

    /// Whether a value that is written now is evicted before it is read, because all that is mirrored is larger than the
    /// last-level cache.
    pub(super) fn bypasses_caches(&self) -> bool {
        self.of.bytes.load(Ordering::Relaxed) > self.of.cache()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_cache_counts_and_what_the_system_does_not_say_is_no_large_one() {
        let caches = std::env::temp_dir().join(format!("penstock-test-{}-caches", std::process::id()));
        for (at, size) in ["32K\n", "1024K\n", "48M\n", "nothing", "12X"].into_iter().enumerate() {
            let cache = caches.join(format!("index{at}"));
            std::fs::create_dir_all(&cache).unwrap();
            std::fs::write(cache.join("size"), size).unwrap();
        }
        let found = last_level(&caches);
        std::fs::remove_dir_all(&caches).unwrap();
        assert_eq!((found, last_level(&caches)), (48 << 20, UNKNOWN));
        let read = ["", "K", "7", "99999999999999999999K", "1G"].map(bytes);
        assert_eq!(read, [None, None, Some(7), None, Some(1 << 30)]);
    }

    #[test]
    fn values_bypass_the_caches_while_so_much_is_mirrored_and_no_longer() {
        let all = Box::leak(Box::new(Mirrored::beside(10_000)));
        let small = Share::of(all, 4096);
        let large = Share::of(all, 10_000);
        assert!(small.bypasses_caches());
        drop(large);
        assert!(!small.bypasses_caches());
    }
}
