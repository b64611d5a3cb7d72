//! What must hold of rows that were read: each whole, none older than it was seen before, all as after one set.

use super::producer::After;

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
pub(super) fn is_whole(history: &[After], numbers: &After) -> bool {
    let (oldest, newest) = (numbers.values().min(), numbers.values().max());
    let (Some(&oldest), Some(&newest)) = (oldest, newest) else { return true };
    (oldest + 1..=newest).all(|set| {
        let wrote = |slot: &u32| history[set as usize].get(slot) == Some(&set);
        let mut there = numbers.iter().filter(|(slot, _)| wrote(slot)).map(|(_, number)| *number >= set);
        there.next().is_none_or(|first| there.all(|other| other == first))
    })
}
