//! What a worker that lends what it mirrors and one that borrows it assume of each other.
#![cfg(not(loom))]

mod rig;

use penstock_fabric::memory::Unread;
use penstock_fabric::net::remote_shard::{NewChild, Unreached};
use penstock_proto::frame::{Body, Notice};
use penstock_proto::overlay::Stripes;
use penstock_proto::submission::{NOBODY, Submission};
use rig::{BORROWER, End, LENDER, NAME, Rig, W, bodies, pipe};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(10);

#[test]
fn what_is_borrowed_is_seen_as_it_comes_and_nothing_of_it_is_passed_on() {
    let mut rig = Rig::borrowing();
    for _ in 0..3 {
        rig.publish();
        rig.settle();
        assert_eq!(rig.seen(), rig.all());
    }
    rig.pass(LONG);
    assert_eq!(rig.left(), (vec![], vec![]));
    assert_eq!(rig.mirror(BORROWER).went_back, 0);
}

/// The home sends the borrower all values itself, until that goes back.
fn go_past_trees() -> Rig {
    let mut rig = Rig::borrowing();
    rig.by_trees = false;
    for _ in 0..3 {
        rig.publish();
        rig.settle();
    }
    rig.pass(Duration::from_millis(40));
    assert_eq!(rig.mirror(BORROWER).went_back, 1);
    rig.publish();
    rig.settle();
    assert_eq!(rig.seen(), rig.all(), "what the home sends itself comes");
    rig
}

// The lender went on saying only that it was new; the borrower waited for values, and blamed it.
#[test]
fn what_the_home_sent_itself_for_a_while_is_passed_on_again_once_its_lender_has_heard_that_it_is_not_borrowed()
 {
    let mut rig = go_past_trees();
    assert_eq!(rig.borrower().take_returned(), [W]);
    rig.workers[LENDER as usize].lend_no_more((BORROWER, &NAME), W);
    rig.borrower().renew(W);
    rig.settle();
    rig.offer();
    assert!(!rig.borrow(), "the home still sends it itself");
    rig.by_trees = true;
    rig.publish();
    rig.settle();
    rig.pass(LONG);
    assert_eq!(rig.seen(), rig.all());
    assert_eq!(rig.left(), (vec![], vec![]));
    assert!(rig.borrow(), "it may be borrowed again");
    rig.publish();
    rig.settle();
    rig.pass(LONG);
    assert_eq!((rig.seen(), rig.left()), (rig.all(), (vec![], vec![])));
}

#[test]
fn what_its_lender_said_before_it_heard_that_it_is_not_borrowed_comes_from_the_home() {
    let mut rig = go_past_trees();
    assert_eq!(rig.borrower().take_returned(), [W]);
    rig.by_trees = true;
    rig.publish();
    rig.settle();
    assert_ne!(rig.seen(), rig.all());
    rig.workers[LENDER as usize].lend_no_more((BORROWER, &NAME), W);
    rig.borrower().renew(W);
    rig.pass(LONG);
    assert_eq!((rig.seen(), rig.left()), (rig.all(), (vec![], vec![])));
}

#[test]
fn a_lender_that_cannot_be_told_is_left_by_nobodys_fault() {
    let mut rig = go_past_trees();
    rig.borrower().leave_lender();
    rig.by_trees = true;
    rig.publish();
    rig.pass(LONG);
    assert_eq!(rig.seen(), rig.all());
    let (blamed, left) = rig.left();
    assert_eq!((blamed, left.len()), (vec![NOBODY], 1));
    assert!(rig.is_fed_by_home() && rig.borrower().lender().is_none());
    assert!(rig.borrower().take_returned().is_empty(), "whom it has left it need not tell");
}

/// A child that comes to be fed by the borrower, and its end of their link.
fn child() -> (NewChild<End>, End) {
    let (here, there) = pipe();
    let stripes = Stripes::first(1);
    (NewChild { rank: 2, striping: 1, stripes, rendezvous: None, link: there }, here)
}

fn alive() -> Body {
    Body::Alive
}

fn greeting() -> Body {
    Body::Notice(Notice::Taken)
}

// It copied for seconds, and those that it was to feed said that it was silent; then they copied.
#[test]
fn who_comes_while_memory_is_given_back_is_shown_at_once_that_its_parent_lives() {
    let mut rig = Rig::borrowing();
    let (child, mut end) = child();
    let entrance = rig.entrances[BORROWER as usize].clone();
    let (tells, told) = std::sync::mpsc::channel();
    rig.mirror(BORROWER).meanwhile = Some(Box::new(move || entrance.send(child).unwrap()));
    rig.mirror(BORROWER).behind = Some(Box::new(move || tells.send(bodies(&mut end)).unwrap()));
    // The home feeds it from now on.
    rig.route(1, &[0]);
    assert_eq!(told.try_recv().unwrap(), [alive()], "before all is copied");
    rig.settle();
    assert_eq!((rig.mirror(BORROWER).went_back, rig.left().1), (1, vec![]));
}

#[test]
fn who_waits_for_one_that_borrows_is_shown_that_it_lives_and_greeted_when_that_has_gone_back() {
    let mut rig = Rig::borrowing();
    let (child, mut end) = child();
    rig.entrances[BORROWER as usize].send(child).unwrap();
    rig.settle();
    assert_eq!(bodies(&mut end), [alive()]);
    rig.pass(Duration::from_secs(3));
    let signs = bodies(&mut end);
    assert!(signs.len() >= 3 && signs.iter().all(|sign| *sign == alive()), "{signs:?}");
    rig.route(1, &[0]);
    rig.settle();
    assert_eq!(bodies(&mut end).last(), Some(&greeting()));
}

/// Values are cut anew: as before the lender feeds all of them, or the home.
fn cut_anew(by_lender: bool) -> Rig {
    let mut rig = Rig::borrowing();
    rig.route(2, &[u8::from(by_lender)]);
    rig
}

// All was copied back, and given up again as soon as it stood there once more.
#[test]
fn what_is_borrowed_stays_so_where_its_lender_is_to_feed_all_stripes_of_a_new_cut() {
    let mut rig = cut_anew(true);
    rig.publish();
    rig.settle();
    assert_eq!(rig.connect([6; 16]), 1);
    rig.settle();
    rig.stands();
    rig.settle();
    assert_eq!(rig.seen(), rig.all());
    // By frames, as long as the lender was not told, and then by word.
    for _ in 0..2 {
        for _ in 0..2 {
            rig.publish();
            rig.settle();
            assert_eq!((rig.seen(), rig.mirror(BORROWER).progress), (rig.all(), rig.version + 1));
        }
        assert!(rig.workers[LENDER as usize].lend((BORROWER, &[6; 16]), W));
    }
    rig.pass(LONG);
    assert_eq!((rig.left(), rig.mirror(BORROWER).went_back), ((vec![], vec![]), 0));
    assert!(!rig.is_fed_by_home());
}

#[test]
fn what_is_borrowed_is_given_back_where_its_lender_is_not_to_feed_the_new_cut_or_does_not() {
    let mut rig = cut_anew(false);
    assert_eq!(rig.mirror(BORROWER).went_back, 1);
    rig.publish();
    rig.settle();
    assert_eq!(rig.seen(), rig.all());

    let mut rig = cut_anew(true);
    let wishes = rig.borrower().take_wishes();
    let why = "nobody answers".to_owned();
    rig.borrower().parent_came(&wishes[0], Err(Unreached { why, is_its: true }));
    rig.settle();
    assert_eq!((rig.mirror(BORROWER).went_back, rig.left().0), (1, vec![LENDER]));

    // Another route names somebody else meanwhile.
    let mut rig = cut_anew(true);
    rig.route(2, &[0]);
    assert_eq!((rig.mirror(BORROWER).went_back, rig.left().0), (1, vec![]));

    // Its lender says nothing, or no connection comes about.
    for comes in [true, false] {
        let mut rig = cut_anew(true);
        if comes {
            let wishes = rig.borrower().take_wishes();
            let (child, parent) = pipe();
            rig.borrower().parent_came(&wishes[0], Ok(child));
            rig.pass(Duration::from_secs(5));
            drop(parent);
        } else {
            rig.pass(Duration::from_secs(5));
        }
        rig.publish();
        rig.settle();
        assert_eq!((rig.seen(), rig.mirror(BORROWER).went_back), (rig.all(), 1), "comes: {comes}");
    }
}

/// When a worker says goodbye, in milliseconds, whose lender was in the middle of a write, if the home does not send that; `left`: it
/// has left that lender just before.
fn leaves_after(within: Option<Duration>, left: bool) -> Option<u128> {
    let mut rig = Rig::borrowing();
    rig.mirror(BORROWER).torn = true;
    rig.is_mute = true;
    let began = rig.now;
    if left {
        rig.borrower().leave_lender();
    }
    within.into_iter().for_each(|within| rig.borrower().leave_within(within));
    rig.borrower().submit(Submission::Leave);
    for _ in 0..200 {
        rig.pass(Duration::from_millis(20));
        if rig.said_goodbye() {
            return Some((rig.now - began).as_millis());
        }
    }
    None
}

// It waited for two seconds, and had one.
#[test]
fn who_leaves_waits_for_what_its_lender_was_writing_no_longer_than_half_of_its_time() {
    assert_eq!(leaves_after(None, false), Some(2040));
    assert_eq!(leaves_after(Some(LONG), false), Some(2040));
    assert_eq!(leaves_after(Some(Duration::from_secs(1)), false), Some(540));
}

// It waited for nothing, as it had no lender any more: a view could stay half-written for good.
#[test]
fn who_leaves_right_behind_its_lender_waits_as_long_for_what_that_was_writing() {
    assert_eq!(leaves_after(None, true), Some(2040));
}

// It was out for a minute, and longer each time, where it had had no core for one.
#[test]
fn a_lender_that_leaves_a_chunk_half_written_is_left_by_nobodys_fault_and_one_that_lies_by_its_own() {
    for (unread, blamed) in [(Unread::HalfWritten, NOBODY), (Unread::NotSo, LENDER)] {
        let mut rig = Rig::borrowing();
        rig.mirror(BORROWER).unread = Some(unread);
        rig.pass(Duration::from_secs(3));
        let (said, left) = rig.left();
        assert_eq!((said, left.len(), rig.mirror(BORROWER).went_back), (vec![blamed], 1, 1), "{unread:?}");
    }
}
