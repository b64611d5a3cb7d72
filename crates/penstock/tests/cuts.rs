//! A line that ends, is reset, falls silent or changes a bit at any byte of any phase (handshake, admission, declaration,
//! data, barrier, leave), several times: every worker ends with the same bits as over a line that holds, and the server counts
//! no worker lost.
//!
//! `PENSTOCK_CUTS=500 cargo test -p penstock --test cuts` plays as many schedules of each kind, from the seed
//! `PENSTOCK_CUTS_SEED` (0) on; a failure names its own.

mod common;

use common::cutter::{Cutter, How, schedule};
use common::{Cluster, Way, seconds};
use penstock::worker::{Declaration, Job, TableDeclaration};
use penstock_kernels::{Rule, Settings};
use penstock_proto::consistency::Consistency;
use penstock_proto::items::{Propagation, RowSet, Slack};
use std::panic::{AssertUnwindSafe, catch_unwind};

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
        holds: String::new(),
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
    // Only now, when no worker sets any more, every row's version is one and the same in every run.
    job.barrier(None).unwrap();
    let mut out = vec![0; ROW_BYTES as usize * all.len()];
    table.get(&all, &mut out, Some(ITERATIONS), Some(Slack::Bound(0)), None).unwrap();
    seen.push(out);
    seen.extend(tensors.iter().map(|tensor| tensor.state(0, None).unwrap()));
    job.barrier(None).unwrap();
    seen
}

type Seen = Vec<Vec<Vec<u8>>>;

/// What happens to the line.
struct Campaign {
    way: Way,
    hows: &'static [How],
    /// To how many connections it happens at most.
    most: u64,
    lease: &'static str,
    /// Schedules that are played unless more are asked for.
    few: u64,
}

/// Plays one schedule; how often something happened to the line.
fn play(campaign: &Campaign, seed: u64, expected: &Seen) -> u64 {
    let options = [("chunk_bytes", "4KiB"), ("lease", campaign.lease), ("deadline", "30")];
    let mut cluster = Cluster::over(campaign.way, 2, 1, &options);
    let schedule = schedule(seed, campaign.hows, campaign.most);
    let cutter = Cutter::to(cluster.servers[0].addresses()[0], schedule);
    cluster.detour = Some(cutter.address);
    let seen = cluster.run(work);
    assert!(seen == *expected, "other bits than over a line that holds");
    // A worker that has left is not lost, whatever became of the connection afterwards.
    assert_eq!(cluster.servers[0].wait(seconds("20")), Some(Ok(())), "the server's view of the end");
    cutter.made()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number of schedules, or a seed"))
}

#[expect(clippy::print_stdout, reason = "the campaign says what it did")]
fn run(campaign: &Campaign) {
    let expected = Cluster::over(Way::Memory, 2, 1, &[("chunk_bytes", "4KiB")]).run(work);
    let (count, first) = (number("PENSTOCK_CUTS", campaign.few), number("PENSTOCK_CUTS_SEED", 0));
    let (mut made, mut failed) = (0, Vec::new());
    for seed in first..first + count {
        match catch_unwind(AssertUnwindSafe(|| play(campaign, seed, &expected))) {
            Ok(cuts) => made += cuts,
            Err(_) => failed.push(seed),
        }
    }
    let Campaign { way, hows, .. } = campaign;
    println!("{way:?} {hows:?}: {count} schedules from seed {first}, {made} happened, failed: {failed:?}");
    assert!(
        failed.is_empty(),
        "play one again with PENSTOCK_CUTS=1 PENSTOCK_CUTS_SEED={}: {failed:?}",
        failed[0]
    );
    assert!(made >= count / 2, "in {count} schedules only {made} happened");
}

const CUT: &[How] = &[How::End, How::Reset];

#[test]
fn a_plain_line_that_is_cut_at_any_byte_of_any_phase_changes_no_bit() {
    run(&Campaign { way: Way::Tcp, hows: CUT, most: 12, lease: "10", few: 12 });
}

#[test]
fn an_encrypted_line_that_is_cut_at_any_byte_of_any_phase_changes_no_bit() {
    run(&Campaign { way: Way::Tls, hows: CUT, most: 12, lease: "10", few: 8 });
}

#[test]
fn a_line_that_falls_silent_in_one_direction_is_made_again_before_anybody_counts_as_lost() {
    run(&Campaign { way: Way::Tcp, hows: &[How::Silence], most: 3, lease: "4", few: 4 });
}

#[test]
fn a_bit_that_flips_anywhere_on_a_plain_line_changes_no_bit_of_the_result() {
    run(&Campaign { way: Way::Tcp, hows: &[How::Flip], most: 12, lease: "10", few: 8 });
}
