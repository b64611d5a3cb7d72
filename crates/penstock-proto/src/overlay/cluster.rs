//! Where servers and hosts stand, what their uplinks carry, and what an edge between them costs.
//!
//! Workers of one host share one copy of what comes, so that a node is a host, or a server: the root of a tree. A server may
//! stand on a worker's host: the edge between the two goes over no network, costs nothing and takes no time, and both send over
//! one uplink.

use super::error::PlanError;
use crate::message::{MAX_SERVERS, MAX_WORKERS};
use std::collections::BTreeMap;

/// Cost of an edge inside a rack (the paper's *edge layer*).
pub const SAME_RACK: f64 = 0.1;
/// Cost of an edge between racks of a zone (the paper's *aggregation layer*).
pub const SAME_ZONE: f64 = 0.5;
/// Cost of any other edge.
pub const WORLD: f64 = 1.0;

/// Where a node stands. The numbers are names: only whether they are equal counts, and their order where all else is equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Racks that share a layer of switches.
    pub zone: u32,
    /// Hosts that share a switch. A rack is of one zone: racks of two zones are two, whatever their numbers.
    pub rack: u32,
    /// The host.
    pub host: u32,
}

/// A host of workers, or a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Node {
    /// Where it stands.
    pub place: Place,
    /// Bytes per second that its link carries, out as well as in.
    pub rate: f64,
}

/// Where the costs of edges come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Costs {
    /// From racks and zones: [`SAME_RACK`], [`SAME_ZONE`], [`WORLD`].
    Labels,
    /// From rates that were measured: an edge out of the slowest uplink costs 1, out of one twice as fast half of it.
    Measured,
    /// From both: what an edge costs by racks and zones, twice as much out of an uplink that is half as fast as half of all are. Where
    /// all are alike it is the first.
    Both,
}

/// What is planned for: servers, and hosts to send to. In the tree of a server, node 0 is that server, and node i + 1 is host i.
///
/// Memory: 24 bytes a node and 4 for its uplink.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    servers: Vec<Node>,
    hosts: Vec<Node>,
    costs: Costs,
    slowest: f64,
    /// What half of all uplinks have at least.
    usual: f64,
    /// What every host's link takes in; `None`: what it sends.
    takes: Option<f64>,
    /// Of each server: the number of its uplink. Hosts' uplinks have their own numbers, those of other hosts follow.
    uplinks: Vec<u32>,
    /// By uplink, bytes per second.
    rates: Vec<f64>,
}

impl Cluster {
    /// The cluster of these nodes.
    ///
    /// # Errors
    /// There are none, or too many; a host comes twice; a rate is not above 0.
    pub fn new(servers: Vec<Node>, hosts: Vec<Node>, costs: Costs) -> Result<Self, PlanError> {
        bounded("hosts", hosts.len(), MAX_WORKERS, PlanError::NoHosts)?;
        bounded("servers", servers.len(), MAX_SERVERS, PlanError::NoServers)?;
        for node in servers.iter().chain(&hosts) {
            if !(node.rate > 0.0 && node.rate.is_finite()) {
                return Err(PlanError::Rate { host: node.place.host, rate: node.rate });
            }
        }
        let mut known: BTreeMap<u32, (u32, Node)> = BTreeMap::new();
        let mut rates = Vec::with_capacity(hosts.len());
        for node in &hosts {
            if known.insert(node.place.host, (rates.len() as u32, *node)).is_some() {
                return Err(PlanError::Twice { host: node.place.host });
            }
            rates.push(node.rate);
        }
        let mut uplinks = Vec::with_capacity(servers.len());
        for node in &servers {
            let host = node.place.host;
            let (uplink, there) = *known.entry(host).or_insert((rates.len() as u32, *node));
            if there != *node {
                return Err(PlanError::TwoPlaces { host });
            }
            if uplink as usize == rates.len() {
                rates.push(node.rate);
            }
            uplinks.push(uplink);
        }
        let mut sorted = rates.clone();
        sorted.sort_by(f64::total_cmp);
        let (slowest, usual) = (sorted[0], sorted[sorted.len() / 2]);
        Ok(Self { servers, hosts, costs, slowest, usual, takes: None, uplinks, rates })
    }

    /// The same where rates are those of uplinks alone, and every link takes in so much, in bytes a second.
    ///
    /// # Errors
    /// That is not above 0.
    pub fn taking(self, rate: f64) -> Result<Self, PlanError> {
        match rate > 0.0 && rate.is_finite() {
            true => Ok(Self { takes: Some(rate), ..self }),
            false => Err(PlanError::Rate { host: 0, rate }),
        }
    }

    /// The same with one of its servers alone.
    pub(super) fn of_one(&self, server: usize) -> Self {
        let servers = vec![self.servers[server]];
        let one = Self::new(servers, self.hosts.clone(), self.costs);
        Self { takes: self.takes, ..one.expect("some of a cluster is one") }
    }

    /// Bytes a second that a host's link takes in.
    pub(super) fn takes(&self, host: &Node) -> f64 {
        self.takes.unwrap_or(host.rate)
    }

    /// How many hosts are sent to.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// How many servers send.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// The nodes as one server's tree numbers them.
    ///
    /// # Panics
    /// There is no such server.
    pub fn seen_from(&self, server: usize) -> View<'_> {
        assert!(server < self.servers.len(), "there are {} servers", self.servers.len());
        View { cluster: self, server }
    }

    /// Whether no server stands on a host that is sent to.
    pub(super) fn is_apart(&self) -> bool {
        self.uplinks.iter().all(|&uplink| uplink as usize >= self.hosts.len())
    }

    /// By uplink, bytes per second.
    pub(super) fn rates(&self) -> &[f64] {
        &self.rates
    }
}

fn bounded(what: &'static str, got: usize, most: u32, none: PlanError) -> Result<(), PlanError> {
    match got {
        0 => Err(none),
        _ if got > most as usize => Err(PlanError::TooMany { what, got, most }),
        _ => Ok(()),
    }
}

/// A cluster as one server's tree numbers it: 0 is the server, i + 1 is host i.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    cluster: &'a Cluster,
    server: usize,
}

impl View<'_> {
    /// All nodes, the root among them.
    pub fn len(&self) -> usize {
        self.cluster.hosts.len() + 1
    }

    /// Never: there is a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The numbers of the hosts.
    pub fn hosts(&self) -> std::ops::Range<u32> {
        1..self.len() as u32
    }

    /// Where a node stands and what its link carries.
    pub fn node(&self, node: u32) -> &Node {
        match node {
            0 => &self.cluster.servers[self.server],
            _ => &self.cluster.hosts[node as usize - 1],
        }
    }

    /// Whether two nodes are on one host: what goes from one to the other takes no uplink.
    pub fn together(&self, one: u32, other: u32) -> bool {
        self.node(one).place.host == self.node(other).place.host
    }

    /// The number of the uplink that a node sends over.
    pub fn uplink(&self, node: u32) -> usize {
        match node {
            0 => self.cluster.uplinks[self.server] as usize,
            _ => node as usize - 1,
        }
    }

    /// What it costs that one sends to the other.
    pub fn cost(&self, from: u32, to: u32) -> f64 {
        let (one, other) = (self.node(from), self.node(to));
        let (here, there) = (one.place, other.place);
        if here.host == there.host {
            return 0.0;
        }
        let label = match () {
            () if here.zone != there.zone => WORLD,
            () if here.rack != there.rack => SAME_ZONE,
            () => SAME_RACK,
        };
        match self.cluster.costs {
            Costs::Measured => self.cluster.slowest / one.rate,
            Costs::Labels => label,
            Costs::Both => label * (self.cluster.usual / one.rate),
        }
    }

    /// How far a host is from the root, as labels go: on its host, in its rack, in its zone, elsewhere.
    pub(super) fn distance(&self, node: u32) -> u8 {
        let (root, there) = (self.node(0).place, self.node(node).place);
        match () {
            () if root.host == there.host => 0,
            () if root.zone != there.zone => 3,
            () if root.rack != there.rack => 2,
            () => 1,
        }
    }

    /// The hosts from near the root to far from it, those of a rack beside each other. `turn` of the servers' `turns` begins
    /// elsewhere inside each rack, so that not the same hosts come first for all.
    pub(super) fn outward(&self, turn: usize, turns: usize) -> Vec<u32> {
        let mut hosts: Vec<u32> = self.hosts().collect();
        let rack = |&node: &u32| {
            let Place { zone, rack, .. } = self.node(node).place;
            (self.distance(node) > 0, self.distance(node), zone, rack)
        };
        hosts.sort_by_key(|node| (rack(node), self.node(*node).place.host));
        for group in hosts.chunk_by_mut(|one, other| rack(one) == rack(other)) {
            let by = group.len() * turn / turns;
            group.rotate_left(by);
        }
        hosts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: u32, rack: u32, zone: u32, rate: f64) -> Node {
        Node { place: Place { zone, rack, host }, rate }
    }

    #[test]
    fn an_edge_costs_what_the_paper_says_for_where_its_ends_stand() {
        let hosts = vec![node(0, 0, 0, 1.0), node(1, 0, 0, 1.0), node(2, 1, 0, 1.0), node(3, 0, 1, 1.0)];
        let cluster = Cluster::new(vec![hosts[0]], hosts, Costs::Labels).unwrap();
        let view = cluster.seen_from(0);
        let costs: Vec<f64> = view.hosts().map(|host| view.cost(0, host)).collect();
        assert_eq!(costs, [0.0, SAME_RACK, SAME_ZONE, WORLD]);
        assert_eq!((view.uplink(0), view.uplink(1), view.uplink(2)), (0, 0, 1));
    }

    #[test]
    fn a_faster_uplink_that_was_measured_costs_less_whoever_is_sent_to() {
        let hosts = vec![node(0, 0, 0, 10.0), node(1, 0, 0, 20.0), node(2, 1, 0, 100.0)];
        let cluster = Cluster::new(vec![node(9, 9, 9, 40.0)], hosts, Costs::Measured).unwrap();
        let view = cluster.seen_from(0);
        assert_eq!(
            (view.cost(1, 2), view.cost(2, 3), view.cost(3, 1), view.cost(0, 1)),
            (1.0, 0.5, 0.1, 0.25)
        );
    }

    #[test]
    fn an_edge_out_of_a_slow_uplink_costs_more_wherever_it_leads_and_where_all_are_alike_it_costs_what_the_paper_says()
     {
        let at = |rates: [f64; 4]| {
            let hosts = (0..3).zip(rates).map(|(host, rate)| node(host, host / 2, 0, rate)).collect();
            Cluster::new(vec![node(9, 0, 0, rates[3])], hosts, Costs::Both).unwrap()
        };
        let costs = |cluster: &Cluster| {
            let view = cluster.seen_from(0);
            [(0, 1), (1, 2), (1, 3), (2, 1)].map(|(from, to)| view.cost(from, to))
        };
        assert_eq!(costs(&at([7.0; 4])), [SAME_RACK, SAME_RACK, SAME_ZONE, SAME_RACK]);
        assert_eq!(
            costs(&at([1.0, 2.0, 2.0, 2.0])),
            [SAME_RACK, 2.0 * SAME_RACK, 2.0 * SAME_ZONE, SAME_RACK]
        );
    }

    #[test]
    fn a_cluster_that_cannot_be_is_refused_with_the_host_that_is_wrong() {
        let good = node(0, 0, 0, 1.0);
        let made = |servers: &[Node], hosts: &[Node]| {
            Cluster::new(servers.to_vec(), hosts.to_vec(), Costs::Labels).map(|_| ())
        };
        assert_eq!(made(&[good], &[]), Err(PlanError::NoHosts));
        assert_eq!(made(&[], &[good]), Err(PlanError::NoServers));
        assert_eq!(made(&[good], &[good, good]), Err(PlanError::Twice { host: 0 }));
        assert_eq!(made(&[node(0, 1, 0, 1.0)], &[good]), Err(PlanError::TwoPlaces { host: 0 }));
        assert_eq!(made(&[node(0, 0, 0, 2.0)], &[good]), Err(PlanError::TwoPlaces { host: 0 }));
        assert!(matches!(made(&vec![good; 65], &[good]), Err(PlanError::TooMany { what: "servers", .. })));
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let wrong = node(7, 0, 0, rate);
            assert!(matches!(made(&[good], &[wrong]), Err(PlanError::Rate { host: 7, .. })), "{rate}");
            assert!(matches!(made(&[wrong], &[good]), Err(PlanError::Rate { host: 7, .. })), "{rate}");
        }
    }
}
