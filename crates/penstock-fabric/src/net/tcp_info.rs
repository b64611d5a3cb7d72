//! What the kernel knows of a TCP connection's sending: how much was acknowledged, and how fast it goes.

use penstock_proto::pressure::Flow;
use rustix::fd::{AsFd, AsRawFd};
use std::mem::MaybeUninit;

/// Where these stand in `struct tcp_info` (linux/tcp.h), the first a bit, the others 8 bytes each; fields are only ever added behind.
/// The rate is of Linux 4.9 and newer.
const RATE_IS_APP_LIMITED: usize = 7;
const BYTES_ACKED: usize = 120;
const DELIVERY_RATE: usize = 160;
/// All that is asked for.
const BYTES: usize = DELIVERY_RATE + 8;

/// What a socket has sent, and at which rate the other end has had it, as the kernel measures it (`tcp_rate.c`): of the last
/// sending that was not cut short by having nothing to send, or of a later one, cut short or not, that was faster. `None`: it is
/// no TCP socket.
pub(super) fn flow(socket: impl AsFd) -> Option<Flow> {
    let mut info = MaybeUninit::<[u8; BYTES]>::zeroed();
    let mut length = BYTES as libc::socklen_t;
    // SAFETY: `info` is writable for `length` bytes, of which the kernel writes as many as it says in `length` afterwards, and keeps
    // neither pointer. The descriptor is open while `socket` is borrowed.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    // SAFETY: it was zeroed, and any bytes are an array of bytes.
    let info = unsafe { info.assume_init() };
    #[expect(clippy::host_endian_bytes, reason = "the kernel writes them as this host does")]
    let field = |at: usize| {
        let bytes = info[at..at + 8].try_into().expect("eight bytes");
        Some(u64::from_ne_bytes(bytes)).filter(|_| at + 8 <= length as usize)
    };
    let sent = field(BYTES_ACKED).filter(|_| done == 0)?;
    let rate = field(DELIVERY_RATE).filter(|rate| *rate > 0).map(|rate| rate as f64);
    Some(Flow { sent, rate, cut_short: info[RATE_IS_APP_LIMITED] & 1 > 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn what_a_connection_has_carried_is_counted_and_its_rate_is_known_then() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let before = flow(&ours).unwrap().sent;
        let bytes = vec![7; 4 << 20];
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 4 << 20];
            theirs.read_exact(&mut all).unwrap();
            // What comes back acknowledges all of it.
            theirs.write_all(&[1]).unwrap();
        });
        ours.write_all(&bytes).unwrap();
        ours.read_exact(&mut [0]).unwrap();
        reader.join().unwrap();
        let after = flow(&ours).unwrap();
        assert_eq!(after.sent - before, 4 << 20);
        assert!(after.rate.is_some_and(|rate| rate > 1e4), "{after:?}");
    }

    #[test]
    fn what_is_no_tcp_has_no_flow() {
        assert_eq!(flow(UdpSocket::bind("127.0.0.1:0").unwrap()), None);
    }
}
