//! The planner of overlay trees, by what a user of it relies on.

use penstock_proto::overlay::{
    Cluster, Costs, Limits, Node, Overlay, Place, Plan, PlanError, Prediction, Shape, Traffic, plan, predict,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
const RATE: f64 = 1.25e9;

fn node(host: u32, rack: u32, zone: u32, rate: f64) -> Node {
    Node { place: Place { zone, rack, host }, rate }
}

/// So many hosts of one rate, 20 to a rack, 5 racks to a zone; servers on hosts of their own.
fn cluster(servers: u32, hosts: u32) -> Cluster {
    let host = |host: u32| node(host, host / 20, host / 100, RATE);
    let server = |server: u32| node(10_000 + server, server, 0, RATE);
    Cluster::new((0..servers).map(server).collect(), (0..hosts).map(host).collect(), Costs::Labels).unwrap()
}

fn tree(degree: u32, depth: u32, leaf_penalty: f64) -> Shape {
    Shape::Tree { limits: Limits { degree, depth }, leaf_penalty }
}

fn planned(cluster: &Cluster, shape: Shape, bytes: u64) -> Plan {
    let plan = plan(cluster, shape, &Traffic::of(bytes)).unwrap();
    for overlay in &plan.overlays {
        assert_eq!(overlay.len(), cluster.hosts() + 1);
        check(overlay);
    }
    plan
}

/// The overlay as a stranger would judge it.
fn check(overlay: &Overlay) {
    let hosts = overlay.len() as u32 - 1;
    let stripe = |stripe: &penstock_proto::overlay::Stripe| {
        let edges = (1..=hosts).map(|host| (stripe.parent(host).unwrap(), host)).collect();
        (stripe.share(), edges)
    };
    let stripes: Vec<_> = overlay.stripes().iter().map(stripe).collect();
    assert_eq!(&Overlay::from_edges(hosts as usize, &stripes).unwrap(), overlay);
}

fn ratio(hosts: u32, shape: Shape, bytes: u64) -> f64 {
    planned(&cluster(1, hosts), shape, bytes).prediction.ratio
}

const STRIPED: Shape = Shape::Striped { stripes: None };

#[test]
fn a_star_takes_a_transfer_for_each_host() {
    for hosts in [1, 2, 7, 64, 1000] {
        assert!((ratio(hosts, Shape::Star, 256 * MIB) - f64::from(hosts)).abs() < 1e-9);
    }
}

#[test]
fn a_chain_takes_about_one_transfer_until_it_is_so_long_that_its_blocks_take_more() {
    for hosts in [1, 2, 7, 64] {
        assert!(ratio(hosts, Shape::Chain, 256 * MIB) <= 1.25);
    }
    let long = ratio(1000, Shape::Chain, 256 * MIB);
    assert!((long - (1.0 + 999.0 / 256.0)).abs() < 1e-9, "{long}");
}

#[test]
fn stripes_take_about_one_transfer_for_any_number_of_hosts() {
    for hosts in (1..100).chain([127, 128, 500, 997, 1000, 1024]) {
        let ratio = ratio(hosts, STRIPED, 256 * MIB);
        assert!((1.0..=1.25).contains(&ratio), "{hosts} hosts: {ratio}");
    }
}

#[test]
fn a_tree_takes_as_many_transfers_as_its_degree() {
    for degree in [2, 3, 8] {
        let depth = Limits::least_depth(1000, degree).unwrap();
        let ratio = ratio(1000, tree(degree, depth, 0.0), 1024 * MIB);
        assert!((f64::from(degree)..1.05 * f64::from(degree)).contains(&ratio), "{degree}: {ratio}");
    }
}

#[test]
fn no_host_passes_on_in_two_stripes_and_their_shares_fill_every_uplink() {
    for (hosts, stripes) in [(9, 3), (10, 3), (11, 4), (64, 8), (100, 7), (1000, 16), (5, 5)] {
        let plan = planned(&cluster(1, hosts), Shape::Striped { stripes: Some(stripes) }, 256 * MIB);
        let all = plan.overlays[0].stripes();
        assert_eq!(all.len(), stripes as usize);
        let inner: Vec<u32> = all.iter().flat_map(|stripe| stripe.inner()).collect();
        assert_eq!(
            inner.iter().collect::<BTreeSet<_>>().len(),
            inner.len(),
            "{hosts} hosts, {stripes} stripes"
        );
        // The root sends everything once. Where the hosts cannot be dealt out evenly, somebody has one child more.
        let transfer = 256.0 * MIB as f64 / RATE;
        let children = (hosts - 1).div_ceil(hosts / stripes);
        let most = (f64::from(children) / f64::from(stripes)).max(1.0);
        assert!(
            plan.prediction.busiest <= most * transfer * (1.0 + 1e-9),
            "{hosts} hosts, {stripes} stripes"
        );
    }
}

#[test]
fn auto_is_as_fast_as_the_fastest_shape() {
    for (hosts, bytes) in [(1, MIB), (2, 4096), (8, 256 * MIB), (300, 4096), (300, 256 * MIB)] {
        let cluster = cluster(1, hosts);
        let auto = planned(&cluster, Shape::Auto, bytes).prediction.seconds;
        let depth = Limits::least_depth(hosts as usize, 2).unwrap();
        for shape in [Shape::Star, Shape::Chain, STRIPED, tree(2, depth, 0.0)] {
            assert!(auto <= planned(&cluster, shape, bytes).prediction.seconds, "{hosts} hosts: {shape:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Trees that cannot be the fastest are not planned at all.
    #[test]
    fn auto_leaves_out_nothing_that_would_have_been_faster(
        hosts in prop::collection::vec((0u32..4, 0usize..3), 1..30),
        servers in prop::collection::vec(0u32..40, 1..4),
        bytes in prop::sample::select(vec![4096, 64 << 10, 4 * MIB, 256 * MIB]),
        hop in prop::sample::select(vec![0.0, 1e-4, 5e-3]),
    ) {
        let rates = [RATE, RATE / 3.0, RATE / 20.0];
        let nodes: Vec<Node> =
            hosts.iter().zip(0..).map(|(&(rack, rate), host)| node(host, rack, 0, rates[rate])).collect();
        // Some stand on hosts, where two may not; the others on hosts of their own.
        let places: BTreeSet<u32> = servers.into_iter().collect();
        let server = |host: &u32| nodes.get(*host as usize).copied().unwrap_or_else(|| node(1000 + host, 9, 0, RATE));
        let cluster = Cluster::new(places.iter().map(server).collect(), nodes.clone(), Costs::Labels).unwrap();
        let traffic = Traffic { hop, ..Traffic::of(bytes) };
        let auto = plan(&cluster, Shape::Auto, &traffic).unwrap().prediction.seconds;
        for degree in 2..5 {
            let depth = Limits::least_depth(nodes.len(), degree).unwrap();
            let other = plan(&cluster, tree(degree, depth, 0.0), &traffic).unwrap().prediction.seconds;
            prop_assert!(auto <= other * (1.0 + 1e-12), "degree {}: {} and {}", degree, auto, other);
        }
    }
}

#[test]
fn a_hop_that_takes_long_makes_low_trees_worth_it() {
    let cluster = cluster(1, 100);
    let slow = Traffic { hop: 1e-3, ..Traffic::of(64 * 1024) };
    let plan = plan(&cluster, Shape::Auto, &slow).unwrap();
    assert!(plan.prediction.depth <= 4, "{:?}", plan.prediction);
}

#[test]
fn a_shape_that_cannot_be_is_refused_for_what_is_wrong() {
    let cluster = cluster(1, 7);
    let refused = |shape, traffic: Traffic| plan(&cluster, shape, &traffic).unwrap_err();
    let good = Traffic::of(MIB);
    assert_eq!(refused(tree(0, 3, 0.0), good), PlanError::Degree);
    assert_eq!(refused(tree(2, 2, 0.0), good), PlanError::Depth { hosts: 7, degree: 2, depth: 2, most: 6 });
    assert!(plan(&cluster, tree(2, 3, 0.0), &good).is_ok());
    assert!(plan(&cluster, tree(u32::MAX, u32::MAX, 0.0), &good).is_ok());
    assert_eq!(refused(tree(1, 0, 0.0), good), PlanError::Depth { hosts: 7, degree: 1, depth: 0, most: 0 });
    assert_eq!(refused(tree(2, 3, -0.5), good), PlanError::LeafPenalty(-0.5));
    assert!(matches!(refused(tree(2, 3, f64::NAN), good), PlanError::LeafPenalty(alpha) if alpha.is_nan()));
    for stripes in [0, 8] {
        let shape = Shape::Striped { stripes: Some(stripes) };
        assert_eq!(refused(shape, good), PlanError::Stripes { stripes, hosts: 7 });
    }
    for traffic in [
        Traffic { bytes: 0, ..good },
        Traffic { block: 0, ..good },
        Traffic { block: MIB + 1, ..good },
        Traffic { hop: -1.0, ..good },
        Traffic { hop: f64::NAN, ..good },
    ] {
        assert!(matches!(refused(Shape::Auto, traffic), PlanError::Traffic { .. }), "{traffic:?}");
        let overlays = planned(&cluster, Shape::Star, MIB).overlays;
        assert!(predict(&cluster, &overlays, &traffic).is_err());
    }
    assert!(matches!(predict(&cluster, &[], &good), Err(PlanError::Overlays { got: 0, servers: 1 })));
    let small = planned(&self::cluster(1, 3), Shape::Star, MIB).overlays;
    assert!(matches!(predict(&cluster, &small, &good), Err(PlanError::NotAMember { .. })));
}

/// Equation 12 of a tree.
fn cost(cluster: &Cluster, overlay: &Overlay, leaf_penalty: f64) -> f64 {
    let (view, stripe) = (cluster.seen_from(0), &overlay.stripes()[0]);
    let edges: f64 = view.hosts().map(|host| view.cost(stripe.parent(host).unwrap(), host)).sum();
    let leaves = stripe.children().iter().filter(|children| children.is_empty()).count();
    edges + leaf_penalty * leaves as f64
}

#[test]
fn the_papers_example_has_three_leaves_once_leaves_cost_something() {
    // Figure 7: six hosts, two levels of three.
    let hosts = (0..6).map(|host| node(host, 0, 0, RATE)).collect();
    let cluster = Cluster::new(vec![node(9, 0, 0, RATE)], hosts, Costs::Labels).unwrap();
    let plan = planned(&cluster, tree(3, 2, 0.5), MIB);
    let leaves =
        plan.overlays[0].stripes()[0].children().iter().filter(|children| children.is_empty()).count();
    assert_eq!(leaves, 3);
}

#[test]
fn a_tree_enters_a_rack_once_where_it_may() {
    // Three racks of four in two zones: three edges into racks, the others inside.
    let place = [(0, 0), (1, 0), (2, 1)];
    let hosts = (0..12).map(|host| {
        let (rack, zone) = place[host as usize / 4];
        node(host, rack, zone, RATE)
    });
    let cluster = Cluster::new(vec![node(99, 0, 0, RATE)], hosts.collect(), Costs::Labels).unwrap();
    let plan = planned(&cluster, tree(3, 4, 0.0), MIB);
    let best = 0.5 + 1.0 + 10.0 * 0.1;
    assert!((cost(&cluster, &plan.overlays[0], 0.0) - best).abs() < 1e-9);
}

#[test]
fn the_trees_of_several_servers_load_different_hosts() {
    for shape in [tree(2, 6, 0.0), tree(4, 4, 0.2)] {
        let cluster = cluster(4, 60);
        let plan = planned(&cluster, shape, 256 * MIB);
        let one = planned(&self::cluster(1, 60), shape, 256 * MIB).prediction.busiest;
        // All four trees of one shape would load the same hosts: as much as one server with all the bytes.
        assert!(plan.prediction.busiest <= 0.6 * one, "{shape:?}: {} of {one}", plan.prediction.busiest);
    }
}

#[test]
fn a_server_on_a_workers_host_gives_it_everything_over_no_link() {
    let hosts: Vec<Node> = (0..9).map(|host| node(host, 0, 0, RATE)).collect();
    let cluster = Cluster::new(vec![hosts[4]], hosts, Costs::Labels).unwrap();
    for shape in [Shape::Star, Shape::Chain, STRIPED, Shape::Striped { stripes: Some(3) }, Shape::Auto] {
        let plan = planned(&cluster, shape, 256 * MIB);
        for stripe in plan.overlays[0].stripes() {
            assert_eq!((stripe.parent(5), stripe.children()[5].len()), (Some(0), 0), "{shape:?}");
        }
    }
    assert!((planned(&cluster, Shape::Star, 256 * MIB).prediction.ratio - 8.0).abs() < 1e-9);
    let alone = Cluster::new(vec![node(0, 0, 0, RATE)], vec![node(0, 0, 0, RATE)], Costs::Labels).unwrap();
    assert_eq!(planned(&alone, Shape::Auto, MIB).prediction.ratio, 0.0);
}

#[test]
fn a_slow_uplink_passes_little_on() {
    let rate = |host| if host == 3 { RATE / 10.0 } else { RATE };
    let hosts: Vec<Node> = (0..10).map(|host| node(host, 0, 0, rate(host))).collect();
    let cluster = Cluster::new(vec![node(99, 0, 0, RATE)], hosts, Costs::Labels).unwrap();
    // What comes into the slow host takes 10 transfers. Its own uplink must not take as long again.
    for shape in [Shape::Chain, STRIPED] {
        assert!(
            planned(&cluster, shape, 256 * MIB).prediction.busiest <= 1.4 * 256.0 * MIB as f64 / RATE,
            "{shape:?}"
        );
    }
}

#[test]
fn a_host_of_a_chain_that_is_to_pass_on_nothing_is_its_end() {
    let cluster = cluster(1, 4);
    let chain = &planned(&cluster, Shape::Chain, MIB).overlays[0];
    let mut leaves = BTreeSet::from([2]);
    let (next, moved) = chain.with_leaf(&cluster.seen_from(0), 2, (None, &leaves)).unwrap();
    let line = |overlay: &Overlay| -> Vec<u32> {
        (1..=4).map(|host| overlay.stripes()[0].parent(host).unwrap()).collect()
    };
    assert_eq!((line(&next), moved), (vec![0, 4, 1, 3], vec![2, 3]));
    leaves.insert(1);
    let (next, _) = next.with_leaf(&cluster.seen_from(0), 1, (None, &leaves)).unwrap();
    assert_eq!(next.stripes()[0].parent(3), Some(0));
    // Of 0, 3 and 4 one has to send twice. Behind the server all would wait for that, behind 4 only those that pass nothing on.
    assert_eq!(line(&next), [4, 4, 0, 3]);
}

#[test]
fn a_chain_closes_over_a_lost_host_and_a_stripes_orphans_are_shared_out() {
    let cluster = cluster(1, 12);
    let traffic = Traffic::of(256 * MIB);
    let chain = planned(&cluster, Shape::Chain, 256 * MIB);
    let (next, moved) = chain.without(&cluster, 5, &traffic).unwrap();
    assert_eq!(moved, [vec![6]]);
    assert_eq!(next.overlays[0].stripes()[0].parent(6), Some(4));
    let striped = planned(&cluster, Shape::Striped { stripes: Some(3) }, 256 * MIB);
    let (next, _) = striped.without(&cluster, 5, &traffic).unwrap();
    assert!(next.prediction.ratio <= 1.5, "{:?}", next.prediction);
    for lost in [0, 5, 13, u32::MAX] {
        assert_eq!(next.without(&cluster, lost, &traffic), Err(PlanError::NotAMember { node: lost }));
    }
    let two = self::cluster(1, 1);
    assert_eq!(planned(&two, Shape::Star, MIB).without(&two, 1, &traffic), Err(PlanError::NoHosts));
}

/// The blocks of a broadcast, one by one: each uplink sends in the order in which blocks came, each block to one child after the
/// other; the root takes the stripes in turn.
fn simulated(cluster: &Cluster, overlay: &Overlay, traffic: &Traffic) -> f64 {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    let view = cluster.seen_from(0);
    let children: Vec<_> = overlay.stripes().iter().map(|stripe| stripe.children()).collect();
    let sizes: Vec<Vec<u64>> = overlay
        .cut(traffic.bytes)
        .into_iter()
        .map(|range| {
            let bytes = range.end - range.start;
            (0..bytes.div_ceil(traffic.block))
                .map(|block| (bytes - block * traffic.block).min(traffic.block))
                .collect()
        })
        .collect();
    let mut free = vec![0_u64; view.len()];
    // (time in nanoseconds, order, node, stripe, block)
    let mut events = BinaryHeap::new();
    let mut order = 0_u64;
    for block in 0..sizes.iter().map(Vec::len).max().unwrap() {
        for stripe in (0..sizes.len()).filter(|&stripe| block < sizes[stripe].len()) {
            events.push(Reverse((0_u64, order, 0_u32, stripe, block)));
            order += 1;
        }
    }
    let mut last = 0;
    while let Some(Reverse((time, _, at, stripe, block))) = events.pop() {
        last = last.max(time);
        for &child in &children[stripe][at as usize] {
            let took = (sizes[stripe][block] as f64 / view.node(at).rate * 1e9) as u64;
            free[at as usize] = free[at as usize].max(time) + took;
            events.push(Reverse((
                free[at as usize] + (traffic.hop * 1e9) as u64,
                order,
                child,
                stripe,
                block,
            )));
            order += 1;
        }
    }
    last as f64 / 1e9
}

#[test]
fn what_is_predicted_is_what_blocks_sent_one_by_one_take() {
    for (hosts, bytes, hop) in
        [(7, 64 * MIB, 0.0), (30, 64 * MIB, 1e-4), (100, 256 * MIB, 0.0), (30, 3 * MIB, 1e-5)]
    {
        let cluster = cluster(1, hosts);
        let traffic = Traffic { hop, ..Traffic::of(bytes) };
        let depth = Limits::least_depth(hosts as usize, 3).unwrap();
        let all = [1, 2, 3, 5, 7].map(|stripes| Shape::Striped { stripes: Some(stripes) });
        for shape in [Shape::Star, Shape::Chain, STRIPED, tree(3, depth, 0.0)].into_iter().chain(all) {
            let plan = plan(&cluster, shape, &traffic).unwrap();
            let real = simulated(&cluster, &plan.overlays[0], &traffic);
            let off = plan.prediction.seconds / real;
            assert!(
                (0.85..=1.25).contains(&off),
                "{hosts} hosts, {:?}: predicted {off} of what it took",
                plan.shape
            );
        }
    }
}

prop_compose! {
    fn some_cluster()(
        hosts in prop::collection::vec((0_u32..4, 0_u32..3, 1_u32..5), 1..40),
        servers in 1_usize..4, on_hosts: bool, measured: bool,
    ) -> Cluster {
        let hosts: Vec<Node> = (0..).zip(hosts)
            .map(|(host, (rack, zone, rate))| node(host, rack, zone, f64::from(rate) * RATE)).collect();
        let server = |server: usize| match hosts.get(server) {
            Some(host) if on_hosts => *host,
            _ => node(1000 + server as u32, server as u32, 0, RATE),
        };
        let costs = if measured { Costs::Measured } else { Costs::Labels };
        Cluster::new((0..servers).map(server).collect(), hosts.clone(), costs).unwrap()
    }
}

fn some_shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Star),
        Just(Shape::Chain),
        Just(Shape::Auto),
        (1_u32..9).prop_map(|stripes| Shape::Striped { stripes: Some(stripes) }),
        (1_u32..6, 0_u32..4, 0_u32..4).prop_map(|(degree, more, penalty)| {
            tree(degree, Limits::least_depth(40, degree).unwrap() + more, f64::from(penalty) / 4.0)
        }),
    ]
}

/// The shape, with no more stripes than hosts.
fn possible(shape: Shape, cluster: &Cluster) -> Shape {
    match shape {
        Shape::Striped { stripes: Some(stripes) } => {
            Shape::Striped { stripes: Some(stripes.min(cluster.hosts() as u32)) }
        }
        shape => shape,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_plan_is_trees_over_all_hosts_within_its_limits_and_the_same_again(
        cluster in some_cluster(), shape in some_shape(), bytes in 1_u64..1 << 30,
    ) {
        let shape = possible(shape, &cluster);
        let plan = planned(&cluster, shape, bytes);
        prop_assert_eq!(&plan, &planned(&cluster, shape, bytes));
        if let Shape::Tree { limits, .. } = shape {
            for overlay in &plan.overlays {
                prop_assert_eq!(overlay.keeps(limits), Ok(()));
            }
        }
        let Prediction { seconds, busiest, .. } = plan.prediction;
        prop_assert!(seconds >= busiest && seconds.is_finite());
    }

    #[test]
    fn a_host_that_is_to_pass_on_nothing_becomes_a_leaf_and_only_its_children_move(
        cluster in some_cluster(), shape in some_shape(), which: prop::sample::Index,
    ) {
        let plan = planned(&cluster, possible(shape, &cluster), MIB);
        let (mut overlay, mut leaves) = (plan.overlays[0].clone(), BTreeSet::new());
        let view = cluster.seen_from(0);
        // As many as may be, one after the other.
        for turn in 0..cluster.hosts().saturating_sub(1) {
            let host = (which.index(cluster.hosts()) + turn) as u32 % cluster.hosts() as u32 + 1;
            leaves.insert(host);
            let before = overlay.clone();
            let (next, moved) = overlay.with_leaf(&view, host, (None, &leaves)).unwrap();
            check(&next);
            for (was, is) in before.stripes().iter().zip(next.stripes()) {
                for leaf in &leaves {
                    prop_assert!(is.children()[*leaf as usize].is_empty(), "{leaf} passes on");
                }
                for other in view.hosts().filter(|other| !moved.contains(other)) {
                    prop_assert_eq!(was.parent(other), is.parent(other));
                }
            }
            let children = before.stripes().iter().flat_map(|stripe| stripe.children()[host as usize].clone());
            let expected: BTreeSet<u32> = children.chain([host]).collect();
            prop_assert_eq!(moved.into_iter().collect::<BTreeSet<u32>>(), expected);
            overlay = next;
        }
    }

    #[test]
    fn a_lost_host_moves_its_children_and_nobody_else(
        cluster in some_cluster(), shape in some_shape(), lost in prop::collection::vec(0_usize..40, 1..4),
    ) {
        let traffic = Traffic::of(64 * MIB);
        let mut plan = planned(&cluster, possible(shape, &cluster), 64 * MIB);
        for lost in lost {
            let left: Vec<u32> = cluster.seen_from(0).hosts().filter(|&host| plan.overlays[0].has(host)).collect();
            if left.len() < 2 {
                break;
            }
            let lost = left[lost % left.len()];
            let (next, moved) = plan.without(&cluster, lost, &traffic).unwrap();
            for (server, (before, after)) in plan.overlays.iter().zip(&next.overlays).enumerate() {
                for (old, new) in before.stripes().iter().zip(after.stripes()) {
                    prop_assert_eq!(new.parent(lost), None);
                    let depths = new.depths();
                    for &host in left.iter().filter(|&&host| host != lost) {
                        // The root still reaches each, and only orphans have another parent.
                        prop_assert!(depths[host as usize].is_some());
                        let orphan = old.parent(host) == Some(lost);
                        prop_assert_eq!(old.parent(host) != new.parent(host), orphan);
                        prop_assert!(!orphan || moved[server].contains(&host));
                    }
                }
            }
            plan = next;
        }
    }
}

/// It was walked in circles for as many steps.
#[test]
fn a_depth_that_no_tree_has_is_no_limit() {
    let of_depth = |depth| ratio(8, tree(2, depth, 0.0), MIB);
    assert_eq!(of_depth(u32::MAX), of_depth(8));
}
