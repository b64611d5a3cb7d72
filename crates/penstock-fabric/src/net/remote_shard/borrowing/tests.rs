//! A borrower whose memory says what the test has it say.

use super::super::super::feeder::Feeder;
use super::super::super::link::{Got, Link, Segment};
use super::super::{Left, Limits, Value};
use super::*;
use crate::publish::{Published, Torn};
use penstock_kernels::Foreign;
use penstock_kernels::codec::Undecodable;
use penstock_proto::encoding::Agreed;
use penstock_proto::factors::LowRank;
use penstock_proto::frame::{Body, HEADER_BYTES, Header};
use penstock_proto::overlay::{Parent, Pass};
use penstock_proto::seal::{Scope, Sealer, Verifier};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::rc::Rc;

const JOB: u64 = 7;
const LENDER: Rank = 4;

/// What all tensors of a test do and count.
#[derive(Default)]
struct Script {
    looks: Cell<usize>,
    waits: Cell<usize>,
    version: Cell<u64>,
    went_back: Cell<usize>,
    lacks_memory: Cell<bool>,
}

struct Fake {
    script: Rc<Script>,
    chunks: Vec<u32>,
    borrowed: bool,
    unread: Option<Unread>,
}

impl Mirrored for Fake {
    fn chunks(&self) -> &[u32] {
        &self.chunks
    }

    fn values(&self) -> &Agreed {
        &Agreed::RAW
    }

    fn contributions(&self) -> &Agreed {
        &Agreed::RAW
    }

    fn bytes(&self, _: u32) -> Option<usize> {
        Some(4096)
    }

    fn state_bytes(&self, _: u32) -> Option<usize> {
        None
    }

    fn contribution(&self, _: u32) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn low_rank(&self) -> Option<LowRank> {
        None
    }

    fn range_of(&self, _: u32) -> Range<u64> {
        unreachable!("nobody pushes")
    }

    fn right_factor(&self, _: u32, _: Range<usize>) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn left_factor(&self, _: u32, _: u32) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn is_broadcast(&self) -> bool {
        true
    }

    fn is_lane_exposed(&self) -> bool {
        false
    }

    fn wants(&self) -> bool {
        false
    }

    fn wanted(&self) -> u64 {
        0
    }

    fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    fn look_there(&self, _: u32) -> Result<Option<Stands>, Torn> {
        let Script { looks, version, .. } = &*self.script;
        looks.set(looks.get() + 1);
        let (version, number) = (version.get(), 2 * version.get() + 2);
        Ok(Some(Stands { version, steps: version, publication: number, content: number }))
    }

    fn take_unread(&mut self) -> Option<Unread> {
        self.unread.take()
    }

    fn take_back(
        &mut self,
        way: &mut GoingBack<'_>,
        _: &dyn Fn(u32, &Stands) -> bool,
    ) -> Result<Vec<(u32, Kept)>, String> {
        let Script { waits, went_back, lacks_memory, .. } = &*self.script;
        if lacks_memory.get() && went_back.get() == 2 {
            return Err("there is no memory".to_owned());
        }
        // Something is half-written in each.
        while way.may_wait() {
            waits.set(waits.get() + 1);
            way.waited(Duration::from_millis(1));
        }
        went_back.set(went_back.get() + 1);
        self.borrowed = false;
        Ok(Vec::new())
    }

    fn publish(&mut self, _: u32, _: &Value<'_>, _: Published) -> Result<(), Undecodable> {
        unreachable!("nothing is published where values are borrowed")
    }

    fn raise(&mut self, _: u32, _: Published) {}
    fn progress(&mut self, _: u64) {}
    fn state(&mut self, _: u32, _: &[u8]) {}
    fn folded(&mut self, _: u64) {}
    fn fetched(&mut self, _: u64) {}
}

struct Nobody;

impl Submitter for Nobody {
    fn pop(&mut self) -> Option<Submission> {
        None
    }

    fn is_empty(&self) -> bool {
        true
    }

    fn tell(&self, _: u32) {}
}

#[derive(Default)]
struct Memory {
    comes: VecDeque<u8>,
    went: Vec<u8>,
}

impl Link for Memory {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        let room = parts.iter_mut().flat_map(|part| part.iter_mut());
        let came = room.map_while(|byte| self.comes.pop_front().map(|came| *byte = came)).count();
        Ok(if came == 0 { Got::Nothing } else { Got::Bytes(came) })
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        let bytes = Segment::copied(parts, usize::MAX);
        self.went.extend_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn holds_output(&self) -> bool {
        false
    }

    fn resize(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
}

type Shard = RemoteShard<Fake, Nobody, Memory>;

fn frame(notice: Notice) -> Vec<u8> {
    Header::bare(JOB, 0, Body::Notice(notice)).encode().to_vec()
}

/// It borrows so many tensors of so many chunks, of a parent that says this.
fn borrowing(tensors: u32, chunks: u32, says: Vec<u8>) -> (Shard, Rc<Script>) {
    let mut shard = Shard::new(JOB, Nobody, Limits::USUAL);
    let script = Rc::<Script>::default();
    for id in 0..tensors {
        let (script, chunks) = (Rc::clone(&script), (0..chunks).collect());
        shard.declare(id, Fake { script, chunks, borrowed: true, unread: None });
        shard.machine.borrow(id, true);
    }
    let scope = Scope { job: JOB, server: 1, shard: 2 };
    shard.trust(Verifier::new(&Sealer::new(&[1; 32], scope).key(), scope).unwrap());
    let pass = Pass::new(&[0; 16], 0, 0);
    let parent = Parent { rank: LENDER, address: "10.0.0.4:1".parse().unwrap(), pass };
    let link = Memory { comes: says.into(), went: Vec::new() };
    let mut feeder = Feeder::new(parent, Stripes::first(1), link, Limits::USUAL.read);
    (feeder.greeted, feeder.lends) = (true, true);
    shard.parents.push(feeder);
    shard.lender = Some(LENDER);
    (shard, script)
}

// Of each of 32 notices a look went through all chunks of a tensor, and called that work: the proxy never slept.
#[test]
fn notices_without_news_are_no_work_and_a_look_is_over_after_so_many_chunks_whatever_a_notice_names() {
    const CHUNKS: u32 = 100;
    const NOTICES: usize = 10_000;
    let notice = frame(Notice::Lent { tensor: 0, chunk: 0, count: CHUNKS });
    let (mut shard, script) = borrowing(1, CHUNKS, notice.repeat(NOTICES));
    let mut look = |version| {
        script.version.set(version);
        let before = script.looks.get();
        shard.links_ready();
        let (busy, over) = shard.hear_parents(32);
        assert_eq!(over, None);
        (busy, script.looks.get() - before)
    };
    let whole = CHUNKS as usize;
    assert_eq!(look(1), (true, whole), "it is all new");
    for _ in 2..NOTICES {
        assert_eq!(look(1), (false, whole));
    }
    assert_eq!((look(2), look(2)), ((true, whole), (false, 0)));
    assert_eq!(shard.take_left(), []);
}

/// Looks on and on, a tenth of a second apart; how many it took until the lender was left, if it was within 1,000.
fn looks_until_left(shard: &mut Shard, mut unread: impl FnMut(u32) -> Option<Unread>) -> Option<u32> {
    let mut now = LOOKS_APART;
    (1..=1_000).find(|&look| {
        // Readers are held up by one tensor after the other.
        shard.mirrors.tensors.get_mut(look % 3).unwrap().unread = unread(look);
        shard.look_at_loans(now);
        now += shard.looks_at_loans_within().unwrap_or_default();
        shard.lender.is_none()
    })
}

fn left() -> Left {
    Left { parent: Some(LENDER), what: "what it lends is half-written, or not so".to_owned() }
}

// It was looked at twice whether the same chunk was half-written, each tensor by itself.
#[test]
fn a_lender_that_holds_readers_up_for_a_second_is_left_wherever_that_is_and_one_that_does_now_and_then_is_not()
 {
    let (mut shard, script) = borrowing(3, 1, Vec::new());
    assert_eq!(looks_until_left(&mut shard, |_| Some(Unread::HalfWritten)), Some(UNREAD_LOOKS));
    assert_eq!((shard.take_left(), script.went_back.get()), (vec![left()], 3));
    // That lets one look in four find nobody held up.
    let (mut shard, _) = borrowing(3, 1, Vec::new());
    let most = looks_until_left(&mut shard, |look| Some(Unread::HalfWritten).filter(|_| look % 4 > 0));
    assert!(most.is_some_and(|looks| looks <= 2 * UNREAD_LOOKS + 4), "{most:?}");
    // That writes much, and is met at it by every third look.
    let (mut shard, _) = borrowing(3, 1, Vec::new());
    let few = looks_until_left(&mut shard, |look| Some(Unread::HalfWritten).filter(|_| look % 3 == 0));
    assert_eq!((few, shard.take_left()), (None, vec![]));
}

#[test]
fn a_lender_of_what_is_not_so_is_left_at_the_next_look() {
    let (mut shard, _) = borrowing(3, 1, Vec::new());
    let looks = looks_until_left(&mut shard, |look| Some(Unread::NotSo).filter(|_| look == 5));
    assert_eq!((looks, shard.take_left()), (Some(5), vec![left()]));
}

#[test]
fn the_way_back_of_all_tensors_waits_so_long_together_and_the_home_hears_that_this_end_lives() {
    let (mut shard, script) = borrowing(100, 1, Vec::new());
    shard.attach(Memory { comes: frame(Notice::Taken).into(), went: Vec::new() });
    while shard.hear() != super::super::Heard::Nothing {}
    shard.take_back();
    assert_eq!((script.went_back.get(), shard.lender()), (100, None));
    assert_eq!(script.waits.get() as u128, WAITS_FOR.as_millis());
    let went = &shard.link().unwrap().went;
    let beats =
        went.chunks_exact(HEADER_BYTES).map(|frame| Header::decode(frame.try_into().unwrap()).unwrap().body);
    let beats: Vec<Body> = beats.collect();
    assert_eq!(beats, vec![Body::Alive; (WAITS_FOR.as_millis() / BEATS_APART.as_millis()) as usize]);
}

// It was taken for its own all the same, and what came next was written there.
#[test]
fn what_cannot_be_taken_back_stays_borrowed_and_its_worker_has_failed() {
    let (mut shard, script) = borrowing(5, 1, Vec::new());
    script.lacks_memory.set(true);
    shard.take_back();
    assert_eq!(shard.take_failed().as_deref(), Some("there is no memory"));
    let borrowed = |id| (shard.tensor(id).unwrap().borrowed, shard.machine.is_borrowed(id));
    let stay = (0..5).map(borrowed).filter(|&borrowed| borrowed == (true, true)).count();
    assert_eq!((stay, script.went_back.get()), (3, 2), "no more of them are tried");
}
