//! What one partition promises, with a reader and a writer that take turns; races are in `slot::loom_tests`.

use super::super::slot::{Progress, RowGroup, Slot, Torn, UNFINISHED};
use super::super::steps::{Steps, Words};
use super::*;
use crate::sync::{Ordering, OwnedU64};
use penstock_kernels::Dtype;
use penstock_proto::items::row_memory::Changed;
use proptest::prelude::*;
use std::cell::Cell;
use std::time::Duration;

fn writer(slots: u32, row_bytes: u32) -> Writer {
    Writer::private(Layout::new(slots, row_bytes)).unwrap()
}

fn set(writer: &mut Writer, clock: u64, rows: &[(u32, u8)]) {
    let bytes = writer.rows().layout().row_bytes();
    let mut set = writer.begin(rows.len());
    for &(slot, value) in rows {
        set.put(slot, clock, &vec![value; bytes]);
    }
    set.finish();
}

fn get(rows: &Rows, slots: &[u32]) -> (Together, Vec<u8>) {
    let bytes = rows.layout().row_bytes();
    let mut out = vec![0; bytes * slots.len()];
    let together = rows.read_together(slots, |at| at, &mut out).unwrap();
    assert!(out.chunks(bytes).all(|row| row.iter().all(|&byte| byte == row[0])), "I-1");
    (together, out.chunks(bytes).map(|row| row[0]).collect())
}

/// All of them, or a few where an interpreter goes through them.
fn lengths(all: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
    all.filter(|bytes| !cfg!(miri) || [12, 60, 104].contains(bytes))
}

#[test]
fn readers_of_this_process_look_at_rows_while_they_are_written() {
    for bytes in [12, 40, 104, 264] {
        let mut writer = writer(16, bytes);
        let rows = writer.rows().clone();
        let rounds = if cfg!(miri) { 4 } else { 300 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..rounds {
                    let value = round as u8;
                    set(&mut writer, round, &[(3, value), (5, value)]);
                    let mut run = writer.begin(16);
                    run.put_run(0, round, &vec![value; 16 * bytes as usize]);
                    run.finish();
                    let mut sum = writer.begin(1);
                    sum.add(3, round, Dtype::F32, &vec![0; bytes as usize]);
                    sum.add(3, round, Dtype::F32, &vec![0; bytes as usize]);
                    sum.finish();
                }
            });
            for _ in 0..rounds {
                let mut out = vec![0; bytes as usize];
                if rows.read(3, rows.now(), &mut out).is_ok() {
                    assert!(out.iter().all(|&byte| byte == out[0]), "I-1");
                }
                let mut out = vec![0; 16 * bytes as usize];
                let _ = rows.read_run(0, &mut out);
            }
        });
    }
}

#[test]
fn rows_of_every_length_come_back_as_they_were_set() {
    for bytes in lengths((1..140).chain([1000, 4096, 65_536])) {
        let mut writer = writer(3, bytes);
        for round in 1..5u8 {
            let mut one = writer.begin(3);
            for slot in 0..3u8 {
                let row: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(round) ^ slot).collect();
                one.put(slot.into(), u64::from(round), &row);
            }
            one.finish();
            for slot in 0..3u8 {
                let mut out = vec![0xee; bytes as usize];
                let look = writer.rows().read(slot.into(), writer.rows().now(), &mut out).unwrap();
                let row: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(round) ^ slot).collect();
                assert_eq!((out, look.clock), (row, u64::from(round)), "{bytes} bytes");
            }
        }
    }
}

#[test]
fn a_run_of_rows_of_every_length_comes_back_as_it_was_set() {
    for bytes in lengths((1..140).chain([512, 1000, 1024, 4096])) {
        // Of one length more row groups than are asked for in advance.
        let rows = if bytes == 512 { 150 } else { 70 };
        let mut writer = writer(rows, bytes);
        for round in 1..5u8 {
            let byte = |at| (at as u8).wrapping_mul(round | 1) ^ round;
            let all: Vec<u8> = (0..rows * bytes).map(byte).collect();
            let mut one = writer.begin(rows as usize);
            one.put_run(0, round.into(), &all);
            one.finish();
            let mut out = vec![0xee; all.len()];
            writer.rows().read_run(0, &mut out).unwrap();
            assert!(out == all, "{bytes} bytes, at once");
            for (slot, row) in (0..rows).zip(all.chunks(bytes as usize)) {
                let out = &mut out[..bytes as usize];
                writer.rows().read(slot, writer.rows().now(), &mut *out).unwrap();
                assert!(*out == *row, "{bytes} bytes, row {slot}");
            }
            let row = &all[..bytes as usize];
            let mut one = writer.begin(1);
            one.put(rows - 1, round.into(), row);
            one.finish();
            writer.rows().read(rows - 1, writer.rows().now(), &mut out[..bytes as usize]).unwrap();
            assert!(out[..bytes as usize] == *row, "{bytes} bytes, by itself");
        }
    }
}

#[test]
fn a_set_that_was_dropped_changes_nothing_and_the_next_is_whole() {
    let mut writer = writer(2, 16);
    set(&mut writer, 1, &[(0, 1), (1, 1)]);
    let mut broken = writer.begin(2);
    broken.put(0, 2, &[9; 16]);
    drop(broken);
    assert_eq!(get(writer.rows(), &[0, 1]), (Together { version: 1, as_of: 1 }, vec![1, 1]));
    set(&mut writer, 2, &[(1, 2)]);
    assert_eq!(
        get(writer.rows(), &[0, 1]).1,
        [1, 2],
        "the next set has the number of the one that was dropped"
    );
}

#[test]
fn a_row_that_comes_twice_in_a_set_has_its_last_value_and_adds_up() {
    let mut writer = writer(1, 8);
    set(&mut writer, 1, &[(0, 1)]);
    set(&mut writer, 2, &[(0, 2), (0, 3)]);
    assert_eq!(get(writer.rows(), &[0]).1, [3]);
    let mut sums = Writer::private(Layout::new(1, 8)).unwrap();
    for clock in 1..4 {
        let mut one = sums.begin(2);
        one.add(0, clock, Dtype::F64, &1.5f64.to_le_bytes());
        one.add(0, clock, Dtype::F64, &0.5f64.to_le_bytes());
        one.finish();
    }
    let mut out = [0; 8];
    sums.rows().read(0, sums.rows().now(), &mut out).unwrap();
    assert_eq!(f64::from_le_bytes(out), 6.0);
}

#[test]
fn rows_of_a_mirror_that_were_never_current_together_are_refused() {
    let mut mirror = writer(2, 8);
    // Set 3 wrote both; the mirror fetched row 0 after it and row 1 before it.
    mirror.refresh(1, 1, 1, 2, Some(&[1; 8]));
    mirror.refresh(0, 3, 3, 3, Some(&[3; 8]));
    let together = mirror.rows().read_together(&[0, 1], |at| at, &mut [0; 16]);
    assert_eq!(together, Err(Torn), "I-3");
    assert_eq!(mirror.rows().apart(&[0, 1]), Ok(Some(1)), "row 1 may have been set again by set 3");
    assert_eq!(mirror.rows().apart(&[1]), Ok(None));
    // Had set 3 not changed row 1, as a second look says, they would belong together.
    mirror.refresh(1, 1, 3, 3, None);
    assert_eq!(get(mirror.rows(), &[0, 1]), (Together { version: 3, as_of: 3 }, vec![3, 1]));
    assert_eq!(mirror.rows().apart(&[0, 1]), Ok(None));
}

#[test]
fn a_view_says_when_the_writer_has_come_round() {
    let mut writer = writer(1, 64);
    set(&mut writer, 1, &[(0, 1)]);
    let shown = writer.rows().show(0, writer.rows().now()).unwrap();
    assert!(shown.is_valid());
    set(&mut writer, 2, &[(0, 2)]);
    assert!(shown.is_valid(), "the other buffer was written");
    set(&mut writer, 3, &[(0, 3)]);
    assert!(!shown.is_valid());
}

/// Two threads of a producer complete iterations and declare, or drop, at once; the later of them may know of fewer iterations.
/// The floor fell then, and a get that waited for a row of a producer that had left waited until the deadline.
#[test]
fn a_floor_never_falls() {
    let mut writer = writer(1, 8);
    let rows = writer.rows().clone();
    for (floor, stands) in [(2, 2), (1, 2), (u64::MAX, u64::MAX), (3, u64::MAX), (0, u64::MAX)] {
        writer.raise(floor);
        assert_eq!(rows.floor(), stands, "after {floor}");
    }
}

#[test]
fn a_follower_is_behind_by_what_was_written_and_not_by_what_was_announced() {
    // Fewer rows than announced, or more, in a set that is finished or dropped; the change log has 512 entries.
    let sets = [(513, 1, true), (513, 0, true), (513, 1, false), (1, 201, true), (200, 201, false)];
    for (announced, written, kept) in sets {
        let mut writer = writer(200, 8);
        let mut follower = Follower::default();
        let rows = writer.rows().clone();
        let mut one = writer.begin(announced);
        (0..written).for_each(|row| one.put(row % 200, 1, &[1; 8]));
        let mut heard = Vec::new();
        assert!(follower.changed(&rows, &mut heard).is_ok(), "{written} of {announced}, open");
        assert!(heard.is_empty());
        if kept {
            one.finish();
        } else {
            drop(one);
        }
        let mut heard = Vec::new();
        assert!(follower.changed(writer.rows(), &mut heard).is_ok(), "{written} of {announced}");
        assert_eq!(heard.len() as u32, written);
    }
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn a_region_that_was_sealed_has_one_writer() {
    let layout = Layout::new(4, 32);
    let region = make(&layout).unwrap();
    let mut writer = Writer::shared(layout, region.fd()).unwrap();
    region.seal().unwrap();
    assert!(Writer::shared(layout, region.fd()).is_err(), "the kernel refuses a second");
    let reader = Rows::open(layout, region.fd()).unwrap();
    set(&mut writer, 1, &[(3, 7)]);
    assert_eq!(get(&reader, &[3, 0]).1, [7, 0]);
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn a_sleeper_is_woken_by_its_row_and_not_by_another() {
    let mut writer = writer(2, 8);
    let (waiters, region) = Waiters::make().unwrap();
    let other = Waiters::open(region.fd()).unwrap();
    let seat = other.seat().unwrap();
    let rings = seat.announce(1, 1);
    set(&mut writer, 1, &[(0, 1)]);
    assert!(!waiters.wake(writer.rows()));
    assert_eq!(seat.line.rings.load(Ordering::Relaxed), rings, "row 0 is not what it waits for");
    set(&mut writer, 1, &[(1, 1)]);
    waiters.wake(writer.rows());
    assert_ne!(seat.line.rings.load(Ordering::Relaxed), rings);
    seat.sleep(rings, Duration::from_secs(60));
}

/// What a test does to a partition of rows of a word.
#[derive(Debug, Clone)]
enum Step {
    Run {
        first: u32,
        count: u32,
    },
    Rows(Vec<u32>),
    /// A row, then a run, then a row, in one set.
    Mixed {
        row: u32,
        first: u32,
        count: u32,
    },
    Add(Vec<u32>),
}

const ROWS: u32 = 200;

fn run() -> impl Strategy<Value = (u32, u32)> {
    (0..ROWS).prop_flat_map(|first| (Just(first), 1..=ROWS - first))
}

fn step() -> impl Strategy<Value = Step> {
    let rows = || prop::collection::vec(0..ROWS, 1..8);
    prop_oneof![
        3 => run().prop_map(|(first, count)| Step::Run { first, count }),
        1 => Just(Step::Run { first: 0, count: ROWS }),
        3 => rows().prop_map(Step::Rows),
        1 => (0..ROWS, run()).prop_map(|(row, (first, count))| Step::Mixed { row, first, count }),
        2 => rows().prop_map(Step::Add),
    ]
}

fn words(rows: &[u64]) -> Vec<u8> {
    rows.iter().flat_map(|row| row.to_le_bytes()).collect()
}

proptest! {
    #[test]
    fn rows_in_slots_and_row_groups_are_those_that_were_set_last(
        steps in prop::collection::vec((step(), any::<bool>()), 1..20),
        look in run(),
    ) {
        let mut writer = writer(ROWS, 8);
        let mut follower = Follower::default();
        let mut model = vec![(0u64, 0u64); ROWS as usize];
        for ((step, kept), clock) in steps.into_iter().zip(1u64..) {
            let mut after = model.clone();
            let mut value = 1000 * clock;
            let mut next = || { value += 1; value };
            let mut one = writer.begin(ROWS as usize);
            match &step {
                Step::Run { first, count } => {
                    let values: Vec<u64> = (0..*count).map(|_| next()).collect();
                    one.put_run(*first, clock, &words(&values));
                    (*first..).zip(values).for_each(|(row, value)| after[row as usize] = (value, clock));
                }
                Step::Mixed { row, first, count } => {
                    let values: Vec<u64> = (0..*count).map(|_| next()).collect();
                    one.put(*row, clock, &next().to_le_bytes());
                    one.put_run(*first, clock, &words(&values));
                    (*first..).zip(values).for_each(|(row, value)| after[row as usize] = (value, clock));
                    let last = next();
                    one.put(*first, clock, &last.to_le_bytes());
                    after[*first as usize] = (last, clock);
                    if !(*first..first + count).contains(row) {
                        after[*row as usize] = (5000, clock);
                        one.put(*row, clock, &5000u64.to_le_bytes());
                    }
                }
                Step::Rows(rows) => for &row in rows {
                    let value = next();
                    one.put(row, clock, &value.to_le_bytes());
                    after[row as usize] = (value, clock);
                },
                Step::Add(rows) => for &row in rows {
                    let (sum, _) = after[row as usize];
                    let sum = f64::from_bits(sum) + 1.0;
                    one.add(row, clock, Dtype::F64, &1f64.to_le_bytes());
                    after[row as usize] = (sum.to_bits(), clock);
                },
            }
            if kept {
                one.finish();
            } else {
                drop(one);
            }
            let mut heard = Vec::new();
            prop_assert!(follower.changed(writer.rows(), &mut heard).is_ok());
            let number = writer.done() as u32;
            for row in 0..ROWS {
                let at = row as usize;
                prop_assert!(!kept || model[at] == after[at] || heard.iter().any(|heard| heard.set == number && (heard.first..heard.first + heard.count).contains(&row)), "row {row}");
            }
            if kept {
                model = after;
            }
            let rows = writer.rows();
            let mut out = [0; 8];
            for row in 0..ROWS {
                let look = rows.read(row, rows.now(), &mut out).unwrap();
                prop_assert_eq!((u64::from_le_bytes(out), look.clock), model[row as usize]);
                prop_assert_eq!(writer.peek(row).1, look.clock);
            }
            let (first, count) = (look.0 as usize, look.1 as usize);
            let expected = &model[first..first + count];
            let mut run = vec![0; 8 * count];
            let together = rows.read_run(look.0, &mut run).unwrap();
            let values: Vec<u64> = expected.iter().map(|&(value, _)| value).collect();
            prop_assert_eq!(run, words(&values));
            prop_assert_eq!(Some(together.version), expected.iter().map(|&(_, clock)| clock).min());
            prop_assert_eq!(Some(writer.newest_clock(look.0, look.1)), expected.iter().map(|&(_, clock)| clock).max());
            let latest = model.iter().map(|&(_, clock)| clock).max().unwrap();
            prop_assert!(latest == 0 || !writer.is_latest(latest - 1));
        }
    }
}

proptest! {
    #[test]
    fn a_follower_hears_of_every_row_that_changed(sets in prop::collection::vec(prop::collection::vec(0u32..40, 1..60), 0..12)) {
        let mut writer = writer(40, 8);
        let mut follower = Follower::default();
        for (rows, clock) in sets.iter().zip(1..) {
            let before = writer.done();
            let rows: Vec<(u32, u8)> = rows.iter().map(|&slot| (slot, 1)).collect();
            set(&mut writer, clock, &rows);
            if clock % 3 == 0 {
                continue; // falls behind
            }
            let mut heard = Vec::new();
            if follower.changed(writer.rows(), &mut heard).is_ok() {
                for slot in 0..40 {
                    let number = writer.peek(slot).0;
                    let changed = Changed { first: slot, count: 1, set: number as u32 };
                    let told = heard.contains(&changed);
                    prop_assert!(number <= before || told);
                }
            }
        }
    }
}

/// No number of a set that is not finished stands anywhere.
fn none_is_left(writer: &Writer) -> bool {
    let (rows, done) = (writer.rows(), writer.done());
    let slots = (0..rows.slots()).map(|slot| rows.head(slot).buffers.numbers());
    let row_groups = (0..rows.row_groups()).map(|row_group| rows.row_group(row_group).buffers.numbers());
    slots.chain(row_groups).flatten().all(|number| number <= done || number == UNFINISHED)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// The change log has 512 entries.
    #[test]
    fn a_set_of_more_rows_than_the_change_log_has_entries_is_dropped_and_nothing_of_it_stays(
        bytes in prop_oneof![Just(8u32), Just(12)],
        before in prop::collection::vec((0..ROWS, 1..9u8), 0..20),
        first in prop::option::of(run()),
        rows in prop::collection::vec(0..ROWS, 400..1500),
        after in prop::collection::vec((0..ROWS, 10..20u8), 1..5),
    ) {
        let mut writer = writer(ROWS, bytes);
        let mut whole = writer.begin(ROWS as usize);
        whole.put_run(0, 1, &vec![1; (ROWS * bytes) as usize]);
        whole.finish();
        set(&mut writer, 2, &before);
        let all: Vec<u32> = (0..ROWS).collect();
        let mut model = get(writer.rows(), &all).1;
        let mut broken = writer.begin(rows.len());
        if let Some((first, count)) = first {
            broken.put_run(first, 3, &vec![99; (count * bytes) as usize]);
        }
        rows.iter().for_each(|&row| broken.put(row, 3, &vec![98; bytes as usize]));
        drop(broken);
        prop_assert!(none_is_left(&writer));
        prop_assert_eq!(&get(writer.rows(), &all).1, &model);
        // It has the number of the one that was dropped.
        set(&mut writer, 3, &after);
        after.iter().for_each(|&(row, value)| model[row as usize] = value);
        prop_assert_eq!(get(writer.rows(), &all).1, model);
        prop_assert!(none_is_left(&writer));
    }

    /// Whatever a peer sends in a set that it does not end, also rows that come again and again.
    #[test]
    fn no_number_of_a_mirror_s_set_that_was_dropped_stays(
        puts in prop::collection::vec((run(), 0..3u64), 1..200),
    ) {
        let mut mirror = writer(ROWS, 64);
        mirror.open(1, 2);
        mirror.put_run_from(0, 1, 1, &[1; 64 * ROWS as usize]);
        mirror.finish();
        mirror.open(10_000, 2);
        let mut number = 2;
        for ((first, count), later) in puts {
            number += later;
            mirror.put_run_from(first, number, 2, &vec![2; 64 * count as usize]);
        }
        mirror.abort();
        prop_assert!(none_is_left(&mirror));
    }
}

/// Rows, and how many heads were looked at.
#[derive(Debug)]
struct Counted {
    rows: Rows,
    looked: Cell<usize>,
}

impl Counted {
    fn look<T>(&self, of: T) -> T {
        self.looked.set(self.looked.get() + 1);
        of
    }
}

impl Words for Counted {
    fn progress(&self) -> &Progress {
        Words::progress(&self.rows)
    }

    fn entries(&self) -> u64 {
        Words::entries(&self.rows)
    }

    fn entry(&self, at: u64) -> &OwnedU64 {
        Words::entry(&self.rows, at)
    }

    fn slots(&self) -> u32 {
        Words::slots(&self.rows)
    }

    fn head(&self, slot: u32) -> &Slot {
        self.look(self.rows.head(slot))
    }

    fn row_groups(&self) -> u32 {
        Words::row_groups(&self.rows)
    }

    fn row_group(&self, row_group: u32) -> &RowGroup {
        self.look(self.rows.row_group(row_group))
    }

    fn row_group_of(&self, slot: u32) -> Option<&RowGroup> {
        Words::row_group_of(&self.rows, slot)
    }
}

/// Whoever sends rows may begin sets and not end them. All rows of the partition were looked at for each, if it had more rows than
/// the change log has entries.
#[test]
#[cfg_attr(miri, ignore = "many rows")]
fn a_set_that_is_dropped_takes_as_long_as_its_rows_took_and_not_as_the_partition_has() {
    for (put, step) in [(65_537, 1), (100_000, 1), (100_000, 19), (300_000, 1)] {
        let rows = writer(2_000_000, 8).rows().clone();
        let mut steps = Steps::over(Counted { rows, looked: Cell::new(0) });
        for _ in 0..2 {
            steps.open(1, 2);
            (0..put).for_each(|row| steps.put(row % 100_000 * step, 1, 1, |_, _, _| {}));
            steps.put_row_group(31_249, 1, 1, |_, _| {});
            steps.words().looked.set(0);
            steps.abort();
            let looked = steps.words().looked.get();
            let most = put.min(100_000) as usize + 1 + 65_536;
            assert!(looked <= most, "{looked} of {put} that were put");
        }
    }
}

#[test]
fn what_is_noted_of_a_set_is_little_beside_the_rows() {
    for (slots, bytes) in [(0, 1), (1, 1), (1000, 1), (5_000_000, 8), (100_000_000, 1), (1 << 31, 1024)] {
        let layout = Layout::new(slots, bytes);
        assert!(layout.most_beside() <= layout.total() / 256, "{slots} rows of {bytes} bytes");
    }
}
