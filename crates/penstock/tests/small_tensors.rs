//! Thousands of small tensors cost a few regions: no descriptor, no mapping, no pages for each, on one host and between hosts.
//!
//! `cargo test --release -p penstock --test small_tensors -- --ignored --nocapture` declares a hundred
//! thousand and says what it took.

mod common;

use common::{Cluster, NO_SETTINGS, Way, bytes, numbers};
use penstock::worker::{Declaration, Job, Tensor};
use penstock_kernels::{Dtype, Rule, Settings};
use penstock_proto::consistency::Consistency::{Asp, Bsp};
use std::fs;
use std::sync::Arc;
use std::time::Instant;

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Tensor `index` of a series of 4 bytes to 1 KiB, whose rule keeps an array of state.
fn small(job: &Job, index: u64) -> Arc<Tensor> {
    let rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
    let mut declaration = Declaration::new(&format!("t{index}"), &[1 + index % 256], rule);
    declaration.consistency = Some(Asp);
    let tensor = job.declare(declaration).unwrap();
    let value: Vec<u8> = (0..=index % 256).flat_map(|at| ((index + at) as f32).to_le_bytes()).collect();
    tensor.initialize(Some(&value), None).unwrap();
    tensor
}

/// Whether a push of ones, with a step of one, changed this tensor, its state, and no neighbour.
fn trains(tensors: &[Arc<Tensor>], index: usize) {
    let one = |tensor: &Tensor| [1.0f32.to_le_bytes()].concat().repeat(tensor.spec().bytes() as usize / 4);
    let tensor = &tensors[index];
    let step = Settings([1.0, 0.5, 0.0, 0.0, 0.0]);
    tensor.push(Some(&one(tensor)), step, false, None).unwrap();
    let state = tensor.state(0, None).unwrap();
    assert!(state.chunks_exact(4).all(|four| four == 1.0f32.to_le_bytes()), "state of {index}");
    for (at, change) in [(index - 1, 0.0), (index, 1.0), (index + 1, 0.0)] {
        let mut out = vec![0; tensors[at].spec().bytes() as usize];
        tensors[at].pull_into(&mut out, None, None).unwrap();
        for (offset, four) in out.chunks_exact(4).enumerate() {
            let expected = (at + offset) as f32 - change;
            assert_eq!(f32::from_le_bytes(four.try_into().unwrap()), expected, "element {offset} of {at}");
        }
    }
}

fn declare_many(way: Way, count: u64, options: &[(&str, &str)]) -> (usize, usize, u64) {
    let cluster = Cluster::over(way, 1, 1, options);
    let job = cluster.join(0);
    let (mapped, open, memory) = (mappings(), descriptors(), resident());
    let tensors: Vec<Arc<Tensor>> = (0..count).map(|index| small(&job, index)).collect();
    let grown = (mappings().saturating_sub(mapped), descriptors().saturating_sub(open));
    let memory = resident().saturating_sub(memory);
    for index in [1, count as usize / 2, count as usize - 2] {
        trains(&tensors, index);
    }
    job.close(None).unwrap();
    (grown.0, grown.1, memory)
}

#[test]
fn thousands_of_small_tensors_take_a_few_mappings_and_descriptors() {
    for way in [Way::Memory, Way::Tcp] {
        let (mappings, descriptors, _) = declare_many(way, 2_000, &[]);
        assert!(mappings < 200, "{way:?}: {mappings} mappings");
        assert!(descriptors < 100, "{way:?}: {descriptors} descriptors");
    }
}

#[test]
fn small_tensors_of_two_workers_keep_their_lanes_apart() {
    for way in [Way::Memory, Way::Tcp, Way::Mixed] {
        let cluster = Cluster::over(way, 2, 2, &[]);
        let seen = cluster.run(|job| {
            let tensors: Vec<Arc<Tensor>> = (0..40)
                .map(|index| {
                    let mut declaration = Declaration::new(&format!("t{index}"), &[1 + index], Rule::Add);
                    declaration.spec.dtype = Dtype::F64;
                    declaration.consistency = Some(Bsp);
                    let tensor = job.declare(declaration).unwrap();
                    tensor.initialize(None, None).unwrap();
                    tensor
                })
                .collect();
            let mut seen = Vec::new();
            for tensor in &tensors {
                let value = f64::from(job.rank() + 1) * tensor.spec().bytes() as f64;
                let ones = vec![value; tensor.spec().bytes() as usize / 8];
                tensor.push(Some(&bytes(&ones)), NO_SETTINGS, false, None).unwrap();
            }
            job.clock().unwrap();
            for tensor in &tensors {
                let mut out = vec![0; tensor.spec().bytes() as usize];
                tensor.pull_into(&mut out, None, None).unwrap();
                assert!(numbers(&out).iter().all(|&sum| sum == 3.0 * tensor.spec().bytes() as f64));
                seen.extend(out);
            }
            seen
        });
        assert_eq!(seen[0], seen[1], "{way:?}");
    }
}

#[test]
#[ignore = "a measurement: see above"]
#[expect(clippy::print_stdout, reason = "what it measures")]
fn a_hundred_thousand_small_tensors() {
    for way in [Way::Memory, Way::Tcp] {
        let since = Instant::now();
        let options = [("memory", "8GiB"), ("deadline", "600")];
        let (mappings, descriptors, memory) = declare_many(way, 100_000, &options);
        println!(
            "{way:?}: {:.1} s, {mappings} mappings, {descriptors} descriptors, {} bytes a tensor in all",
            since.elapsed().as_secs_f64(),
            memory / 100_000
        );
    }
}
