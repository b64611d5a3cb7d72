//! Who comes in at a worker's door: workers of the same job that are to be fed what this one is sent.

use super::super::lock;
use super::super::proxy::{Command, Entrance};
use super::Proxies;
use crate::thread::Teller;
use crate::uplink::Uplink;
use crate::wire::acceptor::{Arrival, Behind};
use crate::worker::fate::Fate;
use penstock_fabric::net::link::Link as _;
use penstock_fabric::net::remote_shard::NewChild;
use penstock_fabric::net::stream::Traffic;
use penstock_proto::Rank;
use penstock_proto::error::{JobFailure, Refusal};
use penstock_proto::handshake::Purpose;
use penstock_proto::message::{Secret, Session};
use penstock_proto::overlay::Pass;
use penstock_proto::uplink::To;
use std::sync::Arc;

/// Most connections that a proxy was told of since it last took what it was told. For one more there is no room: whoever connects
/// is fed by its server until it has another parent.
const MOST: usize = 64;

/// A proxy, as the doors know it.
pub(super) struct Proxy {
    pub(super) teller: Teller<Command>,
    entrance: Entrance,
    /// Connections that it may not have taken so far.
    waiting: usize,
}

impl Proxy {
    pub(super) fn new(teller: Teller<Command>, entrance: Entrance) -> Self {
        Self { teller, entrance, waiting: 0 }
    }

    /// Whether it may be told of one more connection.
    fn has_room(&mut self) -> bool {
        if self.teller.is_heard() {
            self.waiting = 0;
        }
        self.waiting < MOST
    }
}

/// What is behind a worker's door.
pub(super) struct Children {
    pub(super) rank: Rank,
    /// By which it knows its children.
    pub(super) session: Session,
    /// Workers of the job.
    pub(super) size: u32,
    pub(super) proxies: Proxies,
    pub(super) fate: Arc<Fate>,
    /// What their connections add to.
    pub(super) traffic: Arc<Traffic>,
    /// Where what they lead to is measured.
    pub(super) uplink: Arc<Uplink>,
}

fn refuse(what: String) -> Result<(), Refusal> {
    Err(Refusal::Malformed { what })
}

impl Behind for Children {
    fn outcome(&self) -> Option<Result<(), JobFailure>> {
        self.fate.is_over().then(|| self.fate.failure().map_or(Ok(()), Err))
    }

    fn secret(&self, purpose: &Purpose, of_job: Secret) -> Secret {
        match *purpose {
            Purpose::Relay { child, server, .. } => Pass::new(&self.session, server, child).secret(&of_job),
            _ => of_job,
        }
    }

    fn may_enter(&self, purpose: &Purpose) -> Result<(), Refusal> {
        let &Purpose::Relay { child, server, shard, stripes, .. } = purpose else {
            return refuse(format!("worker {} takes in only workers that it feeds", self.rank));
        };
        if child >= self.size {
            return Err(Refusal::RankOutOfRange { rank: child, size: self.size });
        }
        if child == self.rank || stripes.is_empty() {
            return refuse(format!("worker {} feeds others, and some stripes", self.rank));
        }
        let mut proxies = lock(&self.proxies);
        let Some(proxy) = proxies.get_mut(&(server, shard)) else {
            return refuse(format!(
                "worker {} is sent nothing by shard {shard} of server {server}",
                self.rank
            ));
        };
        if proxy.has_room() { Ok(()) } else { Err(Refusal::Busy) }
    }

    fn enter(&self, Arrival { stream, purpose, .. }: Arrival) {
        let Purpose::Relay { child, server, shard, striping, stripes, rendezvous } = purpose else { return };
        if let Some(proxy) = lock(&self.proxies).get_mut(&(server, shard)) {
            proxy.waiting += 1;
            let stream = stream.counted(Arc::clone(&self.traffic));
            stream.send_evenly();
            self.uplink.watch(&stream, To::Child(child));
            // One that has ended takes nobody in.
            let _ =
                proxy.entrance.send(NewChild { rank: child, striping, stripes, rendezvous, link: stream });
            proxy.teller.send(Command::Child { rank: child, stripes, rendezvous });
        }
    }
}
