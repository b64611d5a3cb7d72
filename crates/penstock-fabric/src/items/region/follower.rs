//! Who passes rows on follows the journal.

use super::layout::WHOLE_SHEET;
use super::rows::Rows;
use crate::sync::Ordering;

/// Follows which rows change.
#[derive(Debug, Default)]
pub struct Follower {
    position: u64,
}

impl Follower {
    /// Appends the rows that were written since the last look, each as slot and the low half of the set's number, some perhaps more
    /// than once, some of sets that are not finished; `false` if there were too many: any row may have changed.
    pub fn changed(&mut self, rows: &Rows, changed: &mut Vec<(u32, u32)>) -> bool {
        let (before, entries) = (changed.len(), u64::from(rows.layout.entries));
        let progress = rows.progress();
        let read = progress.read_log(self.position, entries, |at| {
            let entry = rows.entry(at).load(Ordering::Relaxed);
            let (place, number) = (entry as u32, (entry >> 32) as u32);
            // The journal may be another process's: what is no slot is not passed on.
            let slots = match place & !WHOLE_SHEET {
                sheet if sheet != place => {
                    if sheet < rows.layout.sheets {
                        rows.layout.rows_of(sheet)
                    } else {
                        0..0
                    }
                }
                slot if slot < rows.layout.slots => slot..slot + 1,
                _ => 0..0,
            };
            changed.extend(slots.map(|slot| (slot, number)));
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
