//! Quantized: chunks whose elements are numbers that take few bits, as the [filter](crate::filter::sums::Quantize) of that name
//! makes them. A chunk with any other number among them does not pay.
//!
//! A payload is a sequence of blocks, of which the last may be short:
//!
//! | file | elements of a block | a block |
//! |---|---|---|
//! | `halves.rs` | 1024 | each in half precision, which is not NaN |
//! | `multiples.rs` | 256 | 2 bytes: the exponent of a power of two, the step; and a byte each: how many steps, from -127 to 127, of which the largest is 64 or more, unless the step is the least that there is |
//! | `thirds.rs` | 1024 | the magnitude of all that are not 0, as an element; a bit each: whether it is not 0; and a bit each: whether it is negative. If all are 0, so is the magnitude |
//! | `signs.rs` | 1024 | the magnitude of all, as an element; and a bit each: whether it is negative |
//!
//! What `magnitude.rs` finds is that of elements that have moved ([`steps`](super::steps)). All numbers are little-endian. Of bits (`bits.rs`) the first is the lowest of the first byte, and those behind the last are 0. So
//! a chunk has one payload, whose length the chunk's own length tells.

mod bits;
mod halves;
mod magnitude;
mod multiples;
mod signs;
mod thirds;

pub(crate) use multiples::{MOST, largest_step, step};

use super::span::refused;
use super::{Base, Codec, Undecodable};
use crate::arch::{self, Arch, Dispatch, Isa, Kernel};
use crate::blocks::Room;
use crate::vector::Element;
use crate::{Dtype, Foreign};
use bits::Bits;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// Which numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Those of IEEE 754 binary16.
    F16,
    /// Those of the upper half of a binary32.
    Bf16,
    /// Multiples of a step.
    Int8,
    /// One magnitude or 0.
    TwoBits,
    /// One magnitude.
    OneBit,
}

impl Form {
    /// Elements of a block at most.
    pub(crate) const fn block(self) -> usize {
        match self {
            Self::Int8 => 256,
            _ => 1024,
        }
    }

    /// Whether its numbers are those of a half precision.
    pub(crate) fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// Bytes of a block of so many elements of so many bytes.
    fn bytes(self, size: usize, elements: usize) -> usize {
        match self {
            Self::F16 | Self::Bf16 => halves::SIZE * elements,
            Self::Int8 => multiples::STEP + elements,
            Self::TwoBits => size + 2 * bits::bytes(elements),
            Self::OneBit => size + bits::bytes(elements),
        }
    }
}

/// Elements of one dtype that are numbers of one form.
#[derive(Clone, Copy, Debug)]
pub struct Quantized {
    form: Form,
    dtype: Dtype,
}

impl Quantized {
    /// Numbers of such a form in elements of such a dtype.
    pub const fn new(form: Form, dtype: Dtype) -> Self {
        Self { form, dtype }
    }

    /// The number by which the codec is known: 16 and above.
    pub const fn number(self) -> u8 {
        16 + 4 * self.form as u8 + self.dtype as u8
    }

    pub(super) const fn form(self) -> Form {
        self.form
    }

    pub(super) const fn dtype(self) -> Dtype {
        self.dtype
    }

    /// Bytes of a block of so many elements.
    pub(super) fn bytes_of(self, elements: usize) -> usize {
        self.form.bytes(self.dtype.size(), elements)
    }

    /// Bytes of a payload, where that is fewer than the chunk's.
    pub(super) fn bytes(self, chunk: usize) -> Option<usize> {
        let (size, block) = (self.dtype.size(), self.form.block());
        if !chunk.is_multiple_of(size) {
            return None;
        }
        let elements = chunk / size;
        let last = match elements % block {
            0 => 0,
            rest => self.form.bytes(size, rest),
        };
        Some(elements / block * self.form.bytes(size, block) + last).filter(|&bytes| bytes < chunk)
    }

    /// [`Codec::encode`] with the variant `arch`; the outer `None`, with nothing done, where this machine lacks it.
    pub fn encode_on(self, arch: Arch, chunk: Foreign<'_>, out: &mut [u8]) -> Option<Option<usize>> {
        arch::compute_on(arch, Encode { codec: self, chunk, out })
    }

    /// [`Codec::decode`] with the variant `arch`; `None`, with nothing done, where this machine lacks it.
    pub fn decode_on(self, arch: Arch, payload: &[u8], chunk: &mut [u8]) -> Option<Result<(), Undecodable>> {
        arch::compute_on(arch, Decode { codec: self, payload, chunk })
    }
}

impl Codec for Quantized {
    fn carries(&self, dtype: Dtype) -> bool {
        dtype == self.dtype
    }

    fn lengths(&self, bytes: usize) -> RangeInclusive<usize> {
        // None of a chunk that it would not make shorter.
        let none = RangeInclusive::new(1, 0);
        self.bytes(bytes).map_or(none, |bytes| bytes..=bytes)
    }

    fn encode(&self, chunk: Foreign<'_>, _: Option<&[u8]>, out: &mut [u8]) -> Option<usize> {
        arch::compute_on_best(Encode { codec: *self, chunk, out })
    }

    fn decode(&self, payload: &[u8], _: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
        arch::compute_on_best(Decode { codec: *self, payload, chunk })
    }
}

/// A block whose elements have moved.
#[derive(Clone, Copy)]
pub(super) struct Moved<'a> {
    /// The elements before.
    pub(super) base: &'a [u8],
    /// And now.
    pub(super) stands: &'a [u8],
    /// The accumulators of those before.
    pub(super) held: &'a [u8],
    /// How far those of now are from them, rounded; 0 where that is no finite number.
    pub(super) off: &'a [u8],
}

/// What becomes of a block, a part of a chunk of whole elements.
pub(super) trait Packing {
    /// How often to guess by how much elements have moved.
    const GUESSES: usize;

    /// By which numbers of the form they may have, in accumulators. Numbers that are of another form are none.
    fn guess<E: Element>(guess: usize, moved: Moved<'_>, by: &mut [u8]);

    /// Writes it to as many bytes as [`Form::bytes`] says, if its numbers are of the form. `room` is for what it works on.
    fn pack(block: &Foreign<'_>, room: &mut Room, out: &mut [u8]) -> bool;
    /// Refuses what [`Packing::pack`] does not write of so many elements.
    fn check(packed: &[u8], elements: usize) -> Result<(), Undecodable>;
    /// Reads what was checked.
    fn unpack(packed: &[u8], room: &mut Room, block: &mut [u8]);
}

/// Work on a chunk whose packing is not known yet.
pub(super) trait Packed {
    type Output;
    fn codec(&self) -> Quantized;
    /// Of elements `E`.
    fn by<P: Packing, E: Element, I: Isa>(self, isa: I) -> Self::Output;
}

/// Finds the packing.
pub(super) fn on<I: Isa, W: Packed>(isa: I, work: W) -> W::Output {
    use halves::Halves;
    use multiples::Multiples;
    use signs::Signs;
    use thirds::Thirds;
    let Quantized { form, dtype } = work.codec();
    match (form, dtype) {
        (Form::F16, Dtype::F64) => work.by::<Halves<I::F64, I::F16>, I::F64, I>(isa),
        (Form::F16, _) => work.by::<Halves<I::F32, I::F16>, I::F32, I>(isa),
        (Form::Bf16, Dtype::F64) => work.by::<Halves<I::F64, I::Bf16>, I::F64, I>(isa),
        (Form::Bf16, _) => work.by::<Halves<I::F32, I::Bf16>, I::F32, I>(isa),
        (Form::Int8, Dtype::F32) => work.by::<Multiples<I::F32, { Dtype::F32 as u8 }>, I::F32, I>(isa),
        (Form::Int8, Dtype::F64) => work.by::<Multiples<I::F64, { Dtype::F64 as u8 }>, I::F64, I>(isa),
        (Form::Int8, Dtype::F16) => work.by::<Multiples<I::F16, { Dtype::F16 as u8 }>, I::F16, I>(isa),
        (Form::Int8, Dtype::Bf16) => work.by::<Multiples<I::Bf16, { Dtype::Bf16 as u8 }>, I::Bf16, I>(isa),
        (Form::TwoBits, Dtype::F32) => work.by::<Thirds<I::F32, u32>, I::F32, I>(isa),
        (Form::TwoBits, Dtype::F64) => work.by::<Thirds<I::F32, u64>, I::F64, I>(isa),
        (Form::TwoBits, Dtype::F16) => work.by::<Thirds<I::F32, u16>, I::F16, I>(isa),
        (Form::TwoBits, Dtype::Bf16) => work.by::<Thirds<I::F32, u16>, I::Bf16, I>(isa),
        (Form::OneBit, Dtype::F32) => work.by::<Signs<I::F32, u32>, I::F32, I>(isa),
        (Form::OneBit, Dtype::F64) => work.by::<Signs<I::F32, u64>, I::F64, I>(isa),
        (Form::OneBit, Dtype::F16) => work.by::<Signs<I::F32, u16>, I::F16, I>(isa),
        (Form::OneBit, Dtype::Bf16) => work.by::<Signs<I::F32, u16>, I::Bf16, I>(isa),
    }
}

struct Encode<'a> {
    codec: Quantized,
    chunk: Foreign<'a>,
    out: &'a mut [u8],
}

impl Dispatch for Encode<'_> {
    type Output = Option<usize>;

    fn on<I: Isa>(self, isa: I) -> Option<usize> {
        on(isa, self)
    }
}

impl Packed for Encode<'_> {
    type Output = Option<usize>;

    fn codec(&self) -> Quantized {
        self.codec
    }

    fn by<P: Packing, _E: Element, I: Isa>(self, isa: I) -> Option<usize> {
        let bytes = self.codec.bytes(self.chunk.len())?;
        isa.run(EncodeBy::<P> { work: self, packing: PhantomData }).then_some(bytes)
    }
}

struct EncodeBy<'a, P> {
    work: Encode<'a>,
    packing: PhantomData<P>,
}

impl<P: Packing> Kernel for EncodeBy<'_, P> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Encode { codec: Quantized { form, dtype }, chunk, mut out } = self.work;
        let block = form.block() * dtype.size();
        let mut room = Room::new();
        let mut start = 0;
        while start < chunk.len() {
            let end = chunk.len().min(start + block);
            let bytes = form.bytes(dtype.size(), (end - start) / dtype.size());
            let packed = out.split_off_mut(..bytes).expect("room for a payload");
            if !P::pack(&chunk.part(start..end), &mut room, packed) {
                return false;
            }
            start = end;
        }
        true
    }
}

struct Decode<'a> {
    codec: Quantized,
    payload: &'a [u8],
    chunk: &'a mut [u8],
}

impl Dispatch for Decode<'_> {
    type Output = Result<(), Undecodable>;

    fn on<I: Isa>(self, isa: I) -> Result<(), Undecodable> {
        on(isa, self)
    }
}

impl Packed for Decode<'_> {
    type Output = Result<(), Undecodable>;

    fn codec(&self) -> Quantized {
        self.codec
    }

    fn by<P: Packing, _E: Element, I: Isa>(self, isa: I) -> Result<(), Undecodable> {
        let Some(bytes) = self.codec.bytes(self.chunk.len()) else {
            return refused("chunk that it makes shorter, bytes of it", 0, self.chunk.len());
        };
        if self.payload.len() != bytes {
            return refused("bytes", bytes, self.payload.len());
        }
        isa.run(DecodeBy::<P> { work: self, packing: PhantomData })
    }
}

struct DecodeBy<'a, P> {
    work: Decode<'a>,
    packing: PhantomData<P>,
}

impl<P: Packing> Kernel for DecodeBy<'_, P> {
    type Output = Result<(), Undecodable>;

    #[inline(always)]
    fn run(self) -> Result<(), Undecodable> {
        let Decode { codec: Quantized { form, dtype }, payload, chunk } = self.work;
        let (size, block) = (dtype.size(), form.block());
        let packed = payload.chunks(form.bytes(size, block));
        for (packed, chunk) in packed.clone().zip(chunk.chunks(block * size)) {
            P::check(packed, chunk.len() / size)?;
        }
        let mut room = Room::new();
        for (packed, chunk) in packed.zip(chunk.chunks_mut(block * size)) {
            P::unpack(packed, &mut room, chunk);
        }
        Ok(())
    }
}

/// The bytes of an element that opens a block, and what follows.
#[inline(always)]
fn opened<B: Bits>(packed: &[u8]) -> (B, &[u8]) {
    let (first, rest) = packed.split_at(B::SIZE);
    (B::read(B::words(first)[0]), rest)
}
