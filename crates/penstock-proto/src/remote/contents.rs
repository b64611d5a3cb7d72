//! What is held of some chunks, in 32 bytes.

/// A hash, as four words of eight bytes.
pub type Contents = [u64; 4];

/// Of chunks that follow each other, by the publications that last changed what is held of each. A hash and not a sum: whoever passes
/// values on may keep some back, and choose which, so that others make up for them.
pub fn contents(held: impl IntoIterator<Item = u64>) -> Contents {
    let mut hasher = blake3::Hasher::new();
    for content in held {
        hasher.update(&content.to_le_bytes());
    }
    let hash = hasher.finalize();
    let (words, _) = hash.as_bytes().as_chunks::<8>();
    [0, 1, 2, 3].map(|word| u64::from_le_bytes(words[word]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_told_by_each_chunk_and_its_place() {
        let other = [vec![1, 2], vec![2, 1], vec![0, 3], vec![3], vec![1, 2, 0]];
        for (at, one) in other.iter().enumerate() {
            for (place, other) in other.iter().enumerate() {
                assert_eq!(contents(one.iter().copied()) == contents(other.iter().copied()), at == place);
            }
        }
    }
}
