//! The two shapes without a choice: the root sends to all, or each sends to the next.

use super::cluster::View;
use super::forest::{Overlay, Stripe};

/// The root sends to all.
pub(super) fn star(view: &View<'_>) -> Overlay {
    Overlay::new(vec![Stripe::new(1.0, vec![0; view.len() - 1])])
}

/// Each sends to the next, rack by rack, so that as few edges as possible leave a rack or a zone. The slowest uplink comes last,
/// where it sends nothing. Workers on the root's host have it from there.
pub(super) fn chain(view: &View<'_>, turn: usize, turns: usize) -> Overlay {
    let mut parents = vec![0; view.len() - 1];
    let mut order = view.outward(turn, turns);
    order.retain(|&host| !view.together(0, host));
    let rate = |place: usize| view.node(order[place]).rate;
    if let Some(slowest) = (0..order.len()).rev().min_by(|&one, &other| rate(one).total_cmp(&rate(other))) {
        let host = order.remove(slowest);
        order.push(host);
    }
    let mut last = 0;
    for host in order {
        parents[host as usize - 1] = last;
        last = host;
    }
    Overlay::new(vec![Stripe::new(1.0, parents)])
}
