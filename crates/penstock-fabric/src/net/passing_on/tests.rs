//! Parents and children, over links in memory.

use super::super::feeder::{Fed, Feeder};
use super::super::frames::Places;
use super::*;
use penstock_kernels::codec::Codec;
use penstock_proto::overlay::{Parent, Pass};
use penstock_proto::seal::Verifier;
use penstock_proto::seal::{Scope, Sealer};

const JOB: u64 = 7;
const SCOPE: Scope = Scope { job: JOB, server: 1, shard: 2 };

/// A link in memory, which takes so many bytes in all and brings what it holds. One that `buffers` takes more, as TLS does, and
/// holds it until there is room.
#[derive(Default)]
struct Memory {
    room: usize,
    buffers: bool,
    held: VecDeque<u8>,
    went: Vec<u8>,
    comes: VecDeque<u8>,
    ended: bool,
}

impl Link for Memory {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        let room = parts.iter_mut().flat_map(|part| part.iter_mut());
        let came = room.map_while(|byte| self.comes.pop_front().map(|came| *byte = came)).count();
        Ok(match came {
            0 if self.ended => Got::End,
            0 => Got::Nothing,
            came => Got::Bytes(came),
        })
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        if self.buffers {
            let bytes = Segment::copied(parts, 1 << 20);
            self.held.extend(&bytes);
            self.flush()?;
            return Ok(bytes.len());
        }
        let bytes = Segment::copied(parts, self.room);
        self.room -= bytes.len();
        self.went.extend_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<bool> {
        let going = self.room.min(self.held.len());
        self.room -= going;
        self.went.extend(self.held.drain(..going));
        Ok(self.held.is_empty())
    }

    fn holds_output(&self) -> bool {
        !self.held.is_empty()
    }

    fn resize(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
}

struct Anything;

impl Places for Anything {
    type Place = Option<&'static dyn Codec>;

    fn place(&mut self, _: &Header) -> Result<Self::Place, String> {
        Ok(None)
    }

    fn memory<'a>(&'a mut self, _: &'a mut Self::Place) -> Option<&'a mut [u8]> {
        None
    }
}

fn value(chunk: u32, payload: &[u8]) -> Header {
    let (version, steps, publication, base, content) = (1, 1, 2, 0, 2);
    let notice = Notice::Value { tensor: 0, chunk, version, steps, publication, base, content };
    Header::bare(JOB, 99, Body::Notice(notice)).with_payload(payload)
}

fn sealed(chunk: u32, payload: &[u8]) -> Passed {
    let (sealer, header) = (Sealer::new(&[1; 32], SCOPE), value(chunk, payload));
    let mut seal = Vec::new();
    sealer.seal(&[sealer.leaf(&header, payload)], |_, proof| seal = proof.to_vec());
    Passed::new(JOB, &seal, &header, payload)
}

fn stripes<const N: usize>(of: [usize; N]) -> Stripes {
    of.into_iter().collect()
}

fn children(links: impl IntoIterator<Item = Memory>) -> Children<Memory> {
    let mut children = Children::default();
    for (rank, link) in (0..).zip(links) {
        children.take_in(rank, (3, stripes([rank as usize % 2])), None, link);
    }
    children.greet(JOB, 3);
    children
}

fn endless() -> Memory {
    Memory { room: usize::MAX, ..Memory::default() }
}

fn feeder(bytes: &[u8]) -> Feeder<Memory> {
    let link = Memory { comes: bytes.to_vec().into(), ..Memory::default() };
    let pass = Pass::new(&[0; 16], 0, 0);
    let parent = Parent { rank: 4, address: "10.0.0.4:1".parse().unwrap(), pass };
    Feeder::new(parent, stripes([0]), link, 4096)
}

/// What a child that looks at seals makes of what comes.
fn heard(bytes: &[u8], key: &[u8; 32]) -> Result<Vec<u32>, String> {
    let (mut feeder, mut chunks) = (feeder(bytes), Vec::new());
    let mut verifier = Verifier::new(key, SCOPE).unwrap();
    loop {
        feeder.ready();
        match feeder.hear(&mut Anything, &mut verifier) {
            Fed::Nothing => return Ok(chunks),
            Fed::Over(why) | Fed::Ended(why) => return Err(why),
            Fed::Frame(Header { body: Body::Notice(Notice::Value { chunk, .. }), .. }, _) => {
                chunks.push(chunk);
            }
            Fed::Frame(header, _) => return Err(format!("{header:?}")),
            Fed::Greeting | Fed::Part => {}
        }
    }
}

#[test]
fn each_child_is_passed_its_stripe_as_it_was_sealed_whatever_it_takes_at_once() {
    let key = Sealer::new(&[1; 32], SCOPE).key();
    let mut children = children([endless(), endless(), Memory::default()]);
    for chunk in 0..40 {
        children.pass_on((chunk % 2, 0), sealed(chunk as u32, &[chunk as u8; 1000]));
    }
    children.send();
    for _ in 0..2000 {
        children.0[2].link.room = 37;
        children.ready();
        children.send();
    }
    let heard: Vec<Vec<u32>> =
        children.0.iter().map(|child| heard(&child.link.went, &key).unwrap()).collect();
    let even: Vec<u32> = (0..40).filter(|chunk| chunk % 2 == 0).collect();
    let odd: Vec<u32> = (0..40).filter(|chunk| chunk % 2 == 1).collect();
    assert_eq!(heard, [even.clone(), odd, even]);
    assert!(!children.has_due() && children.0.iter().all(|child| child.queued == 0));
}

// The last of a broadcast stayed in the TLS of a socket that was full just then, until the next broadcast or until the child had
// left.
#[test]
fn what_a_link_has_taken_and_holds_goes_when_it_can_though_nothing_comes_behind_it() {
    let key = Sealer::new(&[1; 32], SCOPE).key();
    let mut children = children([Memory { room: 50, buffers: true, ..Memory::default() }]);
    children.pass_on((0, 0), sealed(0, &[1; 1000]));
    children.send();
    assert!(!children.has_work());
    assert!(children.links().all(|(_, interest)| interest.write), "it is waited for");
    children.0[0].link.room = usize::MAX;
    children.ready();
    children.0[0].readable = false;
    assert!(children.has_work());
    children.send();
    assert_eq!(heard(&children.0[0].link.went, &key), Ok(vec![0]));
    assert!(!children.has_work());
}

#[test]
fn what_was_changed_on_the_way_or_is_anothers_is_refused_and_nothing_behind_it_is_taken() {
    let key = Sealer::new(&[1; 32], SCOPE).key();
    let mut children = children([endless()]);
    let mut forged = sealed(1, &[5; 100]);
    // As a parent would that knows how frames are made.
    forged.0[1] = (value(1, &[6; 100]).encode(), [6; 100].into());
    for passed in [sealed(0, &[1; 100]), forged, sealed(2, &[3; 100])] {
        children.pass_on((0, 0), passed);
    }
    children.send();
    assert!(heard(&children.0[0].link.went, &key).is_err());
    let honest = children_of_one(&[sealed(0, &[1; 100])]);
    assert_eq!(heard(&honest, &key), Ok(vec![0]));
    assert!(heard(&honest, &Sealer::new(&[2; 32], SCOPE).key()).is_err(), "another server's");
    assert!(heard(&honest[HEADER_BYTES..], &key).is_err(), "it has to greet first");
    let twice = [&honest[..HEADER_BYTES], &honest[..HEADER_BYTES]].concat();
    assert!(heard(&twice, &key).is_err(), "and once");
}

fn children_of_one(passed: &[Passed]) -> Vec<u8> {
    let mut children = children([endless()]);
    passed.iter().for_each(|Passed(frames)| children.pass_on((0, 0), Passed(frames.clone())));
    children.send();
    std::mem::take(&mut children.0[0].link.went)
}

/// To hang up on it would look as if this end had failed: it does so itself when it hears of the new cut.
#[test]
fn a_child_of_a_newer_cut_waits_until_that_is_known_here_and_one_of_an_older_cut_gets_nothing_more() {
    let mut children = Children::default();
    for striping in [2, 3, 4] {
        children.take_in(striping, (striping, stripes([0])), None, endless());
    }
    let mut went = |known| {
        children.greet(JOB, known);
        children.pass_on((0, 0), sealed(0, &[1; 10]));
        children.send();
        let went = |child: &mut Child<Memory>| !std::mem::take(&mut child.link.went).is_empty();
        children.0.iter_mut().map(|child| (child.rank, went(child))).collect::<Vec<_>>()
    };
    assert_eq!(went(3), [(2, false), (3, true), (4, false)]);
    assert_eq!(went(4), [(2, false), (3, false), (4, true)]);
}

#[test]
fn who_comes_again_for_some_stripes_keeps_what_it_has_of_the_others() {
    let mut children = Children::default();
    children.take_in(1, (3, stripes([0, 1])), None, endless());
    children.take_in(1, (3, stripes([1])), None, endless());
    let fed = |children: &Children<Memory>| children.0.iter().map(|child| child.stripes).collect::<Vec<_>>();
    assert_eq!(fed(&children), [stripes([0]), stripes([1])]);
    children.take_in(1, (3, stripes([0])), None, endless());
    assert_eq!(fed(&children), [stripes([1]), stripes([0])]);
    children.take_in(1, (4, stripes([0])), None, endless());
    assert_eq!(fed(&children), [stripes([0])], "it has left all of the older cut");
}

#[test]
fn who_takes_nothing_for_long_is_let_go_and_who_takes_little_is_not() {
    let mut children = children([Memory::default(), endless(), Memory::default()]);
    children.pass_on((0, 0), sealed(0, &[1; 100_000]));
    for after in 0..20 {
        children.0.iter_mut().filter(|child| child.rank == 2).for_each(|child| child.link.room = 10);
        children.ready();
        children.send();
        children.look(Duration::from_millis(100 * after));
    }
    assert_eq!(children.0.iter().map(|child| child.rank).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn who_takes_less_than_comes_for_long_is_let_go_and_holds_nobody_up_any_more() {
    let mut children = children([Memory::default(), endless()]);
    for after in 0..40 {
        while !children.is_full(stripes([0])) {
            children.pass_on((0, 0), sealed(0, &[0; 1 << 20]));
        }
        children.0[0].link.room += 10_000;
        children.ready();
        children.send();
        children.look(Duration::from_millis(100 * after));
        assert_eq!(children.0.len(), if after <= 20 { 2 } else { 1 }, "after {after}");
        if children.0.len() == 1 {
            break;
        }
    }
    assert!(!children.is_full(stripes([0])));
}

#[test]
fn who_has_hung_up_is_let_go_and_who_comes_again_takes_its_own_place() {
    let mut children = children([endless(), endless()]);
    children.0[0].link.ended = true;
    children.ready();
    assert!(children.send());
    assert_eq!(children.0.len(), 1);
    children.take_in(1, (3, stripes([1, 2])), None, endless());
    assert_eq!(children.0.len(), 1, "the old connection has a stripe in common with the new one");
    children.take_in(1, (3, stripes([0])), None, endless());
    assert_eq!(children.0.len(), 2);
    (0..2000).for_each(|rank| children.take_in(rank, (3, stripes([5])), None, endless()));
    assert_eq!(children.0.len(), MOST_CHILDREN);
}

// One worker could fill all places, each with a cut that nobody knows.
#[test]
fn who_waits_for_a_cut_that_is_not_known_here_waits_with_one_connection() {
    let mut children = Children::default();
    (0..1000).rev().for_each(|striping| children.take_in(1, (striping, stripes([0])), None, endless()));
    assert_eq!(children.0.len(), 1);
    children.greet(7, 0);
    assert!(children.any_of(0, 0), "the newest is the one that stays");
}

// A worker that was suspended took its own pause for its children's.
#[test]
fn time_in_which_this_end_did_nothing_is_not_a_childs() {
    for is_told in [false, true] {
        let mut children = children([Memory::default()]);
        children.pass_on((0, 0), sealed(0, &[0; 1 << 20]));
        children.send();
        children.look(Duration::ZERO);
        if is_told {
            children.begin_again();
        }
        children.look(Duration::from_secs(5));
        assert_eq!(children.0.len(), usize::from(is_told));
    }
}

#[test]
fn of_chunks_that_follow_each_other_a_borrower_is_told_by_one_frame_as_long_as_that_waits() {
    let (rendezvous, mut children) = ([5; 16], Children::default());
    children.take_in(1, (3, stripes([0])), Some(rendezvous), Memory::default());
    children.greet(JOB, 3);
    for tensor in [7, 8] {
        assert!(children.lend((1, &rendezvous), tensor));
    }
    // The third is another shard's.
    let next = |chunk| [Some(1), Some(3), None, Some(4), None][chunk as usize];
    let show = |children: &mut Children<Memory>, tensor, chunk, count, last| {
        children.show(JOB, 0, (tensor, chunk, count), || next(last));
    };
    for chunk in [0, 1, 3, 1, 0] {
        show(&mut children, 7, chunk, 1, chunk);
    }
    show(&mut children, 8, 4, 1, 4);
    show(&mut children, 7, 4, 1, 4);
    show(&mut children, 7, 0, 2, 1);
    show(&mut children, 7, 3, 2, 4);
    let took = |children: &mut Children<Memory>| -> Vec<Notice> {
        let link = &mut children.0[0].link;
        link.room = 10_000;
        children.ready();
        children.send();
        let went = std::mem::take(&mut children.0[0].link.went);
        let headers = went.as_chunks::<HEADER_BYTES>().0.iter();
        headers
            .map(|header| match Header::decode(header).unwrap().body {
                Body::Notice(notice) => notice,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    let lent = |tensor, chunk, count| Notice::Lent { tensor, chunk, count };
    let said = [Notice::Taken, lent(7, 0, 3), lent(8, 4, 1), lent(7, 4, 1), lent(7, 0, 4)];
    assert_eq!(took(&mut children), said);
    show(&mut children, 7, 4, 1, 4);
    assert_eq!(took(&mut children), [lent(7, 4, 1)], "what has gone says nothing more");
    assert!(!children.has_due());
}

// Its parent let it go after 10 s, which went on borrowing.
#[test]
fn a_child_that_is_shown_life_is_not_let_go_for_what_it_waits_for() {
    let mut children = Children::default();
    children.take_in(0, (3, stripes([0])), None, endless());
    for second in 0..40 {
        children.reassure(JOB);
        children.look(Duration::from_secs(second));
    }
    assert_eq!(children.0.len(), 1);
    for second in 40..60 {
        children.look(Duration::from_secs(second));
    }
    assert!(children.0.is_empty());
}

// It copied back what it had borrowed, for longer than that.
#[test]
fn a_parent_that_shows_that_it_lives_is_not_silent_for_a_minute() {
    let sign = Header::bare(JOB, 0, Body::Alive).encode();
    let mut verifier = Verifier::new(&Sealer::new(&[1; 32], SCOPE).key(), SCOPE).unwrap();
    let (mut mute, mut shows) = (feeder(&[]), feeder(&sign.repeat(100)));
    let mut silent = [None; 2];
    for second in 0..90 {
        assert!(matches!(shows.hear(&mut Anything, &mut verifier), Fed::Part));
        for (feeder, silent) in [&mut mute, &mut shows].into_iter().zip(&mut silent) {
            if feeder.is_silent(Duration::from_secs(second)) {
                silent.get_or_insert(second);
            }
        }
    }
    assert_eq!(silent, [Some(3), Some(61)]);
    // Behind its greeting it says nothing but what is sealed.
    let greeting = Header::bare(JOB, 0, Body::Notice(Notice::Taken)).encode();
    let mut feeder = feeder(&[greeting, sign].concat());
    while !matches!(feeder.hear(&mut Anything, &mut verifier), Fed::Greeting) {}
    assert!((0..3).any(|_| matches!(feeder.hear(&mut Anything, &mut verifier), Fed::Over(_))));
}

#[test]
fn as_long_as_too_much_waits_for_a_child_nothing_more_is_to_be_read() {
    let mut children = children([Memory::default()]);
    let mut passed = 0;
    while !children.is_full(stripes([0])) {
        children.pass_on((0, 0), sealed(passed, &[0; 1 << 20]));
        passed += 1;
        assert!(passed < 20);
    }
    assert!(!children.is_full(stripes([1])), "no stripe waits for another");
    children.0[0].link.room = usize::MAX;
    children.ready();
    children.send();
    assert!(!children.is_full(stripes([0])) && !children.has_due());
    children.0[0].link.room = 0;
    (0..260).for_each(|chunk| children.pass_on((0, 0), sealed(chunk, &[0; 1 << 20])));
    children.send();
    assert!(children.0.is_empty(), "what the home sends is read whatever waits");
}
