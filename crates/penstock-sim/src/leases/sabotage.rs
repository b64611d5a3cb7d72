//! How leases can be sabotaged.

/// A promise broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Counts time in which its own process was suspended.
    CountsSuspension,
    /// Takes others for lost after half a lease.
    IsImpatient,
    /// The server takes no worker for lost.
    NeverJudges,
    /// The server takes what a lost worker still sends.
    HearsTheLost,
    /// A worker does not make a silent connection again.
    KeepsSilentConnections,
}
