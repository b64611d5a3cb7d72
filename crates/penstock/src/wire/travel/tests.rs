//! What a declaration says of how chunks travel, carried out over real sockets: by servers and workers as they always are,
//! which know one codec and one filter more.

#[path = "../../../tests/common/line.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod line;

use super::members::{CHANGES, COUNTED, COUNTED_SPARSE, LOUD, came, differences};
use crate::options::Options;
use crate::server::{Server, ServerConfig};
use crate::worker::{Declaration, Error, Job, Membership, Stats, Tensor};
use line::Line;
use penstock_fabric::net::endpoint::Endpoint;
use penstock_kernels::compress::Compressor;
use penstock_kernels::{Foreign, Rule, Settings};
use penstock_proto::compress::{Compress, Squeezed};
use penstock_proto::consistency::Consistency;
use penstock_proto::encoding::Encoding;
use penstock_proto::error::Refusal;
use penstock_proto::message::Secret;
use penstock_proto::spec::SpecError;
use penstock_proto::travel::{Filtering, Travel};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Two on other hosts, as it were, and one on the server's.
const WORKERS: u32 = 3;
const HERE: u32 = 2;
/// Of five chunks, the last of which is short.
const ELEMENTS: u64 = 4 * 1024 + 7;
const CHUNKS: u64 = 5;
const ITERATIONS: u64 = 40;
const ADDED: Settings = Settings([0.0; 5]);
const SECRET: Secret = Secret([7; 32]);

/// A server of such a job, and how to reach it.
struct Rig {
    server: Server,
    path: PathBuf,
    options: Options,
}

fn rig() -> Rig {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("penstock-travel-{}-{number}.sock", std::process::id()));
    let given =
        [("deadline", "30"), ("pin", "off"), ("shards", "2"), ("memory", "64MiB"), ("chunk_bytes", "4KiB")];
    let options = Options::load(given).unwrap();
    let config = ServerConfig {
        path: Some(path.clone()),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        job: "job".to_owned(),
        secret: SECRET,
        index: 0,
        servers: 1,
        workers: WORKERS,
        options: options.clone(),
    };
    Rig { server: Server::start(config).unwrap(), path, options }
}

impl Rig {
    /// Joins over TCP, over a line if there is one, or by shared memory.
    fn join(&self, rank: u32, line: Option<&Line>) -> Job {
        let address = line.map_or_else(|| self.server.addresses()[0], |line| line.address);
        let tcp = || format!("tcp://{address}").parse().unwrap();
        let server: Endpoint = if rank == HERE { self.path.clone().into() } else { tcp() };
        let (servers, job) = (vec![server], "job".to_owned());
        let membership = Membership { servers, job, secret: SECRET, rank, size: WORKERS };
        Job::connect(&membership, self.options.clone()).unwrap()
    }
}

fn declaration(travel: Travel) -> Declaration {
    let mut declaration = Declaration::new("w", &[ELEMENTS], Rule::Add);
    declaration.consistency = Some(Consistency::Bsp);
    declaration.spec.travel = travel;
    declaration
}

/// The first value. Whole numbers, so that sums are exact.
fn first() -> Vec<f32> {
    (0..ELEMENTS).map(|index| (index % 1000) as f32).collect()
}

/// What a worker adds: here and there, at times so little that it is held back.
fn added(rank: u32, clock: u64) -> Vec<f32> {
    let at = |index: u64| index.wrapping_mul(31) + 7 * clock + 5 * u64::from(rank);
    let some = |index| at(index).is_multiple_of(17);
    let much = |index| if at(index).is_multiple_of(2) { 300.0 } else { 1.0 };
    (0..ELEMENTS).map(|index| if some(index) { much(index) } else { 0.0 }).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The value after each iteration, and what is seen of it.
fn model(filter: Filtering) -> Vec<[Vec<u8>; 2]> {
    let mut value = first();
    let mut held = bytes(&value);
    let after = |clock| {
        for rank in 0..WORKERS {
            value.iter_mut().zip(added(rank, clock)).for_each(|(value, added)| *value += added);
        }
        let now = bytes(&value);
        for (held, now) in held.chunks_mut(4).zip(now.chunks(4)) {
            if filter == Filtering::NONE || held[2..] != now[2..] {
                held.copy_from_slice(now);
            }
        }
        [now, held.clone()]
    };
    (0..ITERATIONS).map(after).collect()
}

fn pull(tensor: &Arc<Tensor>) -> Vec<u8> {
    let mut out = vec![0; tensor.spec().bytes() as usize];
    tensor.pull_into(&mut out, None, None).unwrap();
    out
}

/// Trains; what this worker saw at the end of each iteration in which it looked.
fn train(job: &Job, travel: &Travel) -> Vec<(u64, Vec<u8>)> {
    let tensor = job.declare(declaration(travel.clone())).unwrap();
    tensor.initialize(Some(&bytes(&first())), None).unwrap();
    let mut seen = Vec::new();
    for clock in 0..ITERATIONS {
        tensor.push(Some(&bytes(&added(job.rank(), clock))), ADDED, false, None).unwrap();
        // One of them skips publications.
        if job.rank() != 1 || clock.is_multiple_of(4) {
            seen.push((clock, pull(&tensor)));
        }
        job.clock().unwrap();
    }
    seen
}

/// Everybody trains; whether each saw what the model says.
fn run(travel: &Travel, breaks: bool) {
    let rig = rig();
    let line = breaks.then(|| Line::to(rig.server.addresses()[0]));
    let seen: Vec<Vec<(u64, Vec<u8>)>> = std::thread::scope(|scope| {
        let work = |rank| {
            let (rig, line) = (&rig, &line);
            scope.spawn(move || {
                let job = rig.join(rank, line.as_ref());
                let seen = train(&job, travel);
                job.leave(None).unwrap();
                seen
            })
        };
        let threads: Vec<_> = (0..WORKERS).map(work).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let expected = model(travel.filter);
    for (rank, seen) in (0..).zip(&seen) {
        for (clock, value) in seen {
            let [_, seen] = &expected[*clock as usize];
            assert!(value == seen, "worker {rank}, clock {clock}: {travel:?}");
        }
    }
    assert!(line.is_none_or(|line| line.breaks() > 3));
}

/// E-1.
#[test]
fn each_worker_holds_what_the_filter_chose_bit_for_bit_though_it_came_as_differences() {
    assert!(model(LOUD).iter().all(|[whole, seen]| whole != seen), "the filter holds something back");
    for (counted, filter, breaks) in [
        (COUNTED, Filtering::NONE, false),
        (COUNTED, LOUD, false),
        (COUNTED, LOUD, true),
        (COUNTED_SPARSE, Filtering::NONE, false),
        (COUNTED_SPARSE, LOUD, true),
    ] {
        let encodings = vec![counted, Encoding::RAW];
        let travel =
            Travel { filter, values: encodings.clone(), contributions: encodings, ..Travel::default() };
        let before = came();
        run(&travel, breaks);
        let [whole, differences] = [0, 1].map(|which| came()[which] - before[which]);
        // Two workers' contributions, and what is asked for by one that takes every publication behind the first.
        assert!(whole >= 2 * CHUNKS * ITERATIONS, "{whole}");
        let least = if breaks { 1 } else { CHUNKS * (ITERATIONS - 1) };
        assert!(differences >= least, "{differences} with {filter:?}");
    }
}

/// E-1: nothing of what was compressed on the way is seen behind it.
#[test]
fn what_is_compressed_comes_bit_for_bit_wherever_connections_break() {
    for compress in [Compress::By(Compressor::Lz4), Compress::By(Compressor::Zstd), Compress::Auto] {
        run(&Travel::default().compressed(compress), true);
        run(&differences(LOUD).compressed(compress), compress == Compress::Auto);
    }
}

/// What was compressed is counted at the worker, both ways, and on the servers' host nothing is.
#[test]
fn a_worker_counts_what_went_and_came_compressed_and_on_one_host_nothing_is() {
    let rig = rig();
    let jobs: Vec<Job> = (0..WORKERS).map(|rank| rig.join(rank, None)).collect();
    let travel = Travel::default().compressed(Compress::By(Compressor::Lz4));
    std::thread::scope(|scope| {
        for job in &jobs {
            let travel = travel.clone();
            scope.spawn(move || {
                let tensor = job.declare(declaration(travel)).unwrap();
                tensor.initialize(None, None).unwrap();
                let ones = bytes(&vec![1.0; ELEMENTS as usize]);
                tensor.push(Some(&ones), ADDED, false, None).unwrap();
                job.clock().unwrap();
                pull(&tensor);
            });
        }
    });
    for (rank, job) in (0..).zip(&jobs) {
        let Stats { squeezed_sent, squeezed_received, .. } = job.stats();
        if rank == HERE {
            assert_eq!((squeezed_sent, squeezed_received), Default::default());
            continue;
        }
        // The last chunk has 28 bytes.
        let sent = Squeezed { after: squeezed_sent.after, chunks: 4, raw: 1, before: 4 * ELEMENTS };
        assert_eq!(squeezed_sent, sent);
        assert!(sent.after < sent.before / 20, "{sent:?}");
        let Squeezed { chunks, before, after, .. } = squeezed_received;
        assert!(chunks >= 4 && after < before / 20, "{squeezed_received:?}");
    }
}

/// Codecs that the product has are found by their numbers, and give what raw gives.
#[test]
fn what_is_declared_sparse_comes_exact_and_only_for_elements_of_its_width() {
    let travel = |number| {
        let encodings = vec![Encoding(number), Encoding::RAW];
        Travel { values: encodings.clone(), contributions: encodings, ..Travel::default() }
    };
    run(&travel(2), false);
    let rig = rig();
    let refused = rig.join(0, None).declare(declaration(travel(1))).unwrap_err();
    assert!(refused.to_string().contains("`sparse16` is not for elements of type float32"), "{refused}");
}

/// The factors that a worker contributes, of this rank, and their product: whole numbers, so that sums are exact.
fn factors(rank: u32, clock: u64, width: u64) -> [Vec<f32>; 3] {
    let number = |of: u64, index: u64| {
        let mixed = (index + 31 * of + 7 * clock + 5 * u64::from(rank)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 61) as f32 - 3.0
    };
    let [rows, columns] = MATRIX;
    let u: Vec<f32> = (0..rows * width).map(|index| number(0, index)).collect();
    let v: Vec<f32> = (0..width * columns).map(|index| number(1, index)).collect();
    let element = |index: u64| {
        let (row, column) = (index / columns, index % columns);
        (0..width).map(|at| u[(row * width + at) as usize] * v[(at * columns + column) as usize]).sum()
    };
    let whole = (0..ELEMENTS).map(element).collect();
    [u, v, whole]
}

/// The tensor's elements, as a matrix whose rows no chunk begins with.
const MATRIX: [u64; 2] = [11, 373];
const _: () = assert!(MATRIX[0] * MATRIX[1] == ELEMENTS);

fn push_factors(tensor: &Tensor, rank: u32, clock: u64, width: u64) {
    let [u, v, _] = factors(rank, clock, width).map(|numbers| bytes(&numbers));
    tensor.push_factors(Foreign::of(&u), Foreign::of(&v), width as usize, ADDED, false, None).unwrap();
}

// S-1, E-1: the right factor of one push is not mistaken for that of another, wherever connections break.
#[test]
fn factors_come_to_their_product_on_every_worker_wherever_connections_break() {
    // The second rank does not travel so: it does not pay.
    let width = |clock: u64| if clock % 4 == 3 { 3 } else { 1 + clock % 2 };
    for breaks in [false, true] {
        let rig = rig();
        let line = breaks.then(|| Line::to(rig.server.addresses()[0]));
        let mut expected = vec![0.0_f32; ELEMENTS as usize];
        let after = |clock| {
            for rank in 0..WORKERS {
                let [.., whole] = factors(rank, clock, width(clock));
                expected.iter_mut().zip(whole).for_each(|(value, added)| *value += added);
            }
            bytes(&expected)
        };
        let expected: Vec<Vec<u8>> = (0..ITERATIONS).map(after).collect();
        std::thread::scope(|scope| {
            for rank in 0..WORKERS {
                let (rig, line, expected) = (&rig, &line, &expected);
                scope.spawn(move || {
                    let job = rig.join(rank, line.as_ref());
                    let mut declaration = declaration(Travel::default().low_rank(3));
                    declaration.spec.shape = MATRIX.to_vec();
                    let tensor = job.declare(declaration).unwrap();
                    tensor.initialize(None, None).unwrap();
                    for clock in 0..ITERATIONS {
                        push_factors(&tensor, rank, clock, width(clock));
                        let seen = pull(&tensor);
                        assert!(seen == expected[clock as usize], "worker {rank}, clock {clock}");
                        job.clock().unwrap();
                    }
                    job.leave(None).unwrap();
                });
            }
        });
        assert!(line.is_none_or(|line| line.breaks() > 3));
    }
}

#[test]
fn what_nobody_declares_otherwise_comes_whole_and_exact() {
    run(&Travel::default(), false);
}

#[test]
fn a_tensor_that_is_declared_to_travel_in_another_way_is_refused_with_what_differs() {
    let rig = rig();
    let jobs: Vec<Job> = (0..WORKERS).map(|rank| rig.join(rank, None)).collect();
    jobs[0].declare(declaration(differences(LOUD))).unwrap();
    let quieter = Filtering { settings: [1.0, 0.0, 0.0, 0.0, 0.0], ..LOUD };
    let values = Travel { values: vec![Encoding::RAW], ..differences(LOUD) };
    for (rank, travel, what, expected, got) in [
        (
            1,
            differences(quieter),
            "filter of values",
            "207 with [2.0, 0.0, 0.0, 0.0, 0.0]",
            "207 with [1.0, 0.0, 0.0, 0.0, 0.0]",
        ),
        (1, differences(LOUD).compressed(Compress::Auto), "compress", "none", "auto"),
        (HERE, values, "encodings of values (as `sparse` says)", "[9, 0]", "[0]"),
    ] {
        let refused = jobs[rank as usize].declare(declaration(travel)).unwrap_err();
        let conflict = Refusal::Conflict {
            name: "w".to_owned(),
            rank,
            what: what.to_owned(),
            expected: expected.to_owned(),
            got: got.to_owned(),
        };
        assert!(matches!(&refused, Error::Refused(refusal) if *refusal == conflict), "{refused}");
    }
    for rank in [1, HERE] {
        jobs[rank as usize].declare(declaration(differences(LOUD))).unwrap();
    }
}

#[test]
fn a_tensor_that_cannot_travel_as_it_is_declared_is_refused_before_a_server_hears_of_it() {
    let rig = rig();
    let job = rig.join(0, None);
    let unknown = Travel { values: vec![Encoding(77), Encoding::RAW], ..Travel::default() };
    let refused = job.declare(declaration(unknown)).unwrap_err();
    assert!(matches!(&refused, Error::Refused(Refusal::Spec(SpecError::Travel { .. }))), "{refused}");
    let said = "`w`: expected encodings of values among [0, 1, 2, 3, 9, 10, 11], got 77: a newer version may know it";
    assert!(refused.to_string().contains(said), "{refused}");
    job.declare(declaration(Travel { contributions: vec![CHANGES, Encoding::RAW], ..Travel::default() }))
        .unwrap();
}
