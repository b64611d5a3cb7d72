//! What links carry, for the [trees](super::trees) that are planned: what workers have said of theirs, what this server has measured of
//! its own, and when a plan may be made anew for that.
//!
//! All of it is beside the usual link, in coarse steps: where all are alike, as in most clusters, plans are as if nothing was known.

use super::trees::Host;
use crate::uplink::Uplink;
use penstock_proto::Rank;
use penstock_proto::overlay::Rate;
use penstock_proto::uplink::{Known, Measured, Turns, rates};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// Hosts that a line of the log names.
const MOST_SHOWN: usize = 8;
/// Milliseconds from one look whether anything has changed to the next: it goes over all workers.
const LOOKS_APART_MS: u64 = 1000;

#[derive(Debug, Default)]
pub(super) struct Rates {
    uplink: Option<Arc<Uplink>>,
    workers: u32,
    known: Known,
    /// What users say: of workers' hosts, and of this one.
    declared: BTreeMap<Rank, f64>,
    own: Option<f64>,
    /// What was last planned with, or found to be no reason to move.
    used: BTreeMap<Host, f64>,
    own_used: f64,
    turns: Turns,
    next_look: u64,
    /// How many feed a worker at once.
    parents: usize,
}

/// The workers of each host; the first of them stands for it.
type ByHost = BTreeMap<Host, Vec<Rank>>;

impl Rates {
    pub(super) fn new(uplink: Arc<Uplink>, (workers, own): (u32, Rate)) -> Self {
        Self { uplink: Some(uplink), workers, own: own.known(), ..Self::default() }
    }

    pub(super) fn join(&mut self, rank: Rank, rate: Rate) {
        self.leave(rank);
        self.declared.extend(rate.known().map(|rate| (rank, rate)));
        self.uplink.iter().for_each(|uplink| uplink.want());
    }

    pub(super) fn leave(&mut self, rank: Rank) {
        self.known.leave(rank);
        self.declared.remove(&rank);
    }

    /// A worker says what its link carries. What makes no sense is not kept.
    pub(super) fn hear(&mut self, rank: Rank, measured: Measured, now: u64) {
        if let Err(error) = self.known.hear(rank, self.workers, measured, now) {
            tracing::debug!(worker = rank, %error, "what a worker says of its link makes no sense");
        }
    }

    /// Whether it is time to look for a better plan, in milliseconds; what was said long ago counts no more from then on.
    pub(super) fn is_time(&mut self, now: u64) -> bool {
        if now < self.next_look || !self.turns.is_time(now) {
            return false;
        }
        self.next_look = now + LOOKS_APART_MS;
        self.known.forget(now);
        true
    }

    pub(super) fn stays(&mut self, now: u64) {
        self.turns.looked(now);
    }

    pub(super) fn moves(&mut self, now: u64) {
        self.turns.moved(now);
    }

    /// Whether hosts' links carry something else than what was planned with.
    pub(super) fn have_changed(&mut self, by_host: &ByHost) -> bool {
        let hosts: Vec<Host> = by_host.keys().copied().collect();
        let (beside, own) = self.beside(&hosts, by_host);
        let is_used = |(host, rate): (&Host, &f64)| self.used.get(host).copied().unwrap_or(1.0) == *rate;
        !(hosts.iter().zip(&beside).all(is_used) && own == self.own_used)
    }

    /// So many feed a worker at once, over all stripes and servers.
    pub(super) fn fed_by(&mut self, parents: usize) {
        self.parents = parents;
    }

    /// The rates to plan with, beside the usual one, in this order and last this server's own; and as they are shown.
    pub(super) fn plan_with(&mut self, hosts: &[Host], by_host: &ByHost) -> (Vec<f64>, String) {
        let (mut beside, own) = self.beside(hosts, by_host);
        for (host, rate) in hosts.iter().zip(&beside) {
            by_host[host].iter().for_each(|&rank| self.known.planned(rank, *rate < 1.0));
        }
        self.used = hosts.iter().copied().zip(beside.iter().copied()).collect();
        self.own_used = own;
        let shown = shown(hosts.iter().map(|host| by_host[host][0]).zip(beside.iter().copied()), own);
        beside.push(own);
        (beside, shown)
    }

    fn beside(&mut self, hosts: &[Host], by_host: &ByHost) -> (Vec<f64>, f64) {
        self.known.measure(self.uplink.as_ref().and_then(|uplink| uplink.measured()));
        let places = hosts
            .iter()
            .zip(0_u32..)
            .flat_map(|(host, place)| by_host[host].iter().map(move |&rank| (rank, place)));
        let places: BTreeMap<Rank, u32> = places.collect();
        let place = |rank: Rank| places.get(&rank).copied().unwrap_or(u32::MAX);
        let mut links: Vec<(Measured, Option<f64>)> = hosts
            .iter()
            .map(|host| {
                let ranks = &by_host[host];
                // Workers of one host share its link. The one that passes most on knows most of it.
                let said = ranks.iter().map(|&rank| self.known.of(rank));
                let most = said.clone().max_by_key(|measured| measured.sends).unwrap_or_default();
                let takes = said.map(|measured| measured.takes).max().unwrap_or(0);
                let declared = ranks.iter().find_map(|rank| self.declared.get(rank)).copied();
                (Measured { to: most.to.map(place), takes, ..most }, declared)
            })
            .collect();
        let own = self.known.own();
        links.push((Measured { to: own.to.map(place), ..own }, self.own));
        let mut beside = rates(&links, self.parents);
        let own = beside.pop().unwrap_or(1.0);
        (beside, own)
    }
}

/// Rates as the log has them.
fn shown(hosts: impl Iterator<Item = (Rank, f64)>, own: f64) -> String {
    let mut text = String::new();
    let others: Vec<(Rank, f64)> = hosts.filter(|(_, rate)| *rate != 1.0).collect();
    for (rank, rate) in others.iter().take(MOST_SHOWN) {
        let _ = write!(text, "worker {rank}'s host {rate:.2}, ");
    }
    if others.len() > MOST_SHOWN {
        let _ = write!(text, "{} more others than usual, ", others.len() - MOST_SHOWN);
    }
    if own != 1.0 {
        let _ = write!(text, "this server {own:.2}, ");
    }
    match text.is_empty() {
        true => "all alike".to_owned(),
        false => text + "all others 1.00, beside the usual link",
    }
}
