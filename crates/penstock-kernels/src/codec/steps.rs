//! Steps: by how many steps each element has moved from the base, as the [filter](crate::filter::Steps) of values of that name makes
//! them. A chunk with an element that has moved in any other way does not pay.
//!
//! A payload is a sequence of blocks of 256 elements, of which the last may be short: 2 bytes, the exponent of a power of two, the
//! step; and a byte for each element: how many of them are added to it, from -127 to 127. Of the largest block by block it is 64
//! or more, unless the step is the least that there is. An element that has not moved keeps its bits. The receiver adds in the
//! dtype's accumulator, and rounds, as the filter did.

use super::quantized::{STEP, check_steps, largest_step, step};
use super::span::refused;
use super::{Base, Codec, Undecodable};
use crate::arch::{self, Arch, Dispatch, Isa, Kernel};
use crate::blocks::{self, Room};
use crate::number::{Number, Real, largest, power_of_two};
use crate::sweep::ScalarOf;
use crate::vector::Element;
use crate::{Dtype, Foreign, ForeignMut};
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// Elements of a block.
pub(crate) const BLOCK: usize = 256;

/// Elements of one dtype that have moved by whole steps.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    dtype: Dtype,
}

impl Steps {
    /// For elements of such a dtype.
    pub const fn new(dtype: Dtype) -> Self {
        Self { dtype }
    }

    /// The number by which the codec is known.
    pub const fn number(self) -> u8 {
        36 + self.dtype as u8
    }

    /// Bytes of a payload, where that is fewer than the chunk's.
    fn bytes(self, chunk: usize) -> Option<usize> {
        let size = self.dtype.size();
        if !chunk.is_multiple_of(size) {
            return None;
        }
        let elements = chunk / size;
        Some(elements + STEP * elements.div_ceil(BLOCK)).filter(|&bytes| bytes < chunk)
    }

    /// [`Codec::encode`] with the variant `arch`; the outer `None`, with nothing done, where this machine lacks it.
    pub fn encode_on(
        self,
        arch: Arch,
        chunk: Foreign<'_>,
        base: Option<&[u8]>,
        out: &mut [u8],
    ) -> Option<Option<usize>> {
        arch::compute_on(arch, Encode { codec: self, chunk, base, out })
    }

    /// [`Codec::decode`] with the variant `arch`; `None`, with nothing done, where this machine lacks it.
    pub fn decode_on(
        self,
        arch: Arch,
        payload: &[u8],
        base: Base,
        chunk: &mut [u8],
    ) -> Option<Result<(), Undecodable>> {
        arch::compute_on(arch, Decode { codec: self, payload, base, chunk })
    }
}

impl Codec for Steps {
    fn uses_base(&self) -> bool {
        true
    }

    fn carries(&self, dtype: Dtype) -> bool {
        dtype == self.dtype
    }

    fn lengths(&self, bytes: usize) -> RangeInclusive<usize> {
        // None of a chunk that it would not make shorter.
        let none = RangeInclusive::new(1, 0);
        self.bytes(bytes).map_or(none, |bytes| bytes..=bytes)
    }

    fn encode(&self, chunk: Foreign<'_>, base: Option<&[u8]>, out: &mut [u8]) -> Option<usize> {
        arch::compute_on_best(Encode { codec: *self, chunk, base, out })
    }

    fn decode(&self, payload: &[u8], base: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
        arch::compute_on_best(Decode { codec: *self, payload, base, chunk })
    }
}

/// A block of elements, each moved by so many steps and rounded, goes to `to`: those that do not move as they stand in `base`, bit for
/// bit. `wide` has the accumulators of the base, and is worked in.
#[inline(always)]
pub(crate) fn move_by<E: Element>(
    base: &[u8],
    wide: &mut [u8],
    steps: &[u8],
    exponent: i32,
    to: &mut [u8; BLOCK * 8],
) {
    let scale = ScalarOf::<E>::of(power_of_two(exponent));
    for (word, &byte) in ScalarOf::<E>::words_mut(wide).iter_mut().zip(steps) {
        *word = (ScalarOf::<E>::read(*word) + ScalarOf::<E>::of_byte(byte) * scale).write();
    }
    let to = &mut to[..base.len()];
    blocks::store::<E>(wide, &mut ForeignMut::of(to), 0);
    let elements = to.chunks_exact_mut(E::SIZE).zip(base.chunks_exact(E::SIZE));
    for ((to, base), &byte) in elements.zip(steps) {
        for (to, base) in to.iter_mut().zip(base) {
            *to = if byte == 0 { *base } else { *to };
        }
    }
}

struct Encode<'a> {
    codec: Steps,
    chunk: Foreign<'a>,
    base: Option<&'a [u8]>,
    out: &'a mut [u8],
}

impl Dispatch for Encode<'_> {
    type Output = Option<usize>;

    fn on<I: Isa>(self, isa: I) -> Option<usize> {
        let bytes = self.codec.bytes(self.chunk.len())?;
        let fits = match self.codec.dtype {
            Dtype::F32 => isa.run(EncodeBy::<I::F32> { work: self, element: PhantomData }),
            Dtype::F64 => isa.run(EncodeBy::<I::F64> { work: self, element: PhantomData }),
            Dtype::F16 => isa.run(EncodeBy::<I::F16> { work: self, element: PhantomData }),
            Dtype::Bf16 => isa.run(EncodeBy::<I::Bf16> { work: self, element: PhantomData }),
        };
        fits.then_some(bytes)
    }
}

struct EncodeBy<'a, E> {
    work: Encode<'a>,
    element: PhantomData<E>,
}

/// What a block is worked on in.
struct Rooms {
    now: Room,
    held: Room,
    by: Room,
    /// Elements as they stand.
    chunk: [u8; BLOCK * 8],
    moved: [u8; BLOCK * 8],
}

impl<E: Element> Kernel for EncodeBy<'_, E> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Encode { codec: Steps { dtype }, chunk, base, mut out } = self.work;
        let (now, held, by) = (Room::new(), Room::new(), Room::new());
        let mut rooms = Rooms { now, held, by, chunk: [0; BLOCK * 8], moved: [0; BLOCK * 8] };
        let zeros = [0; BLOCK * 8];
        for start in (0..chunk.len()).step_by(BLOCK * E::SIZE) {
            let end = chunk.len().min(start + BLOCK * E::SIZE);
            let base = base.map_or(&zeros[..end - start], |base| &base[start..end]);
            let bytes = STEP + (end - start) / E::SIZE;
            let packed = out.split_off_mut(..bytes).expect("room for a payload");
            if !pack::<E>(dtype, &chunk.part(start..end), base, &mut rooms, packed) {
                return false;
            }
        }
        true
    }
}

/// Writes the steps of a block, if its elements have moved by steps.
#[inline(always)]
fn pack<E: Element>(
    dtype: Dtype,
    chunk: &Foreign<'_>,
    base: &[u8],
    rooms: &mut Rooms,
    packed: &mut [u8],
) -> bool {
    let bytes = base.len() / E::SIZE * E::State::SIZE;
    let Rooms { now, held, by, chunk: stands, moved } = rooms;
    let (now, held, by) = (&mut now.0[..bytes], &mut held.0[..bytes], &mut by.0[..bytes]);
    let stands = &mut stands[..base.len()];
    // Others may be writing it: this is the one look at it.
    chunk.copy_to(stands);
    blocks::load::<E>(&Foreign::of(stands), 0, now);
    blocks::load::<E>(&Foreign::of(base), 0, held);
    let read = ScalarOf::<E>::read;
    let by = ScalarOf::<E>::words_mut(by);
    let words = ScalarOf::<E>::words(now).iter().zip(ScalarOf::<E>::words(held));
    for (by, (now, held)) in by.iter_mut().zip(words) {
        let difference = read(*now) - read(*held);
        *by = if difference.is_finite() { difference.write() } else { ScalarOf::<E>::of(0.0).write() };
    }
    let nearest = step(dtype, largest::<ScalarOf<E>>(by));
    let (first, steps) = packed.split_at_mut(STEP);
    // Where the largest has moved by just 64 steps, rounding may have made it less than that.
    let exponents = [nearest, (nearest + 1).min(largest_step(dtype))];
    exponents.into_iter().any(|exponent| {
        let inverse = ScalarOf::<E>::of(power_of_two(-exponent));
        for (by, byte) in by.iter().zip(steps.iter_mut()) {
            *byte = (read(*by) * inverse).whole_byte();
        }
        first.copy_from_slice(&(exponent as i16).to_le_bytes());
        // As the receiver will.
        now.copy_from_slice(held);
        move_by::<E>(base, now, steps, exponent, moved);
        moved[..base.len()] == *stands && check_steps(dtype, first, steps).is_ok()
    })
}

struct Decode<'a> {
    codec: Steps,
    payload: &'a [u8],
    base: Base,
    chunk: &'a mut [u8],
}

impl Dispatch for Decode<'_> {
    type Output = Result<(), Undecodable>;

    fn on<I: Isa>(self, isa: I) -> Result<(), Undecodable> {
        let Some(bytes) = self.codec.bytes(self.chunk.len()) else {
            return refused("chunk that it makes shorter, bytes of it", 0, self.chunk.len());
        };
        if self.payload.len() != bytes {
            return refused("bytes", bytes, self.payload.len());
        }
        match self.codec.dtype {
            Dtype::F32 => isa.run(DecodeBy::<I::F32> { work: self, element: PhantomData }),
            Dtype::F64 => isa.run(DecodeBy::<I::F64> { work: self, element: PhantomData }),
            Dtype::F16 => isa.run(DecodeBy::<I::F16> { work: self, element: PhantomData }),
            Dtype::Bf16 => isa.run(DecodeBy::<I::Bf16> { work: self, element: PhantomData }),
        }
    }
}

struct DecodeBy<'a, E> {
    work: Decode<'a>,
    element: PhantomData<E>,
}

impl<E: Element> Kernel for DecodeBy<'_, E> {
    type Output = Result<(), Undecodable>;

    #[inline(always)]
    fn run(self) -> Result<(), Undecodable> {
        let Decode { codec: Steps { dtype }, payload, base, chunk } = self.work;
        let blocks = payload.chunks(STEP + BLOCK).map(|packed| packed.split_at(STEP));
        for (first, steps) in blocks.clone() {
            check_steps(dtype, first, steps)?;
        }
        if base == Base::Zeros {
            chunk.fill(0);
        }
        let (mut room, mut moved) = (Room::new(), [0; BLOCK * 8]);
        for ((first, steps), chunk) in blocks.zip(chunk.chunks_mut(BLOCK * E::SIZE)) {
            let held = &mut room.0[..steps.len() * E::State::SIZE];
            blocks::load::<E>(&Foreign::of(chunk), 0, held);
            let exponent = i16::from_le_bytes([first[0], first[1]]).into();
            move_by::<E>(chunk, held, steps, exponent, &mut moved);
            chunk.copy_from_slice(&moved[..chunk.len()]);
        }
        Ok(())
    }
}
