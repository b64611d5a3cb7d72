use super::*;
use crate::publish::{Published, Torn};
use crate::region::{Mapping, Region, Writers};
use crate::sync::Ordering;
use penstock_kernels::{Dtype, Foreign};
use penstock_proto::chunk::Cut;
use penstock_proto::placement::Extent;
use std::ops::Range;
use std::sync::Arc;

// Each is the only one that may write something, so none may be cloned. For a type that can be cloned, `there` would come from
// two traits, and this would not compile.
const _: fn() = || {
    trait Has<Which> {
        fn there() {}
    }
    struct AlsoClone;
    impl<T> Has<()> for T {}
    impl<T: Clone> Has<AlsoClone> for T {}
    let _ = <LaneView as Has<_>>::there;
    let _ = <OwnLane as Has<_>>::there;
    let _ = <HomeMemory as Has<_>>::there;
};

fn layout(bytes: u64, extent: Extent) -> ExtentLayout {
    ExtentLayout::new(Cut::new(bytes, 4096), extent, Dtype::Bf16, 8)
}

#[test]
fn the_last_chunk_of_an_extent_may_be_short_and_its_state_with_it() {
    let layout = layout(4096 * 2 + 10, Extent { first: 1, count: 2 });
    assert_eq!(layout.bytes(), 4096 + 10);
    assert_eq!(layout.value(2), 4096..4106);
    assert_eq!(layout.state(2), 4096 / 2 * 8..4096 / 2 * 8 + 5 * 8);
    assert_eq!(layout.state_bytes(), layout.state(2).end);
    assert_eq!((layout.whole(2), layout.beside(2)), (None, layout.state(2)));
}

#[test]
fn what_a_filter_holds_back_of_stands_whole_before_the_state_and_both_on_cache_lines() {
    let layout = layout(4096 * 2 + 10, Extent { first: 1, count: 2 }).holding_back(true);
    let second = 4096 + 4096 / 2 * 8;
    assert_eq!((layout.whole(1), layout.state(1)), (Some(0..4096), 4096..second));
    assert_eq!(
        (layout.whole(2), layout.state(2)),
        (Some(second..second + 10), second + 64..second + 64 + 40)
    );
    assert_eq!((layout.beside(1), layout.beside(2)), (0..second, second..second + 104));
    assert_eq!((layout.state_bytes(), second % 64), (second + 104, 0));
    let nothing = ExtentLayout::new(Cut::new(8, 4096), Extent { first: 0, count: 0 }, Dtype::F32, 4);
    assert_eq!(nothing.holding_back(true).state_bytes(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn a_worker_sees_the_extents_of_two_servers_as_one_array() {
    let cut = Cut::new(3 * 4096 + 8, 4096);
    let extents = [Extent { first: 0, count: 2 }, Extent { first: 2, count: 2 }];
    let mut parts = Vec::new();
    let mut homes = Vec::new();
    for extent in extents {
        let layout = ExtentLayout::new(cut, extent, Dtype::F32, 0);
        let (home, descriptors) = HomeRegions::new("w", layout).unwrap().split(&[0, 0], 1);
        let (mut lanes, region) = LaneView::new("lane", layout.lane(), 1).unwrap();
        let fds =
            (descriptors.model().try_clone_to_owned().unwrap(), region.fd().try_clone_to_owned().unwrap());
        parts.push(ServerPart { extent, place: Some(Place::Own(fds.0, fds.1)) });
        homes.push((home.into_iter().next().unwrap(), lanes.remove(0)));
    }
    let (worker, mut own) = WorkerMemory::new(cut, Dtype::F32, &parts).unwrap();
    let mut chunk = homes[1].0.chunk(3);
    chunk.header.begin();
    chunk.seen.fill(9);
    assert_eq!(worker.read_chunk(3, &mut [0; 8]), Err(Torn));
    homes[1].0.header(3).publish(Published { version: 5, steps: 4 });
    let mut out = [0; 8];
    assert_eq!(worker.read_chunk(3, &mut out), Ok(Published { version: 5, steps: 4 }));
    assert_eq!(out, [9; 8]);
    own.write(3 * 4096, Foreign::of(&[7; 8]));
    homes[1].1.contribution(4096..4104).copy_to(&mut out);
    assert_eq!(out, [7; 8]);
    let lane = worker.lane().foreign(3 * 4096..3 * 4096 + 8);
    own.write(3 * 4096 + 4, lane.part(0..4));
    own.write(3 * 4096 + 2, lane.part(0..6));
    own.write(3 * 4096, lane);
    homes[1].1.contribution(4096..4104).copy_to(&mut out);
    assert_eq!(out, [7; 8]);
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
#[should_panic(expected = "has another home")]
fn a_shard_is_not_lent_the_chunk_of_another() {
    let layout = layout(4096 * 2, Extent { first: 0, count: 2 });
    let (mut homes, _) = HomeRegions::new("w", layout).unwrap().split(&[0, 1], 2);
    homes[0].chunk(1);
}

fn received() -> Vec<LaneView> {
    let layout = layout(4096 * 3 - 6, Extent { first: 1, count: 2 });
    LaneView::private(layout, &Arc::from([1, 0]), 2).unwrap().0
}

#[test]
fn what_is_received_stands_in_the_lane() {
    let mut lanes = received();
    lanes[1].receive(0..4096).fill(3);
    lanes[0].receive(4096..8186).fill(4);
    let mut out = [0; 4096];
    lanes[1].contribution(0..4096).copy_to(&mut out);
    assert_eq!(out, [3; 4096]);
    lanes[0].contribution(4096..8186).copy_to(&mut out[..4090]);
    assert_eq!(out[..4090], [4; 4090]);
}

#[test]
#[should_panic(expected = "is of a chunk that has another home")]
fn a_shard_receives_nothing_for_another_s_chunk() {
    received()[0].receive(0..4096);
}

#[test]
#[should_panic(expected = "is of a chunk that has another home")]
fn a_shard_receives_nothing_across_the_end_of_its_chunk() {
    received()[1].receive(4000..4100);
}

#[test]
#[should_panic(expected = "is of a chunk that has another home")]
fn a_shard_does_not_look_at_what_another_receives() {
    received()[1].contribution(4096..8186);
}

/// Rounds of a race: enough to meet it, few enough for an interpreter.
const ROUNDS: u8 = if cfg!(miri) { 5 } else { 200 };

#[test]
fn shards_receive_and_look_at_their_chunks_of_one_lane_at_the_same_time() {
    std::thread::scope(|scope| {
        for (mut lane, range) in received().into_iter().zip([4096..8186, 0..4096]) {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    lane.receive(range.clone()).fill(round);
                    let mut out = vec![0; range.len()];
                    lane.contribution(range.clone()).copy_to(&mut out);
                    assert!(out.iter().all(|&byte| byte == round));
                    lane.folded(0).0.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

#[test]
fn a_value_is_copied_while_somebody_looks_at_the_last() {
    let mut copy = ValueCopy::new(1000).unwrap();
    let mapping = Arc::clone(copy.mapping());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                copy.out().copy_from(Foreign::of(&[round; 1000]));
            }
        });
        for _ in 0..ROUNDS {
            let mut out = [0; 1000];
            mapping.foreign(0..1000).copy_to(&mut out);
            assert!(out.iter().all(|&byte| byte < ROUNDS));
        }
    });
}

/// What a lane adds to itself: between its words, but not for Miri, which notes one size of loads for a word, and after two
/// takes a store of either for a race with both.
const ADDED: Range<usize> = if cfg!(miri) { 8..1000 } else { 4..1004 };

#[test]
fn a_lane_is_written_and_added_to_while_a_home_looks() {
    let mapping = Mapping::private(4096).unwrap();
    let mut own = OwnLane { mapping: Arc::clone(&mapping) };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                own.write(0, Foreign::of(&[round; 1004]));
                own.add(Dtype::F32, 0, own.mapping.clone().foreign(ADDED));
                own.add(Dtype::F32, 0, Foreign::of(&[0; 1004]));
            }
        });
        for _ in 0..ROUNDS {
            mapping.foreign(0..1004).copy_to(&mut [0; 1004]);
        }
    });
}

// Its chunks were read by the headers of one memory, and the bytes of another.
#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn where_a_switch_fails_halfway_nobody_reads_until_the_next_has_not() {
    let (cut, extent) = (Cut::new(5 * 4096, 4096), Extent { first: 0, count: 5 });
    let layout = ExtentLayout::new(cut, extent, Dtype::F32, 0);
    let shard_of = [0, 0, 1, 0, 0];
    let (mut homes, model) = HomeRegions::new("w", layout).unwrap().split(&shard_of, 2);
    let (_, lane) = LaneView::new("lane", layout.lane(), 2).unwrap();
    let windows = Arc::new(Windows::new(layout, &shard_of, 2));
    let [seen, lane] = [model.model(), lane.fd()].map(|fd| fd.try_clone_to_owned().unwrap());
    let place = Some(Place::Windows(seen, lane, Arc::clone(&windows)));
    let (worker, _) = WorkerMemory::new(cut, Dtype::F32, &[ServerPart { extent, place }]).unwrap();
    for chunk in 0..5 {
        let home = &mut homes[shard_of[chunk as usize] as usize];
        home.header(chunk).publish(Published { version: 1, steps: 1 });
    }
    let reads = || [0, 2, 4].map(|chunk| worker.read_chunk(chunk, &mut [0; 4096][..]).is_ok());
    assert_eq!(reads(), [true; 3]);
    let region = model.into_model();
    let tail = region.mapping().piece(layout.model().data..layout.model().total()).unwrap();
    let tails = || (Arc::clone(&tail), Arc::clone(&tail));
    // It ends in the middle of the second piece of mapping that it takes.
    let short = Region::new("short", 4 * 4096, Writers::Maker).unwrap();
    assert!(windows.switch(0, short.fd(), tails(), || {}).is_err());
    assert_eq!(reads(), [false, true, false], "another shard's goes on");
    windows.switch(0, region.fd(), tails(), || {}).unwrap();
    assert_eq!(reads(), [true; 3]);
}
