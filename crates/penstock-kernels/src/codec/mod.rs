//! Codecs: the bytes of what travels of a chunk.
//!
//! A codec loses nothing: a receiver that holds the same base has the same chunk afterwards, bit for bit. Anything that loses
//! bits happens earlier, in a [`filter`](crate::filter). So codecs may be chosen chunk by chunk, by what they cost, and what
//! has to be sent again is simply encoded again.
//!
//! | file | what travels |
//! |---|---|
//! | `raw.rs` | the chunk itself |
//! | `sparse.rs` | the elements that differ from the base, as they are now, and where they are, in the smaller of two forms: |
//! | `bitmap.rs` | a bit for each element |
//! | `indices.rs` | the gaps between those that are sent |
//! | `quantized/` | numbers that take few bits, by form and type of their elements |
//! | `steps.rs` | by how much each element has moved from the base, in numbers that take few bits |
//!
//! A new codec is a file here and a row of [`ALL`]. The width of its elements is part of the codec itself.

mod bitmap;
mod indices;
mod quantized;
mod raw;
mod span;
mod sparse;
mod steps;

pub use quantized::{Form, Quantized};
pub(crate) use quantized::{MOST, largest_step, step};
pub use raw::Raw;
pub use sparse::Sparse;
pub use steps::Steps;

use crate::{Dtype, Foreign};
use std::fmt;
use std::ops::RangeInclusive;

/// A codec, and how declarations and frames name it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number, which no other codec is ever given: both ends of a connection go by it.
    pub number: u8,
    /// What people call it.
    pub name: &'static str,
    /// What turns chunks into payloads and back.
    pub codec: &'static dyn Codec,
}

/// Every codec that there is.
pub const ALL: &[Entry] = &[
    Entry { number: 0, name: "raw", codec: &Raw },
    Entry { number: 1, name: "sparse16", codec: &Sparse::<2> },
    Entry { number: 2, name: "sparse32", codec: &Sparse::<4> },
    Entry { number: 3, name: "sparse64", codec: &Sparse::<8> },
    quantized("f16 of float32", &Quantized::new(Form::F16, Dtype::F32)),
    quantized("f16 of float64", &Quantized::new(Form::F16, Dtype::F64)),
    quantized("bf16 of float32", &Quantized::new(Form::Bf16, Dtype::F32)),
    quantized("bf16 of float64", &Quantized::new(Form::Bf16, Dtype::F64)),
    quantized("int8 of float32", &Quantized::new(Form::Int8, Dtype::F32)),
    quantized("int8 of float64", &Quantized::new(Form::Int8, Dtype::F64)),
    quantized("int8 of float16", &Quantized::new(Form::Int8, Dtype::F16)),
    quantized("int8 of bfloat16", &Quantized::new(Form::Int8, Dtype::Bf16)),
    quantized("2bit of float32", &Quantized::new(Form::TwoBits, Dtype::F32)),
    quantized("2bit of float64", &Quantized::new(Form::TwoBits, Dtype::F64)),
    quantized("2bit of float16", &Quantized::new(Form::TwoBits, Dtype::F16)),
    quantized("2bit of bfloat16", &Quantized::new(Form::TwoBits, Dtype::Bf16)),
    quantized("1bit of float32", &Quantized::new(Form::OneBit, Dtype::F32)),
    quantized("1bit of float64", &Quantized::new(Form::OneBit, Dtype::F64)),
    quantized("1bit of float16", &Quantized::new(Form::OneBit, Dtype::F16)),
    quantized("1bit of bfloat16", &Quantized::new(Form::OneBit, Dtype::Bf16)),
    steps("steps of float32", &Steps::new(Form::Int8, Dtype::F32)),
    steps("steps of float64", &Steps::new(Form::Int8, Dtype::F64)),
    steps("steps of float16", &Steps::new(Form::Int8, Dtype::F16)),
    steps("steps of bfloat16", &Steps::new(Form::Int8, Dtype::Bf16)),
    steps("f16 steps of float32", &Steps::new(Form::F16, Dtype::F32)),
    steps("f16 steps of float64", &Steps::new(Form::F16, Dtype::F64)),
    steps("bf16 steps of float32", &Steps::new(Form::Bf16, Dtype::F32)),
    steps("bf16 steps of float64", &Steps::new(Form::Bf16, Dtype::F64)),
    steps("2bit steps of float32", &Steps::new(Form::TwoBits, Dtype::F32)),
    steps("2bit steps of float64", &Steps::new(Form::TwoBits, Dtype::F64)),
    steps("2bit steps of float16", &Steps::new(Form::TwoBits, Dtype::F16)),
    steps("2bit steps of bfloat16", &Steps::new(Form::TwoBits, Dtype::Bf16)),
    steps("1bit steps of float32", &Steps::new(Form::OneBit, Dtype::F32)),
    steps("1bit steps of float64", &Steps::new(Form::OneBit, Dtype::F64)),
    steps("1bit steps of float16", &Steps::new(Form::OneBit, Dtype::F16)),
    steps("1bit steps of bfloat16", &Steps::new(Form::OneBit, Dtype::Bf16)),
];

const fn steps(name: &'static str, codec: &'static Steps) -> Entry {
    Entry { number: codec.number(), name, codec }
}

const fn quantized(name: &'static str, codec: &'static Quantized) -> Entry {
    Entry { number: codec.number(), name, codec }
}

/// What the receiver's chunk holds before a payload is decoded onto it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Nothing that counts: the payload is the whole chunk, or a sum, in which elements that are not sent read 0.
    Zeros,
    /// Exactly what the sender encoded against.
    Held,
}

/// A payload that no honest peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a payload's {what}: expected {expected}, got {got}")]
pub struct Undecodable {
    /// What was wrong with it.
    pub what: &'static str,
    /// What was expected.
    pub expected: u64,
    /// What came.
    pub got: u64,
}

/// Turns chunks into payloads and back. Slices in, slices out: no allocation, no waiting.
pub trait Codec: fmt::Debug + Send + Sync {
    /// Whether a payload is the chunk itself: then it is sent from where it is, and received straight into its place.
    fn is_verbatim(&self) -> bool {
        false
    }

    /// Whether values are encoded against what their receivers hold: then the sender has to keep that. Where it is not, `base`
    /// is always `None`, and every payload is whole.
    fn uses_base(&self) -> bool {
        false
    }

    /// Whether the chunk itself may go in place of its payload wherever that is cheaper: it is there to be shorter, and for nothing
    /// else.
    fn gives_way(&self) -> bool {
        false
    }

    /// Whether it carries chunks of such elements.
    fn carries(&self, _: Dtype) -> bool {
        true
    }

    /// Least and most bytes of a payload for a chunk of `bytes` bytes: checked before a byte of the payload is read. No length is in the
    /// range where there is no payload of such a chunk.
    fn lengths(&self, bytes: usize) -> RangeInclusive<usize>;

    /// Encodes a chunk for a receiver that holds `base`, which is as long as the chunk; `None` stands for zeros. `out` has room
    /// for the most bytes. Returns how many it took, or `None` if another codec should be tried because this one does not pay.
    ///
    /// Another thread may be writing the chunk: each of its bytes is read once.
    fn encode(&self, chunk: Foreign<'_>, base: Option<&[u8]>, out: &mut [u8]) -> Option<usize>;

    /// Turns the base, in `chunk`, into the chunk that was encoded. The payload may be hostile: on an error `chunk` is
    /// unchanged.
    fn decode(&self, payload: &[u8], base: Base, chunk: &mut [u8]) -> Result<(), Undecodable>;
}
