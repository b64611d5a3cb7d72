//! The ways from a worker to the shards of one server: a ring each, in which several threads keep room and submit.
//!
//! A shard that is home of none of this worker's tensors has no use for its clock, and would be kept awake by it. But another
//! worker may wait for that clock there, by a tensor that this one has not declared so far. So a clock stays [`Untold`] while its
//! worker computes, for about a tenth of a second at most, and while it waits, for a millisecond: the shard is told before it is
//! told anything else, by a thread that waits for longer, and by the first link's thread. (Two workers of which one has not
//! declared a tensor that the other pulls, and which also wait for each other outside of this library, therefore need a tenth of
//! a second for an iteration.)

use crate::thread;
use crate::worker::link::lock;
use penstock_fabric::doorbell;
use penstock_fabric::layout::{flags, page};
use penstock_fabric::region::Mapping;
use penstock_fabric::ring::{Producer, Ring};
use penstock_fabric::sync::Ordering;
use penstock_proto::submission::Submission;
use rustix::fd::OwnedFd;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How long a shard may not know the clock: too short to be noticed, and long beside an iteration of which it need not know.
pub(in crate::worker) const TELL_CLOCK: Duration = Duration::from_millis(100);

/// The same for a worker that waits: most waits are over by then, and no shard was woken for nothing.
const WAIT_UNTOLD: Duration = Duration::from_millis(1);

/// The way to one shard. Locked to look or to write, never while its thread waits.
#[derive(Default)]
struct Outlet {
    producer: Producer,
    /// Slots that are kept for those that have a [`Room`].
    kept: u64,
    /// The clock that the shard was told.
    told: u64,
    /// Whether the worker has said goodbye, behind which nothing may come.
    sealed: bool,
}

impl Outlet {
    /// Whether there is room for `count` beside what is kept, and for the `clock` if the shard was not told.
    fn has_room(&mut self, ring: &Ring, count: u64, clock: u64) -> bool {
        let count = count + u64::from(self.told < clock);
        self.producer.has_room(ring, self.kept + count)
    }

    fn push(&mut self, ring: &Ring, submission: Submission) {
        if let Submission::Clock { clock } = submission {
            self.told = clock;
        }
        let pushed = self.producer.push(ring, submission.encode());
        debug_assert!(pushed.is_ok(), "there was room");
    }

    /// Submits what `make` makes, into room that was kept.
    fn submit(outlet: &Mutex<Self>, ring: &Ring, make: impl FnOnce() -> Submission) {
        let mut outlet = lock(outlet);
        debug_assert!(outlet.kept > 0 && !outlet.sealed, "room was kept for it");
        let submission = make();
        outlet.push(ring, submission);
        outlet.kept -= 1;
        outlet.sealed = matches!(submission, Submission::Leave);
    }
}

/// Why no room was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// There is none now.
    Full,
    /// The worker has said goodbye.
    Sealed,
}

/// The ways to all shards of a server.
pub(super) struct Outlets {
    outlets: Box<[Mutex<Outlet>]>,
    /// Whether the shard is home of one of this worker's tensors.
    homes: Box<[AtomicBool]>,
    /// The worker's clock: see [`Untold`].
    clock: Arc<AtomicU64>,
    page: Arc<Mapping>,
    flags: Arc<Mapping>,
    wakeups: Vec<OwnedFd>,
}

impl Outlets {
    /// To as many shards as `wakeups` are for.
    pub(super) fn new(page: Arc<Mapping>, flags: Arc<Mapping>, wakeups: Vec<OwnedFd>) -> Self {
        let outlets = wakeups.iter().map(|_| Mutex::default()).collect();
        let homes = wakeups.iter().map(|_| AtomicBool::new(false)).collect();
        Self { outlets, homes, clock: Arc::default(), page, flags, wakeups }
    }

    fn outlet(&self, shard: u32) -> (&Mutex<Outlet>, &Ring) {
        (&self.outlets[shard as usize], self.page.at(page::ring(shard)))
    }

    pub(super) fn has_room(&self, shard: u32, count: u64) -> bool {
        let (outlet, ring) = self.outlet(shard);
        lock(outlet).has_room(ring, count, self.clock())
    }

    /// Keeps room for `count` submissions, behind a clock that the shard was not told.
    pub(super) fn room(&self, shard: u32, count: u64) -> Result<Room<'_>, NoRoom> {
        let (outlet, ring) = self.outlet(shard);
        let mut outlet = lock(outlet);
        if outlet.sealed {
            return Err(NoRoom::Sealed);
        }
        let clock = self.clock();
        if !outlet.has_room(ring, count, clock) {
            return Err(NoRoom::Full);
        }
        let behind = outlet.told < clock;
        if behind {
            outlet.push(ring, Submission::Clock { clock });
        }
        outlet.kept += count;
        Ok(Room { outlets: self, shard, left: count, unheard: behind })
    }

    pub(super) fn is_home(&self, shard: u32) -> bool {
        self.homes[shard as usize].load(Ordering::SeqCst)
    }

    /// From now on the shard is told of every clock at once. The caller then tells it what it was not told.
    pub(super) fn make_home(&self, shard: u32) {
        // In one order with the clock: see [`Untold::move_to`].
        self.homes[shard as usize].store(true, Ordering::SeqCst);
    }

    fn clock(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// Tells the clock to those that were not told; whether all had room for it.
    fn catch_up(&self) -> bool {
        let mut all = true;
        for shard in 0..self.outlets.len() as u32 {
            // What is dropped rings.
            all &= !matches!(self.room(shard, 0), Err(NoRoom::Full));
        }
        all
    }

    /// How many submissions the shards have taken, as they say, of how many that were submitted.
    pub(super) fn taken(&self) -> (u64, u64) {
        let shards = 0..self.outlets.len() as u32;
        let add = |(taken, all), (some, more)| (taken + some, all + more);
        shards.map(|shard| self.taken_by(shard)).fold((0, 0), add)
    }

    /// The same of one shard.
    pub(super) fn taken_by(&self, shard: u32) -> (u64, u64) {
        let (outlet, ring) = self.outlet(shard);
        lock(outlet).producer.taken(ring)
    }
}

/// The worker's clock, and whether all shards, of all servers, were told.
#[derive(Default)]
pub(in crate::worker) struct Untold {
    /// Iterations that the worker has completed.
    clock: Arc<AtomicU64>,
    /// All were told this, or have said goodbye.
    told: AtomicU64,
    /// Those of links that have ended are gone.
    all: Mutex<Vec<Weak<Outlets>>>,
}

impl Untold {
    /// The ways to another server.
    pub(super) fn add(&self, mut outlets: Outlets) -> Arc<Outlets> {
        outlets.clock = Arc::clone(&self.clock);
        let outlets = Arc::new(outlets);
        lock(&self.all).push(Arc::downgrade(&outlets));
        outlets
    }

    /// Iterations that the worker has completed.
    pub(in crate::worker) fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Moves the clock, which all shards were told but `others`, which are home of nothing and are told later. `still`: how many
    /// these are now.
    pub(in crate::worker) fn move_to(&self, clock: u64, others: usize, still: impl FnOnce() -> usize) {
        if others == 0 {
            // Pairs with the acquire in `tell`: who finds it told comes behind what the shards were told.
            self.told.store(clock, Ordering::Release);
        }
        self.clock.store(clock, Ordering::SeqCst);
        // Either this sees that one has become home, or the thread that made it one sees the clock: both are in one order with
        // what they wrote first.
        if others > 0 && still() < others {
            self.tell();
        }
    }

    /// For a thread that is about to sleep, and has `slept` before in this wait: how long it may sleep until it comes here again.
    pub(in crate::worker) fn before_sleep(&self, slept: &mut bool) -> Duration {
        if std::mem::replace(slept, true) {
            self.tell();
        }
        if self.told.load(Ordering::Relaxed) < self.clock() { WAIT_UNTOLD } else { Duration::MAX }
    }

    /// Tells all shards the clock, without waiting for room; whether all know it now.
    pub(in crate::worker) fn tell(&self) -> bool {
        let clock = self.clock.load(Ordering::SeqCst);
        // Pairs with the releases of `told`: what the shards were told stands in their rings.
        if self.told.load(Ordering::Acquire) >= clock {
            return true;
        }
        // A thread that comes second returns when they have been told.
        let all = lock(&self.all);
        let told = all.iter().filter_map(Weak::upgrade).filter(|outlets| !outlets.catch_up()).count() == 0;
        if told {
            self.told.fetch_max(clock, Ordering::Release);
        }
        told
    }
}

/// Room in a shard's ring that is kept for what is going to be submitted. What was not used of it is given back when
/// this is dropped.
pub(in crate::worker) struct Room<'a> {
    outlets: &'a Outlets,
    shard: u32,
    left: u64,
    /// Whether the shard was told something, and no look was taken whether it sleeps.
    unheard: bool,
}

/// Room at several shards, for what they are told by one call.
pub(in crate::worker) type Rooms<'a> = SmallVec<[Room<'a>; 8]>;

impl Room<'_> {
    /// Tells the shard something, without waiting. Nothing is told once the worker has said goodbye, for which it waits until no
    /// thread is in the middle of submitting something.
    pub(in crate::worker) fn submit(&mut self, submission: &Submission) {
        self.submit_made(|| *submission);
    }

    /// The same for what is made in the order in which it is submitted: no other thread submits to the shard meanwhile.
    pub(in crate::worker) fn submit_made(&mut self, make: impl FnOnce() -> Submission) {
        self.put(make);
        ring(std::slice::from_mut(self));
    }

    /// The same, for one of several that are then [rung](ring) for together.
    pub(in crate::worker) fn put(&mut self, make: impl FnOnce() -> Submission) {
        debug_assert!(self.left > 0, "room was kept for it");
        let (outlet, ring) = self.outlets.outlet(self.shard);
        Outlet::submit(outlet, ring, make);
        self.left -= 1;
        self.unheard = true;
    }
}

/// Wakes those that were told something and are asleep.
pub(in crate::worker) fn ring(rooms: &mut [Room<'_>]) {
    doorbell::published();
    for room in rooms.iter_mut().filter(|room| room.unheard) {
        room.unheard = false;
        if flags::must_ring(&room.outlets.flags, room.shard) {
            thread::ring(&room.outlets.wakeups[room.shard as usize]);
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if self.unheard {
            ring(std::slice::from_mut(self));
        }
        if self.left > 0 {
            lock(&self.outlets.outlets[self.shard as usize]).kept -= self.left;
        }
    }
}

#[cfg(test)]
pub(in crate::worker) mod tests {
    use super::*;
    use penstock_fabric::doorbell::Sleeping;
    use penstock_fabric::region::{Region, Writers};
    use penstock_fabric::ring::{CAPACITY, Consumer};
    use rustix::event::{EventfdFlags, eventfd};

    impl Untold {
        /// With a shard that was not told this clock; it is, as long as what is returned lives.
        pub(in crate::worker) fn keep_from_one(&self, clock: u64) -> impl Drop + use<> {
            let kept = self.add(outlets(1).0);
            self.move_to(clock, 1, || 1);
            kept
        }
    }

    fn outlets(shards: u32) -> (Outlets, Arc<Mapping>) {
        let region = |bytes| Region::new("penstock-test", bytes, Writers::Holders).unwrap();
        let (page, flags) = (region(page::bytes(shards)), region(flags::BYTES));
        let wakeups = (0..shards).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        let page = Arc::clone(page.mapping());
        (Outlets::new(Arc::clone(&page), Arc::clone(flags.mapping()), wakeups), page)
    }

    /// The same, with a clock that they are told later.
    fn told_later(shards: u32) -> (Untold, Arc<Outlets>, Arc<Mapping>) {
        let (untold, (outlets, page)) = (Untold::default(), outlets(shards));
        let outlets = untold.add(outlets);
        (untold, outlets, page)
    }

    #[test]
    fn a_clock_that_a_shard_was_not_told_goes_before_whatever_it_is_told_next() {
        let (untold, outlets, page) = told_later(2);
        let mut consumers = [0, 1].map(|shard| (page.at::<Ring>(page::ring(shard)), Consumer::default()));
        let mut pop = |shard: usize| {
            let (ring, consumer) = &mut consumers[shard];
            consumer.pop(ring).unwrap().map(|words| Submission::decode(words).unwrap())
        };
        let clock = |clock| Some(Submission::Clock { clock });
        untold.move_to(5, 2, || 2);
        untold.move_to(6, 2, || 2);
        assert_eq!(pop(1), None, "it is left alone");
        assert!(untold.tell());
        assert_eq!((pop(0), pop(1), pop(1)), (clock(6), clock(6), None), "the newest, once");
        untold.move_to(7, 2, || 2);
        outlets.room(1, 1).unwrap().submit(&Submission::Leave);
        assert_eq!((pop(1), pop(1)), (clock(7), Some(Submission::Leave)));
        assert_eq!(outlets.room(1, 1).err(), Some(NoRoom::Sealed));
    }

    // A worker that waits looks up once a millisecond as long as there is anybody to be told.
    #[test]
    fn only_a_clock_that_some_shard_was_not_told_shortens_a_sleep() {
        let (untold, outlets, page) = told_later(1);
        let mut consumer = Consumer::default();
        let mut pop = || {
            let words = consumer.pop(page.at::<Ring>(page::ring(0))).unwrap();
            words.map(|words| Submission::decode(words).unwrap())
        };
        assert_eq!(untold.before_sleep(&mut true), Duration::MAX, "nothing has happened");
        untold.move_to(1, 1, || 1);
        let mut slept = false;
        assert_eq!(
            (untold.before_sleep(&mut slept), pop()),
            (WAIT_UNTOLD, None),
            "most waits are over by then"
        );
        assert_eq!(untold.before_sleep(&mut slept), Duration::MAX);
        assert_eq!((pop(), pop()), (Some(Submission::Clock { clock: 1 }), None));
        outlets.room(0, 1).unwrap().submit(&Submission::Clock { clock: 2 });
        untold.move_to(2, 0, || 0);
        assert_eq!((untold.clock(), untold.before_sleep(&mut true)), (2, Duration::MAX));
        assert_eq!((pop(), pop()), (Some(Submission::Clock { clock: 2 }), None), "told once");
    }

    // The thread that makes it one may have looked before the clock moved, and the one that moves it before that.
    #[test]
    fn a_shard_that_becomes_home_while_the_clock_moves_is_told_at_once() {
        let (untold, outlets, page) = told_later(1);
        let (ring, mut consumer) = (page.at::<Ring>(page::ring(0)), Consumer::default());
        untold.move_to(1, 1, || 1);
        assert!(consumer.pop(ring).unwrap().is_none());
        untold.move_to(2, 1, || {
            outlets.make_home(0);
            0
        });
        let told = consumer.pop(ring).unwrap().map(Submission::decode);
        assert_eq!(told, Some(Ok(Submission::Clock { clock: 2 })));
    }

    // One of the two threads must see the other (with the second look left out, or the two stores relaxed, some are missed).
    #[test]
    fn a_shard_that_another_thread_makes_home_knows_the_clock_when_both_are_done() {
        const ROUNDS: u64 = 5000;
        const LONGEST: Duration = Duration::from_secs(5);
        let (untold, outlets, page) = told_later(1);
        let (ring, mut consumer) = (page.at::<Ring>(page::ring(0)), Consumer::default());
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let spin = |count: u64| (0..count).for_each(|_| std::hint::spin_loop());
        // Where both share a core, a thread that only looked would take it from the other.
        let wait_for = |what: &AtomicU64, round: u64| {
            let mut looks = 0;
            while what.load(Ordering::Acquire) < round {
                looks += 1;
                if looks > 1000 { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        };
        let mut wrong = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1.. {
                    wait_for(&begun, round);
                    if begun.load(Ordering::Acquire) == u64::MAX {
                        return;
                    }
                    spin(round * 7 % 97);
                    outlets.make_home(0);
                    untold.tell();
                    ended.store(round, Ordering::Release);
                }
            });
            let since = std::time::Instant::now();
            for clock in (1..=ROUNDS).take_while(|_| since.elapsed() < LONGEST) {
                begun.store(clock, Ordering::Release);
                spin(clock * 5 % 89);
                let others = || usize::from(!outlets.is_home(0));
                let strangers = others();
                if let (0, Ok(mut room)) = (strangers, outlets.room(0, 1)) {
                    room.submit(&Submission::Clock { clock });
                }
                untold.move_to(clock, strangers, others);
                wait_for(&ended, clock);
                let mut told = Vec::new();
                while let Ok(Some(words)) = consumer.pop(ring) {
                    told.push(Submission::decode(words));
                }
                if told != [Ok(Submission::Clock { clock })] {
                    wrong.push((clock, told));
                }
                outlets.homes[0].store(false, Ordering::SeqCst);
            }
            begun.store(u64::MAX, Ordering::Release);
        });
        assert!(wrong.is_empty(), "not told, or not once: {wrong:?}");
    }

    #[test]
    fn a_clock_for_which_a_shard_has_no_room_stays_untold_until_it_has() {
        let (untold, outlets, page) = told_later(1);
        let (ring, mut consumer) = (page.at::<Ring>(page::ring(0)), Consumer::default());
        let mut room = outlets.room(0, CAPACITY).unwrap();
        (0..CAPACITY).for_each(|clock| room.submit(&Submission::Clock { clock }));
        untold.move_to(CAPACITY, 1, || 1);
        assert!(!untold.tell());
        assert_eq!(untold.before_sleep(&mut false), WAIT_UNTOLD);
        (0..CAPACITY).for_each(|_| assert!(consumer.pop(ring).unwrap().is_some()));
        assert!(untold.tell());
        let words = consumer.pop(ring).unwrap().unwrap();
        assert_eq!(Submission::decode(words), Ok(Submission::Clock { clock: CAPACITY }));
    }

    // The shard slept through what it had been told, and was not told again.
    #[test]
    fn a_shard_is_rung_for_a_clock_although_nothing_follows_it() {
        let (outlets, _) = outlets(1);
        outlets.flags.at::<Sleeping>(flags::sleeping(0)).announce();
        outlets.clock.store(1, Ordering::SeqCst);
        drop(outlets.room(0, 1).unwrap());
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(&outlets.wakeups[0], &mut count), Ok(8), "it was rung for");
    }

    #[test]
    fn room_that_is_kept_is_nobody_elses_and_a_clock_needs_some_too() {
        let (outlets, _) = outlets(1);
        let kept = outlets.room(0, CAPACITY - 1).unwrap();
        outlets.clock.store(1, Ordering::SeqCst);
        assert_eq!(outlets.room(0, 1).err(), Some(NoRoom::Full));
        drop(kept);
        let mut room = outlets.room(0, CAPACITY - 1).unwrap();
        (0..CAPACITY - 1).for_each(|clock| room.submit(&Submission::Clock { clock: clock + 2 }));
        assert_eq!(outlets.taken(), (0, CAPACITY));
    }

    // A ticket that was drawn first and submitted later was taken for answered when the other came back: a
    // state of zeros was read.
    #[test]
    fn what_threads_number_as_they_submit_it_is_submitted_in_the_order_of_its_numbers() {
        let (ring, outlet) = (Ring::new(), Mutex::new(Outlet { kept: CAPACITY, ..Outlet::default() }));
        let next = AtomicU64::new(0);
        let draw = || Submission::Clock { clock: next.fetch_add(1, Ordering::Relaxed) };
        let mut consumer = Consumer::default();
        for round in 0..50 {
            lock(&outlet).kept = CAPACITY;
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let work = || (0..CAPACITY / 4).for_each(|_| Outlet::submit(&outlet, &ring, draw));
                    scope.spawn(work);
                }
            });
            for place in 0..CAPACITY {
                let words = consumer.pop(&ring).unwrap().unwrap();
                let clock = round * CAPACITY + place;
                assert_eq!(Submission::decode(words), Ok(Submission::Clock { clock }));
            }
        }
    }
}
