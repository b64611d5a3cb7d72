//! A server's [acceptor](crate::wire::acceptor): the jobs behind it, and how they share the network.

use super::fair_share::Shares;
use super::{Order, Shared, StartError};
use crate::options::Options;
use crate::wire::acceptor::{AT_SERVERS, Acceptor as Entrance, Arrival, Behind};
use penstock_fabric::net::endpoint::Address;
use penstock_proto::error::{JobFailure, Refusal};
use penstock_proto::handshake::Purpose;
use penstock_proto::message::Secret;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The acceptor.
#[derive(Debug)]
pub(crate) struct Acceptor {
    entrance: Entrance,
    shares: Arc<Shares>,
}

impl Acceptor {
    /// Listens on these addresses, and lets no connection in before it [is open](Self::open).
    pub(crate) fn new(listen: &[Address], options: &Options) -> Result<Self, StartError> {
        Ok(Self { entrance: Entrance::new(listen, options, AT_SERVERS)?, shares: Arc::default() })
    }

    /// Lets in workers of its jobs, from now on until it is dropped.
    pub(crate) fn open(&self) {
        self.entrance.open();
    }

    /// Where it listens.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        self.entrance.addresses()
    }

    /// How what is behind it shares the network.
    pub(super) fn shares(&self) -> &Arc<Shares> {
        &self.shares
    }

    /// Lets a job's workers in from now on; `false` if a job of this name is there.
    pub(super) fn admit(
        &self,
        name: &str,
        secret: Secret,
        orders: Sender<Order>,
        control: Arc<Shared>,
    ) -> bool {
        self.entrance.admit(name, secret, Arc::new(ToControl { orders, control }))
    }

    /// Lets no worker of this job in any more.
    pub(super) fn dismiss(&self, name: &str) {
        self.entrance.dismiss(name);
    }
}

/// The way to a job's control thread.
struct ToControl {
    orders: Sender<Order>,
    control: Arc<Shared>,
}

impl Behind for ToControl {
    fn outcome(&self) -> Option<Result<(), JobFailure>> {
        self.control.outcome()
    }

    fn may_enter(&self, purpose: &Purpose) -> Result<(), Refusal> {
        match purpose {
            Purpose::Control | Purpose::Shard { .. } | Purpose::Items { .. } => Ok(()),
            Purpose::Relay { .. } => {
                Err(Refusal::Malformed { what: "only workers pass on what they are sent".to_owned() })
            }
        }
    }

    fn enter(&self, arrival: Arrival) {
        let arrivals = &self.control.arrivals;
        let more = arrivals.put(arrival);
        if more && self.orders.send(Order::Enter).is_err() {
            // The control thread has ended, and may have closed before this came what waited for it.
            arrivals.clear();
        }
        self.control.wakeup.ring();
    }
}
