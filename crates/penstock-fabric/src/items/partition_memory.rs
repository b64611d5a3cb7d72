//! Rows as the node of [`penstock_proto::items::node`] sees them.

use super::partition::{Follower, Rows, Waiters, Writer};
use super::waiters::Announcing;
use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};

/// Rows that are written by another process of this host, or here.
#[derive(Debug)]
pub struct PartitionMemory {
    rows: Rows,
    /// `None` where another process writes.
    writer: Option<Writer>,
    follower: Follower,
    waiters: Waiters,
}

impl PartitionMemory {
    /// Rows that another process writes.
    pub fn followed(rows: Rows, waiters: Waiters) -> Self {
        Self { rows, writer: None, follower: Follower::default(), waiters }
    }

    /// Rows that are written from what a peer sends.
    pub fn mirror(writer: Writer, waiters: Waiters) -> Self {
        let rows = writer.rows().clone();
        Self { rows, writer: Some(writer), follower: Follower::default(), waiters }
    }

    /// The rows.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// For the follower of rows that another process writes: it is about to sleep.
    pub fn announce_follower(&self, by: &Announcing) {
        self.waiters.announce_follower(by);
    }
}

impl Memory for PartitionMemory {
    fn changed(&mut self, changed: &mut Vec<Changed>) -> Result<(), Unlisted> {
        self.follower.changed(&self.rows, changed)
    }

    fn now(&self) -> Moment {
        self.rows.now()
    }

    fn look(&self, slot: u32, now: Moment) -> Result<Look, Torn> {
        self.rows.look(slot, now)
    }

    fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Torn> {
        self.rows.read(slot, now, out)
    }

    fn run(&self) -> u32 {
        self.rows.row_group_rows()
    }

    fn read_run(&self, first: u32, now: Moment, out: &mut [u8]) -> Result<Option<Look>, Torn> {
        self.rows.read_row_group(first, now, out)
    }

    fn open(&mut self, number: u64, rows: usize) {
        if let Some(writer) = &mut self.writer {
            writer.open(number, rows);
        }
    }

    fn put(&mut self, slot: u32, number: u64, clock: u64, value: &[u8]) {
        if let Some(writer) = &mut self.writer {
            writer.put_from(slot, number, clock, value);
        }
    }

    fn put_run(&mut self, first: u32, number: u64, clock: u64, values: &[u8]) {
        if let Some(writer) = &mut self.writer {
            writer.put_run_from(first, number, clock, values);
        }
    }

    fn finish(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.finish();
        }
    }

    fn abort(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.abort();
        }
    }

    fn refresh(&mut self, slot: u32, number: u64, version: u64, as_of: u64, value: Option<&[u8]>) {
        if let Some(writer) = &mut self.writer {
            writer.refresh(slot, number, version, as_of, value);
        }
    }

    fn raise(&mut self, floor: u64) {
        if let Some(writer) = &mut self.writer {
            writer.raise(floor);
        }
    }

    fn wake(&mut self) {
        // A mirror has no follower but the node that holds it.
        self.waiters.wake(&self.rows);
    }
}
