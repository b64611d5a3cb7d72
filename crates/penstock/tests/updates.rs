//! Updates that are broadcast, and folded where they come: value and optimizer's state are, bit for bit, those of a job whose values
//! are fetched from their home in shared memory (parameter-flow.md, equation 4).

mod common;

use common::{Cluster, Line, Way};
use penstock::worker::{Declaration, Job, Tensor};
use penstock_kernels::{Dtype, Flag, Foreign, RULES, Rule, Settings};
use penstock_proto::consistency::Consistency;
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::Reduce;
use penstock_proto::travel::Travel;
use std::sync::Arc;

const ITERATIONS: u64 = 12;
/// Elements: of several chunks, the last of them short, and of one.
const SIZES: [u64; 2] = [5003, 3];
/// When worker 0 loads a value, and an array of the optimizer's state.
const LOADS_AT: u64 = 5;
/// When nobody pushes.
const RESTS_AT: u64 = 7;
/// When the last worker first looks at the tensors; it has declared none before.
const LATE_AT: u64 = 3;

/// Every rule, plain and with all that it may be declared with.
fn rules() -> impl Iterator<Item = Rule> {
    RULES.iter().flat_map(|row| {
        let all = row.plain.with(row.flags.iter().copied().filter(|flag| *flag != Flag::Maximize).collect());
        std::iter::once(row.plain).chain((all != row.plain).then_some(all))
    })
}

/// Others in each iteration, as a schedule sets them.
fn settings(rule: Rule, clock: u64) -> Settings {
    let mut settings = Settings([0.0; 5]);
    for (number, setting) in settings.0.iter_mut().zip(rule.row().settings) {
        if setting.is_read(rule.flags()) {
            *number = match setting.name {
                "lr" => 0.1 / (1 + clock / 3) as f64,
                "momentum" => 0.5,
                "weight_decay" => 0.01,
                _ => setting.default,
            };
        }
    }
    settings.check(rule).unwrap();
    settings
}

/// Mostly zeros in every other iteration.
fn gradient(dtype: Dtype, rank: u32, clock: u64, elements: u64) -> Vec<u8> {
    let number = |index: u64| match (clock % 2, index % 50) {
        (1, 1..) => 0.0,
        _ => ((index * 31 + clock * 7 + u64::from(rank) * 13) % 101) as f64 / 37.0 - 1.0,
    };
    let numbers = (0..elements).map(number);
    match dtype {
        Dtype::F64 => numbers.flat_map(f64::to_le_bytes).collect(),
        _ => numbers.flat_map(|number| (number as f32).to_le_bytes()).collect(),
    }
}

fn declare(job: &Job, propagation: Propagation) -> Vec<Arc<Tensor>> {
    let mut tensors = Vec::new();
    for (at, rule) in rules().enumerate() {
        for elements in SIZES {
            let mut declaration = Declaration::new(&format!("{rule} {elements}"), &[elements], rule);
            let spec = &mut declaration.spec;
            spec.propagation = propagation;
            spec.dtype = if at % 3 == 2 { Dtype::F64 } else { Dtype::F32 };
            spec.clip = (at % 2 == 1).then_some(0.75);
            spec.refuse_nonfinite = at % 4 == 0;
            if at % 2 == 0 {
                spec.travel = Travel::default().sparse(spec.dtype);
            }
            declaration.consistency = Some(Consistency::Bsp);
            let tensor = job.declare(declaration).unwrap();
            let first = gradient(tensor.spec().dtype, 99, 0, elements);
            tensor.initialize((at % 5 > 0).then_some(&first[..]), None).unwrap();
            tensors.push(tensor);
        }
    }
    tensors
}

fn value(tensor: &Tensor, slack: Option<i64>) -> Vec<u8> {
    let mut out = vec![0; tensor.spec().bytes() as usize];
    tensor.pull_into(&mut out, slack, None).unwrap();
    out
}

/// Worker 0 puts back a value, and the arrays that the rule keeps, as from a checkpoint.
fn load(job: &Job, tensor: &Tensor, clock: u64) {
    let dtype = tensor.spec().dtype;
    let elements = tensor.spec().elements().unwrap();
    let new = gradient(dtype, 7, 2 * clock, elements);
    tensor.load_together(job, (job.rank() == 0).then_some((&new[..]).into()), None).unwrap();
    job.barrier(None).unwrap();
    if job.rank() == 0 {
        for slot in 0..tensor.spec().rule.slots().count() {
            // Sums of squares are not below zero.
            let squares: Vec<u8> = vec![0; new.len()];
            tensor.load(slot as u32 + 1, &squares[..], 3, None).unwrap();
        }
    }
    job.barrier(None).unwrap();
}

/// Trains; every value that this worker saw, and the optimizers' state at the end.
fn train(job: &Job, propagation: Propagation) -> Vec<Vec<u8>> {
    let is_late = job.rank() + 1 == job.size() && job.size() > 1;
    let mut tensors = if is_late { Vec::new() } else { declare(job, propagation) };
    let mut seen = Vec::new();
    for clock in 0..ITERATIONS {
        if is_late && clock == LATE_AT {
            tensors = declare(job, propagation);
        }
        for (at, tensor) in tensors.iter().enumerate() {
            // Some push nothing now and then, and all of them once.
            let rests = clock == RESTS_AT || (clock + at as u64 + u64::from(job.rank())).is_multiple_of(5);
            if !rests {
                let spec = tensor.spec();
                let gradient = gradient(spec.dtype, job.rank(), clock, spec.elements().unwrap());
                tensor.push(Some(&gradient), settings(spec.rule, clock), false, None).unwrap();
            }
        }
        job.clock().unwrap();
        // Not every value is looked at: of some only the last.
        for (at, tensor) in tensors.iter().enumerate() {
            if at % 4 != 3 || clock % 3 == 0 {
                seen.push(value(tensor, Some(0)));
            }
        }
        if clock == LOADS_AT {
            tensors.iter().for_each(|tensor| load(job, tensor, clock));
            seen.extend(tensors.iter().map(|tensor| value(tensor, Some(0))));
        }
    }
    for tensor in &tensors {
        tensor.release_together(job, None).unwrap();
        seen.push(value(tensor, Some(0)));
        seen.extend(
            (0..tensor.spec().rule.slots().count()).map(|slot| tensor.state(slot as u32, None).unwrap()),
        );
        seen.push(tensor.steps(None).unwrap().to_le_bytes().to_vec());
    }
    seen
}

type Results = Vec<Vec<Vec<u8>>>;

fn results(way: Way, (workers, servers): (u32, u32), propagation: Propagation) -> Results {
    let cluster = Cluster::over(way, workers, servers, &[("chunk_bytes", "4KiB")]);
    let results = cluster.run(|job| train(job, propagation));
    if way == Way::Broken {
        let breaks: u64 = cluster.lines.iter().map(Line::breaks).sum();
        assert!(breaks > 10, "the line broke only {breaks} times");
    }
    results
}

fn assert_same(got: &Results, expected: &Results, what: &str) {
    for (rank, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "{what}, worker {rank}");
        let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
        assert_eq!(differs, None, "{what}, worker {rank}: the first value that differs");
    }
}

#[test]
fn whoever_folds_updates_has_the_home_s_value_and_state_whatever_the_rule_and_the_way() {
    for size in [(1, 1), (3, 2)] {
        let expected = results(Way::Memory, size, Propagation::Pull);
        for way in [Way::Memory, Way::Tcp, Way::Mixed] {
            let got = results(way, size, Propagation::Update);
            assert_same(&got, &expected, &format!("{way:?}, {size:?} workers and servers"));
        }
    }
}

/// A matrix: chunks of 4 KiB begin in the middle of its rows.
const MATRIX: [u64; 2] = [210, 300];

/// Trains matrices by factors of several ranks; every value that this worker saw, and the optimizers' state at the end.
fn train_by_factors(job: &Job, propagation: Propagation) -> Vec<Vec<u8>> {
    let mut tensors = Vec::new();
    for (at, rule) in rules().enumerate().filter(|(at, _)| at % 3 == 0) {
        let mut declaration = Declaration::new(&format!("{rule}"), &MATRIX, rule);
        let spec = &mut declaration.spec;
        spec.propagation = propagation;
        spec.dtype = if at % 2 == 1 { Dtype::F64 } else { Dtype::F32 };
        spec.clip = (at % 2 == 0).then_some(2.5);
        spec.reduce = if at % 2 == 0 { Reduce::Mean } else { Reduce::Sum };
        spec.travel = Travel::default().low_rank(6);
        declaration.consistency = Some(Consistency::Bsp);
        let tensor = job.declare(declaration).unwrap();
        tensor.initialize(None, None).unwrap();
        tensors.push(tensor);
    }
    let [rows, columns] = MATRIX;
    let mut seen = Vec::new();
    for clock in 0..ITERATIONS {
        for tensor in &tensors {
            let spec = tensor.spec();
            let (rank, settings) = (1 + (clock + u64::from(job.rank())) % 4, settings(spec.rule, clock));
            let factor = |of: u32, elements| gradient(spec.dtype, job.rank() + of, 2 * clock, elements);
            match (clock % 5, job.rank()) {
                // Now and then one pushes something else, more, or nothing.
                (3, 0) => {
                    tensor.push(Some(&factor(0, rows * columns)), settings, false, None).unwrap();
                }
                (4, 1) => continue,
                (2, rank_of) => {
                    let (u, v) = (factor(1, rows * rank), factor(2, rank * columns));
                    let more = rank_of == 0;
                    let (u, v) = (Foreign::of(&u), Foreign::of(&v));
                    tensor.push_factors(u, v, rank as usize, settings, more, None).unwrap();
                    if more {
                        tensor.push_factors(u, v, rank as usize, settings, false, None).unwrap();
                    }
                }
                _ => {
                    let (u, v) = (factor(1, rows * rank), factor(2, rank * columns));
                    let (u, v) = (Foreign::of(&u), Foreign::of(&v));
                    tensor.push_factors(u, v, rank as usize, settings, false, None).unwrap();
                }
            }
        }
        job.clock().unwrap();
        for (at, tensor) in tensors.iter().enumerate() {
            if at % 3 != 2 || clock % 3 == 0 {
                seen.push(value(tensor, Some(0)));
            }
        }
        if clock == LOADS_AT {
            tensors.iter().for_each(|tensor| load(job, tensor, clock));
        }
    }
    for tensor in &tensors {
        seen.push(value(tensor, Some(0)));
        seen.extend(
            (0..tensor.spec().rule.slots().count()).map(|slot| tensor.state(slot as u32, None).unwrap()),
        );
    }
    seen
}

/// U-1, U-2.
#[test]
fn whoever_multiplies_the_factors_of_an_update_has_the_home_s_value_and_state_on_lines_that_break_too() {
    for size in [(1, 1), (3, 2)] {
        let run = |way, propagation| {
            let cluster = Cluster::over(way, size.0, size.1, &[("chunk_bytes", "4KiB")]);
            cluster.run(|job| train_by_factors(job, propagation))
        };
        let expected = run(Way::Memory, Propagation::Pull);
        for way in [Way::Tcp, Way::Mixed, Way::Broken] {
            assert_same(&run(way, Propagation::Update), &expected, &format!("{way:?}, {size:?}"));
        }
    }
}

/// U-1.
#[test]
fn a_line_that_breaks_again_and_again_makes_nobody_fold_an_update_twice_or_skip_one() {
    let expected = results(Way::Memory, (2, 2), Propagation::Pull);
    assert_same(&results(Way::Broken, (2, 2), Propagation::Update), &expected, "broken lines");
}
