//! How much memory a test's thread has, had at most, and has asked for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counted;

#[global_allocator]
static HEAP: Counted = Counted;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

fn note(bytes: isize) {
    // Neither allocates, nor is there anything to drop when the thread ends.
    NOW.set(NOW.get() + bytes);
    MOST.set(MOST.get().max(NOW.get()));
}

// SAFETY: all is the system's; what is counted beside it takes no memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        ASKED.set(ASKED.get() + layout.size() as u64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: as the caller promises: all comes from there.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The most bytes that `what` had taken at any time, beyond what there were before.
pub(super) fn most_taken_by(what: impl FnOnce()) -> u64 {
    let before = NOW.get();
    MOST.set(before);
    what();
    (MOST.get() - before).unsigned_abs() as u64
}

/// The bytes that `what` asked for, also those that it gave back at once: about as much as it has put together.
pub(super) fn asked_by(what: impl FnOnce()) -> u64 {
    let before = ASKED.get();
    what();
    ASKED.get() - before
}
