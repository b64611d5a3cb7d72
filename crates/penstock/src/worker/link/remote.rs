//! A server on another host: control messages on a connection that is made again when it breaks, and proxies for its shards.
//!
//! A request that has no answer when a connection breaks is repeated on the next; the server carries it out once. The server
//! answers every sign of life, so that silence is noticed at both ends: after a lease without a word it counts as lost.

use super::doors::Doors;
use super::proxy::{self, Allowance, Command, Credentials, For, Lendable, Own, RemoteHome};
use super::{Channel, Introduction, Link, Newcomer, Outlets, Wire, judge, lock};
use crate::options::Options;
use crate::thread::{self, Wakeup};
use crate::user_directory::{RUNTIME, UserDirectory};
use crate::wait::{Crowd, Deadline, INTERRUPT_EVERY, OneCore, cores, poll, until_readable};
use crate::wire::Ended as Over;
use crate::wire::dial::{DialError, Dialer};
use crate::wire::records::RecordStream;
use crate::wire::redial::{Caller, Failed, PAUSE, Redial};
use crate::wire::vigil::{Vigil, look_every};
use crate::worker::Error;
use crate::worker::fate::Fate;
use penstock_fabric::layout::{flags, page};
use penstock_fabric::memory::{ExtentLayout, HomeMemory, HomeRegions, LaneView, Place, StateMirror, Windows};
use penstock_fabric::net::endpoint::Address;
use penstock_fabric::net::stream::Stream;
use penstock_fabric::region::{Region, Writers};
use penstock_fabric::socket::Received;
use penstock_fabric::sync::Ordering;
use penstock_proto::TensorId;
use penstock_proto::handshake::Purpose;
use penstock_proto::job::job_number;
use penstock_proto::message::SlabSpot;
use penstock_proto::message::{
    Answer, Ask, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Welcome, decode, encode,
};
use penstock_proto::peer::PeerId;
use penstock_proto::placement;
use penstock_proto::pressure::Flow;
use penstock_proto::redial::{self, Pauses};
use penstock_proto::seal::{Scope, Verifier};
use penstock_proto::travel::Terms;
use penstock_proto::uplink::Reports;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Number of every hello, the first and those after it.
pub(super) const HELLO: u64 = u64::MAX;
/// Number of every sign of life.
const BEAT: u64 = u64::MAX - 1;
/// Number of the word that the last word was heard.
pub(super) const HEARD: u64 = u64::MAX - 2;
/// Number of every report of what this host's link carries.
const UPLINK: u64 = u64::MAX - 3;

/// A connection for control messages, and how to make another.
pub(super) struct Records {
    dialer: Arc<Dialer>,
    hello: Vec<u8>,
    stream: Mutex<Option<RecordStream>>,
    /// Signs of life that the server has answered.
    answered: AtomicU64,
}

impl Records {
    /// The server has heard a sign of life, and says so.
    pub(super) fn count_answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends a request, now or when there is a connection again: then every open one is repeated.
    pub(super) fn send(&self, bytes: &[u8]) {
        let mut stream = lock(&self.stream);
        if let Some(records) = &mut *stream
            && records.send(bytes).is_err()
        {
            // The link's thread finds it gone and makes another.
            records.stream().shutdown();
        }
    }
}

fn seconds(lease_ms: u64) -> Duration {
    Duration::from_millis(lease_ms)
}

/// Says hello until the server has welcomed this worker, over as many connections as it takes: whether the hello or the welcome
/// was lost, the session in the hello shows that it is the same worker.
fn introduce(
    dialer: &Dialer,
    hello: impl Fn(&Stream) -> Result<Vec<u8>, Error>,
    server: u32,
    deadline: Deadline,
    fate: &Fate,
) -> Result<(RecordStream, Vec<u8>, Welcome), Error> {
    let redial = redial::Redial::until(Pauses::even(PAUSE), deadline.waited() + deadline.left());
    let sleep = |pause| {
        std::thread::sleep(pause);
        Ok::<_, Error>(())
    };
    // A failed attempt says why the server was not reached, unless it was.
    let attempt = || {
        let reason = match reach(dialer, server, deadline, fate)? {
            Err(reason) => Some(reason),
            Ok(mut records) => {
                let attempt = Deadline::new(dialer.attempt().min(deadline.left()));
                let hello = hello(records.stream())?;
                let welcome = match records.send(&hello) {
                    Ok(()) => welcome(&mut records, server, attempt, fate)?,
                    Err(_) => None,
                };
                if let Some(welcome) = welcome {
                    return Ok(ControlFlow::Break((records, hello, welcome)));
                }
                None
            }
        };
        fate.look()?;
        Ok(ControlFlow::Continue(reason))
    };
    let waited = || deadline.waited();
    match redial.run(waited, sleep, attempt)? {
        ControlFlow::Break(welcomed) => Ok(welcomed),
        ControlFlow::Continue(None) => {
            Err(Error::Unanswered { server, what: "welcome this worker", waited: waited() })
        }
        ControlFlow::Continue(Some(reason)) => {
            let path = dialer.address().to_string();
            Err(Error::ConnectTimeout { server, path, reason, waited: waited() })
        }
    }
}

/// Dials once: the connection, or why it did not come about now.
fn reach(
    dialer: &Dialer,
    server: u32,
    deadline: Deadline,
    fate: &Fate,
) -> Result<Result<RecordStream, String>, Error> {
    let gives_up = || fate.look().is_err();
    let until = Instant::now() + deadline.left().min(dialer.attempt());
    match dialer.dial(Purpose::Control, until, &gives_up) {
        Ok(stream) => Ok(Ok(RecordStream::new(stream, MAX_MESSAGE_BYTES))),
        Err(DialError::Unreachable(error)) => Ok(Err(error.to_string())),
        Err(DialError::Refused(refusal) | DialError::Unproved(refusal)) => Err(refusal.into()),
        Err(DialError::Untrusted(reason)) => {
            Err(Error::Untrusted { server, address: dialer.address().to_string(), reason })
        }
        Err(DialError::GivenUp) => {
            fate.check()?;
            Err(Error::Interrupted)
        }
        Err(DialError::Lacking(reason)) => {
            Err(Error::System { what: "make a connection to a server", reason })
        }
    }
}

/// Waits for the welcome, before there is a thread to listen; `None` if the connection ends or stays silent instead.
fn welcome(
    records: &mut RecordStream,
    server: u32,
    attempt: Deadline,
    fate: &Fate,
) -> Result<Option<Welcome>, Error> {
    loop {
        match records.flush().map_err(Over::from).and_then(|_| records.receive()) {
            Err(_) => return Ok(None),
            Ok(None) => {}
            Ok(Some(message)) => {
                let what = match decode::<Reply>(&message).map(|reply| reply.body.brief()) {
                    Ok(Answer::Welcome(welcome)) => return Ok(Some(welcome)),
                    Ok(Answer::Refused(refusal)) => return Err(refusal.into()),
                    Ok(Answer::Failed(failure)) => return Err(failure.into()),
                    Ok(other) => format!("{other:?} instead of a welcome"),
                    Err(error) => error.to_string(),
                };
                return Err(Error::Protocol { server, what });
            }
        }
        fate.look()?;
        if attempt.left().is_zero() {
            return Ok(None);
        }
        let _ = until_readable(records.stream(), attempt.left().min(INTERRUPT_EVERY));
    }
}

/// Of a tensor that has regions of its own: the proxies' ends, the worker's, and what it takes to lend it.
type Alone = (Vec<HomeMemory>, Vec<LaneView>, Place, Option<Lendable>);

impl Link {
    /// Joins a server on another host. `server` is the number that it must have.
    pub(in crate::worker) fn join_remote(
        dialer: Dialer,
        also: &[Address],
        who: &Introduction,
        server: u32,
        fate: &Arc<Fate>,
        options: &Options,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let Introduction { secret, session, rank, size, .. } = *who;
        let newcomer = Newcomer { options, secret, session, rank, size, fate };
        let dialer = Arc::new(dialer);
        let hello = |stream: &Stream| {
            let hello = Ask::Hello {
                version: PROTOCOL_VERSION,
                session: who.session,
                peer: PeerId::worker(who.rank),
                size: who.size,
                overlay: who.threshold.joining_by(stream, &dialer, &newcomer)?,
            };
            encode(&Request { id: HELLO, settled: 0, open: Vec::new(), body: hello })
                .map_err(|error| Error::Protocol { server, what: error.to_string() })
        };
        let (records, hello, welcome) = introduce(&dialer, hello, server, deadline, fate)?;
        let doors = who.threshold.doors();
        judge(&welcome, server)?;
        // The servers' cores are not ours: here the worker and a proxy for each shard of each server want one.
        let proxies = welcome.shards.saturating_mul(welcome.servers);
        let crowd = Arc::new(Crowd::Taken(proxies.saturating_add(1) > cores()));
        let region =
            |name, bytes| Region::new(name, bytes, Writers::Holders).map_err(Error::system("make a page"));
        let page = region("penstock-page", page::bytes(welcome.shards))?;
        let flags = region("penstock-flags", flags::BYTES)?;
        let (dialer_of_records, stream) = (Arc::clone(&dialer), Mutex::new(Some(records)));
        let records = Records { dialer: dialer_of_records, hello, stream, answered: AtomicU64::new(0) };
        fate.rings(Arc::clone(page.mapping()));
        let stop = Arc::new(Wakeup::new().map_err(Error::system("make a descriptor"))?);
        let started = Error::system::<std::io::Error>("start a thread");
        let (mut proxies, mut wakeups) = (Vec::new(), Vec::new());
        let meets = options.lend.then(|| UserDirectory::of(std::env::var(RUNTIME).ok()));
        // Shards have even loads, and so do the interfaces if the shards take turns on them.
        let mut ways = vec![Arc::clone(&dialer)];
        ways.extend(also.iter().map(|address| Arc::new(dialer.by(address.clone()))));
        for (shard, dialer) in (0..welcome.shards).zip(ways.iter().cycle()) {
            let scope = Scope { job: job_number(dialer.job()), server, shard };
            let verifier = doors.as_ref().map(|_| Verifier::new(&welcome.key, scope)).transpose();
            let verifier = verifier.map_err(|error| Error::Protocol { server, what: error.to_string() })?;
            let setup = proxy::Setup {
                server,
                rank: who.rank,
                size: who.size,
                shard,
                purpose: Purpose::Shard { peer: PeerId::worker(who.rank), session: who.session, shard },
                crowd: Arc::clone(&crowd),
                lease: seconds(welcome.lease_ms),
                dialer: Arc::clone(dialer),
                page: Arc::clone(page.mapping()),
                flags: Arc::clone(flags.mapping()),
                fate: Arc::clone(fate),
                doors: doors.clone(),
                verifier,
                credentials: Credentials { secret, session },
                meets: meets.clone(),
            };
            let (proxy, wakeup) = proxy::start(setup).map_err(&started)?;
            if let Some(doors) = &doors {
                doors.lead_to(server, shard, (proxy.teller(), proxy.entrance()));
            }
            proxies.push(proxy);
            wakeups.push(wakeup);
        }
        let outlets = Outlets::new(Arc::clone(page.mapping()), Arc::clone(flags.mapping()), wakeups);
        let outlets = fate.untold.add(outlets);
        let wire = Arc::new(Wire {
            channel: Channel::Remote(Box::new(records)),
            page: Arc::clone(page.mapping()),
            open: Mutex::default(),
            slabs: Mutex::default(),
            outlets,
            server,
            rank: who.rank,
            left: AtomicBool::new(false),
            let_go: AtomicBool::new(false),
        });
        let thread = {
            let (wire, fate, stop) = (Arc::clone(&wire), Arc::clone(fate), Arc::clone(&stop));
            let lease = seconds(welcome.lease_ms);
            let name = format!("penstock-link-{server}");
            thread::spawn(name, move || wire.listen_remote(&fate, &stop, lease, doors.as_deref()))
                .map_err(&started)?
        };
        Ok(Self {
            welcome,
            wire,
            waiters: Mutex::new(0),
            asked: AtomicU64::new(0),
            doubtful: Mutex::default(),
            fate: Arc::clone(fate),
            stop,
            thread: Some(thread),
            proxies,
            crowd,
            one_core: OneCore::default(),
        })
    }

    /// What the connection to each of the server's shards has carried, and how fast, if it is known; none, if it is on this host.
    pub(in crate::worker) fn flows(&self) -> impl Iterator<Item = Option<Flow>> {
        self.proxies.iter().map(proxy::Handle::flow)
    }

    /// Whether the server is on another host.
    pub(in crate::worker) fn is_remote(&self) -> bool {
        !self.proxies.is_empty()
    }

    /// Makes the memory of a tensor on this side of the network, and tells the proxies: where model and lane are, and what each
    /// shard's proxy and the tensor tell each other.
    pub(in crate::worker) fn mirror(
        &self,
        id: TensorId,
        layout: ExtentLayout,
        pooled: bool,
        terms: &Arc<Terms>,
        homed: &[u32],
        mut loads: Vec<u64>,
    ) -> Result<(Place, Vec<Arc<RemoteHome>>), Error> {
        let server = self.wire.server;
        let sizes = layout.extent().chunks().map(|chunk| layout.value(chunk).len() as u64);
        let shards = self.welcome.shards;
        let shard_of =
            if loads.len() == shards as usize { placement::shards(&mut loads, sizes) } else { Vec::new() };
        let count = |shard: u32| shard_of.iter().filter(|&&of| of == shard).count() as u32;
        if shard_of.len() != layout.extent().count as usize
            || !(0..shards).map(count).eq(homed.iter().copied())
        {
            let what = "its shards are homes of other chunks than it says".to_owned();
            return Err(Error::Protocol { server, what });
        }
        let is_tree = terms.propagation.is_unasked() && terms.updates.is_none();
        let lends = is_tree && self.proxies.iter().all(|proxy| proxy.lends);
        let (homes, lanes, place, lendable) = if pooled {
            let (homes, lanes, place) =
                lock(&self.wire.slabs).mirror(layout.pooled(shards), &shard_of.into(), shards)?;
            (homes, lanes, place, None)
        } else {
            Self::mirror_alone(layout, &shard_of, shards, lends)?
        };
        let mut remotes = Vec::new();
        for ((proxy, home), lane) in self.proxies.iter().zip(homes).zip(lanes) {
            let (chunks, is_fresh) = (home.chunks().into(), AtomicBool::new(true));
            let remote = Arc::new(RemoteHome { chunks, is_fresh, ..RemoteHome::default() });
            remotes.push(Arc::clone(&remote));
            if !home.chunks().is_empty() {
                let (home, terms, lendable) = (Box::new(home), Arc::clone(terms), lendable.clone());
                proxy.send(Command::Declare { id, home, lane, remote, terms, lendable });
            }
        }
        Ok((place, remotes))
    }

    /// The memory of a tensor that has regions of its own: the proxies' ends, and the worker's.
    fn mirror_alone(
        layout: ExtentLayout,
        shard_of: &[u32],
        shards: u32,
        lends: bool,
    ) -> Result<Alone, Error> {
        let made = || Error::system("make a tensor's memory");
        let (homes, model) =
            HomeRegions::new("penstock-mirror", layout).map_err(made())?.split(shard_of, shards);
        let (lanes, region) = LaneView::new("penstock-lane", layout.lane(), shards).map_err(made())?;
        let copied = Error::system::<std::io::Error>("copy a descriptor");
        let seen = model.model().try_clone_to_owned().map_err(&copied)?;
        let lane = region.fd().try_clone_to_owned().map_err(&copied)?;
        // A region that may be lent keeps its descriptor as long as the tensor is there. Beyond a share of what this process may have
        // open it is not lent, and keeps none.
        let Some(allowance) = lends.then(|| Allowance::take(For::OWN)).flatten() else {
            return Ok((homes, lanes, Place::Own(seen, lane), None));
        };
        let windows = Arc::new(Windows::new(layout, shard_of, shards));
        let place = Place::Windows(seen, lane, Arc::clone(&windows));
        Ok((
            homes,
            lanes,
            place,
            Some(Lendable { windows, own: Arc::new(Own::new(model.into_model(), allowance)) }),
        ))
    }

    /// Where a tensor lies in the slabs of a server on this host; `None` if their descriptors have not come: there was no room
    /// for them when they were passed.
    pub(in crate::worker) fn find(&self, spots: &[SlabSpot; 2]) -> Result<Option<Place>, Error> {
        lock(&self.wire.slabs).find(spots, self.welcome.shards)
    }

    /// Makes the memory that the optimizer's state of a tensor is received in.
    pub(in crate::worker) fn state_mirror(
        &self,
        id: TensorId,
        layout: ExtentLayout,
    ) -> Result<OwnedFd, Error> {
        let (state, region) =
            StateMirror::new("penstock-state", layout).map_err(Error::system("make a state's memory"))?;
        for proxy in &self.proxies {
            proxy.send(Command::State { id, state: state.clone() });
        }
        region.fd().try_clone_to_owned().map_err(Error::system("copy a descriptor"))
    }
}

impl Wire {
    /// The link's thread: a sign of life every eighth of a lease, whatever the server says, and another connection
    /// when one breaks.
    fn listen_remote(&self, fate: &Fate, stop: &Wakeup, lease: Duration, doors: Option<&Doors>) {
        let Channel::Remote(records) = &self.channel else { return };
        let mut redial = Redial::new(Arc::clone(&records.dialer), Purpose::Control);
        let mut vigil = Vigil::new(lease);
        // Messages that came, and how many had come when this connection was made.
        let (mut heard, mut before) = (1, 0);
        let mut reports = Reports::default();
        loop {
            if vigil.is_gone(heard) {
                self.lost(fate, &vigil);
                break;
            }
            if lock(&records.stream).is_none() {
                redial.ended(heard > before, "it ended");
                if !self.connect(records, &Listening { fate, stop }, &mut redial, &mut vigil, heard) {
                    break;
                }
                before = heard;
                reports.forget();
            } else if vigil.is_silent(records.answered.load(Ordering::Relaxed)) {
                // What the server sends unasked does not show that it hears this worker; only its answers do. The connection is
                // made anew before either side takes the other for lost.
                *lock(&records.stream) = None;
                continue;
            }
            if vigil.is_time_to_beat() {
                let (settled, open) = lock(&self.open).settled();
                if let Ok(bytes) = encode(&Request { id: BEAT, settled, open, body: Ask::Beat }) {
                    records.send(&bytes);
                }
            }
            if let Some(measured) = doors.and_then(|doors| doors.uplink().due(&mut reports)) {
                let (settled, open) = lock(&self.open).settled();
                let body = Ask::Uplink(measured);
                if let Ok(bytes) = encode(&Request { id: UPLINK, settled, open, body }) {
                    records.send(&bytes);
                }
            }
            fate.untold.tell();
            if !wait(records, stop, look_every(lease).min(self.look_for_untold())) {
                break;
            }
            match self.receive_all(records, fate) {
                Ok(count) => heard += count as u64,
                Err(Ended) => break,
            }
        }
        // Those that still wait for an answer hear that none will come.
        lock(&self.open).close();
    }

    /// Connects again; `false` when the link ends instead.
    fn connect(
        &self,
        records: &Records,
        listening: &Listening<'_>,
        redial: &mut Redial,
        vigil: &mut Vigil,
        heard: u64,
    ) -> bool {
        let fate = listening.fate;
        let stream = match redial.connect(vigil, heard, listening) {
            Ok(stream) => stream,
            Err(Failed::Refused(refusal)) => return self.shut_out(fate, refusal),
            Err(failed) => {
                let failure = failed.failure(vigil, (self.server, self.rank), "it", "");
                if let Some(failure) = failure.filter(|_| !self.left.load(Ordering::Acquire)) {
                    fate.fail(failure);
                }
                return false;
            }
        };
        let mut again = RecordStream::new(stream, MAX_MESSAGE_BYTES);
        let mut stream = lock(&records.stream);
        // First who we are, then everything that has no answer, in the order in which it was asked.
        let open: Vec<Vec<u8>> = lock(&self.open).again().map(<[u8]>::to_vec).collect();
        let sent =
            again.send(&records.hello).and_then(|()| open.iter().try_for_each(|bytes| again.send(bytes)));
        if sent.is_ok() {
            *stream = Some(again);
        }
        true
    }

    /// Nothing came from the server for a lease.
    fn lost(&self, fate: &Fate, vigil: &Vigil) {
        if !self.left.load(Ordering::Acquire) {
            fate.fail(vigil.verdict(self.server, self.rank, format!("it {}", vigil.epitaph())));
        }
    }

    /// Takes every message that is there; returns how many.
    fn receive_all(&self, records: &Records, fate: &Fate) -> Result<usize, Ended> {
        let mut count = 0;
        loop {
            let message = {
                let mut stream = lock(&records.stream);
                let Some(open) = &mut *stream else { return Ok(count) };
                match open.flush().map_err(Over::from).and_then(|_| open.receive()) {
                    Ok(None) => return Ok(count),
                    Ok(Some(message)) => message,
                    Err(error) => {
                        tracing::info!(server = self.server, ?error, "the control connection has ended");
                        *stream = None;
                        return Ok(count);
                    }
                }
            };
            count += 1;
            if !self.hear(fate, &message, Received::default()) {
                return Err(Ended);
            }
        }
    }
}

/// A link's thread that has no connection.
struct Listening<'a> {
    fate: &'a Fate,
    stop: &'a Wakeup,
}

impl Caller for Listening<'_> {
    fn is_over(&self) -> bool {
        // Shards may wait for a clock meanwhile, whose connections stand.
        self.fate.untold.tell();
        self.stop.sleep(Duration::ZERO)
    }

    fn sleep(&self, longest: Duration) {
        self.stop.sleep(longest);
    }

    /// From here, a server that has ended looks the same as one that cannot be reached; only its launcher knows.
    fn goes_on(&self) -> bool {
        !self.fate.read_notes()
    }
}

/// There will be no more messages.
struct Ended;

/// Waits for the connection; `false` when the link is to stop.
fn wait(records: &Records, stop: &Wakeup, longest: Duration) -> bool {
    // The descriptor is kept while the poll lasts, though a caller may find the connection broken meanwhile.
    let (socket, flags) = match &*lock(&records.stream) {
        None => return !stop.sleep(Duration::ZERO),
        Some(open) => {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, open.holds_output());
            (open.stream().as_fd().try_clone_to_owned().ok(), flags)
        }
    };
    // Where there is no descriptor to be had, what comes is found a little later.
    let Some(socket) = socket else { return !stop.sleep(longest.min(PAUSE)) };
    let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::new(&socket, flags)];
    let _ = poll(&mut fds, Some(longest));
    fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_kernels::Dtype;
    use penstock_proto::chunk::Cut;
    use penstock_proto::placement::Extent;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::process::Command as Program;

    /// What tells a test that it is to lower the limit on its process's descriptors.
    const ROLE: &str = "PENSTOCK_TEST_FEW_DESCRIPTORS";

    // In a process of its own, as the limit is the process's. Each tensor kept a descriptor: the 1,000th could not be declared.
    #[test]
    #[expect(clippy::print_stdout, reason = "it tells another process what it found")]
    fn more_tensors_are_declared_than_there_are_descriptors_and_those_beyond_a_share_are_not_lent() {
        const MOST: u64 = 128;
        if std::env::var_os(ROLE).is_none() {
            let name = std::thread::current().name().unwrap().to_owned();
            let mut program = Program::new(std::env::current_exe().unwrap());
            let done = program.args(["--exact", &name, "--nocapture"]).env(ROLE, "").output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(said.contains("lent: 32 again: 32"), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
            return;
        }
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(MOST), maximum }).unwrap();
        let extent = Extent { first: 0, count: 1 };
        let layout = ExtentLayout::new(Cut::new(4096, 4096), extent, Dtype::F32, 0);
        let declare_all = || {
            let declare = || {
                let (homes, lanes, place, lendable) = Link::mirror_alone(layout, &[0], 1, true).unwrap();
                // The worker maps what it is given, and closes it.
                drop(place);
                (homes, lanes, lendable)
            };
            let all: Vec<_> = (0..3 * MOST).map(|_| declare()).collect();
            all.iter().filter(|(.., lendable)| lendable.is_some()).count()
        };
        println!("lent: {} again: {}", declare_all(), declare_all());
    }
}
