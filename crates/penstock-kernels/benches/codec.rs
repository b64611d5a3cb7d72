//! Codecs beside a copy of the chunk, by how much of it has changed.
//!
//! `cargo bench -p penstock-kernels --bench codec [-- FILTER]`, names are `temperature/what/codec/changed`.
//!
//! Work: one chunk of 32 KiB (`hot`), or 64 MiB in chunks of 256 KiB, none of which is in cache when its turn comes (`cold`), of
//! which so many elements, spread at random, differ from the base; or so many in rows of 64 (`rows`).
//! Bytes counted: the chunk's, whatever travels. What travels is printed beside: a part of the chunk, or `-` where the codec left
//! all to raw; then `encode` is what it took to find that out, which raw loses by having it tried first.
//! Limit: `copy`, the chunk copied by `copy_from_slice`. To encode is to read chunk and base, to decode to read and write the chunk.
//! Each variant is measured for float32 where it is hot, as `encode-generic` and so on.

#![allow(clippy::print_stdout, reason = "sizes are told beside the times")]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use penstock_kernels::codec::{self, Base, Codec, Entry, Sparse};
use penstock_kernels::{Arch, Foreign};

const HOT: usize = 32 << 10;
const COLD: usize = 64 << 20;
const CHUNK: usize = 256 << 10;
/// Elements that change, of a thousand.
const CHANGED: [u64; 10] = [0, 1, 10, 50, 100, 200, 400, 600, 900, 1000];
const ROW: usize = 64;

/// Values, what receivers hold of them, and where payloads go.
struct Case {
    chunk_bytes: usize,
    value: Vec<u8>,
    base: Vec<u8>,
    held: Vec<u8>,
    /// A chunk's, one behind the other.
    payloads: Vec<Vec<u8>>,
    out: Vec<u8>,
}

impl Case {
    fn new(bytes: usize, size: usize, changed: u64, row: usize) -> Self {
        let chunk_bytes = bytes.min(CHUNK);
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let base: Vec<u8> = (0..bytes).map(|_| next() as u8).collect();
        let mut value = base.clone();
        for row in value.chunks_mut(size * row) {
            if next() % 1000 < changed {
                row.iter_mut().for_each(|byte| *byte ^= 0x55);
            }
        }
        Self { chunk_bytes, held: base.clone(), value, base, payloads: Vec::new(), out: vec![0; chunk_bytes] }
    }

    fn chunks(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.value.chunks(self.chunk_bytes).zip(self.base.chunks(self.chunk_bytes))
    }

    /// Encodes all chunks; bytes of what travels, or `None` if all are left to raw.
    fn prepare(&mut self, codec: &dyn Codec) -> Option<usize> {
        let mut out = std::mem::take(&mut self.out);
        let mut encode = |(value, base): (&[u8], &[u8])| {
            let length = codec.encode(Foreign::of(value), Some(base), &mut out)?;
            Some(out[..length].to_vec())
        };
        let payloads: Vec<Option<Vec<u8>>> = self.chunks().map(&mut encode).collect();
        self.out = out;
        let paid = payloads.iter().any(Option::is_some);
        self.payloads = payloads.into_iter().map(Option::unwrap_or_default).collect();
        paid.then(|| self.payloads.iter().map(Vec::len).sum())
    }

    /// A bench first shows that it does the work it is timed for.
    fn check(&mut self, codec: &dyn Codec) {
        for (held, payload) in self.held.chunks_mut(self.chunk_bytes).zip(&self.payloads) {
            codec.decode(payload, Base::Held, held).expect("what was encoded decodes");
        }
        assert!(self.held == self.value);
        self.held.copy_from_slice(&self.base);
    }

    fn encode(&mut self, encode: impl Fn(&[u8], &[u8], &mut [u8]) -> Option<usize>) {
        let (values, bases) = (self.value.chunks(self.chunk_bytes), self.base.chunks(self.chunk_bytes));
        for (value, base) in values.zip(bases) {
            black_box(encode(black_box(value), base, &mut self.out));
        }
    }

    fn decode(&mut self, decode: impl Fn(&[u8], &mut [u8])) {
        for (held, payload) in self.held.chunks_mut(self.chunk_bytes).zip(&self.payloads) {
            decode(black_box(payload), held);
        }
    }

    fn copy(&mut self) {
        for (held, value) in self.held.chunks_mut(self.chunk_bytes).zip(self.value.chunks(self.chunk_bytes)) {
            held.copy_from_slice(black_box(value));
        }
    }
}

/// Of a codec, the bytes of its elements.
fn size(entry: &Entry) -> usize {
    match entry.name {
        "sparse16" => 2,
        "sparse64" => 8,
        _ => 4,
    }
}

fn per_cent(changed: u64) -> String {
    format!("{}%", changed as f64 / 10.0)
}

fn all(group: &mut BenchmarkGroup<'_, WallTime>, entry: &Entry, bytes: usize, row: usize) {
    let Entry { name, codec, .. } = *entry;
    for changed in CHANGED {
        let mut case = Case::new(bytes, size(entry), changed, row);
        group.throughput(Throughput::Bytes(bytes as u64));
        let travels = case.prepare(codec);
        let part =
            travels.map_or_else(|| "-".to_owned(), |travels| format!("{:.4}", travels as f64 / bytes as f64));
        println!("{name}, {} changed: {part} of {bytes} bytes travel", per_cent(changed));
        let id = |what: &str| BenchmarkId::new(format!("{what}/{name}"), per_cent(changed));
        group.bench_function(id("encode"), |b| {
            b.iter(|| case.encode(|value, base, out| codec.encode(Foreign::of(value), Some(base), out)))
        });
        if travels.is_some() && case.payloads.iter().all(|payload| !payload.is_empty()) {
            case.check(codec);
            // Each payload must find its base: so the same elements change forth and back, by two payloads in turn.
            let forth = case.payloads.clone();
            std::mem::swap(&mut case.value, &mut case.base);
            case.prepare(codec);
            std::mem::swap(&mut case.value, &mut case.base);
            let mut other = std::mem::replace(&mut case.payloads, forth);
            group.bench_function(id("decode"), |b| {
                b.iter(|| {
                    case.decode(|payload, held| {
                        codec.decode(payload, Base::Held, held).expect("it is what is held");
                    });
                    std::mem::swap(&mut case.payloads, &mut other);
                })
            });
        }
    }
}

fn variants(group: &mut BenchmarkGroup<'_, WallTime>) {
    for arch in Arch::ALL.into_iter().filter(|arch| arch.is_available()) {
        for changed in [10, 100, 400] {
            let mut case = Case::new(HOT, 4, changed, 1);
            case.prepare(&Sparse::<4>);
            let id =
                |what: &str| BenchmarkId::new(format!("{what}-{}/sparse32", arch.name()), per_cent(changed));
            group.bench_function(id("encode"), |b| {
                b.iter(|| {
                    case.encode(|value, base, out| {
                        Sparse::<4>.encode_on(arch, Foreign::of(value), Some(base), out).expect("available")
                    })
                })
            });
            group.bench_function(id("decode-zeros"), |b| {
                b.iter(|| {
                    case.decode(|payload, held| {
                        Sparse::<4>
                            .decode_on(arch, payload, Base::Zeros, held)
                            .expect("available")
                            .expect("it decodes");
                    })
                })
            });
        }
    }
}

fn sweep(c: &mut Criterion, temperature: &str, bytes: usize, samples: usize, row: usize) {
    let mut group = c.benchmark_group(temperature);
    group
        .sample_size(samples)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(250))
        .throughput(Throughput::Bytes(bytes as u64));
    let mut case = Case::new(bytes, 4, 0, 1);
    group.bench_function("copy", |b| b.iter(|| case.copy()));
    // Those of numbers that take few bits have none of these, and give up at once.
    let any = codec::ALL.iter().filter(|entry| entry.codec.uses_base() || entry.codec.is_verbatim());
    any.for_each(|entry| all(&mut group, entry, bytes, row));
    if row == 1 && bytes == HOT {
        variants(&mut group);
    }
    group.finish();
}

fn hot(c: &mut Criterion) {
    sweep(c, "hot", HOT, 20, 1);
}

fn rows(c: &mut Criterion) {
    sweep(c, "rows", HOT, 20, ROW);
}

fn cold(c: &mut Criterion) {
    sweep(c, "cold", COLD, 10, 1);
}

criterion_group!(benches, hot, rows, cold);
criterion_main!(benches);
