//! Shares: how jobs behind one door share the network.
//!
//! TCP shares a link fairly among connections, so the job with the most connections would get the most. What a connection may
//! have under way is bounded by its buffers, and connections that queue at one bottleneck get rates in proportion to what they
//! have under way: so where several jobs are connected, each connection's buffers are sized such that the *sums* of the jobs
//! are in proportion to their shares. No rate has to be known or measured, a job that is idle costs the others nothing, and a
//! worker that does not play along cannot change it: its receive window and the server's send buffer are the server's.
//!
//! A job that is alone keeps the kernel's own sizing.

use crate::server::remote::Buffers;
use penstock_fabric::net::stream::Stream;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffer of the connection with the largest share: what Linux lets any process ask for (net.core.rmem_max, wmem_max).
const LARGEST: f64 = 208.0 * 1024.0;
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

    /// Bytes of each buffer of a connection of this job; `None` while no other job is connected.
    pub(super) fn buffer(&self, job: u64) -> Option<usize> {
        let tenants = self.tenants();
        let connected = || tenants.values().filter(|tenant| tenant.connections > 0);
        let each = |tenant: &Tenant| tenant.share / f64::from(tenant.connections);
        if connected().count() < 2 {
            return None;
        }
        let own = tenants.get(&job).filter(|tenant| tenant.connections > 0)?;
        let most = connected().map(each).fold(0.0, f64::max);
        Some((LARGEST * each(own) / most).max(LEAST) as usize)
    }
}

/// One job's place among the tenants, as its shards know it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) shares: std::sync::Arc<Shares>,
    pub(super) job: u64,
}

/// Sizes a connection's buffers; `None`: as large as anyone may have them.
pub(super) fn apply(stream: &Stream, buffer: Option<usize>) -> Buffers {
    use rustix::net::sockopt;
    let bytes = buffer.unwrap_or(LARGEST as usize);
    let set = sockopt::set_socket_recv_buffer_size(stream, bytes)
        .and_then(|()| sockopt::set_socket_send_buffer_size(stream, bytes));
    if let Err(error) = set {
        tracing::warn!(%error, "a connection's buffers stay as they are");
    }
    Buffers(buffer)
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
        assert_eq!(shares.buffer(1), None, "it is alone");
        shares.count(2, 8);
        let (modest, greedy) = (shares.buffer(1).unwrap(), shares.buffer(2).unwrap());
        assert_eq!(2 * modest, 8 * greedy);
        shares.count(2, -8);
        assert_eq!(shares.buffer(1), None, "and is again");
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
