//! Every link keeps what links promise: TCP, TLS, and one that is slow.

#[path = "link/slow.rs"]
mod slow;
#[path = "link/suite.rs"]
mod suite;

use penstock_fabric::net::link::{Got, Interest, Link};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::net::tls;
use rustix::event::{PollFd, PollFlags};
use std::io::{IoSliceMut, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use suite::Ends;

fn pair() -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    let patience = Duration::from_secs(20);
    (Stream::plain(one, patience).unwrap(), Stream::plain(other, patience).unwrap())
}

fn wait(link: &Stream, interest: Interest, longest: Duration) -> bool {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, interest.read);
    flags.set(PollFlags::OUT, interest.write);
    let longest = rustix::time::Timespec::try_from(longest).unwrap();
    rustix::event::poll(&mut [PollFd::new(link, flags)], Some(&longest)).unwrap() > 0
}

struct Tcp([Option<Stream>; 2]);

impl Ends for Tcp {
    type Link = Stream;

    fn connect() -> Self {
        let (one, other) = pair();
        Self([Some(one), Some(other)])
    }

    fn end(&mut self, at: usize) -> &mut Stream {
        self.0[at].as_mut().unwrap()
    }

    fn wait(&mut self, at: usize, interest: Interest, longest: Duration) -> bool {
        wait(self.end(at), interest, longest)
    }

    fn close(&mut self, at: usize) {
        self.0[at] = None;
    }

    /// The other end resets it.
    fn cut(&mut self, at: usize) {
        let other = self.0[1 - at].take().unwrap();
        rustix::net::sockopt::set_socket_linger(&other, Some(Duration::ZERO)).unwrap();
    }
}

struct Tls([Option<Stream>; 2]);

impl Ends for Tls {
    type Link = Stream;

    fn connect() -> Self {
        let (one, other) = pair();
        let mut worker = one.connect_tls(tls::client(None).unwrap(), "127.0.0.1").unwrap();
        let mut server = other.accept_tls(tls::server(None).unwrap()).unwrap();
        while !(worker.is_ready().unwrap() & server.is_ready().unwrap()) {}
        // The server's tickets, which are not application bytes.
        while wait(&worker, Interest { read: true, write: false }, Duration::from_millis(2)) {
            assert_eq!(worker.read(&mut [IoSliceMut::new(&mut [0; 64])]).unwrap(), Got::Nothing);
        }
        Self([Some(worker), Some(server)])
    }

    fn end(&mut self, at: usize) -> &mut Stream {
        self.0[at].as_mut().unwrap()
    }

    fn wait(&mut self, at: usize, interest: Interest, longest: Duration) -> bool {
        wait(self.end(at), interest, longest)
    }

    fn close(&mut self, at: usize) {
        self.0[at] = None;
    }

    /// Something on the way sends two records that the other end did not.
    fn cut(&mut self, at: usize) {
        let record = [&[0x17, 3, 3, 0, 32][..], &[0; 32]].concat();
        for _ in 0..2 {
            self.end(1 - at).socket().write_all(&record).unwrap();
        }
    }
}

suite::conformance!(tcp, crate::Tcp);
suite::conformance!(tls_1_3, crate::Tls);
suite::conformance!(slow_by_a_few_bytes, [Option<crate::slow::Slow>; 2]);
