//! Control messages about tables.

use super::registry::{Part, Producer};
use super::spec::{Propagation, TableId, TableSpec};
use super::wire::PartitionId;
use crate::Rank;
use serde::{Deserialize, Serialize};

/// Bytes of an encoded set of rows that travel in one message.
pub const PART_BYTES: usize = 32 * 1024;

/// What a worker asks. The first server keeps the book; each server homes the partitions that their producers ask it for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableAsk {
    /// Begins to declare a table.
    Begin {
        /// The declaration.
        spec: TableSpec,
        /// The server at which the rows are homed that this worker produces.
        home: u32,
        /// Whether that server is on this worker's host.
        near: bool,
    },
    /// At most [`PART_BYTES`] more of one of its sets of rows, encoded.
    Rows {
        /// The table.
        name: String,
        /// Which set.
        part: Part,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The sets are complete.
    End {
        /// The table.
        name: String,
    },
    /// Tell me of the table when all workers have declared it.
    Join {
        /// The table.
        name: String,
    },
    /// This worker has mapped, or subscribed to, what it needs; answered when all have. From then on, no worker that leaves
    /// takes rows with it that another is about to ask for.
    Ready {
        /// The table.
        name: String,
    },
    /// This worker no longer uses the table; answered when no live worker does. Each server is asked: then it frees what it
    /// holds of the table.
    Drop {
        /// The table.
        name: String,
        /// Its number.
        id: TableId,
    },
    /// Which live workers have not dropped it?
    Users {
        /// The table's number.
        id: TableId,
    },
    /// Which live workers have not declared it?
    Absent {
        /// The table.
        name: String,
    },
    /// The rows that a worker produces, from a byte of their encoding on.
    Produced {
        /// The table.
        name: String,
        /// The producer.
        rank: Rank,
        /// The first byte.
        from: u64,
    },
    /// On the home's host: the memory of a partition. The producer's request creates it; others wait for that.
    Partition {
        /// Which.
        partition: PartitionId,
        /// Rows.
        slots: u32,
        /// Bytes of a row.
        row_bytes: u32,
        /// How they move to other hosts.
        propagation: Propagation,
    },
    /// The producer has mapped its partition: no other process may map it writable from now on.
    Mapped {
        /// Which.
        partition: PartitionId,
    },
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableAnswer {
    /// To `Begin`, `Rows`, `End`, `Mapped`, `Ready`, `Drop`.
    Done,
    /// To `Join`.
    Joined {
        /// The table's number.
        id: TableId,
        /// See [`super::registry::Joined`].
        producers: Vec<Producer>,
    },
    /// To `Absent` and `Users`.
    Absent {
        /// Their ranks.
        ranks: Vec<Rank>,
    },
    /// To `Produced`.
    Produced {
        /// At most [`PART_BYTES`].
        bytes: Vec<u8>,
        /// Bytes of the whole encoding.
        total: u64,
    },
    /// To `Partition`. Descriptors: the partition, the page that its readers sleep on, and the bell of the thread that passes its
    /// rows on (eventfd).
    Partition,
}
