//! Which host this is, as far as shared memory is concerned.

use penstock_proto::checksum;
use std::os::unix::fs::MetadataExt;

/// An id that two processes have in common exactly if they may share memory: same boot, same network namespace, same user.
///
/// Network namespaces count as hosts of their own: containers of one pod share memory, two pods on a machine do not.
pub fn id() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::metadata("/proc/self/ns/net").map(|file| file.ino()).unwrap_or_default();
    let user = rustix::process::getuid().as_raw();
    checksum::name_of(&format!("{}/{namespace}/{user}", boot.trim()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_host_keeps_its_id() {
        assert_eq!(super::id(), super::id());
        assert_eq!(super::id().len(), 16);
    }
}
