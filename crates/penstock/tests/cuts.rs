//! A line that is cut at any byte of any phase (handshake, admission, declaration, data, barrier, leave), by an end or by a
//! reset, several times: every worker ends with the same bits as over a line that holds, and the server counts nobody lost.
//!
//! `PENSTOCK_CUTS=500 cargo test -p penstock --release --test cuts` plays as many schedules of each kind, from the seed
//! `PENSTOCK_CUTS_SEED` (0) on; a failure names its own.

mod common;

use common::cutter::{Cutter, schedule};
use common::{Cluster, Way, seconds};
use penstock::worker::{Declaration, Job, TableDeclaration};
use penstock_kernels::{Rule, Settings};
use penstock_proto::consistency::Consistency;
use penstock_proto::items::{Propagation, RowSet, Slack};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Schedules that are played where nobody asks for more.
const FEW: u64 = 12;
const ITERATIONS: u64 = 4;
/// Elements of the tensors: of several chunks, and of one.
const SIZES: [u64; 2] = [12_001, 1];
const SGD: Settings = Settings([0.1, 0.9, 0.0, 0.0, 0.0]);
const ROWS: u64 = 3;
const ROW_BYTES: u32 = 64;

fn gradient(rank: u32, clock: u64, elements: u64) -> Vec<u8> {
    let value = |index: u64| ((index * 31 + clock * 7 + u64::from(rank) * 13) % 101) as f32 / 37.0 - 1.0;
    (0..elements).flat_map(|index| value(index).to_le_bytes()).collect()
}

/// Tensors, a table, barriers; everything that this worker saw.
fn work(job: &Job) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    let tensors = SIZES.map(|elements| {
        let rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
        let mut declaration = Declaration::new(&format!("w{elements}"), &[elements], rule);
        declaration.consistency = Some(Consistency::Bsp);
        let tensor = job.declare(declaration).unwrap();
        tensor.initialize(Some(&gradient(99, 0, elements)), None).unwrap();
        tensor
    });
    let (rank, size) = (u64::from(job.rank()), u64::from(job.size()));
    let rows = |first: u64, count: u64| first * ROWS..(first + count) * ROWS;
    let table = TableDeclaration {
        name: "U".to_owned(),
        rows: size * ROWS,
        row_bytes: ROW_BYTES,
        element: None,
        sum: false,
        produce: RowSet::from_ranges([rows(rank, 1)]),
        consume: RowSet::from_ranges([rows(0, size)]),
        propagation: Propagation::Eager,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout: None,
    };
    let table = job.table(table).unwrap();
    let (mine, all): (Vec<u64>, Vec<u64>) = (rows(rank, 1).collect(), rows(0, size).collect());
    job.barrier(None).unwrap();
    for clock in 0..ITERATIONS {
        for (tensor, elements) in tensors.iter().zip(SIZES) {
            tensor.push(Some(&gradient(job.rank(), clock, elements)), SGD, false, None).unwrap();
        }
        let row = vec![(clock * 10 + rank) as u8; ROW_BYTES as usize * mine.len()];
        table.set(&mine, &row, Some(clock + 1)).unwrap();
        for tensor in &tensors {
            let mut out = vec![0; tensor.spec().bytes() as usize];
            tensor.pull_into(&mut out, None, None).unwrap();
            seen.push(out);
        }
        job.clock().unwrap();
    }
    // Only now, when nobody sets any more, every row's version is one and the same in every run.
    job.barrier(None).unwrap();
    let mut out = vec![0; ROW_BYTES as usize * all.len()];
    table.get(&all, &mut out, Some(ITERATIONS), Some(Slack::Bound(0)), None).unwrap();
    seen.push(out);
    seen.extend(tensors.iter().map(|tensor| tensor.state(0, None).unwrap()));
    job.barrier(None).unwrap();
    seen
}

type Seen = Vec<Vec<Vec<u8>>>;

const OPTIONS: [(&str, &str); 3] = [("chunk_bytes", "4KiB"), ("lease", "10"), ("deadline", "30")];

/// Plays one schedule; how often the line was cut.
fn play(way: Way, seed: u64, expected: &Seen) -> u64 {
    let mut cluster = Cluster::over(way, 2, 1, &OPTIONS);
    let cutter = Cutter::to(cluster.servers[0].addresses()[0], schedule(seed));
    cluster.detour = Some(cutter.address);
    let seen = cluster.run(work);
    assert!(seen == *expected, "other bits than over a line that holds");
    // Whoever has left is not lost, whatever became of the connection afterwards.
    assert_eq!(cluster.servers[0].wait(seconds("20")), Some(Ok(())), "the server's view of the end");
    cutter.made()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number of schedules, or a seed"))
}

#[expect(clippy::print_stdout, reason = "the campaign says what it did")]
fn campaign(way: Way, few: u64) {
    let expected = Cluster::over(Way::Memory, 2, 1, &OPTIONS).run(work);
    let (count, first) = (number("PENSTOCK_CUTS", few), number("PENSTOCK_CUTS_SEED", 0));
    let (mut made, mut failed) = (0, Vec::new());
    for seed in first..first + count {
        match catch_unwind(AssertUnwindSafe(|| play(way, seed, &expected))) {
            Ok(cuts) => made += cuts,
            Err(_) => failed.push(seed),
        }
    }
    println!("{way:?}: {count} schedules from seed {first}, {made} cuts, failed: {failed:?}");
    assert!(
        failed.is_empty(),
        "{way:?}: play one again with PENSTOCK_CUTS=1 PENSTOCK_CUTS_SEED={}",
        failed[0]
    );
    assert!(made >= count, "{way:?}: the line was cut only {made} times in {count} schedules");
}

#[test]
fn a_plain_line_that_is_cut_at_any_byte_of_any_phase_changes_no_bit() {
    campaign(Way::Tcp, FEW);
}

#[test]
fn an_encrypted_line_that_is_cut_at_any_byte_of_any_phase_changes_no_bit() {
    campaign(Way::Tls, FEW);
}
