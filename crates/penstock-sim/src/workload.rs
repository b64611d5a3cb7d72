//! What the workers do, and the values that must come of it.
//!
//! A workload is a function of its own seed and of nothing else: not of chunk sizes, servers, shards, nor of what happens on
//! the links. So two runs of one workload must, under BSP, come to the same bits.

use crate::marks::Marks;
use crate::rng::{Rng, hash};
use crate::shard_memory::Aligned;
use half::{bf16, f16};
use penstock_kernels::{Dtype, Factors, Foreign, Rule, Settings, product, widen};
use penstock_proto::consistency::Consistency;
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::travel::Travel;
use penstock_proto::{Rank, TensorId};

/// What contributions are made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Each says which worker made it and when; read back by the checkers.
    Marked(Marks),
    /// Gradients, computed from what was pulled: an error anywhere spreads.
    Descent,
}

/// What a worker pushes of a tensor in an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Nothing.
    None,
    /// Some of its chunks.
    Part,
    /// All of it.
    Whole,
}

/// A contribution that is the product of two factors, in the tensor's dtype.
#[derive(Debug, Clone, PartialEq)]
pub struct Thin {
    /// Columns of the left one, and rows of the right one.
    pub rank: u32,
    /// The left one.
    pub u: Vec<u8>,
    /// The right one.
    pub v: Vec<u8>,
}

impl Thin {
    /// All of the product.
    fn whole(&self, spec: &TensorSpec) -> Vec<u8> {
        let mut wide = vec![0; self.u.len() / spec.dtype.size() * spec.dtype.accumulator_size()];
        widen(spec.dtype, &self.u, &mut wide);
        let (columns, rank) = (spec.shape[1] as usize, self.rank as usize);
        let mut out = vec![0; spec.bytes() as usize];
        product(spec.dtype, Factors { u: &wide, v: &self.v, columns, rank }, 0, &mut out);
        out
    }
}

/// A tensor of the workload.
#[derive(Debug, Clone)]
pub struct TensorPlan {
    /// Its declaration.
    pub spec: TensorSpec,
    /// The optimizer's numbers, in the first iteration.
    pub settings: Settings,
    /// The clock at which each worker declares it.
    pub declared_at: u64,
    /// Whether worker 0 declares it as zeros, instead of giving a value.
    pub starts_at_zero: bool,
    /// Whether nobody contributes to it: worker 0 loads it again and again while others read it.
    pub is_loaded: bool,
}

/// What the workers of a job do.
#[derive(Debug, Clone)]
pub struct Workload {
    seed: u64,
    /// What contributions are made of.
    pub kind: Kind,
    /// Iterations of a worker that stays to the end.
    pub iterations: u64,
    /// The clock at which each worker leaves.
    pub leaves_at: Vec<u64>,
    /// The tensors.
    pub tensors: Vec<TensorPlan>,
    /// Whether some pulls are of some chunks alone.
    pub gathers: bool,
}

const PUSHES: u64 = 1;
const PULLS: u64 = 2;
const PULLS_AGAIN: u64 = 3;
const SLACK: u64 = 4;
const TARGET: u64 = 5;
const START: u64 = 6;
const MEETS: u64 = 7;
const LOADS: u64 = 8;
const LOADS_TOGETHER: u64 = 9;
const SKIPS: u64 = 10;
const FACTORS: u64 = 11;
const LEFT: u64 = 12;
const RIGHT: u64 = 13;
const GATHERS: u64 = 14;

/// So far apart are the elements of one load from those of the next: each has a number of its own in `f32`, too.
const BETWEEN_LOADS: u64 = 4096;

impl Workload {
    /// Marked contributions to tensors of every consistency.
    pub fn marked(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (workers, iterations) = (rng.within(1..=5) as u32, rng.within(2..=8));
        let mut workload = Self::empty(seed, workers, iterations, &mut rng);
        workload.kind = Kind::Marked(Marks::new(workers, iterations));
        for id in 0..rng.within(1..=3) {
            let spec = TensorSpec {
                dtype: Dtype::F64,
                rule: Rule::Add,
                consistency: any_consistency(&mut rng),
                ..spec(id, vec![8, rng.within(1..=220)])
            };
            let declared_at = workload.some_declaration(id, &mut rng);
            workload.tensors.push(TensorPlan {
                spec,
                settings: Settings::NONE,
                declared_at,
                starts_at_zero: true,
                is_loaded: false,
            });
        }
        workload
    }

    /// Gradient descent by `workers` workers with every rule and dtype, under `consistency` or any.
    pub fn descent(seed: u64, workers: u32, consistency: Option<Consistency>) -> Self {
        let mut rng = Rng::new(seed);
        let iterations = rng.within(2..=6);
        let mut workload = Self::empty(seed, workers, iterations, &mut rng);
        for id in 0..rng.within(1..=3) {
            let (rule, settings) = any_rule(&mut rng);
            let spec = TensorSpec {
                dtype: rng.pick(&Dtype::ALL),
                rule,
                consistency: consistency.unwrap_or_else(|| any_consistency(&mut rng)),
                reduce: rng.pick(&[Reduce::Sum, Reduce::Mean]),
                clip: rng.pick(&[None, None, Some(0.25)]),
                rescale: rng.pick(&[1.0, 0.5]),
                ..spec(id, vec![rng.within(1..=3), rng.within(1..=1500)])
            };
            let declared_at = workload.some_declaration(id, &mut rng);
            let starts_at_zero = rng.once_in(4);
            workload.tensors.push(TensorPlan {
                spec,
                settings,
                declared_at,
                starts_at_zero,
                is_loaded: false,
            });
        }
        workload
    }

    /// The same, with one tensor more, behind the others, to which nobody contributes: worker 0 loads it again and again.
    #[must_use]
    pub fn with_loads(mut self) -> Self {
        let mut rng = Rng::new(self.seed ^ 0x10ad5);
        let id = self.tensors.len() as u64;
        let spec = TensorSpec {
            dtype: rng.pick(&[Dtype::F32, Dtype::F64]),
            consistency: any_consistency(&mut rng),
            ..spec(id, vec![8 * rng.within(1..=BETWEEN_LOADS / 8)])
        };
        let declared_at = self.some_declaration(id, &mut rng);
        let starts_at_zero = rng.once_in(3);
        let settings = Settings::NONE;
        self.tensors.push(TensorPlan { spec, settings, declared_at, starts_at_zero, is_loaded: true });
        self
    }

    /// The same, in which workers pull some chunks alone: some of them of each tensor in no other way, the others now and then.
    #[must_use]
    pub fn with_gathers(self) -> Self {
        Self { gathers: true, ..self }
    }

    fn empty(seed: u64, workers: u32, iterations: u64, rng: &mut Rng) -> Self {
        let leave = |rank| if rank > 0 && rng.once_in(4) { rng.within(0..=iterations) } else { iterations };
        let leaves_at = (0..workers).map(leave).collect();
        Self { seed, kind: Kind::Descent, iterations, leaves_at, tensors: Vec::new(), gathers: false }
    }

    fn some_declaration(&self, id: u64, rng: &mut Rng) -> u64 {
        if id > 0 && rng.once_in(3) { rng.within(0..=self.iterations - 1) } else { 0 }
    }

    /// Whether there is a barrier in front of this iteration.
    pub fn meets(&self, clock: u64) -> bool {
        hash(&[self.seed, MEETS, clock]).is_multiple_of(3)
    }

    /// Numbers of the barriers of an iteration: the one in front of it, and those before and behind loads in it.
    pub fn barriers(clock: u64) -> [u64; 3] {
        [0, 1, 2].map(|which| 3 * clock + which)
    }

    /// How many workers there are.
    pub fn workers(&self) -> u32 {
        self.leaves_at.len() as u32
    }

    /// The tensor's declaration.
    pub fn spec(&self, tensor: TensorId) -> &TensorSpec {
        &self.tensors[tensor as usize].spec
    }

    /// Numbers of the tensors.
    pub fn ids(&self) -> std::ops::Range<TensorId> {
        0..self.tensors.len() as TensorId
    }

    fn draw(&self, what: u64, rank: Rank, tensor: TensorId, iteration: u64) -> u64 {
        hash(&[self.seed, what, u64::from(rank), u64::from(tensor), iteration])
    }

    /// What `rank` pushes of `tensor` in `iteration`.
    pub fn share(&self, rank: Rank, tensor: TensorId, iteration: u64) -> Share {
        let TensorPlan { declared_at, is_loaded, .. } = self.tensors[tensor as usize];
        let declared = declared_at <= iteration;
        match self.draw(PUSHES, rank, tensor, iteration) % 8 {
            _ if !declared || is_loaded => Share::None,
            0 => Share::None,
            1 | 2 if matches!(self.kind, Kind::Marked(_)) => Share::Part,
            _ => Share::Whole,
        }
    }

    /// Whether `rank`, which pushes a part of `tensor` in `iteration`, skips the rest, instead of leaving it to its clock.
    pub fn skips(&self, rank: Rank, tensor: TensorId, iteration: u64) -> bool {
        let part = self.share(rank, tensor, iteration) == Share::Part;
        part && self.draw(SKIPS, rank, tensor, iteration).is_multiple_of(2)
    }

    /// Whether `rank` says of every chunk of `tensor` what it has for it in `iteration`.
    pub fn tells_all(&self, rank: Rank, tensor: TensorId, iteration: u64) -> bool {
        self.share(rank, tensor, iteration) == Share::Whole || self.skips(rank, tensor, iteration)
    }

    /// Whether `rank` pulls `tensor` at the start of `iteration`.
    pub fn pulls(&self, rank: Rank, tensor: TensorId, iteration: u64) -> bool {
        let declared = self.tensors[tensor as usize].declared_at <= iteration;
        declared && !self.draw(PULLS, rank, tensor, iteration).is_multiple_of(4)
    }

    /// Whether `rank` pulls `tensor` at the end of `iteration`, when all is pushed, and with which slack of its own.
    ///
    /// Such a pull waits for this iteration's updates of the others, which may at that moment wait for ours: it is made only
    /// where slack allows, where all push or where nobody does, as a program must see to.
    pub fn pulls_again(&self, rank: Rank, tensor: TensorId, iteration: u64) -> Option<Option<u32>> {
        let declared = self.tensors[tensor as usize].declared_at <= iteration;
        let wanted = self.draw(PULLS_AGAIN, rank, tensor, iteration).is_multiple_of(3);
        let slack = match self.draw(SLACK, rank, tensor, iteration) % 6 {
            slack @ 0..3 => Some(slack as u32),
            _ => None,
        };
        let TensorSpec { consistency, propagation, .. } = *self.spec(tensor);
        let effective = propagation.slack(slack.or_else(|| consistency.slack()), self.workers());
        let all_push = || {
            let here = (0..self.workers()).filter(|&rank| self.leaves_at[rank as usize] > iteration);
            here.into_iter().all(|rank| self.tells_all(rank, tensor, iteration))
        };
        let waits_for_none = effective != Some(0) || self.is_loaded(tensor);
        (declared && wanted && (waits_for_none || all_push())).then_some(slack)
    }

    /// Whether the pull that `rank` makes of `tensor` in its `step` is of some chunks alone.
    pub fn gathers(&self, rank: Rank, tensor: TensorId, step: u64) -> bool {
        let always = || self.draw(GATHERS, rank, tensor, 0).is_multiple_of(3);
        self.gathers && (always() || self.draw(GATHERS, rank, tensor, step).is_multiple_of(2))
    }

    /// Whether nobody contributes to the tensor, which is loaded instead.
    pub fn is_loaded(&self, tensor: TensorId) -> bool {
        self.tensors[tensor as usize].is_loaded
    }

    /// How often `rank` loads `tensor` in `iteration`, before it reads and contributes or `late`, behind that.
    pub fn loads(&self, rank: Rank, tensor: TensorId, iteration: u64, late: bool) -> u64 {
        let TensorPlan { declared_at, is_loaded, .. } = self.tensors[tensor as usize];
        if rank != 0 || !is_loaded || declared_at > iteration {
            return 0;
        }
        match self.draw(LOADS, u32::from(late), tensor, iteration) % 6 {
            0 | 1 => 1,
            2 => 2,
            _ => 0,
        }
    }

    /// Whether all workers meet before and behind the first loads of `iteration`, as they do in a program that loads a tensor.
    pub fn loads_together(&self, tensor: TensorId, iteration: u64) -> bool {
        let together = self.draw(LOADS_TOGETHER, 0, tensor, iteration).is_multiple_of(2);
        together && self.loads(0, tensor, iteration, false) > 0
    }

    /// What load number `load` writes: it can be read back out of every element.
    pub fn loaded(&self, tensor: TensorId, load: u64) -> Vec<u8> {
        let TensorPlan { spec, starts_at_zero, .. } = &self.tensors[tensor as usize];
        let number = |element| match load {
            0 if *starts_at_zero => 0.0,
            _ => (load * BETWEEN_LOADS + element) as f64,
        };
        encode(spec.dtype, (0..elements(spec)).map(number))
    }

    /// The optimizer's numbers in `iteration`: the rate falls once, on every worker in the same way.
    pub fn settings(&self, tensor: TensorId, iteration: u64) -> Settings {
        let mut settings = self.tensors[tensor as usize].settings;
        if iteration >= self.iterations / 2 {
            settings.0[0] *= 0.5;
        }
        settings
    }

    /// The tensor's first value, if worker 0 gives one.
    pub fn start(&self, tensor: TensorId) -> Option<Vec<u8>> {
        let TensorPlan { spec, starts_at_zero, is_loaded, .. } = &self.tensors[tensor as usize];
        if *is_loaded {
            return (!starts_at_zero).then(|| self.loaded(tensor, 0));
        }
        let number = |element| unit(hash(&[self.seed, START, u64::from(tensor), element]));
        (!starts_at_zero).then(|| encode(spec.dtype, (0..elements(spec)).map(number)))
    }

    /// What `rank` contributes in `iteration`, having `seen` this value (or none).
    pub fn contribution(&self, rank: Rank, tensor: TensorId, iteration: u64, seen: Option<&[u8]>) -> Vec<u8> {
        let spec = self.spec(tensor);
        if let Some(thin) = self.factors(rank, tensor, iteration, seen) {
            return thin.whole(spec);
        }
        match self.kind {
            Kind::Marked(marks) => {
                encode(spec.dtype, marks.contribution(rank, iteration, elements(spec)).into_iter())
            }
            Kind::Descent => self.gradient(rank, tensor, iteration, seen),
        }
    }

    /// The factors of that, if it is a product of two: of one in four, where it is no longer than half the product.
    pub fn factors(&self, rank: Rank, tensor: TensorId, iteration: u64, seen: Option<&[u8]>) -> Option<Thin> {
        let spec = self.spec(tensor);
        let &[rows, columns] = &spec.shape[..] else { return None };
        let drawn = self.draw(FACTORS, rank, tensor, iteration);
        if self.is_loaded(tensor) || !drawn.is_multiple_of(4) {
            return None;
        }
        let (of, u, v): (u64, Vec<f64>, Vec<f64>) = match self.kind {
            Kind::Marked(marks) => {
                // What is contributed anyway: the marks of a row begin at any of so many places.
                let places = marks.groups();
                let begins = |row: u64, place| if row * columns % places == place { 1.0 } else { 0.0 };
                let u = (0..rows).flat_map(|row| (0..places).map(move |place| begins(row, place)));
                let all = marks.contribution(rank, iteration, columns + places);
                let v = (0..places).flat_map(|place| all[place as usize..].iter().take(columns as usize));
                (places, u.collect(), v.copied().collect())
            }
            Kind::Descent => {
                let of = 1 + drawn / 4 % 3;
                let seen = seen.map(|bytes| decode(spec.dtype, bytes).collect::<Vec<f64>>());
                let left = |number: u64| {
                    let at = seen.as_ref().map_or(0.0, |seen| seen[(number / of * columns) as usize]);
                    0.5 * (at.clamp(-1.0, 1.0) - unit(hash(&[drawn, LEFT, number])))
                };
                let right = |number| 0.5 * unit(hash(&[drawn, RIGHT, number]));
                (of, (0..rows * of).map(left).collect(), (0..of * columns).map(right).collect())
            }
        };
        let encoded = |numbers: Vec<f64>| encode(spec.dtype, numbers.into_iter());
        (2 * of <= columns).then(|| Thin { rank: of as u32, u: encoded(u), v: encoded(v) })
    }

    fn gradient(&self, rank: Rank, tensor: TensorId, iteration: u64, seen: Option<&[u8]>) -> Vec<u8> {
        let spec = self.spec(tensor);
        let seen = seen.map(|bytes| decode(spec.dtype, bytes).collect::<Vec<f64>>());
        let seed = self.draw(TARGET, rank, tensor, iteration);
        let number = |element: u64| {
            let target = unit(hash(&[seed, element]));
            let at = seen.as_ref().map_or(0.0, |seen| seen[element as usize]);
            match spec.rule {
                Rule::Add => 0.1 * (target - at),
                Rule::Replace => target,
                _ => 0.5 * (at - target),
            }
        };
        encode(spec.dtype, (0..elements(spec)).map(number))
    }

    /// The tensors' last values under BSP, computed by one process without chunks, shards or links.
    pub fn alone(&self) -> Vec<Vec<u8>> {
        self.ids().map(|tensor| self.tensor_alone(tensor)).collect()
    }

    fn tensor_alone(&self, tensor: TensorId) -> Vec<u8> {
        let spec = self.spec(tensor);
        let bytes = spec.bytes() as usize;
        let mut value = Aligned::zeroed(bytes);
        if let Some(start) = self.start(tensor) {
            value.copy_from_slice(&start);
        }
        let mut state = Aligned::zeroed(spec.state_bytes(elements(spec)) as usize);
        let mut step = 0;
        for iteration in 0..self.iterations {
            let here = (0..self.workers()).filter(|&rank| self.leaves_at[rank as usize] > iteration);
            let pushes = |&rank: &Rank| self.share(rank, tensor, iteration) == Share::Whole;
            let lane = |rank: Rank| {
                let seen = self.pulls(rank, tensor, iteration).then_some(&value[..]);
                let mut lane = Aligned::zeroed(bytes);
                lane.copy_from_slice(&self.contribution(rank, tensor, iteration, seen));
                lane
            };
            let lanes: Vec<Aligned> = here.clone().filter(pushes).map(lane).collect();
            let lanes: Vec<Foreign<'_>> = lanes.iter().map(|lane| Foreign::of(lane)).collect();
            if !lanes.is_empty() {
                let settings = self.settings(tensor, iteration);
                let scale = spec.scale(here.count() as u32);
                let plan = spec.plan();
                penstock_kernels::fold(&plan, &settings, step, scale, &lanes, &mut value, &mut state)
                    .expect("the workload's numbers are finite");
                step += 1;
            }
        }
        value.to_vec()
    }
}

/// Elements of a tensor.
pub fn elements(spec: &TensorSpec) -> u64 {
    spec.elements().expect("a workload's tensors have elements")
}

/// From -1 to 1.
fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// The bytes of these numbers as `dtype`.
pub fn encode(dtype: Dtype, numbers: impl Iterator<Item = f64>) -> Vec<u8> {
    match dtype {
        Dtype::F32 => numbers.flat_map(|number| (number as f32).to_le_bytes()).collect(),
        Dtype::F64 => numbers.flat_map(f64::to_le_bytes).collect(),
        Dtype::F16 => numbers.flat_map(|number| f16::from_f64(number).to_le_bytes()).collect(),
        Dtype::Bf16 => numbers.flat_map(|number| bf16::from_f64(number).to_le_bytes()).collect(),
    }
}

/// The numbers in these bytes of `dtype`.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Box<dyn Iterator<Item = f64> + '_> {
    match dtype {
        Dtype::F32 => Box::new(bytes.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes)))),
        Dtype::F64 => Box::new(bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes))),
        Dtype::F16 => Box::new(bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f64())),
        Dtype::Bf16 => Box::new(bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f64())),
    }
}

fn spec(id: u64, shape: Vec<u64>) -> TensorSpec {
    TensorSpec {
        name: format!("t{id}"),
        shape,
        dtype: Dtype::F64,
        rule: Rule::Add,
        consistency: Consistency::Bsp,
        propagation: Propagation::Pull,
        reduce: Reduce::Sum,
        rescale: 1.0,
        clip: None,
        refuse_nonfinite: true,
        travel: Travel::default(),
    }
}

fn any_consistency(rng: &mut Rng) -> Consistency {
    let slack = rng.within(0..=3) as u32;
    rng.pick(&[Consistency::Bsp, Consistency::Bsp, Consistency::Ssp(slack), Consistency::Asp])
}

fn any_rule(rng: &mut Rng) -> (Rule, Settings) {
    let maximize = false;
    rng.pick(&[
        (Rule::Add, Settings::NONE),
        (Rule::Replace, Settings::NONE),
        (Rule::Sgd { momentum: false, nesterov: false, maximize }, Settings([0.1, 0.0, 0.0, 0.01, 0.0])),
        (Rule::Sgd { momentum: true, nesterov: true, maximize }, Settings([0.1, 0.9, 0.0, 0.0, 0.0])),
        (Rule::Adagrad { maximize }, Settings([0.1, 0.0, 1e-8, 0.0, 0.0])),
        (Rule::RmsProp { momentum: true, centered: true, maximize }, Settings([0.01, 0.9, 1e-6, 0.0, 0.5])),
        (Rule::Adam { amsgrad: true, maximize }, Settings([0.01, 0.9, 0.999, 1e-8, 0.0])),
        (Rule::AdamW { amsgrad: false, maximize }, Settings([0.01, 0.9, 0.999, 1e-8, 0.01])),
    ])
}
