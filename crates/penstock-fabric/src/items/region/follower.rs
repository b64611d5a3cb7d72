//! Who passes rows on follows the journal.

use super::layout::WHOLE_SHEET;
use super::rows::Rows;
use crate::sync::Ordering;
use penstock_proto::items::memory::Changed;

/// Follows which rows change.
#[derive(Debug, Default)]
pub struct Follower {
    position: u64,
}

impl Follower {
    /// Appends the rows that were written since the last look, some perhaps more than once, some of sets that are not finished; `false` if there were too many: any row may have changed.
    pub fn changed(&mut self, rows: &Rows, changed: &mut Vec<Changed>) -> bool {
        let (before, entries) = (changed.len(), u64::from(rows.layout.entries));
        let progress = rows.progress();
        let read = progress.read_log(self.position, entries, |at| {
            let entry = rows.entry(at).load(Ordering::Relaxed);
            let (place, number) = (entry as u32, (entry >> 32) as u32);
            let sheet = place & !WHOLE_SHEET;
            let slots = match place & WHOLE_SHEET {
                0 => place..place.saturating_add(1),
                _ if sheet < rows.layout.sheets => rows.layout.rows_of(sheet),
                _ => 0..0,
            };
            // The journal may be another process's: what is no slot is not passed on.
            if !slots.is_empty() && slots.end <= rows.layout.slots {
                changed.push(Changed { first: slots.start, count: slots.end - slots.start, set: number });
            }
        });
        match read {
            Some(end) => self.position = end,
            None => {
                changed.truncate(before);
                self.position = progress.logged();
            }
        }
        read.is_some()
    }
}
