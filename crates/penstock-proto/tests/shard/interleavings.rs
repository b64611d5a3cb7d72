//! What holds for any programs of workers, in any order in which they move.

use crate::rig::*;
use penstock_kernels::Settings;
use penstock_proto::Rank;
use penstock_proto::clock::MAX_CLOCK;
use penstock_proto::consistency::Consistency::{self, Asp, Bsp, Ssp};
use penstock_proto::error::JobFailure;
use penstock_proto::shard::SubmissionRefused;
use penstock_proto::submission::Submission;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What one worker does in one iteration: the chunk ranges that it pushes, each so many times.
type Iteration = Vec<(u32, u32, usize)>;

/// Workers' programs, the chunks homed here, and the order in which the workers move.
#[derive(Debug, Clone)]
struct Plan {
    total: u32,
    chunks: Vec<u32>,
    programs: Vec<Vec<Iteration>>,
    order: Vec<prop::sample::Index>,
    /// Which worker is removed, after so many moves.
    lost: Option<(usize, u32)>,
    /// Whether folds wait for their commit.
    late: bool,
}

const ITERATIONS: usize = 5;

fn iteration(total: u32) -> impl Strategy<Value = Iteration> {
    let range = (0..total, 1..=total, 1usize..3).prop_map(move |(first, count, times)| {
        (first, count.min(total - first), times) // ranges may overlap: what comes twice is folded once
    });
    prop::collection::vec(range, 0..4)
}

fn plans() -> impl Strategy<Value = Plan> {
    (1u32..5, 1u32..6).prop_flat_map(|(workers, total)| {
        let program = prop::collection::vec(iteration(total), ITERATIONS);
        let programs = prop::collection::vec(program, workers as usize);
        let chunks = prop::sample::subsequence((0..total).collect::<Vec<_>>(), 1..=total as usize);
        let order = prop::collection::vec(any::<prop::sample::Index>(), 400);
        let lost = prop::option::weighted(0.3, (0usize..40, 0..workers));
        let all = (Just(total), chunks, programs, order, lost, any::<bool>());
        all.prop_map(|(total, chunks, programs, order, lost, late)| Plan {
            total,
            chunks,
            programs,
            order,
            lost,
            late,
        })
    })
}

/// A worker on its way through its program.
#[derive(Debug, Clone, Default)]
struct Walker {
    moves: Vec<Submission>,
    at: usize,
    /// Contributions it has made to chunks homed here, and for each chunk the stamps.
    made: u64,
    stamps: BTreeMap<u32, Vec<u64>>,
}

impl Walker {
    fn new(program: &[Iteration]) -> Self {
        let mut moves = Vec::new();
        for (stamp, ranges) in (0u64..).zip(program) {
            for &(first, count, times) in ranges {
                moves.extend(std::iter::repeat_n(pushed(first, count, stamp), times));
            }
            moves.push(Submission::Clock { clock: stamp + 1 });
        }
        Self { moves, ..Self::default() }
    }

    fn note(&mut self, chunks: &[u32]) {
        if let Submission::Push { first, count, stamp, .. } = self.moves[self.at] {
            for &chunk in chunks.iter().filter(|&&chunk| (first..first + count).contains(&chunk)) {
                let stamps = self.stamps.entry(chunk).or_default();
                if stamps.last() != Some(&stamp) {
                    stamps.push(stamp);
                    self.made += 1;
                }
            }
        }
        self.at += 1;
    }
}

/// What worker `rank` contributes with `stamp`: a power of two of its own, so that a sum names its updates.
fn mark(rank: Rank, stamp: u64) -> f64 {
    f64::from(1u32 << (rank * ITERATIONS as u32 + stamp as u32))
}

/// Walks the plan; `check` sees the shard after each move.
fn walk(plan: &Plan, consistency: Consistency, mut check: impl FnMut(&Rig, &[Walker])) -> (Rig, Vec<Walker>) {
    let workers = plan.programs.len() as u32;
    let mut rig = Rig::with(workers, spec(consistency), plan.total, plan.chunks.clone());
    rig.home.late = plan.late;
    let mut walkers: Vec<Walker> = plan.programs.iter().map(|program| Walker::new(program)).collect();
    let mut order = plan.order.iter().cycle();
    for moved in 0.. {
        if let Some((after, rank)) = plan.lost
            && moved == after
        {
            rig.remove(rank);
            check(&rig, &walkers);
        }
        let can_move = |&rank: &Rank| {
            let walker = &walkers[rank as usize];
            let folded = rig.home.folded.get(&(W, rank)).copied().unwrap_or(0);
            // An honest worker overwrites its lane only when all of it is folded.
            let stamp = |at: usize| match walker.moves.get(at) {
                Some(&Submission::Push { stamp, .. }) => Some(stamp),
                _ => None,
            };
            let goes_on = walker.at > 0 && stamp(walker.at) == stamp(walker.at - 1);
            let free = stamp(walker.at).is_none() || goes_on || folded == walker.made;
            rig.shard.clocks().is_live(rank) && walker.at < walker.moves.len() && free
        };
        let movable: Vec<Rank> = (0..workers).filter(can_move).collect();
        let &chance = order.next().unwrap();
        if (movable.is_empty() || chance.index(2) == 0) && rig.commit(chance) {
            check(&rig, &walkers);
            continue;
        }
        if movable.is_empty() {
            break;
        }
        let rank = *order.next().unwrap().get(&movable);
        let walker = &mut walkers[rank as usize];
        if let Submission::Push { stamp, .. } = walker.moves[walker.at] {
            rig.home.lanes.insert((W, rank), mark(rank, stamp));
        }
        let submission = walker.moves[walker.at];
        walker.note(&plan.chunks);
        rig.submit(rank, submission);
        check(&rig, &walkers);
    }
    (rig, walkers)
}

/// The sum of the updates to `chunk` that `which` (of rank and stamp) holds for.
fn sum_of(walkers: &[Walker], chunk: u32, which: impl Fn(Rank, u64) -> bool) -> f64 {
    let of = |(rank, walker): (Rank, &Walker)| -> f64 {
        let stamps = walker.stamps.get(&chunk).into_iter().flatten();
        stamps.filter(|&&stamp| which(rank, stamp)).map(|&stamp| mark(rank, stamp)).sum()
    };
    (0..).zip(walkers).map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn under_bsp_version_v_is_exactly_the_updates_stamped_below_v(plan in plans()) {
        walk(&plan, Bsp, |rig, walkers| {
            for &chunk in &plan.chunks {
                let Published { version, value, .. } = rig.chunk(chunk);
                assert_eq!(value, sum_of(walkers, chunk, |_, stamp| stamp < version), "C-2, C-3: chunk {chunk}");
            }
        });
    }

    #[test]
    fn under_bsp_every_interleaving_folds_the_same_sets_in_the_same_order(
        plan in plans(), other in prop::collection::vec(any::<prop::sample::Index>(), 400),
    ) {
        let plan = Plan { lost: None, ..plan };
        let folds = |plan: &Plan, chunk: u32| -> Vec<Folded> {
            let (rig, _) = walk(plan, Bsp, |_, _| {});
            assert_eq!(rig.chunk(chunk).version, ITERATIONS as u64, "everybody came through");
            rig.home.folds.get(&W).into_iter().flatten().filter(|fold| fold.chunk == chunk).cloned().collect()
        };
        let again = Plan { order: other, late: !plan.late, ..plan.clone() };
        for &chunk in &plan.chunks {
            let first = folds(&plan, chunk);
            prop_assert_eq!(&first, &folds(&again, chunk), "C-4");
            prop_assert!(first.iter().all(|fold| fold.writers.is_sorted()), "C-4");
        }
    }

    #[test]
    fn outside_bsp_version_v_holds_every_update_below_v_of_the_live_and_none_twice(plan in plans()) {
        let plan = Plan { late: false, ..plan };
        walk(&plan, Ssp(1), |rig, walkers| {
            for &chunk in &plan.chunks {
                let Published { version, value, .. } = rig.chunk(chunk);
                assert_eq!(value, sum_of(walkers, chunk, |_, _| true), "C-3: all that came, once");
                let clocks = rig.shard.clocks();
                let reached = |rank: Rank| {
                    let stamps = walkers[rank as usize].stamps.get(&chunk);
                    clocks.of(rank).max(stamps.and_then(|stamps| stamps.last()).map_or(0, |stamp| stamp + 1))
                };
                let least = clocks.live().map(reached).min();
                assert!(least.is_none_or(|least| version == least), "C-2: chunk {chunk}, {version}, {least:?}");
            }
        });
    }

    #[test]
    fn outside_bsp_what_waits_for_a_commit_is_in_no_version_and_comes_in_its_turn(plan in plans()) {
        let plan = Plan { late: true, ..plan };
        let (rig, walkers) = walk(&plan, Ssp(1), |rig, walkers| {
            for &chunk in &plan.chunks {
                let Published { version, value, .. } = rig.chunk(chunk);
                let came = sum_of(walkers, chunk, |_, _| true) as u64;
                let live = |rank: Rank| rig.shard.clocks().is_live(rank);
                let due = sum_of(walkers, chunk, |rank, stamp| live(rank) && stamp < version) as u64;
                let holds = value as u64;
                assert_eq!(holds & !came, 0, "C-3: nothing that did not come");
                assert_eq!(due & !holds, 0, "C-2: chunk {chunk}, version {version}");
            }
        });
        for &chunk in &plan.chunks {
            assert_eq!(rig.chunk(chunk).value, sum_of(&walkers, chunk, |_, _| true), "all of it, in the end");
        }
    }

    #[test]
    fn progress_is_the_least_version_and_the_missing_are_who_holds_it_there(plan in plans(), asp: bool) {
        walk(&plan, if asp { Asp } else { Bsp }, |rig, _| {
            let least = plan.chunks.iter().map(|&chunk| rig.chunk(chunk).version).min();
            assert_eq!(rig.progress(), least);
            let told = &rig.home.progress[&W];
            assert!(told.is_sorted_by(|a, b| a < b), "each value is told once: {told:?}");
            let least = least.unwrap();
            assert!(rig.shard.missing(W, least).is_empty());
            let missing = rig.shard.missing(W, least + 1);
            let waits = rig.shard.clocks().live_count() == 0 || !rig.home.aside.is_empty();
            assert!(!missing.is_empty() || waits, "{missing:?}");
            assert!(missing.iter().all(|&rank| rig.shard.clocks().is_live(rank)));
        });
    }

    #[test]
    fn every_contribution_is_counted_back_to_its_writer_once(plan in plans()) {
        let plan = Plan { lost: None, ..plan };
        for consistency in [Bsp, Asp] {
            let (rig, walkers) = walk(&plan, consistency, |_, _| {});
            for (rank, walker) in (0..).zip(&walkers) {
                assert_eq!(rig.home.folded.get(&(W, rank)).copied().unwrap_or(0), walker.made);
            }
        }
    }

    #[test]
    fn no_words_make_the_shard_panic_or_move_another_workers_clock(
        words in prop::collection::vec(prop::collection::vec((0u64..6, any::<u64>(), 0u8..3), 8), 1..40),
    ) {
        for consistency in [Bsp, Ssp(1)] {
            let mut rig = Rig::new(3, 4, consistency);
            let mut pushed_last = None;
            for eight in &words {
                // Small numbers mostly, so that some are accepted; wild ones and the edges between.
                let pick = |&(small, wild, which): &(u64, u64, u8)| match which {
                    0 => wild,
                    1 => [u64::MAX, MAX_CLOCK, 1 << 32, u64::from(u32::MAX)][wild as usize % 4],
                    _ => small,
                };
                let eight: [u64; 8] = std::array::from_fn(|at| pick(&eight[at]));
                if let Ok(submission) = Submission::decode(eight)
                    && rig.try_submit(1, submission).is_ok()
                    && let Submission::Push { stamp, settings, .. } = submission
                {
                    pushed_last = Some((stamp, settings));
                }
            }
            prop_assert_eq!(rig.shard.clocks().of(0), 0);
            check_others_go_on(&mut rig, consistency, pushed_last);
        }
    }
}

/// Workers 0 and 2 of three go on without worker 1, unless what it pushed last has settings of its own for their iteration.
fn check_others_go_on(rig: &mut Rig, consistency: Consistency, pushed_last: Option<(u64, Settings)>) {
    rig.remove(1);
    let ours = pushed(0, 4, 0);
    let conflicts = pushed_last.is_some_and(|(stamp, theirs)| {
        let Submission::Push { settings, .. } = ours else { unreachable!("it is a push") };
        consistency == Bsp && stamp == 0 && theirs != settings
    });
    for (rank, other) in [(0, (0, 1)), (2, (1, 2))] {
        match rig.try_submit(rank, ours) {
            Err(SubmissionRefused::Failure(JobFailure::SettingsConflict { first, second, .. })) => {
                assert!(conflicts && (first, second) == other, "{rank}: {first} and {second}");
            }
            done => assert!(done.is_ok() && !conflicts, "{rank}: {done:?}"),
        }
    }
    assert!(conflicts || rig.progress() == Some(1), "the others go on");
}

#[test]
fn a_push_of_no_chunk_with_settings_of_its_own_counts_as_one_and_of_a_later_iteration_does_not() {
    for (stamp, consistency) in [(0, Bsp), (0, Ssp(1)), (1, Bsp)] {
        let mut rig = Rig::new(3, 4, consistency);
        rig.submit(1, Submission::Clock { clock: stamp });
        rig.submit(1, rated(0, 0, stamp, 0.0));
        check_others_go_on(&mut rig, consistency, Some((stamp, Settings([0.0; 5]))));
    }
}
