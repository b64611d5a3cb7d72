//! General-purpose compressors behind the encodings, by how much of a contribution is zero, and who wins on which link.
//!
//! `cargo bench -p penstock-kernels --bench compress` prints a table in Markdown, the one of docs/filters.md.
//!
//! Work: one contribution of 256 KiB of float32, in chunks of 32 KiB, as a gradient has it: products of two normal numbers, in rows of
//! 256 whose sizes differ; so many of them zero, at random. Or all of them, in few bits, as `ps.Quantize` sends them.
//! Bytes are a part of the chunk. Times are ns for a byte of the chunk, there and back: encode, compress, decompress, decode; the least
//! of many runs. A chunk's cost on a link is its time and that of its bytes, one after the other; the cheapest wins, and the number
//! beside it is raw's cost by its own.
//! Limit: `raw`, whose encoding and decoding are a copy each.

#![allow(clippy::print_stdout, reason = "a table is what it makes")]

use penstock_kernels::Foreign;
use penstock_kernels::codec::{self, Base, Codec};
use penstock_kernels::compress::{Compressor, compress, decompress};
use std::hint::black_box;
use std::time::Instant;

const CHUNK: usize = 32 << 10;
const BYTES: usize = 256 << 10;
/// Of a thousand.
const ZEROS: [u64; 7] = [0, 500, 800, 900, 950, 990, 999];
/// Bits a second.
const LINKS: [(&str, f64); 3] = [("100 Mbit/s", 1e8), ("1 Gbit/s", 1e9), ("10 Gbit/s", 1e10)];
const RUNS: usize = 60;

/// Numbers that look random.
struct Draw(u64);

impl Draw {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// From 0 to 1, neither of them.
    fn unit(&mut self) -> f64 {
        (self.word() as f64 + 0.5) / (1_u64 << 31) as f64
    }

    fn normal(&mut self) -> f64 {
        let (size, turn) = (self.unit(), self.unit());
        (-2.0 * size.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
    }
}

fn gradient() -> Vec<f32> {
    let mut draw = Draw(1);
    let row = |at: usize| ((at / 256) as f64 * 0.7).sin().exp() * 1e-3;
    (0..BYTES / 4).map(|at| (draw.normal() * draw.normal() * row(at)) as f32).collect()
}

fn bytes_of(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// As the filter of that form sends them.
fn quantized(form: &str, numbers: &[f32]) -> Vec<u8> {
    let whole: Vec<f32> = match form {
        "f16" => numbers.iter().map(|&one| half::f16::from_f32(one).to_f32()).collect(),
        "bf16" => numbers.iter().map(|&one| half::bf16::from_f32(one).to_f32()).collect(),
        "int8" => numbers
            .chunks(256)
            .flat_map(|block| {
                let most = block.iter().fold(0.0_f32, |most, one| most.max(one.abs()));
                let step = (most / 127.49).log2().ceil().exp2();
                // Steps have no -0.0.
                block.iter().map(move |one| (one / step).round() * step + 0.0)
            })
            .collect(),
        "2bit" => {
            numbers.iter().map(|&one| if one.abs() < 1e-3 { 0.0 } else { 0.5_f32.copysign(one) }).collect()
        }
        _ => numbers
            .chunks(1024)
            .flat_map(|block| {
                let mean = block.iter().map(|one| one.abs()).sum::<f32>() / 1024.0;
                block.iter().map(move |&one| mean.copysign(one))
            })
            .collect(),
    };
    bytes_of(whole)
}

/// The least time that it takes, ns for a byte of the chunks.
fn least(mut work: impl FnMut()) -> f64 {
    let times = (0..RUNS).map(|_| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    });
    times.fold(f64::MAX, f64::min) * 1e9 / BYTES as f64
}

/// What part of the chunks travels, and what that takes, there and back.
type Cost = (f64, f64);

fn coded(codec: &dyn Codec, bytes: &[u8]) -> Option<(Vec<Vec<u8>>, f64)> {
    let mut out = vec![0; *codec.lengths(CHUNK).end()];
    let payloads: Option<Vec<Vec<u8>>> = bytes
        .chunks(CHUNK)
        .map(|chunk| {
            let length = codec.encode(Foreign::of(chunk), None, &mut out)?;
            Some(out[..length].to_vec())
        })
        .collect();
    let payloads = payloads?;
    let mut back = vec![0; CHUNK];
    for (chunk, payload) in bytes.chunks(CHUNK).zip(&payloads) {
        codec.decode(payload, Base::Zeros, &mut back).expect("what was encoded decodes");
        assert_eq!(back, chunk);
    }
    let encode = least(|| {
        bytes.chunks(CHUNK).for_each(|chunk| _ = black_box(codec.encode(Foreign::of(chunk), None, &mut out)));
    });
    let decode = least(|| {
        payloads.iter().for_each(|payload| _ = black_box(codec.decode(payload, Base::Zeros, &mut back)));
    });
    Some((payloads, encode + decode))
}

/// Behind a compressor; `None` where no chunk becomes shorter.
fn packed(by: Compressor, payloads: &[Vec<u8>], before: f64) -> Option<Cost> {
    let mut out = Vec::new();
    let each: Vec<Option<Vec<u8>>> = payloads
        .iter()
        .map(|payload| compress(by, payload, &mut out).map(|length| out[..length].to_vec()))
        .collect();
    let mut back = vec![0; CHUNK];
    for (payload, packed) in payloads.iter().zip(&each) {
        let Some(packed) = packed else { continue };
        decompress(by, packed, &mut back[..payload.len()]).expect("what was compressed decompresses");
        assert_eq!(&back[..payload.len()], payload);
    }
    each.iter().any(Option::is_some).then_some(())?;
    let there = least(|| payloads.iter().for_each(|payload| _ = black_box(compress(by, payload, &mut out))));
    let again = least(|| {
        for (payload, packed) in payloads.iter().zip(&each) {
            if let Some(packed) = packed {
                let _ = black_box(decompress(by, packed, &mut back[..payload.len()]));
            }
        }
    });
    let length = payloads.iter().zip(&each).map(|(payload, packed)| packed.as_ref().unwrap_or(payload).len());
    Some((length.sum::<usize>() as f64 / BYTES as f64, before + there + again))
}

fn codec(name: &str) -> &'static dyn Codec {
    codec::ALL.iter().find(|entry| entry.name == name).expect("there is such a codec").codec
}

/// A row of the table: all that was tried of one contribution, `raw` the first.
fn row(what: &str, codecs: &[(&'static str, &'static dyn Codec)], bytes: &[u8]) {
    let mut tried: Vec<(String, Cost)> = Vec::new();
    let mut cells = String::new();
    for &(name, codec) in codecs {
        let Some((payloads, takes)) = coded(codec, bytes) else {
            cells += " - | - | - |";
            continue;
        };
        let part = payloads.iter().map(Vec::len).sum::<usize>() as f64 / BYTES as f64;
        tried.push((name.to_owned(), (part, takes)));
        let mut cell = |cost: Option<Cost>| {
            cells +=
                &cost.map_or_else(|| " - |".to_owned(), |(part, takes)| format!(" {part:.4}, {takes:.2} |"));
        };
        cell(Some((part, takes)));
        for by in Compressor::ALL {
            let cost = packed(by, &payloads, takes);
            cell(cost);
            tried.extend(cost.map(|cost| (format!("{name}+{by}"), cost)));
        }
    }
    for (_, bits) in LINKS {
        let cost = |(part, takes): Cost| takes + part * 8e9 / bits;
        let best = tried.iter().min_by(|one, other| cost(one.1).total_cmp(&cost(other.1)));
        let (Some((name, least)), Some((_, raw))) = (best, tried.first()) else { continue };
        cells += &format!(" {name} {:.2} |", cost(*raw) / cost(*least));
    }
    println!("| {what} |{cells}");
}

fn main() {
    let numbers = gradient();
    let (raw, sparse) = (("raw", codec("raw")), ("sparse", codec("sparse32")));
    let links: Vec<&str> = LINKS.iter().map(|(name, _)| *name).collect();
    println!(
        "| zeros | raw | raw+lz4 | raw+zstd | sparse | sparse+lz4 | sparse+zstd | {} |",
        links.join(" | ")
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for zeros in ZEROS {
        let mut draw = Draw(2);
        let kept = numbers.iter().map(|&one| if draw.word() % 1000 < zeros { 0.0 } else { one });
        row(&format!("{} %", zeros as f64 / 10.0), &[raw, sparse], &bytes_of(kept));
    }
    println!("\n| form | raw | raw+lz4 | raw+zstd | form | form+lz4 | form+zstd | {} |", links.join(" | "));
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for form in ["f16", "bf16", "int8", "2bit", "1bit"] {
        let its = codec(&format!("{form} of float32"));
        row(form, &[raw, ("form", its)], &quantized(form, &numbers));
    }
}
