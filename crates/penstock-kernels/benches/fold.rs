//! Folds beside the least that the machine allows.
//!
//! `cargo bench -p penstock-kernels [-- FILTER]`, names are `temperature/rule/dtype/lanes/what`.
//!
//! Work: 1, 2, 4 and 8 lanes into one chunk of 32 KiB whose lanes, value and state stay in cache (`hot`), or into 64 MiB
//! cut in such chunks, none of which is in cache when its turn comes (`cold`).
//! Bytes counted: each lane read, value and state read and written.
//! Limits, from below:
//! - `copy`: the lanes copied over the value one after the other by `copy_from_slice`, and each state slot written once.
//! - `plain`: SGD over ordinary `&[f32]`, lanes unrolled at compile time, as the compiler vectorizes it for AVX-512.
//!
//! And the road not taken, `scratch`: 4 KiB of each lane copied into L1 by racing-safe loads, then `plain` over the copies.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use penstock_kernels::{ALIGNMENT, Arch, Dtype, Foreign, Plan, Rule, Settings, fold_on};

const CHUNK: usize = 32 << 10;
/// What fits L1 beside its neighbours.
const BLOCK: usize = 4 << 10;
const COLD: usize = 64 << 20;
const LANES: [usize; 4] = [1, 2, 4, 8];
const LR: f64 = 0.125;

const SGD: Rule = Rule::Sgd { momentum: false, nesterov: false, maximize: false };
const MOMENTUM: Rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
const ADAM: Rule = Rule::Adam { amsgrad: false, maximize: false };

/// Cache lines, so that what lies in them is aligned as chunks are.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read as the bytes it is")] [u8; ALIGNMENT]);

/// Memory that starts on a cache line, touched once.
struct Memory(Vec<Line>);

impl Memory {
    fn new(bytes: usize, pattern: &[u8]) -> Self {
        let mut line = [0; ALIGNMENT];
        line.chunks_mut(pattern.len()).for_each(|element| element.copy_from_slice(pattern));
        Self(vec![Line(line); bytes / ALIGNMENT])
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `Line` is 64 bytes of u8, without padding.
        unsafe { self.0.align_to::<u8>().1 }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `Line` is 64 bytes of u8, without padding.
        unsafe { self.0.align_to_mut::<u8>().1 }
    }
}

/// One case: its lanes, value and state.
struct Case {
    plan: Plan,
    settings: Settings,
    lanes: Vec<Memory>,
    value: Memory,
    state: Memory,
}

impl Case {
    fn new(rule: Rule, dtype: Dtype, lanes: usize, bytes: usize) -> Self {
        let settings = match rule {
            Rule::Adam { .. } => [LR, 0.9, 0.999, 1e-8, 0.0],
            Rule::Sgd { momentum: true, .. } => [LR, 0.5, 0.0, 0.0, 0.0],
            _ => [LR, 0.0, 0.0, 0.0, 0.0],
        };
        let one =
            if dtype == Dtype::F32 { 1_f32.to_le_bytes().to_vec() } else { bf16::ONE.to_le_bytes().to_vec() };
        let state = rule.slots().count() * bytes / dtype.size() * dtype.accumulator_size();
        Self {
            plan: Plan { dtype, rule, clip: None, refuse_nonfinite: false },
            settings: Settings(settings),
            lanes: (0..lanes).map(|_| Memory::new(bytes, &one)).collect(),
            value: Memory::new(bytes, &[0]),
            state: Memory::new(state, &[0]),
        }
    }

    /// Bytes that a fold must move.
    fn traffic(&self) -> u64 {
        let value = self.value.bytes().len();
        ((self.lanes.len() + 2) * value + 2 * self.state.bytes().len()) as u64
    }

    /// Folds every chunk in turn.
    fn fold(&mut self, arch: Arch, step: u64) {
        let Self { plan, settings, lanes, value, state } = self;
        let slots = plan.rule.slots().count();
        let state_chunk = CHUNK / plan.dtype.size() * plan.dtype.accumulator_size() * slots;
        let mut state = state.bytes_mut();
        let mut views = [Foreign::of(&[]); 8];
        for (index, value) in value.bytes_mut().chunks_mut(CHUNK).enumerate() {
            for (view, lane) in views.iter_mut().zip(&*lanes) {
                *view = Foreign::of(&lane.bytes()[index * CHUNK..][..CHUNK]);
            }
            let (now, rest) = state.split_at_mut(state_chunk);
            state = rest;
            let views = black_box(&views[..lanes.len()]);
            fold_on(arch, plan, settings, step, 1.0, views, value, now)
                .expect("available")
                .expect("unchecked");
        }
    }

    /// As many bytes in the same chunks, moved by the standard library's copy.
    fn copy(&mut self) {
        let Self { lanes, value, state, .. } = self;
        let state_chunk = state.bytes().len() / (value.bytes().len() / CHUNK);
        for (index, value) in value.bytes_mut().chunks_mut(CHUNK).enumerate() {
            for lane in &*lanes {
                black_box(&mut *value).copy_from_slice(&lane.bytes()[index * CHUNK..][..CHUNK]);
            }
            let state = &mut state.bytes_mut()[index * state_chunk..][..state_chunk];
            for slot in state.chunks_mut(CHUNK) {
                slot.copy_from_slice(black_box(&*value));
            }
        }
    }

    /// A bench first shows that it does the work it is timed for: the first step from zero with gradients of one.
    fn assert_answer(&mut self, arch: Arch) {
        self.value.bytes_mut().fill(0);
        self.state.bytes_mut().fill(0);
        self.fold(arch, 0);
        let lanes = self.lanes.len() as f64;
        let expected = if self.plan.rule == ADAM { -LR } else { -LR * lanes };
        let last = &self.value.bytes()[self.value.bytes().len() - self.plan.dtype.size()..];
        let got = match self.plan.dtype {
            Dtype::F32 => f32::from_le_bytes(last.try_into().unwrap()).into(),
            _ => bf16::from_le_bytes(last.try_into().unwrap()).to_f64(),
        };
        assert!((got - expected).abs() < 1e-6, "expected {expected}, got {got}");
    }
}

/// SGD as anyone would write it over memory that stands still.
///
/// # Safety
///
/// On x86-64 the processor must have AVX-512F.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f"))]
unsafe fn plain_sgd<const N: usize>(lanes: [&[f32]; N], value: &mut [f32]) {
    let lanes = lanes.map(|lane| &lane[..value.len()]);
    for i in 0..value.len() {
        let mut sum = lanes[0][i];
        for lane in &lanes[1..] {
            sum += lane[i];
        }
        value[i] -= LR as f32 * sum;
    }
}

fn plain<const N: usize>(case: &mut Case) {
    for (index, value) in case.value.bytes_mut().chunks_mut(CHUNK).enumerate() {
        let lanes: [&[f32]; N] =
            std::array::from_fn(|lane| floats(&case.lanes[lane].bytes()[index * CHUNK..][..CHUNK]));
        // SAFETY: only called where AVX-512 was found.
        unsafe { plain_sgd(black_box(lanes), floats_mut(value)) };
    }
}

fn scratch<const N: usize>(case: &mut Case) {
    let mut copies: [Memory; N] = std::array::from_fn(|_| Memory::new(BLOCK, &[0]));
    for (index, value) in case.value.bytes_mut().chunks_mut(BLOCK).enumerate() {
        for (copy, lane) in copies.iter_mut().zip(&case.lanes) {
            Foreign::of(&lane.bytes()[index * BLOCK..][..BLOCK]).copy_to(copy.bytes_mut());
        }
        let lanes: [&[f32]; N] = std::array::from_fn(|lane| floats(copies[lane].bytes()));
        // SAFETY: only called where AVX-512 was found.
        unsafe { plain_sgd(black_box(lanes), floats_mut(value)) };
    }
}

fn floats(bytes: &[u8]) -> &[f32] {
    // SAFETY: any bytes are f32s, and cache lines are aligned for them.
    unsafe { bytes.align_to().1 }
}

fn floats_mut(bytes: &mut [u8]) -> &mut [f32] {
    // SAFETY: as in `floats`.
    unsafe { bytes.align_to_mut().1 }
}

type Peer = (&'static str, fn(&mut Case));

/// The plain loop and its copying sibling, where they apply: f32 with SGD, on a machine with AVX-512.
fn peers(case: &Case) -> Option<[Peer; 2]> {
    let applies = Arch::Avx512.is_available() && case.plan.rule == SGD && case.plan.dtype == Dtype::F32;
    fn both<const N: usize>() -> [Peer; 2] {
        [("plain", plain::<N>), ("scratch", scratch::<N>)]
    }
    applies.then(|| match case.lanes.len() {
        1 => both::<1>(),
        2 => both::<2>(),
        4 => both::<4>(),
        _ => both::<8>(),
    })
}

fn case(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    rule: Rule,
    dtype: Dtype,
    lanes: usize,
    bytes: usize,
) {
    let mut case = Case::new(rule, dtype, lanes, bytes);
    group.throughput(Throughput::Bytes(case.traffic()));
    for arch in Arch::ALL.into_iter().filter(|arch| arch.is_available()) {
        case.assert_answer(arch);
        let id = BenchmarkId::new(format!("{name}/{}/{lanes}", dtype.name()), arch.name());
        let mut step = 1;
        group.bench_function(id, |b| {
            b.iter(|| {
                case.fold(arch, step);
                step += 1;
            })
        });
    }
    let id = BenchmarkId::new(format!("{name}/{}/{lanes}", dtype.name()), "copy");
    group.bench_function(id, |b| b.iter(|| case.copy()));
    for (peer, run) in peers(&case).into_iter().flatten() {
        case.value.bytes_mut().fill(0);
        run(&mut case);
        assert_eq!(floats(case.value.bytes())[CHUNK / 8], -LR as f32 * lanes as f32);
        let id = BenchmarkId::new(format!("{name}/{}/{lanes}", dtype.name()), peer);
        group.bench_function(id, |b| b.iter(|| run(&mut case)));
    }
}

fn folds(c: &mut Criterion, temperature: &str, bytes: usize, samples: usize) {
    let mut group = c.benchmark_group(temperature);
    group
        .sample_size(samples)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500));
    for (name, rule) in [("sgd", SGD), ("momentum", MOMENTUM), ("adam", ADAM)] {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            for lanes in LANES {
                case(&mut group, name, rule, dtype, lanes, bytes);
            }
        }
    }
    group.finish();
}

fn hot(c: &mut Criterion) {
    folds(c, "hot", CHUNK, 50);
}

fn cold(c: &mut Criterion) {
    folds(c, "cold", COLD, 10);
}

criterion_group!(benches, hot, cold);
criterion_main!(benches);
