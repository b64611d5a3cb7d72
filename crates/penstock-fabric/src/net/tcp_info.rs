//! What the kernel knows of a TCP connection's sending: how much was acknowledged, and how fast it goes.

use penstock_proto::pressure::Flow;
use rustix::fd::{AsFd, AsRawFd};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Where these stand in `struct tcp_info` (linux/tcp.h), the first a bit, the others 8 bytes each; fields are only ever added behind.
/// The rate is of Linux 4.9 and newer.
const RATE_IS_APP_LIMITED: usize = 7;
const BYTES_ACKED: usize = 120;
/// Of 4 bytes, in microseconds; nothing or all ones: none was seen.
const LEAST_ROUND_TRIP: usize = 148;
const DELIVERY_RATE: usize = 160;
/// All that is asked for.
const BYTES: usize = DELIVERY_RATE + 8;

/// All that is asked for of a socket's connection, as far as the kernel has it; `None`: it is no TCP socket.
fn ask(socket: impl AsFd) -> Option<([u8; BYTES], usize)> {
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
    (done == 0).then_some((info, length as usize))
}

/// What a socket has sent, and at which rate the other end has had it, as the kernel measures it (`tcp_rate.c`): of the last
/// sending that was not cut short by having nothing to send, or of a later one, cut short or not, that was faster. `None`: it is
/// no TCP socket.
pub(super) fn flow(socket: impl AsFd) -> Option<Flow> {
    let (info, length) = ask(socket)?;
    #[expect(clippy::host_endian_bytes, reason = "the kernel writes them as this host does")]
    let field = |at: usize| {
        let bytes = info[at..at + 8].try_into().expect("eight bytes");
        Some(u64::from_ne_bytes(bytes)).filter(|_| at + 8 <= length)
    };
    let sent = field(BYTES_ACKED)?;
    let rate = field(DELIVERY_RATE).filter(|rate| *rate > 0).map(|rate| rate as f64);
    Some(Flow { sent, rate, cut_short: info[RATE_IS_APP_LIMITED] & 1 > 0 })
}

/// The least round trip lately, if one was seen.
pub(super) fn round_trip(socket: impl AsFd) -> Option<Duration> {
    let (info, length) = ask(socket)?;
    let bytes = info[LEAST_ROUND_TRIP..LEAST_ROUND_TRIP + 4].try_into().expect("four bytes");
    #[expect(clippy::host_endian_bytes, reason = "the kernel writes it as this host does")]
    let micros = Some(u32::from_ne_bytes(bytes)).filter(|_| LEAST_ROUND_TRIP + 4 <= length)?;
    (1..u32::MAX).contains(&micros).then_some(Duration::from_micros(micros.into()))
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
    fn the_round_trip_over_loopback_is_short() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(round_trip(&ours).unwrap() < Duration::from_secs(1));
        assert_eq!(round_trip(&listener), None, "nobody is at the other end");
    }

    #[test]
    fn what_is_no_tcp_has_no_flow() {
        let none = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!((flow(&none), round_trip(&none)), (None, None));
    }
}
