//! Pointers, sizes and panics, judged before anything else happens.
//!
//! Every function of the interface runs inside [`guard`], and turns what C gave it into Rust's types by the functions here,
//! each of which refuses NULL by the argument's name.

use crate::status::{Failure, penstock_status};
use penstock::worker::Error;
use penstock_fabric::forked::Maker;
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs a call: its error is kept for `penstock_last_error`, and no panic gets out.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> penstock_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => penstock_status::PENSTOCK_OK,
        Ok(Err(failure)) => failure.record(),
        Err(panic) => Failure::bug(&*panic).record(),
    }
}

/// The job whose handle [`here`] has judged in this call: it notes that the program was told if the call returns its failure.
#[derive(Default)]
pub(crate) struct Caller<'a>(Cell<Option<&'a Told>>);

/// As [`guard`], for calls that a failure of the job can end.
pub(crate) fn guard_job<'a>(work: impl FnOnce(&Caller<'a>) -> Result<(), Failure>) -> penstock_status {
    guard(|| {
        let caller = Caller::default();
        work(&caller).inspect_err(|failure| {
            if let Some(told) = caller.0.get() {
                told.hear(failure);
            }
        })
    })
}

/// Whether a call, on any thread, has returned the failure of a job to the program: a failure that a thread of the library
/// meets has not been reported until a call returns it.
#[derive(Debug, Default)]
pub(crate) struct Told(AtomicBool);

impl Told {
    /// A call returns this.
    pub(crate) fn hear(&self, failure: &Failure) {
        if failure.of_job {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_told(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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
/// - A pointer that is not NULL points to a `T` that lives, and that nothing changes, as long as the reference is used.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// What a program is given a handle of.
pub(crate) trait Made {
    /// The process that made it.
    fn maker(&self) -> &Maker;

    /// Whether the program knows that its job has failed.
    fn told(&self) -> &Told;
}

/// What a handle points to, in the process that made it. In a child of `fork` it is the parent's: no lock of it is touched there,
/// since it may have been copied while another thread held it.
///
/// # Safety
///
/// - As for [`shared`].
#[inline]
pub(crate) unsafe fn here<'a, T: Made>(
    pointer: *const T,
    what: &str,
    caller: &Caller<'a>,
) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    let made = unsafe { shared(pointer, what) }?;
    if !made.maker().is_here() {
        return Err(Error::Forked.into());
    }
    caller.0.set(Some(made.told()));
    Ok(made)
}

/// Where a call leaves a result.
///
/// # Safety
///
/// - A pointer that is not NULL points to memory for a `T` that nothing else uses meanwhile.
pub(crate) unsafe fn result<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise. Only pointers and numbers are handed out this way, of which every bit pattern is valid.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(what))
}

/// `count` elements to read; where there are none, the pointer may be NULL.
///
/// # Safety
///
/// - A pointer that is not NULL points to `count` elements that live, and that nothing changes, as long as the slice is used.
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
/// - A pointer that is not NULL points to memory for `count` elements that nothing else uses meanwhile. `T` is a number, or a structure
///   of numbers.
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
/// - A pointer that is not NULL points to bytes that end with a zero, and that nothing changes meanwhile.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("expected `{what}` in UTF-8, got {text:?}")))
}

/// A text that may be left out.
///
/// # Safety
///
/// - As for [`text`].
pub(crate) unsafe fn optional<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { text(pointer, what) }.map(Some)
}

/// Longest structure that says how long it is: more than that was not set, or set from something else.
const LONGEST: usize = 64 * 1024;

fn struct_size(given: usize, what: &str) -> Result<usize, Failure> {
    if (size_of::<usize>()..=LONGEST).contains(&given) {
        return Ok(given);
    }
    Err(Failure::argument(format!("expected `{what}->struct_size` to be sizeof *{what}, got {given}")))
}

/// A structure whose first field says how long it is: what a program that is older than this library does not have is zero, and what
/// one that is newer has beside must be.
///
/// # Safety
///
/// - A pointer that is not NULL points to a `usize` and as many bytes in all as that says, which nothing changes meanwhile.
/// - `T` is a C structure that begins with a `usize` and is valid if all its bytes are zero.
pub(crate) unsafe fn sized<T>(pointer: *const T, what: &str) -> Result<T, Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: it points to a `usize` at least (the caller's promise), wherever that is aligned.
    let given = struct_size(unsafe { pointer.cast::<usize>().read_unaligned() }, what)?;
    // SAFETY: so many bytes are there (the caller's promise).
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), given) };
    let (known, beyond) = bytes.split_at(given.min(size_of::<T>()));
    if beyond.iter().any(|&byte| byte != 0) {
        let message = format!(
            "expected 0 in what this library ({}) does not know of `{what}`, {} bytes of {given}",
            env!("CARGO_PKG_VERSION"),
            beyond.len()
        );
        return Err(Failure::argument(message));
    }
    let mut all = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `known` is at most as long as `T`, and the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(known.as_ptr(), all.as_mut_ptr().cast::<u8>(), known.len()) };
    // SAFETY: what was not copied is zero, and `T` is valid with any pointers and numbers in it (the caller's promise).
    Ok(unsafe { all.assume_init() })
}

/// Leaves a result in a structure whose first field says how long it is: an older program gets less of it, and what a newer one has
/// beside is zero. `struct_size` stays as the program set it.
///
/// # Safety
///
/// - A pointer that is not NULL points to a `usize` and as many bytes in all as that says, which nothing else uses meanwhile.
/// - `T` is a C structure of numbers, without gaps, that begins with a `usize`.
pub(crate) unsafe fn written<T>(pointer: *mut T, made: T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: it points to a `usize` at least (the caller's promise), wherever that is aligned.
    let given = struct_size(unsafe { pointer.cast::<usize>().read_unaligned() }, what)?;
    let head = size_of::<usize>();
    // SAFETY: so many bytes are there (the caller's promise).
    let out = unsafe { std::slice::from_raw_parts_mut(pointer.cast::<u8>(), given) };
    // SAFETY: `made` is a structure of numbers without gaps: all its bytes are set.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const made).cast::<u8>(), size_of::<T>()) };
    let common = given.min(bytes.len());
    out[head..common].copy_from_slice(&bytes[head..common]);
    out[common..].fill(0);
    Ok(())
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

    #[repr(C)]
    struct Grown {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    fn read(size: usize, old: u64, new: u64) -> Result<(u64, u64), Failure> {
        let grown = Grown { struct_size: size, old, new };
        // SAFETY: `size` is at most that of the structure.
        unsafe { sized(&raw const grown, "options") }.map(|it: Grown| (it.old, it.new))
    }

    #[test]
    fn what_an_older_program_does_not_have_is_zero() {
        assert_eq!(read(24, 1, 2).ok(), Some((1, 2)));
        assert_eq!(read(16, 1, 2).ok(), Some((1, 0)));
        assert!(read(0, 1, 2).is_err_and(|failure| failure.message.contains("struct_size")));
        assert!(read(usize::MAX, 1, 2).is_err());
    }

    #[test]
    fn what_a_newer_program_has_must_be_zero_where_this_library_does_not_know_it() {
        let newer = |last| {
            let newer: [u64; 3] = [24, 1, last];
            // SAFETY: the structure is as long as it says.
            unsafe { sized(newer.as_ptr().cast::<[u64; 2]>(), "options") }.is_ok()
        };
        assert!(newer(0) && !newer(7));
    }

    #[test]
    fn times_that_are_none_are_refused() {
        assert!(timeout(f64::NAN).is_err() && timeout(-1.0).is_err());
        assert_eq!(timeout(0.0).ok(), Some(None));
        assert_eq!(timeout(0.5).ok(), Some(Some(Duration::from_millis(500))));
        assert!(timeout(f64::INFINITY).is_ok_and(|wait| wait.is_some()));
    }
}
