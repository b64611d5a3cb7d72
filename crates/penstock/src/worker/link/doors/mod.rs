//! A worker's doors: where others come in that it passes values on to, and from where it goes to those that feed it.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the door, which is opened when the worker joins its first server on another host |
//! | [`children`] | who comes in, and to which proxy it is led |
//! | [`dialing`] | the thread that dials parents, one after the other |
//!
//! What is passed on, and to whom, is the proxies' affair. A worker whose servers send to each worker themselves has no doors.

mod children;
mod dialing;

use super::lock;
use super::proxy::{Command, Entrance};
use crate::options::Options;
use crate::server::StartError;
use crate::thread::Teller;
use crate::uplink::Uplink;
use crate::wire::acceptor::{AT_WORKERS, Acceptor};
use crate::wire::dial::Dialer;
use crate::worker::Error;
use crate::worker::fate::Fate;
use children::Children;
use dialing::Dialing;
use penstock_fabric::net::endpoint::Address;
use penstock_fabric::net::stream::Stream;
use penstock_proto::Rank;
use penstock_proto::message::{Joining, Secret, Session};
use penstock_proto::overlay::lending::Rendezvous;
use penstock_proto::overlay::{Pass, Shape, Stripes};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// A proxy's wish for a connection to one that feeds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::worker::link) struct Request {
    /// Whose proxy asks: the server, and the shard among those of its server.
    pub(in crate::worker::link) server: u32,
    pub(in crate::worker::link) shard: u32,
    /// The route's number, which the answer repeats.
    pub(in crate::worker::link) epoch: u32,
    /// The parent, where it takes children in, and by what it knows this one.
    pub(in crate::worker::link) rank: Rank,
    pub(in crate::worker::link) address: SocketAddr,
    pub(in crate::worker::link) pass: Pass,
    /// Which cut into stripes, and what it is to feed.
    pub(in crate::worker::link) striping: u32,
    pub(in crate::worker::link) stripes: Stripes,
    /// This worker's rank.
    pub(in crate::worker::link) child: Rank,
    /// Where the parent lends to it, if it is of this host.
    pub(in crate::worker::link) rendezvous: Option<Rendezvous>,
    /// How many parents its proxy is to have.
    pub(in crate::worker::link) parents: usize,
}

/// The proxies of a worker by server and shard, as far as they have started.
type Proxies = Arc<Mutex<BTreeMap<(u32, u32), children::Proxy>>>;

/// The doors of one worker. They close when the last proxy that has them ends, and so with the job.
pub(in crate::worker::link) struct Doors {
    address: SocketAddr,
    proxies: Proxies,
    dialing: Dialing,
    /// What this host's link carries, as far as this worker uses it.
    uplink: Arc<Uplink>,
    /// Dropped last: it waits for its thread.
    _acceptor: Acceptor,
}

impl Doors {
    /// Opens a door at an address of this host, of which `dialer` has reached a server.
    fn open(who: &Newcomer<'_>, at: SocketAddr, dialer: &Dialer) -> Result<Self, StartError> {
        let listen = Address { host: at.ip().to_canonical().to_string(), port: 0 };
        let acceptor = Acceptor::new(&[listen], who.options, AT_WORKERS)?;
        let address = acceptor.addresses()[0];
        let (proxies, uplink) = (Proxies::default(), Arc::new(Uplink::new()));
        let children = Children {
            rank: who.rank,
            session: who.session,
            size: who.size,
            proxies: Arc::clone(&proxies),
            fate: Arc::clone(who.fate),
            traffic: Arc::clone(dialer.traffic()),
            uplink: Arc::clone(&uplink),
        };
        acceptor.admit(dialer.job(), who.secret, Arc::new(children));
        acceptor.open();
        let dialer = dialer.by(Address { host: address.ip().to_string(), port: address.port() });
        let dialing = Dialing::new(who.rank, dialer, Arc::clone(&proxies), Arc::clone(who.fate));
        Ok(Self { address, proxies, dialing, uplink, _acceptor: acceptor })
    }

    /// Where others come in.
    pub(in crate::worker::link) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Measures this host's link: what is told to servers.
    pub(in crate::worker::link) fn uplink(&self) -> &Uplink {
        &self.uplink
    }

    /// From now on children of this shard's are led to its proxy, and the proxy hears of parents that it asks for.
    pub(in crate::worker::link) fn lead_to(
        &self,
        server: u32,
        shard: u32,
        (proxy, entrance): (Teller<Command>, Entrance),
    ) {
        lock(&self.proxies).insert((server, shard), children::Proxy::new(proxy, entrance));
    }

    /// Dials a parent, which the proxy hears of as [`Command::Parent`]: returns at once. A newer request of a proxy takes the place
    /// of those before it that have any stripe in common with it, of which it hears nothing more.
    pub(in crate::worker::link) fn dial(&self, request: Request) {
        self.dialing.dial(request);
    }
}

/// How values are to come to a worker that joins, and its doors once it has any.
pub(in crate::worker) struct Threshold {
    tree: Shape,
    rack: String,
    rate: u64,
    /// `None` before the first server on another host was reached, `Some(None)` where no door could be opened.
    doors: Mutex<Option<Option<Arc<Doors>>>>,
}

/// What a door needs to know of its worker.
pub(in crate::worker) struct Newcomer<'a> {
    pub(in crate::worker) options: &'a Options,
    pub(in crate::worker) secret: Secret,
    pub(in crate::worker) session: Session,
    pub(in crate::worker) rank: Rank,
    pub(in crate::worker) size: u32,
    pub(in crate::worker) fate: &'a Arc<Fate>,
}

impl Threshold {
    pub(in crate::worker) fn new(options: &Options) -> Self {
        let (rack, rate) = (options.rack.to_string(), options.rate.0);
        Self { tree: options.tree, rack, rate, doors: Mutex::default() }
    }

    /// Its doors, if it has any.
    pub(in crate::worker::link) fn doors(&self) -> Option<Arc<Doors>> {
        lock(&self.doors).clone().flatten()
    }

    /// What the worker says of itself to a server.
    pub(in crate::worker::link) fn joining(&self) -> Joining {
        if self.tree == Shape::Star {
            return Joining::default();
        }
        let door = self.doors().map(|doors| doors.address());
        Joining { tree: self.tree.to_string(), door, rack: self.rack.clone(), rate: self.rate }
    }

    /// The same to a server on another host, which this connection has reached. For the first of them the door is opened, at the
    /// address by which this host has reached it. A worker that cannot open one passes nothing on, and takes part like any other.
    pub(in crate::worker::link) fn joining_by(
        &self,
        stream: &Stream,
        dialer: &Dialer,
        who: &Newcomer<'_>,
    ) -> Result<Joining, Error> {
        if self.tree != Shape::Star && lock(&self.doors).is_none() {
            let doors = self.open(stream, dialer, who)?;
            *lock(&self.doors) = Some(doors.map(Arc::new));
        }
        Ok(self.joining())
    }

    fn open(&self, stream: &Stream, dialer: &Dialer, who: &Newcomer<'_>) -> Result<Option<Doors>, Error> {
        let rank = who.rank;
        if who.options.ca.is_some() && who.options.certificate.is_none() {
            tracing::warn!(
                rank,
                "this worker passes nothing on: with the option `ca` others trust it only with a `certificate` and a `key`"
            );
            return Ok(None);
        }
        let opened = match stream.socket().local_addr() {
            Ok(at) => Doors::open(who, at, dialer),
            Err(error) => Err(StartError::system("ask for an address")(error)),
        };
        match opened {
            Ok(doors) => Ok(Some(doors)),
            Err(error @ (StartError::Tls(_) | StartError::HalfCertificate)) => Err(error.into()),
            Err(error) => {
                tracing::warn!(rank, %error, "this worker passes nothing on: it could not open a door for others");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests;
