//! Records: messages on a stream. A record is a length (4 bytes, little-endian), a checksum of it (4 bytes), a checksum of the
//! message (8 bytes; both XXH3) and the message.
//!
//! A stream has no borders and its bytes are foreign: a length beyond the limit is refused before anything is kept for it. The
//! length has a checksum of its own, because a damaged length would make its reader wait for bytes that never come. Damage is
//! the line's fault and ends the connection; a length beyond the limit is the peer's.

use crate::checksum;

/// Bytes in front of a record's checksum and message: their length, and what shows that it arrived undamaged.
pub const LENGTH_BYTES: usize = 8;
/// Bytes of a message's checksum.
pub const CHECKSUM_BYTES: usize = 8;
const HEAD_BYTES: usize = LENGTH_BYTES + CHECKSUM_BYTES;

/// What is read of a stream of records.
#[derive(Debug)]
pub struct Records {
    limit: usize,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were given out.
    given: usize,
}

/// Why a stream of records ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record longer than any there may be.
    #[error("expected a record of at most {limit} bytes, got {got}")]
    TooLong {
        /// The limit.
        limit: usize,
        /// The length that was announced.
        got: usize,
    },
    /// Bytes that do not fit their checksum.
    #[error("a record arrived damaged")]
    Damaged,
}

/// The first bytes of a record whose rest is `length` bytes long.
pub fn length_bytes(length: u32) -> [u8; LENGTH_BYTES] {
    let length = length.to_le_bytes();
    let sum = (checksum::of(&length) as u32).to_le_bytes();
    let mut bytes = [0; LENGTH_BYTES];
    bytes[..4].copy_from_slice(&length);
    bytes[4..].copy_from_slice(&sum);
    bytes
}

/// The length that the first bytes of a record tell, if it is at most `limit`.
pub fn length(bytes: &[u8; LENGTH_BYTES], limit: usize) -> Result<usize, RecordError> {
    let [a, b, c, d, ..] = *bytes;
    let length = u32::from_le_bytes([a, b, c, d]);
    if length_bytes(length) != *bytes {
        return Err(RecordError::Damaged);
    }
    let got = length as usize;
    if got > limit { Err(RecordError::TooLong { limit, got }) } else { Ok(got) }
}

impl Records {
    /// For messages of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, buffer: Vec::new(), given: 0 }
    }

    /// From the next message on of at most `limit` bytes.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Takes bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.given));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message.
    pub fn take(&mut self) -> Result<Option<&[u8]>, RecordError> {
        let rest = &self.buffer[self.given..];
        let Some((head, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = length(head, self.limit)?;
        let Some((sum, rest)) = rest.split_first_chunk::<CHECKSUM_BYTES>() else { return Ok(None) };
        let Some(message) = rest.get(..length) else { return Ok(None) };
        if u64::from_le_bytes(*sum) != checksum::of(message) {
            return Err(RecordError::Damaged);
        }
        let start = self.given + HEAD_BYTES;
        self.given = start + length;
        Ok(Some(&self.buffer[start..self.given]))
    }

    /// How many bytes must at least come before there is another record: so a reader need not take more than is its.
    pub fn missing(&self) -> usize {
        let rest = &self.buffer[self.given..];
        match rest.split_first_chunk::<LENGTH_BYTES>() {
            None => LENGTH_BYTES - rest.len(),
            Some((head, rest)) => {
                let message = length(head, self.limit).unwrap_or(0);
                (CHECKSUM_BYTES + message).saturating_sub(rest.len())
            }
        }
    }
}

/// `message` as a record.
pub fn record(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("messages are short");
    [&length_bytes(length)[..], &checksum::of(message).to_le_bytes(), message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_out_as_they_went_in_however_the_stream_is_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..10),
            cuts in prop::collection::vec(1usize..40, 1..100),
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|message| record(message)).collect();
            let (mut records, mut got, mut at) = (Records::new(50), Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(stream.len());
                records.feed(&stream[at..end]);
                at = end;
                while let Some(message) = records.take().unwrap() {
                    got.push(message.to_vec());
                }
                if at == stream.len() {
                    break;
                }
            }
            prop_assert_eq!(got, messages);
        }
    }

    #[test]
    fn a_reader_that_takes_what_is_missing_never_takes_what_follows() {
        let stream = [record(b"first"), b"frames".to_vec()].concat();
        let (mut records, mut at) = (Records::new(10), 0);
        while records.take().unwrap().is_none() {
            let missing = records.missing();
            records.feed(&stream[at..at + missing]);
            at += missing;
        }
        assert_eq!(&stream[at..], b"frames");
    }

    #[test]
    fn a_hostile_length_is_refused_before_a_byte_is_kept_for_it() {
        let mut records = Records::new(10);
        records.feed(&length_bytes(u32::MAX));
        assert_eq!(records.take(), Err(RecordError::TooLong { limit: 10, got: u32::MAX as usize }));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found_and_never_has_the_reader_wait_for_what_does_not_come() {
        let whole = record(b"rescale = 1.0");
        for at in 0..8 * whole.len() {
            let mut damaged = whole.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            let mut records = Records::new(1 << 20);
            records.feed(&damaged);
            assert_eq!(records.take(), Err(RecordError::Damaged), "bit {at}");
        }
    }
}
