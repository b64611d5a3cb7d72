//! The socket: its options, who is at the other end, and datagrams with the time at which the kernel had them.
//!
//! An unsafe room: the options and `recvmsg` have no safe form in what we use.

use std::ffi::c_int;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::datagram::TOKEN;

/// Bytes that are asked for as buffer, each way: a receiver that is away for 5 ms at 10 Gbit/s loses nothing.
const BUFFER: usize = 8 << 20;

/// A UDP socket that measures.
#[derive(Debug)]
pub struct Socket {
    udp: UdpSocket,
    /// Bytes of a datagram, which the kernel cuts out of what one call hands over; 0 where it does not.
    cut: usize,
}

/// What one call received: datagrams of one length (the last may be shorter), one behind the other.
pub(super) struct Arrival {
    pub(super) len: usize,
    pub(super) datagram: usize,
    /// Nanoseconds of the kernel's clock of the day.
    pub(super) came_ns: u64,
}

impl Socket {
    /// Binds it.
    ///
    /// # Errors
    ///
    /// The kernel's, as for every bind; or it gives no time stamps.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let udp = UdpSocket::bind(address)?;
        udp.set_nonblocking(true)?;
        let socket = Self { udp, cut: 0 };
        socket.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        // Several datagrams in one call, and as large a buffer as we may have: without either, fewer fit.
        let _ = socket.set(libc::SOL_UDP, libc::UDP_GRO, 1);
        for (forced, asked) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            let _ = socket
                .set(libc::SOL_SOCKET, forced, BUFFER as c_int)
                .or_else(|_| socket.set(libc::SOL_SOCKET, asked, BUFFER as c_int));
        }
        Ok(socket)
    }

    /// The port.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn port(&self) -> Result<u16> {
        Ok(self.udp.local_addr()?.port())
    }

    /// From now on, only to and from `peer`.
    ///
    /// # Errors
    ///
    /// The kernel's: there is no way to it.
    pub fn connect(&mut self, peer: SocketAddr) -> Result<()> {
        self.udp.connect(peer)
    }

    /// Shows the other end where we are: a datagram that is nothing but the token.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn greet(&self, token: &[u8; TOKEN]) -> Result<()> {
        self.udp.send(token).map(drop)
    }

    /// Waits until `peer` has shown that it knows `token`, and connects to where that came from. Whether it has, in `limit` or
    /// until a signal comes.
    ///
    /// All that comes from elsewhere, or is anything but the token, is thrown away: nothing is ever sent to an address that has not
    /// shown the token.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn met(&mut self, token: &[u8; TOKEN], peer: IpAddr, limit: Duration) -> Result<bool> {
        let end = Instant::now() + limit;
        let mut datagram = [0; TOKEN + 1];
        loop {
            match self.udp.recv_from(&mut datagram) {
                Ok((len, from)) => {
                    if from.ip().to_canonical() == peer.to_canonical() && datagram[..len] == token[..] {
                        self.udp.connect(from)?;
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !self.readable(end.saturating_duration_since(Instant::now()))? {
                        return Ok(false);
                    }
                }
                // Somebody's port was closed when an earlier datagram came to it.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
            if Instant::now() > end {
                return Ok(false);
            }
        }
    }

    /// Bytes of the largest packet to the peer, as far as the kernel knows.
    ///
    /// # Errors
    ///
    /// The kernel's: the socket is not connected.
    pub fn mtu(&self) -> Result<usize> {
        let (level, name) = match self.udp.peer_addr()? {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mut value = [0];
        self.get(level, name, &mut value)?;
        Ok(usize::try_from(value[0]).unwrap_or(0))
    }

    /// Datagrams that came and were thrown away because this process did not fetch them in time, since the socket was made.
    ///
    /// # Errors
    ///
    /// The kernel's: it does not count.
    pub fn dropped(&self) -> Result<u32> {
        let mut counts = [0; libc::SK_MEMINFO_DROPS as usize + 1];
        self.get(libc::SOL_SOCKET, libc::SO_MEMINFO, &mut counts)?;
        Ok(counts[libc::SK_MEMINFO_DROPS as usize] as u32)
    }

    /// Has the kernel cut datagrams of `bytes` out of what is handed over; whether it does.
    pub(super) fn cut(&mut self, bytes: usize) -> bool {
        if self.cut != bytes {
            let set = self.set(libc::SOL_UDP, libc::UDP_SEGMENT, bytes as c_int).is_ok();
            self.cut = if set { bytes } else { 0 };
        }
        self.cut == bytes
    }

    /// No longer: a device that cannot do it says so when something is sent.
    pub(super) fn cut_not(&mut self) {
        let _ = self.set(libc::SOL_UDP, libc::UDP_SEGMENT, 0);
        self.cut = 0;
    }

    pub(super) fn send(&self, bytes: &[u8]) -> Result<()> {
        self.udp.send(bytes).map(drop)
    }

    /// Whether something can be read, in `limit`, or until a signal comes.
    pub(super) fn readable(&self, limit: Duration) -> Result<bool> {
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        match poll(&mut [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)], Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// What has come, if anything.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<Option<Arrival>> {
        let mut control = [0u64; 16];
        let mut parts = [IoSliceMut::new(buffer)];
        // SAFETY: all zeros is a valid `msghdr`: null pointers of length zero.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr().cast();
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the descriptor is open while `self.udp` lives. `IoSliceMut` has the layout of `iovec` (its documentation), and it
        // and the control buffer are alive, writable, and as long as the header says.
        let received = unsafe { libc::recvmsg(self.fd().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let Ok(len) = usize::try_from(received) else {
            let error = Error::last_os_error();
            return match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(error),
            };
        };
        let mut arrival = Arrival { len, datagram: len.max(1), came_ns: 0 };
        // SAFETY: the header is as the kernel has left it, with the length of what it wrote to `control`, which is aligned as
        // `cmsghdr` has to be (8 bytes) and still alive.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !next.is_null() {
            // SAFETY: not null, so a whole header inside `control` (that is what CMSG_FIRSTHDR and CMSG_NXTHDR give).
            let head = unsafe { *next };
            // SAFETY: as above; data follows a header in the same buffer.
            let data = unsafe { libc::CMSG_DATA(next) };
            match (head.cmsg_level, head.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    // SAFETY: the kernel writes a whole `timespec` behind this type. Not aligned, as far as we know.
                    let stamp = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                    arrival.came_ns = (stamp.tv_sec as u64) * 1_000_000_000 + stamp.tv_nsec as u64;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    // SAFETY: the kernel writes a whole `int` behind this type (udp_cmsg_recv).
                    let datagram = unsafe { data.cast::<c_int>().read_unaligned() };
                    arrival.datagram = usize::try_from(datagram).unwrap_or(0).max(1);
                }
                _ => {}
            }
            // SAFETY: `next` is a header inside the buffer that `message` describes (above).
            next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
        }
        Ok(Some(arrival))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }

    fn set(&self, level: c_int, name: c_int, value: c_int) -> Result<()> {
        // SAFETY: the descriptor is open while `self.udp` lives; `value` is alive and as long as is said.
        let done = unsafe {
            libc::setsockopt(
                self.fd().as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    fn get(&self, level: c_int, name: c_int, values: &mut [c_int]) -> Result<()> {
        let mut len = size_of_val(values) as libc::socklen_t;
        // SAFETY: the descriptor is open while `self.udp` lives; `values` is alive, writable, and as long as `len` says.
        let done = unsafe {
            libc::getsockopt(self.fd().as_raw_fd(), level, name, values.as_mut_ptr().cast(), &raw mut len)
        };
        if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }
}
