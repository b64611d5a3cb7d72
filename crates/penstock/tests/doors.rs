//! Jobs whose workers want trees: who joins, what of it the process shows, and that values are what they are without.

mod common;

use common::tenants::{EVIL, enter, service, train};
use common::{Cluster, NO_SETTINGS, Way, at_once, bytes, options, pull};
use penstock::worker::{Declaration, Error, Job};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::Refusal;
use penstock_proto::handshake::Purpose;
use penstock_proto::overlay::Stripes;
use penstock_proto::propagation::Propagation;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Listeners of this process are counted by one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many sockets of this process listen to the network.
fn listeners() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own: HashSet<String> = links
        .filter_map(|link| std::fs::read_link(link.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let listens = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[3] == "0A" && own.contains(fields[9])
    };
    std::fs::read_to_string("/proc/self/net/tcp").unwrap().lines().skip(1).filter(listens).count()
}

/// What three workers see in some iterations.
fn values(cluster: &Cluster) -> Vec<Vec<f64>> {
    cluster.run(|job| {
        let mut declaration = Declaration::new("w", &[3 * 512 + 7], Rule::Add);
        declaration.spec.dtype = Dtype::F64;
        declaration.spec.propagation = Propagation::Broadcast;
        declaration.consistency = Some(Bsp);
        let tensor = job.declare(declaration).unwrap();
        tensor.initialize(None, None).unwrap();
        let mut seen = Vec::new();
        for clock in 0..20 {
            let value = 1.0 / f64::from(clock + 3 + job.rank());
            tensor.push(Some(&bytes(&[value; 3 * 512 + 7])), NO_SETTINGS, false, None).unwrap();
            seen.extend(pull(&tensor, None).unwrap().1);
            job.clock().unwrap();
        }
        seen
    })
}

#[test]
fn all_workers_want_the_same_trees_or_the_one_that_does_not_is_told_both() {
    let _alone = alone();
    at_once([Way::Memory, Way::Tcp, Way::Mixed], |way| {
        let cluster = Cluster::over(way, 2, 1, &[]);
        let wants = |rank: u32, tree| Job::connect(&cluster.membership(rank), options(&[("tree", tree)]));
        let first = wants(0, "tree:degree=2").unwrap();
        for (tree, got) in [("star", "star"), ("striped:4", "striped:4")] {
            let expected = "tree:degree=2".to_owned();
            let refusal = Refusal::Tree { rank: 1, expected, got: got.to_owned() };
            match wants(1, tree) {
                Err(Error::Refused(told)) => assert_eq!(told, refusal, "{way:?}"),
                other => panic!("{way:?}: {:?}", other.map(|_| ())),
            }
        }
        let second = wants(1, "tree:degree=2,leaf_penalty=0").unwrap();
        let both = [first, second];
        std::thread::scope(|scope| both.iter().for_each(|job| _ = scope.spawn(|| job.leave(None).unwrap())));
    });
}

#[test]
fn a_job_along_trees_sees_what_one_without_sees() {
    let _alone = alone();
    let star = values(&Cluster::over(Way::Tcp, 3, 2, &[]));
    for tree in ["chain", "striped", "auto", "tree:degree=2"] {
        for way in [Way::Tcp, Way::Tls, Way::Mixed] {
            assert!(values(&Cluster::over(way, 3, 2, &[("tree", tree)])) == star, "{tree}, {way:?}");
        }
    }
}

#[test]
fn only_workers_on_other_hosts_that_want_trees_have_doors_and_these_close_with_the_job() {
    let _alone = alone();
    for (way, tree, doors) in [(Way::Tcp, "star", 0), (Way::Memory, "chain", 0), (Way::Tcp, "chain", 1)] {
        let cluster = Cluster::over(way, 1, 2, &[("tree", tree)]);
        let before = listeners();
        assert_eq!(before, if way == Way::Tcp { 2 } else { 0 });
        let job = cluster.join(0);
        assert_eq!(listeners(), before + doors, "{way:?}, {tree}");
        job.leave(None).unwrap();
        drop(job);
        assert_eq!(listeners(), before, "{way:?}, {tree}");
    }
}

#[test]
fn a_server_passes_nothing_on_for_another_and_says_so() {
    let _alone = alone();
    let (_service, address) = service();
    let relay =
        Purpose::Relay { child: 0, server: 0, shard: 0, striping: 1, stripes: Stripes(1), rendezvous: None };
    let alone = train(address);
    let (_service, address) = service();
    let told = enter(address, "evil", EVIL, relay);
    assert!(matches!(&told, Err(Refusal::Malformed { what }) if what.contains("only workers")), "{told:?}");
    let stranger = enter(address, "good", EVIL, relay);
    assert!(matches!(stranger, Err(Refusal::Authentication)), "{stranger:?}");
    assert!(train(address) == alone);
}
