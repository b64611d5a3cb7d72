//! How much memory a control thread touches in one turn. The kernel clears what is touched, about a second for each gigabyte; the
//! thread shows life and hears others between two parts, and whoever needs the memory has its answer when all of it was touched.
//! So there is either all of it, or the one that asked is told that there is none, before anybody uses it.

use penstock_fabric::region::Untouched;
use rustix::io;

/// Bytes that are touched in one turn: some ten milliseconds. Smaller parts would take the same time together, but for what a turn
/// takes beside.
const A_TURN: usize = 16 << 20;

/// What may still be touched in a turn, of tables and of tensors together.
#[derive(Debug)]
pub(super) struct FirstTouch {
    left: usize,
    /// Whether tables come before tensors in this turn: either may take all of it.
    tables_first: bool,
    /// There is no memory for more than these bytes.
    #[cfg(test)]
    pub(super) memory: usize,
}

impl Default for FirstTouch {
    fn default() -> Self {
        Self {
            left: A_TURN,
            tables_first: false,
            #[cfg(test)]
            memory: usize::MAX,
        }
    }
}

impl FirstTouch {
    /// Where there is no memory for more.
    #[cfg(test)]
    pub(super) fn within(memory: usize) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Another turn.
    pub(super) fn begin_turn(&mut self) {
        self.left = A_TURN;
        self.tables_first = !self.tables_first;
    }

    pub(super) fn is_for_tables_first(&self) -> bool {
        self.tables_first
    }

    /// Whether no more may be touched in this turn.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Something was touched at once.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Touches as much of it as the turn allows; whether that was all.
    pub(super) fn touch(&mut self, memory: &mut Untouched) -> io::Result<bool> {
        if !memory.is_done() && !self.is_over() {
            let touched = memory.touch(self.left)?;
            #[cfg(test)]
            {
                self.memory = self.memory.checked_sub(touched).ok_or(io::Errno::NOMEM)?;
            }
            self.spend(touched);
        }
        Ok(memory.is_done())
    }
}
