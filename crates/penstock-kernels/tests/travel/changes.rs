//! A codec that stores differences.

use penstock_kernels::Foreign;
use penstock_kernels::codec::{Base, Codec, Undecodable};
use std::ops::{Range, RangeInclusive};

/// Bytes of a word, and of its entry in a payload: its number, and what it is now.
const WORD: usize = 4;
pub(crate) const ENTRY: usize = 8;

fn word(bytes: usize, index: usize) -> Range<usize> {
    index * WORD..((index + 1) * WORD).min(bytes)
}

/// The words that differ from the base, ascending.
#[derive(Debug)]
pub(crate) struct Changes;

impl Codec for Changes {
    fn uses_base(&self) -> bool {
        true
    }

    fn lengths(&self, bytes: usize) -> RangeInclusive<usize> {
        0..=bytes.saturating_sub(1)
    }

    fn encode(&self, chunk: Foreign<'_>, base: Option<&[u8]>, out: &mut [u8]) -> Option<usize> {
        let mut at = 0;
        for index in 0..chunk.len().div_ceil(WORD) {
            let range = word(chunk.len(), index);
            let (mut now, mut before) = ([0; WORD], [0; WORD]);
            chunk.part(range.clone()).copy_to(&mut now[..range.len()]);
            if let Some(base) = base {
                before[..range.len()].copy_from_slice(&base[range]);
            }
            if now != before {
                let entry = out.get_mut(at..at + ENTRY)?;
                entry[..WORD].copy_from_slice(&(index as u32).to_le_bytes());
                entry[WORD..].copy_from_slice(&now);
                at += ENTRY;
            }
        }
        Some(at)
    }

    fn decode(&self, payload: &[u8], base: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
        let (entries, rest) = payload.as_chunks::<ENTRY>();
        let refused = |what, expected: usize, got: usize| {
            Err(Undecodable { what, expected: expected as u64, got: got as u64 })
        };
        if !rest.is_empty() {
            return refused("bytes behind its entries", 0, rest.len());
        }
        let parts = |entry: &[u8; ENTRY]| {
            let [a, b, c, d, now @ ..] = *entry;
            (u32::from_le_bytes([a, b, c, d]) as usize, now)
        };
        let mut least = 0;
        for (index, now) in entries.iter().map(parts) {
            if index < least {
                return refused("least word", least, index);
            }
            let last = chunk.len().div_ceil(WORD) - 1;
            if index > last {
                return refused("last word", last, index);
            }
            let beyond = &now[word(chunk.len(), index).len()..];
            if let Some(byte) = beyond.iter().find(|byte| **byte > 0) {
                return refused("byte behind the chunk", 0, usize::from(*byte));
            }
            least = index + 1;
        }
        if base == Base::Zeros {
            chunk.fill(0);
        }
        for (index, now) in entries.iter().map(parts) {
            let range = word(chunk.len(), index);
            let bytes = range.len();
            chunk[range].copy_from_slice(&now[..bytes]);
        }
        Ok(())
    }
}
