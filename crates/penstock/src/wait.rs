//! Waiting: how a thread with nothing to do spends its time before it sleeps, how it sleeps on descriptors, and until when.
//!
//! A wake-up across cores costs tens of microseconds here, a look at a cache line a tenth of one: so a thread that expects an
//! answer soon keeps looking for a while. Where more of the job's threads are awake than there are cores, the thread that is
//! waited for may need this very core, so the core is offered at once (yield). Elsewhere it is offered soon, or at once where
//! that has just been what answered: beside a busy process both threads may have been put on one core, and a thread that looked
//! there for as long as a wake-up costs would keep the other from the work that it waits for all the while (measured: 55 to 75
//! microseconds for the way of a row, where a wake-up costs 20; 7 if the core is offered after 2).

use penstock_fabric::layout::flags;
use penstock_fabric::region::Mapping;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::fd::AsFd;
use rustix::io;
use rustix::thread::sched_yield;
use rustix::time::Timespec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Looks at memory before the first yield, where threads share cores, that take no system call: as long as a yield or two take.
const FEW_SPINS: u32 = 100;
/// Time of looking before the first yield, where each has a core: what answers at all soon answers within that.
const SPINNING: Duration = Duration::from_micros(2);
/// Looks between two looks at the time, while nothing is yielded.
const SPINS_A_CLOCK: u32 = 8;
/// Looks between two looks at who is awake.
const LOOKS_A_COUNT: u32 = 64;
/// Longest time of yielding before sleep. Some times a wake-up's cost: longer buys nothing, since then the sleep is the
/// smaller part of the wait.
const YIELDING: Duration = Duration::from_micros(150);
/// The same for a thread that looks at sockets, where cores are shared: about a wake-up's cost. Each look takes system calls,
/// and so do those of the threads that run between its yields.
const YIELDING_AT_SOCKETS: Duration = Duration::from_micros(20);
/// Yields between two looks at the time.
const YIELDS_A_LOOK: u32 = 8;

/// Time that a yield takes at least if another thread used it: longer than one that nobody used, shorter than an answer takes.
const USED: Duration = Duration::from_micros(1);
/// Waits in a row that look like one core for two threads, before that is believed.
const ALIKE: u32 = 8;
/// Waits for which it is believed, before one looks first again.
const BELIEVED: u32 = 16;

/// Longest sleep between two looks at whether the caller was interrupted.
pub(crate) const INTERRUPT_EVERY: Duration = Duration::from_millis(50);
/// Longest time that servers may take to say which workers a wait in vain was for.
pub(crate) const ASK_WITHIN: Duration = Duration::from_secs(2);
/// The least that they have for it, however short the wait was: one that lives answers within that, over
/// the network and under load.
pub(crate) const ASK_AT_LEAST: Duration = Duration::from_millis(250);

/// Looks in vain at what another writes, between two yields.
const LOOKS_A_YIELD: u64 = 16;
/// The same, between two looks at the time.
const LOOKS_A_CLOCK: u64 = 256;

/// Cores that this process may use.
pub(crate) fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// Whether more of the job's threads are awake on this host than there are cores.
#[derive(Debug, Clone)]
pub(crate) enum Crowd {
    /// Not known, so assumed to be so, or not.
    Taken(bool),
    Counted(Shards),
}

/// The shards of one server show whether they are awake; others are taken to be.
#[derive(Debug, Clone)]
pub(crate) struct Shards {
    pub(crate) flags: Arc<Mapping>,
    pub(crate) shards: u32,
    /// Threads of the job on this host beside them that may want a core: workers, and other servers' shards.
    pub(crate) others: u32,
    pub(crate) cores: u32,
}

impl Crowd {
    /// Whether it is so now; `least` shards are taken to be awake, since they are waited for.
    fn is_now(&self, least: u32) -> bool {
        match self {
            Self::Taken(crowded) => *crowded,
            Self::Counted(Shards { flags, shards, others, cores }) => {
                let awake = (0..*shards).filter(|&shard| !flags::must_ring(flags, shard)).count() as u32;
                others.saturating_add(awake.max(least)) > *cores
            }
        }
    }
}

/// One wait's patience.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    crowd: &'a Crowd,
    looks: u32,
    /// Looks before the first yield where it is crowded.
    few: u32,
    /// Shards that are surely awake, or about to be.
    shards: u32,
    /// Whether a look takes system calls.
    at_sockets: bool,
    crowded: bool,
    spun: bool,
    yields: u32,
    /// What it goes by, and adds to.
    one_core: Option<&'a OneCore>,
    /// Whether it yields at once.
    hands_over: bool,
    /// Whether some other thread seems to have used the first yield.
    used: bool,
    since: Option<Instant>,
}

impl<'a> Patience<'a> {
    /// Fresh patience, for a thread that waits for a shard or is one.
    pub(crate) fn new(crowd: &'a Crowd) -> Self {
        Self {
            crowd,
            looks: 0,
            few: 0,
            shards: 1,
            at_sockets: false,
            crowded: false,
            spun: false,
            yields: 0,
            one_core: None,
            hands_over: false,
            used: false,
            since: None,
        }
    }

    /// Fresh patience, for a thread that waits for another worker and looks at memory only: that worker has a core of its own
    /// as often as not, even where the job has more threads than there are cores.
    pub(crate) fn for_memory(crowd: &'a Crowd) -> Self {
        Self { few: FEW_SPINS, shards: 0, ..Self::new(crowd) }
    }

    /// Fresh patience, for a thread that looks at sockets.
    pub(crate) fn at_sockets(crowd: &'a Crowd) -> Self {
        Self { at_sockets: true, ..Self::new(crowd) }
    }

    /// The same, but it yields at once where that is what answers. It must be [told](Self::answered) of answers.
    pub(crate) fn heeding(self, one_core: &'a OneCore) -> Self {
        Self { one_core: Some(one_core), ..self }
    }

    /// Passes a little time; `false` when it is time to sleep.
    pub(crate) fn pause(&mut self) -> bool {
        if self.looks.is_multiple_of(LOOKS_A_COUNT) {
            self.crowded = self.crowd.is_now(self.shards);
        }
        if self.looks == 0 && self.one_core.is_some_and(OneCore::hands_over) {
            (self.hands_over, self.spun, self.since) = (true, true, Some(Instant::now()));
        }
        self.looks = self.looks.wrapping_add(1);
        if self.spins() {
            std::hint::spin_loop();
            return true;
        }
        self.yields = self.yields.wrapping_add(1);
        let (every, longest) = self.longest();
        if self.yields.is_multiple_of(every) && self.waited() > longest {
            self.one_core.inspect(|one_core| one_core.note(false));
            return false;
        }
        let first = self.yields == 1 && self.one_core.is_some() && !self.hands_over && !self.crowded;
        let began = first.then(Instant::now);
        sched_yield();
        self.used |= began.is_some_and(|began| began.elapsed() >= USED);
        true
    }

    /// What was waited for is there.
    pub(crate) fn answered(&self) {
        // Before anybody waited, or looked, there is nothing to tell by.
        if self.looks > 0 && !self.hands_over {
            self.one_core.inspect(|one_core| one_core.note(self.yields == 1 && self.used && !self.crowded));
        }
    }

    /// Whether to look again at once.
    fn spins(&mut self) -> bool {
        if self.crowded {
            let spins = self.few > 0;
            self.few = self.few.saturating_sub(1);
            return spins;
        }
        if !self.spun && self.looks.is_multiple_of(SPINS_A_CLOCK) {
            self.spun = self.waited() >= SPINNING;
        }
        !self.spun
    }

    /// Yields between two looks at the time, and after how long it sleeps.
    fn longest(&self) -> (u32, Duration) {
        match self.at_sockets && self.crowded {
            // A yield may take as long as others work.
            true => (1, YIELDING_AT_SOCKETS),
            false => (YIELDS_A_LOOK, YIELDING),
        }
    }

    fn waited(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}

/// Whether a thread seems to share its core with the one that it waits for, although there is a core for each: its first yield
/// brought the answer, and some other thread had the core meanwhile. Between two that hardly sleep a system puts up with that
/// for tens of milliseconds, and looking then only keeps the other from answering (measured on two cores: an answer takes 10
/// microseconds, 5 if the core is handed over at once, and 1.4 with a core for each).
#[derive(Debug, Default)]
pub(crate) struct OneCore {
    /// Waits in a row that looked so; from [`ALIKE`] on also those for which it was believed. Threads that share it may lose
    /// each other's counts: it is a hint.
    alike: AtomicU32,
}

impl OneCore {
    /// Whether the wait that begins yields at once. Each such wait counts.
    fn hands_over(&self) -> bool {
        let alike = self.alike.load(Ordering::Relaxed);
        if alike < ALIKE {
            return false;
        }
        let believed = alike < ALIKE + BELIEVED;
        self.alike.store(if believed { alike + 1 } else { ALIKE - 1 }, Ordering::Relaxed);
        believed
    }

    /// A wait that looked first, or one that went to sleep, has ended: whether it looked `so`.
    fn note(&self, so: bool) {
        let alike = self.alike.load(Ordering::Relaxed);
        let now = if so { alike.saturating_add(1) } else { 0 };
        if now != alike {
            self.alike.store(now, Ordering::Relaxed);
        }
    }
}

/// The end of a wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    since: Instant,
    longest: Duration,
    /// Whether it is the job's, because the caller named none.
    default: bool,
}

impl Deadline {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { since: Instant::now(), longest, default: false }
    }

    /// The job's own.
    pub(crate) fn default_of(longest: Duration) -> Self {
        Self { default: true, ..Self::new(longest) }
    }

    /// When the wait began.
    pub(crate) fn began(&self) -> Instant {
        self.since
    }

    /// Whether nobody named another.
    pub(crate) fn is_default(&self) -> bool {
        self.default
    }

    /// The same, but at most `longest` after its beginning.
    pub(crate) fn at_most(&self, longest: Duration) -> Self {
        Self { longest: self.longest.min(longest), ..*self }
    }

    /// Of the questions that follow a wait in vain, all together: a tenth of its limit, so that the limit bounds the call.
    pub(crate) fn for_questions(self) -> Self {
        Self::new((self.longest / 10).clamp(ASK_AT_LEAST, ASK_WITHIN))
    }

    /// Of a question that is asked while the wait lasts: no longer than that lasts still, but as long as a server that lives may
    /// take. So no answer is missed that this wait could still be told of.
    pub(crate) fn for_a_look(self) -> Self {
        Self::new(self.left().clamp(ASK_AT_LEAST, ASK_WITHIN))
    }

    pub(crate) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn left(&self) -> Duration {
        self.longest.saturating_sub(self.waited())
    }
}

/// Looks again until one look met no writer: what was seen, and how many looks were in vain; `None` when the time is up. A
/// writer is inside for about a microsecond, unless it needs this core. Whether the caller `stands` is asked now and then.
pub(crate) fn undisturbed<T, Disturbed, E>(
    deadline: Deadline,
    stands: impl Fn() -> Result<(), E>,
    mut look: impl FnMut() -> Result<T, Disturbed>,
) -> Result<Option<(T, u64)>, E> {
    let mut in_vain = 0u64;
    loop {
        if let Ok(seen) = look() {
            return Ok(Some((seen, in_vain)));
        }
        in_vain += 1;
        if in_vain.is_multiple_of(LOOKS_A_YIELD) {
            sched_yield();
            stands()?;
        }
        if in_vain.is_multiple_of(LOOKS_A_CLOCK) && deadline.left().is_zero() {
            return Ok(None);
        }
        std::hint::spin_loop();
    }
}

/// What is too long for the system is as long as it can say.
fn timespec(longest: Duration) -> Timespec {
    Timespec::try_from(longest).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

/// Sleeps until one of `fds` is ready, at most for `longest` if that is given; how many are. A signal ends it early: the caller
/// looks again.
pub(crate) fn poll(fds: &mut [PollFd<'_>], longest: Option<Duration>) -> io::Result<usize> {
    rustix::event::poll(fds, longest.map(timespec).as_ref())
}

/// The same for one descriptor: whether there is something to read, or it is broken.
pub(crate) fn until_readable(fd: &impl AsFd, longest: Duration) -> io::Result<bool> {
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(longest)) {
        Err(io::Errno::INTR) => Ok(false),
        ready => ready.map(|ready| ready > 0),
    }
}

/// The same for what `epoll` watches: what has happened, `most` events of it.
pub(crate) fn events(epoll: &impl AsFd, most: usize, longest: Option<Duration>) -> Vec<epoll::Event> {
    let mut events = Vec::with_capacity(most);
    let _ = epoll::wait(epoll, spare_capacity(&mut events), longest.map(timespec).as_ref());
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_fabric::doorbell::Sleeping;
    use penstock_fabric::region::{Region, Writers};

    #[test]
    fn a_look_is_repeated_until_nobody_disturbs_it_or_it_may_not_go_on_or_the_time_is_up() {
        let stands = || Ok::<_, ()>(());
        let mut looks = 0;
        let third = || {
            looks += 1;
            if looks == 3 { Ok(7) } else { Err(()) }
        };
        let long = Deadline::new(Duration::from_secs(60));
        assert_eq!(undisturbed(long, stands, third), Ok(Some((7, 2))));
        assert_eq!(undisturbed(long, || Err("gone"), || Err::<(), _>(())), Err("gone"));
        assert_eq!(undisturbed(Deadline::new(Duration::ZERO), stands, || Err::<(), _>(())), Ok(None));
    }

    #[test]
    fn threads_that_sleep_crowd_nobody_but_one_that_is_waited_for_is_about_to_be_awake() {
        let region = Region::new("penstock-test", flags::BYTES, Writers::Holders).unwrap();
        let flags = Arc::clone(region.mapping());
        let sleeping = |shard| flags.at::<Sleeping>(flags::sleeping(shard));
        let crowd = Crowd::Counted(Shards { flags: Arc::clone(&flags), shards: 2, others: 2, cores: 3 });
        assert!(crowd.is_now(0), "two shards and two others");
        sleeping(0).announce();
        assert!(!crowd.is_now(0));
        sleeping(1).announce();
        assert!(!crowd.is_now(1));
        let crowd = Crowd::Counted(Shards { flags: Arc::clone(&flags), shards: 2, others: 2, cores: 2 });
        assert!(!crowd.is_now(0) && crowd.is_now(1));
        let shared =
            Crowd::Counted(Shards { flags: Arc::clone(&flags), shards: 2, others: u32::MAX, cores: 64 });
        assert!(shared.is_now(0));
    }

    #[test]
    fn who_is_answered_on_its_own_core_yields_at_once_until_it_is_not() {
        let one_core = OneCore::default();
        // Whether it looked first, of a wait that ended after so many yields, the first of which another thread used or not.
        let wait = |crowded: bool, yields: u32, used: bool| {
            let crowd = Crowd::Taken(crowded);
            let mut patience = Patience::new(&crowd).heeding(&one_core);
            assert!(patience.pause());
            let looked = patience.yields == 0;
            (patience.yields, patience.used) = (yields, used);
            patience.answered();
            looked
        };
        let here = || wait(false, 1, true);
        let looking = || wait(false, 0, false);
        // Answered while it looked, by a yield that nobody used, by a later one.
        for (yields, used) in [(0, false), (1, false), (2, true)] {
            assert!((0..2 * ALIKE).all(|_| wait(false, yields, used)));
        }
        assert!((1..ALIKE).all(|_| here()) && looking() && (1..ALIKE).all(|_| here()), "not in a row");
        // What is there before anybody waits says nothing.
        Patience::new(&Crowd::Taken(false)).heeding(&one_core).answered();
        assert!(here());
        for _ in 0..3 {
            assert!((0..BELIEVED).all(|_| !here()), "yields at once");
            assert!(here(), "looks first again, and finds the same");
        }
        assert!((0..BELIEVED).all(|_| !looking()), "has not looked, so it cannot tell");
        assert!((0..2 * BELIEVED).all(|_| looking()), "looks first again, and finds it over");
        assert!(
            (0..2 * ALIKE).all(|_| !wait(true, 1, true)) && here(),
            "where it is crowded that is no sign"
        );
        (1..ALIKE).for_each(|_| _ = here());
        let crowd = Crowd::Taken(false);
        let mut patience = Patience::new(&crowd).heeding(&one_core);
        while patience.pause() {}
        assert!(patience.hands_over && looking(), "who slept begins anew");
    }

    #[test]
    fn patience_ends() {
        for crowd in [true, false].map(Crowd::Taken) {
            let one_core = OneCore { alike: AtomicU32::new(ALIKE) };
            let handing_over = Patience::new(&crowd).heeding(&one_core);
            let looking = [Patience::new(&crowd), Patience::for_memory(&crowd), Patience::at_sockets(&crowd)];
            for mut patience in looking.into_iter().chain([handing_over]) {
                while patience.pause() {}
                let (_, longest) = patience.longest();
                assert!(patience.waited() > longest);
            }
        }
    }

    #[test]
    fn who_looks_at_sockets_sleeps_sooner_where_cores_are_shared_and_only_there() {
        let longest = |mut patience: Patience<'_>| {
            assert!(patience.pause(), "the first look is not the last");
            patience.longest()
        };
        let (crowded, free) = (Crowd::Taken(true), Crowd::Taken(false));
        let (every, sockets) = longest(Patience::at_sockets(&crowded));
        let (others_every, memory) = longest(Patience::new(&crowded));
        assert!(every < others_every && sockets < memory, "{sockets:?} {memory:?}");
        assert_eq!(longest(Patience::at_sockets(&free)), longest(Patience::new(&free)));
    }

    #[test]
    fn a_wait_is_as_long_as_was_asked_for_or_as_the_system_can_say() {
        let long = timespec(Duration::from_millis(61_250));
        assert_eq!((long.tv_sec, long.tv_nsec), (61, 250_000_000));
        assert_eq!(timespec(Duration::MAX).tv_sec, i64::MAX);
    }
}
