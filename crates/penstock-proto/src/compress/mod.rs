//! General-purpose compressors behind the encodings: what a declaration asks for, and what a frame says of its payload.
//!
//! The order is one: a filter selects, and quantizes; a [codec](crate::encoding) encodes; a
//! [compressor](penstock_kernels::compress) makes shorter what came of that. Contributions, loads and values of tensors are compressed,
//! on connections between hosts; neither optimizer's arrays that homes send nor factors nor updates are. What is passed on from worker to worker is passed on
//! as it came. Each chunk by itself: where it did not become shorter, it goes as it is, and its frame says so.
//!
//! A frame says how long its payload is and how long what it decompresses to: both are judged before a byte of it is let in (E-2),
//! and it is decompressed into exactly so much room, beside what it is decoded onto.
//!
//! Which compressor is tried is the sender's affair alone ([`Chooser`]), within what was declared.

mod choice;

pub use choice::{Chooser, LEAST};

use penstock_kernels::compress::Compressor;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Add;
use std::str::FromStr;

/// What a declaration asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compress {
    /// Nothing is compressed.
    #[default]
    None,
    /// Each chunk, where it becomes shorter.
    By(Compressor),
    /// Where it pays, by the compressor that pays most: measured cost decides.
    Auto,
}

impl Compress {
    /// Whether cost decides what is sent: nobody has named a compressor.
    pub const fn is_choice(self) -> bool {
        !matches!(self, Self::By(_))
    }

    /// Whether a frame may be compressed so.
    pub fn allows(self, by: Compressor) -> bool {
        match self {
            Self::None => false,
            Self::By(one) => one == by,
            Self::Auto => true,
        }
    }
}

/// As users write it.
impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::By(by) => by.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// A text that is none of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected `compress` as \"none\", \"lz4\", \"zstd\" or \"auto\", got {got:?}")]
pub struct ParseCompressError {
    /// What came.
    pub got: String,
}

impl FromStr for Compress {
    type Err = ParseCompressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::None, Self::By(Compressor::Lz4), Self::By(Compressor::Zstd), Self::Auto];
        let named = all.into_iter().find(|one| one.to_string() == text);
        named.ok_or_else(|| ParseCompressError { got: text.to_owned() })
    }
}

/// That a payload is compressed: by what, and how many bytes it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packed {
    /// By what.
    pub by: Compressor,
    /// Bytes that it decompresses to.
    pub length: u32,
}

/// What became of chunks of tensors that may be compressed, one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Squeezed {
    /// Chunks that went compressed.
    pub chunks: u64,
    /// Chunks that went as they were encoded.
    pub raw: u64,
    /// Bytes of all of them as they were encoded.
    pub before: u64,
    /// Bytes of all of them as they went.
    pub after: u64,
}

impl Squeezed {
    /// Counts one more: so many bytes, and compressed, if it was.
    pub fn count(&mut self, length: usize, packed: Option<Packed>) {
        let before = packed.map_or(length as u64, |packed| u64::from(packed.length));
        match packed {
            Some(_) => self.chunks += 1,
            None => self.raw += 1,
        }
        (self.before, self.after) = (self.before + before, self.after + length as u64);
    }
}

impl Add for Squeezed {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            chunks: self.chunks + other.chunks,
            raw: self.raw + other.raw,
            before: self.before + other.before,
            after: self.after + other.after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_nothing_else_is_taken() {
        for compress in
            [Compress::None, Compress::By(Compressor::Lz4), Compress::By(Compressor::Zstd), Compress::Auto]
        {
            assert_eq!(compress.to_string().parse(), Ok(compress));
        }
        let refused = "snappy".parse::<Compress>().unwrap_err().to_string();
        let said = "expected `compress` as \"none\", \"lz4\", \"zstd\" or \"auto\", got \"snappy\"";
        assert_eq!(refused, said);
        assert!("".parse::<Compress>().is_err() && "LZ4".parse::<Compress>().is_err());
    }

    #[test]
    fn a_declaration_allows_what_it_names_and_auto_any() {
        let allowed = |compress: Compress| Compressor::ALL.map(|by| compress.allows(by));
        assert_eq!(allowed(Compress::None), [false, false]);
        assert_eq!(allowed(Compress::By(Compressor::Zstd)), [false, true]);
        assert_eq!(allowed(Compress::Auto), [true, true]);
    }

    #[test]
    fn what_went_is_counted_as_it_was_and_as_it_went() {
        let mut squeezed = Squeezed::default();
        squeezed.count(100, None);
        squeezed.count(40, Some(Packed { by: Compressor::Lz4, length: 100 }));
        assert_eq!(squeezed, Squeezed { chunks: 1, raw: 1, before: 200, after: 140 });
        assert_eq!(squeezed + squeezed, Squeezed { chunks: 2, raw: 2, before: 400, after: 280 });
    }
}
