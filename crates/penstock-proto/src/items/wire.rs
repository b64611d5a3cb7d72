//! What travels where producer and consumer share no memory: messages of one connection for each worker and server.
//!
//! A message is a [record](crate::record): kind, numbers of seven bits a byte, perhaps rows. Messages say what is, not what has
//! changed: one that comes twice, or is lost with its connection, does no harm.

use super::rows::{RowSet, pop, push};
use super::spec::{MAX_ROW_BYTES, Propagation, TableId};
use crate::{Rank, checksum, record};
use serde::{Deserialize, Serialize};

/// Longest message: a row of the longest, or the rows of a large scattered subscription.
pub const MAX_MESSAGE_BYTES: usize = 2 * MAX_ROW_BYTES as usize;
/// Rows of a batch are sent in messages of about this.
pub const BATCH_BYTES: usize = 256 * 1024;

/// A producer's rows of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionId {
    /// The table.
    pub table: TableId,
    /// The producer.
    pub rank: Rank,
}

/// How many rows there are, how long, and how they move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub slots: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// How they move.
    pub propagation: Propagation,
}

/// One row of a batch, or some that follow each other and were written by one set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its place among the rows that were subscribed to; of the first.
    pub place: u32,
    /// Rows: 1 or more.
    pub count: u32,
    /// Number of the producer's set that wrote it.
    pub number: u64,
    /// Its clock; its version, where rows come one by one.
    pub clock: u64,
    /// The set after which it was still the newest.
    pub as_of: u64,
    /// Its value, unless the receiver has it; of all, one after the other.
    pub value: Option<&'a [u8]>,
}

/// Head of some rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The subscription's.
    pub serial: u64,
    /// The fetch that it answers; 0 for none.
    pub ticket: u64,
    /// After the batch, the receiver's rows are as after this set.
    pub done: u64,
    /// Iterations that the producer has completed.
    pub floor: u64,
    /// Whether the batch begins and ends here.
    pub first: bool,
    /// See `first`.
    pub last: bool,
    /// Whether each row stands for itself, instead of all rows being as after `done`.
    pub apart: bool,
}

impl Default for Head {
    /// The beginning of a batch.
    fn default() -> Self {
        Self { serial: 0, ticket: 0, done: 0, floor: 0, first: true, last: false, apart: false }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// The producer of these rows is here.
    Offer {
        /// Which.
        partition: PartitionId,
        /// How many.
        shape: Shape,
    },
    /// Send me these rows, as their propagation says. Replaces what was subscribed before.
    Subscribe {
        /// The partition.
        partition: PartitionId,
        /// As the subscriber knows it.
        shape: Shape,
        /// Its rows are as after this set.
        done: u64,
        /// Repeated with all rows that are sent for it: places mean something for it only.
        serial: u64,
        /// Slots.
        rows: RowSet,
    },
    /// Send me these rows once they have the version.
    Fetch {
        /// The partition.
        partition: PartitionId,
        /// Repeated in the answer, above 0.
        ticket: u64,
        /// The version.
        version: u64,
        /// Places among the rows subscribed to.
        places: RowSet,
    },
    /// Send me rows before they are older than this: the versions that gets of mine, or of consumers behind me, wait for, and
    /// those that the next will ask for.
    Need {
        /// The partition.
        partition: PartitionId,
        /// The versions, ascending.
        versions: Vec<u64>,
    },
    /// Rows.
    Rows {
        /// The partition.
        partition: PartitionId,
        /// What they are.
        head: Head,
        /// Them, to be read with [`Entries`].
        entries: &'a [u8],
    },
    /// Say when everything that I sent before has come, and behind what you want of my rows.
    Flush {
        /// Repeated in the answer.
        id: u64,
    },
    /// It has, or was sent.
    Flushed {
        /// The question's. Of questions about one partition this answers the earlier ones too.
        id: u64,
    },
    /// Say when everything that I should have by now of a partition was sent.
    Bring {
        /// Repeated in the answer.
        id: u64,
        /// The partition.
        partition: PartitionId,
    },
    /// I no longer wait for what I fetched.
    Withdraw {
        /// The partition.
        partition: PartitionId,
        /// The fetch's.
        ticket: u64,
    },
}

impl Message<'_> {
    /// The partition that it is about, unless it asks for an answer: that comes also where the partition is not there any more.
    pub fn partition(&self) -> Option<PartitionId> {
        match self {
            Self::Offer { partition, .. }
            | Self::Subscribe { partition, .. }
            | Self::Fetch { partition, .. }
            | Self::Need { partition, .. }
            | Self::Rows { partition, .. }
            | Self::Withdraw { partition, .. } => Some(*partition),
            Self::Flush { .. } | Self::Flushed { .. } | Self::Bring { .. } => None,
        }
    }
}

/// Bytes that are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a message about items, got {bytes} bytes that are not one: {what}")]
pub struct Malformed {
    bytes: usize,
    what: &'static str,
}

const DAMAGED: &str = "its checksum is wrong";

impl Malformed {
    /// Whether the line damaged it: not the sender's fault.
    pub fn is_damage(&self) -> bool {
        self.what == DAMAGED
    }
}

const LENGTH: usize = record::LENGTH_BYTES;
const CHECKSUM: usize = record::CHECKSUM_BYTES;

/// Appends records to a buffer.
#[derive(Debug)]
pub struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Encoder<'a> {
    /// Appends a whole message; rows are not encoded by this but by [`Encoder::rows`].
    pub fn message(out: &'a mut Vec<u8>, message: &Message<'_>) {
        match message {
            Message::Offer { partition, shape } => {
                Self::begin(out, 1, *partition, shape_numbers(shape)).end();
            }
            Message::Subscribe { partition, shape, done, serial, rows } => {
                let numbers = shape_numbers(shape).into_iter().chain([*done, *serial]);
                let encoder = Self::begin(out, 2, *partition, numbers);
                encoder.out.extend(rows.encode());
                encoder.end();
            }
            Message::Fetch { partition, ticket, version, places } => {
                let encoder = Self::begin(out, 3, *partition, [*ticket, *version]);
                encoder.out.extend(places.encode());
                encoder.end();
            }
            Message::Need { partition, versions } => {
                Self::begin(out, 4, *partition, versions.iter().copied()).end();
            }
            Message::Rows { partition, head, entries } => {
                let encoder = Self::rows(out, *partition, head);
                encoder.out.extend_from_slice(entries);
                encoder.end();
            }
            Message::Flush { id } => Self::begin(out, 6, PartitionId { table: 0, rank: 0 }, [*id]).end(),
            Message::Flushed { id } => Self::begin(out, 7, PartitionId { table: 0, rank: 0 }, [*id]).end(),
            Message::Bring { id, partition } => Self::begin(out, 8, *partition, [*id]).end(),
            Message::Withdraw { partition, ticket } => Self::begin(out, 9, *partition, [*ticket]).end(),
        }
    }

    /// Begins a message of rows.
    pub fn rows(out: &'a mut Vec<u8>, partition: PartitionId, head: &Head) -> Self {
        let flags = u64::from(head.first) | u64::from(head.last) << 1 | u64::from(head.apart) << 2;
        Self::begin(out, 5, partition, [flags, head.serial, head.ticket, head.done, head.floor])
    }

    /// Appends a row, or some.
    pub fn entry(&mut self, entry: &Entry<'_>, apart: bool) {
        let place = entry.place | if entry.value.is_some() { VALUE } else { 0 };
        self.out.extend_from_slice(&place.to_le_bytes());
        self.out.extend_from_slice(&entry.count.to_le_bytes());
        self.out.extend_from_slice(&entry.number.to_le_bytes());
        self.out.extend_from_slice(&entry.clock.to_le_bytes());
        if apart {
            self.out.extend_from_slice(&entry.as_of.to_le_bytes());
        }
        self.out.extend_from_slice(entry.value.unwrap_or_default());
    }

    /// Bytes of the message so far.
    pub fn len(&self) -> usize {
        self.out.len() - self.start
    }

    /// Whether it is empty: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn begin(
        out: &'a mut Vec<u8>,
        kind: u8,
        partition: PartitionId,
        numbers: impl IntoIterator<Item = u64>,
    ) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH + CHECKSUM]);
        out.push(kind);
        push(out, partition.table.into());
        push(out, partition.rank.into());
        numbers.into_iter().for_each(|number| push(out, number));
        Self { out, start }
    }

    /// Ends the message.
    pub fn end(self) {
        let body = self.start + LENGTH + CHECKSUM;
        let sum = checksum::of(&self.out[body..]);
        let length = (self.out.len() - self.start - LENGTH) as u32;
        self.out[self.start..self.start + LENGTH].copy_from_slice(&record::length_bytes(length));
        self.out[self.start + LENGTH..body].copy_from_slice(&sum.to_le_bytes());
    }
}

const VALUE: u32 = 1 << 31;

fn shape_numbers(shape: &Shape) -> [u64; 3] {
    let propagation = match shape.propagation {
        Propagation::Eager => 0,
        Propagation::Lazy => 1,
        Propagation::Bounded => 2,
    };
    [shape.slots.into(), shape.row_bytes.into(), propagation]
}

impl<'a> Message<'a> {
    /// Whether a record says that it is rows.
    pub(super) fn is_rows(record: &[u8]) -> bool {
        record.get(CHECKSUM) == Some(&5)
    }

    /// The message in a record.
    pub fn decode(record: &'a [u8]) -> Result<Self, Malformed> {
        let malformed = |what| Malformed { bytes: record.len(), what };
        let (sum, mut rest) = record.split_first_chunk::<CHECKSUM>().ok_or_else(|| malformed("too short"))?;
        if u64::from_le_bytes(*sum) != checksum::of(rest) {
            return Err(malformed(DAMAGED));
        }
        let (&kind, body) = rest.split_first().ok_or_else(|| malformed("too short"))?;
        rest = body;
        let mut number = || pop(&mut rest).map_err(|_| malformed("a number is missing"));
        let small = |number: u64| u32::try_from(number).map_err(|_| malformed("a number is too large"));
        let partition = PartitionId { table: small(number()?)?, rank: small(number()?)? };
        let shape = |number: &mut dyn FnMut() -> Result<u64, Malformed>| {
            let (slots, row_bytes) = (small(number()?)?, small(number()?)?);
            let propagation = match number()? {
                0 => Propagation::Eager,
                1 => Propagation::Lazy,
                2 => Propagation::Bounded,
                _ => return Err(malformed("no propagation")),
            };
            if slots == 0 || slots >= VALUE || !(1..=MAX_ROW_BYTES).contains(&row_bytes) {
                return Err(malformed("no rows, or too long ones"));
            }
            Ok(Shape { slots, row_bytes, propagation })
        };
        let message = match kind {
            1 => Self::Offer { partition, shape: shape(&mut number)? },
            2 => {
                let shape = shape(&mut number)?;
                let (done, serial) = (number()?, number()?);
                let rows = RowSet::decode(rest).map_err(|_| malformed("no set of rows"))?;
                rest = &[];
                Self::Subscribe { partition, shape, done, serial, rows }
            }
            3 => {
                let (ticket, version) = (number()?, number()?);
                let places = RowSet::decode(rest).map_err(|_| malformed("no set of rows"))?;
                rest = &[];
                Self::Fetch { partition, ticket, version, places }
            }
            4 => {
                let mut versions = Vec::new();
                while !rest.is_empty() {
                    versions.push(pop(&mut rest).map_err(|_| malformed("a number is missing"))?);
                }
                Self::Need { partition, versions }
            }
            5 => {
                let flags = number()?;
                let (serial, ticket, done, floor) = (number()?, number()?, number()?, number()?);
                let flag = |bit: u32| flags >> bit & 1 == 1;
                let head =
                    Head { serial, ticket, done, floor, first: flag(0), last: flag(1), apart: flag(2) };
                let entries = std::mem::take(&mut rest);
                Self::Rows { partition, head, entries }
            }
            6 => Self::Flush { id: number()? },
            7 => Self::Flushed { id: number()? },
            8 => Self::Bring { id: number()?, partition },
            9 => Self::Withdraw { partition, ticket: number()? },
            _ => return Err(malformed("no such kind")),
        };
        if rest.is_empty() { Ok(message) } else { Err(malformed("more bytes than a message")) }
    }
}

/// The rows of a message.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    apart: bool,
}

impl<'a> Entries<'a> {
    /// Rows of `row_bytes` bytes.
    pub fn new(bytes: &'a [u8], row_bytes: u32, apart: bool) -> Self {
        Self { bytes, row_bytes: row_bytes as usize, apart }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let malformed = Malformed { bytes: self.bytes.len(), what: "a row is cut" };
        let mut take = |length: usize| {
            let (head, rest) = self.bytes.split_at_checked(length).ok_or_else(|| malformed.clone())?;
            self.bytes = rest;
            Ok(head)
        };
        let mut entry = || {
            let place = u32::from_le_bytes(take(4)?.try_into().unwrap_or_default());
            let count = u32::from_le_bytes(take(4)?.try_into().unwrap_or_default());
            if count == 0 {
                return Err(Malformed { bytes: 0, what: "no rows" });
            }
            let mut number = || Ok(u64::from_le_bytes(take(8)?.try_into().unwrap_or_default()));
            let (written, clock) = (number()?, number()?);
            let as_of = if self.apart { number()? } else { 0 };
            let bytes = self.row_bytes.saturating_mul(count as usize);
            let value = if place & VALUE == 0 { None } else { Some(take(bytes)?) };
            Ok(Entry { place: place & !VALUE, count, number: written, clock, as_of, value })
        };
        let entry = entry();
        if entry.is_err() {
            self.bytes = &[];
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<Message<'static>> {
        let partition = PartitionId { table: 3, rank: 700 };
        let shape = Shape { slots: 9, row_bytes: 8, propagation: Propagation::Bounded };
        let head =
            Head { serial: 1, ticket: 4, done: 1 << 40, floor: 7, first: true, last: false, apart: true };
        vec![
            Message::Offer { partition, shape },
            Message::Subscribe { partition, shape, done: 5, serial: 2, rows: RowSet::from_rows([1, 2, 7]) },
            Message::Fetch { partition, ticket: 1, version: 300, places: RowSet::from_rows([0, 2]) },
            Message::Need { partition, versions: vec![1, 128, 1 << 50] },
            Message::Rows { partition, head, entries: b"bytes" },
            Message::Flush { id: 1 },
            Message::Flushed { id: 1 << 60 },
            Message::Bring { id: 3, partition },
            Message::Withdraw { partition, ticket: 1 << 40 },
        ]
    }

    #[test]
    fn messages_read_back_whole_and_only_whole() {
        for message in messages() {
            let mut record = Vec::new();
            Encoder::message(&mut record, &message);
            assert_eq!(u32::from_le_bytes(record[..4].try_into().unwrap()) as usize, record.len() - LENGTH);
            assert_eq!(Message::decode(&record[LENGTH..]), Ok(message));
            for cut in LENGTH..record.len() {
                assert!(Message::decode(&record[LENGTH..cut]).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn a_damaged_message_is_refused(
            message in prop::sample::select(messages()),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let mut record = Vec::new();
            Encoder::message(&mut record, &message);
            let at = LENGTH + at.index(record.len() - LENGTH);
            record[at] ^= 1 << bit;
            prop_assert!(Message::decode(&record[LENGTH..]).is_err());
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(mut body in prop::collection::vec(any::<u8>(), 0..80)) {
            let sum = checksum::of(&body);
            let mut record = sum.to_le_bytes().to_vec();
            record.append(&mut body);
            if let Ok(Message::Rows { entries, head, .. }) = Message::decode(&record) {
                let _ = Entries::new(entries, 5, head.apart).count();
            }
        }

        #[test]
        fn rows_read_back(rows in prop::collection::vec((0u32..1 << 31, 1u32..5, any::<[u64; 3]>(), any::<bool>()), 0..9), apart: bool) {
            let partition = PartitionId { table: 0, rank: 0 };
            let head = Head { serial: 9, ticket: 0, done: 0, floor: 0, first: true, last: true, apart };
            let mut record = Vec::new();
            let mut encoder = Encoder::rows(&mut record, partition, &head);
            let entry = |(place, count, [number, clock, as_of], value): &(u32, u32, [u64; 3], bool)| {
                let value = value.then(|| vec![*number as u8; 3 * *count as usize]);
                (*place, *count, *number, *clock, if apart { *as_of } else { 0 }, value)
            };
            for row in &rows {
                let (place, count, number, clock, as_of, value) = entry(row);
                encoder.entry(&Entry { place, count, number, clock, as_of, value: value.as_deref() }, apart);
            }
            encoder.end();
            let Ok(Message::Rows { entries, .. }) = Message::decode(&record[LENGTH..]) else { panic!() };
            let got: Vec<_> = Entries::new(entries, 3, apart).map(|entry| {
                let entry = entry.unwrap();
                (entry.place, entry.count, entry.number, entry.clock, entry.as_of, entry.value.map(<[u8]>::to_vec))
            }).collect();
            prop_assert_eq!(got, rows.iter().map(entry).collect::<Vec<_>>());
        }
    }
}
