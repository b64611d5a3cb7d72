//! Seals of a batch, made by its home and checked by a receiver, beside what else is done with the same bytes.
//!
//! `cargo bench -p penstock-proto --bench seal [-- FILTER]`, names are `frames x bytes/what`.
//!
//! Work: a batch of 8 frames of 32 KiB, of 16 of 4 KiB, or one frame that says that versions have risen and has no payload; all hot in
//! cache. `seal` is a leaf for each frame and one signature; `check` what a receiver does: each frame's leaf, its way to the root,
//! and the signature, once.
//! Bytes counted: the payloads'.
//! Limit: every byte is read once, as `xxh3` does for the checksum that each frame has anyway; `copy` copies them. `sha256` is the
//! hash that `ring` has, which was the other choice.

use std::hint::black_box;
use std::iter;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock_proto::checksum;
use penstock_proto::frame::{Body, Header, Notice};
use penstock_proto::seal::{Leaf, Scope, Sealer, Verifier};

const SCOPE: Scope = Scope { job: 1, server: 0, shard: 0 };
/// More than a receiver keeps verified roots of: when a batch comes again, its signature has to be verified once more.
const BATCHES: u64 = 100;

/// A batch: the headers of its frames, and their proofs.
struct Batch {
    headers: Vec<Header>,
    proofs: Vec<Vec<u8>>,
}

impl Batch {
    fn new(sealer: &Sealer, payloads: &[Vec<u8>], version: u64) -> Self {
        let (tensor, steps) = (1, version);
        let headers: Vec<Header> = (0u32..)
            .zip(payloads)
            .map(|(chunk, payload)| {
                let notice = if payload.is_empty() {
                    Notice::Raised { tensor, chunk, count: 9, version, steps, contents: [version, 1, 2, 3] }
                } else {
                    let (publication, content) = (version, version);
                    Notice::Value { tensor, chunk, version, steps, publication, base: 0, content }
                };
                Header::bare(SCOPE.job, 0, Body::Notice(notice)).with_payload(payload)
            })
            .collect();
        let mut batch = Self { headers, proofs: Vec::new() };
        sealer.seal(&batch.leaves(sealer, payloads), |_, proof| batch.proofs.push(proof.to_vec()));
        batch
    }

    fn leaves(&self, sealer: &Sealer, payloads: &[Vec<u8>]) -> Vec<Leaf> {
        self.headers.iter().zip(payloads).map(|(header, payload)| sealer.leaf(header, payload)).collect()
    }

    fn check(&self, verifier: &mut Verifier, payloads: &[Vec<u8>]) -> bool {
        let frames = iter::zip(&self.proofs, &self.headers).zip(payloads);
        frames.map(|((proof, header), payload)| verifier.check(proof, header, payload)).all(|it| it.is_ok())
    }
}

fn seal(criterion: &mut Criterion) {
    let sealer = Sealer::new(&[7; 32], SCOPE);
    let mut verifier = Verifier::new(&sealer.key(), SCOPE).expect("it is a sealer's");
    for (frames, bytes, name) in [(8, 32 << 10, "8x32KiB"), (16, 4 << 10, "16x4KiB"), (1, 0, "1xraised")] {
        let mut payloads = vec![vec![0u8; bytes]; frames];
        for (byte, value) in payloads.iter_mut().flatten().zip((0u64..).map(|n| n * n % 251)) {
            *byte = value as u8;
        }
        let batches: Vec<Batch> =
            (1..=BATCHES).map(|version| Batch::new(&sealer, &payloads, version)).collect();

        // A bench first shows that it does the work it is timed for.
        assert!(batches.iter().all(|batch| batch.check(&mut verifier, &payloads)));
        let mut changed = payloads.clone();
        if let Some(byte) = changed[frames - 1].last_mut() {
            *byte ^= 1;
            assert!(!batches[0].check(&mut verifier, &changed));
        }

        let mut group = criterion.benchmark_group(name);
        if bytes > 0 {
            group.throughput(Throughput::Bytes((frames * bytes) as u64));
            let mut copy = payloads.clone();
            group.bench_function("copy", |bencher| {
                bencher.iter(|| {
                    iter::zip(&mut copy, black_box(&payloads))
                        .for_each(|(to, from)| to.copy_from_slice(from));
                    black_box(&mut copy);
                });
            });
            group.bench_function("xxh3", |bencher| {
                bencher
                    .iter(|| black_box(&payloads).iter().fold(0, |sum, payload| sum ^ checksum::of(payload)));
            });
            group.bench_function("sha256", |bencher| {
                bencher.iter(|| {
                    for payload in black_box(&payloads) {
                        black_box(ring::digest::digest(&ring::digest::SHA256, payload));
                    }
                });
            });
            group.bench_function("leaves", |bencher| {
                bencher.iter(|| batches[0].leaves(&sealer, black_box(&payloads)));
            });
        }
        let mut turn = batches.iter().cycle();
        group.bench_function("seal", |bencher| {
            bencher.iter(|| {
                let batch = turn.next().expect("it has no end");
                let leaves = batch.leaves(&sealer, black_box(&payloads));
                sealer.seal(&leaves, |_, proof| {
                    black_box(proof);
                });
            });
        });
        group.bench_function("check", |bencher| {
            bencher.iter(|| {
                let batch = turn.next().expect("it has no end");
                assert!(batch.check(&mut verifier, black_box(&payloads)));
            });
        });
        group.finish();
    }
}

criterion_group!(benches, seal);
criterion_main!(benches);
