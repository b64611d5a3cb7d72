//! What comes: strangers, their proofs, and workers that say hello.

use super::{Answered, Control, LISTENER, Last, MAX_STRANGERS, RETURN_WITHIN_MS, last_word, refuse};
use crate::limits::lacking;
use crate::server::client::{Channel, Client, Unsent, Worker};
use crate::server::others;
use crate::server::proof::Proof;
use crate::server::shard::Command;
use crate::thread::bell;
use penstock_fabric::layout::page;
use penstock_fabric::net::stream::Stream;
use penstock_fabric::region::{Mapping, Region, Writers};
use penstock_fabric::socket::Listener;
use penstock_proto::Rank;
use penstock_proto::account::{Charge, Resource};
use penstock_proto::error::{JobFailure, Refusal};
use penstock_proto::handshake::Session;
use penstock_proto::membership::Lease;
use penstock_proto::message::{Answer, Ask, Joining, PROTOCOL_VERSION, Reply, Request, Welcome, encode};
use penstock_proto::peer::PeerId;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// Hangs up on a connection that may try again. On the network hanging up says as much by itself.
fn turn_away(mut channel: Channel, proved: bool) {
    match (&channel, proved) {
        (Channel::Remote(_), _) => {}
        (Channel::Local(_), false) => refuse(channel, Refusal::Busy),
        (Channel::Local(_), true) => {
            if let Ok(bytes) = encode(&Reply { id: 0, body: Answer::Refused(Refusal::Busy) }) {
                let _ = channel.send(&bytes, &[]);
            }
        }
    }
}

impl Control {
    pub(super) fn accept(&mut self) {
        match self.listener.as_ref().map(Listener::accept) {
            Some(Ok(connection)) => self.welcome_stranger(Channel::Local(connection)),
            None | Some(Err(Errno::AGAIN | Errno::CONNABORTED)) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "a connection could not be accepted so far");
                self.watch_listener(true);
            }
        }
    }

    /// While there is no descriptor left the listener is not watched: it would ring all the time for the same connection.
    pub(super) fn watch_listener(&mut self, full: bool) {
        if self.full == full {
            return;
        }
        self.full = full;
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, !full);
        if let Some(listener) = &self.listener {
            let _ = epoll::modify(&self.epoll, listener, epoll::EventData::new_u64(LISTENER), flags);
        }
    }

    pub(super) fn welcome_stranger(&mut self, channel: Channel) {
        let proof = match &channel {
            Channel::Remote(_) => Proof::Given,
            Channel::Local(connection) if connection.is_own_users() == Ok(true) => Proof::Wanted,
            // Another user of this host, or an unknown one. Nothing of it is read.
            Channel::Local(_) => return refuse(channel, Refusal::Authentication),
        };
        // A peer has one connection at most by which it is told the last word: it takes no stranger's place.
        if self.clients.values().filter(|client| client.is_stranger()).count() >= MAX_STRANGERS {
            self.make_room();
        }
        let token = self.next_client;
        self.next_client += 1;
        let flags = epoll::EventFlags::IN;
        if epoll::add(&self.epoll, &channel, epoll::EventData::new_u64(token), flags).is_ok() {
            let since = self.clock.now();
            self.clients.insert(token, Client { channel, since, proof, peer: None, parting: None });
        }
    }

    /// Makes room for a stranger: the oldest that has not proved that it belongs to the job goes, or else the oldest that has not
    /// said hello.
    fn make_room(&mut self) {
        let strangers = self.clients.iter().filter(|(_, client)| client.is_stranger());
        let oldest = strangers.map(|(token, client)| (client.proof.is_given(), *token)).min();
        oldest.into_iter().for_each(|(_, token)| self.turn_client_away(token));
    }

    /// Hangs up on a stranger, which may come again.
    pub(super) fn turn_client_away(&mut self, token: u64) {
        if let Some(Client { channel, proof, .. }) = self.drop_client(token) {
            turn_away(channel, proof.is_given());
        }
    }

    /// Hears a connection that has not proved that it belongs to the job. `false` if it has, and its message is a request.
    pub(super) fn examine(&mut self, token: u64, words: &[u8]) -> bool {
        let Some(client) = self.clients.get_mut(&token).filter(|client| !client.proof.is_given()) else {
            return false;
        };
        match client.proof.hear(words, self.config.secret) {
            Ok(answer) => self.send(token, &answer, &[]),
            Err(refusal) => {
                if let Some(client) = self.clients.remove(&token) {
                    let _ = epoll::delete(&self.epoll, &client.channel);
                    refuse(client.channel, refusal);
                }
            }
        }
        true
    }

    /// The worker that a peer is, if it has said hello in this session.
    pub(super) fn known(&self, peer: PeerId, session: Session) -> Option<&Worker> {
        let worker = self.rank_of(peer).and_then(|rank| self.workers.get(&rank));
        worker.filter(|worker| worker.session == session)
    }

    /// Passes a peer's connection on to the shard that it is for.
    pub(super) fn attach(&mut self, peer: PeerId, session: Session, shard: u32, stream: Stream, long: bool) {
        let Some(worker) = self.known(peer, session).filter(|worker| worker.is_remote()) else { return };
        if let Some(waiting) = worker.to_shards.get(shard as usize)
            && waiting.put((stream, long))
        {
            self.shards.handles[shard as usize].send(Command::Attach { peer, waiting: waiting.clone() });
        }
    }

    /// Answers a connection that has not said hello, or by which a worker is told its last word.
    pub(super) fn ask_stranger(&mut self, token: u64, request: Request) -> Option<Answered> {
        match (self.clients.get(&token)?.parting, request.body) {
            (Some(peer), Ask::Leave { how }) => self.leave_again(peer, how),
            (Some(_), _) => None,
            (None, Ask::Hello { version, session, peer, size, overlay }) => {
                self.hello(token, request.id, (version, session, peer, size), &overlay).transpose()
            }
            (None, _) => Some(Err(Refusal::Authentication)),
        }
    }

    /// A worker on this host. It has joined once its descriptors are on their way: if the system passes none on it is told so,
    /// and the rank is free for its next try.
    fn hello(
        &mut self,
        token: u64,
        request: u64,
        (version, session, peer, size): (u32, Session, PeerId, u32),
        overlay: &Joining,
    ) -> Result<Option<(Answer, Vec<OwnedFd>)>, Refusal> {
        let rank = self.roster.admit(peer)?;
        let client = self.clients.get(&token).ok_or(Refusal::Authentication)?;
        let Channel::Local(_) = &client.channel else {
            return self.hello_remote(token, (version, session, peer, size), overlay).map(Some);
        };
        if let Some(outcome) = &self.ended {
            self.roster.miss(rank, false);
            return Ok(Some((last_word(outcome)?, Vec::new())));
        }
        if version != PROTOCOL_VERSION {
            return Err(Refusal::ProtocolVersion { expected: PROTOCOL_VERSION, got: version });
        }
        // Before anything is kept for a rank that may not exist.
        self.roster.may_join(peer, size)?;
        let wish = self.trees.judge(rank, overlay)?;
        let shards = self.shards.handles.len() as u32;
        let charge = self.charge_descriptors(rank, shards + 1)?;
        let page = Region::new("penstock-page", page::bytes(shards), Writers::Holders)
            .map_err(lacking("make a page"))?;
        let clone = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let mut descriptors = Vec::with_capacity(shards as usize + 2);
        let mut wakeups = Vec::with_capacity(shards as usize);
        let copied = (|| -> std::io::Result<()> {
            descriptors.push(clone(page.fd())?);
            descriptors.push(clone(self.shards.flags.region().fd())?);
            for _ in 0..shards {
                let wakeup = bell()?;
                descriptors.push(clone(wakeup.as_fd())?);
                wakeups.push(wakeup);
            }
            Ok(())
        })();
        copied.map_err(lacking("pass descriptors"))?;
        let welcome = Self::encode(request, Ok((Answer::Welcome(self.welcome()), Vec::new())));
        let (welcome, _) = welcome.ok_or(Refusal::Authentication)?;
        let beside: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let sent = self.try_send(token, &welcome, &beside);
        if let Err(Unsent::System(errno)) = sent {
            tracing::warn!(rank, %errno, "a worker cannot join: the system does not pass its descriptors on");
            return Err(lacking("pass the descriptors of a worker that joins")(errno));
        }
        // Last, because it cannot be taken back: a rank joins once.
        self.roster.join(peer, size)?;
        self.trees.join(rank, session, wish, false);
        for (shard, wakeup) in self.shards.handles.iter().zip(wakeups) {
            shard.send(Command::Join { peer, page: Arc::clone(page.mapping()), wakeup });
        }
        self.enroll(token, peer, rank, session, Some(Arc::clone(page.mapping())), charge);
        self.conclude(token, sent);
        Ok(None)
    }

    /// A worker on another host, whose connection has proved that it knows the secret: for the first time, or again.
    fn hello_remote(
        &mut self,
        token: u64,
        (version, session, peer, size): (u32, Session, PeerId, u32),
        overlay: &Joining,
    ) -> Answered {
        let rank = self.roster.admit(peer)?;
        if version != PROTOCOL_VERSION {
            return Err(Refusal::ProtocolVersion { expected: PROTOCOL_VERSION, got: version });
        }
        let departed =
            self.departed.get(&peer).filter(|(theirs, _)| *theirs == session).map(|(_, last)| last);
        let here = self.workers.get(&rank).is_some_and(|worker| worker.session == session);
        let word = match (&self.ended, departed) {
            (_, Some(Last::Left)) => Some(Ok(Answer::Welcome(self.welcome()))), // it will say again that it leaves
            (Some(outcome), _) => Some(last_word(outcome)),
            (None, Some(Last::Lost(loss))) => {
                Some(Ok(Answer::Failed(JobFailure::WorkerLost { rank, loss: loss.clone() })))
            }
            (None, None) => None,
        };
        // It has said its last word and is about to hang up: nothing more is heard from it, and its time does not begin again.
        if let (None, Some((_, its))) = (&word, self.hearsay.get(&rank).filter(|_| here)) {
            return Ok((Answer::Failed(its.clone()), Vec::new()));
        }
        if let Some(word) = word {
            self.roster.miss(rank, false);
            if departed.is_some() || here {
                self.part_by(token, peer);
            }
            return word.map(|word| (word, Vec::new()));
        }
        let again = |worker: &&mut Worker| worker.is_remote() && worker.session == session;
        if let Some(worker) = self.workers.get_mut(&rank).filter(again) {
            worker.signs += 1;
            if let Some(old) = worker.client.replace(token) {
                self.drop_client(old);
            }
            self.clients.get_mut(&token).ok_or(Refusal::Authentication)?.peer = Some(peer);
            return Ok((Answer::Welcome(self.welcome()), Vec::new()));
        }
        self.roster.may_join(peer, size)?;
        let wish = self.trees.judge(rank, overlay)?;
        let charge = self.charge_descriptors(rank, self.shards.handles.len() as u32 + 2)?;
        self.roster.join(peer, size)?;
        self.trees.join(rank, session, wish, true);
        for shard in &self.shards.handles {
            shard.send(Command::JoinRemote { peer });
        }
        self.enroll(token, peer, rank, session, None, charge);
        self.table_elsewhere(rank);
        Ok((Answer::Welcome(self.welcome()), Vec::new()))
    }

    /// A peer hears the last word by this connection, and by no other that it made before.
    fn part_by(&mut self, token: u64, peer: PeerId) {
        let others = self.clients.iter().filter(|(_, client)| client.parting == Some(peer));
        let others: Vec<u64> = others.map(|(&other, _)| other).filter(|&other| other != token).collect();
        for other in others {
            self.drop_client(other);
        }
        if let Some(client) = self.clients.get_mut(&token) {
            client.parting = Some(peer);
        }
        let until = self.clock.now() + RETURN_WITHIN_MS;
        self.partings.entry(peer).or_insert(until);
    }

    /// Connections and wake-ups of a worker, for as long as it is here.
    fn charge_descriptors(&self, rank: Rank, count: u32) -> Result<Charge, Refusal> {
        let charge = self.account.worker(rank).charge(Resource::Descriptors, count.into());
        charge.map_err(|why| why.refuse("another worker's connections"))
    }

    fn enroll(
        &mut self,
        token: u64,
        peer: PeerId,
        rank: Rank,
        session: Session,
        page: Option<Arc<Mapping>>,
        descriptors: Charge,
    ) {
        let lease = Lease::new(self.lease_ms(), self.clock.now());
        let shards = self.shards.handles.len();
        let worker = Worker::new(peer, page, session, lease, token, shards, descriptors);
        self.workers.insert(rank, worker);
        if let Some(client) = self.clients.get_mut(&token) {
            client.peer = Some(peer);
        }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            server: self.config.index,
            servers: self.config.servers,
            shards: self.shards.handles.len() as u32,
            chunk_bytes: self.config.options.chunk_bytes,
            lease_ms: self.config.options.lease.as_millis() as u64,
            others: others(&self.config, false),
            key: self.shards.key,
        }
    }
}
