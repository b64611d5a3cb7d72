//! No read is older than its slack allows, no value is torn, versions do not fall, no update is lost or taken twice: by real
//! threads over shared memory, some thousand iterations, whatever the scheduler does.

mod common;

use common::{Cluster, NO_SETTINGS, Way, bytes, declare, numbers, pull};
use penstock::worker::{Job, Tensor};
use penstock_kernels::Foreign;
use penstock_proto::consistency::Consistency::{self, Asp, Bsp, Ssp};

const WORKERS: u32 = 3;
const ITERATIONS: u64 = 2000;
/// Several chunks on every shard, the last one short.
const ELEMENTS: u64 = 5 * 512 + 7;

/// A generator that needs no crate: splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// Every worker adds 1 to every element in every iteration, and looks what it sees.
fn torture(job: &Job, consistency: Consistency, iterations: u64) {
    let tensor = declare(job, "w", ELEMENTS, consistency);
    let one = bytes(&[1.0; ELEMENTS as usize]);
    let mut random = u64::from(job.rank());
    let mut last = 0;
    for clock in 0..iterations {
        for _ in 0..next(&mut random) % 4 {
            std::thread::yield_now();
        }
        let slack = next(&mut random).is_multiple_of(4).then_some((next(&mut random) % 4) as i64);
        let (version, values) = pull(&tensor, slack).unwrap();
        let allowed = slack.map(|slack| slack as u64).or_else(|| consistency.slack().map(u64::from));
        if let Some(allowed) = allowed {
            assert!(version + allowed >= clock, "version {version} at clock {clock} with slack {allowed}");
        }
        assert!(version >= last, "the version fell from {last} to {version}");
        last = version;
        let exact = consistency == Bsp && slack.unwrap_or(0) == 0;
        check(&values, clock, version, exact);
        if consistency != Bsp {
            assert!(
                values.iter().all(|&value| value >= clock as f64),
                "an own update is missing at clock {clock}"
            );
        }
        tensor.push(Some(&one), NO_SETTINGS, false, None).unwrap();
        assert_eq!(job.clock().unwrap(), clock + 1);
    }
    job.barrier(None).unwrap();
    let (_, values) = pull(&tensor, Some(0)).unwrap();
    let all = (u64::from(WORKERS) * iterations) as f64;
    assert!(values.iter().all(|&value| value == all), "lost or doubled: {} of {all}", values[0]);
}

fn check(values: &[f64], clock: u64, version: u64, exact: bool) {
    let least = f64::from(WORKERS) * version as f64;
    // Each worker is at most slack + 1 updates ahead of the version that it can have seen.
    let most = (u64::from(WORKERS) * ITERATIONS) as f64;
    for (chunk, values) in values.chunks(512).enumerate() {
        assert!(values.iter().all(|&value| value == values[0]), "chunk {chunk} is torn at clock {clock}");
        assert!((least..=most).contains(&values[0]), "chunk {chunk}: {} for version {version}", values[0]);
        if exact {
            assert_eq!(values[0], least, "BSP sees exactly its version");
        }
    }
}

#[test]
fn no_read_is_ever_older_than_its_slack() {
    for consistency in [Bsp, Ssp(0), Ssp(1), Ssp(3), Ssp(8), Asp] {
        Cluster::new(WORKERS, 1, &[("chunk_bytes", "4KiB")]).run(|job| torture(job, consistency, ITERATIONS));
    }
}

#[test]
fn nor_when_several_servers_share_the_tensor() {
    for consistency in [Bsp, Ssp(2)] {
        Cluster::new(WORKERS, 3, &[("chunk_bytes", "4KiB"), ("shards", "1")])
            .run(|job| torture(job, consistency, ITERATIONS));
    }
}

#[test]
fn nor_when_some_or_all_workers_are_on_other_hosts() {
    for (way, consistency) in
        [(Way::Tcp, Bsp), (Way::Tcp, Ssp(3)), (Way::Mixed, Asp), (Way::Mixed, Ssp(1)), (Way::Broken, Ssp(2))]
    {
        Cluster::over(way, WORKERS, 2, &[("chunk_bytes", "4KiB"), ("shards", "1")])
            .run(|job| torture(job, consistency, ITERATIONS / 10));
    }
}

/// Fills the mirror and looks at it until all that is pushed is there. Another thread may fill it meanwhile: chunk by chunk what
/// is seen may then be of different publications, but each is of one, and never of an earlier one than before.
fn look_at_the_mirror(tensor: &Tensor) {
    let mirror = tensor.mirror().unwrap();
    let mut seen = bytes(&[0.0; ELEMENTS as usize]);
    let mut before = numbers(&seen);
    while before.iter().any(|&value| value < ITERATIONS as f64) {
        let version = tensor.pull_mirror(None, None).unwrap();
        // SAFETY: the mirror has these bytes and outlives the copy, and there is no reference to them.
        let foreign = unsafe { Foreign::new(mirror.base().as_ptr(), seen.len()) };
        foreign.copy_to(&mut seen);
        let values = numbers(&seen);
        for (at, (&value, &before)) in values.iter().zip(&before).enumerate() {
            assert!(value.fract() == 0.0 && value <= ITERATIONS as f64, "element {at} is torn: {value:e}");
            assert!(value >= before, "element {at} fell from {before} to {value}");
            assert!(value >= version as f64, "element {at}: {value} for version {version}");
        }
        before = values;
    }
}

#[test]
fn a_mirror_that_two_threads_fill_is_never_torn_and_never_falls() {
    for way in [Way::Memory, Way::Tcp] {
        Cluster::over(way, 2, 1, &[("chunk_bytes", "4KiB"), ("shards", "1")]).run(|job| {
            let tensor = declare(job, "w", ELEMENTS, Asp);
            if job.rank() == 0 {
                std::thread::scope(|scope| {
                    (0..2).for_each(|_| drop(scope.spawn(|| look_at_the_mirror(&tensor))));
                });
            } else {
                let one = bytes(&[1.0; ELEMENTS as usize]);
                for _ in 0..ITERATIONS {
                    tensor.push(Some(&one), NO_SETTINGS, false, None).unwrap();
                    job.clock().unwrap();
                }
            }
            job.barrier(None).unwrap();
        });
    }
}
