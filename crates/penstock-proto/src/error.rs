//! Errors: one enum per operation. Each variant says who, what was expected and what came; [`Hint`] says what to do.

use crate::account::Exhausted;
use crate::items::TableError;
use crate::knot::{CANNOT_COME, REMEDY};
use crate::peer::PeerId;
use crate::spec::SpecError;
use crate::{Rank, TensorId};
use serde::{Deserialize, Serialize};

pub use crate::text::{Hint, MAX_TEXT_BYTES, is_harmless, shorten};

/// Why a server refused a request. The job is as it was before the request, in every case.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The secret is not the job's, or the caller is another user.
    #[error("the server refused this process: it expects the job's secret, from a process of its own user")]
    Authentication,
    /// The connection is not encrypted, and comes from another host.
    #[error("the server refuses connections from other hosts that are not encrypted")]
    TlsRequired,
    /// The server has too many connections that have not said who they are.
    #[error("the server is busy with connections that have not said who they are")]
    Busy,
    /// Client and server are of versions that cannot talk.
    #[error("the server speaks protocol version {expected}, this worker {got}")]
    ProtocolVersion {
        /// The server's.
        expected: u32,
        /// The worker's.
        got: u32,
    },
    /// Worker and server were told different numbers of workers.
    #[error("the server expects a job of {expected} workers, but this worker expects one of {got}")]
    SizeMismatch {
        /// The server's.
        expected: u32,
        /// The worker's.
        got: u32,
    },
    /// There is no such rank.
    #[error("expected a rank from 0 to {}, got {rank}", size.saturating_sub(1))]
    RankOutOfRange {
        /// What came.
        rank: Rank,
        /// Workers of the job.
        size: u32,
    },
    /// Another worker has the rank, or had it.
    #[error("worker {rank} has joined already: each rank joins once")]
    RankTaken {
        /// The rank.
        rank: Rank,
    },
    /// A peer that this server does not take in: it is not a worker, or comes back as another incarnation.
    #[error("expected a worker of the first incarnation, got {peer}")]
    NotAdmitted {
        /// Who came.
        peer: PeerId,
    },
    /// The declaration is not valid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A table's declaration, or another worker's of the same table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The tensor was declared differently before.
    #[error("`{name}` was declared before with {what} {expected}, worker {rank} declares it with {got}")]
    Conflict {
        /// The tensor.
        name: String,
        /// The worker that declares it differently now.
        rank: Rank,
        /// The first setting in which they differ.
        what: String,
        /// The first declaration's.
        expected: String,
        /// What came.
        got: String,
    },
    /// The tensor does not fit into the server's memory.
    #[error(
        "`{name}` needs {needed} bytes of shared memory (for a tensor: value, state and a lane for each of {workers} workers), but only {available} of the server's are left"
    )]
    OutOfMemory {
        /// The tensor.
        name: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes that the server may still take.
        available: u64,
        /// Workers of the job.
        workers: u32,
    },
    /// The operating system refused memory, a descriptor or the like.
    #[error("the server could not {what}: {reason}")]
    System {
        /// What it tried.
        what: String,
        /// What the system said.
        reason: String,
    },
    /// What the worker, or its job, may make the server keep is used up.
    #[error("the server refused {what}: {why}")]
    Exhausted {
        /// What would have had to be kept.
        what: String,
        /// What was asked, what is left.
        why: Exhausted,
    },
    /// There is no such tensor.
    #[error("there is no tensor number {tensor} in this job")]
    UnknownTensor {
        /// What came.
        tensor: TensorId,
    },
    /// A tensor was declared for the first time after worker 0, which alone gives values, had gone.
    #[error("`{name}` can no longer be declared: worker 0, which would give it its value, has gone")]
    NoValue {
        /// The tensor.
        name: String,
    },
    /// The message is not valid, or came at a time when it means nothing.
    #[error("the server could not read a request: {what}")]
    Malformed {
        /// What was wrong.
        what: String,
    },
    /// The job has ended.
    #[error(transparent)]
    Ended(#[from] JobFailure),
    /// The job has ended well: every worker has come and gone.
    #[error("the job is over: all its workers have come and gone")]
    Over,
    /// Two workers want values to come to them in different ways.
    #[error("the job's first worker wants the trees `{expected}`, worker {rank} wants `{got}`")]
    Tree {
        /// The worker that wants something else.
        rank: Rank,
        /// What the first that joined has said.
        expected: String,
        /// What came.
        got: String,
    },
}

impl Refusal {
    /// The same with each of its texts cut and clean, as [`shorten`] does it. For whoever hears one: it may come from anybody.
    #[must_use]
    pub fn brief(mut self) -> Self {
        if let Self::Ended(failure) = self {
            return Self::Ended(failure.brief());
        }
        for text in self.texts() {
            shorten(text, MAX_TEXT_BYTES);
        }
        self
    }

    /// All texts in it that are to be shown cut and clean, but a failure's.
    fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::Authentication
            | Self::TlsRequired
            | Self::Busy
            | Self::ProtocolVersion { .. }
            | Self::SizeMismatch { .. }
            | Self::RankOutOfRange { .. }
            | Self::RankTaken { .. }
            | Self::NotAdmitted { .. }
            | Self::UnknownTensor { .. }
            | Self::Ended(_)
            | Self::Over => Vec::new(),
            Self::Spec(error) => error.texts(),
            Self::Table(error) => error.texts(),
            Self::Conflict { name, rank: _, what, expected, got } => vec![name, what, expected, got],
            Self::System { what, reason } => vec![what, reason],
            Self::Tree { rank: _, expected, got } => vec![expected, got],
            Self::OutOfMemory { name: text, .. }
            | Self::NoValue { name: text }
            | Self::Exhausted { what: text, .. }
            | Self::Malformed { what: text } => vec![text],
        }
    }
}

impl Hint for Refusal {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Authentication => {
                "start workers with `penstock run`, or give them the job's PENSTOCK_SECRET"
            }
            Self::TlsRequired => {
                "leave the option `security` at `auto`, or start servers and workers with `security=insecure` (read what that means first)"
            }
            Self::Busy => "try again; if that does not help, check who connects to the server",
            Self::ProtocolVersion { .. } => "install the same version of penstock for servers and workers",
            Self::SizeMismatch { .. } => "give servers and workers the same number of workers",
            Self::RankOutOfRange { .. } => "raise the job's number of workers, or start fewer",
            Self::RankTaken { .. } => {
                "give each worker its own PENSTOCK_RANK; call `ps.init()` once in each process"
            }
            Self::NotAdmitted { .. } => {
                "start the whole job again: a server takes in each worker once, and nobody else"
            }
            Self::Table(error) => return error.hint(),
            Self::Conflict { .. } => {
                "make the same declaration on every worker, or give the tensor another name"
            }
            Self::OutOfMemory { .. } => {
                "raise the option `memory`, use fewer workers, or a smaller tensor or dtype"
            }
            Self::Exhausted { why, .. } => why.resource.raised_by(),
            Self::System { .. } => "run `penstock doctor` on the server's host",
            Self::NoValue { .. } => "declare all tensors before worker 0 closes the job",
            Self::Tree { .. } => "give all workers the same option `tree` (PENSTOCK_TREE), or none",
            Self::Over => "start a new job, with as many workers as will take part",
            Self::Ended(failure) => return failure.hint(),
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// Why a worker was taken for lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Loss {
    /// Its process ended without closing the job.
    #[error("its process ended without closing the job")]
    Died,
    /// It gave no sign of life for a whole lease.
    #[error("it gave no sign of life for {lease_ms} ms (its lease)")]
    Silent {
        /// The lease.
        lease_ms: u64,
    },
    /// It said that it failed.
    #[error("it failed: {what}")]
    Failed {
        /// In its own words.
        what: String,
    },
    /// The launcher that started its process saw it end.
    #[error("its process {how}")]
    Ended {
        /// How: `was killed by SIGKILL`.
        how: String,
    },
    /// The workers that came have gone, and the server waited long enough.
    #[error("it did not join within {waited_ms} ms after the others had gone")]
    Absent {
        /// How long.
        waited_ms: u64,
    },
    /// It wrote what no honest worker writes.
    #[error("it broke the protocol: {what}")]
    Broke {
        /// What it did.
        what: String,
    },
    /// What it needs is more than a server may keep for it.
    #[error("it needs more than it may have: for {what} {why}")]
    Exhausted {
        /// For what.
        what: String,
        /// What was asked, what is left.
        why: Exhausted,
    },
}

impl Loss {
    /// The same in so few words that it fits into any message.
    #[must_use]
    pub fn brief(mut self) -> Self {
        if let Self::Failed { what: text }
        | Self::Broke { what: text }
        | Self::Exhausted { what: text, .. }
        | Self::Ended { how: text } = &mut self
        {
            shorten(text, MAX_TEXT_BYTES);
        }
        self
    }
}

/// Why a job ended before its workers were done.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum JobFailure {
    /// A worker was lost, and the job is configured to stop then.
    #[error("worker {rank} was lost: {loss}")]
    WorkerLost {
        /// Who.
        rank: Rank,
        /// How.
        loss: Loss,
    },
    /// A contribution with a NaN or infinity reached a tensor that refuses them. It was not folded.
    #[error("worker {rank} contributed a NaN or infinity to `{name}`, which refuses them")]
    NonFinite {
        /// Who.
        rank: Rank,
        /// The tensor.
        name: String,
    },
    /// Two workers asked for one update with different numbers.
    #[error(
        "workers {first} and {second} disagree about the optimizer's settings of `{name}` in iteration {stamp}: {ours:?} and {theirs:?}"
    )]
    SettingsConflict {
        /// The tensor.
        name: String,
        /// The lower rank.
        first: Rank,
        /// The other.
        second: Rank,
        /// The iteration.
        stamp: u64,
        /// The first's settings.
        ours: [f64; 5],
        /// The other's.
        theirs: [f64; 5],
    },
    /// Worker 0 went before it gave a tensor its value, and no other worker can.
    #[error("worker 0 left before it gave `{name}` a value{}", loss.as_ref().map(|loss| format!(": {loss}")).unwrap_or_default())]
    NoValue {
        /// The tensor.
        name: String,
        /// How worker 0 was lost; `None` where it left, and where that is not known.
        loss: Option<Loss>,
    },
    /// A server went away.
    #[error("server {server} was lost: {reason}")]
    ServerLost {
        /// Its number.
        server: u32,
        /// How it was noticed.
        reason: String,
    },
    /// A server was told to stop, or by its manager that the job is no more.
    #[error("server {server} ended the job: it was stopped, or the job was deleted at its manager")]
    Stopped {
        /// Its number.
        server: u32,
    },
}

impl JobFailure {
    /// The same in so few words that it fits into any message.
    #[must_use]
    pub fn brief(mut self) -> Self {
        match &mut self {
            Self::WorkerLost { rank, loss } => {
                return Self::WorkerLost { rank: *rank, loss: loss.clone().brief() };
            }
            Self::NoValue { name, loss } => {
                shorten(name, MAX_TEXT_BYTES);
                *loss = loss.take().map(Loss::brief);
            }
            Self::ServerLost { reason: text, .. }
            | Self::NonFinite { name: text, .. }
            | Self::SettingsConflict { name: text, .. } => shorten(text, MAX_TEXT_BYTES),
            _ => {}
        }
        self
    }
}

impl Hint for JobFailure {
    fn hint(&self) -> Option<String> {
        Some(match self {
            // Going on without it would only hide that the workers do not do the same.
            Self::WorkerLost { loss: Loss::Failed { what }, .. } if what.contains(CANNOT_COME) => {
                REMEDY.to_owned()
            }
            Self::WorkerLost { loss: Loss::Exhausted { why, .. }, .. } => why.resource.raised_by().to_owned(),
            Self::WorkerLost { rank, .. } => format!(
                "check worker {rank}'s own output; with the option `on_worker_loss=continue` the others go on without it"
            ),
            Self::NonFinite { rank, .. } => {
                format!("find the NaN in worker {rank}'s gradient; lower the learning rate")
            }
            Self::SettingsConflict { .. } => {
                "make the same change of learning rates on every worker, in the same iteration".to_owned()
            }
            Self::NoValue { .. } => "check worker 0's own output, and restart the job".to_owned(),
            Self::ServerLost { server, .. } => format!("check server {server}'s own output"),
            Self::Stopped { .. } => return None,
        })
    }
}

impl Exhausted {
    /// As the refusal of `what`.
    pub fn refuse(self, what: impl Into<String>) -> Refusal {
        Refusal::Exhausted { what: what.into(), why: self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Resource;
    use crate::handshake::{MAX_HANDSHAKE_BYTES, Verdict, verdict};

    #[test]
    fn the_longest_failure_is_told_in_any_message_and_says_that_it_was_cut() {
        let what = "\u{1f6b0}".repeat(1 << 16);
        for loss in
            [Loss::Failed { what: what.clone() }, Loss::Ended { how: what.clone() }, Loss::Broke { what }]
        {
            let failure = JobFailure::WorkerLost { rank: 1, loss }.brief();
            assert!(failure.to_string().ends_with(" ..."));
            assert!(verdict(&Verdict::Refused(failure.clone().into())).len() < MAX_HANDSHAKE_BYTES);
            assert_eq!(failure.clone().brief(), failure, "what is brief stays as it is");
        }
        let lost = JobFailure::ServerLost { server: 1, reason: "it closed the connection".to_owned() };
        assert_eq!(lost.clone().brief(), lost);
    }

    // It was said to have broken the protocol, and nothing of what would help.
    #[test]
    fn who_needs_more_than_it_may_have_is_told_what_of_and_what_to_raise() {
        let why = Exhausted { resource: Resource::Bytes, asked: 560, left: 304, limit: 1 << 20 };
        let loss = Loss::Exhausted { what: "rows on their way".to_owned(), why };
        let failure = JobFailure::WorkerLost { rank: 1, loss }.brief();
        let told = failure.to_string();
        // The launcher knows it by these words.
        let words = "it needs more than it may have: for rows on their way it asked for 560 bytes of memory, but only ";
        assert!(told.contains(words), "{told}");
        assert!(!told.contains("protocol"), "{told}");
        assert_eq!(failure.hint().as_deref(), Some("raise the option `memory`"));
    }

    // The others were told to go on without the worker that had noticed the circle first.
    #[test]
    fn who_is_lost_because_of_a_circle_leads_to_the_circle() {
        let what = format!("CircularWait: the barrier waited 1.6s {CANNOT_COME}: worker 0 waits for `a`");
        let hint = |what| JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what } }.hint();
        assert_eq!(hint(what).as_deref(), Some(REMEDY));
        assert!(
            hint("ValueError: none".to_owned()).is_some_and(|hint| hint.contains("worker 1's own output"))
        );
    }

    // What a stranger in a server's place said went as it was onto the worker's terminal.
    #[test]
    fn what_a_refusal_says_rules_no_terminal_and_is_short() {
        use crate::items::TableError;
        use crate::spec::SpecError;
        use crate::travel::TravelError;
        let evil = || format!("no error\n\u{1b}[2J\u{1b}]0;mine\u{7}{}", "A".repeat(60_000));
        let why = Exhausted { resource: Resource::Bytes, asked: 2, left: 1, limit: 1 };
        for refusal in [
            Refusal::Malformed { what: evil() },
            Refusal::System { what: evil(), reason: evil() },
            Refusal::Conflict { name: evil(), rank: 1, what: evil(), expected: evil(), got: evil() },
            Refusal::OutOfMemory { name: evil(), needed: 2, available: 1, workers: 1 },
            Refusal::Exhausted { what: evil(), why },
            Refusal::NoValue { name: evil() },
            Refusal::Tree { rank: 1, expected: evil(), got: evil() },
            Refusal::Ended(JobFailure::ServerLost { server: 1, reason: evil() }),
            SpecError::BadName { got: evil() }.into(),
            SpecError::BadNumber { name: evil(), what: evil(), expected: evil(), got: 0.0 }.into(),
            SpecError::Travel {
                name: evil(),
                why: TravelError::Setting { filter: evil(), what: evil(), expected: evil(), got: 0.0 },
            }
            .into(),
            TableError::Differs { name: evil(), what: evil(), first: evil(), second: evil() }.into(),
            TableError::NotAllTold { name: evil(), why: evil(), ranks: vec![1] }.into(),
        ] {
            let told = refusal.brief().to_string();
            assert!(!told.contains(char::is_control), "{told:?}");
            assert!(told.len() < 4 * (MAX_TEXT_BYTES + 100), "{} bytes", told.len());
        }
        let odd = Refusal::from(SpecError::BadName { got: "a\nb".to_owned() });
        assert_eq!(odd.clone().brief(), odd, "its name is spelled out, with what is wrong with it");
        assert_eq!(
            Refusal::RankOutOfRange { rank: 7, size: 0 }.to_string(),
            "expected a rank from 0 to 0, got 7"
        );
    }

    // They went as they were into the logs of the servers and onto the terminals of all other workers.
    #[test]
    fn last_words_rule_no_terminal_and_make_no_line_of_their_own_in_a_log() {
        let evil = "all is well\n\u{1b}[2Jserver 0: done\u{7}\u{9b}31m".to_owned();
        let lost = |loss| JobFailure::WorkerLost { rank: 1, loss };
        for failure in [
            lost(Loss::Failed { what: evil.clone() }),
            lost(Loss::Ended { how: evil.clone() }),
            lost(Loss::Broke { what: evil.clone() }),
            JobFailure::ServerLost { server: 1, reason: evil.clone() },
            JobFailure::NoValue { name: evil.clone(), loss: Some(Loss::Failed { what: evil.clone() }) },
        ] {
            let told = failure.brief().to_string();
            assert!(!told.contains(char::is_control), "{told:?}");
            assert!(told.contains("all is well \u{fffd}[2Jserver 0"), "{told:?}");
        }
        let mut long = "\u{7}".repeat(1000);
        shorten(&mut long, 1000);
        assert!(long.len() <= 1000, "it is cut as it is told, {} bytes", long.len());
    }
}
