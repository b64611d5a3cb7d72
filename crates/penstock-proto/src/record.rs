//! Records: control messages on a stream. A record is a length (4 bytes, little-endian) and that many bytes.
//!
//! A stream has no borders and its bytes are foreign: a length beyond the limit is refused before anything is kept for it.

/// What is read of a stream of records.
#[derive(Debug)]
pub struct Records {
    limit: usize,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were given out.
    given: usize,
}

/// A record longer than any there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a record of at most {limit} bytes, got {got}")]
pub struct RecordTooLong {
    /// The limit.
    pub limit: usize,
    /// The length that was announced.
    pub got: usize,
}

const LENGTH: usize = 4;

impl Records {
    /// For records of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, buffer: Vec::new(), given: 0 }
    }

    /// Takes bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.given));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole record.
    pub fn take(&mut self) -> Result<Option<&[u8]>, RecordTooLong> {
        let rest = &self.buffer[self.given..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.limit {
            return Err(RecordTooLong { limit: self.limit, got: length });
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.given + LENGTH;
        self.given = start + length;
        Ok(Some(&self.buffer[start..self.given]))
    }

    /// How many bytes must at least come before there is another record: so a reader need not take more than is its.
    pub fn missing(&self) -> usize {
        let rest = &self.buffer[self.given..];
        match rest.split_first_chunk::<LENGTH>() {
            None => LENGTH - rest.len(),
            Some((length, rest)) => (u32::from_le_bytes(*length) as usize).saturating_sub(rest.len()),
        }
    }
}

/// `message` as a record.
pub fn record(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("messages are short");
    [&length.to_le_bytes(), message].concat()
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
        records.feed(&u32::MAX.to_le_bytes());
        assert_eq!(records.take(), Err(RecordTooLong { limit: 10, got: u32::MAX as usize }));
    }
}
