//! The same contributions give the same bits, whatever the threads that start servers and workers have been through.

mod common;

use common::Cluster;
use penstock::worker::{Declaration, Job};
use penstock_kernels::{Dtype, Rule, Settings};
use penstock_proto::consistency::Consistency::Bsp;

const ELEMENTS: u64 = 3000;
const ITERATIONS: u32 = 6;

/// Numbers around 0.001, every other one of them denormal: made of bits, so that it does not matter under
/// what word they are made.
fn gradient(rank: u32, iteration: u32) -> Vec<u8> {
    let bits = |n: u32| {
        let mantissa = n.wrapping_mul(0x9E37_79B9) >> 9;
        if n.is_multiple_of(2) { mantissa } else { 0x3a80_0000 | mantissa }
    };
    (0..ELEMENTS as u32).flat_map(|n| bits(n + 1000 * rank + iteration).to_le_bytes()).collect()
}

fn train(job: &Job, rule: Rule, settings: [f64; 5]) -> Vec<u8> {
    let mut declaration = Declaration::new(rule.name(), &[ELEMENTS], rule);
    declaration.spec.dtype = Dtype::F32;
    declaration.spec.rescale = 1.0 / 3.0;
    declaration.consistency = Some(Bsp);
    let tensor = job.declare(declaration).unwrap();
    tensor.initialize(Some(&gradient(7, 7)), None).unwrap();
    let mut value = vec![0; tensor.spec().bytes() as usize];
    for iteration in 0..ITERATIONS {
        tensor.pull_into(&mut value, None, None).unwrap();
        // The first half is added to in the worker's own thread.
        tensor.push(Some(&gradient(job.rank(), iteration)), Settings(settings), true, None).unwrap();
        tensor.push(Some(&gradient(1, iteration)), Settings(settings), false, None).unwrap();
        job.clock().unwrap();
    }
    tensor.pull_into(&mut value, None, None).unwrap();
    value
}

fn trained() -> Vec<Vec<u8>> {
    let cluster = Cluster::new(2, 1, &[]);
    let results = cluster.run(|job| {
        let sum = train(job, Rule::Add, [0.0; 5]);
        let adam = Rule::Adam { amsgrad: false, maximize: false };
        [sum, train(job, adam, [1e-3, 0.9, 0.999, 1e-8, 0.01])]
    });
    results.into_iter().flatten().collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_control_word_that_servers_and_workers_inherit_changes_no_bit() {
    use std::arch::asm;
    let expected = trained();
    assert!(expected[0].iter().any(|&byte| byte != 0));
    let got = std::thread::spawn(|| {
        // Denormals are zero, results are flushed to zero, rounding is towards zero; all else as it is by default.
        let word = 0x1f80_u32 | 0x8000 | 0x0040 | 0x6000;
        // SAFETY: loads the thread's control word from `word`. This thread, and those that it starts, compute with no
        // floating-point numbers but through the kernels, which is the point.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
        trained()
    });
    assert!(got.join().unwrap() == expected, "other bits");
}
