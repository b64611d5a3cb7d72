//! The end of the process: the code that it ends with, and jobs that are open until then.
//!
//! An error while the interpreter ends (`atexit`) is printed and forgotten: the process would exit with 0, and whatever started
//! it would believe that all is well. Nor is anything that runs then told the exit code: whether this worker is done or has
//! failed is known only to the C library, which ends the process. So a job that is still open is left there.

use crate::detach::{Core, about_to_end, at_exit};
use crate::error::class_of;
use penstock::worker::{Error, Job};
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static CODE: AtomicI32 = AtomicI32::new(0);
/// Whether a job could not be left cleanly when the process ended.
static FAILED: AtomicBool = AtomicBool::new(false);

/// A process of a server that this one has started, and the server's directory.
type Child = (c_int, PathBuf);

unsafe extern "C" {
    /// Like `atexit`, but the function is given the exit code, and this argument. From the GNU C library; the last one given
    /// is called first.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

extern "C" fn end() {
    std::process::exit(CODE.load(Ordering::Relaxed));
}

/// When the interpreter has ended, and with it everything that was registered for that, the process ends with this code.
#[pyfunction]
pub(crate) fn exit_with(_py: Python<'_>, code: i32) {
    if CODE.swap(code, Ordering::Relaxed) == 0 {
        // SAFETY: `end` lives as long as the process, touches nothing of the interpreter, and the interpreter is attached here.
        // Where there is no room for another such function, the code stays as it is.
        let _ = unsafe { pyo3::ffi::Py_AtExit(Some(end)) };
    }
}

/// When the process ends, leaves the jobs: cleanly if it ends with exit code 0, else as one that failed. Then waits for the children,
/// and removes the directory of each. `false` where not all of it will be done: the C library has no room for that.
#[pyfunction]
pub(crate) fn leave_at_exit(
    py: Python<'_>,
    jobs: Vec<PyRef<'_, crate::job::Job>>,
    children: Vec<Child>,
) -> bool {
    // What is registered last is done first.
    let jobs = jobs.iter().map(|job| Box::into_raw(Box::new(job.core())).cast());
    let children = children.into_iter().map(|child| Box::into_raw(Box::new(child)).cast());
    let mut room = register(conclude, null_mut());
    for child in children {
        room = room && register(see_off, child);
    }
    for job in jobs {
        room = room && register(part, job);
    }
    about_to_end(py);
    room
}

fn register(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> bool {
    // SAFETY: the functions live as long as the process, and each takes an argument of its own kind for the one call that it gets.
    unsafe { on_exit(function, argument) == 0 }
}

extern "C" fn part(status: c_int, job: *mut c_void) {
    // SAFETY: it is what `leave_at_exit` made, which gave it to this one call. It is never dropped: the process ends.
    let job: &Arc<Core<Job>> = Box::leak(unsafe { Box::from_raw(job.cast()) });
    // The exit code that the shell, or whatever started the process, sees.
    let code = status & 0xff;
    let left = at_exit(|free| match code {
        0 => job.on(free).leave(None),
        code => job.on(free).close(Some(format!("its process ended with exit code {code}"))),
    });
    match left {
        // In a child of fork it is the parent's to leave.
        Ok(()) | Err(Error::Forked) => {}
        Err(error) => say(&error),
    }
}

extern "C" fn see_off(_status: c_int, child: *mut c_void) {
    // SAFETY: it is what `leave_at_exit` made, which gave it to this one call.
    let (child, directory) = *unsafe { Box::from_raw(child.cast::<Child>()) };
    let interrupted = || std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
    // SAFETY: no pointer is given.
    while unsafe { libc::waitpid(child, null_mut(), 0) } < 0 && interrupted() {}
    // It does so itself, unless it was killed.
    let _ = std::fs::remove_dir_all(directory);
}

extern "C" fn conclude(_status: c_int, _: *mut c_void) {
    if FAILED.load(Ordering::Relaxed) {
        // SAFETY: null stands for all streams.
        unsafe { libc::fflush(null_mut()) };
        // SAFETY: a second `exit` is not allowed inside the first; this one ends the process at once.
        unsafe { libc::_exit(1) };
    }
}

/// Prints what would have been raised as an exception, now that there is no interpreter to raise it in.
fn say(error: &Error) {
    let mut lines = format!("penstock.exceptions.{}: {error}\n", class_of(error));
    if let Some(hint) = error.hint() {
        lines += &format!("hint: {hint}\n");
    }
    let _ = std::io::stderr().write_all(lines.as_bytes());
    FAILED.store(true, Ordering::Relaxed);
}
