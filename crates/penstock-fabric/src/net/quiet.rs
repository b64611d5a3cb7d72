//! Writing to a socket whose peer may have gone: an error, and no SIGPIPE, which would end a program that is not Rust's or Python's.

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;

/// A socket to be written to.
#[derive(Debug)]
pub struct Quiet<'a>(pub &'a TcpStream);

impl Write for Quiet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(sendmsg(self.0, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpListener;

    #[test]
    fn a_peer_that_has_gone_is_an_error_in_a_program_that_a_signal_would_end() {
        unsafe extern "C" {
            safe fn fork() -> i32;
            safe fn _exit(code: i32) -> !;
            safe fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let process = fork();
        if process == 0 {
            // SAFETY: as C programs have it; this child has no other thread, and ends below.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let mut last = Ok(1);
            while last.is_ok() {
                last = Quiet(&one).write(&[0]);
            }
            let kind = last.map_err(|error| error.kind());
            _exit(i32::from(!matches!(kind, Err(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))));
        }
        let mut status = -1;
        assert_eq!(waitpid(process, &raw mut status, 0), process);
        assert_eq!(status, 0, "the child was ended");
    }
}
