//! What must hold of rows that were read: each whole, none older than it was seen before, all as after one set.

use super::producer::{After, Producer};

/// What a get returned.
pub(super) struct Read<'a> {
    /// The producer's rows.
    pub(super) slots: &'a [u32],
    /// Their values, one behind the other.
    pub(super) values: &'a [u8],
    pub(super) row_bytes: usize,
    /// The version that it asked for.
    pub(super) version: u64,
    /// The last set of the producer before the last barrier.
    pub(super) due: usize,
    /// Whether rows of different sets need not have been current together.
    pub(super) apart: bool,
}

impl Read<'_> {
    /// Compares it with what the producer did; `newest` is what this worker has read of it so far.
    pub(super) fn judge(&self, producer: &Producer, newest: &mut After) -> Result<(), String> {
        let Self { slots, values, row_bytes, version, due: before, apart } = *self;
        let Producer { history, marks, .. } = producer;
        let numbers = judge_values(history, slots, values, row_bytes, newest)?;
        let last = numbers.values().copied().max().unwrap_or(0) as usize;
        let holds = if apart { is_whole(history, &numbers) } else { was(&history[last], &numbers) };
        if !holds {
            return Err(format!("rows were never like this after set {last}: {numbers:?}"));
        }
        let was_set =
            |(slot, &number): (&u32, &u64)| history[before].get(slot).is_some_and(|&set| number < set);
        if numbers.iter().any(was_set) {
            return Err(format!(
                "rows are older than set {before}, before a barrier that was passed: {numbers:?}"
            ));
        }
        // What the producer had set when it completed the iterations that the slack does not cover must be there.
        if version as usize > marks.len() {
            return Err(format!("it has begun {} iterations, version {version} was read", marks.len()));
        }
        let due = marks.get(version as usize).or_else(|| marks.last()).copied().unwrap_or(0);
        // A row has the version from its first set of that iteration on.
        let begun = version.checked_sub(1).map_or(0, |before| marks[before as usize]);
        let older = |(slot, &number): (&u32, &u64)| {
            history[due].get(slot).is_some_and(|&due| number < due) && number <= begun as u64
        };
        if numbers.iter().any(older) {
            return Err(format!("rows are older than version {version}: {numbers:?}"));
        }
        Ok(())
    }
}

/// The sets that wrote these rows, if each is whole and none is older than it was seen before.
pub(super) fn judge_values(
    history: &[After],
    slots: &[u32],
    values: &[u8],
    row_bytes: usize,
    newest: &mut After,
) -> Result<After, String> {
    let mut numbers = After::new();
    for (value, &slot) in values.chunks(row_bytes).zip(slots) {
        let number = u64::from_le_bytes(value[..8].try_into().unwrap_or_default());
        let rest = slot as u8 ^ number as u8;
        if number >= history.len() as u64 {
            return Err(format!("row {slot} is torn: no set had the number {number}"));
        }
        if number > 0 && value[8..].iter().any(|&byte| byte != rest) {
            return Err(format!("row {slot} is torn"));
        }
        let newest = newest.entry(slot).or_default();
        if number < *newest {
            return Err(format!("row {slot} fell from set {newest} to {number}"));
        }
        *newest = number;
        numbers.insert(slot, number);
    }
    Ok(numbers)
}

/// Whether these rows were current after a set.
pub(super) fn was(after: &After, numbers: &After) -> bool {
    numbers.iter().all(|(slot, number)| after.get(slot).copied().unwrap_or(0) == *number)
}

/// Whether each set is in all of these rows that it wrote, itself or under a later one, or in none.
fn is_whole(history: &[After], numbers: &After) -> bool {
    let (oldest, newest) = (numbers.values().min(), numbers.values().max());
    let (Some(&oldest), Some(&newest)) = (oldest, newest) else { return true };
    (oldest + 1..=newest).all(|set| {
        let wrote = |slot: &u32| history[set as usize].get(slot) == Some(&set);
        let mut there = numbers.iter().filter(|(slot, _)| wrote(slot)).map(|(_, number)| *number >= set);
        there.next().is_none_or(|first| there.all(|other| other == first))
    })
}
