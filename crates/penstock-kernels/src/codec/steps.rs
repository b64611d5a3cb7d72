//! Steps: by how much each element has moved from the base, as the [filter](crate::filter::Steps) of values makes it: a number that
//! takes few bits. A chunk with an element that has moved in any other way does not pay.
//!
//! A payload is that of [quantized](super::quantized) numbers, which say by how much; an element that has not moved keeps its bits. The
//! receiver adds in the dtype's accumulator, and rounds, as the filter did: one [function](crate::moves) does it for both.
//!
//! What the filter added is not known here, only what came of it, which was rounded. So the sender guesses, a few times for each block,
//! and moves the base as the receiver will: a guess that does not come to the chunk, bit for bit, is none. For a chunk there may be
//! several payloads, then, that come to the same.

use super::quantized::{self, Form, Moved, Packed, Packing, Quantized};
use super::span::refused;
use super::{Base, Codec, Undecodable};
use crate::arch::{self, Arch, Dispatch, Isa, Kernel};
use crate::blocks::{self, Room};
use crate::moves::{differences, load, move_by};
use crate::vector::Element;
use crate::{Dtype, Foreign, ForeignMut};
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// Elements of one dtype that have moved by numbers of one form.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    numbers: Quantized,
}

impl Steps {
    /// By numbers of such a form, for elements of such a dtype.
    pub const fn new(form: Form, dtype: Dtype) -> Self {
        Self { numbers: Quantized::new(form, dtype) }
    }

    /// The number by which the codec is known: from [`Steps::FIRST`] on.
    pub const fn number(self) -> u8 {
        // In the order in which they came to be.
        let place = match self.numbers.form() {
            Form::Int8 => 0,
            Form::F16 => 1,
            Form::Bf16 => 2,
            Form::TwoBits => 3,
            Form::OneBit => 4,
        };
        Self::FIRST + 4 * place + self.numbers.dtype() as u8
    }

    /// The least of their numbers.
    pub const FIRST: u8 = 36;

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
        self.numbers.carries(dtype)
    }

    fn lengths(&self, bytes: usize) -> RangeInclusive<usize> {
        self.numbers.lengths(bytes)
    }

    fn encode(&self, chunk: Foreign<'_>, base: Option<&[u8]>, out: &mut [u8]) -> Option<usize> {
        arch::compute_on_best(Encode { codec: *self, chunk, base, out })
    }

    fn decode(&self, payload: &[u8], base: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
        arch::compute_on_best(Decode { codec: *self, payload, base, chunk })
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
        quantized::on(isa, self)
    }
}

impl Packed for Encode<'_> {
    type Output = Option<usize>;

    fn codec(&self) -> Quantized {
        self.codec.numbers
    }

    fn by<P: Packing, E: Element, I: Isa>(self, isa: I) -> Option<usize> {
        let bytes = self.codec.numbers.bytes(self.chunk.len())?;
        isa.run(EncodeBy::<P, E> { work: self, packing: PhantomData }).then_some(bytes)
    }
}

struct EncodeBy<'a, P, E> {
    work: Encode<'a>,
    packing: PhantomData<(P, E)>,
}

/// What a block is worked on in.
struct Rooms {
    now: Room,
    held: Room,
    off: Room,
    by: Room,
    stands: Room,
    numbers: Room,
    moved: Room,
    room: Room,
}

impl Rooms {
    fn new() -> Self {
        let [now, held, off, by] = [Room::new(), Room::new(), Room::new(), Room::new()];
        let [stands, numbers, moved, room] = [Room::new(), Room::new(), Room::new(), Room::new()];
        Self { now, held, off, by, stands, numbers, moved, room }
    }
}

impl<P: Packing, E: Element> Kernel for EncodeBy<'_, P, E> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Encode { codec: Steps { numbers }, chunk, base, mut out } = self.work;
        let mut rooms = Rooms::new();
        let zeros = Room::new();
        let block = numbers.form().block() * E::SIZE;
        for start in (0..chunk.len()).step_by(block) {
            let end = chunk.len().min(start + block);
            let base = base.map_or(&zeros.0[..end - start], |base| &base[start..end]);
            let bytes = numbers.bytes_of((end - start) / E::SIZE);
            let packed = out.split_off_mut(..bytes).expect("room for a payload");
            if !pack::<P, E>(&chunk.part(start..end), base, &mut rooms, packed) {
                return false;
            }
        }
        true
    }
}

/// Writes by how much the elements of a block have moved, if that are numbers of the form.
#[inline(always)]
fn pack<P: Packing, E: Element>(
    chunk: &Foreign<'_>,
    base: &[u8],
    rooms: &mut Rooms,
    packed: &mut [u8],
) -> bool {
    let bytes = base.len() / E::SIZE * E::State::SIZE;
    let Rooms { now, held, off, by, stands, numbers, moved, room } = rooms;
    let (now, held, off, by) =
        (&mut now.0[..bytes], &mut held.0[..bytes], &mut off.0[..bytes], &mut by.0[..bytes]);
    let stands = &mut stands.0[..base.len()];
    // Others may be writing it: this is the one look at it.
    chunk.copy_to(stands);
    load::<E>(stands, now);
    load::<E>(base, held);
    differences::<E>(now, held, off, |_, _| ());
    let (numbers, moved) = (&mut numbers.0[..base.len()], &mut moved.0[..base.len()]);
    (0..P::GUESSES).any(|guess| {
        P::guess::<E>(guess, Moved { base, stands, held, off }, by);
        // As elements hold it, which the receiver will be told.
        blocks::store::<E>(by, &mut ForeignMut::of(numbers), 0);
        load::<E>(numbers, by);
        now.copy_from_slice(held);
        move_by::<E>(base, now, by, moved);
        *moved == *stands
            && P::pack(&Foreign::of(numbers), room, packed)
            && P::check(packed, base.len() / E::SIZE).is_ok()
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
        quantized::on(isa, self)
    }
}

impl Packed for Decode<'_> {
    type Output = Result<(), Undecodable>;

    fn codec(&self) -> Quantized {
        self.codec.numbers
    }

    fn by<P: Packing, E: Element, I: Isa>(self, isa: I) -> Result<(), Undecodable> {
        let Some(bytes) = self.codec.numbers.bytes(self.chunk.len()) else {
            return refused("chunk that it makes shorter, bytes of it", 0, self.chunk.len());
        };
        if self.payload.len() != bytes {
            return refused("bytes", bytes, self.payload.len());
        }
        isa.run(DecodeBy::<P, E> { work: self, packing: PhantomData })
    }
}

struct DecodeBy<'a, P, E> {
    work: Decode<'a>,
    packing: PhantomData<(P, E)>,
}

impl<P: Packing, E: Element> Kernel for DecodeBy<'_, P, E> {
    type Output = Result<(), Undecodable>;

    #[inline(always)]
    fn run(self) -> Result<(), Undecodable> {
        let Decode { codec: Steps { numbers }, payload, base, chunk } = self.work;
        let block = numbers.form().block();
        let packed = payload.chunks(numbers.bytes_of(block));
        for (packed, chunk) in packed.clone().zip(chunk.chunks(block * E::SIZE)) {
            P::check(packed, chunk.len() / E::SIZE)?;
        }
        if base == Base::Zeros {
            chunk.fill(0);
        }
        let (mut room, mut held, mut by, mut moved) = (Room::new(), Room::new(), Room::new(), Room::new());
        for (packed, chunk) in packed.zip(chunk.chunks_mut(block * E::SIZE)) {
            let bytes = chunk.len() / E::SIZE * E::State::SIZE;
            let (held, by) = (&mut held.0[..bytes], &mut by.0[..bytes]);
            let moved = &mut moved.0[..chunk.len()];
            P::unpack(packed, &mut room, moved);
            load::<E>(moved, by);
            load::<E>(chunk, held);
            move_by::<E>(chunk, held, by, moved);
            chunk.copy_from_slice(moved);
        }
        Ok(())
    }
}
