//! A codec and a filter that the product does not have, and a plain tensor to declare them with: they prove that a declaration
//! carries more than what travels raw.

#[path = "../../../../penstock-kernels/tests/travel/mod.rs"]
mod travel;

use penstock_kernels::codec::{self, Base, Codec, Sparse, Undecodable};
use penstock_kernels::filter::{self, sums};
use penstock_kernels::{Dtype, Foreign, Rule};
use penstock_proto::consistency::Consistency;
use penstock_proto::encoding::{Agreed, Encoding, Member};
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::travel::{Filtering, Registry, Terms, Travel};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use travel::changes::Changes;

/// Whole payloads, and differences.
static CAME: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

pub(crate) const KNOWN: Registry = Registry {
    codecs: &[
        codec::ALL[0],
        codec::ALL[1],
        codec::ALL[2],
        codec::ALL[3],
        travel::CODECS[1],
        codec::Entry { number: COUNTED.0, name: "counted", codec: &Counted(&Changes) },
        codec::Entry { number: COUNTED_SPARSE.0, name: "counted sparse", codec: &Counted(&Sparse::<4>) },
    ],
    filters: &[travel::FILTERS[0], travel::FILTERS[1], filter::ALL[1], filter::ALL[2], filter::ALL[3]],
    sums: sums::ALL,
};
pub(crate) const CHANGES: Encoding = Encoding(9);
/// What agrees to it comes to.
pub(crate) const AGREED: Agreed = Agreed::new(&[Member { encoding: CHANGES, codec: &Changes }, Member::RAW]);
/// The same, and its payloads that come are counted.
pub(crate) const COUNTED: Encoding = Encoding(10);
/// Likewise for what the product has for elements of four bytes.
pub(crate) const COUNTED_SPARSE: Encoding = Encoding(11);
/// What only the lower two bytes of a word change is held back.
pub(crate) const LOUD: Filtering = Filtering { filter: 207, settings: [2.0, 0.0, 0.0, 0.0, 0.0] };

/// As differences, both ways.
pub(crate) fn differences(filter: Filtering) -> Travel {
    let encodings = vec![CHANGES, Encoding::RAW];
    Travel { filter, values: encodings.clone(), contributions: encodings, ..Travel::default() }
}

/// A tensor of f32 that adds up what is pushed.
pub(crate) fn plain_tensor(name: &str, elements: u64, travel: Travel) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        shape: vec![elements],
        dtype: Dtype::F32,
        rule: Rule::Add,
        consistency: Consistency::Bsp,
        propagation: Propagation::Pull,
        reduce: Reduce::Sum,
        rescale: 1.0,
        clip: None,
        refuse_nonfinite: false,
        travel,
    }
}

/// What a declaration comes to.
pub(crate) fn terms(travel: &Travel) -> Terms {
    travel.resolve(Dtype::F32, &KNOWN).expect("tests know it")
}

/// Payloads in the encodings that count which have come in this process: whole, and as differences.
pub(crate) fn came() -> [u64; 2] {
    [0, 1].map(|which| CAME[which].load(Ordering::Relaxed))
}

#[derive(Debug)]
struct Counted(&'static dyn Codec);

impl Codec for Counted {
    fn uses_base(&self) -> bool {
        self.0.uses_base()
    }

    fn lengths(&self, bytes: usize) -> RangeInclusive<usize> {
        self.0.lengths(bytes)
    }

    fn encode(&self, chunk: Foreign<'_>, base: Option<&[u8]>, out: &mut [u8]) -> Option<usize> {
        self.0.encode(chunk, base, out)
    }

    fn decode(&self, payload: &[u8], base: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
        CAME[usize::from(base == Base::Held)].fetch_add(1, Ordering::Relaxed);
        self.0.decode(payload, base, chunk)
    }
}
