//! What a borrower makes of a lender's memory, in which anything may stand, and how it goes back.

use super::*;
use penstock_proto::clock::MAX_CLOCK;

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
