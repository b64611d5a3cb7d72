//! The follower passes rows on: it reads the change log.

use super::super::change_log::Position;
use super::super::steps::{WHOLE_GROUP, Words};
use super::rows::Rows;
use crate::sync::Ordering;
use penstock_proto::items::row_memory::{Changed, Unlisted};

/// Follows which rows change.
#[derive(Debug, Default)]
pub struct Follower {
    position: Position,
}

impl Follower {
    /// Appends the rows that were written since the last look, some perhaps more than once, the last perhaps of a set that is
    /// not finished. If there were too many to be listed, any row may have changed.
    pub fn changed(&mut self, rows: &Rows, changed: &mut Vec<Changed>) -> Result<(), Unlisted> {
        let before = changed.len();
        let entry = |at| rows.entry(at).load(Ordering::Relaxed);
        let listed = self.position.advance(rows.progress(), rows.layout.entries.into(), entry, |entry| {
            let (place, set) = (entry as u32, (entry >> 32) as u32);
            let row_group = place & !WHOLE_GROUP;
            let slots = match place & WHOLE_GROUP {
                0 => place..place.saturating_add(1),
                _ if row_group < rows.layout.row_groups => rows.layout.rows_of(row_group),
                _ => 0..0,
            };
            // The change log may be another process's: what is not a slot is not passed on.
            if !slots.is_empty() && slots.end <= rows.layout.slots {
                changed.push(Changed { first: slots.start, count: slots.end - slots.start, set });
            }
        });
        if listed.is_err() {
            changed.truncate(before);
        }
        listed
    }
}
