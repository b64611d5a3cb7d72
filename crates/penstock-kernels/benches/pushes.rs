//! A push through a filter, there and back, beside a copy of the same bytes.
//!
//! `cargo bench -p penstock-kernels --bench pushes [-- FILTER]`, names are `pushes/what/size, how much is held back`.
//!
//! Work: a contribution of float32, normally distributed, in chunks of 32 KiB.
//! - `select+encode`: a filter splits a chunk into what is sent and what is carried, and what is sent is encoded.
//! - `decode+apply`: a chunk is decoded over zeros, and SGD takes its step by it, as where one worker pushes.
//! - `decode-onto`: a chunk is decoded onto what a receiver holds of it, as a broadcast is.
//!
//! Sizes from what fits the second cache to what fits none. Before the figures of each size stands what part of it travels.
//! Bytes counted: the dense contribution's. One thread.
//! Limit: `copy`, the contribution copied by `copy_from_slice`.

#![allow(clippy::print_stdout, reason = "sizes are told beside the times")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use penstock_kernels::codec::{self, Base, Codec};
use penstock_kernels::filter::sums::{ALL, Coordinates, Pressure, SumFilter, empty};
use penstock_kernels::{ALIGNMENT, Dtype, Foreign, ForeignMut, Plan, Rule, Settings, apply};

const CHUNK: usize = 32 << 10;
const SIZES: [usize; 5] = [32 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20];
/// Bounds of numbers that are normally distributed, and the part of these that they hold back.
const BOUNDS: [(f64, &str); 5] =
    [(0.8416, "60%"), (1.2816, "80%"), (1.6449, "90%"), (1.9600, "95%"), (2.5758, "99%")];

fn filter(bound: f64) -> Arc<dyn SumFilter> {
    let entry = ALL.iter().find(|entry| entry.name == "DVF").expect("there is such a filter");
    let made = (entry.make)(Dtype::F32, &[bound, 0.0, 0.0, bound, 0.0]);
    made.expect("settings are in range").expect("it holds something back")
}

fn sparse() -> &'static dyn Codec {
    codec::ALL.iter().find(|entry| entry.name == "sparse32").expect("there is such a codec").codec
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

/// So much of `memory` that starts on a cache line, as chunks do.
fn aligned(memory: &mut [u8], size: usize) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    &mut memory[start..start + size]
}

/// A contribution, what is carried of it, and where a chunk of it is put together.
struct Sender {
    filter: Arc<dyn SumFilter>,
    carry: Vec<u8>,
    sent: Vec<u8>,
    out: Vec<u8>,
}

impl Sender {
    fn new(bound: f64, size: usize) -> Self {
        let mut carry = vec![0; size];
        empty(Dtype::F32, &mut carry);
        let out = vec![0; *sparse().lengths(CHUNK).end()];
        Self { filter: filter(bound), carry, sent: vec![0; CHUNK], out }
    }

    /// Hands each chunk's payload to `take`.
    fn send(&mut self, sum: &[u8], codec: &dyn Codec, mut take: impl FnMut(&[u8])) {
        for (at, (sum, carry)) in sum.chunks(CHUNK).zip(self.carry.chunks_mut(CHUNK)).enumerate() {
            let place = Coordinates { clock: 0, first: (at * CHUNK / 4) as u64, pressure: Pressure::NONE };
            self.filter.split(place, Foreign::of(sum), &mut ForeignMut::of(&mut self.sent), carry);
            let length = codec.encode(Foreign::of(&self.sent), None, &mut self.out);
            take(&self.out[..length.expect("three fifths and more are zero: it is shorter")]);
        }
    }
}

fn pushes(criterion: &mut Criterion) {
    let codec = sparse();
    let plan = Plan {
        dtype: Dtype::F32,
        rule: Rule::Sgd { momentum: false, nesterov: false, maximize: false },
        clip: None,
        refuse_nonfinite: false,
    };
    let settings = Settings([0.125, 0.0, 0.0, 0.0, 0.0]);
    for size in SIZES {
        let sum = numbers(size / 4);
        let mut memory = numbers((size + ALIGNMENT) / 4);
        let value = aligned(&mut memory, size);
        let label = format!("{}KiB", size >> 10);
        let mut group = criterion.benchmark_group("pushes");
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("copy", &label), |b| {
            b.iter(|| black_box(&mut *value).copy_from_slice(black_box(&sum)));
        });
        for (bound, part) in BOUNDS {
            let id = |what: &str| BenchmarkId::new(what, format!("{label}, {part}"));
            let mut sender = Sender::new(bound, size);
            let mut payloads: Vec<Vec<u8>> = Vec::new();
            sender.send(&sum, codec, |payload| payloads.push(payload.to_vec()));
            let travels: usize = payloads.iter().map(Vec::len).sum();
            println!("{part} held back: {:.4} of {size} bytes travel", travels as f64 / size as f64);

            group.bench_function(id("select+encode"), |b| {
                b.iter_custom(|rounds| {
                    let mut taken = Duration::ZERO;
                    for _ in 0..rounds {
                        // What is held back would grow from round to round.
                        empty(Dtype::F32, &mut sender.carry);
                        let begun = Instant::now();
                        sender.send(black_box(&sum), codec, |payload| _ = black_box(payload));
                        taken += begun.elapsed();
                    }
                    taken
                });
            });

            group.bench_function(id("decode+apply"), |b| {
                let mut memory = vec![0; CHUNK + ALIGNMENT];
                let lane = aligned(&mut memory, CHUNK);
                b.iter(|| {
                    for (payload, value) in payloads.iter().zip(value.chunks_mut(CHUNK)) {
                        codec.decode(black_box(payload), Base::Zeros, lane).expect("it decodes");
                        apply(&plan, &settings, 0, Foreign::of(lane), value, &mut []);
                    }
                });
            });

            // Each payload must find its base: so the same elements change forth and back.
            let changes = |from: &[u8], to: &[u8]| -> Vec<Vec<u8>> {
                let chunks = to.chunks(CHUNK).zip(from.chunks(CHUNK));
                let mut out = vec![0; *codec.lengths(CHUNK).end()];
                chunks
                    .map(|(to, from)| {
                        let length = codec.encode(Foreign::of(to), Some(from), &mut out);
                        out[..length.expect("two fifths and fewer change: it is shorter")].to_vec()
                    })
                    .collect()
            };
            let mut held = numbers(size / 4);
            let next: Vec<u8> = held
                .chunks(4)
                .zip(sum.chunks(4))
                .flat_map(|(held, sum)| {
                    let moves = f32::from_le_bytes(sum.try_into().expect("four")).abs() > bound as f32;
                    let bits = u32::from_le_bytes(held.try_into().expect("four"));
                    (if moves { bits ^ 0x0055_5555 } else { bits }).to_le_bytes()
                })
                .collect();
            let mut turns = [changes(&held, &next), changes(&next, &held)];
            group.bench_function(id("decode-onto"), |b| {
                b.iter(|| {
                    for (payload, held) in turns[0].iter().zip(held.chunks_mut(CHUNK)) {
                        codec.decode(black_box(payload), Base::Held, held).expect("it is what is held");
                    }
                    turns.swap(0, 1);
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = pushes
}
criterion_main!(benches);
