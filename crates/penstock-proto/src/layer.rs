//! Layers: what becomes of a chunk between a push and a pull, one after the other, so that it can be said where time goes
//! (the papers' figures of an iteration's overhead).

use std::fmt;

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// What is sent now is chosen, and what is held back is carried: of pushes at the worker, of values at the home.
    Filter,
    /// A chunk is made into a payload, with its checksum.
    Encode,
    /// Frames are handed to the kernel, encrypted before where they are.
    Send,
    /// Bytes are taken from the kernel, decrypted, and checked.
    Receive,
    /// A payload is made into a chunk, and put where it belongs.
    Decode,
    /// Contributions are summed and the optimizer's rule is applied, at the home; and where updates come, that is done there too.
    Fold,
}

impl Layer {
    /// All of them, in this order.
    pub const ALL: [Self; 6] =
        [Self::Filter, Self::Encode, Self::Send, Self::Receive, Self::Decode, Self::Fold];
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filter => "filter",
            Self::Encode => "encode",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Decode => "decode",
            Self::Fold => "fold",
        })
    }
}

/// Nanoseconds by layer, in the order of [`Layer::ALL`].
pub type Nanos = [u64; Layer::ALL.len()];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_place_and_name() {
        for (place, layer) in Layer::ALL.into_iter().enumerate() {
            assert_eq!(layer as usize, place);
        }
        let mut names: Vec<String> = Layer::ALL.iter().map(ToString::to_string).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Layer::ALL.len());
    }
}
