//! The thread that dials those that are to feed this worker: one after the other, each for a moment at most. Until a connection
//! stands the server feeds the worker, so nobody waits for it.

use super::super::lock;
use super::super::proxy::Command;
use super::{Proxies, Request};
use crate::thread;
use crate::wire::dial::{DialError, Dialer};
use crate::worker::fate::Fate;
use penstock_fabric::forked::Maker;
use penstock_fabric::net::endpoint::Address;
use penstock_fabric::net::remote_shard::Unreached;
use penstock_fabric::net::stream::Stream;
use penstock_proto::Rank;
use penstock_proto::handshake::Purpose;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time for one parent: it is awake, and a round trip or two away, or else of no use.
const WITHIN: Duration = Duration::from_secs(2);

/// So much later than that this process was suspended, or had no core.
const UNLOOKED: Duration = Duration::from_millis(300);

/// What is to be dialed.
#[derive(Debug, Default)]
struct Requests {
    waiting: VecDeque<Request>,
    /// The one that is being dialed, until a newer one has taken its place.
    under_way: Option<Request>,
    ends: bool,
}

impl Requests {
    /// Takes a request in; those before it that it replaces are forgotten.
    fn put(&mut self, request: Request) {
        let replaced = |before: &Request| {
            (before.server, before.shard) == (request.server, request.shard)
                && !before.stripes.and(request.stripes).is_empty()
        };
        self.under_way.take_if(|before| replaced(before));
        self.waiting.retain(|before| !replaced(before));
        self.waiting.push_back(request);
    }

    /// The next to be dialed.
    fn next(&mut self) -> Option<Request> {
        self.under_way = self.waiting.pop_front();
        self.under_way.clone()
    }

    /// Those that are answered now that dialing one has ended: it, unless it was replaced, and where nobody is at the other end,
    /// all that were to go there too.
    fn end(&mut self, request: Request, is_nobody_there: bool) -> Vec<Request> {
        let mut ended: Vec<Request> = self.under_way.take().into_iter().collect();
        if is_nobody_there {
            let waiting = std::mem::take(&mut self.waiting);
            let (there, elsewhere) = waiting.into_iter().partition(|other| other.address == request.address);
            self.waiting = elsewhere;
            ended.extend::<VecDeque<Request>>(there);
        }
        ended
    }
}

struct Shared {
    requests: Mutex<Requests>,
    more: Condvar,
    dialer: Dialer,
    proxies: Proxies,
    fate: Arc<Fate>,
}

/// The owner's end of the thread, which is started when it is first needed.
pub(super) struct Dialing {
    rank: Rank,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// A child of `fork` has not got the thread.
    maker: Maker,
}

impl Dialing {
    /// `dialer`: how the job's secret is proved, whoever is dialed.
    pub(super) fn new(rank: Rank, dialer: Dialer, proxies: Proxies, fate: Arc<Fate>) -> Self {
        let (requests, more) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { requests, more, dialer, proxies, fate });
        Self { rank, shared, thread: Mutex::default(), maker: Maker::this() }
    }

    pub(super) fn dial(&self, request: Request) {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            match thread::spawn(format!("penstock-doors-{}", self.rank), move || shared.run()) {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    return self.shared.answer(&request, Err(ours(format!("no thread dials: {error}"))));
                }
            }
        }
        lock(&self.shared.requests).put(request);
        self.shared.more.notify_one();
    }
}

impl Drop for Dialing {
    fn drop(&mut self) {
        if !self.maker.is_here() {
            let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(thread.take());
            return;
        }
        lock(&self.shared.requests).ends = true;
        self.shared.more.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(request) = self.next() {
            let dialed = self.reach(&request);
            let is_nobody_there = matches!(&dialed, Err(DialError::Unreachable(error)) if is_nobody(error));
            let ended = lock(&self.requests).end(request, is_nobody_there);
            match dialed {
                Ok(stream) => {
                    if let Some(request) = ended.first() {
                        // Those of all proxies send at once.
                        let parents = request.parents * lock(&self.proxies).len();
                        if let Err(error) = stream.take_as_one_of(parents) {
                            tracing::debug!(%error, "a parent's connection is left as it is");
                        }
                        self.answer(request, Ok(stream));
                    }
                }
                Err(error) => {
                    let why = why(error);
                    ended.iter().for_each(|request| self.answer(request, Err(why.clone())));
                }
            }
        }
    }

    /// Waits for the next request; `None` when there will be no more.
    fn next(&self) -> Option<Request> {
        let mut requests = lock(&self.requests);
        while !requests.ends {
            if let Some(request) = requests.next() {
                return Some(request);
            }
            requests = self.more.wait(requests).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn reach(&self, request: &Request) -> Result<Stream, DialError> {
        let &Request { server, shard, address, striping, stripes, child, pass, rendezvous, .. } = request;
        let purpose = Purpose::Relay { child, server, shard, striping, stripes, rendezvous };
        let address = Address { host: address.ip().to_string(), port: address.port() };
        let gives_up = || {
            let requests = lock(&self.requests);
            requests.ends || requests.under_way.is_none() || self.fate.is_over()
        };
        let (dialer, begun) = (self.dialer.by(address).showing(&pass), Instant::now());
        loop {
            let dialed = dialer.dial(purpose, begun + WITHIN, &gives_up);
            let Err(DialError::Unreachable(error)) = &dialed else { return dialed };
            if error.kind() != io::ErrorKind::TimedOut {
                return dialed;
            }
            let took = begun.elapsed();
            if took > WITHIN + UNLOOKED {
                return Err(DialError::Lacking("this worker was suspended meanwhile".to_owned()));
            }
            // A single packet may be lost, and its system sends it again no earlier than we do.
            if took >= WITHIN || gives_up() {
                return dialed;
            }
        }
    }

    fn answer(&self, request: &Request, stream: Result<Stream, Unreached>) {
        let &Request { server, shard, epoch, rank, stripes, .. } = request;
        if let Some(proxy) = lock(&self.proxies).get(&(server, shard)) {
            proxy.teller.send(Command::Parent { epoch, rank, stripes, stream });
        }
    }
}

/// Whether nobody answers at an address.
fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut)
}

/// Why one was not reached that is not to blame for it.
fn ours(why: String) -> Unreached {
    Unreached { why, is_its: false }
}

fn why(error: DialError) -> Unreached {
    match error {
        // It is busy, has only just begun, has no place for one more, or says why not otherwise: it is there.
        DialError::Refused(refusal) => ours(refusal.to_string()),
        DialError::Unreachable(error) if !is_nobody(&error) => ours(error.to_string()),
        DialError::Lacking(why) => ours(why),
        DialError::GivenUp => ours("it was given up".to_owned()),
        DialError::Unproved(refusal) => Unreached { why: refusal.to_string(), is_its: true },
        DialError::Untrusted(why) => Unreached { why, is_its: true },
        DialError::Unreachable(error) => Unreached { why: error.to_string(), is_its: true },
    }
}
