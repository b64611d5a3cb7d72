//! Sparse: the elements that differ from the base, by their bits, as they are now; and where they are. Against no base those whose
//! bits are not all 0. To decode is to assign, never to add: -0.0 where 0.0 was is sent, and a NaN keeps its payload.
//!
//! A payload is a sequence of spans, each of 8192 elements, of which the last may be short:
//!
//! | bytes | what |
//! |---|---|
//! | 2 | how many elements are sent; the highest bit: 0 for a bitmap, 1 for indices |
//! | as many elements | what they are now |
//! | the rest | where they are: a [bitmap](super::bitmap), or [indices](super::indices) where these are fewer bytes |
//!
//! All numbers are little-endian. There is one payload for each chunk and base: what is sent differs, the form is the smaller, gaps
//! take the fewest bits, and bits that nothing stands in are 0. Anything else is refused.
//!
//! **It pays** where the payload is shorter than the chunk by a 32nd at least. To find that out of a dense chunk costs little: a few
//! blocks of it are looked at first, spread over the chunk, and kept, as no byte of the chunk may be read twice. If nearly all of
//! their elements differ, it is left to raw; so are, rarely, chunks of which whole rows differ and these were met alone.
//!
//! Speed of light: chunk and base are read once, and the payload is written once, where it stays: the elements come before what
//! tells where they are, since that is known last, and a span is short enough to be held until then. To decode is to read payload
//! and chunk twice, the second time out of a cache unless the chunk is larger than that: nothing is written before all of it was
//! judged.
//!
//! Float32 in a chunk of 256 KiB, GB/s of the chunk's bytes, on one core of an EPYC (Zen 4) that was busy with other work: each
//! is the least of a hundred runs. A copy of the chunk: 56.
//!
//! | changed, at random | 0.1 % | 1 % | 10 % | 20 % | 40 % | 60 % | 90 % |
//! |---|---|---|---|---|---|---|---|
//! | of the chunk travels | 0.0012 | 0.012 | 0.12 | 0.23 | 0.43 | 0.63 | 0.93 |
//! | encode, AVX-512 | 19 | 15 | 9.9 | 8.8 | 12 | 11 | 9.1 |
//! | decode, AVX-512 | 124 | 31 | 9.1 | 6.9 | 13 | 12 | 9.6 |
//! | encode, AVX2 | - | 15 | 9.9 | - | 14 | - | - |
//! | decode, AVX2 | - | 23 | 8.0 | - | 11 | - | - |
//! | encode, portable | - | 4.3 | 3.5 | - | 3.7 | - | - |
//! | decode, portable | - | 45 | 8.9 | - | 4.9 | - | - |
//!
//! Where we lose: indices take longer than a bitmap, so of what is tried 20 % is the slowest; elements of two bytes, of which there
//! are twice as many, go at 4.4 GB/s there.

use super::span::{Marks, SPAN, refused};
use super::{Base, Codec, Undecodable, bitmap, indices};
use crate::arch::{self, Arch, Dispatch, Isa, Kernel};
use crate::vector::{Element, GROUP, Words};
use crate::{Dtype, Foreign};
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// Bytes of a span's header.
const HEADER: usize = 2;
/// In it: where elements are is told by indices.
const INDICES: u16 = 1 << 15;

/// Bytes that are copied out at once: groups of the widest elements are as many.
const BLOCK: usize = 8 * GROUP;
/// Such a copy, on cache lines: what crosses one takes longer to be stored and loaded again.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Block([u8; BLOCK]);
/// What is compared where there is no base.
const ZEROS: [u8; BLOCK] = [0; BLOCK];
/// Blocks that are looked at first.
const SAMPLES: usize = 8;
/// The least blocks of a chunk that is looked at first.
const SAMPLED: usize = 64;

/// The elements of `SIZE` bytes that differ from the base.
#[derive(Clone, Copy, Debug)]
pub struct Sparse<const SIZE: usize>;

/// The most bytes of a payload that pays.
fn most(bytes: usize) -> usize {
    bytes - bytes.div_ceil(32)
}

impl<const SIZE: usize> Sparse<SIZE> {
    const WIDTH: () = assert!(matches!(SIZE, 2 | 4 | 8), "elements are of 2, 4 or 8 bytes");

    /// [`Codec::encode`] with the variant `arch`; the outer `None`, with nothing done, where this machine lacks it.
    pub fn encode_on(
        self,
        arch: Arch,
        chunk: Foreign<'_>,
        base: Option<&[u8]>,
        out: &mut [u8],
    ) -> Option<Option<usize>> {
        arch::on(arch, Encode::<SIZE> { chunk, base, out })
    }

    /// [`Codec::decode`] with the variant `arch`; `None`, with nothing done, where this machine lacks it.
    pub fn decode_on(
        self,
        arch: Arch,
        payload: &[u8],
        base: Base,
        chunk: &mut [u8],
    ) -> Option<Result<(), Undecodable>> {
        arch::on(arch, Decode::<SIZE> { payload, base, chunk })
    }
}

impl<const SIZE: usize> Codec for Sparse<SIZE> {
    fn uses_base(&self) -> bool {
        true
    }

    fn gives_way(&self) -> bool {
        true
    }

    fn carries(&self, dtype: Dtype) -> bool {
        let () = Self::WIDTH;
        dtype.size() == SIZE
    }

    fn lengths(&self, bytes: usize) -> RangeInclusive<usize> {
        (bytes / SIZE).div_ceil(SPAN) * HEADER..=most(bytes)
    }

    fn encode(&self, chunk: Foreign<'_>, base: Option<&[u8]>, out: &mut [u8]) -> Option<usize> {
        arch::on_best(Encode::<SIZE> { chunk, base, out })
    }

    fn decode(&self, payload: &[u8], base: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
        arch::on_best(Decode::<SIZE> { payload, base, chunk })
    }
}

struct Encode<'a, const SIZE: usize> {
    chunk: Foreign<'a>,
    base: Option<&'a [u8]>,
    out: &'a mut [u8],
}

impl<const SIZE: usize> Dispatch for Encode<'_, SIZE> {
    type Output = Option<usize>;

    fn on<I: Isa>(self, isa: I) -> Option<usize> {
        let Self { chunk, base, out } = self;
        let bytes = chunk.len();
        assert!(base.is_none_or(|base| base.len() == bytes), "a base is as long as its chunk");
        // A chunk that is no whole number of elements is none of a tensor's, and raw has no need of them.
        if bytes == 0 || !bytes.is_multiple_of(SIZE) {
            return None;
        }
        let out = &mut out[..most(bytes)];
        match SIZE {
            2 => isa.run(EncodeOn::<I::F32, I::Words2> { chunk, base, out, kind: PhantomData }),
            4 => isa.run(EncodeOn::<I::F32, I::Words4> { chunk, base, out, kind: PhantomData }),
            _ => isa.run(EncodeOn::<I::F32, I::Words8> { chunk, base, out, kind: PhantomData }),
        }
    }
}

/// Copies bytes by the vectors of `E`, whatever stands in them.
struct EncodeOn<'a, E, W> {
    chunk: Foreign<'a>,
    base: Option<&'a [u8]>,
    out: &'a mut [u8],
    kind: PhantomData<(E, W)>,
}

impl<E: Element, W: Words> Kernel for EncodeOn<'_, E, W> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(mut self) -> Option<usize> {
        let mut samples = Samples::none();
        if self.chunk.len() >= SAMPLED * BLOCK && self.looks_dense(&mut samples) {
            return None;
        }
        let (span, bytes) = (SPAN * W::SIZE, self.chunk.len());
        let (mut at, mut start) = (0, 0);
        while start < bytes {
            let end = bytes.min(start + span);
            at = self.span(start, end, at, &mut samples)?;
            start = end;
        }
        Some(at)
    }
}

/// Blocks that were read ahead of their turn.
struct Samples {
    blocks: [Block; SAMPLES],
    /// Where in the chunk they are; no block is at the last.
    places: [usize; SAMPLES + 1],
    /// The next whose turn comes.
    next: usize,
}

impl Samples {
    fn none() -> Self {
        Self { blocks: [Block(ZEROS); SAMPLES], places: [usize::MAX; SAMPLES + 1], next: 0 }
    }
}

impl<E: Element, W: Words> EncodeOn<'_, E, W> {
    /// Reads the samples. Whether the chunk had better go raw, as far as they tell.
    #[inline(always)]
    fn looks_dense(&self, samples: &mut Samples) -> bool {
        let every = self.chunk.len() / BLOCK / SAMPLES;
        let (mut differ, mut packed) = (0, Block(ZEROS));
        for (sample, block) in samples.blocks.iter_mut().enumerate() {
            let place = (sample * every + every / 2) * BLOCK;
            samples.places[sample] = place;
            self.read(place, block);
            let base = self.base_of(place, BLOCK);
            for (now, base) in block.0.chunks_exact(W::BYTES).zip(base.chunks_exact(W::BYTES)) {
                differ += W::pack(now, base, &mut packed.0).count_ones() as usize;
            }
        }
        let looked_at = SAMPLES * BLOCK;
        // What tells where elements are takes a bit of each.
        differ * W::SIZE > most(looked_at) - looked_at / W::SIZE / 8
    }

    /// A whole block.
    #[inline(always)]
    fn read(&self, start: usize, block: &mut Block) {
        for at in (0..BLOCK).step_by(E::BYTES) {
            E::store(E::load_foreign(&self.chunk, start + at), &mut block.0[at..]);
        }
    }

    #[inline(always)]
    fn base_of(&self, start: usize, bytes: usize) -> &[u8] {
        self.base.map_or(&ZEROS[..bytes], |base| &base[start..start + bytes])
    }

    /// Encodes a span, which lies there in the chunk, to `out` from byte `at` on. Returns where it ends.
    #[inline(always)]
    fn span(&mut self, start: usize, end: usize, at: usize, samples: &mut Samples) -> Option<usize> {
        let mut marks = [0; SPAN / GROUP];
        let mut block = Block(ZEROS);
        let mut to = at + HEADER;
        for (place, marks) in (start..end).step_by(BLOCK).zip(marks.chunks_mut(BLOCK / W::BYTES)) {
            if end - place < BLOCK {
                to = self.rest(place, end, to, marks)?;
                break;
            }
            let now = if place == samples.places[samples.next] {
                samples.next += 1;
                &samples.blocks[samples.next - 1]
            } else {
                self.read(place, &mut block);
                &block
            };
            let base = self.base.map_or(&ZEROS[..], |base| &base[place..place + BLOCK]);
            to = pack::<W>(&now.0, base, self.out, to, marks)?;
        }
        let count = (to - at - HEADER) / W::SIZE;
        let bitmap = bitmap::bytes((end - start) / W::SIZE);
        let indices = indices::bytes_below::<W>(&marks, bitmap);
        let places = self.out.get_mut(to..to + indices.unwrap_or(bitmap))?;
        match indices {
            Some(_) => indices::write::<W>(&marks, places),
            None => bitmap::write(&marks, places),
        }
        let to = to + places.len();
        let header = count as u16 | indices.map_or(0, |_| INDICES);
        self.out[at..at + HEADER].copy_from_slice(&header.to_le_bytes());
        Some(to)
    }

    /// What fills no block, with zeros behind, which differ from nothing.
    #[inline(always)]
    fn rest(&mut self, start: usize, end: usize, to: usize, marks: &mut [u64]) -> Option<usize> {
        let (mut now, mut base) = (ZEROS, ZEROS);
        self.chunk.copy_words(start, &mut now[..end - start]);
        base[..end - start].copy_from_slice(self.base_of(start, end - start));
        pack::<W>(&now, &base, self.out, to, marks)
    }
}

/// Packs the groups of a block to `out` from byte `to` on. Returns where they end, if there is room.
#[inline(always)]
fn pack<W: Words>(
    now: &[u8; BLOCK],
    base: &[u8],
    out: &mut [u8],
    mut to: usize,
    marks: &mut [u64],
) -> Option<usize> {
    let groups = now.chunks_exact(W::BYTES).zip(base.chunks_exact(W::BYTES));
    for ((now, base), marks) in groups.zip(marks) {
        if let Some(room) = out.get_mut(to..to + W::BYTES) {
            *marks = W::pack(now, base, room);
        } else {
            let mut packed = ZEROS;
            *marks = W::pack(now, base, &mut packed);
            let packed = &packed[..W::SIZE * marks.count_ones() as usize];
            out.get_mut(to..to + packed.len())?.copy_from_slice(packed);
        }
        to += W::SIZE * marks.count_ones() as usize;
    }
    Some(to)
}

struct Decode<'a, const SIZE: usize> {
    payload: &'a [u8],
    base: Base,
    chunk: &'a mut [u8],
}

impl<const SIZE: usize> Dispatch for Decode<'_, SIZE> {
    type Output = Result<(), Undecodable>;

    fn on<I: Isa>(self, isa: I) -> Result<(), Undecodable> {
        let Self { payload, base, chunk } = self;
        if !chunk.len().is_multiple_of(SIZE) {
            return refused("chunk's bytes behind its last element", 0, chunk.len() % SIZE);
        }
        if payload.len() > most(chunk.len()) {
            return refused("most bytes", most(chunk.len()), payload.len());
        }
        match SIZE {
            2 => isa.run(DecodeOn::<I::Words2> { payload, base, chunk, words: PhantomData }),
            4 => isa.run(DecodeOn::<I::Words4> { payload, base, chunk, words: PhantomData }),
            _ => isa.run(DecodeOn::<I::Words8> { payload, base, chunk, words: PhantomData }),
        }
    }
}

struct DecodeOn<'a, W> {
    payload: &'a [u8],
    base: Base,
    chunk: &'a mut [u8],
    words: PhantomData<W>,
}

impl<W: Words> Kernel for DecodeOn<'_, W> {
    type Output = Result<(), Undecodable>;

    #[inline(always)]
    fn run(self) -> Result<(), Undecodable> {
        let Self { payload, base, chunk, .. } = self;
        let mut marks = [0; SPAN / GROUP];
        let mut rest = payload;
        for chunk in chunk.chunks(SPAN * W::SIZE) {
            let (packed, places) = read::<W>(&mut rest, chunk.len() / W::SIZE, &mut marks)?;
            smaller::<W>(&marks, places, chunk.len() / W::SIZE)?;
            differ::<W>(&marks, packed, chunk, base)?;
        }
        if !rest.is_empty() {
            return refused("bytes behind its last span", 0, rest.len());
        }
        let (mut rest, spans) = (payload, chunk.len().div_ceil(SPAN * W::SIZE));
        for chunk in chunk.chunks_mut(SPAN * W::SIZE) {
            // The only span there is was just read.
            let packed = if spans == 1 {
                &payload[HEADER..]
            } else {
                read::<W>(&mut rest, chunk.len() / W::SIZE, &mut marks)?.0
            };
            if base == Base::Zeros {
                chunk.fill(0);
            }
            assign::<W>(&marks, packed, chunk);
        }
        Ok(())
    }
}

/// How many bytes tell where elements are, and in which form.
type Places = (usize, bool);

/// Reads the first span of `payload`, of so many elements, and takes it off. Returns the packed elements, with what comes behind
/// them.
#[inline(always)]
fn read<'a, W: Words>(
    payload: &mut &'a [u8],
    elements: usize,
    marks: &mut Marks,
) -> Result<(&'a [u8], Places), Undecodable> {
    let Some((header, packed)) = payload.split_first_chunk::<HEADER>() else {
        return refused("span's header", HEADER, payload.len());
    };
    let header = u16::from_le_bytes(*header);
    let (count, by_indices) = (usize::from(header & !INDICES), header & INDICES != 0);
    if count > elements {
        return refused("most elements of a span", elements, count);
    }
    let Some(places) = packed.get(count * W::SIZE..) else {
        return refused("bytes of a span's elements", count * W::SIZE, packed.len());
    };
    let bytes = match by_indices {
        true => indices::read(places, count, elements, marks)?,
        false => bitmap::read(places, count, elements, marks)?,
    };
    *payload = &places[bytes..];
    Ok((packed, (bytes, by_indices)))
}

/// Whether the form is the smaller one.
#[inline(always)]
fn smaller<W: Words>(marks: &Marks, (bytes, by_indices): Places, elements: usize) -> Result<(), Undecodable> {
    let bitmap = bitmap::bytes(elements);
    match by_indices {
        true if bytes >= bitmap => refused("most bytes of a span's gaps", bitmap - 1, bytes),
        true => Ok(()),
        false => match indices::bytes_below::<W>(marks, bitmap) {
            Some(fewer) => refused("bytes of a span's places", fewer, bitmap),
            None => Ok(()),
        },
    }
}

/// The packed elements of a group, and as much behind them as is loaded: near the end of a payload in `room`.
#[inline(always)]
fn group<'a, W: Words>(packed: &'a [u8], room: &'a mut [u8; BLOCK]) -> &'a [u8] {
    match packed.get(..W::BYTES) {
        Some(packed) => packed,
        None => {
            room[..packed.len()].copy_from_slice(packed);
            room
        }
    }
}

/// Whether each element that is sent differs from what stands in the chunk, which the base tells.
#[inline(always)]
fn differ<W: Words>(marks: &Marks, mut packed: &[u8], chunk: &[u8], base: Base) -> Result<(), Undecodable> {
    let mut room = ZEROS;
    for (&which, chunk) in marks.iter().zip(chunk.chunks(W::BYTES)) {
        if which == 0 {
            continue;
        }
        let these = group::<W>(packed, &mut room);
        let repeats = match base {
            Base::Zeros => W::repeats(which, these, &ZEROS),
            Base::Held if chunk.len() == W::BYTES => W::repeats(which, these, chunk),
            Base::Held => {
                let mut old = ZEROS;
                old[..chunk.len()].copy_from_slice(chunk);
                W::repeats(which, these, &old)
            }
        };
        if repeats {
            return refused("elements that are what they were", 0, 1);
        }
        packed = &packed[W::SIZE * which.count_ones() as usize..];
    }
    Ok(())
}

/// Writes the elements that are sent over the chunk's.
#[inline(always)]
fn assign<W: Words>(marks: &Marks, mut packed: &[u8], chunk: &mut [u8]) {
    let mut room = ZEROS;
    for (&which, chunk) in marks.iter().zip(chunk.chunks_mut(W::BYTES)) {
        if which == 0 {
            continue;
        }
        let these = group::<W>(packed, &mut room);
        if chunk.len() == W::BYTES {
            W::unpack(which, these, chunk);
        } else {
            let mut whole = ZEROS;
            whole[..chunk.len()].copy_from_slice(chunk);
            W::unpack(which, these, &mut whole);
            chunk.copy_from_slice(&whole[..chunk.len()]);
        }
        packed = &packed[W::SIZE * which.count_ones() as usize..];
    }
}
