//! Everything: nothing waits. It costs nothing, as the value itself travels.

use super::Filter;

/// Lets everything pass.
#[derive(Clone, Copy, Debug)]
pub struct Everything;

impl Filter for Everything {
    fn holds_back(&self) -> bool {
        false
    }

    fn next(&self, value: &[u8], held: &mut [u8]) {
        held.copy_from_slice(value);
    }
}
