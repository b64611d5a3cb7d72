//! Shares: how connections behind one door share the network.
//!
//! What a connection may have under way is bounded by its buffers. Left to the kernel, each grows to megabytes, and many workers
//! that send to one server overflow the queue before its link: what is lost there is sent again, after a pause (the incast of
//! Vasudevan et al., 2009). And TCP shares a link fairly among connections, so the job with the most connections would get
//! the most. Connections that queue at one bottleneck get rates in proportion to what they have under way, so both are
//! mended alike: all connections together have [`TOTAL`] under way, and each job the part of it that is its share.
//!
//! No rate has to be known or measured, a job that is not connected costs the others nothing, and a worker that does not play
//! along cannot change it: its receive window and the server's send buffer are the server's. A connection with a long round
//! trip ([`LONG`]) needs more under way than that, and one of the loopback has no queue to overflow: they are left to the kernel.

use penstock_fabric::net::stream::Stream;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that all connections together may have under way, each way: half of a small switch's queue, and as much as a link
/// of 100 Gbit/s with a round trip of 80 microseconds holds.
const TOTAL: f64 = 1024.0 * 1024.0;
/// Largest buffer: what Linux lets any process ask for (net.core.rmem_max, wmem_max).
const LARGEST: f64 = 208.0 * 1024.0;
/// Round trips from here on are long.
pub(crate) const LONG: Duration = Duration::from_millis(5);
/// No connection gets less: a chunk must get through.
const LEAST: f64 = 16.0 * 1024.0;

#[derive(Debug, Clone, Copy)]
struct Tenant {
    share: f64,
    connections: u32,
}

/// The jobs behind one door, and their connections.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    tenants: Mutex<HashMap<u64, Tenant>>,
    /// Counts changes: who has seen this one has applied it.
    generation: AtomicU64,
}

impl Shares {
    fn tenants(&self) -> MutexGuard<'_, HashMap<u64, Tenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job with this share, above 0.
    pub(crate) fn admit(&self, job: u64, share: f64) {
        self.tenants().insert(job, Tenant { share, connections: 0 });
        self.changed();
    }

    /// The job has gone.
    pub(crate) fn dismiss(&self, job: u64) {
        self.tenants().remove(&job);
        self.changed();
    }

    /// A connection came (+1) or went (-1).
    pub(super) fn count(&self, job: u64, difference: i32) {
        if let Some(tenant) = self.tenants().get_mut(&job) {
            tenant.connections = tenant.connections.saturating_add_signed(difference);
        }
        self.changed();
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Which change was the last.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Bytes of each buffer of a connection of this job.
    pub(super) fn buffer(&self, job: u64) -> Option<usize> {
        let tenants = self.tenants();
        let connected = || tenants.values().filter(|tenant| tenant.connections > 0);
        let all: f64 = connected().map(|tenant| tenant.share).sum();
        let each = |tenant: &Tenant| TOTAL * tenant.share / all / f64::from(tenant.connections);
        let own = tenants.get(&job).filter(|tenant| tenant.connections > 0)?;
        // Where one job's would be larger than may be, all shrink alike: the proportions are what counts.
        let most = connected().map(each).fold(0.0, f64::max);
        Some((each(own) * (LARGEST / most).min(1.0)).max(LEAST) as usize)
    }
}

/// One job's place among the tenants, as its shards know it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) shares: std::sync::Arc<Shares>,
    pub(super) job: u64,
}

/// Sizes a connection's buffers.
pub(super) fn apply(stream: &Stream, bytes: usize) {
    use rustix::net::sockopt;
    let set = sockopt::set_socket_recv_buffer_size(stream, bytes)
        .and_then(|()| sockopt::set_socket_send_buffer_size(stream, bytes));
    if let Err(error) = set {
        tracing::warn!(%error, "a connection's buffers stay as they are");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_with_equal_shares_have_as_much_under_way_whatever_their_connections() {
        let shares = Shares::default();
        shares.admit(1, 1.0);
        shares.admit(2, 1.0);
        shares.count(1, 2);
        assert_eq!(shares.buffer(1), Some(LARGEST as usize), "it is alone");
        shares.count(2, 8);
        let (modest, greedy) = (shares.buffer(1).unwrap(), shares.buffer(2).unwrap());
        assert_eq!(2 * modest, 8 * greedy);
        shares.count(2, -8);
        assert_eq!(shares.buffer(1), Some(LARGEST as usize), "and is again");
        assert_eq!(shares.buffer(2), None);
    }

    #[test]
    fn many_connections_have_no_more_under_way_than_few() {
        let shares = Shares::default();
        shares.admit(1, 1.0);
        for connections in [1, 7, 24] {
            shares.count(1, connections);
            let total = shares.buffer(1).unwrap() * connections as usize;
            assert!(total <= TOTAL as usize, "{total} of {connections} connections");
            shares.count(1, -connections);
        }
    }

    #[test]
    fn a_larger_share_is_a_larger_sum() {
        let shares = Shares::default();
        shares.admit(1, 0.75);
        shares.admit(2, 0.25);
        shares.count(1, 2);
        shares.count(2, 2);
        assert_eq!(shares.buffer(1).unwrap(), 3 * shares.buffer(2).unwrap());
    }
}
