//! The same job over shared memory, TCP, TLS, both at once, and a line that breaks: the same values, bit by bit.

mod common;

use common::{Cluster, Way};
use penstock::worker::{Declaration, Error, Job, TableDeclaration, Tensor};
use penstock_fabric::layout::Count;
use penstock_kernels::{Rule, Settings};
use penstock_proto::consistency::Consistency;
use penstock_proto::error::Refusal;
use penstock_proto::items::{Propagation, RowSet, Slack};
use penstock_proto::message::Secret;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ITERATIONS: u64 = 12;
/// Elements of the tensors: of several chunks, of one, of one element.
const SIZES: [u64; 3] = [70_001, 1_000, 1];
const SGD: Settings = Settings([0.1, 0.9, 0.0, 0.0, 0.0]);

fn gradient(rank: u32, clock: u64, elements: u64) -> Vec<u8> {
    let value = |index: u64| ((index * 31 + clock * 7 + u64::from(rank) * 13) % 101) as f32 / 37.0 - 1.0;
    (0..elements).flat_map(|index| value(index).to_le_bytes()).collect()
}

fn declare(job: &Job, name: &str, elements: u64, consistency: Consistency) -> Arc<Tensor> {
    let rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
    let mut declaration = Declaration::new(name, &[elements], rule);
    declaration.consistency = Some(consistency);
    let tensor = job.declare(declaration).unwrap();
    tensor.initialize(Some(&gradient(99, 0, elements)), None).unwrap();
    tensor
}

fn value(tensor: &Arc<Tensor>) -> Vec<u8> {
    let mut out = vec![0; tensor.spec().bytes() as usize];
    tensor.pull_into(&mut out, None, None).unwrap();
    out
}

/// Trains, and returns every value that this worker saw at the end of an iteration, and the optimizer's state.
fn train(job: &Job) -> Vec<Vec<u8>> {
    let tensors: Vec<Arc<Tensor>> = SIZES
        .iter()
        .map(|&elements| declare(job, &format!("w{elements}"), elements, Consistency::Bsp))
        .collect();
    let mut seen = Vec::new();
    for clock in 0..ITERATIONS {
        for (tensor, elements) in tensors.iter().zip(SIZES) {
            tensor.push(Some(&gradient(job.rank(), clock, elements)), SGD, false, None).unwrap();
        }
        // Not every result is looked at: then none is asked for.
        if clock % 3 != 1 {
            seen.extend(tensors.iter().map(value));
        }
        job.clock().unwrap();
    }
    seen.extend(tensors.iter().map(|tensor| tensor.state(0, None).unwrap()));
    assert!(tensors.iter().all(|tensor| tensor.steps(None).unwrap() == ITERATIONS));
    seen
}

fn results(way: Way, workers: u32, servers: u32) -> Vec<Vec<Vec<u8>>> {
    let cluster = Cluster::over(way, workers, servers, &[("chunk_bytes", "8KiB")]);
    let results = cluster.run(train);
    if way == Way::Broken {
        let breaks: u64 = cluster.lines.iter().map(common::Line::breaks).sum();
        assert!(breaks > 10, "the line broke only {breaks} times");
    }
    results
}

#[test]
fn every_way_to_the_servers_gives_the_same_bits() {
    for (workers, servers) in [(1, 1), (3, 2)] {
        let expected = results(Way::Memory, workers, servers);
        for way in [Way::Tcp, Way::Tls, Way::Mixed] {
            assert!(
                results(way, workers, servers) == expected,
                "{way:?} with {workers} workers, {servers} servers"
            );
        }
    }
}

/// S-1.
#[test]
fn a_line_that_breaks_again_and_again_loses_and_repeats_nothing() {
    let expected = results(Way::Memory, 2, 2);
    assert!(results(Way::Broken, 2, 2) == expected);
}

/// A thread that goes on writing the lane spoils its worker's contribution, but what is sent of it is one thing: it was the
/// frame's checksum that did not fit, over which a connection was given up and made again until the thread paused.
#[test]
fn a_lane_that_is_written_while_it_is_sent_costs_no_connection() {
    const ELEMENTS: u64 = 1 << 18;
    let cluster = Cluster::over(Way::Line, 2, 1, &[("chunk_bytes", "8KiB")]);
    let connections = || cluster.lines[0].connections();
    let made = cluster.run(|job| {
        let tensor = declare(job, "w", ELEMENTS, Consistency::Bsp);
        value(&tensor);
        let before = connections();
        let stop = AtomicBool::new(false);
        let lane = tensor.lane(None).unwrap();
        let word = |at| &lane.at::<Count>(at).0;
        std::thread::scope(|scope| {
            if job.rank() == 1 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        (0..lane.len())
                            .step_by(4096)
                            .for_each(|at| _ = word(at).fetch_add(1, Ordering::Relaxed));
                    }
                });
            }
            for _ in 0..ITERATIONS {
                tensor.push(None, SGD, false, None).unwrap();
                value(&tensor);
                job.clock().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        (before, connections())
    });
    assert_eq!(made[1].0, made[1].1);
}

/// A push asks for its result, which is newer than a pull with slack needs: such a pull waited for the
/// other workers all the same.
#[test]
fn a_pull_with_slack_does_not_wait_for_the_result_of_a_push() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        cluster.run(|job| {
            let tensor = declare(job, "w", 10, Consistency::Bsp);
            value(&tensor);
            if job.rank() == 0 {
                tensor.push(Some(&gradient(0, 0, 10)), SGD, false, None).unwrap();
                let seen = tensor.pull_into(&mut [0; 40], Some(1), Some(Duration::from_secs(5)));
                assert_eq!(seen.unwrap(), 0, "{way:?}");
            }
            job.barrier(None).unwrap();
            if job.rank() == 1 {
                tensor.push(Some(&gradient(1, 0, 10)), SGD, false, None).unwrap();
            }
            assert_eq!(tensor.pull_into(&mut [0; 40], None, None).unwrap(), 1);
        });
    }
}

/// Of what is broadcast a newer value may come between the parts of an older one that an exact pull is made of.
#[test]
fn an_exact_pull_from_elsewhere_says_no_newer_version_than_its_value_has() {
    const ELEMENTS: u64 = 1_000_000;
    const CLOCKS: u64 = 200;
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("chunk_bytes", "4KiB")]);
    cluster.run(|job| {
        let mut declaration = Declaration::new("w", &[ELEMENTS], Rule::Add);
        declaration.consistency = Some(Consistency::Ssp(8));
        declaration.spec.propagation = penstock_proto::propagation::Propagation::Broadcast;
        let tensor = job.declare(declaration).unwrap();
        tensor.initialize(None, None).unwrap();
        let ones: Vec<u8> = (0..ELEMENTS).flat_map(|_| 1_f32.to_le_bytes()).collect();
        let mut out = vec![0; ones.len()];
        let mut seen = Vec::new();
        for clock in 0..CLOCKS {
            if job.rank() == 0 {
                tensor.push(Some(&ones), Settings([0.0; 5]), false, None).unwrap();
            } else if clock % 8 == 7 {
                // It is ahead, as far as a pull lets it be: so versions rise while it reads.
                let version = tensor.pull_whole(&mut out[..], None, None).unwrap();
                let least = out.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
                let least = least.fold(f32::MAX, f32::min);
                assert!(least >= version as f32, "version {version}, and a value of {least}");
                seen.push(version);
            }
            job.clock().unwrap();
        }
        seen.dedup();
        assert!(job.rank() == 0 || seen.len() > 10, "{seen:?}");
    });
}

#[test]
fn a_wrong_secret_and_a_job_that_does_not_exist_are_refused_alike() {
    let cluster = Cluster::over(Way::Tcp, 1, 1, &[]);
    let mut stranger = cluster.membership(0);
    stranger.secret = Secret([8; 32]);
    let refused = |membership| match cluster.try_join(&membership) {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(stranger), Refusal::Authentication);
    let mut nowhere = cluster.membership(0);
    nowhere.job = "another".to_owned();
    assert_eq!(refused(nowhere), Refusal::Authentication);
    cluster.run(|job| _ = train(job));
}

// What was answered meanwhile was kept as long as the barrier was open, and when that was too much the worker was lost.
#[test]
fn who_waits_at_a_barrier_may_ask_for_other_things_as_often_as_it_likes() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[]);
    let [asker, other] = [0, 1].map(|rank| cluster.join(rank));
    std::thread::scope(|scope| {
        let barrier = scope.spawn(|| asker.barrier(None));
        // More than answers are kept.
        (0..5000).for_each(|_| assert_eq!(asker.clocks().unwrap(), [0, 0]));
        assert!(!barrier.is_finished());
        other.barrier(None).unwrap();
        barrier.join().unwrap().unwrap();
    });
    [asker, other].into_iter().for_each(|job| job.leave(None).unwrap());
}

#[test]
fn a_rank_joins_once_over_the_network_too() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[]);
    let first = cluster.join(0);
    match cluster.try_join(&cluster.membership(0)) {
        Err(Error::Refused(Refusal::RankTaken { rank: 0 })) => {}
        other => panic!("{other:?}"),
    }
    first.check().unwrap();
}

/// On one host a barrier did not wait for what stood in a ring: a shard that was busy with one worker took that worker's load before
/// what another had pushed before the barrier, and that came on top of what was loaded.
#[test]
fn what_was_pushed_before_a_barrier_does_not_come_on_top_of_what_is_loaded_behind_it() {
    const ELEMENTS: u64 = 4 << 20;
    for way in [Way::Memory, Way::Tcp, Way::Mixed] {
        let cluster = Cluster::over(way, 2, 1, &[("shards", "1")]);
        cluster.run(|job| {
            let small = declare(job, "small", 8, Consistency::Asp);
            let large = declare(job, "large", ELEMENTS, Consistency::Asp);
            let loaded = gradient(5, 5, 8);
            for _ in 0..8 {
                job.barrier(None).unwrap();
                if job.rank() == 0 {
                    // Out of the lane, so that the shard has much to do at once.
                    large.lane(None).unwrap();
                    large.push(None, SGD, false, None).unwrap();
                } else {
                    small.push(Some(&gradient(1, 0, 8)), SGD, false, None).unwrap();
                }
                job.barrier(None).unwrap();
                if job.rank() == 0 {
                    small.load(0, &loaded, 0, None).unwrap();
                }
                job.clock().unwrap();
                job.barrier(None).unwrap();
                assert!(value(&small) == loaded, "{way:?}: rank {} sees what was pushed before", job.rank());
            }
        });
    }
}

#[test]
fn what_is_loaded_before_a_barrier_is_seen_by_every_host_behind_it() {
    for way in [Way::Tcp, Way::Mixed] {
        let cluster = Cluster::over(way, 3, 2, &[("chunk_bytes", "4KiB")]);
        cluster.run(|job| {
            let tensor = declare(job, "w", 9_000, Consistency::Bsp);
            let before = value(&tensor);
            job.barrier(None).unwrap();
            let loaded = gradient(5, 5, 9_000);
            if job.rank() == 0 {
                tensor.load(0, &loaded, 3, None).unwrap();
                tensor.load(1, &before, 3, None).unwrap();
            }
            job.barrier(None).unwrap();
            assert!(value(&tensor) == loaded, "rank {} sees an old value", job.rank());
            assert_eq!(tensor.steps(None).unwrap(), 3);
            assert!(tensor.state(0, None).unwrap() == before);
        });
    }
}

/// Ticks of the processor that threads of this name have used. No other test of this program has tables.
fn ticks(thread: &str) -> u64 {
    let used = |task: std::path::PathBuf| {
        let is_it = std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == thread);
        let stat = std::fs::read_to_string(task.join("stat")).ok().filter(|_| is_it)?;
        let fields: Vec<u64> =
            stat.rsplit(") ").next()?.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        Some(fields[11] + fields[12]) // utime, stime
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| used(task.unwrap().path())).sum()
}

#[test]
fn rows_for_a_consumer_that_takes_none_wait_without_using_a_processor() {
    const ROWS: u64 = 64;
    const BYTES: usize = 256 << 10;
    let cluster = Cluster::over(Way::Line, 2, 1, &[("lease", "60")]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let all = || RowSet::from_ranges(std::iter::once(0..ROWS));
    let declare = |job: &Job| {
        job.table(TableDeclaration {
            name: "U".to_owned(),
            rows: ROWS,
            row_bytes: BYTES as u32,
            element: None,
            holds: String::new(),
            sum: false,
            produce: if job.rank() == 0 { all() } else { RowSet::default() },
            consume: if job.rank() == 0 { RowSet::default() } else { all() },
            propagation: Propagation::Eager,
            slack: Slack::Bound(0),
            adaptive: None,
            timeout: None,
        })
        .unwrap()
    };
    let (u, v) = std::thread::scope(|scope| {
        let v = scope.spawn(|| declare(&b));
        (declare(&a), v.join().unwrap())
    });
    cluster.lines[0].deafen(true);
    let rows: Vec<u64> = (0..ROWS).collect();
    u.set(&rows, &vec![7u8; BYTES * ROWS as usize][..], Some(1)).unwrap();
    // 16 MiB: more than sockets take. There is no event for "nothing happens": the time is what is measured.
    std::thread::sleep(Duration::from_secs(1));
    let before = ticks("penstock-items");
    assert!(before > 0, "it has passed rows on");
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks("penstock-items") - before;
    assert!(used < 50, "it used {used} hundredths of a second in one");
    cluster.lines[0].deafen(false);
    let mut out = vec![0; BYTES * ROWS as usize];
    v.get(&rows, &mut out[..], Some(1), None, None).unwrap();
    assert!(out.iter().all(|&byte| byte == 7));
    a.leave(None).unwrap();
    b.leave(None).unwrap();
}
