//! Which thread this is.

/// Tells the calling thread from all others of this process that live (one that has ended may have had the same); never 0. A look at a
/// register, where a variable of the thread's own would be a call: every set and get asks.
#[inline]
pub fn this_thread() -> usize {
    // SAFETY: it has no preconditions, and only says what the thread was given at its start.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_always_the_same_and_no_other_that_lives() {
        let here = this_thread();
        assert_eq!(this_thread(), here);
        assert_ne!(std::thread::spawn(this_thread).join().unwrap(), here);
    }
}
