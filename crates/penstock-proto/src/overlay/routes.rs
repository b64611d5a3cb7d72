//! Along a plan: which stripe a chunk belongs to, and from whom a subscriber gets it.
//!
//! A home cuts what it sends into *stripes*, each with a tree of its own. A subscriber's *route* says for each stripe who feeds it:
//! the home, or a parent, which is another subscriber that passes on. Until it stands at its parent, and again once it has lost
//! it, the home feeds it: so a route is never needed for anything to come, it only says how.

use super::forest::Overlay;
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
    /// feeds the others there, if it `passes_on`; else the homes do. `parent`: a subscriber, as its children are told of it. None,
    /// if nobody passes anything on.
    pub fn along<'a>(
        overlay: &Overlay,
        ranks: impl Fn(u32) -> &'a [Rank],
        passes_on: impl Fn(Rank) -> bool,
        parent: impl Fn(Rank) -> Option<Parent>,
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
                    (rank, Feed { parent: from.and_then(&parent), depth })
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
    /// Chunks in a row of one stripe.
    run: usize,
    /// The stripe of each run.
    stripes: Vec<u8>,
}

impl Striping {
    /// For so many chunks of so many bytes each. Runs are dealt out so that after any number of them each stripe has had its share,
    /// as nearly as can be; the tensors' first runs go to different stripes.
    pub fn new(tensor: TensorId, chunks: usize, chunk_bytes: u64, shares: &[u32]) -> Self {
        let count = shares.len().min(MAX_STRIPES);
        if count < 2 || chunks == 0 {
            return Self { run: chunks.max(1), stripes: vec![0; usize::from(chunks > 0)] };
        }
        let longest = (RUN_BYTES / chunk_bytes.max(1)).max(1) as usize;
        // Some runs for each stripe, of a small tensor too.
        let run = (chunks / (4 * count)).clamp(1, longest);
        let runs = chunks.div_ceil(run);
        let whole: i64 = shares.iter().map(|&share| i64::from(share)).sum();
        let mut due: Vec<i64> = vec![0; count];
        let turn = tensor as usize % count;
        let mut stripes = Vec::with_capacity(runs);
        for _ in 0..runs {
            for (due, &share) in due.iter_mut().zip(shares) {
                *due += i64::from(share);
            }
            // The one that is behind most; of equals, a tensor begins with another than the tensor before it.
            let next = (0..count)
                .map(|at| (at + turn) % count)
                .max_by_key(|&at| (due[at], std::cmp::Reverse((at + count - turn) % count)));
            let next = next.unwrap_or(0);
            due[next] -= whole;
            stripes.push(next as u8);
        }
        Self { run, stripes }
    }

    /// The stripe of a chunk, by its place among those homed there.
    pub fn of(&self, local: usize) -> usize {
        self.stripes.get(local / self.run.max(1)).map_or(0, |&stripe| stripe.into())
    }
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
