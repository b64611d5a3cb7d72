//! Pointers, sizes and panics, judged before anything else happens.
//!
//! Every function of the interface runs inside [`guard`], and turns what C gave it into Rust's types by the functions here,
//! each of which refuses NULL by the argument's name.

use crate::status::{Failure, penstock_status};
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs a call: its error is kept for `penstock_last_error`, and no panic gets out.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> penstock_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => penstock_status::PENSTOCK_OK,
        Ok(Err(failure)) => failure.record(),
        Err(panic) => Failure::bug(&*panic).record(),
    }
}

/// As [`guard`], for calls that return a number; `otherwise` where they cannot.
pub(crate) fn value<T>(otherwise: T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    let mut result = otherwise;
    guard(|| {
        result = work()?;
        Ok(())
    });
    result
}

fn null(what: &str) -> Failure {
    Failure::argument(format!("expected `{what}`, got NULL"))
}

/// What a handle or a structure of options points to.
///
/// # Safety
///
/// - A pointer that is not NULL points to a `T` that lives, and that nobody changes, as long as the reference is used.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// Where a call leaves a result.
///
/// # Safety
///
/// - A pointer that is not NULL points to memory for a `T` that nobody else uses meanwhile.
pub(crate) unsafe fn result<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise. What is handed out this way are pointers and numbers, of which every bit pattern is one.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(what))
}

/// `count` elements to read; NULL is as good as any pointer where there are none.
///
/// # Safety
///
/// - A pointer that is not NULL points to `count` elements that live, and that nobody changes, as long as the slice is used.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    check_array(pointer, count, what)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL and not larger than any object may be (checked above); the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// `count` elements to write.
///
/// # Safety
///
/// - A pointer that is not NULL points to memory for `count` elements that nobody else uses meanwhile. `T` is a number.
pub(crate) unsafe fn array_mut<'a, T>(
    pointer: *mut T,
    count: usize,
    what: &str,
) -> Result<&'a mut [T], Failure> {
    check_array(pointer, count, what)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL and not larger than any object may be (checked above); the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

fn check_array<T>(pointer: *const T, count: usize, what: &str) -> Result<(), Failure> {
    if count == 0 {
        return Ok(());
    }
    if pointer.is_null() {
        return Err(null(what));
    }
    if !pointer.is_aligned() {
        let message =
            format!("expected `{what}` to be aligned to {} bytes, got {pointer:p}", align_of::<T>());
        return Err(Failure::argument(message));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(Failure::argument(format!(
            "expected at most {} bytes for `{what}`, got {count} elements",
            isize::MAX
        ))),
    }
}

/// A text.
///
/// # Safety
///
/// - A pointer that is not NULL points to bytes that end with a zero, and that nobody changes meanwhile.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("expected `{what}` in UTF-8, got {text:?}")))
}

/// A time to wait; 0 for the default.
pub(crate) fn timeout(seconds: f64) -> Result<Option<Duration>, Failure> {
    if seconds.is_nan() || seconds < 0.0 {
        let message = format!("expected a timeout above 0 seconds, or 0 for the default, got {seconds}");
        return Err(Failure::argument(message));
    }
    // No number of seconds is too many.
    let wait = || Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1 << 40));
    Ok((seconds > 0.0).then(wait))
}

/// What a zeroed number means.
pub(crate) fn or(number: f64, default: f64) -> f64 {
    if number == 0.0 { default } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::penstock_last_error;

    fn last_error() -> String {
        // SAFETY: it is never NULL, and this thread makes no other call meanwhile.
        unsafe { CStr::from_ptr(penstock_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_an_error_that_says_what_it_said() {
        let status = guard(|| panic!("a rabbit, {}", 1 + 1));
        assert_eq!(status, penstock_status::PENSTOCK_INTERNAL);
        assert!(last_error().contains("a rabbit, 2"), "{}", last_error());
    }

    #[test]
    fn the_text_of_a_failure_is_the_own_threads() {
        guard(|| Err(Failure::argument("of this thread")));
        let other = std::thread::spawn(|| {
            let before = last_error();
            guard(|| Err(Failure::argument("of another")));
            before
        });
        assert_eq!(other.join().ok(), Some(String::new()));
        assert_eq!(last_error(), "of this thread");
    }

    #[test]
    fn a_call_that_succeeds_leaves_the_text_as_it_was() {
        guard(|| Err(Failure::argument("before")));
        assert_eq!(guard(|| Ok(())), penstock_status::PENSTOCK_OK);
        assert_eq!(last_error(), "before");
    }

    #[test]
    fn arrays_of_nothing_may_be_null_and_others_may_not() {
        // SAFETY: the pointer is NULL.
        let none = unsafe { array::<u64>(std::ptr::null(), 0, "rows") };
        // SAFETY: likewise.
        let some = unsafe { array::<u64>(std::ptr::null(), 1, "rows") };
        assert_eq!(none.ok(), Some(&[][..]));
        assert_eq!(some.err().map(|failure| failure.message), Some("expected `rows`, got NULL".to_owned()));
    }

    #[test]
    fn an_array_larger_than_memory_is_refused_before_it_is_looked_at() {
        let one = 1u64;
        // SAFETY: the size is refused, so nothing is looked at.
        let refused = unsafe { array(&raw const one, usize::MAX / 8, "rows") };
        assert!(refused.is_err());
    }

    #[test]
    fn times_that_are_none_are_refused() {
        assert!(timeout(f64::NAN).is_err() && timeout(-1.0).is_err());
        assert_eq!(timeout(0.0).ok(), Some(None));
        assert_eq!(timeout(0.5).ok(), Some(Some(Duration::from_millis(500))));
        assert!(timeout(f64::INFINITY).is_ok_and(|wait| wait.is_some()));
    }
}
