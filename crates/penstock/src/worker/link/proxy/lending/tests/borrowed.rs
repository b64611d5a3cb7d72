//! What a borrower makes of a lender's memory, in which anything may stand, and how it goes back.

use super::*;
use penstock_proto::clock::MAX_CLOCK;
use penstock_proto::remote::mirror::Stands;
use rustix::mm;

/// Chunks whose home the shard is.
const HOMED: [u32; 4] = [0, 1, 3, 4];

fn lent(version: u64) -> (Worker, Worker) {
    let (mut lender, mut borrower) = (worker(), worker());
    lender.publish_all(1);
    borrower.publish_all(1);
    assert!(borrower.borrow(&lender));
    lender.publish_all(version);
    borrower.mirrored.progress(version + 1);
    (lender, borrower)
}

/// What no honest lender does: a header says another version of the same bytes.
fn claim(lender: &mut Worker, chunk: u32, version: u64) {
    lender.mirrored.home.chunk(chunk).header.publish(Published { version, steps: version });
}

fn begin(lender: &mut Worker, chunk: u32) {
    lender.mirrored.home.chunk(chunk).header.begin();
}

fn leave(lender: &mut Worker, chunk: u32) {
    lender.mirrored.home.chunk(chunk).header.leave();
}

// A version was believed that stood in a header as long as nobody had been told of it: what was pulled fell from 9 to 0.
#[test]
fn a_version_that_fell_or_that_no_job_reaches_is_no_readers_and_its_lender_is_known_by_it() {
    for wrong in [0, 8, MAX_CLOCK + 1, u64::MAX] {
        let (mut lender, mut borrower) = lent(9);
        assert_eq!((borrower.read(3), borrower.mirrored.take_unread()), (Some((9, 9)), None));
        claim(&mut lender, 3, wrong);
        assert_eq!(borrower.read(3), None, "version {wrong}");
        // It is not forgiven if it says something else before that is looked at.
        lender.publish(3, 10);
        assert_eq!(borrower.read(3), Some((10, 10)));
        assert_eq!(borrower.mirrored.take_unread(), Some(Unread::NotSo));
        assert_eq!(borrower.mirrored.take_unread(), None);
    }
}

#[test]
fn what_is_not_so_is_no_readers_behind_the_way_back_either() {
    let (mut lender, mut borrower) = lent(9);
    claim(&mut lender, 1, 0);
    claim(&mut lender, 3, u64::MAX);
    assert_eq!(borrower.memory.chunk_progress(3), u64::MAX);
    let is_so = |_, stands: &Stands| (9..=MAX_CLOCK).contains(&stands.version);
    let kept = borrower.mirrored.take_back(&mut GoingBack::new(&mut || {}), &is_so).unwrap();
    let lost = kept.iter().filter(|(_, kept)| *kept == Kept::Lost).map(|(chunk, _)| *chunk);
    assert_eq!(lost.collect::<Vec<_>>(), [1, 3]);
    assert_eq!(HOMED.map(|chunk| borrower.read(chunk).map(|read| read.0)), [Some(9), None, None, Some(9)]);
    assert_eq!(borrower.memory.progress(0, 0), Some(10), "progress is the borrower's own count");
    borrower.publish(3, 9);
    assert_eq!(borrower.read(3), Some((9, 9)));
}

// It was noted of one chunk, with its sequence: who moved on to the next chunk, or whose readers were at two, was never found out.
#[test]
fn a_reader_that_is_held_up_is_seen_whichever_chunk_that_is_at_and_whatever_others_get_meanwhile() {
    let (mut lender, mut borrower) = lent(2);
    for pair in HOMED.windows(2) {
        begin(&mut lender, pair[0]);
        begin(&mut lender, pair[1]);
        for _ in 0..3 {
            // Two readers, and one that gets another chunk.
            assert_eq!((borrower.read(pair[0]), borrower.read(pair[1])), (None, None));
            let other = HOMED.into_iter().find(|chunk| !pair.contains(chunk)).unwrap();
            assert_eq!(borrower.read(other), Some((2, 2)));
            assert_eq!(borrower.mirrored.take_unread(), Some(Unread::HalfWritten));
        }
        borrower.read(pair[0]);
        leave(&mut lender, pair[0]);
        leave(&mut lender, pair[1]);
        assert_eq!(borrower.read(pair[0]), Some((2, 2)));
        assert_eq!(borrower.mirrored.take_unread(), None, "it has got it since");
    }
    // What one lender did is not held against the next.
    claim(&mut lender, 0, 0);
    assert_eq!(borrower.read(0), None);
    borrower.go_back().unwrap();
    lender.publish_all(3);
    assert!(borrower.borrow(&lender));
    assert_eq!(borrower.mirrored.take_unread(), None);
}

// Each waited by itself, twice, and once while all readers waited: 50 ms a tensor, without a sign of life.
#[test]
fn however_many_tensors_are_half_written_the_way_back_waits_once_for_all_and_shows_life() {
    let mut beats = 0;
    let mut beat = || beats += 1;
    let mut way = GoingBack::new(&mut beat);
    for _ in 0..100 {
        let (mut lender, mut borrower) = lent(2);
        begin(&mut lender, 1);
        let kept = borrower.mirrored.take_back(&mut way, &|_, _| true).unwrap();
        assert_eq!(kept.iter().filter(|(_, kept)| *kept == Kept::Lost).count(), 1);
        assert!(!way.may_wait(), "the first took all that there was");
    }
    // One every 10 ms of the 50, fewer where the machine was busy with something else.
    assert!((1..=5).contains(&beats), "{beats}");
}

// It was counted from 0 for each tensor: many small ones showed no life at all.
#[test]
fn what_many_small_tensors_take_is_counted_together_until_it_is_time_for_a_sign_of_life() {
    let mut beats = 0;
    let mut beat = || beats += 1;
    let mut way = GoingBack::new(&mut beat);
    // As if others had been before it.
    way.wrote((64 << 20) - CHUNK);
    let (_lender, mut borrower) = lent(2);
    borrower.mirrored.take_back(&mut way, &|_, _| true).unwrap();
    assert_eq!(beats, 1);
}

// It was stored to all the same, which ended the process.
#[test]
fn where_there_is_no_memory_to_go_back_to_that_is_said_before_anything_is_stored_and_all_stays_as_it_was() {
    let (mut lender, mut borrower) = lent(2);
    let spare = borrower.mirrored.home.chunk(3).seen.as_mut_ptr();
    // SAFETY: a page of the region that it would go back to, which nothing refers to. From now on there is none, and whoever stores there
    // ends the test; the mapping's owner may unmap what is not mapped.
    unsafe { mm::munmap(spare.cast(), CHUNK) }.unwrap();
    let why = borrower.go_back().unwrap_err();
    assert!(why.contains("no memory for 16384 bytes") && why.contains("PENSTOCK_LEND=off"), "{why}");
    assert!(borrower.mirrored.is_borrowed());
    lender.publish_all(3);
    assert_eq!(HOMED.map(|chunk| borrower.viewed(chunk)), [3; 4]);
}
