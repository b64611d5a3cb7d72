//! Along a plan: which stripe a chunk belongs to, and from whom a subscriber gets it.
//!
//! A home cuts what it sends into *stripes*, each with a tree of its own. A subscriber's *route* says for each stripe who feeds it:
//! the home, or a parent, which is another subscriber that passes on. Until it stands at its parent, and again once it has lost
//! it, the home feeds it: so a route is never needed for anything to come, it only says how.

use super::forest::Overlay;
use super::pass::Pass;
use crate::{Rank, TensorId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Most stripes of a plan: a set of them is a word.
pub const MAX_STRIPES: usize = 64;
/// Bytes of a route as it travels, at most: [`MAX_STRIPES`] shares and parents, with room.
pub const MAX_ROUTE_BYTES: usize = 8 * 1024;
/// What the shares of all stripes add up to.
pub const WHOLE: u32 = 10_000;
/// Bytes of a tensor, at most, that belong to one stripe in a row: what is said of chunks that follow each other is said of so many
/// at once.
pub const RUN_BYTES: u64 = 1 << 20;

/// A set of stripes: bit n is stripe n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Stripes(pub u64);

impl Stripes {
    /// The first so many, at most [`MAX_STRIPES`].
    pub fn first(count: usize) -> Self {
        Self(if count >= MAX_STRIPES { u64::MAX } else { (1 << count) - 1 })
    }

    /// Whether it has this one.
    pub fn has(self, stripe: usize) -> bool {
        stripe < MAX_STRIPES && self.0 >> stripe & 1 == 1
    }

    /// With this one.
    #[must_use]
    pub fn with(self, stripe: usize) -> Self {
        Self(self.0 | 1 << stripe)
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those of either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that the other has not.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_STRIPES).filter(move |&stripe| self.has(stripe))
    }
}

impl FromIterator<usize> for Stripes {
    fn from_iter<I: IntoIterator<Item = usize>>(stripes: I) -> Self {
        stripes.into_iter().fold(Self::default(), Self::with)
    }
}

/// Who feeds a subscriber one stripe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feed {
    /// The subscriber that does; `None`: the home itself.
    pub parent: Option<Parent>,
    /// Edges from the home, at least 1.
    pub depth: u32,
}

/// A subscriber that passes on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parent {
    /// Its rank.
    pub rank: Rank,
    /// Where it takes children in.
    pub address: SocketAddr,
    /// By what it knows this child.
    pub pass: Pass,
}

/// What a home tells a subscriber of how its values come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Its number, which grows with every route that the home gives out. An answer to another one is late.
    pub epoch: u32,
    /// Which cut into stripes it is about: another number, another cut. Who is fed and who feeds speak of the same.
    pub striping: u32,
    /// The share of each stripe, of [`WHOLE`].
    pub shares: Vec<u32>,
    /// Who feeds each.
    pub feeds: Vec<Feed>,
}

/// A route that cannot be read, or that no home gives out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a route of as many parents as stripes, at most {MAX_STRIPES}, got {bytes} bytes that are none"
)]
pub struct NoRoute {
    bytes: usize,
}

impl Route {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("numbers and addresses can be written")
    }

    /// The route in `bytes`, all of them.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, NoRoute> {
        let none = NoRoute { bytes: bytes.len() };
        match postcard::take_from_bytes::<Self>(bytes) {
            Ok((route, [])) => {
                let fits = route.shares.len() == route.feeds.len() && route.shares.len() <= MAX_STRIPES;
                if fits { Ok(route) } else { Err(none) }
            }
            _ => Err(none),
        }
    }

    /// Stripes that somebody else than the home is to feed.
    pub fn parents(&self) -> Stripes {
        let named = self.feeds.iter().enumerate().filter(|(_, feed)| feed.parent.is_some());
        named.map(|(stripe, _)| stripe).collect()
    }
}

/// The routes of all subscribers of one server's homes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Routes {
    /// The number of the cut into stripes; another one whenever the shares change.
    pub striping: u32,
    /// The share of each stripe, of [`WHOLE`]. None: the homes feed everybody.
    pub shares: Vec<u32>,
    /// Each subscriber's. Who has none is fed by the homes.
    pub members: BTreeMap<Rank, Member>,
}

impl Routes {
    /// Those along the trees of one server. `ranks`: the subscribers at a node: the first is fed by the first at the node's parent, and
    /// feeds the others there, if it `passes_on`; else the homes do. `parent`: a subscriber, as a child of it is told,
    /// which is named first. None, if nobody passes anything on.
    pub fn along<'a>(
        overlay: &Overlay,
        ranks: impl Fn(u32) -> &'a [Rank],
        passes_on: impl Fn(Rank) -> bool,
        parent: impl Fn(Rank, Rank) -> Option<Parent>,
    ) -> Self {
        let mut members: BTreeMap<Rank, Member> = BTreeMap::new();
        let mut shares = Vec::new();
        let (mut sum, mut cut) = (0.0, 0);
        for stripe in overlay.stripes() {
            sum += stripe.share();
            // They add up, whatever each was rounded to.
            let to = ((sum * f64::from(WHOLE)).round() as u32).min(WHOLE);
            shares.push(to - cut);
            cut = to;
            for (number, depth) in (0..).zip(stripe.depths()).skip(1) {
                let (Some(depth), Some((&first, others))) = (depth, ranks(number).split_first()) else {
                    continue;
                };
                let from = stripe.parent(number).and_then(|number| ranks(number).first()).copied();
                let feeds = |rank: Rank, from: Option<Rank>, depth| {
                    let depth = if from.is_some() { depth } else { 1 };
                    (rank, Feed { parent: from.and_then(|from| parent(rank, from)), depth })
                };
                let near = Some(first).filter(|&first| passes_on(first));
                let fed = [feeds(first, from, depth)].into_iter();
                for (rank, feed) in fed.chain(others.iter().map(|&rank| feeds(rank, near, depth + 1))) {
                    let from = feed.parent.as_ref().map(|parent| parent.rank);
                    members.entry(rank).or_default().feeds.push(feed);
                    if let Some(from) = from {
                        members.entry(from).or_default().passes_on = true;
                    }
                }
            }
        }
        if members.values().any(|member| member.passes_on) {
            Self { striping: 0, shares, members }
        } else {
            Self::default()
        }
    }
}

impl Routes {
    /// What a subscriber is told, and whether it passes anything on. Who is no member is fed by the homes.
    pub fn of(&self, rank: Rank, epoch: u32) -> (Route, bool) {
        let Member { mut feeds, passes_on } = self.members.get(&rank).cloned().unwrap_or_default();
        feeds.resize_with(self.shares.len(), || Feed { parent: None, depth: 1 });
        (Route { epoch, striping: self.striping, shares: self.shares.clone(), feeds }, passes_on)
    }

    /// Whether a tensor's values may go along them: all that pass anything on have asked for it. One that has not may know nothing of
    /// the tensor.
    pub fn may_carry(&self, asks: impl FnMut(Rank) -> bool) -> bool {
        let mut relays =
            self.members.iter().filter(|(_, member)| member.passes_on).map(|(&rank, _)| rank).peekable();
        relays.peek().is_some() && relays.all(asks)
    }
}

/// One subscriber's place in the trees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// Who feeds it each stripe.
    pub feeds: Vec<Feed>,
    /// Whether it passes anything on.
    pub passes_on: bool,
}

/// Which stripe each chunk of a tensor belongs to, among those that one shard is home of. A function of its arguments: homes and
/// subscribers work it out for themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Striping {
    /// The stripe of each chunk; none: all are of the first.
    stripes: Vec<u8>,
}

impl Striping {
    /// For so many chunks of so many bytes each. Each stripe has its share, to a chunk: half a run more would take an inner node of
    /// small values as much longer as it has children. Runs are dealt out so that after any number of them each has had its share,
    /// as nearly as can be; the tensors' first runs go to different stripes.
    pub fn new(tensor: TensorId, chunks: usize, chunk_bytes: u64, shares: &[u32]) -> Self {
        let shares = &shares[..shares.len().min(MAX_STRIPES)];
        let (count, whole) = (shares.len(), shares.iter().map(|&share| i128::from(share)).sum());
        if count < 2 || whole == 0 {
            return Self::default();
        }
        let longest = (RUN_BYTES / chunk_bytes.max(1)).max(1) as usize;
        // Some runs for each stripe, of a small tensor too.
        let run = (chunks / (4 * count)).clamp(1, longest);
        let mut left = parts(tensor, chunks, shares, whole);
        let mut had: Vec<usize> = vec![0; count];
        let mut stripes = Vec::with_capacity(chunks);
        while stripes.len() < chunks {
            // The one that is behind most; of equals, a tensor begins with another than the tensor before it.
            let due = |&at: &usize| {
                i128::from(shares[at]) * (stripes.len() + run) as i128 - whole * had[at] as i128
            };
            let next = in_turn(tensor, count).filter(|&at| left[at] > 0).rev().max_by_key(due);
            let Some(next) = next else { break };
            let run = run.min(left[next]);
            (had[next], left[next]) = (had[next] + run, left[next] - run);
            stripes.resize(stripes.len() + run, next as u8);
        }
        Self { stripes }
    }

    /// The stripe of a chunk, by its place among those homed there.
    pub fn of(&self, local: usize) -> usize {
        self.stripes.get(local).map_or(0, |&stripe| stripe.into())
    }
}

/// So many stripes, as it is their turn in a tensor.
fn in_turn(tensor: TensorId, count: usize) -> impl DoubleEndedIterator<Item = usize> {
    let turn = tensor as usize % count;
    (turn..count).chain(0..turn)
}

/// How many of the chunks each stripe has. Those that are left over go to the stripes that lack most of one.
fn parts(tensor: TensorId, chunks: usize, shares: &[u32], whole: i128) -> Vec<usize> {
    let exact = |at: usize| i128::from(shares[at]) * chunks as i128;
    let mut parts: Vec<usize> = (0..shares.len()).map(|at| (exact(at) / whole) as usize).collect();
    let over = chunks - parts.iter().sum::<usize>();
    let mut order: Vec<usize> = in_turn(tensor, shares.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(exact(at) % whole));
    order.iter().take(over).for_each(|&at| parts[at] += 1);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_stripe_has_its_share_after_any_number_of_runs(
            tensor: u32, runs in 1usize..400, shares in prop::collection::vec(1u32..100, 1..20)
        ) {
            // Chunks as long as a run.
            let striping = Striping::new(tensor, runs, RUN_BYTES, &shares);
            let whole: u32 = shares.iter().sum();
            let mut had = vec![0; shares.len()];
            for local in 0..runs {
                had[striping.of(local)] += 1;
                for (had, share) in had.iter().zip(&shares) {
                    let due = (local + 1) as f64 * f64::from(*share) / f64::from(whole);
                    prop_assert!((f64::from(*had) - due).abs() < shares.len() as f64, "{had} of {due}");
                }
            }
        }
    }

    // Three stripes of 256 chunks, in runs of 21: one had 42 chunks too many, and eight hosts took a quarter longer than planned.
    #[test]
    fn each_stripe_has_its_share_of_a_tensor_to_a_chunk() {
        for (chunks, shares) in
            [(256, &[3750, 3750, 2500][..]), (489, &[5000, 5000]), (7, &[1, 0, 2]), (2, &[1; 5])]
        {
            let whole: u32 = shares.iter().sum();
            for tensor in 0..4 {
                let striping = Striping::new(tensor, chunks, 32 * 1024, shares);
                for (stripe, &share) in shares.iter().enumerate() {
                    let had = (0..chunks).filter(|&local| striping.of(local) == stripe).count() as f64;
                    let due = chunks as f64 * f64::from(share) / f64::from(whole);
                    assert!((had - due).abs() < 1.0, "{had} of {due}");
                }
            }
        }
        assert_eq!(Striping::new(0, 9, 4096, &[0, 0]).of(8), 0);
    }

    #[test]
    fn chunks_of_a_run_stay_together_and_small_tensors_begin_elsewhere() {
        let shares = [1; 4];
        let striping = Striping::new(0, 1024, 32 * 1024, &shares);
        assert!(
            (0..32).all(|local| striping.of(local) == striping.of(0)) && striping.of(32) != striping.of(0)
        );
        let first: Vec<usize> = (0..4).map(|tensor| Striping::new(tensor, 1, 4096, &shares).of(0)).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        assert_eq!(Striping::new(7, 1024, 32 * 1024, &[]).of(1023), 0);
    }

    #[test]
    fn values_go_along_routes_once_all_that_pass_on_have_asked_whoever_else_has_not() {
        let member = |passes_on| Member { feeds: Vec::new(), passes_on };
        let members = [(0, member(true)), (1, member(false)), (4, member(true))].into();
        let routes = Routes { striping: 1, shares: vec![WHOLE], members };
        assert!(routes.may_carry(|rank| rank != 1) && !routes.may_carry(|rank| rank != 4));
        assert!(!Routes::default().may_carry(|_| true));
        assert_eq!(routes.of(1, 7).0.feeds, [Feed { parent: None, depth: 1 }]);
    }

    #[test]
    fn a_set_of_stripes_is_a_word() {
        let set: Stripes = [0, 5, 63].into_iter().collect();
        assert!(set.has(63) && !set.has(64) && !set.has(1));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(set.without([5].into_iter().collect()).or([1].into_iter().collect()).iter().count(), 3);
        assert_eq!(
            (Stripes::first(64).0, Stripes::first(3).0, Stripes::first(0).is_empty()),
            (u64::MAX, 7, true)
        );
    }
}
