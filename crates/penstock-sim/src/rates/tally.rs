//! How many frames are written on a way, by what they are.

use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};

/// Of one way, or of several. It follows the frames of one way through writes that take parts of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Values of chunks.
    pub values: u64,
    /// Seals of those.
    pub seals: u64,
    /// All others.
    pub others: u64,
    /// Of the header that is under way.
    header: [u8; HEADER_BYTES],
    has: usize,
    /// Bytes of a payload that are to follow, and whether they are a value's.
    payload: usize,
    is_value: bool,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            values: 0,
            seals: 0,
            others: 0,
            header: [0; HEADER_BYTES],
            has: 0,
            payload: 0,
            is_value: false,
        }
    }
}

impl Tally {
    /// Both together; of what is under way nothing is known then.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let Self { values, seals, others, .. } = *other;
        Self {
            values: self.values + values,
            seals: self.seals + seals,
            others: self.others + others,
            ..Self::default()
        }
    }

    /// What has come since.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            values: self.values - before.values,
            seals: self.seals - before.seals,
            others: self.others - before.others,
            ..Self::default()
        }
    }

    /// Frames of all kinds.
    pub fn frames(&self) -> u64 {
        self.values + self.seals + self.others
    }

    /// These bytes follow. `each`: runs of them, and whether they are of a value.
    pub(super) fn write(&mut self, mut bytes: &[u8], mut each: impl FnMut(usize, bool)) {
        while !bytes.is_empty() {
            let goes_on = self.payload.min(bytes.len());
            if goes_on > 0 {
                each(goes_on, self.is_value);
                (self.payload, bytes) = (self.payload - goes_on, &bytes[goes_on..]);
            }
            let takes = (HEADER_BYTES - self.has).min(bytes.len());
            if takes > 0 {
                each(takes, false);
                self.header[self.has..self.has + takes].copy_from_slice(&bytes[..takes]);
                (self.has, bytes) = (self.has + takes, &bytes[takes..]);
            }
            if self.has == HEADER_BYTES {
                self.has = 0;
                self.count();
            }
        }
    }

    fn count(&mut self) {
        let header = Header::decode(&self.header).expect("the machines write frames");
        self.payload = header.length as usize;
        self.is_value = matches!(header.body, Body::Notice(Notice::Value { .. }));
        match header.body {
            Body::Notice(Notice::Value { .. }) => self.values += 1,
            Body::Notice(Notice::Seal) => self.seals += 1,
            _ => self.others += 1,
        }
    }
}
