//! How much memory this server may take: what was configured, or four fifths of what is available when it starts, by the
//! kernel's own estimate and this process's control group, whichever is less.

use std::fs;

/// The budget in bytes for a configured `memory` (0: find out).
pub(super) fn budget(memory: u64) -> u64 {
    match memory {
        0 => available() / 5 * 4,
        bytes => bytes,
    }
}

fn available() -> u64 {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    host.unwrap_or(u64::MAX).min(control_group().unwrap_or(u64::MAX))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

fn control_group() -> Option<u64> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max")?;
    Some(limit.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_is_what_may_be_taken() {
        assert_eq!(budget(4096), 4096);
        assert!(budget(0) > 1 << 20, "this host has some memory");
    }

    #[test]
    fn the_kernels_estimate_is_read_in_kibibytes() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:    2 kB\n"), Some(2048));
        assert_eq!(mem_available("nothing"), None);
    }
}
