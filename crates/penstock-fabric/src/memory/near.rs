//! Hints to the processor about memory that is going to be used.

/// Asks for the line at `address` to be brought near, to be read. Any address will do: it is only a hint.
#[inline]
pub(crate) fn bring_near(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch neither faults nor changes anything, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = address;
}

/// The same, to be written: other cores give it up. The intrinsic asks to read instead, unless the whole program is compiled for
/// processors that have this instruction; the others take it for a no-op.
#[inline]
pub(crate) fn claim(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch neither faults nor changes anything, whatever the address; where the processor does not know it, it is
    // a no-op by the architecture.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = address;
}
