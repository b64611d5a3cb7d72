//! What the system lets a process have: when it refuses something, this says which limit was reached and how it is raised.

use penstock_proto::error::Refusal;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs;

/// Open descriptors that this process may have.
pub(crate) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Mappings that this process may have.
pub(crate) fn mappings() -> u64 {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}

/// What the system said, and the limit that was reached, if it was one.
pub(crate) fn explain(errno: Errno) -> String {
    match errno {
        Errno::MFILE => format!(
            "{errno}: this process has its {} open files; raise the limit (`ulimit -n`)",
            descriptors()
        ),
        Errno::FBIG if let Some(most) = getrlimit(Resource::Fsize).current => {
            format!(
                "{errno}: this process may make no file of more than {most} bytes, nor memory that is shared; raise the limit (`ulimit -f`)"
            )
        }
        Errno::NOMEM if mapped() + 64 >= mappings() => format!(
            "{errno}: this process has its {} mappings; raise `vm.max_map_count` (sysctl)",
            mappings()
        ),
        errno => errno.to_string(),
    }
}

/// The same for an error of the standard library.
pub(crate) fn explain_io(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |code| explain(Errno::from_raw_os_error(code)))
}

/// The refusal of a request that fails because the system lacks something; it names the limit, if one was reached.
pub(crate) fn lacking<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Refusal {
    let what = what.into();
    move |error| Refusal::System { what, reason: explain_io(&error.into()) }
}

fn mapped() -> u64 {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_fabric::region::{Access, Mapping, Part};
    use rustix::fd::AsFd;
    use rustix::process::{Rlimit, setrlimit};
    use std::process::Command;

    /// What tells a test that it is to use up what its process may have.
    const ROLE: &str = "PENSTOCK_TEST_LIMITS";

    #[test]
    fn a_limit_that_was_reached_is_named_with_its_value_and_what_raises_it() {
        let text = explain(Errno::MFILE);
        assert!(text.contains(&descriptors().to_string()) && text.contains("ulimit -n"), "{text}");
        assert!(!explain(Errno::NOMEM).contains("max_map_count"), "memory is not mappings");
    }

    // A limit of bytes on files holds for the memory that processes share, too.
    #[test]
    #[expect(clippy::print_stdout, reason = "it tells another process what it found")]
    fn where_a_file_is_larger_than_a_process_may_make_it_the_limit_is_named() {
        if std::env::var_os(ROLE).is_some() {
            let maximum = getrlimit(Resource::Fsize).maximum;
            setrlimit(Resource::Fsize, Rlimit { current: Some(4096), maximum }).unwrap();
            penstock_fabric::signals::ignore_file_limit();
            let file = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            return println!("explained: {}", explain(rustix::fs::ftruncate(&file, 8192).unwrap_err()));
        }
        let text = explained_by_another();
        assert!(text.contains("4096 bytes") && text.contains("`ulimit -f`"), "{text}");
    }

    /// What this test finds in a process of its own.
    fn explained_by_another() -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = std::thread::current().name().unwrap().to_owned();
        let done = command.args(["--exact", &name, "--nocapture"]).env(ROLE, "").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let text = said.split_once("explained: ").map(|(_, text)| text.lines().next().unwrap().to_owned());
        text.unwrap_or_else(|| panic!("{said}\n{}", String::from_utf8_lossy(&done.stderr)))
    }

    // In a process of its own, which has no mapping left for other tests. To find that out takes memory, too.
    #[test]
    #[expect(clippy::print_stdout, clippy::print_stderr, reason = "it tells another process what it found")]
    fn where_a_process_has_all_its_mappings_their_limit_is_named_with_what_raises_it() {
        if mappings() > 1 << 18 {
            return eprintln!("SKIPPED: this process may have {} mappings", mappings());
        }
        if std::env::var_os(ROLE).is_some() {
            let file = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, 4096).unwrap();
            let map = || Mapping::new(&[Part { fd: file.as_fd(), offset: 0, bytes: 4096 }], Access::Read);
            let mut all = Vec::with_capacity(mappings() as usize);
            let error = loop {
                match map() {
                    Ok(mapping) => all.push(mapping),
                    Err(error) => break error,
                }
            };
            let text = explain(error);
            drop(all);
            return println!("explained: {text}");
        }
        let text = explained_by_another();
        assert!(text.contains(&format!("its {} mappings", mappings())), "{text}");
        assert!(text.contains("vm.max_map_count"), "{text}");
    }
}
