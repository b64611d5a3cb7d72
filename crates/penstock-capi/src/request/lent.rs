//! Memory of the program's that a request uses until it is done.

/// Memory of the program's that a request reads or writes until it is done.
pub(super) struct Lent<T> {
    first: *mut T,
    count: usize,
}

// SAFETY: penstock.h says that nothing else uses the memory until the request is done. `T` is a number.
unsafe impl<T: Send> Send for Lent<T> {}

impl<T> Lent<T> {
    pub(super) fn to_write(memory: &mut [T]) -> Self {
        Self { first: memory.as_mut_ptr(), count: memory.len() }
    }

    /// The memory.
    ///
    /// # Safety
    ///
    /// - The request is not done, so that the memory is there and nothing else uses it.
    pub(super) unsafe fn memory<'a>(&self) -> &'a mut [T] {
        // SAFETY: it came from a slice of this length; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.count) }
    }
}

/// Memory of the program's that a request reads until it is done.
pub(super) struct LentToRead {
    first: *const u8,
    count: usize,
}

// SAFETY: penstock.h says that nothing writes to the memory until the request is done.
unsafe impl Send for LentToRead {}

impl LentToRead {
    pub(super) fn of(memory: &[u8]) -> Self {
        Self { first: memory.as_ptr(), count: memory.len() }
    }

    /// The memory.
    ///
    /// # Safety
    ///
    /// - The request is not done, so that the memory is there and nothing writes to it.
    pub(super) unsafe fn memory<'a>(&self) -> &'a [u8] {
        // SAFETY: it came from a slice of this length; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}
