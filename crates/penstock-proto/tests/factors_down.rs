//! When a home sends right factors with the updates that name them, and that it sends each once: U-2.

use penstock_proto::factors::PIECE;
use penstock_proto::factors::down::{Named, Needed};
use penstock_proto::remote::home::{Chunks, Owing, Publication, Subscriber};
use penstock_proto::submission::NO_TICKET;
use penstock_proto::{Rank, TensorId};

const W: TensorId = 3;
const CHUNKS: usize = 3;
/// Bytes of a right factor: two pieces, and half of one.
const RIGHT: usize = PIECE * 5 / 2;

/// A home that publishes updates of these factors.
struct Home {
    publications: [u64; CHUNKS],
    /// What the update of each chunk leads on from; `None`: there is none.
    bases: [Option<u64>; CHUNKS],
    needed: [Vec<Named>; CHUNKS],
}

impl Chunks for Home {
    fn chunks(&self, _: TensorId) -> usize {
        CHUNKS
    }

    fn publication(&self, _: TensorId, local: usize) -> Publication {
        let sequence = self.publications[local];
        Publication { version: sequence, steps: sequence, sequence, changed: sequence }
    }

    fn local(&self, _: TensorId, chunk: u32) -> Option<usize> {
        Some(chunk as usize)
    }

    fn broadcasts(&self, _: TensorId) -> bool {
        true
    }

    fn sends_updates(&self, _: TensorId) -> bool {
        true
    }

    fn update_base(&self, _: TensorId, local: usize) -> Option<u64> {
        self.bases[local]
    }

    fn needed(&self, _: TensorId, local: usize, place: usize) -> Option<Needed> {
        self.needed[local].get(place).map(|&name| Needed { name, rank: 2, bytes: RIGHT })
    }

    fn has_lane(&self, _: TensorId, _: Rank) -> bool {
        true
    }

    fn goes_by_trees(&self, _: TensorId) -> bool {
        false
    }

    fn stripe(&self, _: TensorId, _: usize) -> usize {
        0
    }

    fn digest(&self, _: TensorId, _: usize) -> u64 {
        0
    }
}

/// What is sent, in short.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Whole(usize),
    Update(usize),
    /// A worker's factor, which of its, and where the piece begins.
    Factor(Rank, u64, usize),
}

struct Rig {
    home: Home,
    subscriber: Subscriber,
}

impl Rig {
    /// A subscriber that has been sent all chunks.
    fn new() -> Self {
        let home = Home { publications: [1; CHUNKS], bases: [None; CHUNKS], needed: Default::default() };
        let mut rig = Self { home, subscriber: Subscriber::default() };
        rig.connect();
        rig
    }

    fn connect(&mut self) {
        self.subscriber.connect();
        self.subscriber.fetch(W, 0, NO_TICKET, 0, &self.home);
        assert_eq!(self.sent(usize::MAX), [0, 1, 2].map(Sent::Whole));
    }

    /// A chunk is folded: the update is of these workers' factors.
    fn fold(&mut self, local: usize, turn: u64, writers: &[Rank]) {
        self.home.bases[local] = Some(self.home.publications[local]);
        self.home.publications[local] += 1;
        self.home.needed[local] = writers.iter().map(|&writer| Named { writer, turn }).collect();
        self.subscriber.published(W, local, &self.home);
    }

    /// So many frames that are sent next.
    fn sent(&mut self, most: usize) -> Vec<Sent> {
        let owing = std::iter::from_fn(|| self.subscriber.next(&self.home));
        let short = |owing| match owing {
            Owing::Whole { local, .. } => Some(Sent::Whole(local)),
            Owing::Update { local, .. } => Some(Sent::Update(local)),
            Owing::Factor { tensor: W, name: Named { writer, turn }, rank: 2, at } => {
                Some(Sent::Factor(writer, turn, at))
            }
            _ => None,
        };
        owing.filter_map(short).take(most).collect()
    }
}

fn factor(writer: Rank, turn: u64) -> [Sent; 3] {
    [0, PIECE, 2 * PIECE].map(|at| Sent::Factor(writer, turn, at))
}

fn all<const N: usize>(parts: [&mut dyn Iterator<Item = Sent>; N]) -> Vec<Sent> {
    parts.into_iter().flatten().collect()
}

/// U-2.
#[test]
fn a_right_factor_goes_once_ahead_of_the_first_update_that_names_it() {
    let mut rig = Rig::new();
    for local in 0..CHUNKS {
        rig.fold(local, 1, &[0, 4]);
    }
    let updates = [0, 1, 2].map(Sent::Update);
    let expected =
        all([&mut factor(0, 1).into_iter(), &mut factor(4, 1).into_iter(), &mut updates.into_iter()]);
    assert_eq!(rig.sent(usize::MAX), expected);
    // Of the next step likewise, though of one worker alone.
    (0..CHUNKS).for_each(|local| rig.fold(local, 2, &[4]));
    let updates = [0, 1, 2].map(Sent::Update);
    assert_eq!(rig.sent(usize::MAX), all([&mut factor(4, 2).into_iter(), &mut updates.into_iter()]));
}

#[test]
fn who_is_sent_a_chunk_whole_is_sent_no_factor_for_it() {
    let mut rig = Rig::new();
    rig.fold(1, 1, &[0]);
    // Folded again before the first was sent: what is held is not what this leads on from.
    rig.fold(1, 2, &[0]);
    assert_eq!(rig.sent(usize::MAX), [Sent::Whole(1)]);
    rig.home.bases[1] = None;
    rig.home.publications[1] += 1;
    rig.subscriber.published(W, 1, &rig.home);
    assert_eq!(rig.sent(usize::MAX), [Sent::Whole(1)]);
}

#[test]
fn a_factor_that_is_under_way_when_the_chunk_is_folded_again_or_the_connection_breaks_is_sent_from_its_beginning()
 {
    let mut rig = Rig::new();
    rig.fold(0, 1, &[0]);
    rig.fold(1, 1, &[0]);
    assert_eq!(rig.sent(2), [Sent::Factor(0, 1, 0), Sent::Factor(0, 1, PIECE)]);
    // The chunk that it was for goes whole now; the other still needs the rest.
    rig.fold(0, 2, &[0]);
    let rest = [Sent::Whole(0), Sent::Factor(0, 1, 2 * PIECE), Sent::Update(1)];
    assert_eq!(rig.sent(usize::MAX), rest);
    rig.fold(2, 2, &[0]);
    assert_eq!(rig.sent(1), [Sent::Factor(0, 2, 0)]);
    rig.connect();
    rig.fold(2, 3, &[0]);
    assert_eq!(
        rig.sent(usize::MAX),
        all([&mut factor(0, 3).into_iter(), &mut [Sent::Update(2)].into_iter()])
    );
}
