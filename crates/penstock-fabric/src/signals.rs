//! Signals that ask a process to end, for a program whose threads look now and then whether they should.

use std::sync::atomic::{AtomicI32, Ordering};

/// What has come.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// A signal that asks a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM: from the process that started it, the usual end of a program that runs for ever.
    Terminate,
}

extern "C" fn note(signal: libc::c_int) {
    // Nothing but this store: a handler may have interrupted anything.
    ASKED.store(signal, Ordering::Relaxed);
}

/// From now on SIGINT and SIGTERM end nothing by themselves: [`asked`] reports them.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler is a function of this signature that calls nothing, so it may run at any moment on any thread.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

/// From now on a file that is larger than this process may make it is an error, and no signal that ends the process.
pub fn ignore_file_limit() {
    // SAFETY: no handler is set.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Which one has come, if any.
pub fn asked() -> Option<Ending> {
    match ASKED.load(Ordering::Relaxed) {
        libc::SIGINT => Some(Ending::Interrupt),
        libc::SIGTERM => Some(Ending::Terminate),
        _ => None,
    }
}
