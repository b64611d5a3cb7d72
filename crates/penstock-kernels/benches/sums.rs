//! Filters of contributions beside a copy of the same bytes.
//!
//! `cargo bench -p penstock-kernels --bench sums [-- FILTER]`, names are `filter/size/what is held back`.
//!
//! Work: a contribution of float32, normally distributed, in chunks of 32 KiB, split into what is sent and what is carried, of
//! which there is nothing before. Sizes from what fits the second cache to what fits none.
//! Bytes counted: the dense contribution's.
//! Limit: `copy`, the contribution copied into the lane, which is what a push without a filter does.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use penstock_kernels::filter::sums::{ALL, Coordinates, Pressure, SumFilter, empty};
use penstock_kernels::{Dtype, Foreign, ForeignMut};

const CHUNK: usize = 32 << 10;
const SIZES: [usize; 4] = [32 << 10, 1 << 20, 8 << 20, 64 << 20];
/// Settings, by the filter's name: the part that they hold back of numbers that are normally distributed stands behind.
const CASES: [(&str, &[f64], &str); 13] = [
    ("DVF", &[0.8416, 0.0, 0.0, 0.8416, 0.0], "60%"),
    ("DVF", &[1.6449, 0.0, 0.0, 1.6449, 0.0], "90%"),
    ("DVF", &[2.5758, 0.0, 0.0, 2.5758, 0.0], "99%"),
    ("DVF", &[1.6449, 0.0, 1.0, 1.6449, 0.0], "90%-relative"),
    ("TopK", &[0.1], "90%"),
    ("TopK", &[0.01], "99%"),
    ("RandomK", &[0.1, 1.0], "90%"),
    ("RandomK", &[0.01, 1.0], "99%"),
    ("Quantize f16", &[], "rounded"),
    ("Quantize bf16", &[], "rounded"),
    ("Quantize int8", &[], "rounded"),
    ("Quantize 2bit", &[0.5], "rounded"),
    ("Quantize 1bit", &[], "rounded"),
];

fn filter(name: &str, settings: &[f64]) -> Arc<dyn SumFilter> {
    let entry = ALL.iter().find(|entry| entry.name == name).expect("there is such a filter");
    (entry.make)(Dtype::F32, settings).expect("settings are in range").expect("they hold something back")
}

/// Numbers from the sum of twelve that are equally distributed.
fn numbers(count: usize) -> Vec<u8> {
    let mut seed = 1_u64;
    let mut equal = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..count).flat_map(|_| ((0..12).map(|_| equal()).sum::<f32>() - 6.0).to_le_bytes()).collect()
}

fn split(filter: &dyn SumFilter, sum: &[u8], sent: &mut [u8], carry: &mut [u8]) {
    let parts = sum.chunks(CHUNK).zip(sent.chunks_mut(CHUNK)).zip(carry.chunks_mut(CHUNK));
    for (at, ((sum, sent), carry)) in parts.enumerate() {
        let place = Coordinates { clock: 0, first: (at * CHUNK / 4) as u64, pressure: Pressure::NONE };
        filter.split(place, Foreign::of(sum), &mut ForeignMut::of(sent), carry);
    }
}

fn sums(criterion: &mut Criterion) {
    for size in SIZES {
        let sum = numbers(size / 4);
        let mut sent = vec![0; size];
        let label = format!("{}KiB", size >> 10);
        let mut group = criterion.benchmark_group("copy");
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(&label), |b| {
            b.iter(|| black_box(&mut sent[..]).copy_from_slice(black_box(&sum)));
        });
        group.finish();
        for (name, settings, part) in CASES {
            let filter = filter(name, settings);
            let mut carry = vec![0; size];
            let mut group = criterion.benchmark_group(name);
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(BenchmarkId::new(&label, part), |b| {
                let mut timed = |rounds| {
                    let mut taken = Duration::ZERO;
                    for _ in 0..rounds {
                        // What is held back would grow from round to round.
                        empty(Dtype::F32, &mut carry);
                        let begun = Instant::now();
                        split(&*filter, black_box(&sum), black_box(&mut sent), &mut carry);
                        taken += begun.elapsed();
                    }
                    taken
                };
                b.iter_custom(&mut timed);
            });
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = sums
}
criterion_main!(benches);
