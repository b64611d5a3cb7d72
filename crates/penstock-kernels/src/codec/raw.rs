//! Raw: the chunk itself, its elements little-endian. It costs one copy where the chunk cannot be sent from where it is, and none elsewhere.

use super::{Base, Codec, Undecodable};
use crate::Foreign;
use std::ops::RangeInclusive;

/// The chunk itself. It needs no base, and always pays.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Codec for Raw {
    fn is_verbatim(&self) -> bool {
        true
    }

    fn lengths(&self, bytes: usize) -> RangeInclusive<usize> {
        bytes..=bytes
    }

    fn encode(&self, chunk: Foreign<'_>, _: Option<&[u8]>, out: &mut [u8]) -> Option<usize> {
        chunk.copy_to(&mut out[..chunk.len()]);
        Some(chunk.len())
    }

    fn decode(&self, payload: &[u8], _: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
        if payload.len() != chunk.len() {
            let (expected, got) = (chunk.len() as u64, payload.len() as u64);
            return Err(Undecodable { what: "bytes", expected, got });
        }
        chunk.copy_from_slice(payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_comes_back_whatever_stood_there_and_nothing_of_another_length_does() {
        let (chunk, mut out) = ([1, 2, 3, 4, 5], [9; 8]);
        for (base, held) in [(None, Base::Zeros), (Some(&[7; 5][..]), Base::Held)] {
            let length = Raw.encode(Foreign::of(&chunk), base, &mut out).unwrap();
            assert!(Raw.lengths(5).contains(&length));
            let mut place = [7; 5];
            assert_eq!(Raw.decode(&out[..length], held, &mut place), Ok(()));
            assert_eq!(place, chunk);
            let refused = Undecodable { what: "bytes", expected: 5, got: 4 };
            assert_eq!(Raw.decode(&out[..4], held, &mut place), Err(refused));
            assert!(Raw.decode(&out[..6], held, &mut place).is_err());
            assert_eq!(place, chunk, "what is refused changes nothing");
        }
    }
}
