//! What the kernel knows of a TCP connection's sending: how much was acknowledged, and how fast it goes.

use penstock_proto::pressure::Flow;
use penstock_proto::uplink::{Carried, To};
use rustix::fd::{AsFd, AsRawFd};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Where these stand in `struct tcp_info` (linux/tcp.h), the first a bit, the others 8 bytes each; fields are only ever added behind.
/// The rate is of Linux 4.9 and newer.
const RATE_IS_APP_LIMITED: usize = 7;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
/// Of 4 bytes: what waits in the kernel and was not sent so far.
const NOT_SENT: usize = 144;
/// Of 4 bytes, in microseconds; nothing or all ones: none was seen.
const LEAST_ROUND_TRIP: usize = 148;
const DELIVERY_RATE: usize = 160;
/// In microseconds, of Linux 4.10 and newer: while something was sent or to be sent; of that, while the receiver had no room, and while
/// more would have gone but for the size of this end's buffer.
const BUSY_TIME: usize = 168;
const RECEIVER_LIMITED: usize = 176;
const BUFFER_LIMITED: usize = 184;
/// All that is asked for.
const BYTES: usize = BUFFER_LIMITED + 8;
/// What waits without being held back by the network: as much as goes into one segment of a send.
const FEW: u32 = 16 << 10;

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
    let sent = long(&info, length, BYTES_ACKED)?;
    let rate = long(&info, length, DELIVERY_RATE).filter(|rate| *rate > 0).map(|rate| rate as f64);
    Some(Flow { sent, rate, cut_short: info[RATE_IS_APP_LIMITED] & 1 > 0 })
}

/// What a socket has carried, and for how long it was busy with that; `None`: it is no TCP socket, or the kernel does not count.
pub(super) fn carried(socket: impl AsFd, to: To) -> Option<Carried> {
    let (info, length) = ask(socket)?;
    let micros = |at| long(&info, length, at).map(Duration::from_micros);
    Some(Carried {
        to,
        sent: long(&info, length, BYTES_ACKED)?,
        received: long(&info, length, BYTES_RECEIVED)?,
        busy: micros(BUSY_TIME)?,
        held: micros(RECEIVER_LIMITED)?.saturating_add(micros(BUFFER_LIMITED)?),
        waits: short(&info, length, NOT_SENT)? > FEW,
    })
}

/// A field of eight bytes, if the kernel has it.
#[expect(clippy::host_endian_bytes, reason = "the kernel writes it as this host does")]
fn long(info: &[u8; BYTES], length: usize, at: usize) -> Option<u64> {
    let bytes = info[at..at + 8].try_into().expect("eight bytes");
    Some(u64::from_ne_bytes(bytes)).filter(|_| at + 8 <= length)
}

/// One of four.
#[expect(clippy::host_endian_bytes, reason = "the kernel writes it as this host does")]
fn short(info: &[u8; BYTES], length: usize, at: usize) -> Option<u32> {
    let bytes = info[at..at + 4].try_into().expect("four bytes");
    Some(u32::from_ne_bytes(bytes)).filter(|_| at + 4 <= length)
}

/// The least round trip lately, if one was seen.
pub(super) fn round_trip(socket: impl AsFd) -> Option<Duration> {
    let (info, length) = ask(socket)?;
    let micros = short(&info, length, LEAST_ROUND_TRIP)?;
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
    fn a_receiver_that_reads_nothing_holds_its_sender_and_what_is_idle_is_not_busy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let before = carried(&ours, To::Child(3)).unwrap();
        assert_eq!((before.to, before.received, before.waits), (To::Child(3), 0, false));
        ours.set_nonblocking(true).unwrap();
        // All buffers are full, and stay so until somebody reads.
        let mut wrote = 0;
        let mut held = Duration::ZERO;
        while held < Duration::from_millis(50) {
            wrote += ours.write(&[7; 1 << 16]).unwrap_or(0);
            held = carried(&ours, To::Other).unwrap().held;
        }
        let full = carried(&ours, To::Other).unwrap();
        assert!(full.waits && full.held * 2 > full.busy, "{full:?}");
        let mut room = vec![0; 1 << 20];
        let mut read = 0;
        while read < wrote {
            read += theirs.read(&mut room).unwrap();
        }
        theirs.write_all(&[1]).unwrap();
        ours.set_nonblocking(false).unwrap();
        ours.read_exact(&mut [0]).unwrap();
        let done = carried(&ours, To::Other).unwrap();
        assert_eq!((done.sent - before.sent, done.received, done.waits), (wrote as u64, 1, false));
        assert_eq!(carried(&ours, To::Other).unwrap().busy, done.busy, "nothing is under way");
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
        assert_eq!((flow(&none), round_trip(&none), carried(&none, To::Other)), (None, None, None));
    }
}
