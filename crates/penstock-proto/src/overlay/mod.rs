//! Which peer passes on to which.
//!
//! A home asks its overlay to whom a tensor's values go from here: its *next hops*. Those behind them, if there are any, get them
//! from the next hops. Each one's [`Subscriber`](crate::remote::home::Subscriber) knows what it is owed, and whether it has
//! asked for it.
//!
//! | overlay | next hops of a home | a home sends a chunk |
//! |---|---|---|
//! | [`Direct`] | all subscribers | once for each |
//!
//! Beside it stands the planner of trees (parameter-flow.md, 3.4.1; `docs/trees.md`). It is no overlay of homes yet: it only
//! computes who would pass on to whom, and how long that takes.
//!
//! | file | word |
//! |---|---|
//! | `cluster.rs` | where servers and hosts stand, what their uplinks carry, what an edge costs |
//! | `forest.rs` | the trees that a server's bytes go down, in stripes; whether foreign ones are trees |
//! | `limits.rs` | how wide and how deep a tree may be |
//! | `predict.rs` | how long a broadcast takes, and whose uplink is the busiest |
//! | `shape.rs` | what is asked for, and how it is written |
//! | `plan.rs` | a shape is asked for, and becomes trees; `auto` takes the fastest |
//! | `lines.rs` | star and chain |
//! | `striped.rs` | a tree for each stripe, with inner nodes that no other stripe has |
//! | `frugal.rs` | the paper's tree: least cost under a degree, a depth and a penalty on leaves |
//! | `improve.rs` | small changes to such a tree, until none helps |
//! | `routes.rs` | along a plan: which chunk is of which stripe, and who feeds a subscriber |
//! | `pass.rs` | by what a parent knows its child |
//! | `digests.rs` | what is held of each stripe, in one number |
//! | `rack.rs` | where a host stands, as its user says it |
//! | `rate.rs` | what a host's uplink carries, as its user says it |
//! | `instead.rs` | whether another plan is worth moving to |
//! | `repair.rs` | a host is lost: its children move, and nobody else |
//! | `judging.rs` | who is at fault, of all that are said to be |
//! | `error.rs` | why there is no plan |
//!
//! All of it is a function of its arguments: every server and worker that plans from the same cluster has the same trees.

mod cluster;
mod digests;
mod direct;
mod error;
mod forest;
mod frugal;
mod improve;
mod instead;
mod judging;
pub mod lending;
mod limits;
mod lines;
mod pass;
mod plan;
mod predict;
mod rack;
mod rate;
mod repair;
mod routes;
mod shape;
mod striped;

pub use cluster::{Cluster, Costs, Node, Place, SAME_RACK, SAME_ZONE, View, WORLD};
pub use digests::Digests;
pub use direct::Direct;
pub use error::{NotATree, PlanError};
pub use forest::{Overlay, Stripe};
pub use instead::{Better, Standing, instead};
pub use judging::{EXCUSED_MS, HEARD_OUT_MS, Judging, LOOKS_APART_MS, STOOD_STILL_MS, Said};
pub use limits::Limits;
pub use pass::Pass;
pub use plan::{Plan, plan};
pub use predict::{BLOCK_BYTES, Prediction, Traffic, predict};
pub use rack::{MAX_RACK_BYTES, Rack, RackError};
pub use rate::{Rate, RateError};
pub use routes::{
    Feed, MAX_ROUTE_BYTES, MAX_STRIPES, Member, NoRoute, Parent, RUN_BYTES, Route, Routes, Stripes, Striping,
    WHOLE,
};
pub use shape::{LEAST_DEPTH, MAX_LEAF_PENALTY, MAX_SHAPE_BYTES, Shape, ShapeError, WrongShape};
