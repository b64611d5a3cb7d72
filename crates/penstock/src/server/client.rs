//! Who is at the other end of a control connection.

use super::arrivals::Newest;
use super::proof::Proof;
use crate::wire::Ended;
use crate::wire::records::RecordStream;
use penstock_fabric::layout::{Count, page};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::region::Mapping;
use penstock_fabric::socket::Connection;
use penstock_fabric::sync::Ordering;
use penstock_proto::account::Charge;
use penstock_proto::error::Loss;
use penstock_proto::handshake::Session;
use penstock_proto::membership::Lease;
use penstock_proto::message::MAX_MESSAGE_BYTES;
use penstock_proto::peer::PeerId;
use penstock_proto::request::Answers;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::sync::Arc;

/// How messages come and go.
pub(super) enum Channel {
    /// From this host: a Unix socket.
    Local(Connection),
    /// From another: a stream of records.
    Remote(Box<RecordStream>),
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Local(connection) => connection.as_fd(),
            Self::Remote(records) => records.stream().as_fd(),
        }
    }
}

/// What a look at a channel brought.
pub(super) enum Received {
    Message(Vec<u8>),
    Nothing,
    End(Loss),
}

/// What becomes of a worker whose connection is over: one that only broke may be made again.
fn loss(ended: Ended) -> Loss {
    match ended {
        Ended::Connection(_) => Loss::Died,
        Ended::Peer(what) => Loss::Broke { what },
        Ended::Exhausted { what, why } => Loss::Exhausted { what: what.to_owned(), why },
    }
}

/// Why a message did not go.
#[derive(Debug, PartialEq)]
pub(super) enum Unsent {
    /// Because of what the worker did: it is lost.
    Lost(Loss),
    /// Because the system has run out of something, which is not the worker's fault.
    System(Errno),
}

impl From<Errno> for Unsent {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Lost(Loss::Died),
            Errno::AGAIN => Self::Lost(Loss::Broke { what: "it does not read its answers".to_owned() }),
            errno => Self::System(errno),
        }
    }
}

/// Takes one message. A worker that hangs up while an answer lies unread resets the connection, and the reset is told before
/// what it said last: that is read all the same.
fn take(connection: &Connection, buffer: &mut [u8; MAX_MESSAGE_BYTES]) -> rustix::io::Result<usize> {
    match connection.receive(buffer, RecvFlags::DONTWAIT) {
        Err(Errno::CONNRESET) => connection.receive(buffer, RecvFlags::DONTWAIT),
        received => received,
    }
}

impl Channel {
    /// Its peer was let in, or had been and is told how that ended: its messages may be as long as any.
    pub(super) fn let_in(&mut self) {
        if let Self::Remote(records) = self {
            records.set_limit(MAX_MESSAGE_BYTES);
        }
    }

    pub(super) fn receive(&mut self, buffer: &mut [u8; MAX_MESSAGE_BYTES]) -> Received {
        match self {
            Self::Local(connection) => match take(connection, buffer) {
                Ok(0) => Received::End(Loss::Died),
                Ok(length) => Received::Message(buffer[..length].to_vec()),
                Err(Errno::AGAIN) => Received::Nothing,
                Err(Errno::MSGSIZE) => Received::End(Loss::Broke { what: "an oversized message".to_owned() }),
                Err(_) => Received::End(Loss::Died),
            },
            Self::Remote(records) => {
                match records.flush().map_err(Ended::from).and_then(|_| records.receive()) {
                    Ok(Some(message)) => Received::Message(message),
                    Ok(None) => Received::Nothing,
                    Err(ended) => Received::End(loss(ended)),
                }
            }
        }
    }

    /// Sends without waiting. A worker that does not read its answers is lost; one whose connection has ended may return.
    pub(super) fn send(&mut self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Unsent> {
        match self {
            Self::Local(connection) => {
                connection.send(message, descriptors, SendFlags::DONTWAIT).map_err(Unsent::from)
            }
            Self::Remote(records) => records.send(message).map_err(|ended| Unsent::Lost(loss(ended))),
        }
    }
}

/// A connection.
pub(super) struct Client {
    pub(super) channel: Channel,
    /// When it came, or its worker was let go, as the control thread counts milliseconds.
    pub(super) since: u64,
    /// Whether it has proved that it knows the job's secret. Before, nothing else is heard.
    pub(super) proof: Proof,
    /// The peer at the other end; `None` before it has said hello.
    pub(super) peer: Option<PeerId>,
    /// The peer that is told the last word by this connection: it has left, or the job has failed.
    pub(super) parting: Option<PeerId>,
}

impl Client {
    /// Whether it has not said hello.
    pub(super) fn is_stranger(&self) -> bool {
        self.peer.is_none() && self.parting.is_none()
    }
}

/// A worker that has joined and not left.
pub(super) struct Worker {
    pub(super) peer: PeerId,
    /// Its page; `None` for a worker on another host.
    page: Option<Arc<Mapping>>,
    pub(super) session: Session,
    lease: Lease,
    /// Messages that came from another host.
    pub(super) signs: u64,
    /// The request that stands at the barrier.
    pub(super) at_barrier: Option<u64>,
    /// The request to be let go, and how many shards have taken all that the worker submitted.
    pub(super) leaving: Option<u64>,
    pub(super) departed: usize,
    /// How its process ended, and how many connections that carry what it did have not.
    pub(super) ending: Option<(String, usize)>,
    /// Its connection; `None` while a worker on another host has none.
    pub(super) client: Option<u64>,
    /// What it may have to be told again.
    pub(super) answers: Answers,
    /// Its connections that wait for each shard, with whether their round trips are long, and for the thread that passes rows on.
    pub(super) to_shards: Vec<Newest<(Stream, bool)>>,
    pub(super) to_items: Newest<Stream>,
    /// What its connections and wake-ups were charged.
    _charge: Charge,
}

impl Worker {
    pub(super) fn new(
        peer: PeerId,
        page: Option<Arc<Mapping>>,
        session: Session,
        lease: Lease,
        client: u64,
        shards: usize,
        charge: Charge,
    ) -> Self {
        let (answers, client) = (Answers::default(), Some(client));
        Self {
            peer,
            page,
            session,
            lease,
            signs: 0,
            at_barrier: None,
            leaving: None,
            departed: 0,
            ending: None,
            client,
            answers,
            to_shards: std::iter::repeat_with(Newest::default).take(shards).collect(),
            to_items: Newest::default(),
            _charge: charge,
        }
    }

    pub(super) fn is_remote(&self) -> bool {
        self.page.is_none()
    }

    /// Whether no sign of life came for a whole lease.
    pub(super) fn is_silent(&mut self, now_ms: u64) -> bool {
        let sign = match &self.page {
            Some(page) => page.at::<Count>(page::HEARTBEAT).0.load(Ordering::Relaxed),
            None => self.signs,
        };
        self.lease.has_ended(sign, now_ms)
    }

    /// Keeps an answer for a worker that may have to ask again. `false`: it leaves more of them open than any honest worker.
    pub(super) fn keep_answer(&mut self, request: u64, bytes: &[u8]) -> bool {
        !self.is_remote() || self.answers.keep(request, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_has_no_more_of_is_not_blamed_on_who_asked() {
        for errno in [Errno::TOOMANYREFS, Errno::NOBUFS, Errno::NOMEM, Errno::MFILE] {
            assert_eq!(Unsent::from(errno), Unsent::System(errno));
        }
    }

    // Why it failed was never heard: it had died.
    #[test]
    fn what_a_worker_says_last_is_heard_though_it_has_left_an_answer_unread() {
        let (ours, theirs) = Connection::pair().unwrap();
        let (mut channel, mut buffer) = (Channel::Local(ours), Box::new([0; MAX_MESSAGE_BYTES]));
        channel.send(b"answer", &[]).unwrap();
        theirs.send(b"farewell", &[], SendFlags::empty()).unwrap();
        drop(theirs);
        assert!(matches!(channel.receive(&mut buffer), Received::Message(words) if words == b"farewell"));
        assert!(matches!(channel.receive(&mut buffer), Received::End(Loss::Died)));
    }

    #[test]
    fn who_reads_no_answer_is_lost_for_that() {
        let (ours, theirs) = Connection::pair().unwrap();
        let mut channel = Channel::Local(ours);
        let unsent = std::iter::repeat_with(|| channel.send(&[7; 4096], &[])).find_map(Result::err);
        assert!(matches!(unsent, Some(Unsent::Lost(Loss::Broke { .. }))), "{unsent:?}");
        drop(theirs);
        assert_eq!(channel.send(b"answer", &[]), Err(Unsent::Lost(Loss::Died)));
    }
}
