//! Memory as good as the machine gives: anonymous, on huge pages where there are, aligned to them.
//!
//! An unsafe room of this crate, beside the call into vector code and the socket calls of `link`.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size of a huge page on every host that we know; a wrong guess costs time, never correctness.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed floats that start on a huge page.
pub(crate) struct Floats {
    base: NonNull<c_void>,
    mapped: usize,
    start: NonNull<f32>,
    len: usize,
}

impl Floats {
    /// Maps `len` floats.
    ///
    /// # Errors
    ///
    /// The kernel's reason, where it does not give that much memory.
    pub(crate) fn map(len: usize) -> std::io::Result<Self> {
        let bytes = len * size_of::<f32>();
        let mapped = bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice overlaps no other object.
        let base = unsafe {
            mmap_anonymous(null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base).ok_or_else(|| std::io::Error::other("a mapping at address zero"))?;
        let skipped = base.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: `skipped < HUGE_PAGE`, and the mapping is at least a huge page longer than `bytes`.
        let start = unsafe { base.cast::<u8>().byte_add(skipped) };
        // Advice only: without huge pages the figures are the machine's all the same.
        // SAFETY: the range lies inside the mapping (above), and this advice changes no content.
        let _ = unsafe { madvise(start.as_ptr().cast(), mapped - HUGE_PAGE, Advice::LinuxHugepage) };
        Ok(Self { base, mapped, start: start.cast(), len })
    }

    /// The floats.
    pub(crate) fn as_mut(&mut self) -> &mut [f32] {
        // SAFETY: `start` is aligned to a huge page, `len` floats lie inside the mapping (`map`), which lives as long as
        // `self`; zeroed pages are valid floats; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Floats {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `map` made; every slice of it borrowed `self` and is gone.
        let _ = unsafe { munmap(self.base.as_ptr(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_start_on_a_huge_page_and_hold_zeros() {
        let mut floats = Floats::map(12_345).unwrap();
        let floats = floats.as_mut();
        assert_eq!(floats.len(), 12_345);
        assert_eq!(floats.as_ptr().align_offset(HUGE_PAGE), 0);
        assert!(floats.iter().all(|&x| x == 0.0));
    }
}
