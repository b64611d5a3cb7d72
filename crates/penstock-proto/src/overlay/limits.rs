//! How wide and how deep a tree may be.

/// The most children of a node, and edges from the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most children of a node, the root among them: the paper's T.
    pub degree: u32,
    /// The most edges between the root and a host: the paper's H.
    pub depth: u32,
}

impl Limits {
    /// How many hosts such a tree can reach: T + T^2 + ... + T^H.
    pub fn reach(self) -> usize {
        let (degree, mut level, mut sum) = (self.degree as usize, 1_usize, 0_usize);
        for _ in 0..self.depth {
            level = level.saturating_mul(degree);
            sum = sum.saturating_add(level);
            // A chain's depth is as long as it is: nobody needs to count to four billion.
            if sum > crate::message::MAX_WORKERS as usize || level == 0 {
                break;
            }
        }
        sum
    }

    /// The least depth at which a tree of this degree reaches so many hosts.
    pub fn least_depth(hosts: usize, degree: u32) -> Option<u32> {
        (degree > 0).then(|| (1..).find(|&depth| Self { degree, depth }.reach() >= hosts).unwrap_or(u32::MAX))
    }
}
