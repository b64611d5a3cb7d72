//! Lenders and borrowers of one process, over real regions and sockets.

use super::super::allowance::{Allowance, For};
use super::super::mirrored::{Lendable, Mirrored, Own};
use super::super::{RemoteHome, rig};
use super::borrower::{ACCEPTS_APART, EXPECTED_FOR, HEARD_FOR, MOST_ACCEPTED, MOST_EARLY, MOST_PENDING};
use super::lender::{ATTEMPTS, Connected, MOST_BORROWERS, MOST_WORDS};
use super::*;
use crate::directory::Directory;
use crate::user_directory::UserDirectory;
use crate::wire::random;
use crate::wire::travel::members::plain_tensor;
use penstock_fabric::memory::{
    ExtentLayout, HomeRegions, LaneView, LendError, Place, ServerPart, Unread, Windows, WorkerMemory,
};
use penstock_fabric::net::remote_shard::{GoingBack, Kept, Mirrored as _, RemoteShard, Value};
use penstock_fabric::publish::Published;
use penstock_fabric::region::{Region, Writers};
use penstock_fabric::socket::Expecting;
use penstock_kernels::Dtype;
use penstock_kernels::codec::Raw;
use penstock_proto::chunk::Cut;
use penstock_proto::encoding::Agreed;
use penstock_proto::frame::{Header, Notice};
use penstock_proto::overlay::Pass;
use penstock_proto::overlay::lending::{self, End, Rendezvous};
use penstock_proto::placement::Extent;
use penstock_proto::propagation::Propagation;
use penstock_proto::travel::{Registry, Travel};
use rustix::fd::AsFd as _;
use rustix::fs::MemfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

mod borrowed;

const CHUNK: usize = 4096;
const CHUNKS: u32 = 5;

/// One worker's mirror of a tensor, of whose chunks this shard is home of all but the one in the middle.
struct Worker {
    mirrored: Mirrored,
    memory: Arc<WorkerMemory>,
}

fn allowance() -> Allowance {
    Allowance::take(For::OFFER).unwrap()
}

fn worker() -> Worker {
    let mut spec = plain_tensor("w", u64::from(CHUNKS) * CHUNK as u64 / 4, Travel::default());
    spec.propagation = Propagation::Broadcast;
    let terms = Arc::new(spec.check(&Registry::ALL).unwrap());
    let (cut, extent) =
        (Cut::new(u64::from(CHUNKS) * CHUNK as u64, CHUNK as u32), Extent { first: 0, count: CHUNKS });
    let (layout, shard_of) = (ExtentLayout::new(cut, extent, Dtype::F32, 0), [0, 0, 1, 0, 0]);
    let (mut homes, model) = HomeRegions::new("penstock-mirror", layout).unwrap().split(&shard_of, 2);
    let (mut lanes, region) = LaneView::new("lane", layout.lane(), 2).unwrap();
    let windows = Arc::new(Windows::new(layout, &shard_of, 2));
    let (seen, lane) =
        (model.model().try_clone_to_owned().unwrap(), region.fd().try_clone_to_owned().unwrap());
    let place = Place::Windows(seen, lane, Arc::clone(&windows));
    let (memory, _) =
        WorkerMemory::new(cut, Dtype::F32, &[ServerPart { extent, place: Some(place) }]).unwrap();
    let remote = Arc::<RemoteHome>::default();
    let lendable =
        Lendable { windows, own: Arc::new(Own::new(model.into_model(), Allowance::take(For::OWN).unwrap())) };
    let mirrored = Mirrored::new(0, homes.remove(0), lanes.remove(0), remote, terms).lending(Some(lendable));
    Worker { mirrored, memory: Arc::new(memory) }
}

impl Worker {
    /// A version of a chunk, all of whose bytes say so.
    fn publish(&mut self, chunk: u32, version: u64) {
        let (publication, content) = (2 * version + 2, 2 * version + 2);
        let notice =
            Notice::Value { tensor: rig::W, chunk, version, steps: version, publication, base: 0, content };
        let payload = [version as u8; CHUNK];
        let header = rig::notice(notice).with_payload(&payload);
        let value = Value { header: &header, payload: &payload, codec: &Raw };
        self.mirrored.publish(chunk, &value, Published { version, steps: version }).unwrap();
    }

    fn publish_all(&mut self, version: u64) {
        [0, 1, 3, 4].into_iter().for_each(|chunk| self.publish(chunk, version));
        self.mirrored.progress(version + 1);
    }

    fn borrow(&mut self, lender: &Self) -> bool {
        let fd = lender.mirrored.lendable().unwrap();
        self.mirrored.offer(fd.try_clone_to_owned().unwrap(), allowance()).unwrap();
        self.mirrored.borrow(2).unwrap()
    }

    fn go_back(&mut self) -> Result<Vec<(u32, Kept)>, String> {
        self.mirrored.take_back(&mut GoingBack::new(&mut || {}), &|_, _| true)
    }

    fn read(&self, chunk: u32) -> Option<(u64, u8)> {
        let mut bytes = vec![0; CHUNK];
        let published = self.memory.read_chunk(chunk, &mut bytes[..]).ok()?;
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "torn");
        Some((published.version, bytes[0]))
    }

    /// The first byte of a chunk as a view shows it.
    fn viewed(&self, chunk: u32) -> u8 {
        let at = self.memory.value().base().as_ptr().wrapping_add(chunk as usize * CHUNK);
        // SAFETY: inside the mapping, which lives as long as the memory; volatile, since others write there.
        unsafe { at.read_volatile() }
    }
}

#[test]
fn a_borrower_sees_what_its_lender_publishes_at_the_same_address_and_keeps_it_when_it_goes_back() {
    let (mut lender, mut borrower) = (worker(), worker());
    lender.publish_all(1);
    borrower.publish_all(1);
    let address = borrower.memory.value().base();
    assert!(borrower.borrow(&lender) && borrower.mirrored.is_borrowed());
    assert!(borrower.mirrored.lendable().is_none(), "it lends nothing that is another's");
    lender.publish_all(2);
    assert_eq!(borrower.read(3), Some((2, 2)));
    // Whoever looks there says how far all is; its lender does not.
    assert_eq!((borrower.viewed(3), borrower.memory.progress(0, 0)), (2, Some(2)));
    borrower.mirrored.progress(3);
    assert_eq!(borrower.memory.progress(0, 0), Some(3));
    let kept = borrower.go_back().unwrap();
    assert!(kept.iter().all(|(_, kept)| matches!(kept, Kept::Whole(stands) if stands.publication == 6)));
    lender.publish_all(9);
    for chunk in [0, 1, 3, 4] {
        assert_eq!((borrower.read(chunk), borrower.viewed(chunk)), (Some((2, 2)), 2), "nothing changes it");
    }
    assert_eq!((borrower.memory.progress(0, 0), borrower.memory.value().base()), (Some(3), address));
    assert_eq!(borrower.read(2).map(|read| read.1), Some(0), "another shard's chunk was never touched");
    borrower.publish_all(3);
    assert_eq!(borrower.read(0), Some((3, 3)));
    assert!(borrower.mirrored.lendable().is_some(), "what is its own may be lent again");
}

// Of a lender that is killed while it writes.
#[test]
fn a_chunk_that_stays_half_written_is_lost_after_a_while_shows_no_zeros_and_is_no_readers_before_it_came_again()
 {
    let (mut lender, mut borrower) = (worker(), worker());
    lender.publish_all(1);
    borrower.publish_all(1);
    assert!(borrower.borrow(&lender));
    lender.publish_all(2);
    let place = lender.mirrored.home.chunk(1);
    let mut header = place.header;
    header.begin();
    place.seen[..100].fill(77);
    assert_eq!(borrower.mirrored.take_unread(), None, "nobody has looked");
    assert_eq!(borrower.read(1), None);
    assert_eq!(borrower.mirrored.take_unread(), Some(Unread::HalfWritten));
    assert_eq!(borrower.mirrored.take_unread(), None, "nobody waits any more");
    borrower.mirrored.progress(3);
    let kept = borrower.go_back().unwrap();
    assert_eq!(kept.iter().filter(|(_, kept)| *kept == Kept::Lost).count(), 1);
    assert_eq!((borrower.read(0), borrower.read(1)), (Some((2, 2)), None));
    assert_eq!(borrower.memory.progress(0, 0), Some(3), "versions do not fall");
    assert_eq!(borrower.viewed(1), 77);
    borrower.publish(1, 2);
    assert_eq!(borrower.read(1), Some((2, 2)));
}

#[test]
#[expect(clippy::print_stdout, reason = "it says what it could not try")]
fn what_is_no_region_of_the_tensor_is_not_borrowed() {
    let mut borrower = worker();
    let short = Region::new("short", CHUNK, Writers::Maker).unwrap();
    let refused = borrower.mirrored.offer(short.fd().try_clone_to_owned().unwrap(), allowance()).unwrap_err();
    assert!(matches!(refused, LendError::NoRegion { got: 4096, .. }), "{refused}");
    let bytes = rustix::fs::fstat(borrower.mirrored.lendable().unwrap()).unwrap().st_size as u64;
    let memory = |more| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | more;
        rustix::fs::memfd_create("memory", flags)
    };
    // All others have been there, so that this one is what it is refused for.
    for missing in Region::SEALS.iter() {
        let open = memory(MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&open, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&open, Region::SEALS.difference(missing)).unwrap();
        let refused = borrower.mirrored.offer(open, allowance()).unwrap_err();
        assert!(matches!(refused, LendError::Unsealed { .. }), "{missing:?}: {refused}");
    }
    // Each piece of it that is mapped over a value would cover 2 MiB.
    match memory(MemfdFlags::HUGETLB) {
        Ok(huge) => {
            rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
            rustix::fs::fcntl_add_seals(&huge, Region::SEALS).unwrap();
            let refused = borrower.mirrored.offer(huge, allowance()).unwrap_err();
            assert!(matches!(refused, LendError::Pages { .. }), "{refused}");
        }
        Err(error) => println!("not tried with huge pages: {error}"),
    }
    // What is no memory is refused before it is asked for anything.
    let (socket, _other) = Connection::pair().unwrap();
    let refused =
        borrower.mirrored.offer(socket.as_fd().try_clone_to_owned().unwrap(), allowance()).unwrap_err();
    let what = "ask for a region's seals";
    assert_eq!(refused, LendError::System { what, errno: Errno::INVAL });
    assert_eq!(borrower.mirrored.borrow(0), Ok(false));
}

#[test]
fn versions_never_fall_nor_mix_for_who_reads_while_it_is_borrowed_and_given_back_again_and_again() {
    let (mut lender, mut borrower) = (worker(), worker());
    lender.publish_all(1);
    borrower.publish_all(1);
    let (ended, memory) = (Arc::new(AtomicBool::new(false)), Arc::clone(&borrower.memory));
    let reader = {
        let ended = Arc::clone(&ended);
        std::thread::spawn(move || {
            let (mut last, mut bytes, mut reads) = ([0; CHUNKS as usize], vec![0; CHUNK], 0_u64);
            while !ended.load(Ordering::Relaxed) || reads < 100 {
                for chunk in [0, 1, 3, 4] {
                    let progress = memory.chunk_progress(chunk);
                    let Ok(published) = memory.read_chunk(chunk, &mut bytes[..]) else { continue };
                    assert!(bytes.iter().all(|&byte| byte == published.version as u8), "mixed");
                    assert!(published.version + 1 >= progress && published.version >= last[chunk as usize]);
                    (last[chunk as usize], reads) = (published.version, reads + 1);
                }
            }
        })
    };
    for version in 2..200 {
        lender.publish_all(version);
        if borrower.mirrored.is_borrowed() {
            borrower.go_back().unwrap();
        } else {
            // As new as the lender's: then it may be borrowed.
            borrower.publish_all(version);
            assert!(borrower.borrow(&lender));
        }
        lender.publish(3, version + 1);
        lender.publish(3, version + 1);
    }
    ended.store(true, Ordering::Relaxed);
    reader.join().unwrap();
}

fn pass() -> Pass {
    Pass::new(&[7; 16], 0, 1)
}

const SECRET: Secret = Secret([3; 32]);

fn shard(worker: Worker) -> (RemoteShard<Mirrored>, Arc<WorkerMemory>) {
    let page = penstock_fabric::layout::page::bytes(1);
    let page = Region::new("page", page, Writers::Holders).unwrap();
    let inlet = penstock_fabric::inlet::Inlet::new(Arc::clone(page.mapping()), 0);
    let limits = penstock_fabric::net::remote_shard::Limits::USUAL;
    let mut remote = RemoteShard::new(1, inlet, limits);
    remote.declare(rig::W, worker.mirrored);
    (remote, worker.memory)
}

fn attempt(name: Rendezvous, pass: Secret) -> Attempt {
    Attempt::new(1, name, pass)
}

fn the_pass() -> Secret {
    pass().secret(&SECRET)
}

fn settle(
    borrower: &mut Borrower,
    connected: &mut Connected,
    remotes: [&mut RemoteShard<Mirrored>; 2],
) -> bool {
    let [borrows, lends] = remotes;
    let (mut stays, mut now) = (true, Instant::now());
    for _ in 0..10 {
        now += ACCEPTS_APART;
        borrower.look(borrows, now);
        stays = connected.look(lends, 1, true).0;
        if !stays {
            break;
        }
    }
    stays
}

/// Where the workers of these tests meet.
fn meets() -> &'static UserDirectory {
    static MEETS: OnceLock<(Directory, UserDirectory)> = OnceLock::new();
    let make = || {
        let (base, prefix) = (std::env::temp_dir(), "penstock-lending-");
        Directory::remove_left_behind(&base, prefix);
        let directory = Directory::new(&base, prefix).unwrap();
        let meets = UserDirectory::from(directory.path());
        (directory, meets)
    };
    &MEETS.get_or_init(make).1
}

fn path_of(name: &Rendezvous) -> PathBuf {
    meets().make().unwrap().join(lending::socket_name(name))
}

fn connect(name: &Rendezvous) -> rustix::io::Result<Connection> {
    Connection::connect_to(&path_of(name))
}

#[test]
fn a_lender_that_knows_the_pass_offers_what_it_has_and_strangers_before_it_keep_nobody_out() {
    let ((mut lends, _), (mut borrows, _)) = (shard(worker()), shard(worker()));
    let mut borrower = Borrower::open(meets(), 4, &pass(), &SECRET).unwrap();
    let name = borrower.rendezvous();
    // Some of the same user who say nothing, or something else.
    let strangers: Vec<Connection> = (0..6).map(|_| connect(&name).unwrap()).collect();
    say(&strangers[5], &Word::Lent { tensor: rig::W }, &[]).unwrap();
    let mut guesser = Connected::new(meets(), attempt(name, Secret([9; 32]))).unwrap();
    assert!(!settle(&mut borrower, &mut guesser, [&mut borrows, &mut lends]), "it does not know the pass");
    assert!(borrower.offered.is_empty());
    let mut connected = Connected::new(meets(), attempt(name, the_pass())).unwrap();
    assert!(settle(&mut borrower, &mut connected, [&mut borrows, &mut lends]));
    assert_eq!(borrower.offered.iter().copied().collect::<Vec<_>>(), [rig::W]);
    assert!(borrows.tensor(rig::W).unwrap().is_offered());
    // The door is closed behind it: to a second one, also with the pass.
    assert!(Connected::new(meets(), attempt(name, the_pass())).is_err());
    borrower.close(&mut borrows);
    assert!(!borrows.tensor(rig::W).unwrap().is_offered(), "nothing of one that lends no more is kept");
}

#[test]
fn a_lender_that_was_let_in_and_not_heard_stays_whoever_comes_behind_it() {
    let (mut borrows, _) = shard(worker());
    let (mut borrower, now) = (Borrower::open(meets(), 4, &pass(), &SECRET).unwrap(), Instant::now());
    let name = borrower.rendezvous();
    // A lender that has not said its word when it is let in.
    let slow = connect(&name).unwrap();
    assert!(!borrower.look(&mut borrows, now));
    let _strangers: Vec<Connection> = (0..12).map(|_| connect(&name).unwrap()).collect();
    for looks in 1..4 {
        assert!(!borrower.look(&mut borrows, now + looks * ACCEPTS_APART));
    }
    assert_eq!(borrower.pending.len(), MOST_PENDING);
    let nonce = [5; 32];
    let proof = lending::proof(&the_pass(), End::Lender, &name, &nonce);
    say(&slow, &Word::Lender { nonce, proof }, &[]).unwrap();
    assert!(borrower.look(&mut borrows, now + 4 * ACCEPTS_APART));
    assert!(borrower.connection.is_some() && borrower.socket.is_none() && borrower.pending.is_empty());
}

// Two threads that connected and closed kept a proxy at it, which sent no sign of life meanwhile.
#[test]
fn however_many_come_and_go_a_look_takes_so_many_and_calls_it_no_work_and_the_rest_wait_until_the_next() {
    let (mut borrows, _) = shard(worker());
    let (mut borrower, now) = (Borrower::open(meets(), 4, &pass(), &SECRET).unwrap(), Instant::now());
    let name = borrower.rendezvous();
    let polled = |borrower: &Borrower| borrower.fds().count();
    assert_eq!(polled(&borrower), 1);
    (0..MOST_ACCEPTED + 3).for_each(|_| drop(connect(&name).unwrap()));
    assert!(!borrower.look(&mut borrows, now), "strangers are no work");
    assert!(borrower.is_pressing() && polled(&borrower) == 0, "they do not wake it before it looks again");
    let waiting = |borrower: &Borrower| {
        let socket = borrower.socket.as_ref().unwrap();
        std::iter::from_fn(|| socket.accept().ok()).count()
    };
    assert_eq!(waiting(&borrower), 3);
    assert!(!borrower.look(&mut borrows, now + ACCEPTS_APART));
    assert!(!borrower.is_pressing() && polled(&borrower) == 1);
}

#[test]
fn who_says_nothing_is_heard_for_a_while_and_a_lender_that_was_refused_comes_again() {
    let ((mut lends, _), (mut borrows, _)) = (shard(worker()), shard(worker()));
    let (mut borrower, now) = (Borrower::open(meets(), 4, &pass(), &SECRET).unwrap(), Instant::now());
    let name = borrower.rendezvous();
    let _strangers: Vec<Connection> = (0..MOST_PENDING).map(|_| connect(&name).unwrap()).collect();
    borrower.look(&mut borrows, now);
    let mut refused = Connected::new(meets(), attempt(name, the_pass())).unwrap();
    borrower.look(&mut borrows, now + ACCEPTS_APART);
    assert!(!refused.look(&mut lends, 1, true).0);
    let mut again = Connected::new(meets(), refused.attempt.again(now).unwrap()).unwrap();
    borrower.look(&mut borrows, now + ACCEPTS_APART + HEARD_FOR);
    borrower.look(&mut borrows, now + 2 * (ACCEPTS_APART + HEARD_FOR));
    assert!(again.look(&mut lends, 1, true).0 && again.proved);
}

#[test]
fn a_lender_goes_again_to_a_socket_that_others_fill_so_often_and_no_more() {
    let (name, now) = (random::bytes().unwrap(), Instant::now());
    let _socket = Expecting::bind(&path_of(&name)).unwrap();
    let _filled: Vec<Connection> = std::iter::from_fn(|| connect(&name).ok()).collect();
    let mut lender = Lender::default();
    lender.attempt(meets(), attempt(name, the_pass()), now);
    assert!(lender.is_pressing() && lender.connected.is_empty());
    let (mut next, mut attempts) = (Some(lender.pending[0]), 2);
    while let Some(again) = next.and_then(|attempt| attempt.again(now)) {
        (next, attempts) = (Some(again), attempts + 1);
    }
    assert_eq!(attempts, ATTEMPTS);
    // It is of another host, behind the same address: there is no such socket.
    let mut lender = Lender::default();
    lender.attempt(meets(), Attempt::new(1, random::bytes().unwrap(), the_pass()), now);
    assert!(!lender.is_pressing() && lender.connected.is_empty());
}

#[test]
fn a_socket_to_which_no_lender_came_is_closed() {
    let (mut borrows, _) = shard(worker());
    let (mut borrower, now) = (Borrower::open(meets(), 4, &pass(), &SECRET).unwrap(), Instant::now());
    let name = borrower.rendezvous();
    borrower.look(&mut borrows, now + 2 * EXPECTED_FOR);
    assert!(connect(&name).is_ok(), "whoever is to come has not come to be its parent so far");
    borrower.expected_until = Some(now + EXPECTED_FOR);
    borrower.look(&mut borrows, now + EXPECTED_FOR);
    assert_eq!(connect(&name).err(), Some(Errno::NOENT), "nothing of it is left");
    assert!(borrower.fds().count() == 0 && !borrower.is_pressing());
}

/// So that there is room for many descriptors, and for other tests beside them.
fn raise_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// A borrower to which a lender has come, which is driven by hand.
fn borrower_and_its_lender() -> (Borrower, Connection) {
    let mut borrower = Borrower::open(meets(), 4, &pass(), &SECRET).unwrap();
    let (ours, theirs) = Connection::pair().unwrap();
    (borrower.socket, borrower.connection) = (None, Some(ours));
    (borrower, theirs)
}

/// Offers tensors that are not declared, until no more are taken.
fn offer_undeclared(borrower: &mut Borrower, theirs: &Connection, borrows: &mut RemoteShard<Mirrored>) {
    let (region, now) = (Region::new("any", CHUNK, Writers::Maker).unwrap(), Instant::now());
    for tensor in 1_000..1_000 + MOST_EARLY as u32 + 44 {
        say(theirs, &Word::Lent { tensor }, &[region.fd()]).unwrap();
        borrower.look(borrows, now);
        if borrower.is_full {
            break;
        }
    }
    assert!(borrower.is_full && borrower.fds().count() == 0);
    assert!(borrower.early.contains_key(&1_000) && borrower.connection.is_some(), "none was dropped");
}

#[test]
fn what_is_offered_before_it_is_declared_waits_and_beyond_so_many_nothing_more_is_taken() {
    raise_limit();
    let (mut borrows, _) = shard(worker());
    let (mut borrower, theirs) = borrower_and_its_lender();
    offer_undeclared(&mut borrower, &theirs, &mut borrows);
    let room = crate::limits::descriptors() as usize / 32;
    assert_eq!(borrower.early.len(), MOST_EARLY.min(room + 1));
}

// 256 offers of the first lender to say much took the share of all.
#[test]
fn one_that_offers_much_that_is_not_declared_leaves_room_for_another_lender() {
    if !is_alone_with(256) {
        return;
    }
    let (mut borrows, _) = shard(worker());
    let (mut flooded, flooding) = borrower_and_its_lender();
    offer_undeclared(&mut flooded, &flooding, &mut borrows);
    assert_eq!(flooded.early.len(), 9, "a 32nd, and one");
    let (mut borrower, theirs) = borrower_and_its_lender();
    let (lends, now) = (worker(), Instant::now());
    say(&theirs, &Word::Lent { tensor: 7 }, &[lends.mirrored.lendable().unwrap()]).unwrap();
    borrower.look(&mut borrows, now);
    assert!(borrower.early.contains_key(&7), "one is kept whatever others keep");
    borrows.declare(7, worker().mirrored);
    borrower.look(&mut borrows, now);
    say(&theirs, &Word::Lent { tensor: rig::W }, &[lends.mirrored.lendable().unwrap()]).unwrap();
    borrower.look(&mut borrows, now);
    assert_eq!(borrower.offered.iter().copied().collect::<Vec<_>>(), [rig::W, 7]);
    // Nobody offers a tensor twice.
    say(&theirs, &Word::Lent { tensor: 7 }, &[lends.mirrored.lendable().unwrap()]).unwrap();
    borrower.look(&mut borrows, now);
    assert!(borrower.connection.is_none() && borrower.offered.is_empty());
}

// A child that says another's name would have been sent no values, or have another sent none.
#[test]
fn whose_a_name_is_its_rank_says_by_which_it_was_let_in() {
    let (mut lends, _) = shard(worker());
    let name = random::bytes().unwrap();
    come(&mut lends, 2, name);
    assert!(!lends.is_child((1, &name)) && !lends.lend((1, &name), rig::W));
    assert!(lends.is_child((2, &name)) && lends.lend((2, &name), rig::W));
    assert_eq!(lends.borrowers(rig::W), 1);
}

#[test]
fn who_says_that_it_borrows_without_having_been_offered_anything_is_hung_up_on() {
    let (mut lends, _) = shard(worker());
    let name = random::bytes().unwrap();
    let socket = Expecting::bind(&path_of(&name)).unwrap();
    let mut connected = Connected::new(meets(), attempt(name, the_pass())).unwrap();
    let end = socket.accept().unwrap();
    say(&end, &Word::Borrowed { tensor: rig::W }, &[]).unwrap();
    assert!(!connected.look(&mut lends, 1, true).0);
    // Or that it does no more.
    let mut connected = Connected::new(meets(), attempt(name, the_pass())).unwrap();
    let end = socket.accept().unwrap();
    say(&end, &Word::Returned { tensor: rig::W }, &[]).unwrap();
    assert!(!connected.look(&mut lends, 1, true).0);
    // A proof of another incarnation's.
    let mut again = Connected::new(meets(), attempt(name, the_pass())).unwrap();
    let end = socket.accept().unwrap();
    let stale = lending::proof(&the_pass(), End::Borrower, &name, &[0; 32]);
    say(&end, &Word::Borrower { proof: stale }, &[]).unwrap();
    assert!(!again.look(&mut lends, 1, true).0);
}

#[test]
fn nothing_of_a_tensor_that_is_not_borrowable_is_offered() {
    let (mirrored, _) = rig::tensor(Agreed::RAW);
    assert!(mirrored.lendable().is_none());
    let _: Header = rig::value(rig::W, 0, 1);
}

// Another user's connection to an abstract socket brought a descriptor whose closing takes hours.
#[test]
fn nobody_but_its_user_finds_a_borrower_and_no_socket_is_left_where_a_lender_came() {
    let ((mut lends, _), (mut borrows, _)) = (shard(worker()), shard(worker()));
    let mut borrower = Borrower::open(meets(), 4, &pass(), &SECRET).unwrap();
    let (name, path) = (borrower.rendezvous(), path_of(&borrower.rendezvous()));
    assert!(path.exists());
    let listed = std::fs::read_to_string("/proc/self/net/unix").unwrap();
    let hex = penstock_proto::hex::hex(&name);
    let lines: Vec<&str> = listed.lines().filter(|line| line.contains(&hex)).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| !line.contains('@')), "{lines:?}");
    // A stranger that would send one is refused that, where the kernel knows how.
    let stranger = connect(&name).unwrap();
    match say(&stranger, &Word::Borrowed { tensor: rig::W }, &[stranger.as_fd()]) {
        Ok(()) => {}
        Err(error) => assert_eq!(error, Errno::PERM),
    }
    let mut connected = Connected::new(meets(), attempt(name, the_pass())).unwrap();
    assert!(settle(&mut borrower, &mut connected, [&mut borrows, &mut lends]) && connected.proved);
    assert!(!path.exists());
    // A directory that others may enter is none to meet in.
    let open = Directory::new(&std::env::temp_dir(), "penstock-lending-").unwrap();
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = Borrower::open(&UserDirectory::from(open.path()), 4, &pass(), &SECRET).err();
    assert!(matches!(refused, Some(Unshared::Directory(_))), "{refused:?}");
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let long = open.path().join("x".repeat(90));
    let refused = Borrower::open(&UserDirectory::from(&*long), 4, &pass(), &SECRET).err();
    assert!(matches!(refused, Some(Unshared::Listen(ListenError::PathTooLong { .. }))), "{refused:?}");
}

/// A lender's end, and the other, of one that has proved itself and was offered so many tensors.
fn offered(tensors: u32) -> (Connected, Connection) {
    let name = random::bytes().unwrap();
    let socket = Expecting::bind(&path_of(&name)).unwrap();
    let mut connected = Connected::new(meets(), attempt(name, the_pass())).unwrap();
    (connected.proved, connected.seen) = (true, 1);
    connected.offered = (0..tensors).collect();
    (connected, socket.accept().unwrap())
}

#[test]
fn one_that_says_again_that_it_borrows_a_tensor_is_hung_up_on_however_fast_it_goes_on() {
    let (mut lends, _) = shard(worker());
    let (mut connected, end) = offered(1);
    let flood = std::thread::spawn(move || {
        let mut said = 0;
        while said < 200_000 {
            match say(&end, &Word::Borrowed { tensor: 0 }, &[]) {
                Ok(()) => said += 1,
                Err(Errno::AGAIN) => std::thread::yield_now(),
                Err(error) => return Some(error),
            }
        }
        None
    });
    while !flood.is_finished() && connected.look(&mut lends, 1, true).0 {}
    drop(connected);
    assert!(matches!(flood.join().unwrap(), Some(Errno::PIPE | Errno::CONNRESET)));
}

#[test]
fn of_one_that_says_much_at_once_a_look_hears_so_much_and_the_next_one_more() {
    let (mut lends, _) = shard(worker());
    let (mut connected, end) = offered(1 << 20);
    let say_it = |tensor: &u32| say(&end, &Word::Borrowed { tensor: *tensor }, &[]).is_ok();
    let said = (0..1 << 20).take_while(say_it).count();
    assert!(said > MOST_WORDS, "the socket has room for more than a look takes");
    assert!(connected.look(&mut lends, 1, true) == (true, true) && connected.borrowed.len() == MOST_WORDS);
    assert!(connected.look(&mut lends, 1, true).0 && connected.borrowed.len() == said.min(2 * MOST_WORDS));
}

/// Runs the test that calls this once more, in a process of its own, as what a process may have open is the process's; whether this is
/// that one.
fn is_alone_with(descriptors: u64) -> bool {
    const ROLE: &str = "PENSTOCK_TEST_LENDING_ALONE";
    if std::env::var_os(ROLE).is_some() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).unwrap();
        return true;
    }
    let name = std::thread::current().name().unwrap().to_owned();
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let done = program.args(["--exact", &name, "--nocapture"]).env(ROLE, "").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    false
}

// What had been borrowed went on counting as borrowed, and nothing could be borrowed any more.
#[test]
fn one_that_went_back_with_all_that_it_may_borrow_borrows_again() {
    if !is_alone_with(256) {
        return;
    }
    let mut others: Vec<_> = std::iter::from_fn(|| Allowance::take(For::OFFER)).collect();
    // Room for two.
    others.truncate(others.len() - 2);
    let mut lender = worker();
    let mut borrowers = [worker(), worker()];
    lender.publish_all(1);
    for round in 0..3 {
        for borrower in &mut borrowers {
            borrower.publish_all(1);
            assert!(borrower.borrow(&lender), "round {round}");
        }
        assert!(Allowance::take(For::OFFER).is_none());
        borrowers.iter_mut().for_each(|borrower| _ = borrower.go_back().unwrap());
    }
}

/// Has a worker come to be fed, as far as it is known who feeds whom.
fn come(lends: &mut RemoteShard<Mirrored>, rank: u32, rendezvous: Rendezvous) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = penstock_fabric::net::stream::Stream::plain(stream, Duration::from_secs(9)).unwrap();
    lends.borrower_came(rank, (1, penstock_proto::overlay::Stripes::first(1)), Some(rendezvous), stream);
}

// It was forgotten.
#[test]
fn one_for_which_there_is_no_room_is_lent_to_when_there_is_some() {
    raise_limit();
    let (mut lends, _) = shard(worker());
    let (name, now) = (random::bytes().unwrap(), Instant::now());
    let socket = Expecting::bind(&path_of(&name)).unwrap();
    come(&mut lends, 2, name);
    let mut lender = Lender::default();
    let mut ends = Vec::new();
    for _ in 0..MOST_BORROWERS {
        lender.attempt(meets(), attempt(name, the_pass()), now);
        ends.push(socket.accept().unwrap());
    }
    lender.attempt(meets(), Attempt::new(2, name, the_pass()), now);
    assert!(lender.connected.len() == MOST_BORROWERS && lender.pending.len() == 1 && lender.is_pressing());
    let later = now + Duration::from_secs(1);
    lender.look(meets(), &mut lends, 1, later);
    assert!(lender.connected.is_empty() && lender.pending.len() == 1, "the others are not fed here");
    lender.look(meets(), &mut lends, 1, later + Duration::from_secs(1));
    assert!(lender.connected.len() == 1 && lender.pending.is_empty());
}

// Its lender borrowed meanwhile, had hung up, and could not come again.
#[test]
fn one_that_waits_to_be_fed_is_offered_nothing_and_is_lent_to_when_it_is_fed() {
    let ((mut lends, _), (mut borrows, _)) = (shard(worker()), shard(worker()));
    let (mut borrower, mut now) = (Borrower::open(meets(), 4, &pass(), &SECRET).unwrap(), Instant::now());
    come(&mut lends, 2, borrower.rendezvous());
    let mut lender = Lender::default();
    lender.attempt(meets(), Attempt::new(2, borrower.rendezvous(), the_pass()), now);
    for _ in 0..3 {
        now += ACCEPTS_APART;
        borrower.look(&mut borrows, now);
        lender.look(meets(), &mut lends, 1, now);
    }
    assert!(lender.connected[0].proved && lender.connected[0].offered.is_empty());
    assert!(lender.is_pressing(), "nothing says when it is fed");
    lender.give_up();
    assert!(lender.connected[0].look(&mut lends, 1, true).0);
    borrower.look(&mut borrows, now);
    assert!(borrower.offered.contains(&rig::W) && borrows.tensor(rig::W).unwrap().is_offered());
    // What was offered is there no more: nobody is to borrow it.
    lender.give_up();
    assert!(lender.connected.is_empty());
    borrower.look(&mut borrows, now);
    assert!(borrower.offered.is_empty() && !borrows.tensor(rig::W).unwrap().is_offered());
}

/// A borrower, and its lender, which has come to it and offered what it has.
fn borrowing(
    lends: &mut RemoteShard<Mirrored>,
    borrows: &mut RemoteShard<Mirrored>,
) -> (Borrower, Connected) {
    let mut borrower = Borrower::open(meets(), 4, &pass(), &SECRET).unwrap();
    come(lends, 1, borrower.rendezvous());
    let mut connected = Connected::new(meets(), attempt(borrower.rendezvous(), the_pass())).unwrap();
    assert!(settle(&mut borrower, &mut connected, [borrows, lends]));
    (borrower, connected)
}

// Its lender went on saying only what was new of it, and never offered it again.
#[test]
fn what_is_borrowed_no_more_is_passed_on_again_and_offered_anew() {
    let ((mut lends, _memory), (mut borrows, _its)) = (shard(worker()), shard(worker()));
    let (mut borrower, mut connected) = borrowing(&mut lends, &mut borrows);
    for _ in 0..2 {
        assert!(borrower.offered.remove(&rig::W) && borrows.tensor(rig::W).unwrap().is_offered());
        borrows.tensor_mut(rig::W).unwrap().decline();
        say(borrower.connection.as_ref().unwrap(), &Word::Borrowed { tensor: rig::W }, &[]).unwrap();
        assert!(settle(&mut borrower, &mut connected, [&mut borrows, &mut lends]));
        assert_eq!((lends.borrowers(rig::W), borrower.offered.len()), (1, 0));
        assert!(borrower.say_returned(&[rig::W]) && borrower.returned.contains(&rig::W));
        assert!(settle(&mut borrower, &mut connected, [&mut borrows, &mut lends]));
        assert_eq!((lends.borrowers(rig::W), borrower.returned.len()), (0, 0));
    }
    drop(connected);
    borrower.look(&mut borrows, Instant::now());
    assert!(!borrower.say_returned(&[rig::W]), "nobody hears it");
}

#[test]
fn what_is_borrowed_already_stays_so_where_the_same_memory_is_offered_and_moves_where_other_is() {
    let ((mut lends, _memory), (mut borrows, _its)) = (shard(worker()), shard(worker()));
    let (mut borrower, _connected) = borrowing(&mut lends, &mut borrows);
    assert_eq!(borrows.tensor_mut(rig::W).unwrap().borrow(0), Ok(true));
    borrower.offered.clear();
    // The same lender, on another connection.
    let (again, mut connected) = borrowing(&mut lends, &mut borrows);
    assert!(connected.look(&mut lends, 1, true).0);
    assert!(again.offered.is_empty() && borrows.tensor(rig::W).unwrap().is_borrowed());
    assert_eq!(lends.borrowers(rig::W), 1);
    let (mut other, _its) = shard(worker());
    let (moved, _connected) = borrowing(&mut other, &mut borrows);
    let tensor = borrows.tensor(rig::W).unwrap();
    assert!(!tensor.is_borrowed() && tensor.is_offered() && moved.offered.contains(&rig::W));
    assert_eq!(other.borrowers(rig::W), 0);
}
