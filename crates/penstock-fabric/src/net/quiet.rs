//! Writing to a socket whose peer may have gone: an error, and no SIGPIPE, which would end a program that
//! is not Rust's or Python's.

use super::link::{SEGMENTS, Segment};
use smallvec::SmallVec;
use std::io::{self, IoSlice, Write};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// A socket to be written to.
#[derive(Debug)]
pub struct Quiet<'a>(pub &'a TcpStream);

impl Write for Quiet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gather(&[Segment::Own(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let segments: SmallVec<[_; SEGMENTS]> = parts.iter().map(|part| Segment::Own(part)).collect();
        self.gather(&segments)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Quiet<'_> {
    /// Writes as much of `segments` as goes at once. The kernel reads them, and nothing here does: a slice would promise that
    /// they stand still, which is why this is not rustix's call.
    pub(super) fn gather(&self, segments: &[Segment<'_>]) -> io::Result<usize> {
        let vector = |segment: &Segment<'_>| {
            let (iov_base, iov_len) = (segment.as_ptr().cast_mut().cast(), segment.len());
            libc::iovec { iov_base, iov_len }
        };
        let mut vectors: SmallVec<[libc::iovec; SEGMENTS]> = segments.iter().map(vector).collect();
        // SAFETY: a message of nothing is all zeros: no address, no segments, nothing beside them.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len().min(libc::UIO_MAXIOV as usize) as _;
        // SAFETY: the message and what it names outlive the call, which reads them and writes to nothing: each segment is memory
        // that is mapped for as long as it is borrowed here. Where others write it meanwhile, what is sent is some mixture.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Runs `work`, which writes to sockets by means of others that do not ask for an error in place of the signal. The signal
/// of a write is its thread's, so it is held back from this thread meanwhile, and from the threads that it starts, and
/// discarded afterwards.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let _held = Held::back();
    work()
}

/// SIGPIPE is held back from the thread that made this.
struct Held {
    /// Of this thread, before; `None` if the signal was held back then, or waited for the process already: then it is not ours.
    before: Option<libc::sigset_t>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Held {
    fn back() -> Self {
        let (pipe, mut before, mut pending) = (sigpipe(), none(), none());
        // SAFETY: it writes the signals that wait for this thread or its process to `pending`.
        unsafe { libc::sigpending(&raw mut pending) };
        // SAFETY: it reads `pipe`, and writes the signals that were held back to `before`.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before) };
        let ours = failed == 0 && !has_sigpipe(&before) && !has_sigpipe(&pending);
        Self { before: ours.then_some(before), _of_this_thread: PhantomData }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(before) = &self.before else { return };
        let (pipe, now) = (sigpipe(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: it reads `pipe` and `now`, and leaves no more than a number: the second pointer may be null.
        while unsafe { libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const now) } == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        // SAFETY: it reads `before`, which the first call wrote in this thread (the type does not leave it).
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::from_ref(before), std::ptr::null_mut()) };
    }
}

/// No signals.
fn none() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it writes all of the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the call above has written it.
    unsafe { set.assume_init() }
}

fn sigpipe() -> libc::sigset_t {
    let mut set = none();
    // SAFETY: it writes to the set, and there is such a signal.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGPIPE) };
    set
}

fn has_sigpipe(set: &libc::sigset_t) -> bool {
    // SAFETY: it reads the set.
    unsafe { libc::sigismember(std::ptr::from_ref(set), libc::SIGPIPE) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpListener;

    unsafe extern "C" {
        safe fn fork() -> i32;
        safe fn _exit(code: i32) -> !;
        safe fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    }

    /// Whether a program that SIGPIPE ends goes on where `write` meets a peer that has gone, and is told so.
    fn goes_on(mut write: impl FnMut(&TcpStream) -> io::Result<usize>) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let process = fork();
        if process == 0 {
            // SAFETY: as C programs have it; this child has no other thread, and ends below.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let mut last = Ok(1);
            while last.is_ok() {
                last = write(&one);
            }
            let kind = last.map_err(|error| error.kind());
            _exit(i32::from(!matches!(kind, Err(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))));
        }
        let mut status = -1;
        assert_eq!(waitpid(process, &raw mut status, 0), process);
        status == 0
    }

    /// As code that knows nothing of this writes: std's own writes ask for no signal.
    fn loudly(one: &TcpStream) -> io::Result<usize> {
        Ok(rustix::io::writev(one, &[IoSlice::new(&[0])])?)
    }

    #[test]
    fn a_peer_that_has_gone_is_an_error_in_a_program_that_a_signal_would_end() {
        assert!(goes_on(|one| Quiet(one).write(&[0])), "the child was ended");
    }

    #[test]
    fn what_others_write_raises_no_signal_meanwhile_and_leaves_none_behind() {
        assert!(!goes_on(loudly), "it would be no test");
        assert!(goes_on(|one| quietly(|| loudly(one))), "the child was ended");
    }

    #[test]
    fn the_signal_is_held_back_only_meanwhile_and_not_let_through_where_it_was_held_back_before() {
        let is_held = || Held::back().before.is_none();
        assert!(!is_held());
        quietly(|| assert!(is_held()));
        assert!(!is_held());
        quietly(|| {
            quietly(|| ());
            assert!(is_held());
        });
    }
}
