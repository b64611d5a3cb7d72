//! How much a job may take of what this process has: bytes as configured, or four fifths of what is available when it starts,
//! by the kernel's own estimate and every control group that this process is in, whichever is least; descriptors and mappings
//! as far as the kernel lets this process have them.

use crate::limits;
use penstock_proto::account::{Limits, Resource};
use penstock_proto::items::spec::MAX_TABLES;
use std::fs;
use std::path::{Path, PathBuf};

/// The limits of a job for a configured `memory` (0: find out). `shared`: whether other jobs live in this process.
pub(super) fn limits(memory: u64, threads: u64, shared: bool) -> Limits {
    // A part of what the process may have; alone, nearly all of it.
    let part = |most: u64| if shared { most / 4 } else { most / 10 * 9 };
    Limits::NONE
        .with(Resource::Bytes, budget(memory))
        .with(Resource::Descriptors, part(limits::descriptors()))
        .with(Resource::Mappings, part(limits::mappings()))
        .with(Resource::Threads, threads)
        .with(Resource::Tables, MAX_TABLES.into())
}

/// The budget in bytes for a configured `memory` (0: find out).
pub(super) fn budget(memory: u64) -> u64 {
    match memory {
        0 => available() / 5 * 4,
        bytes => bytes,
    }
}

fn available() -> u64 {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = control_groups(&groups, Path::new("/sys/fs/cgroup"));
    host.unwrap_or(u64::MAX).min(group.unwrap_or(u64::MAX))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Where one version of control groups keeps a group's limits, and what it has taken.
struct Files {
    limits: &'static [&'static str],
    taken: &'static str,
}

/// Above `memory.high` a group is slowed down until it is useless, which to a server is the same as the end.
const V2: Files = Files { limits: &["memory.max", "memory.high"], taken: "memory.current" };
const V1: Files = Files { limits: &["memory.limit_in_bytes"], taken: "memory.usage_in_bytes" };

/// The least that is left in any group from this process's own up to the root, for what /proc/self/cgroup says and where the
/// hierarchies are mounted; `None` without a limit.
fn control_groups(own: &str, mounted: &Path) -> Option<u64> {
    let left = own.lines().filter_map(|line| {
        // 0::/path is version 2, 7:memory:/path version 1.
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if number == "0" && controllers.is_empty() {
            // Beside version 1 hierarchies the unified one is mounted one level down.
            let roots = [mounted.to_owned(), mounted.join("unified")];
            roots.iter().filter_map(|root| least_left(root, path, &V2)).min()
        } else if controllers.split(',').any(|name| name == "memory") {
            let roots = [mounted.join("memory"), mounted.join(controllers)];
            roots.iter().filter_map(|root| least_left(root, path, &V1)).min()
        } else {
            None
        }
    });
    left.min()
}

/// The least that is left on the way from `path` up to `root`. In a container the path may be one of the host's, and of that
/// hierarchy only the group itself is mounted, at the root.
fn least_left(root: &Path, path: &str, files: &Files) -> Option<u64> {
    let own = root.join(path.trim_start_matches('/'));
    let groups = own.ancestors().take_while(|group| group.starts_with(root));
    groups.filter_map(|group| left(group, files)).min()
}

fn left(group: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let path: PathBuf = group.join(name);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    // "max" is not a number; version 1 writes the largest number of whole pages for it.
    let limit = files.limits.iter().filter_map(|name| number(name)).filter(|&limit| limit < 1 << 62).min()?;
    Some(limit.saturating_sub(number(files.taken).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A directory like /sys/fs/cgroup, with these files in it.
    struct Mounted(PathBuf);

    impl Mounted {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("penstock-cgroup-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

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

    #[test]
    fn the_least_of_all_nested_groups_counts_not_only_the_innermost() {
        let files = [
            ("a/memory.max", "104857600\n"),
            ("a/memory.current", "20971520\n"),
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.current", "1048576\n"),
            ("a/b/c/memory.max", "209715200\n"),
            ("a/b/c/memory.current", "0\n"),
        ];
        let mounted = Mounted::with("nested", &files);
        assert_eq!(control_groups("0::/a/b/c\n", &mounted.0), Some(80 * MIB));
        assert_eq!(control_groups("0::/a/b\n", &mounted.0), Some(80 * MIB));
    }

    #[test]
    fn a_group_that_would_be_slowed_down_is_full_before_its_limit() {
        let files = [("memory.max", "104857600"), ("memory.high", "52428800"), ("memory.current", "1048576")];
        let mounted = Mounted::with("high", &files);
        assert_eq!(control_groups("0::/\n", &mounted.0), Some(49 * MIB));
    }

    #[test]
    fn a_version_1_hierarchy_is_read_beside_others() {
        let files = [
            ("memory/docker/x/memory.limit_in_bytes", "67108864\n"),
            ("memory/docker/x/memory.usage_in_bytes", "3145728\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let mounted = Mounted::with("v1", &files);
        let own = "12:cpu,cpuacct:/docker/x\n7:memory:/docker/x\n0::/elsewhere\n";
        assert_eq!(control_groups(own, &mounted.0), Some(61 * MIB));
    }

    #[test]
    fn in_a_container_that_sees_its_group_as_the_root_the_root_counts() {
        let files = [("memory/memory.limit_in_bytes", "33554432"), ("memory/memory.usage_in_bytes", "0")];
        let mounted = Mounted::with("container", &files);
        assert_eq!(control_groups("7:memory:/docker/on-the-host\n", &mounted.0), Some(32 * MIB));
    }

    #[test]
    fn without_a_limit_there_is_none() {
        let mounted = Mounted::with("none", &[("memory.max", "max")]);
        assert_eq!(control_groups("0::/\n", &mounted.0), None);
        assert_eq!(control_groups("garbage", &mounted.0), None);
    }
}
