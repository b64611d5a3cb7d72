//! Whether another plan is worth moving to, for rates that are others than when the one that stands was made.

use super::cluster::Cluster;
use super::error::PlanError;
use super::forest::Overlay;
use super::limits::Limits;
use super::plan::{Plan, plan};
use super::predict::{Traffic, predict};
use super::shape::Shape;
use std::collections::BTreeSet;

/// Of the time that the one that stands takes, how much another may take at most.
const WORTH: f64 = 0.75;

/// What stands: of one server, by the numbers of the cluster that is planned for.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// By stripe, its share and its edges (who sends, to whom).
    pub stripes: Vec<(f64, Vec<(u32, u32)>)>,
    /// Nodes that pass nothing on, whatever is planned.
    pub leaves: BTreeSet<u32>,
}

impl Standing {
    /// What stands of an overlay, in which nodes have other numbers, or none any more.
    pub fn of(overlay: &Overlay, number: impl Fn(u32) -> Option<u32>, leaves: BTreeSet<u32>) -> Self {
        let edges = |stripe: &super::Stripe| {
            let children = (0..).zip(stripe.children());
            let edges = children.flat_map(|(from, children)| children.into_iter().map(move |to| (from, to)));
            edges.filter_map(|(from, to)| Some((number(from)?, number(to)?))).collect()
        };
        let stripes = overlay.stripes().iter().map(|stripe| (stripe.share(), edges(stripe))).collect();
        Self { stripes, leaves }
    }
}

/// Another plan, and what it is better than.
#[derive(Debug, Clone, PartialEq)]
pub struct Better {
    /// The plan of all servers.
    pub plan: Plan,
    /// Seconds that it takes, and that what stands takes with these rates: each for this server's part by itself.
    pub seconds: f64,
    /// See there.
    pub instead_of: f64,
}

/// The plan for this cluster, if one server's part of it takes so much less time than what stands that it is worth to move.
///
/// # Errors
/// There is no such plan, or what stands is none for these hosts.
pub fn instead(
    cluster: &Cluster,
    shape: Shape,
    traffic: &Traffic,
    server: usize,
    standing: &Standing,
) -> Result<Option<Better>, PlanError> {
    let plan = plan(cluster, shape, traffic)?;
    let alone = cluster.of_one(server);
    let limits = match plan.shape {
        Shape::Tree { limits, .. } => Some(limits),
        _ => None,
    };
    let planned = silenced(&alone, plan.overlays[server].clone(), limits, &standing.leaves);
    let stands = Overlay::from_edges(cluster.hosts(), &standing.stripes)?;
    let seconds = |overlay| predict(&alone, &[overlay], traffic).map(|prediction| prediction.seconds);
    let (seconds, instead_of) = (seconds(planned)?, seconds(stands)?);
    Ok((seconds <= WORTH * instead_of).then_some(Better { plan, seconds, instead_of }))
}

/// The overlay with these nodes as leaves.
fn silenced(
    cluster: &Cluster,
    mut overlay: Overlay,
    limits: Option<Limits>,
    leaves: &BTreeSet<u32>,
) -> Overlay {
    for &leaf in leaves {
        let is_inner = overlay.stripes().iter().any(|stripe| stripe.inner().contains(&leaf));
        if is_inner && let Ok((mended, _)) = overlay.with_leaf(&cluster.seen_from(0), leaf, (limits, leaves))
        {
            overlay = mended;
        }
    }
    overlay
}

#[cfg(test)]
mod tests {
    use super::super::{Costs, Node, Place};
    use super::*;
    use proptest::prelude::*;

    fn cluster(rates: &[f64]) -> Cluster {
        let node =
            |(host, rate): (u32, &f64)| Node { place: Place { zone: 0, rack: 0, host }, rate: 1e9 * rate };
        let hosts: Vec<Node> = (0..).zip(rates).map(node).collect();
        let server = node((rates.len() as u32, &1.0));
        Cluster::new(vec![server], hosts, Costs::Both).unwrap().taking(1e9).unwrap()
    }

    fn traffic() -> Traffic {
        Traffic { bytes: 64 << 20, block: 32 << 10, hop: 1e-4 }
    }

    fn standing(shape: Shape, hosts: usize) -> Standing {
        let plan = plan(&cluster(&vec![1.0; hosts]), shape, &traffic()).unwrap();
        Standing::of(&plan.overlays[0], Some, BTreeSet::new())
    }

    const SHAPES: [&str; 5] = ["chain", "auto", "striped", "striped:3", "tree:degree=2"];

    #[test]
    fn a_host_with_a_fifth_of_the_rate_is_worth_another_plan_in_which_it_passes_nothing_on() {
        for shape in SHAPES {
            let shape: Shape = shape.parse().unwrap();
            let shape = shape.settled(8);
            let standing = standing(shape, 8);
            let inner = |stripes: &[(f64, Vec<(u32, u32)>)], host| {
                stripes
                    .iter()
                    .map(|(share, edges)| {
                        share * edges.iter().filter(|(from, _)| *from == host).count() as f64
                    })
                    .sum::<f64>()
            };
            let busiest = (1..=8).max_by(|&one, &other| {
                inner(&standing.stripes, one).total_cmp(&inner(&standing.stripes, other))
            });
            let busiest = busiest.unwrap();
            let mut rates = vec![1.0; 8];
            rates[busiest as usize - 1] = 0.2;
            let better = instead(&cluster(&rates), shape, &traffic(), 0, &standing).unwrap().unwrap();
            assert!(better.seconds < better.instead_of / 2.0, "{shape}: {better:?}");
            let now = Standing::of(&better.plan.overlays[0], Some, BTreeSet::new());
            assert!(inner(&now.stripes, busiest) < 0.3 * inner(&standing.stripes, busiest), "{shape}");
        }
    }

    #[test]
    fn who_passes_nothing_on_anyway_is_no_reason_to_move_and_nor_are_rates_that_are_alike() {
        let shape = Shape::Chain;
        let stands = standing(shape, 6);
        assert_eq!(instead(&cluster(&[1.0; 6]), shape, &traffic(), 0, &stands), Ok(None));
        let last = cluster(&[1.0, 1.0, 1.0, 1.0, 1.0, 0.2]);
        assert_eq!(instead(&last, shape, &traffic(), 0, &stands), Ok(None));
        // One that may not pass anything on is a leaf in either.
        let mut silent = standing(shape, 6);
        silent.leaves = [3].into();
        let overlay = Overlay::from_edges(6, &silent.stripes).unwrap();
        let cluster = cluster(&[1.0; 6]);
        let mended = silenced(&cluster, overlay, None, &silent.leaves);
        let silent = Standing::of(&mended, Some, silent.leaves);
        assert_eq!(instead(&cluster, shape, &traffic(), 0, &silent), Ok(None));
    }

    proptest! {
        #[test]
        fn rates_that_are_all_alike_give_the_plan_of_before_whatever_they_are_worth(
            hosts in 2_usize..20, shape in prop::sample::select(SHAPES.to_vec()), servers in 1_usize..4,
        ) {
            let shape = shape.parse::<Shape>().unwrap().settled(hosts);
            let node = |host: usize| Node { place: Place { zone: 0, rack: host as u32 % 3, host: host as u32 }, rate: 1e9 };
            let nodes = |from: usize, count: usize| (from..from + count).map(node).collect::<Vec<_>>();
            let cluster = |costs| Cluster::new(nodes(hosts, servers), nodes(0, hosts), costs).unwrap();
            let before = plan(&cluster(Costs::Labels), shape, &traffic()).unwrap();
            let now = plan(&cluster(Costs::Both).taking(1e9).unwrap(), shape, &traffic()).unwrap();
            prop_assert_eq!(before, now);
        }
    }
}
