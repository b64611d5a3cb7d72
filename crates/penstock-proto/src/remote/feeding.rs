//! Which stripes a subscriber is fed by others, as its home knows it.
//!
//! | state of a stripe | the home sends its chunks | what the subscriber holds of them |
//! |---|---|---|
//! | home | yes | what was sent last |
//! | both: the route names a parent | yes, whole | that, or something newer |
//! | parent: the subscriber stands there | no, but what it should hold | likewise |
//! | home, behind a parent | yes, whole until it says what it holds | what it says |
//!
//! A new connection begins with the first state everywhere. So whatever becomes of parents, what is published comes (S-5), and a
//! difference goes only to a subscriber of which it is known what it holds (E-1).

use crate::overlay::{MAX_STRIPES, Stripes};
use std::sync::Arc;

/// One subscriber's.
#[derive(Debug, Default)]
pub(super) struct Feeding {
    /// The route that was given out last, and the first on this connection and of this cut into stripes: answers to earlier ones are
    /// of another.
    epoch: u32,
    oldest: u32,
    /// Stripes for which the route names a parent.
    parents: Stripes,
    /// By stripe: the last route that was sent and did, until it has said that it has left that parent; or 0.
    told: Vec<u32>,
    /// Those that others feed.
    fed: Stripes,
    /// The route, until it is sent.
    route: Option<Arc<[u8]>>,
}

impl Feeding {
    /// A new connection: the home feeds all stripes.
    pub(super) fn connect(&mut self) {
        *self = Self { epoch: self.epoch, oldest: self.epoch.saturating_add(1), ..Self::default() };
    }

    /// It is given this route, which names parents for these stripes. Which ones it may be fed by others that it was not before.
    pub(super) fn route(&mut self, epoch: u32, parents: Stripes, route: Arc<[u8]>) -> Stripes {
        let new = parents.without(self.unsure());
        (self.epoch, self.parents, self.route) = (epoch, parents, Some(route));
        new
    }

    /// Values are cut into other stripes from now on: the home feeds all of them.
    pub(super) fn recut(&mut self) {
        self.connect();
    }

    /// Whether a route is of this connection, and of this cut into stripes.
    pub(super) fn is_of_these(&self, epoch: u32) -> bool {
        (self.oldest..=self.epoch).contains(&epoch)
    }

    /// Whether this route is the last.
    pub(super) fn is_last(&self, epoch: u32) -> bool {
        epoch == self.epoch
    }

    /// Whether it was told of a route on this connection.
    pub(super) fn was_routed(&self) -> bool {
        !self.told.is_empty()
    }

    /// Whether there is a route that was not sent.
    pub(super) fn has_route(&self) -> bool {
        self.route.is_some()
    }

    /// The route, to be sent now.
    pub(super) fn take_route(&mut self) -> Option<Arc<[u8]>> {
        let route = self.route.take()?;
        self.told.resize(MAX_STRIPES, 0);
        self.parents.iter().for_each(|stripe| self.told[stripe] = self.epoch);
        Some(route)
    }

    /// Stripes that others feed, or may.
    fn unsure(&self) -> Stripes {
        let told = self.told.iter().enumerate().filter(|(_, epoch)| **epoch > 0);
        told.map(|(stripe, _)| stripe).collect::<Stripes>().or(self.parents)
    }

    /// It stands at its parents of these stripes: which others feed from now on.
    pub(super) fn attached(&mut self, epoch: u32, stripes: Stripes) -> Stripes {
        let new = if epoch == self.epoch {
            stripes.and(self.parents).without(self.fed)
        } else {
            Stripes::default()
        };
        self.fed = self.fed.or(new);
        new
    }

    /// It has left its parents of these stripes, which the home feeds again. Those of which it says now what it holds: where a newer
    /// route is under way it may stand at other parents before it says so.
    pub(super) fn strayed(&mut self, epoch: u32, stripes: Stripes) -> Stripes {
        if !self.is_of_these(epoch) {
            return Stripes::default();
        }
        let before = self.unsure();
        self.fed = self.fed.without(stripes);
        if epoch == self.epoch {
            self.parents = self.parents.without(stripes);
        }
        // One that it was told of since it may stand at already.
        for stripe in stripes.iter() {
            if let Some(told) = self.told.get_mut(stripe).filter(|told| **told <= epoch) {
                *told = 0;
            }
        }
        before.without(self.unsure())
    }

    /// Whether others feed this stripe.
    pub(super) fn is_fed(&self, stripe: usize) -> bool {
        self.fed.has(stripe)
    }

    /// Whether they do or may, so that it is not known what it holds.
    pub(super) fn is_unsure(&self, stripe: usize) -> bool {
        self.parents.has(stripe) || self.told.get(stripe).is_some_and(|&epoch| epoch > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripes<const N: usize>(of: [usize; N]) -> Stripes {
        of.into_iter().collect()
    }

    fn route() -> Arc<[u8]> {
        Arc::from([1, 2])
    }

    #[test]
    fn a_stripe_is_the_homes_until_its_subscriber_stands_elsewhere_and_again_when_it_has_left() {
        let mut feeding = Feeding::default();
        assert_eq!(feeding.route(5, stripes([0, 2]), route()), stripes([0, 2]));
        assert!(feeding.is_unsure(0) && !feeding.is_fed(0) && !feeding.is_unsure(1));
        assert_eq!(feeding.attached(4, stripes([0])), stripes([]), "of another route");
        assert_eq!(feeding.attached(5, stripes([0, 1])), stripes([0]), "no parent was named for the other");
        assert!(feeding.is_fed(0) && !feeding.is_fed(2));
        feeding.take_route();
        assert_eq!(feeding.route(6, stripes([0]), route()), stripes([]));
        assert!(feeding.is_fed(0), "it stands at the old parent until it stands at the new one");
        assert_eq!(feeding.strayed(5, stripes([0])), stripes([]), "another parent is under way");
        assert!(!feeding.is_fed(0) && feeding.is_unsure(0));
        feeding.take_route();
        assert_eq!(feeding.strayed(5, stripes([0])), stripes([]), "it may stand at that one by now");
        assert_eq!(feeding.attached(6, stripes([0])), stripes([0]));
        assert_eq!(feeding.strayed(6, stripes([0])), stripes([0]));
        assert!(!feeding.is_fed(0) && !feeding.is_unsure(0) && feeding.is_unsure(2));
        assert_eq!(feeding.attached(6, stripes([0])), stripes([]), "that was before it left");
        // Of a route that was never sent it knows nothing.
        feeding.route(7, stripes([0]), route());
        feeding.route(8, stripes([]), route());
        assert!(!feeding.is_unsure(0) && feeding.is_unsure(2), "it has not said that it has left that one");
        assert_eq!(feeding.strayed(6, stripes([2])), stripes([2]));
    }

    #[test]
    fn who_may_stand_at_a_parent_that_was_named_since_it_left_is_known_again_when_it_has_left_that_too() {
        let mut feeding = Feeding::default();
        for (epoch, parents) in [(5, stripes([0])), (6, stripes([0])), (7, stripes([]))] {
            feeding.route(epoch, parents, route());
            feeding.take_route();
        }
        assert_eq!(feeding.strayed(5, stripes([0])), stripes([]), "it has not heard that the next is none");
        assert!(!feeding.is_fed(0) && feeding.is_unsure(0));
        assert_eq!(feeding.strayed(7, stripes([0])), stripes([0]));
        assert!(!feeding.is_unsure(0));
    }

    #[test]
    fn what_was_said_of_stripes_that_are_cut_otherwise_by_now_counts_no_more() {
        let mut feeding = Feeding::default();
        feeding.route(5, stripes([0]), route());
        feeding.attached(5, stripes([0]));
        feeding.recut();
        feeding.route(6, stripes([0, 1]), route());
        assert!(!feeding.is_of_these(5) && feeding.is_of_these(6));
        feeding.attached(6, stripes([0]));
        assert_eq!(feeding.strayed(5, stripes([0, 1])), stripes([]));
        assert!(feeding.is_fed(0) && feeding.is_unsure(1));
    }

    #[test]
    fn what_was_said_on_another_connection_counts_no_more() {
        let mut feeding = Feeding::default();
        feeding.route(5, stripes([0]), route());
        feeding.attached(5, stripes([0]));
        feeding.connect();
        assert!(!feeding.is_fed(0) && !feeding.is_unsure(0) && !feeding.has_route());
        assert_eq!(feeding.attached(5, stripes([0])), stripes([]));
        feeding.route(6, stripes([0]), route());
        assert_eq!(feeding.strayed(5, stripes([0])), stripes([]));
        assert_eq!((feeding.take_route().is_some(), feeding.has_route()), (true, false));
        assert_eq!(feeding.attached(6, stripes([0])), stripes([0]));
    }
}
