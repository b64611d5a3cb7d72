//! General-purpose compressors, behind whatever a [codec](crate::codec) made of a chunk. They lose nothing.
//!
//! | compressor | what it is | for |
//! |---|---|---|
//! | lz4 | matches alone, in the block format: no magic, no length, no checksum | what repeats itself: zeros that no encoding leaves out, equal rows |
//! | zstd | matches, and symbols in as few bits as their frequency asks for; level 1, one frame | that too, and numbers whose exponents are alike: elements of full width, bits of few forms |
//!
//! Speed of light is memory's, and both are far from it. One core of an EPYC (Zen 4) that was busy with other work, payloads of a
//! chunk of 32 KiB, each figure the least of many runs; lz4 as it is built here, without unsafe code. ns for each byte that is
//! compressed, there and back; docs/filters.md has what comes of it on links.
//!
//! Two things were tried and left: **snappy**, which is lz4 again (of the payloads in that table it is ahead of it by 3 % once, and
//! behind by more elsewhere), and **bytes of elements sorted by their place** (a shuffle) before the compressor. zstd finds the
//! exponents without it, because what it counts are bytes wherever they stand: gaussian float32 goes to 0.924 either way, bfloat16 to
//! 0.780 and 0.778; and where elements are equal or zero the shuffle cuts matches up: at 90 % zeros 0.148 became 0.230, lz4's 0.204
//! became 0.368.
//!
//! What they need between calls (tables of lz4, contexts of zstd: about half a MiB) is a thread's own, made when it first compresses
//! and used again.

use crate::codec::Undecodable;
use lz4_flex::block;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fmt;

/// Counts that win nothing are not paid for: zstd's fastest level that looks at how frequent symbols are.
const LEVEL: i32 = 1;

/// What compresses. Numbers in frames are by [`number`](Self::number).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Compressor {
    /// LZ4's blocks.
    Lz4,
    /// Zstandard's frames.
    Zstd,
}

impl Compressor {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Lz4, Self::Zstd];

    /// How frames name it. 0 names none.
    pub fn number(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// The one of this number.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|compressor| compressor.number() == number)
    }

    /// Most bytes that so many may become: the room that compressing them takes.
    pub fn room(self, bytes: usize) -> usize {
        match self {
            Self::Lz4 => block::get_maximum_output_size(bytes),
            Self::Zstd => zstd::zstd_safe::compress_bound(bytes),
        }
    }
}

/// What people call it.
impl fmt::Display for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// What the compressors of a thread keep.
#[derive(Default)]
struct Kept {
    table: block::CompressTable,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Made where it is not there yet; `None` where there is no memory for it.
fn kept<T>(place: &mut Option<T>, make: impl FnOnce() -> std::io::Result<T>) -> Option<&mut T> {
    if place.is_none() {
        *place = make().ok();
    }
    place.as_mut()
}

/// Compresses `bytes` into `out`, which grows to the room that takes. How many bytes of it are the result; `None` where that does
/// not pay: it is not shorter by a 32nd at least, as with encodings.
pub fn compress(by: Compressor, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let room = by.room(bytes.len());
    if out.len() < room {
        out.resize(room, 0);
    }
    let length = KEPT.with_borrow_mut(|all| match by {
        Compressor::Lz4 => block::compress_into_with_table(bytes, out, &mut all.table).ok(),
        Compressor::Zstd => {
            let compressor = kept(&mut all.compressor, || zstd::bulk::Compressor::new(LEVEL))?;
            compressor.compress_to_buffer(bytes, &mut out[..]).ok()
        }
    })?;
    (length + bytes.len().div_ceil(32) <= bytes.len()).then_some(length)
}

/// Decompresses `packed`, foreign bytes, into `out`: exactly as many bytes as that has. Nothing is written outside of it, and nothing
/// in it counts on an error.
pub fn decompress(by: Compressor, packed: &[u8], out: &mut [u8]) -> Result<(), Undecodable> {
    let length = KEPT.with_borrow_mut(|all| match by {
        Compressor::Lz4 => block::decompress_into(packed, out).ok(),
        Compressor::Zstd => {
            let decompressor = kept(&mut all.decompressor, zstd::bulk::Decompressor::new)?;
            decompressor.decompress_to_buffer(packed, &mut out[..]).ok()
        }
    });
    match length {
        Some(length) if length == out.len() => Ok(()),
        // Damaged, cut off, longer than it was said to be: 0 came of it.
        length => Err(Undecodable {
            what: "bytes once decompressed",
            expected: out.len() as u64,
            got: length.unwrap_or(0) as u64,
        }),
    }
}

#[cfg(test)]
// C code cannot be looked into by Miri.
#[cfg(not(miri))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..3000),
            prop::collection::vec(0_u8..3, 0..3000),
            (any::<u8>(), 0_usize..100_000).prop_map(|(byte, count)| vec![byte; count]),
            prop::collection::vec(any::<f32>(), 0..500).prop_map(|all| {
                all.into_iter().flat_map(|one| one.abs().min(1.0).to_le_bytes()).collect()
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back_and_what_is_not_shorter_is_not_said_to_be(
            bytes in bytes(), before in 0_usize..9000,
        ) {
            let mut out = vec![7; before];
            for by in Compressor::ALL {
                let Some(length) = compress(by, &bytes, &mut out) else { continue };
                prop_assert!(length < bytes.len());
                let mut back = vec![9; bytes.len()];
                prop_assert_eq!(decompress(by, &out[..length], &mut back), Ok(()));
                prop_assert_eq!(&back, &bytes);
            }
        }

        #[test]
        fn no_bytes_decompress_to_more_or_fewer_than_there_is_room_for(
            bytes in bytes(), cut in any::<prop::sample::Index>(), flips in any::<(u16, u8)>(), room in 0_usize..4000,
        ) {
            let mut out = Vec::new();
            for by in Compressor::ALL {
                let Some(length) = compress(by, &bytes, &mut out) else { continue };
                let mut back = vec![9; bytes.len()];
                // One less, one more.
                prop_assert!(decompress(by, &out[..length], &mut back[1..]).is_err());
                prop_assert!(decompress(by, &out[..length], &mut vec![0; bytes.len() + 1]).is_err());
                prop_assert!(decompress(by, &out[..cut.index(length)], &mut back).is_err());
                let mut spoilt = out[..length].to_vec();
                let at = usize::from(flips.0) % length;
                spoilt[at] ^= flips.1;
                let _ = decompress(by, &spoilt, &mut vec![0; room]);
                let _ = decompress(by, &bytes, &mut vec![0; room]);
            }
        }
    }

    #[test]
    fn a_bomb_fills_the_room_that_was_given_and_no_more() {
        let zeros = vec![0; 1 << 20];
        let mut out = Vec::new();
        for by in Compressor::ALL {
            let length = compress(by, &zeros, &mut out).unwrap();
            assert!(length < 8192, "{by}: {length}");
            let mut room = vec![7; 4096];
            let refused = decompress(by, &out[..length], &mut room[..1024]).unwrap_err();
            assert_eq!((refused.what, refused.expected), ("bytes once decompressed", 1024));
            assert!(room[1024..].iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn numbers_and_names_are_each_ones_own() {
        for by in Compressor::ALL {
            assert_eq!(Compressor::numbered(by.number()), Some(by));
        }
        assert_eq!((Compressor::numbered(0), Compressor::numbered(3)), (None, None));
        assert_eq!(Compressor::ALL.map(|by| by.to_string()), ["lz4", "zstd"]);
    }
}
