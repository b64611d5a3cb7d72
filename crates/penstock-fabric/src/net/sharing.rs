//! Connections that share lines with others of the same trees: all hosts send at once there, each to several, and several to each.
//!
//! - **Congestion control.** BBR, the default of many hosts, paces each connection by a rate that it has seen, and several that share a
//!   line share it unevenly for a second or more: while one stripe goes ahead the hosts below the other stand idle. Measured with two
//!   stripes over four hosts of 200 Mbit/s: 1.14 transfers of one link, under CUBIC 1.01 (planned: 1.01).
//! - **What may be under way.** A host of many parents (as many as stripes, servers and shards make) overflows the queue before its
//!   line, whatever controls congestion. Two servers of two shards: 28,000 segments sent again in 24 broadcasts under BBR, and 1.29
//!   transfers under CUBIC; with 64 KiB for each parent 5 segments, and 1.02.
//!
//! Both only where the round trip is short: a long one needs more under way than that, and loses what CUBIC takes for a full queue.

use super::tcp_info;
use rustix::fd::AsFd;
use rustix::net::sockopt;
use std::io;
use std::time::Duration;

/// The longest round trip of hosts that are near: 1 MiB in that time is 8 Gbit/s.
const NEAR: Duration = Duration::from_millis(1);
/// What replaces a congestion control that paces by rates: the first that the system has.
const EVEN: [&str; 2] = ["cubic", "reno"];
/// How the name of one begins that does.
const BY_RATES: &str = "bbr";

/// Bytes that all parents of a worker together may have under way to it: less than a switch holds for one port.
const UNDER_WAY: usize = 1 << 20;
/// Of one parent, at least: two of the longest TLS records, and what goes with them.
const LEAST: usize = 48 << 10;
/// So much for one is more than it ever has under way between hosts that are near: it is left to the kernel.
const MUCH: usize = 200 << 10;

/// Whether the other end is near, as far as the kernel has seen.
fn is_near(socket: impl AsFd) -> bool {
    tcp_info::round_trip(socket).is_some_and(|least| least <= NEAR)
}

/// Has the kernel send as others do that share the line. A system that does not let it be chosen is left as it is.
pub(super) fn send_evenly(socket: impl AsFd) {
    if sockopt::tcp_congestion(&socket).is_ok_and(|name| name.starts_with(BY_RATES)) && is_near(&socket) {
        let _ = EVEN.iter().find(|name| sockopt::set_tcp_congestion(&socket, name).is_ok());
    }
}

/// Bytes that one of so many parents may have under way; `None`: as many as the kernel likes.
fn part_of(parents: usize) -> Option<usize> {
    Some((UNDER_WAY / parents.max(1)).max(LEAST)).filter(|&bytes| bytes <= MUCH)
}

/// Lets the other end have little under way, as one of so many that send here at once.
pub(super) fn take_as_one_of(socket: impl AsFd, parents: usize) -> io::Result<()> {
    match part_of(parents).filter(|_| is_near(&socket)) {
        Some(bytes) => Ok(sockopt::set_socket_recv_buffer_size(&socket, bytes)?),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[test]
    fn whoever_would_send_by_rates_sends_evenly_and_others_as_before() {
        for name in ["bbr", "cubic", "reno"] {
            let (ours, _theirs) = pair();
            // Not every system has each, or lets each be chosen.
            if sockopt::set_tcp_congestion(&ours, name).is_ok() {
                send_evenly(&ours);
                let now = sockopt::tcp_congestion(&ours).unwrap();
                assert_eq!(now == name, name != "bbr", "{name} became {now}");
            }
        }
    }

    #[test]
    fn many_parents_have_little_under_way_each_and_together_no_more_than_a_queue_holds() {
        assert_eq!([1, 2, 5].map(part_of), [None; 3]);
        assert_eq!([8, 16, 1000].map(part_of), [Some(128 << 10), Some(64 << 10), Some(LEAST)]);
        let (ours, _theirs) = pair();
        let before = sockopt::socket_recv_buffer_size(&ours).unwrap();
        take_as_one_of(&ours, 2).unwrap();
        assert_eq!(sockopt::socket_recv_buffer_size(&ours).unwrap(), before);
        take_as_one_of(&ours, 16).unwrap();
        // The kernel doubles it, for what it keeps of each segment beside its bytes.
        assert_eq!(sockopt::socket_recv_buffer_size(&ours).unwrap(), 128 << 10);
    }
}
