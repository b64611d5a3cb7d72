//! What one partition promises, with a reader and a writer that take turns; races are in `slot::loom_tests`.

use super::super::slot::Torn;
use super::*;
use crate::sync::Ordering;
use penstock_kernels::Dtype;
use penstock_proto::items::row_memory::Changed;
use proptest::prelude::*;
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
        let mut writer = writer(70, bytes);
        for round in 1..5u8 {
            let byte = |at| (at as u8).wrapping_mul(round | 1) ^ round;
            let all: Vec<u8> = (0..70 * bytes).map(byte).collect();
            let mut one = writer.begin(70);
            one.put_run(0, round.into(), &all);
            one.finish();
            let mut out = vec![0xee; all.len()];
            writer.rows().read_run(0, &mut out).unwrap();
            assert!(out == all, "{bytes} bytes, at once");
            for (slot, row) in (0..70).zip(all.chunks(bytes as usize)) {
                let out = &mut out[..bytes as usize];
                writer.rows().read(slot, writer.rows().now(), &mut *out).unwrap();
                assert!(*out == *row, "{bytes} bytes, row {slot}");
            }
            let row = &all[..bytes as usize];
            let mut one = writer.begin(1);
            one.put(69, round.into(), row);
            one.finish();
            writer.rows().read(69, writer.rows().now(), &mut out[..bytes as usize]).unwrap();
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
