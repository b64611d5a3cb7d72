//! Why there is no plan.

use super::limits::Limits;
use crate::message::{MAX_SERVERS, MAX_WORKERS};

/// Why overlays could not be planned, or their time not be predicted. Nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// There is nobody to send to.
    #[error("there are no hosts to send to")]
    NoHosts,
    /// There is nobody who sends.
    #[error("there is no server")]
    NoServers,
    /// More hosts or servers than a job has.
    #[error("{got} {what} were given; a job has at most {most}")]
    TooMany {
        /// Hosts or servers.
        what: &'static str,
        /// How many were given.
        got: usize,
        /// How many there may be.
        most: u32,
    },
    /// Two hosts have one number.
    #[error("host {host} is given twice")]
    Twice {
        /// The host's number.
        host: u32,
    },
    /// A host that two nodes share stands in two places or has two rates.
    #[error("host {host} is given with two racks, zones or rates")]
    TwoPlaces {
        /// The host's number.
        host: u32,
    },
    /// An uplink carries nothing, or not a number.
    #[error("the uplink of host {host} has a rate of {rate} bytes a second, not one above 0")]
    Rate {
        /// The host's number.
        host: u32,
        /// What was given.
        rate: f64,
    },
    /// A tree in which nobody sends.
    #[error("the degree is 0, but has to be at least 1")]
    Degree,
    /// So few can be reached.
    #[error("a tree of degree {degree} and depth {depth} reaches {most} hosts, not {hosts}")]
    Depth {
        /// How many there are to reach.
        hosts: usize,
        /// Children that a node may have.
        degree: u32,
        /// Edges from the root to the farthest.
        depth: u32,
        /// How many can be reached.
        most: usize,
    },
    /// The penalty on leaves is negative, infinite or not a number.
    #[error("the penalty on leaves is {0}, not a number of 0 or above")]
    LeafPenalty(f64),
    /// So many stripes cannot have an inner node each.
    #[error("{stripes} stripes were asked for, but {hosts} hosts allow 1 to {hosts}")]
    Stripes {
        /// What was asked for.
        stripes: u32,
        /// How many hosts there are.
        hosts: usize,
    },
    /// What is to be sent makes no time.
    #[error("{what} is {got}, but has to be {least}")]
    Traffic {
        /// Which number.
        what: &'static str,
        /// What was given.
        got: f64,
        /// What it has to be.
        least: &'static str,
    },
    /// As many overlays as servers were expected.
    #[error("{got} overlays were given for {servers} servers")]
    Overlays {
        /// How many were given.
        got: usize,
        /// How many servers there are.
        servers: usize,
    },
    /// No such server.
    #[error("there is no server {server}: there are {servers}")]
    NoServer {
        /// What was asked for.
        server: usize,
        /// How many there are.
        servers: usize,
    },
    /// The overlay is none.
    #[error("stripe {stripe} is no tree: {why}")]
    NotATree {
        /// Which stripe.
        stripe: usize,
        /// Why.
        why: NotATree,
    },
    /// The parts of the bytes do not make the whole.
    #[error("the shares of the stripes are {0:?}: not numbers above 0 that add up to 1")]
    Shares(Vec<f64>),
    /// Neither the root nor a node that is no member can be lost.
    #[error("node {node} is no host of this overlay")]
    NotAMember {
        /// Which node.
        node: u32,
    },
}

impl PlanError {
    /// What the user can do about it, for the line that starts with `hint:`.
    pub fn hint(&self) -> String {
        match self {
            Self::NoHosts => "name at least one host".into(),
            Self::NoServers => "name at least one server".into(),
            Self::TooMany { .. } => {
                format!("plan for at most {MAX_WORKERS} hosts and {MAX_SERVERS} servers")
            }
            Self::Twice { .. } => "workers of one host share a copy: give each host once".into(),
            Self::TwoPlaces { .. } => {
                "a server on a worker's host has that host's rack, zone and uplink".into()
            }
            Self::Rate { .. } => "give the bytes a second that the uplink carries".into(),
            Self::Degree => "give the most children that a node may have: 2".into(),
            Self::Depth { hosts, degree, .. } => match Limits::least_depth(*hosts, *degree) {
                Some(depth) => format!("raise the degree, or the depth to {depth} or more"),
                None => "raise the degree".into(),
            },
            Self::LeafPenalty(_) => "0 for none; 0.5 weighs two leaves like one edge between zones".into(),
            Self::Stripes { .. } => "leave the number out: then it is chosen by time".into(),
            Self::Traffic { least, .. } => format!("give a number that is {least}"),
            Self::Overlays { .. } | Self::NoServer { .. } => "each server has an overlay of its own".into(),
            Self::NotATree { .. } => {
                "every host has one parent in each stripe, through which it is attached to the root".into()
            }
            Self::Shares(_) => "give each stripe its part of the bytes: 0.5 and 0.5".into(),
            Self::NotAMember { .. } => "hosts are numbered from 1; 0 is the root".into(),
        }
    }
}

/// Why edges make no tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotATree {
    /// A number that no node has.
    #[error("there is no node {0}")]
    Unknown(u32),
    /// Somebody sends to the root.
    #[error("node {0} sends to the root")]
    ToRoot(u32),
    /// Two send to one.
    #[error("nodes {first} and {second} both send to node {node}")]
    TwoParents {
        /// Who is sent to.
        node: u32,
        /// One who sends.
        first: u32,
        /// The other.
        second: u32,
    },
    /// Nobody sends to one.
    #[error("nobody sends to node {0}")]
    Orphan(u32),
    /// Nodes send to each other, and the root to none of them.
    #[error("nodes {0:?} send to each other in a circle")]
    Cycle(Vec<u32>),
    /// More children than allowed.
    #[error("node {node} has {got} children, but at most {most} are allowed")]
    Degree {
        /// Who sends.
        node: u32,
        /// To how many.
        got: u32,
        /// How many are allowed.
        most: u32,
    },
    /// Farther from the root than allowed.
    #[error("node {node} is {got} edges from the root, but at most {most} are allowed")]
    Depth {
        /// Which node.
        node: u32,
        /// How far.
        got: u32,
        /// How far is allowed.
        most: u32,
    },
}
