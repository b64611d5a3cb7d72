//! Lenders and borrowers of one process, over real regions and sockets.

use super::super::mirrored::{Lendable, Mirrored};
use super::super::{RemoteHome, rig};
use super::*;
use crate::wire::travel::members::plain_tensor;
use penstock_fabric::memory::{
    ExtentLayout, HomeRegions, LaneView, Place, ServerPart, Windows, WorkerMemory,
};
use penstock_fabric::net::remote_shard::{Kept, Mirrored as _, Value};
use penstock_fabric::publish::Published;
use penstock_fabric::region::{Region, Writers};
use penstock_kernels::Dtype;
use penstock_kernels::codec::Raw;
use penstock_proto::chunk::Cut;
use penstock_proto::encoding::Agreed;
use penstock_proto::frame::{Header, Notice};
use penstock_proto::placement::Extent;
use penstock_proto::propagation::Propagation;
use penstock_proto::travel::{Registry, Travel};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const CHUNK: usize = 4096;
const CHUNKS: u32 = 5;

/// One worker's mirror of a tensor, of whose chunks this shard is home of all but the one in the middle.
struct Worker {
    mirrored: Mirrored,
    memory: Arc<WorkerMemory>,
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
    let lendable = Lendable { windows, region: Arc::new(model.into_model()) };
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

    fn borrow(&mut self, lender: &Worker) -> bool {
        let (fd, _) = lender.mirrored.lendable().unwrap();
        self.mirrored.offer(fd.try_clone_to_owned().unwrap()).unwrap();
        self.mirrored.borrow()
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
    assert_eq!((borrower.viewed(3), borrower.memory.progress(0, 0)), (2, Some(3)));
    let kept = borrower.mirrored.take_back().unwrap();
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
fn a_chunk_that_stays_half_written_is_lost_after_so_many_looks_and_is_no_readers_before_it_came_again() {
    let (mut lender, mut borrower) = (worker(), worker());
    lender.publish_all(1);
    borrower.publish_all(1);
    assert!(borrower.borrow(&lender));
    lender.publish_all(2);
    let place = lender.mirrored.home.chunk(1);
    let mut header = place.header;
    header.begin();
    place.seen[..100].fill(77);
    assert_eq!(borrower.read(1), None);
    let kept = borrower.mirrored.take_back().unwrap();
    assert_eq!(kept.iter().filter(|(_, kept)| *kept == Kept::Lost(2)).count(), 1);
    assert_eq!((borrower.read(0), borrower.read(1)), (Some((2, 2)), None));
    assert_eq!(borrower.memory.progress(0, 0), Some(3), "versions do not fall");
    borrower.publish(1, 2);
    assert_eq!(borrower.read(1), Some((2, 2)));
}

#[test]
fn what_is_no_region_of_the_tensor_is_not_borrowed() {
    let mut borrower = worker();
    let short = Region::new("short", CHUNK, Writers::Maker).unwrap();
    let refused = borrower.mirrored.offer(short.fd().try_clone_to_owned().unwrap()).unwrap_err();
    assert!(matches!(refused, LendError::NoRegion { got: 4096, .. }), "{refused}");
    let bytes = borrower.mirrored.lendable().unwrap().1;
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&open, bytes).unwrap();
    let refused = borrower.mirrored.offer(open).unwrap_err();
    assert!(matches!(refused, LendError::NoRegion { .. }), "it could be made shorter: {refused}");
    assert!(!borrower.mirrored.borrow());
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
            borrower.mirrored.take_back().unwrap();
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

fn settle(lodging: &mut Lodging, lodger: &mut Lodger, remotes: [&mut RemoteShard<Mirrored>; 2]) -> bool {
    let [borrows, lends] = remotes;
    let mut stays = true;
    for _ in 0..10 {
        lodging.look(borrows);
        stays = lodger.look(lends, 1).0;
        if !stays {
            break;
        }
    }
    stays
}

#[test]
fn a_lender_that_knows_the_pass_offers_what_it_has_and_a_stranger_before_it_keeps_nobody_out() {
    let ((mut lends, _), (mut borrows, _)) = (shard(worker()), shard(worker()));
    let mut lodging = Lodging::open(4, &pass(), &SECRET).unwrap();
    let name = lodging.name();
    // Some of the same user who say nothing, or something else.
    let strangers: Vec<Connection> =
        (0..6).map(|_| Connection::connect_to(&lending::socket_name(&name)).unwrap()).collect();
    say(&strangers[5], &Word::Lent { tensor: rig::W, bytes: 1 }, &[]).unwrap();
    let mut guesser = Lodger::new(name, Secret([9; 32])).unwrap();
    assert!(!settle(&mut lodging, &mut guesser, [&mut borrows, &mut lends]), "it does not know the pass");
    assert!(lodging.offered.is_empty());
    let mut lodger = Lodger::new(name, pass().secret(&SECRET)).unwrap();
    assert!(settle(&mut lodging, &mut lodger, [&mut borrows, &mut lends]));
    assert_eq!(lodging.offered.iter().copied().collect::<Vec<_>>(), [rig::W]);
    assert!(borrows.tensor(rig::W).unwrap().is_offered());
    // The door is closed behind it: to a second one, also with the pass.
    assert!(Lodger::new(name, pass().secret(&SECRET)).is_err());
}

#[test]
fn who_says_that_it_borrows_without_having_been_offered_anything_is_hung_up_on() {
    let (mut lends, _) = shard(worker());
    let name = random::bytes().unwrap();
    let socket = Expecting::bind(&lending::socket_name(&name)).unwrap();
    let mut lodger = Lodger::new(name, pass().secret(&SECRET)).unwrap();
    let end = socket.accept().unwrap();
    say(&end, &Word::Borrowed { tensor: rig::W }, &[]).unwrap();
    assert!(!lodger.look(&mut lends, 1).0);
    // A proof of another incarnation's.
    let mut again = Lodger::new(name, pass().secret(&SECRET)).unwrap();
    let end = socket.accept().unwrap();
    let stale = lending::proof(&pass().secret(&SECRET), End::Borrower, &name, &[0; 32]);
    say(&end, &Word::Borrower { proof: stale }, &[]).unwrap();
    assert!(!again.look(&mut lends, 1).0);
}

#[test]
fn nothing_of_a_tensor_that_is_not_borrowable_is_offered() {
    let (mirrored, _) = rig::tensor(Agreed::RAW);
    assert!(mirrored.lendable().is_none());
    let _: Header = rig::value(rig::W, 0, 1);
}
