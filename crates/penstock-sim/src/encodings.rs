//! What tensors' declarations say of how their chunks travel: raw alone, sparse, or in an encoding that the product does not have;
//! and all of their values, or what a filter lets pass that it does not have either.
//!
//! A payload of [`Differs`] tells which words of a chunk differ from its base, a bit each, and then by what they do, in this
//! order. It is shorter than the chunk or longer, of no length where nothing differs, and it cannot be taken for the chunk.
//! Some chunks go raw: so what a stream carries changes from one publication to the next.
//!
//! Of half of the tensors contributions may travel as factors, whatever else was declared; and what travels of half of them is
//! compressed, by one compressor or by whichever pays, as links and clocks say that tell whatever the seed makes of them.
//!
//! [`Reluctant`] holds back one changed word in four; beside it there are the filters of the product: those that choose elements, and
//! those by which values move. A filter is declared of marked tensors alone, whose contributions do not depend on what was read. What a worker then reads is not the value, but what its home has let pass of it: that is judged bit by bit, and
//! is one thing on all hosts.

use crate::rng::Rng;
use crate::workload::{Kind, Workload};
use penstock_kernels::codec::{self, Base, Codec, Undecodable};
use penstock_kernels::compress::Compressor;
use penstock_kernels::filter::{self, Coordinates, Filter, sums};
use penstock_kernels::{Dtype, Foreign, sums_exactly};
use penstock_proto::compress::Compress;
use penstock_proto::consistency::Consistency;
use penstock_proto::encoding::Encoding;
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::TensorSpec;
use penstock_proto::travel::{Filtering, Registry, Terms, Travel};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The encoding beside raw.
pub const DIFFERS: Encoding = Encoding(9);
/// The filter beside the one that lets everything pass.
pub const RELUCTANT: Filtering = Filtering { filter: 9, ..Filtering::NONE };

/// What both ends know of filters.
const FILTERS: &[filter::Entry] = &filters(filter::Entry {
    number: RELUCTANT.filter,
    name: "reluctant",
    settings: &[],
    make: |_, _| Ok(Arc::new(Reluctant)),
});
/// The product's that choose which elements pass, with settings by which some of what is marked does.
const CHOOSING: [(&str, &[f64]); 3] =
    [("DVF", &[1.0, 0.0, 1.0, 1.0, 0.0]), ("TopK", &[0.3]), ("RandomK", &[0.3, 7.0])];
/// Those by which values move: what a receiver is told is not what they are, but by how much.
const QUANTIZE: &[filter::Entry] = filter::ALL.split_at(1 + CHOOSING.len()).1;

/// How half of the tensors are compressed behind their encodings.
const COMPRESS: [Compress; 6] = [
    Compress::None,
    Compress::None,
    Compress::None,
    Compress::By(Compressor::Lz4),
    Compress::By(Compressor::Zstd),
    Compress::Auto,
];

/// All filters that there are, and this one.
const fn filters(filter: filter::Entry) -> [filter::Entry; filter::ALL.len() + 1] {
    let mut all = [filter; filter::ALL.len() + 1];
    let mut at = 0;
    while at < filter::ALL.len() {
        all[at] = filter::ALL[at];
        at += 1;
    }
    all
}

/// All codecs that there are, and this one.
const fn codecs(codec: &'static dyn Codec) -> [codec::Entry; codec::ALL.len() + 1] {
    let mut all = [codec::Entry { number: DIFFERS.0, name: "differs", codec }; codec::ALL.len() + 1];
    let mut at = 0;
    while at < codec::ALL.len() {
        all[at] = codec::ALL[at];
        at += 1;
    }
    all
}

/// What sends the elements of a tensor that have changed.
fn sparse(dtype: Dtype) -> Encoding {
    let carries = |entry: &&codec::Entry| entry.codec.uses_base() && entry.codec.carries(dtype);
    Encoding(codec::ALL.iter().find(carries).expect("there is one for each width").number)
}

/// What both ends know.
pub const KNOWN: Registry =
    Registry { codecs: &codecs(&Differs { turn: 0 }), filters: FILTERS, sums: sums::ALL };
/// What an end knows whose codec is not the one that was agreed to: the same number, and other bytes.
pub const ANOTHER: Registry =
    Registry { codecs: &codecs(&Differs { turn: 1 }), filters: FILTERS, sums: sums::ALL };

/// Declares of each tensor how it travels, and who moves its values. It is drawn beside everything else that the seed decides,
/// which it leaves as it is.
pub fn declare(seed: u64, workload: &mut Workload) {
    let mut rng = Rng::new(seed ^ 0xe0c0de);
    let mut which = Rng::new(seed ^ 0x5fa25e);
    let mut sends = Rng::new(seed ^ 0xb40adca57);
    let mut thin = Rng::new(seed ^ 0xfac702);
    let mut moves = Rng::new(seed ^ 0x57e95);
    let mut chooses = Rng::new(seed ^ 0xd1f);
    let mut packs = Rng::new(seed ^ 0xc0_4b9e55);
    let mut folds = Rng::new(seed ^ 0x0f01d5);
    for tensor in &mut workload.tensors {
        let both = rng.once_in(2);
        let other = if which.once_in(2) { sparse(tensor.spec.dtype) } else { DIFFERS };
        let encodings = || if both { vec![other, Encoding::RAW] } else { vec![Encoding::RAW] };
        let holds_back = matches!(workload.kind, Kind::Marked(_)) && rng.once_in(4);
        let (is_moved, form) = (moves.once_in(2), moves.within(1..=QUANTIZE.len() as u64) as usize - 1);
        let (is_chosen, how) = (chooses.once_in(2), chooses.pick(&CHOOSING));
        let filter = match (holds_back, is_moved) {
            (false, _) => Filtering::NONE,
            (true, false) if is_chosen => {
                let (name, settings) = how;
                Filtering::of_values(name, settings).expect("it has such settings")
            }
            (true, false) => RELUCTANT,
            (true, true) => {
                let entry = QUANTIZE[form];
                let settings = &[1.5][..entry.settings.len()];
                Filtering::of_values(entry.name, settings).expect("it has such settings")
            }
        };
        if sends.once_in(3) {
            tensor.spec.propagation = Propagation::Broadcast;
        }
        let low_rank = if thin.once_in(2) && !tensor.is_loaded { 3 } else { 0 };
        let (mut values, contributions) = (encodings(), encodings());
        if holds_back && is_moved {
            values = Travel::filtered(Filtering::NONE, filter, tensor.spec.dtype).values;
        }
        let compress = packs.pick(&COMPRESS);
        tensor.spec.travel =
            Travel { filter, values, contributions, low_rank, compress, ..Travel::default() };
        // Of what is pulled some is sent as updates, where that can be.
        if folds.once_in(3) && tensor.spec.propagation == Propagation::Pull {
            send_updates(&mut tensor.spec);
        }
    }
}

/// Declares that updates of a tensor are sent, if that can be.
pub fn send_updates(spec: &mut TensorSpec) {
    if spec.consistency == Consistency::Bsp && !holds_back(spec) && sums_exactly(spec.dtype) {
        spec.propagation = Propagation::Update;
    }
}

/// Whether what is read is not the value, but what was let pass of it.
pub fn holds_back(spec: &TensorSpec) -> bool {
    spec.travel.filter != Filtering::NONE
}

/// What a declaration comes to at an end that knows this.
pub fn terms(spec: &TensorSpec, known: &Registry) -> Terms {
    spec.terms(known).expect("both ends know what is declared")
}

const WORD: usize = 4;

/// The words that differ from the base, and by which bits.
#[derive(Debug)]
struct Differs {
    /// By how much the bits of each word are turned: both ends have to turn the same way.
    turn: u32,
}

/// Words of a chunk, the last of which may be short.
fn words(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

/// Bytes that have a bit for each word.
fn marks(bytes: usize) -> usize {
    words(bytes).div_ceil(8)
}

fn word(bytes: &[u8]) -> u32 {
    match bytes.try_into() {
        Ok(word) => u32::from_le_bytes(word),
        Err(_) => {
            let mut word = [0; WORD];
            word[..bytes.len()].copy_from_slice(bytes);
            u32::from_le_bytes(word)
        }
    }
}

impl Differs {
    /// Whether a chunk of which `kept` words differ, with this sum, goes raw: one in four, by what stands in it.
    fn goes_raw(kept: usize, sum: u32) -> bool {
        let mixed = (u64::from(sum) ^ kept as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        kept > 0 && mixed >> 62 == 0
    }
}

impl Codec for Differs {
    fn uses_base(&self) -> bool {
        true
    }

    fn lengths(&self, bytes: usize) -> RangeInclusive<usize> {
        0..=marks(bytes) + words(bytes) * WORD
    }

    fn encode(&self, chunk: Foreign<'_>, base: Option<&[u8]>, out: &mut [u8]) -> Option<usize> {
        let (bytes, marks) = (chunk.len(), marks(chunk.len()));
        let (bits, kept) = out.split_at_mut(marks);
        // The chunk first lies where the words go that are kept, none of which ends up behind where it was.
        chunk.copy_to(&mut kept[..bytes]);
        bits.fill(0);
        let (mut count, mut sum) = (0, 0u32);
        for index in 0..words(bytes) {
            let at = index * WORD..bytes.min((index + 1) * WORD);
            let held = base.map_or(0, |base| word(&base[at.clone()]));
            let differs = word(&kept[at]) ^ held;
            if differs != 0 {
                kept[count * WORD..][..WORD].copy_from_slice(&differs.rotate_left(self.turn).to_le_bytes());
                bits[index / 8] |= 1 << (index % 8);
                count += 1;
                sum = sum.rotate_left(1) ^ differs;
            }
        }
        match count {
            _ if Self::goes_raw(count, sum) => None,
            0 => Some(0),
            _ => Some(marks + count * WORD),
        }
    }

    fn decode(&self, payload: &[u8], base: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
        let refused = |what, expected: usize, got: usize| {
            Err(Undecodable { what, expected: expected as u64, got: got as u64 })
        };
        let (bits, kept) = match payload.split_at_checked(marks(chunk.len())) {
            Some(parts) => parts,
            None if payload.is_empty() => (payload, payload),
            None => return refused("marks", marks(chunk.len()), payload.len()),
        };
        let count: usize = bits.iter().map(|bits| bits.count_ones() as usize).sum();
        if kept.len() != count * WORD {
            return refused("words", count * WORD, kept.len());
        }
        let last = bits.iter().rposition(|&bits| bits != 0);
        let last = last.map(|at| 8 * at + bits[at].ilog2() as usize);
        if let Some(last) = last.filter(|&last| last >= words(chunk.len())) {
            return refused("last word", words(chunk.len()) - 1, last);
        }
        if base == Base::Zeros {
            chunk.fill(0);
        }
        let mut kept = kept.chunks_exact(WORD).map(|kept| word(kept).rotate_right(self.turn));
        for (bits, chunk) in bits.iter().zip(chunk.chunks_mut(8 * WORD)) {
            for (_, chunk) in chunk.chunks_mut(WORD).enumerate().filter(|(index, _)| bits >> index & 1 > 0) {
                let now = (word(chunk) ^ kept.next().unwrap_or_default()).to_le_bytes();
                chunk.copy_from_slice(&now[..chunk.len()]);
            }
        }
        Ok(())
    }
}

/// Lets a word pass that has changed, unless what it has become is one of every four things that it may be.
#[derive(Debug)]
struct Reluctant;

impl Reluctant {
    const WORD: usize = 8;

    fn passes(index: usize, word: &[u8]) -> bool {
        let mixed = word
            .iter()
            .fold(index as u64, |mixed, byte| (mixed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 != 0
    }
}

impl Filter for Reluctant {
    fn next(&self, _: Coordinates, value: &[u8], held: &mut [u8]) {
        for (index, (now, held)) in value.chunks(Self::WORD).zip(held.chunks_mut(Self::WORD)).enumerate() {
            if Self::passes(index, now) {
                held.copy_from_slice(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(codec: &Differs, chunk: &[u8], base: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut out = vec![0xee; *codec.lengths(chunk.len()).end()];
        let length = codec.encode(Foreign::of(chunk), base, &mut out)?;
        out.truncate(length);
        Some(out)
    }

    proptest! {
        #[test]
        fn who_holds_the_base_has_the_chunk_afterwards_and_who_turns_otherwise_has_not(
            held in prop::collection::vec(any::<u8>(), 1..200),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
            whole: bool,
        ) {
            let mut chunk = held.clone();
            edits.iter().for_each(|(at, byte)| *at.get_mut(&mut chunk) = *byte);
            let (base, onto) = if whole { (None, Base::Zeros) } else { (Some(&held[..]), Base::Held) };
            let Some(payload) = encoded(&Differs { turn: 0 }, &chunk, base) else { return Ok(()) };
            let mut receiver = held.clone();
            prop_assert_eq!(Differs { turn: 0 }.decode(&payload, onto, &mut receiver), Ok(()));
            prop_assert_eq!(&receiver, &chunk);
            // The words of a payload that is not empty are not all of equal bits.
            let plain = payload[marks(chunk.len()).min(payload.len())..].chunks(WORD).all(|kept| kept == [0xff; WORD]);
            let mut receiver = held.clone();
            let another = Differs { turn: 1 }.decode(&payload, onto, &mut receiver);
            prop_assert!(plain || another.is_err() || receiver != chunk);
        }

        /// E-2.
        #[test]
        fn what_is_refused_changes_nothing(
            payload in prop::collection::vec(any::<u8>(), 0..60),
            held in prop::collection::vec(any::<u8>(), 1..70),
            zeros: bool,
        ) {
            let mut receiver = held.clone();
            let base = if zeros { Base::Zeros } else { Base::Held };
            if (Differs { turn: 0 }).decode(&payload, base, &mut receiver).is_err() {
                prop_assert_eq!(receiver, held);
            }
        }
    }

    #[test]
    fn a_payload_is_shorter_or_longer_than_its_chunk_or_empty_and_some_chunks_go_raw() {
        let codec = Differs { turn: 0 };
        let length = |chunk: &[u8], base| encoded(&codec, chunk, base).map(|payload| payload.len());
        let dense = |first: u8| (0..64).map(|at| first.wrapping_mul(at) | 1).collect::<Vec<u8>>();
        let full: Vec<Option<usize>> = (1..=30).map(|first| length(&dense(first), None)).collect();
        assert!(full.iter().all(|length| [None, Some(66)].contains(length)), "{full:?}");
        let raw = full.iter().filter(|length| length.is_none()).count();
        assert!((3..=15).contains(&raw), "{full:?}");
        assert_eq!(length(&[[7; 4], [0; 4]].concat().repeat(8), None), Some(34));
        assert_eq!((length(&[0; 64], None), length(&[7; 64], Some(&[7; 64]))), (Some(0), Some(0)));
    }
    #[test]
    fn about_a_quarter_of_what_has_changed_is_held_back_and_what_is_the_same_stays_so() {
        let value: Vec<u8> = (0..8000u32).flat_map(|number| f64::from(number).to_le_bytes()).collect();
        let mut held = vec![0; value.len()];
        let at = Coordinates::of_version(0, 0, filter::Pressure::NONE);
        Reluctant.next(at, &value, &mut held);
        let same = value.chunks(8).zip(held.chunks(8)).filter(|(now, held)| now == held).count();
        assert!((5600..6400).contains(&same), "{same} of 8000 passed");
        let mut there = value.clone();
        Reluctant.next(at, &value, &mut there);
        assert_eq!(there, value);
    }
}
