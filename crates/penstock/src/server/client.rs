//! Who is at the other end of a control connection.

use super::proof::Proof;
use crate::wire::records::RecordStream;
use penstock_fabric::layout::{Count, page};
use penstock_fabric::region::Mapping;
use penstock_fabric::socket::Connection;
use penstock_fabric::sync::Ordering;
use penstock_proto::Rank;
use penstock_proto::handshake::Session;
use penstock_proto::membership::Lease;
use penstock_proto::message::MAX_MESSAGE_BYTES;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Answers kept for a worker that may connect again. It has no more requests open at once than it has threads.
const KEPT: usize = 64;

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
    End,
    Oversized,
}

impl Channel {
    pub(super) fn receive(&mut self, buffer: &mut [u8; MAX_MESSAGE_BYTES]) -> Received {
        match self {
            Self::Local(connection) => match connection.receive(buffer, RecvFlags::DONTWAIT) {
                Ok(0) => Received::End,
                Ok(length) => Received::Message(buffer[..length].to_vec()),
                Err(Errno::AGAIN) => Received::Nothing,
                Err(Errno::MSGSIZE) => Received::Oversized,
                Err(_) => Received::End,
            },
            Self::Remote(records) => match records.flush().and_then(|_| records.receive()) {
                Ok(Some(message)) => Received::Message(message),
                Ok(None) => Received::Nothing,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => Received::Oversized,
                Err(_) => Received::End,
            },
        }
    }

    /// Sends without waiting.
    pub(super) fn send(&mut self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self {
            Self::Local(connection) => Ok(connection.send(message, descriptors, SendFlags::DONTWAIT)?),
            Self::Remote(records) => records.send(message),
        }
    }
}

/// A connection.
pub(super) struct Client {
    pub(super) channel: Channel,
    pub(super) since: Instant,
    /// Whether it has proved that it knows the job's secret. Before, nothing else is heard.
    pub(super) proof: Proof,
    /// Whose it is; `None` before it has said hello.
    pub(super) rank: Option<Rank>,
}

/// A worker that has joined and not left.
pub(super) struct Worker {
    /// Its page; `None` for a worker on another host.
    page: Option<Arc<Mapping>>,
    pub(super) session: Session,
    lease: Lease,
    /// Messages that came from another host.
    pub(super) signs: u64,
    /// The request that stands at the barrier.
    pub(super) at_barrier: Option<u64>,
    /// Its connection; `None` while a worker on another host has none.
    pub(super) client: Option<u64>,
    answers: VecDeque<(u64, Vec<u8>)>,
}

impl Worker {
    pub(super) fn new(page: Option<Arc<Mapping>>, session: Session, lease: Lease, client: u64) -> Self {
        let (answers, client) = (VecDeque::new(), Some(client));
        Self { page, session, lease, signs: 0, at_barrier: None, client, answers }
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

    /// The answer that was given to a request, if it was answered before.
    pub(super) fn answered(&self, request: u64) -> Option<Vec<u8>> {
        self.answers.iter().find(|(id, _)| *id == request).map(|(_, bytes)| bytes.clone())
    }

    /// Keeps an answer for a worker that may have to ask again.
    pub(super) fn keep_answer(&mut self, request: u64, bytes: &[u8]) {
        if self.is_remote() {
            if self.answers.len() == KEPT {
                self.answers.pop_front();
            }
            self.answers.push_back((request, bytes.to_vec()));
        }
    }
}
