//! What each datagram begins with.
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 16 | token | random, of one measurement; a datagram with another is not looked at |
//! | 16 | 4 | stream | its number in the measurement, little-endian like all that follow |
//! | 20 | 4 | message | its place in the stream; `AHEAD`: sent ahead of the stream, only counted |
//! | 24 | 8 | sent | nanoseconds from the start of the stream to the send, less those in which the host's own queue was full |
//!
//! The rest is filler.

/// Bytes of a token.
pub const TOKEN: usize = 16;
/// Bytes of a header.
pub const HEADER: usize = 32;
/// The place of what is sent ahead.
pub(super) const AHEAD: u32 = u32::MAX;

/// A header without its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) stream: u32,
    pub(super) message: u32,
    pub(super) sent_ns: u64,
}

impl Header {
    /// Writes it behind `token`; the datagram is at least `HEADER` long.
    pub(super) fn write(self, token: &[u8; TOKEN], datagram: &mut [u8]) {
        datagram[..16].copy_from_slice(token);
        datagram[16..20].copy_from_slice(&self.stream.to_le_bytes());
        datagram[20..24].copy_from_slice(&self.message.to_le_bytes());
        datagram[24..32].copy_from_slice(&self.sent_ns.to_le_bytes());
    }

    /// Reads it from bytes that anybody may have sent: `None` if they are too short or have another token.
    pub(super) fn read(token: &[u8; TOKEN], datagram: &[u8]) -> Option<Self> {
        let (found, rest) = datagram.split_first_chunk::<TOKEN>()?;
        let (stream, rest) = rest.split_first_chunk()?;
        let (message, rest) = rest.split_first_chunk()?;
        let (sent, _) = rest.split_first_chunk()?;
        (found == token).then(|| Self {
            stream: u32::from_le_bytes(*stream),
            message: u32::from_le_bytes(*message),
            sent_ns: u64::from_le_bytes(*sent),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_only_under_its_token() {
        let header = Header { stream: 7, message: 513, sent_ns: 1 << 40 };
        let mut datagram = [0xee; 40];
        header.write(&[9; TOKEN], &mut datagram);
        assert_eq!(datagram[HEADER..], [0xee; 8]);
        assert_eq!(Header::read(&[9; TOKEN], &datagram), Some(header));
        assert_eq!(Header::read(&[9; TOKEN], &datagram[..HEADER]), Some(header));
        assert_eq!(Header::read(&[8; TOKEN], &datagram), None);
        for short in 0..HEADER {
            assert_eq!(Header::read(&[9; TOKEN], &datagram[..short]), None, "{short} bytes");
        }
    }
}
