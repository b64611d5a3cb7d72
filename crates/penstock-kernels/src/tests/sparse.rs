//! Every variant of the sparse codecs beside an encoder that is written in the obvious way: each gives its bytes, so all give the
//! same; and there is one payload for a chunk.

use proptest::prelude::*;

use crate::codec::{Base, Codec, Sparse, Undecodable};
use crate::{Arch, Dtype, Foreign};

const SPAN: usize = 8192;

/// The bits `numbers`, each of so many, from the lowest of the first byte on.
fn packed(numbers: &[usize], width: usize) -> Vec<u8> {
    let mut out = vec![0; (numbers.len() * width).div_ceil(8)];
    for (at, number) in numbers.iter().enumerate() {
        (0..width).for_each(|bit| {
            out[(at * width + bit) / 8] |= ((number >> bit & 1) << ((at * width + bit) % 8)) as u8
        });
    }
    out
}

fn indices(places: &[usize]) -> Vec<u8> {
    let before = std::iter::once(0).chain(places.iter().map(|place| place + 1));
    let gaps: Vec<usize> = places.iter().zip(before).map(|(place, before)| place - before).collect();
    let block = |gaps: &[usize]| {
        let width = gaps.iter().map(|gap| (usize::BITS - gap.leading_zeros()) as usize).max().unwrap_or(0);
        [vec![width as u8], packed(gaps, width)].concat()
    };
    gaps.chunks(64).flat_map(block).collect()
}

/// The payload, whether it pays or not.
fn expected(size: usize, chunk: &[u8], base: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (chunk, base) in chunk.chunks(SPAN * size).zip(base.chunks(SPAN * size)) {
        let (now, base): (Vec<_>, Vec<_>) = (chunk.chunks(size).collect(), base.chunks(size).collect());
        let places: Vec<usize> = (0..now.len()).filter(|&at| now[at] != base[at]).collect();
        let bits: Vec<usize> = (0..now.len()).map(|at| usize::from(now[at] != base[at])).collect();
        let (bitmap, indices) = (packed(&bits, 1), indices(&places));
        let by_indices = indices.len() < bitmap.len();
        out.extend((places.len() as u16 | u16::from(by_indices) << 15).to_le_bytes());
        places.iter().for_each(|&at| out.extend(now[at]));
        out.extend(if by_indices { indices } else { bitmap });
    }
    out
}

fn encode(arch: Arch, size: usize, chunk: &[u8], base: Option<&[u8]>) -> Option<Vec<u8>> {
    let most = *codec(size).lengths(chunk.len()).end();
    // Nothing behind its room is touched.
    let mut out = vec![0xee; most + 64];
    let room = &mut out[..most];
    let chunk = Foreign::of(chunk);
    let length = match size {
        2 => Sparse::<2>.encode_on(arch, chunk, base, room),
        4 => Sparse::<4>.encode_on(arch, chunk, base, room),
        _ => Sparse::<8>.encode_on(arch, chunk, base, room),
    };
    assert!(out[most..].iter().all(|&byte| byte == 0xee));
    let length = length.expect("this machine has it")?;
    assert!(codec(size).lengths(chunk.len()).contains(&length));
    out.truncate(length);
    Some(out)
}

fn decode(arch: Arch, size: usize, payload: &[u8], base: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
    let done = match size {
        2 => Sparse::<2>.decode_on(arch, payload, base, chunk),
        4 => Sparse::<4>.decode_on(arch, payload, base, chunk),
        _ => Sparse::<8>.decode_on(arch, payload, base, chunk),
    };
    done.expect("this machine has it")
}

fn codec(size: usize) -> &'static dyn Codec {
    match size {
        2 => &Sparse::<2>,
        4 => &Sparse::<4>,
        _ => &Sparse::<8>,
    }
}

fn variants() -> impl Iterator<Item = Arch> {
    Arch::ALL.into_iter().filter(|arch| arch.is_available())
}

/// A chunk, and its base or none.
#[derive(Clone)]
struct Case {
    size: usize,
    chunk: Vec<u8>,
    base: Option<Vec<u8>>,
    /// Bytes between it and a cache line.
    shift: usize,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { size, chunk, base, shift } = self;
        let base = base.clone().unwrap_or_else(|| vec![0; chunk.len()]);
        let differ: Vec<bool> =
            chunk.chunks(*size).zip(base.chunks(*size)).map(|(now, base)| now != base).collect();
        let count = differ.iter().filter(|differ| **differ).count();
        write!(f, "{count} of {} elements of {size} bytes at {shift}", differ.len())
    }
}

impl Case {
    /// Of so many elements every one in a run differs, and none in the next; runs are as long as `run` on the average.
    fn new(
        size: usize,
        elements: usize,
        density: f64,
        run: u64,
        based: bool,
        shift: usize,
        seed: u64,
    ) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let base: Vec<u8> = (0..elements * size).map(|_| if based { next() as u8 } else { 0 }).collect();
        let mut chunk = base.clone();
        let mut differs = false;
        for element in chunk.chunks_mut(size) {
            if next() % run == 0 {
                differs = (next() >> 11) as f64 / (1u64 << 53) as f64 <= density && density > 0.0;
            }
            if differs {
                // By one bit at least, in any of its bytes.
                element[next() as usize % size] ^= 1 << (next() % 8);
            }
        }
        Self { size, chunk, base: based.then_some(base), shift }
    }

    fn base(&self) -> Vec<u8> {
        self.base.clone().unwrap_or_else(|| vec![0; self.chunk.len()])
    }

    fn onto(&self) -> Base {
        if self.base.is_some() { Base::Held } else { Base::Zeros }
    }

    /// Whether of eight blocks of 512 bytes, in the middles of as many parts, too much differs. Shorter chunks are not looked at.
    fn looks_dense(&self) -> bool {
        let (blocks, base) = (self.chunk.len() / 512, self.base());
        let part = |of: &[u8], sample| of[(sample * (blocks / 8) + blocks / 16) * 512..][..512].to_vec();
        let parts = |of: &[u8]| (0..8).flat_map(|sample| part(of, sample)).collect::<Vec<u8>>();
        let differ = |now: Vec<u8>, base: Vec<u8>| {
            now.chunks(self.size).zip(base.chunks(self.size)).filter(|(now, base)| now != base).count()
        };
        blocks >= 64
            && differ(parts(&self.chunk), parts(&base)) * self.size > 4096 / 32 * 31 - 4096 / self.size / 8
    }

    /// What a receiver has before.
    fn held(&self) -> Vec<u8> {
        self.base.clone().unwrap_or_else(|| vec![0xdd; self.chunk.len()])
    }

    /// Holds all that is promised; the payload, if it pays.
    fn holds(&self) -> Option<Vec<u8>> {
        let Self { size, chunk, base, shift } = self;
        let expected = expected(*size, chunk, &self.base());
        let pays = chunk.len() > expected.len() && chunk.len() - expected.len() >= chunk.len().div_ceil(32);
        let placed = [vec![0; *shift], chunk.clone()].concat();
        let payloads: Vec<_> =
            variants().map(|arch| encode(arch, *size, &placed[*shift..], base.as_deref())).collect();
        assert!(
            payloads.iter().all(|payload| *payload == payloads[0]),
            "all variants give the same: {self:?}"
        );
        let Some(payload) = payloads.into_iter().next().flatten() else {
            assert!(!pays || self.looks_dense(), "{self:?} pays");
            return None;
        };
        assert!(pays && !self.looks_dense() && payload == expected, "{self:?}");
        for arch in variants() {
            let mut held = [vec![0; *shift], self.held()].concat();
            assert_eq!(decode(arch, *size, &payload, self.onto(), &mut held[*shift..]), Ok(()), "{self:?}");
            assert!(held[*shift..] == chunk[..], "{arch:?} {self:?}");
        }
        Some(payload)
    }

    /// E-2: a payload that was changed is refused, and then nothing changes, or is the one payload of some chunk.
    fn judges(&self, payload: &[u8]) {
        let mut told = None;
        for arch in variants() {
            let mut held = self.held();
            let done = decode(arch, self.size, payload, self.onto(), &mut held);
            match &done {
                Err(_) => assert!(held == self.held(), "{arch:?} {self:?}: {done:?}"),
                Ok(()) => {
                    let again = encode(arch, self.size, &held, self.base.as_deref());
                    assert!(again.is_none_or(|again| again == payload), "{arch:?} {self:?}");
                    assert!(payload == expected(self.size, &held, &self.base()), "{arch:?} {self:?}");
                }
            }
            assert_eq!(*told.get_or_insert_with(|| (done, held.clone())), (done, held), "{arch:?} {self:?}");
        }
    }
}

prop_compose! {
    fn cases()(
        size in prop::sample::select(&[2, 4, 8]),
        elements in prop_oneof![1..200usize, 200..3000usize, 8100..8300usize, 16_000..17_000usize],
        density in prop::sample::select(&[0.0, 0.0003, 0.01, 0.1, 0.3, 0.5, 0.8, 0.9, 0.95, 1.0]),
        run in prop::sample::select(&[1, 1, 7, 300]),
        based: bool,
        shift in 0..3usize,
        seed: u64,
    ) -> Case {
        Case::new(size, elements, density, run, based, shift, seed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 600 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_variant_gives_the_one_payload_and_who_holds_the_base_has_the_chunk(case in cases().no_shrink()) {
        case.holds();
    }

    #[test]
    fn what_is_changed_on_the_way_is_refused_or_the_one_payload_of_another_chunk(
        case in cases().no_shrink(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in 0..4usize,
        front: bool,
    ) {
        let Some(mut payload) = case.holds() else { return Ok(()) };
        for (at, byte) in edits {
            if payload.is_empty() {
                break;
            }
            // Half of them where most is told.
            let at = at.index(if front { payload.len().min(4) } else { payload.len() });
            payload[at] ^= byte;
        }
        payload.truncate(payload.len().saturating_sub(cut));
        case.judges(&payload);
        payload.extend([0; 3]);
        case.judges(&payload);
    }
}

#[test]
fn each_width_is_for_elements_of_that_width_and_other_chunks_go_raw() {
    for dtype in Dtype::ALL {
        for size in [2, 4, 8] {
            assert_eq!(codec(size).carries(dtype), dtype.size() == size);
        }
    }
    for (size, bytes) in [(2, 1), (2, 65), (4, 66), (8, 68), (4, 0)] {
        assert_eq!(codec(size).encode(Foreign::of(&vec![0; bytes]), None, &mut [0; 80]), None);
    }
    assert!(Sparse::<4>.decode(&[0, 0x80], Base::Zeros, &mut [7; 66]).is_err());
    assert_eq!(Sparse::<4>.decode(&[], Base::Zeros, &mut []), Ok(()));
}

#[test]
fn zeros_of_both_signs_and_payloads_of_nans_are_told_apart() {
    let bits = |bits: [u32; 4]| bits.repeat(8).into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    let base = bits([0, 0x7fc0_0000, 0x3f80_0000, 0x7fa0_0001]);
    let chunk = bits([0x8000_0000, 0x7fc0_0001, 0x3f80_0000, 0x7fa0_0001]);
    let case = Case { size: 4, chunk: chunk.clone(), base: Some(base), shift: 0 };
    assert_eq!(case.holds().expect("half of it is the same").len(), 2 + 16 * 4 + 4);
    let sum = Case { size: 4, chunk: bits([0x8000_0000, 0, 0, 0]), base: None, shift: 0 };
    assert_eq!(sum.holds().expect("-0.0 is no zero").len(), 2 + 8 * 4 + 3);
}

#[test]
fn what_no_encoder_says_is_refused_by_what_it_says() {
    // Sixteen elements, of which the receiver holds 1 everywhere.
    let held = 1u32.to_le_bytes().repeat(16);
    let one = |header: u16, places: &[u8]| {
        [&header.to_le_bytes()[..], &[9, 0, 0, 0].repeat(usize::from(header & 0x7fff)), places].concat()
    };
    let says = |payload: &[u8]| {
        let mut chunk = held.clone();
        let refused = Sparse::<4>.decode(payload, Base::Held, &mut chunk).unwrap_err().to_string();
        assert_eq!(chunk, held);
        refused
    };
    let good = one(0x8001, &[0]);
    assert_eq!(Sparse::<4>.decode(&good, Base::Held, &mut held.clone()), Ok(()));
    for (payload, said) in [
        (vec![], "span's header: expected 2, got 0"),
        (vec![0; 63], "most bytes: expected 62, got 63"),
        (one(0x8001, &[0, 7]), "bytes behind its last span: expected 0, got 1"),
        (vec![17, 0x80], "most elements of a span: expected 16, got 17"),
        (vec![1, 0x80, 9, 0], "bytes of a span's elements: expected 4, got 2"),
        (one(0x8001, &[]), "blocks of gaps: expected 1, got 0"),
        (one(0x8001, &[14]), "most bits of a gap: expected 13, got 14"),
        (one(0x8001, &[2]), "bytes of gaps: expected 2, got 1"),
        (one(0x8001, &[2, 1]), "bits of a gap: expected 1, got 2"),
        (
            one(0x8001, &[0]).iter().map(|&byte| if byte == 9 { 1 } else { byte }).collect(),
            "elements that are what they were: expected 0, got 1",
        ),
        (one(0x8001, &[5, 16]), "last element: expected 15, got 16"),
        (one(0x8001, &[4, 15]), "most bytes of a span's gaps: expected 1, got 2"),
        (one(0x8002, &[0, 0]), "bytes behind its last span: expected 0, got 1"),
        (one(0x8002, &[1, 0b100]), "bits of a gap: expected 0, got 1"),
        (one(0x8002, &[1, 0b101]), "bits behind the last gap: expected 0, got 1"),
        (one(1, &[1]), "bitmap: expected 2, got 1"),
        (one(1, &[3, 0]), "elements in its bitmap: expected 1, got 2"),
        (one(1, &[1, 0]), "bytes of a span's places: expected 1, got 2"),
    ] {
        assert_eq!(says(&payload), format!("a payload's {said}"), "{payload:?}");
    }
    let short = [1, 0, 9, 0, 0, 0, 0b100];
    let mut chunk = [1; 8];
    let _ = Sparse::<4>.decode(&short[..7], Base::Held, &mut chunk).unwrap_err();
    assert_eq!(chunk, [1; 8]);
}

/// What raw would lose where it is tried behind them.
#[test]
fn what_is_dense_is_given_up_and_what_is_not_is_found_wherever_it_is() {
    for size in [2, 4, 8] {
        for elements in [8192, 65536] {
            let dense = Case::new(size, elements, 1.0, 1, true, 0, 5);
            assert_eq!(dense.holds(), None);
            // The front of it alone differs.
            let mut case = Case::new(size, elements, 0.0, 1, true, 0, 6);
            case.chunk[..elements * size / 3].iter_mut().for_each(|byte| *byte ^= 1);
            assert!(case.holds().is_some());
        }
    }
}
