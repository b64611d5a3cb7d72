//! A worker's connection to a server about items: rows that go to consumers on other hosts, and mirrors of those that come from
//! there. [`penstock_proto::items::node`] decides what is sent.
//!
//! One thread listens. A thread that sets, fetches or asks sends by itself if no other is in its way: a row is on the wire when
//! the call returns. In a burst of such calls the rows are left to the thread that listens.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | what calls ask, and wait for |
//! | [`burst`] | when calls leave their rows to the thread |
//! | [`listener`] | the thread that listens |

mod burst;
mod listener;

use crate::thread::{self, Wakeup};
use crate::wait::{Crowd, Deadline, INTERRUPT_EVERY, Patience};
use crate::wire::dial::Dialer;
use crate::wire::items::ItemWire;
use crate::worker::Error;
use crate::worker::fate::Fate;
use crate::worker::link::lock;
use burst::Burst;
use penstock_fabric::items::partition::{Layout, Rows, Waiters, Writer};
use penstock_fabric::items::partition_memory::PartitionMemory;
use penstock_fabric::items::waiters::announce_then_look;
use penstock_proto::Rank;
use penstock_proto::handshake::Purpose;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::wire::{PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::peer::PeerId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The one peer of a worker's node.
const HOME: PeerId = PeerId::server(0);
/// How long the last rows of a producer that is gone are waited for, at least. Longer than a home takes that learns of the loss
/// from a heartbeat and then waits for a worker that knows better (`HEARSAY_WITHIN_MS` in `server/leaving.rs`).
const LAST_WORDS: Duration = Duration::from_secs(3);
/// The same where the home has known for so long.
const LATE_WORDS: Duration = Duration::from_millis(50);

/// Fetches and flushes that a thread waits for, and whether they have come back.
#[derive(Default)]
struct Answers {
    awaited: Mutex<BTreeMap<u64, bool>>,
    changed: Condvar,
    /// Those that no thread waits for any more, until the node hears so.
    given_up: Mutex<Vec<u64>>,
}

impl Answers {
    /// From now on a thread waits for it.
    fn expect(self: &Arc<Self>, number: u64) -> Awaited {
        lock(&self.awaited).insert(number, false);
        Awaited { answers: Arc::clone(self), number }
    }

    /// It has come back. What no thread waits for (rows that are fetched ahead, gets that were given up) is not kept.
    fn note(&self, number: u64) {
        if let Some(came) = lock(&self.awaited).get_mut(&number) {
            *came = true;
            self.changed.notify_all();
        }
    }
}

/// One that is waited for; forgotten, and given up if it has not come back, with this.
struct Awaited {
    answers: Arc<Answers>,
    number: u64,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if lock(&self.answers.awaited).remove(&self.number) == Some(false) {
            lock(&self.answers.given_up).push(self.number);
        }
    }
}

struct Mirrors {
    answers: Arc<Answers>,
}

impl Host for Mirrors {
    type Memory = PartitionMemory;

    fn make(&mut self, _: PartitionId, _: &Shape) -> Option<PartitionMemory> {
        None // no peer offers rows to a worker
    }

    fn answered(&mut self, ticket: u64) {
        self.answers.note(ticket);
    }

    fn flushed(&mut self, id: u64) {
        self.answers.note(id);
    }
}

struct State {
    node: Node<Mirrors>,
    wire: Option<ItemWire>,
    /// Partitions that this worker writes, and whether others ask for their rows.
    own: Vec<(PartitionId, bool)>,
    burst: Burst,
    /// Times that something was sent.
    sends: u64,
}

impl State {
    /// Sends what there is to send; whether the connection still stands.
    fn transmit(&mut self) -> bool {
        let given_up = std::mem::take(&mut *lock(&self.node.host().answers.given_up));
        given_up.into_iter().for_each(|number| self.node.give_up(number));
        let Some(wire) = &mut self.wire else { return false };
        self.node.collect_all();
        match wire.transmit(&mut self.node, HOME) {
            Ok(some) => {
                self.sends += u64::from(some);
                true
            }
            Err(_) => {
                wire.stream().shutdown();
                false
            }
        }
    }
}

/// What is fetched: rows at `places` of what is consumed, once they have the version.
pub(super) struct Fetch<'a> {
    pub(super) id: PartitionId,
    pub(super) places: &'a RowSet,
    pub(super) version: u64,
}

/// What came of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    /// The rows.
    Rows,
    /// Nothing, although everything that was set has come: no peer has the rows as they were asked for.
    Nothing,
    /// Nothing in time: there may be rows that have not come.
    TooLate,
}

/// What a relay is started with.
pub(in crate::worker) struct Setup {
    pub(in crate::worker) server: u32,
    /// This worker's.
    pub(in crate::worker) rank: Rank,
    pub(in crate::worker) purpose: Purpose,
    pub(in crate::worker) dialer: Arc<Dialer>,
    pub(in crate::worker) fate: Arc<Fate>,
    pub(in crate::worker) lease: Duration,
}

struct Shared {
    setup: Setup,
    state: Mutex<State>,
    answers: Arc<Answers>,
    wakeup: Wakeup,
    stop: AtomicBool,
    /// Whether the thread leaves what comes to calls that wait.
    left_to_calls: AtomicBool,
}

/// The connection and its thread.
pub(in crate::worker) struct Relay {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Relay {
    pub(in crate::worker) fn start(setup: Setup) -> Result<Self, Error> {
        let answers = Arc::new(Answers::default());
        let mut node = Node::new(Mirrors { answers: Arc::clone(&answers) });
        // No other job has turns here, and in steps the rows of a set would be overtaken by those of the next.
        node.look_at_most(u64::MAX);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { node, wire: None, own: Vec::new(), burst: Burst::default(), sends: 0 }),
            answers,
            wakeup: Wakeup::new().map_err(Error::system("make a descriptor"))?,
            stop: AtomicBool::new(false),
            left_to_calls: AtomicBool::new(false),
            setup,
        });
        let thread = {
            let shared = Arc::clone(&shared);
            thread::spawn(format!("penstock-items-{}", shared.setup.server), move || shared.run())
        };
        let thread = thread.map_err(Error::system("start a thread"))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `work` on the node and sends what comes of it.
    fn with<T>(&self, work: impl FnOnce(&mut Node<Mirrors>) -> T) -> T {
        self.with_state(|state| (work(&mut state.node), state.transmit()))
    }

    /// Runs `work`, which sends what comes of it and says whether the connection still stands.
    fn with_state<T>(&self, work: impl FnOnce(&mut State) -> (T, bool)) -> T {
        let mut state = lock(&self.shared.state);
        let (result, stands) = work(&mut state);
        let sent = stands && state.wire.as_ref().is_some_and(|wire| !wire.holds_output());
        drop(state);
        if !sent {
            self.shared.ring();
        }
        result
    }

    /// Asks for something that is answered by number. Answers are taken under the same lock, so none comes before it is awaited.
    fn ask(&self, ask: impl FnOnce(&mut Node<Mirrors>) -> Option<u64>) -> Option<Awaited> {
        self.with(|node| ask(node).map(|number| self.shared.answers.expect(number)))
    }

    fn ask_to_flush(&self) -> Awaited {
        self.with(|node| self.shared.answers.expect(node.flush(HOME)))
    }

    /// Rows that this worker writes go to the server.
    pub(super) fn produce(&self, id: PartitionId, shape: Shape, rows: Rows, waiters: Waiters) {
        let (own, memory) =
            (PeerId::worker(self.shared.setup.rank), PartitionMemory::followed(rows, waiters));
        let asked = shape.propagation != Propagation::Eager;
        self.with_state(|state| {
            state.own.push((id, asked));
            state.node.produce(id, own, shape, memory, Some(HOME));
            // The thread may be asleep since before these rows were: their first set must not rely on it.
            ((), announce_then_look(state, State::announce, State::transmit))
        });
    }

    /// Slots `rows` of what another worker writes come from the server, into memory that is returned.
    pub(super) fn consume(
        &self,
        id: PartitionId,
        shape: Shape,
        rows: RowSet,
    ) -> Result<(Rows, Waiters), Error> {
        let made = || -> rustix::io::Result<(Writer, Waiters)> {
            Ok((Writer::private(Layout::new(rows.len() as u32, shape.row_bytes))?, Waiters::private()?))
        };
        let (writer, waiters) = made().map_err(Error::system("make a table's memory"))?;
        let seen = (writer.rows().clone(), waiters.clone());
        self.with(|node| node.consume(id, HOME, shape, rows, PartitionMemory::mirror(writer, waiters)));
        Ok(seen)
    }

    /// No worker uses a table any more.
    pub(super) fn drop_table(&self, table: u32) {
        lock(&self.shared.state).own.retain(|(id, _)| id.table != table);
        self.with(|node| node.drop_table(table));
    }

    /// Rows of this worker have changed.
    pub(super) fn kick(&self) {
        match self.shared.state.try_lock() {
            Ok(mut state) => {
                if state.burst.lasts() {
                    return; // the thread looks once more before it announces that it does not
                }
                let before = state.sends;
                // As before this relay's own thread sleeps, which is left asleep.
                let sent = announce_then_look(&mut *state, State::announce, State::transmit)
                    && state.wire.as_ref().is_some_and(|wire| !wire.holds_output());
                let sends = state.sends;
                if sent && sends > before {
                    state.burst.called(sends, Instant::now());
                }
                // Before others see that it is a burst: they leave their rows to the thread, which may be asleep.
                if !sent || state.burst.lasts() {
                    self.shared.ring();
                }
            }
            // The thread inside may have looked before the rows were set.
            Err(_) => self.shared.ring(),
        }
    }

    /// Asks for rows, and waits for them until they have come, or `gone` says that they are no longer set and that all that
    /// was set has come: since their producer was `lost`, if it was, their home has had time to hear of it. An error as soon as
    /// the table no longer `stands`: its home then answers nothing.
    pub(super) fn fetch(
        &self,
        Fetch { id, places, version }: Fetch<'_>,
        deadline: Deadline,
        stands: impl Fn() -> Result<(), Error>,
        mut gone: impl FnMut() -> Result<bool, Error>,
        lost: impl Fn() -> Option<Instant>,
    ) -> Result<Fetched, Error> {
        let ticket = self.ask(|node| node.fetch(id, places, version));
        let Some(ticket) = ticket else { return stands().map(|()| Fetched::TooLate) };
        if self.wait(&ticket, deadline, || stands().and_then(|()| gone()))? {
            return Ok(Fetched::Rows);
        }
        // What a producer that has left handed over may be on its way, or wait for the connection.
        if !self.bring(id, deadline, &stands)? {
            return Ok(Fetched::TooLate);
        }
        // Their home may hear later than this worker that it is gone: from a worker's beat, which comes each eighth of a lease,
        // and then it may wait a quarter for a worker that knows better.
        let known = lost().map_or(Duration::ZERO, |since| since.elapsed());
        // After that time its home has answered before the flush came back.
        let last_words = LAST_WORDS.max(self.shared.setup.lease / 2).saturating_sub(known).max(LATE_WORDS);
        let left = deadline.left();
        if self.wait(&ticket, Deadline::new(left.min(last_words)), || stands().map(|()| false))? {
            return Ok(Fetched::Rows);
        }
        Ok(if left < last_words { Fetched::TooLate } else { Fetched::Nothing })
    }

    /// The same without waiting.
    pub(super) fn prefetch(&self, Fetch { id, places, version }: Fetch<'_>) {
        self.with(|node| node.fetch_ahead(id, places, version));
    }

    /// Versions that this worker's gets wait for, and that the next will ask for.
    pub(super) fn need(&self, id: PartitionId, versions: Vec<u64>) {
        self.with(|node| node.need(id, versions));
    }

    /// Takes what has come, for a thread that has nothing else to do: so no other has to be woken first. In a burst it also sends what
    /// has been set.
    pub(super) fn help(&self) {
        if let Ok(mut state) = self.shared.state.try_lock() {
            let State { node, wire, burst, .. } = &mut *state;
            let Some(wire) = wire else { return };
            let through = match wire.receive(node, HOME) {
                Ok(false) if !burst.lasts() => return,
                // Also what this worker has set, which the thread may not have come to.
                Ok(_) => {
                    let through = |wire: &ItemWire| !wire.holds_output() && !wire.holds_input();
                    state.transmit() && state.wire.as_ref().is_some_and(through)
                }
                // The connection's own thread finds out what is wrong with it.
                Err(_) => false,
            };
            drop(state);
            // The socket does not say again what was read of it and not heard.
            if !through {
                self.shared.ring();
            }
        }
    }

    /// From a thread that has helped and is about to sleep: the relay's own is to look at what comes.
    pub(super) fn stop_helping(&self) {
        if self.shared.left_to_calls.swap(false, Ordering::AcqRel) {
            self.shared.ring();
        }
    }

    /// Waits until all rows of a partition that are due here by now have come. `false` if they did not in time: what other
    /// producers set is not waited for. An error as soon as the table no longer `stands`.
    pub(super) fn bring(
        &self,
        id: PartitionId,
        deadline: Deadline,
        stands: impl Fn() -> Result<(), Error>,
    ) -> Result<bool, Error> {
        // If the table has been dropped meanwhile, none come from the server.
        let Some(brought) = self.ask(|node| node.bring(id)) else { return stands().map(|()| true) };
        let came = self.wait(&brought, deadline, || stands().map(|()| false))?;
        // What is not needed any more is answered without its rows.
        stands().map(|()| came)
    }

    /// Waits until everything that was set here is at the server, and what the server wants is known here. It is an error if
    /// that did not happen in time.
    pub(in crate::worker) fn deliver(&self, deadline: Deadline) -> Result<(), Error> {
        self.deliver_while(|| self.shared.setup.fate.check(), deadline)
    }

    /// The same, as long as the job `stands`.
    fn deliver_while(&self, stands: impl Fn() -> Result<(), Error>, deadline: Deadline) -> Result<(), Error> {
        if self.wait_while(stands, &self.ask_to_flush(), deadline, || Ok(false))? {
            return Ok(());
        }
        let (server, waited) = (self.shared.setup.server, deadline.waited());
        Err(Error::Unanswered { server, what: "take the rows of this worker", waited })
    }

    /// Waits for an answer: `false` if it did not come in time, or `gone` says that it never will.
    fn wait(
        &self,
        answer: &Awaited,
        deadline: Deadline,
        gone: impl FnMut() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        self.wait_while(|| self.shared.setup.fate.check(), answer, deadline, gone)
    }

    /// The same, as long as the job `stands`.
    fn wait_while(
        &self,
        stands: impl Fn() -> Result<(), Error>,
        answer: &Awaited,
        deadline: Deadline,
        mut gone: impl FnMut() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let Awaited { answers, number } = answer;
        let has_come = |awaited: &BTreeMap<u64, bool>| awaited.get(number) == Some(&true);
        let mut patience = Patience::new(&Crowd::Taken(true));
        loop {
            if !patience.pause() {
                self.stop_helping();
                break;
            }
            if has_come(&lock(&answers.awaited)) {
                break;
            }
            self.help();
        }
        let mut slept = false;
        loop {
            // Before anything is locked: to tell takes locks, and rings.
            let untold = self.shared.setup.fate.untold.before_sleep(&mut slept);
            let awaited = lock(&answers.awaited);
            if has_come(&awaited) {
                return Ok(true);
            }
            let left = deadline.left();
            if left.is_zero() {
                return Ok(false);
            }
            let waited = answers.changed.wait_timeout(awaited, left.min(INTERRUPT_EVERY).min(untold));
            let awaited = waited.unwrap_or_else(PoisonError::into_inner).0;
            if has_come(&awaited) {
                return Ok(true);
            }
            drop(awaited);
            self.shared.setup.fate.check_interrupt()?;
            // Behind a signal handler that may have forked: the rings are its parent's.
            stands()?;
            if gone()? {
                return Ok(false);
            }
        }
    }

    /// Bytes of a table's rows that went out and came in.
    pub(super) fn traffic(&self, table: u32) -> (u64, u64) {
        lock(&self.shared.state).node.traffic(table)
    }

    /// Waits until everything that was set is at the server, also what has not been asked for so far.
    pub(in crate::worker) fn hand_over(&self, deadline: Deadline) -> Result<(), Error> {
        let stands = || self.shared.setup.fate.stands();
        // First whatever the server has asked for so far must be known here.
        self.deliver_while(stands, deadline)?;
        lock(&self.shared.state).node.hand_over();
        self.deliver_while(stands, deadline)
    }

    /// Ends the thread.
    pub(in crate::worker) fn end(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use penstock_proto::items::Propagation;
    use penstock_proto::message::Secret;
    use std::cell::Cell;
    use std::net::TcpListener;

    #[test]
    fn an_answer_that_nobody_waits_for_is_not_kept() {
        let answers = Arc::new(Answers::default());
        answers.note(1); // fetched ahead
        let (given_up, awaited) = (answers.expect(2), answers.expect(3));
        drop(given_up);
        answers.note(2);
        answers.note(3);
        assert_eq!(*lock(&answers.awaited), BTreeMap::from([(3, true)]));
        drop(awaited);
        assert!(lock(&answers.awaited).is_empty());
        assert_eq!(*lock(&answers.given_up), [2]);
    }

    /// A relay to a server that is away, and the listener in its place.
    pub(super) fn relay_to_nobody() -> (Relay, TcpListener) {
        let away = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("127.0.0.1:{}", away.local_addr().unwrap().port()).parse().unwrap();
        let dialer = Dialer::new(address, "job", Secret([0; 32]), &Options::load([]).unwrap()).unwrap();
        let relay = Relay::start(Setup {
            server: 0,
            rank: 0,
            purpose: Purpose::Items { peer: PeerId::worker(0), session: [0; 16] },
            dialer: Arc::new(dialer),
            fate: Arc::default(),
            lease: Duration::from_secs(60),
        });
        (relay.unwrap(), away)
    }

    const ID: PartitionId = PartitionId { table: 0, rank: 1 };

    /// The one row of a partition comes from the server.
    fn consume_one(relay: &Relay) -> RowSet {
        let (row, propagation) = (RowSet::from_rows([0]), Propagation::Lazy);
        relay.consume(ID, Shape { slots: 1, row_bytes: 8, propagation }, row.clone()).unwrap();
        row
    }

    fn dropped() -> Error {
        Error::Dropped { name: "T".to_owned() }
    }

    // A get returned old rows of a table that another thread had dropped since it began.
    #[test]
    fn rows_of_a_table_that_is_dropped_when_they_are_asked_for_are_not_said_to_have_come() {
        let (relay, _away) = relay_to_nobody();
        let places = consume_one(&relay);
        relay.drop_table(ID.table);
        let (deadline, stands) = (Deadline::new(Duration::from_secs(600)), || Err(dropped()));
        assert_eq!(relay.bring(ID, deadline, stands), Err(dropped()));
        let fetch = Fetch { id: ID, places: &places, version: 1 };
        assert_eq!(relay.fetch(fetch, deadline, stands, || Ok(false), || None), Err(dropped()));
    }

    // It waited until its deadline, or for a producer's last words.
    #[test]
    fn who_waits_for_rows_hears_at_every_turn_that_their_table_is_dropped() {
        for turns in 0..4u32 {
            let (relay, _away) = relay_to_nobody();
            let places = consume_one(&relay);
            let left = Cell::new(turns);
            let stands = || {
                // What is asked second, whether all has been brought, is answered once it is waited for.
                relay.shared.answers.note(2);
                left.replace(left.get().saturating_sub(1)).checked_sub(1).map(drop).ok_or_else(dropped)
            };
            let (fetch, deadline) =
                (Fetch { id: ID, places: &places, version: 1 }, Deadline::new(Duration::from_secs(600)));
            assert_eq!(relay.fetch(fetch, deadline, stands, || Ok(true), || None), Err(dropped()), "{turns}");
            assert_eq!(left.get(), 0, "{turns}");
        }
    }

    // Each get of rows that took longer than a thread spins woke all shards, which took the processors from those it waited for.
    #[test]
    fn who_waits_for_rows_for_less_than_a_millisecond_wakes_no_shard() {
        let (relay, _away) = relay_to_nobody();
        let places = consume_one(&relay);
        let untold = &relay.shared.setup.fate.untold;
        let _kept = untold.keep_from_one(1);
        let kept = Cell::new(None);
        // Asked after each sleep. As long as a shard was not told, a sleep is to be a short one.
        let stands = || {
            kept.set(kept.get().or_else(|| Some(untold.before_sleep(&mut false) < Duration::MAX)));
            relay.shared.answers.note(1);
            Ok(())
        };
        let (fetch, deadline) =
            (Fetch { id: ID, places: &places, version: 1 }, Deadline::new(Duration::from_secs(600)));
        assert_eq!(relay.fetch(fetch, deadline, stands, || Ok(false), || None), Ok(Fetched::Rows));
        assert_eq!(kept.get(), Some(true));
    }

    /// The relay's own thread was left asleep and had said so long before: what was set next waited until it looked by itself.
    #[test]
    fn a_set_rings_again_after_a_thread_has_sent_in_the_relays_place() {
        let (relay, _away) = relay_to_nobody();
        let mut writer = Writer::private(Layout::new(1, 8)).unwrap();
        let waiters = Waiters::private().unwrap();
        let shape = Shape { slots: 1, row_bytes: 8, propagation: Propagation::Eager };
        relay.produce(PartitionId { table: 0, rank: 0 }, shape, writer.rows().clone(), waiters.clone());
        let mut rings = || {
            let mut set = writer.begin(1);
            set.put(0, 1, &[1; 8]);
            set.finish();
            waiters.wake(writer.rows())
        };
        // Of rows that are new, as those whose subscription came to a call: they lay until the thread looked by itself.
        assert!(rings());
        assert!(!rings(), "once for each sleep");
        for _ in 0..2 {
            relay.kick();
            assert!(rings());
            assert!(!rings(), "once for each sleep");
        }
    }

    // Each was asked again on every connection, and kept at the rows' home until the reader was lost for them.
    #[test]
    fn what_a_get_waited_for_in_vain_is_not_asked_for_any_more() {
        let (relay, _away) = relay_to_nobody();
        let places = consume_one(&relay);
        let (deadline, stands) = (Deadline::new(Duration::from_millis(1)), || Ok(()));
        for _ in 0..3 {
            let fetch = Fetch { id: ID, places: &places, version: 1 };
            let fetched = relay.fetch(fetch, deadline, stands, || Ok(false), || None);
            assert_eq!(fetched, Ok(Fetched::TooLate));
            assert_eq!(relay.bring(ID, deadline, stands), Ok(false));
            assert!(relay.deliver(deadline).is_err());
        }
        relay.with(|_| ());
        assert_eq!(lock(&relay.shared.state).node.unanswered(), 0);
    }
}
