//! Fair shares: how connections behind one acceptor share the network.
//!
//! What a connection may have under way is bounded by its buffers. Left to the kernel, each grows to megabytes, and many workers
//! that send to one server overflow the queue before its link: what is lost there is sent again, after a pause (the incast of
//! Vasudevan et al., 2009). And TCP shares a link fairly among connections, so the job with the most connections would get the
//! most. Connections that queue at one bottleneck get rates in proportion to what they have under way, so both are mended in the
//! same way: all connections together have [`TOTAL`] under way, and each job the part of it that is its share.
//!
//! The bytes under way are what is set; what each job gets by it is measured ten times a second. A job that computes between
//! exchanges, or has few connections, is not under way all the time and would get less than its part of a full link: as long as
//! the link is full (all together move nearly as much as they did lately), jobs above their shares shrink and those below grow;
//! when it is not, no job is in another's way, and the corrections fade. So correcting never costs more than the margin.
//!
//! No rate has to be known, a job that is not connected costs the others nothing, and a worker that does not play
//! along cannot change it: its receive window and the server's send buffer are the server's. A connection with a long round
//! trip ([`LONG`]) needs more under way than that, and one of the loopback has no queue to overflow: they are left to the kernel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that all connections together may have under way, each way: half of a small switch's queue, and as much as a link
/// of 100 Gbit/s with a round trip of 80 microseconds holds.
const TOTAL: f64 = 1024.0 * 1024.0;
/// Largest buffer: what Linux lets any process ask for (net.core.rmem_max, wmem_max).
const LARGEST: f64 = 208.0 * 1024.0;
/// Round trips from here on are long.
pub(crate) const LONG: Duration = Duration::from_millis(5);
/// No connection gets less where its job is alone: a chunk must get through.
const LEAST: f64 = 16.0 * 1024.0;
/// No connection gets less beside another job: about what the kernel needs for one packet. So a job keeps to its share with as
/// many connections as this goes into it: 128 where two jobs have equal shares.
const FLOOR: f64 = 4.0 * 1024.0;

/// Time between two looks at what jobs get.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The link counts as full while this part of the most that was moved lately is moved.
const FULL: f64 = 0.95;
/// What is left of that most after each look, so that a slower link is learnt.
const FADE: f64 = 0.995;
/// A job that moves less than this part of all has no part in the link at that look: connections show that they are alive.
const IDLE: f64 = 0.01;
/// Largest change of a correction at one look: small, since what comes of it is seen at the next.
const STEP: f64 = 1.08;
/// Largest correction of a share, either way.
const MOST: f64 = 8.0;
/// A job that has done nothing for so long is in nobody's way, and nobody in its. Longer than one computes between exchanges.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
struct Tenant {
    share: f64,
    connections: u32,
    /// Factor on its share.
    correction: f64,
    /// Bytes that its connections had moved at the last look.
    seen: u64,
    /// When it was last seen to have done something.
    last: Instant,
    presence: Arc<Presence>,
}

/// What a job's threads say of it, and are told.
#[derive(Debug, Default)]
struct Presence {
    /// Bytes that its connections have moved.
    moved: AtomicU64,
    /// Whether there was something to do for its workers since the last look.
    acted: AtomicBool,
    /// Whether another job has done something lately.
    beside: AtomicBool,
}

impl Tenant {
    /// With this share, and as one that has just done something.
    fn new(share: f64) -> Self {
        let presence = Arc::new(Presence::default());
        Self { share, connections: 0, correction: 1.0, seen: 0, last: Instant::now(), presence }
    }

    fn weight(&self) -> f64 {
        self.share * self.correction
    }
}

/// Tells each job whether another has done something lately.
fn tell_beside(tenants: &HashMap<u64, Tenant>, now: Instant) {
    let awake = |tenant: &Tenant| now.saturating_duration_since(tenant.last) < QUIET;
    let all = tenants.values().filter(|tenant| awake(tenant)).count();
    for tenant in tenants.values() {
        tenant.presence.beside.store(all > usize::from(awake(tenant)), Ordering::Relaxed);
    }
}

/// When the last look was, and the most that all jobs together moved in a second lately.
#[derive(Debug)]
struct Look {
    at: Instant,
    most: f64,
}

impl Default for Look {
    fn default() -> Self {
        Self { at: Instant::now(), most: 0.0 }
    }
}

/// The jobs behind one acceptor, and their connections.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    tenants: Mutex<HashMap<u64, Tenant>>,
    look: Mutex<Look>,
    /// How many jobs there are.
    jobs: AtomicU64,
    /// Counts changes: a shard that has seen this one has applied it.
    generation: AtomicU64,
}

impl Shares {
    fn tenants(&self) -> MutexGuard<'_, HashMap<u64, Tenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job with this share, above 0.
    pub(crate) fn admit(self: &Arc<Self>, job: u64, share: f64) -> Place {
        let mut tenants = self.tenants();
        let tenant = Tenant::new(share);
        let presence = Arc::clone(&tenant.presence);
        tenants.insert(job, tenant);
        self.jobs.store(tenants.len() as u64, Ordering::Relaxed);
        tell_beside(&tenants, Instant::now());
        drop(tenants);
        self.changed();
        Place { shares: Arc::clone(self), job, presence }
    }

    /// The job has gone.
    pub(crate) fn dismiss(&self, job: u64) {
        let mut tenants = self.tenants();
        tenants.remove(&job);
        self.jobs.store(tenants.len() as u64, Ordering::Relaxed);
        tell_beside(&tenants, Instant::now());
        drop(tenants);
        self.changed();
    }

    /// Whether there is more than one job.
    pub(super) fn is_shared(&self) -> bool {
        self.jobs.load(Ordering::Relaxed) > 1
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

    /// Corrects the shares by what jobs got since the last look, and finds out which have done something, if it is time.
    pub(super) fn look(&self, now: Instant) {
        // Another shard is at it: fine.
        let Ok(mut look) = self.look.try_lock() else { return };
        let passed = now.saturating_duration_since(look.at);
        if passed >= LOOK_EVERY {
            look.at = now;
            self.note_deeds(now);
            self.correct(&mut look.most, passed.as_secs_f64());
        }
    }

    fn note_deeds(&self, now: Instant) {
        let mut tenants = self.tenants();
        for tenant in tenants.values_mut() {
            if tenant.presence.acted.swap(false, Ordering::Relaxed) {
                tenant.last = now;
            }
        }
        tell_beside(&tenants, now);
    }

    fn correct(&self, most: &mut f64, seconds: f64) {
        let mut tenants = self.tenants();
        if tenants.len() < 2 {
            return;
        }
        let mut got = HashMap::new();
        for (&job, tenant) in tenants.iter_mut() {
            let moved = tenant.presence.moved.load(Ordering::Relaxed);
            got.insert(job, (moved - std::mem::replace(&mut tenant.seen, moved)) as f64 / seconds);
        }
        let total: f64 = got.values().sum();
        // While shares are corrected, less may be moved because of just that: the link is not slower.
        let corrected = tenants.values().any(|tenant| (tenant.correction - 1.0).abs() > 0.1);
        *most = (if corrected { *most } else { *most * FADE }).max(total);
        let active = |job: &u64| got.get(job).is_some_and(|&rate| rate > total * IDLE);
        let shares: f64 = tenants.iter().filter(|(job, _)| active(job)).map(|(_, tenant)| tenant.share).sum();
        let full = total > *most * FULL;
        let mut changed = false;
        for (job, tenant) in tenants.iter_mut().filter(|(job, _)| active(job)) {
            let fair = total * tenant.share / shares;
            let factor = if full {
                (fair / got[job]).sqrt().clamp(1.0 / STEP, STEP)
            } else {
                tenant.correction.powf(-0.1)
            };
            let corrected = (tenant.correction * factor).clamp(1.0 / MOST, MOST);
            changed |= (corrected / tenant.correction - 1.0).abs() > 0.02;
            tenant.correction = corrected;
        }
        drop(tenants);
        if changed {
            self.changed();
        }
    }

    /// Which change was the last.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Bytes of each buffer of a connection of this job.
    pub(super) fn buffer(&self, job: u64) -> Option<usize> {
        let tenants = self.tenants();
        let connected = || tenants.values().filter(|tenant| tenant.connections > 0);
        let all: f64 = connected().map(Tenant::weight).sum();
        let each = |tenant: &Tenant| TOTAL * tenant.weight() / all / f64::from(tenant.connections);
        let own = tenants.get(&job).filter(|tenant| tenant.connections > 0)?;
        // Where one job's buffers would be larger than allowed, all shrink in proportion: only the proportions count.
        let most = connected().map(each).fold(0.0, f64::max);
        let least = if connected().count() > 1 { FLOOR } else { LEAST };
        Some((each(own) * (LARGEST / most).min(1.0)).max(least) as usize)
    }
}

/// One job's place among the tenants, as its threads know it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(super) shares: Arc<Shares>,
    pub(super) job: u64,
    presence: Arc<Presence>,
}

impl Place {
    /// The job's connections have moved so many bytes.
    pub(super) fn moved(&self, bytes: u64) {
        self.presence.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// There was something to do for the job's workers.
    pub(super) fn acted(&self) {
        // Said for every frame, and written once a look: the job's other threads say it too.
        if !self.presence.acted.load(Ordering::Relaxed) {
            self.presence.acted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether another job has done something in the last minute, as of the last look.
    pub(super) fn is_beside_another(&self) -> bool {
        self.presence.beside.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_with_equal_shares_have_as_much_under_way_whatever_their_connections() {
        let shares = Arc::new(Shares::default());
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

    // No connection had less than 16 KiB: with 512 of them a job had twenty times as much under way as the other.
    #[test]
    fn a_hundred_connections_have_no_more_under_way_than_another_jobs_two() {
        let shares = Arc::new(Shares::default());
        shares.admit(1, 1.0);
        shares.admit(2, 1.0);
        shares.count(1, 2);
        for greedy in [8, 100, (TOTAL / 2.0 / FLOOR) as i32] {
            shares.count(2, greedy);
            let (a, b) = (2 * shares.buffer(1).unwrap(), greedy as usize * shares.buffer(2).unwrap());
            assert!(b <= TOTAL as usize / 2 && b <= 2 * a, "{a} and {b} bytes with {greedy} connections");
            shares.count(2, -greedy);
        }
    }

    #[test]
    fn many_connections_have_no_more_under_way_than_few() {
        let shares = Arc::new(Shares::default());
        shares.admit(1, 1.0);
        for connections in [1, 7, 24] {
            shares.count(1, connections);
            let total = shares.buffer(1).unwrap() * connections as usize;
            assert!(total <= TOTAL as usize, "{total} of {connections} connections");
            shares.count(1, -connections);
        }
    }

    #[test]
    fn a_job_that_gets_too_little_of_a_full_link_gets_more_until_it_has_its_share() {
        let shares = Arc::new(Shares::default());
        let (modest, greedy) = (shares.admit(1, 1.0), shares.admit(2, 1.0));
        shares.count(1, 2);
        shares.count(2, 8);
        let mut most = 0.0;
        let mut part = 0.0;
        for _ in 0..100 {
            // A link of 1e8 bytes a second, which jobs get by what they have under way; the modest one is there two
            // thirds of the time.
            let (a, b) =
                (2.0 * shares.buffer(1).unwrap() as f64 * 0.66, 8.0 * shares.buffer(2).unwrap() as f64);
            part = a / (a + b);
            modest.moved((1e7 * part) as u64);
            greedy.moved((1e7 * (1.0 - part)) as u64);
            shares.correct(&mut most, 0.1);
        }
        assert!((0.47..0.53).contains(&part), "{part}");
    }

    #[test]
    fn a_job_that_wants_less_than_its_share_costs_the_others_next_to_nothing() {
        let shares = Arc::new(Shares::default());
        let (modest, other) = (shares.admit(1, 1.0), shares.admit(2, 1.0));
        shares.count(1, 2);
        shares.count(2, 2);
        let mut most = 0.0;
        let mut least: f64 = 1.0;
        for round in 0..200 {
            // The modest one moves a tenth of the link, whatever it may; the other fills what its buffers
            // let it fill of the rest.
            let room = (2.0 * shares.buffer(2).unwrap() as f64 / (0.2 * TOTAL)).min(1.0);
            modest.moved(1_000_000);
            other.moved((9e6 * room) as u64);
            shares.correct(&mut most, 0.1);
            if round > 20 {
                least = least.min(room);
            }
        }
        assert!(least > 0.75, "{least}");
    }

    #[test]
    fn signs_of_life_alone_take_nothing_of_another_jobs_share() {
        let shares = Arc::new(Shares::default());
        let (busy, idle) = (shares.admit(1, 1.0), shares.admit(2, 1.0));
        shares.count(1, 2);
        shares.count(2, 2);
        let before = shares.buffer(1);
        let mut most = 0.0;
        for _ in 0..200 {
            busy.moved(10_000_000);
            idle.moved(4 * 128);
            shares.correct(&mut most, 0.1);
        }
        assert_eq!(shares.buffer(1), before);
    }

    // An honest job was paced to a fiftieth of its speed beside a notebook that slept.
    #[test]
    fn a_job_that_has_done_nothing_for_a_minute_is_beside_nobody_until_it_does_something() {
        let shares = Arc::new(Shares::default());
        let busy = shares.admit(1, 1.0);
        assert!(!busy.is_beside_another());
        let idle = shares.admit(2, 1.0);
        let come = Instant::now();
        assert!(busy.is_beside_another() && idle.is_beside_another(), "it has just come");
        let look = |after: Duration| {
            busy.acted();
            shares.look(come + after);
            (busy.is_beside_another(), idle.is_beside_another())
        };
        assert_eq!(look(QUIET / 2), (true, true));
        assert_eq!(look(2 * QUIET), (false, true));
        idle.acted();
        assert_eq!(look(2 * QUIET + LOOK_EVERY), (true, true));
        assert_eq!(look(4 * QUIET), (false, true));
        shares.dismiss(1);
        assert!(!idle.is_beside_another());
    }

    #[test]
    fn a_larger_share_is_a_larger_sum() {
        let shares = Arc::new(Shares::default());
        shares.admit(1, 0.75);
        shares.admit(2, 0.25);
        shares.count(1, 2);
        shares.count(2, 2);
        let (large, small) = (shares.buffer(1).unwrap(), shares.buffer(2).unwrap());
        assert!(large.abs_diff(3 * small) < 4, "{large} and {small}");
    }
}
