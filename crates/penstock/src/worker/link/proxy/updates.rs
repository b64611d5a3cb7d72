//! Updates as a proxy takes them, and refuses them: U-1 and E-2.

use super::mirrored::Mirrored;
use super::rig::{self, CHUNK, Seen, W};
use penstock_fabric::net::remote_shard::{Mirrored as _, Sum, Update, Value};
use penstock_fabric::publish::Published;
use penstock_kernels::{Dtype, Factors, Foreign, Rule, Settings, SumRoom, apply, fold_summed, product};
use penstock_proto::encoding::Encoding;
use penstock_proto::factors::LowRank;
use penstock_proto::factors::down::Products;
use penstock_proto::frame::{Header, Notice};
use penstock_proto::update::{self, Kept};

const MOMENTUM: Rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
const SETTINGS: Settings = Settings([0.5, 0.5, 0.0, 0.0, 0.0]);

fn floats(number: f32) -> Vec<u8> {
    number.to_le_bytes().repeat(CHUNK / 4)
}

fn header(version: u64, encoding: Encoding, payload: &[u8]) -> Header {
    rig::notice(Notice::Whole { tensor: W, chunk: 0, version, steps: version, publication: 2, content: 2 })
        .with_encoded(encoding, 0, payload)
}

/// Value and state of ones and twos, as version 1.
fn begin() -> (Mirrored, Seen) {
    let (mut mirrored, seen) = rig::updated(MOMENTUM);
    assert_eq!(mirrored.whole_bytes(0), Some(2 * CHUNK));
    whole(&mut mirrored, &floats(1.0), &floats(2.0), 1).unwrap();
    (mirrored, seen)
}

fn whole(mirrored: &mut Mirrored, value: &[u8], state: &[u8], version: u64) -> Result<(), String> {
    let agreed = mirrored.updates().unwrap().agreed;
    let (encoding, payload) = update::whole(&agreed, value, state);
    let codec = agreed.expect(encoding, (payload.len(), None), 2 * CHUNK).unwrap();
    let header = &header(version, encoding, &payload);
    let came = Value { header, payload: &payload, codec };
    mirrored.whole(0, &came, Published { version, steps: version }).map_err(|refused| refused.to_string())
}

#[test]
fn an_update_is_folded_as_at_its_home_into_value_and_state() {
    let (mut mirrored, seen) = begin();
    let agreed = mirrored.updates().unwrap().agreed;
    let (mut value, mut state, mut sums) = (SumRoom::default(), SumRoom::default(), SumRoom::default());
    let (value, state) = (value.of(CHUNK), state.of(CHUNK));
    value.copy_from_slice(&floats(1.0));
    state.copy_from_slice(&floats(2.0));
    for (version, number) in [(2, 0.0), (3, 0.25), (4, -3.0)] {
        let sum = sums.of(CHUNK);
        sum.fill(0);
        sum[..8].copy_from_slice(&floats(number)[..8]);
        apply(&mirrored.updates().unwrap().plan, &SETTINGS, version - 1, Foreign::of(sum), value, state);
        let mut kept = Kept::default();
        kept.fold(2, (version - 1, &SETTINGS), sum, None, Some(&agreed));
        let (encoding, payload) = kept.payload();
        let (step, settings, sum) = update::split(payload).unwrap();
        let codec = agreed.expect(encoding, (sum.len(), None), CHUNK).unwrap();
        let update = Update { settings, step, sum: Sum::Encoded(sum, codec) };
        mirrored.update(0, &update, Published { version, steps: version }).unwrap();
        assert_eq!((seen.what().0, seen.what().1), (value.to_vec(), version));
        assert_eq!(mirrored.home.beside(0), state, "version {version}");
    }
    assert_ne!(value, floats(1.0), "momentum goes on, though nothing is pushed");
}

#[test]
fn an_update_or_a_whole_that_is_refused_is_never_seen_by_a_reader() {
    let (mut mirrored, seen) = begin();
    let agreed = mirrored.updates().unwrap().agreed;
    let sparse = (0..=255)
        .map(Encoding)
        .find(|one| *one != Encoding::RAW && agreed.expect(*one, (8, None), CHUNK).is_ok());
    let sparse = sparse.expect("there is one that zeros take no bytes in");
    let before = seen.what();
    for payload in [&[0xff; 8][..], &[0xff; 40]] {
        let codec = agreed.expect(sparse, (payload.len(), None), CHUNK).unwrap();
        let update = Update { settings: SETTINGS, step: 1, sum: Sum::Encoded(payload, codec) };
        assert!(mirrored.update(0, &update, Published { version: 2, steps: 2 }).is_err());
        let header = &header(2, sparse, payload);
        let codec = agreed.expect(sparse, (payload.len(), None), 2 * CHUNK).unwrap();
        let came = Value { header, payload, codec };
        assert!(mirrored.whole(0, &came, Published { version: 2, steps: 2 }).is_err());
        assert_eq!(seen.what(), before);
        assert_eq!((mirrored.home.beside(0), mirrored.home.sequence(0) % 2), (&floats(2.0)[..], 0));
    }
    whole(&mut mirrored, &floats(5.0), &floats(6.0), 2).unwrap();
    assert_eq!((seen.what().0, mirrored.home.beside(0)), (floats(5.0), &floats(6.0)[..]));
}

#[test]
fn an_update_of_factors_is_multiplied_and_summed_as_at_its_home() {
    let (mut mirrored, seen) = begin();
    let plan = mirrored.updates().unwrap().plan;
    // The chunk begins in the middle of a row.
    let (columns, column) = (100, 60);
    let low_rank = LowRank { dtype: Dtype::F32, columns: columns as u64, most: 3 };
    let rows = (column + CHUNK / 4).div_ceil(columns);
    let numbers = |count: usize, first: f32| -> Vec<u8> {
        (0..count).flat_map(|at| (first + at as f32 / 37.0).to_le_bytes()).collect()
    };
    let given: Vec<_> = [(3_usize, -1.0), (1, 0.3), (2, 7.0)]
        .map(|(rank, first)| (rank, numbers(rows * rank, first), numbers(rank * columns, -first)))
        .into();
    // What would stand in the lanes at the home.
    let mut rooms: Vec<SumRoom> = given.iter().map(|_| SumRoom::default()).collect();
    for (room, (rank, u, v)) in rooms.iter_mut().zip(&given) {
        product(Dtype::F32, Factors { u, v, columns, rank: *rank }, column, room.of(CHUNK));
    }
    let lanes: Vec<Foreign<'_>> = rooms.iter_mut().map(|room| Foreign::of(room.of(CHUNK))).collect();
    let (mut value, mut state, mut sum) = (SumRoom::default(), SumRoom::default(), SumRoom::default());
    let (value, state) = (value.of(CHUNK), state.of(CHUNK));
    value.copy_from_slice(&floats(1.0));
    state.copy_from_slice(&floats(2.0));
    fold_summed(&plan, &SETTINGS, 1, 1.0 / 3.0, &lanes, sum.of(CHUNK), value, state).unwrap();
    let all = given.iter().map(|(rank, u, v)| (*rank as u32, &u[..], &v[..])).collect();
    let products = Products { scale: 1.0 / 3.0, low_rank, column, all };
    let update = Update { settings: SETTINGS, step: 1, sum: Sum::Of(products) };
    mirrored.update(0, &update, Published { version: 2, steps: 2 }).unwrap();
    assert_eq!((seen.what().0, seen.what().1), (value.to_vec(), 2));
    assert_eq!(mirrored.home.beside(0), state);
}
