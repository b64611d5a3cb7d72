//! A directory of this process alone: made under a name that cannot be guessed, open to its user only, locked while the process
//! lives, removed when it is dropped.
//!
//! What killed processes left behind is recognized by its lock, which the kernel releases with the process. Process numbers
//! would not do: in a container that shares the directory, that number may belong to another process, or to none.

use crate::wire::random;
use penstock_fabric::forked::Maker;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, Stat};
use rustix::io::{self, Errno};
use std::path::{Path, PathBuf};

/// Open to its user only.
const PRIVATE: u32 = 0o700;
/// Names that are tried. Another try is needed only where another process, cleaning up, took the new directory for
/// one left behind.
const TRIES: u32 = 16;

/// The directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The holder of its lock owns it.
    lock: OwnedFd,
    maker: Maker,
}

impl Directory {
    /// Makes one in `base`, whose name starts with `prefix`.
    pub(crate) fn new(base: &Path, prefix: &str) -> io::Result<Self> {
        for _ in 0..TRIES {
            let number = u64::from_le_bytes(random::bytes()?);
            let path = base.join(format!("{prefix}{number:016x}"));
            // Fails where the name is taken, by whatever it is: a link or a directory of another user's making is
            // never gone into.
            match rustix::fs::mkdir(&path, Mode::from_raw_mode(PRIVATE)) {
                Err(Errno::EXIST) => continue,
                made => made?,
            }
            let lock = match open(&path) {
                Err(Errno::NOENT) => continue, // cleaned away already
                opened => opened?,
            };
            let cleaned = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err();
            if !cleaned && is_ours(&lock, &path)? {
                return Ok(Self { path, lock, maker: Maker::this() });
            }
        }
        Err(Errno::EXIST)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes directories like this one whose process is gone. What is another user's, a link, or in use stays.
    pub(crate) fn remove_left_behind(base: &Path, prefix: &str) {
        let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
            let path = entry.path();
            let Ok(lock) = open(&path) else { continue };
            // From here to the removal no process can take it for its own: it would have to lock it.
            if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
                && is_ours(&lock, &path) == Ok(true)
            {
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A forked child shares the lock, and yet it is its parent's.
        if self.maker.is_here() && is_ours(&self.lock, &self.path) == Ok(true) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Whether an open directory is still what its name says, belongs to this process's user, and is open to no other user.
fn is_ours(directory: &OwnedFd, path: &Path) -> io::Result<bool> {
    let file = |found: &Stat| (found.st_dev, found.st_ino);
    let opened = rustix::fs::fstat(directory)?;
    let named = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(false),
        named => named?,
    };
    let user = rustix::process::geteuid().as_raw();
    Ok(file(&opened) == file(&named) && opened.st_uid == user && opened.st_mode & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    const PREFIX: &str = "penstock-test-";

    fn base() -> Directory {
        Directory::new(&std::env::temp_dir(), "penstock-bases-").unwrap()
    }

    #[test]
    fn a_directory_is_its_users_alone_and_goes_with_its_owner() {
        let base = base();
        let (one, two) =
            (Directory::new(base.path(), PREFIX).unwrap(), Directory::new(base.path(), PREFIX).unwrap());
        assert_ne!(one.path(), two.path());
        let found = std::fs::symlink_metadata(one.path()).unwrap();
        assert_eq!(found.mode() & 0o777, PRIVATE);
        std::fs::write(one.path().join("socket"), "").unwrap();
        drop((one, two));
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_living_process_uses_stays_wherever_it_lives_and_what_a_dead_one_left_goes() {
        let base = base();
        let used = Directory::new(base.path(), PREFIX).unwrap();
        let left = Directory::new(base.path(), PREFIX).unwrap();
        std::fs::write(left.path().join("socket"), "").unwrap();
        let gone = left.path().to_owned();
        // As the kernel does when a process is killed: the lock goes, the directory stays.
        rustix::fs::flock(&left.lock, FlockOperation::Unlock).unwrap();
        std::mem::forget(left);
        Directory::remove_left_behind(base.path(), PREFIX);
        assert!(used.path().exists() && !gone.exists());
    }

    #[test]
    fn links_files_and_what_others_may_enter_are_left_alone() {
        let base = base();
        let precious = base.path().join("precious");
        std::fs::create_dir(&precious).unwrap();
        std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(PRIVATE)).unwrap();
        let link = base.path().join(format!("{PREFIX}link"));
        symlink(&precious, link).unwrap();
        std::fs::write(base.path().join(format!("{PREFIX}file")), "").unwrap();
        let open_to_all = base.path().join(format!("{PREFIX}open"));
        std::fs::create_dir(&open_to_all).unwrap();
        std::fs::set_permissions(&open_to_all, std::fs::Permissions::from_mode(0o777)).unwrap();
        Directory::remove_left_behind(base.path(), PREFIX);
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_directory_that_another_took_the_place_of_is_not_removed_for_it() {
        let base = base();
        let first = Directory::new(base.path(), PREFIX).unwrap();
        let path = first.path().to_owned();
        std::fs::remove_dir(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn of_those_that_make_and_those_that_clean_at_once_none_loses_its_own() {
        let base = base();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..300).for_each(|_| Directory::remove_left_behind(base.path(), PREFIX)));
                scope.spawn(|| {
                    for _ in 0..300 {
                        let own = Directory::new(base.path(), PREFIX).unwrap();
                        std::fs::write(own.path().join("socket"), "").unwrap();
                        assert!(own.path().join("socket").exists());
                    }
                });
            }
        });
    }
}
