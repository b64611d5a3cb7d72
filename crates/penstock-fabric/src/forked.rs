//! Which process made something: a child of `fork` has copies of its parent's objects, but neither its threads
//! nor its place in the job.
//!
//! A page that the kernel wipes in every child says it in one load, also where the child was made without the C library's
//! knowledge. Where the kernel cannot, the process's number says it, for a system call.

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const PAGE: usize = 4096;

/// The process that made something.
#[derive(Debug, Clone, Copy)]
pub struct Maker {
    /// The first word of the page: this process's number among its forefathers, 0 before it has one.
    word: Option<&'static AtomicU64>,
    number: u64,
}

/// The last number that this process or a forefather has taken.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Maker {
    /// This process.
    pub fn this() -> Self {
        let word = word();
        let number = match word.map(|word| (word, word.load(Ordering::Relaxed))) {
            None => process(),
            Some((word, 0)) => {
                let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                let taken = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
                taken.map_or_else(|other| other, |_| next)
            }
            Some((_, number)) => number,
        };
        Self { word, number }
    }

    /// Whether it was this process, and not a forefather.
    #[inline]
    pub fn is_here(&self) -> bool {
        let here = self.word.map_or_else(process, |word| word.load(Ordering::Relaxed));
        here == self.number
    }
}

impl Default for Maker {
    fn default() -> Self {
        Self::this()
    }
}

fn process() -> u64 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs().into()
}

/// The first word of this process's page; `None` where the kernel has no such page.
fn word() -> Option<&'static AtomicU64> {
    /// Its address stands for none.
    static NONE: AtomicU64 = AtomicU64::new(0);
    // Not a cell that is filled once: a child that was made while another thread fills it would wait for that thread for ever.
    static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    let address = |word: &'static AtomicU64| ptr::from_ref(word).cast_mut();
    let mut found = WORD.load(Ordering::Acquire);
    if found.is_null() {
        let made = address(wiped_in_children().unwrap_or(&NONE));
        // A thread that comes second leaves its page unused: there are at most as many such pages as threads that began at once.
        let set = WORD.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        found = set.map_or_else(|other| other, |_| made);
    }
    // SAFETY: it came from a reference that lives as long as the process.
    (found != address(&NONE)).then(|| unsafe { &*found })
}

/// The first word of a new page that is all zeros in every child; `None` where the kernel has none.
fn wiped_in_children() -> Option<&'static AtomicU64> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe {
        mm::mmap_anonymous(ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let page = page.ok()?;
    // SAFETY: the range is the page that was just mapped; nothing refers to it.
    let wiped = unsafe { mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) };
    if wiped.is_err() {
        // SAFETY: as above; it is not used again.
        let _ = unsafe { mm::munmap(page, PAGE) };
        return None;
    }
    // SAFETY: aligned to a page, of zeros, which are an atomic, and never unmapped; all access is through this atomic, but for
    // the kernel's, which happens before a child runs.
    Some(unsafe { &*page.cast::<AtomicU64>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `child` in a forked child; whether it said yes.
    fn forked(child: impl FnOnce() -> bool) -> bool {
        unsafe extern "C" {
            safe fn fork() -> i32;
            safe fn _exit(code: i32) -> !;
            safe fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        }
        let process = fork();
        if process == 0 {
            _exit(i32::from(!child()));
        }
        let mut status = -1;
        assert_eq!(waitpid(process, &raw mut status, 0), process);
        status == 0
    }

    #[test]
    fn a_child_never_takes_itself_for_its_parent_nor_for_its_own_child() {
        let maker = Maker::this();
        assert!(maker.is_here() && Maker::this().is_here());
        let child = || {
            let child = Maker::this();
            !maker.is_here() && child.is_here() && forked(|| !maker.is_here() && !child.is_here())
        };
        assert!(forked(child), "a child that asks who it is");
        assert!(forked(|| !maker.is_here()), "a child that does not");
        assert!(maker.is_here());
    }
}
