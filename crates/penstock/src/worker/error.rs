//! What a worker's calls can fail with. Nothing that was refused has changed anything.

use crate::limits;
use crate::options::OptionError;
use crate::server::StartError;
use penstock_kernels::SettingsError;
use penstock_proto::Rank;
use penstock_proto::error::{Hint, JobFailure, Refusal};
use penstock_proto::knot::{CANNOT_COME, Goal, REMEDY};
use std::time::Duration;

/// Why a call of a worker failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job was closed by this worker.
    #[error("this job is closed")]
    Closed,
    /// The process was forked from the one that made the job.
    #[error("this process was forked from the one that the job belongs to")]
    Forked,
    /// The job has failed.
    #[error("the job has ended: {0}")]
    Failed(#[from] JobFailure),
    /// A server said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An option.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// The embedded server did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A second push in one iteration.
    #[error("worker {rank} already pushed `{name}` in iteration {iteration}")]
    AlreadyPushed {
        /// The tensor.
        name: String,
        /// This worker.
        rank: Rank,
        /// The iteration.
        iteration: u64,
    },
    /// A buffer whose size is not the tensor's.
    #[error("expected {expected} bytes for `{name}`, got {got}")]
    WrongSize {
        /// The tensor.
        name: String,
        /// Its bytes.
        expected: usize,
        /// The buffer's.
        got: usize,
    },
    /// A NaN or infinity for a tensor that refuses them.
    #[error(
        "worker {rank} pushed a NaN or infinity to `{name}` (element {index} of the flattened array), which refuses them"
    )]
    NonFinite {
        /// The tensor.
        name: String,
        /// This worker.
        rank: Rank,
        /// The first such element.
        index: usize,
    },
    /// Numbers that are not valid settings of the tensor's optimizer.
    #[error("`{name}`: {error}")]
    Settings {
        /// The tensor.
        name: String,
        /// What is wrong.
        error: SettingsError,
    },
    /// A slack that is not valid.
    #[error("expected a slack from 0 to {most} for `{name}`, got {got}")]
    Slack {
        /// The tensor.
        name: String,
        /// Largest slack.
        most: u32,
        /// What came.
        got: i64,
    },
    /// The value does not stand still at this slack, so it cannot be looked at in place.
    #[error("`{name}` may change while it is read at this slack: it cannot be read in place, only copied")]
    NotStill {
        /// The tensor.
        name: String,
    },
    /// A load would overwrite what this worker has pushed of this iteration and not sent.
    #[error("`{name}` cannot be loaded: a contribution that was announced to go on has not been sent")]
    Unfinished {
        /// The tensor.
        name: String,
    },
    /// The lane was asked for, to be filled, while parts of a contribution stand there.
    #[error("what was pushed to `{name}` with `more` waits in the lane: this would lose it")]
    PartWaits {
        /// The tensor.
        name: String,
    },
    /// A push of what stands in the lane, where that is lost, or was loaded.
    #[error(
        "`{name}`: what stands in the lane is no contribution: it is what was lost when its iteration ended, what was loaded, or what a sparse one or factors have left"
    )]
    StaleLane {
        /// The tensor.
        name: String,
    },
    /// A sparse contribution to elements that the tensor does not have.
    #[error("`{name}`: expected indices from 0 to {}, got {got} at place {place}", count.saturating_sub(1))]
    UnknownElement {
        /// The tensor.
        name: String,
        /// Which of the indices.
        place: usize,
        /// What came.
        got: u64,
        /// How many there are.
        count: u64,
    },
    /// Factors of a contribution to a tensor that is no matrix.
    #[error("`{name}`: expected a tensor of two dimensions for factors, got shape {got:?}")]
    NoMatrix {
        /// The tensor.
        name: String,
        /// Its shape.
        got: Vec<u64>,
    },
    /// A state array that the optimizer does not have, or a load that is not this worker's to make.
    #[error("`{name}`: {what}")]
    BadLoad {
        /// The tensor.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A pull was not fresh enough in time.
    #[error("`{name}` waited {waited:.1?} for version {version}; waiting for {}", whom(missing, *silent))]
    PullTimeout {
        /// The tensor.
        name: String,
        /// The version waited for.
        version: u64,
        /// The workers that it waits for.
        missing: Vec<Rank>,
        /// Where none is known: the server that did not send it, or did not say which workers it waits for.
        silent: Option<u32>,
        /// How long.
        waited: Duration,
    },
    /// No worker gave the tensor a value in time.
    #[error("`{name}` waited {waited:.1?} for worker 0 to give it a value")]
    NoValue {
        /// The tensor.
        name: String,
        /// How long.
        waited: Duration,
    },
    /// The lane was not free in time.
    #[error(
        "`{name}` waited {waited:.1?} for its lane: the update of iteration {iteration} is not folded; waiting for {}", whom(missing, *silent)
    )]
    LaneTimeout {
        /// The tensor.
        name: String,
        /// The iteration whose update stands in the lane.
        iteration: u64,
        /// The workers that it waits for.
        missing: Vec<Rank>,
        /// Where none is known: the server that did not take it, or did not say which workers it waits for.
        silent: Option<u32>,
        /// How long.
        waited: Duration,
    },
    /// A row that the table does not have, or that this worker neither produces nor consumes.
    // Rows are below 2**63: what is above was a negative number where it came from.
    #[error("`{name}`: row {} of {rows} is not one that this worker produces or consumes", row.cast_signed())]
    UnknownRow {
        /// The table.
        name: String,
        /// The row.
        row: u64,
        /// Rows of the table.
        rows: u64,
    },
    /// A row that another worker produces.
    #[error("`{name}`: worker {rank} does not produce row {row}")]
    NotProducer {
        /// The table.
        name: String,
        /// The row.
        row: u64,
        /// This worker.
        rank: Rank,
    },
    /// A row that comes twice in one set: which of its values counts would be unclear.
    #[error("`{name}`: row {row} occurs twice in one set")]
    RowTwice {
        /// The table.
        name: String,
        /// The row.
        row: u64,
    },
    /// A clock behind the row's.
    #[error("`{name}`: expected a clock of at least {clock} for row {row}, got {got}")]
    ClockBackwards {
        /// The table.
        name: String,
        /// The row.
        row: u64,
        /// The row's.
        clock: u64,
        /// What came.
        got: u64,
    },
    /// A get of a row of its own that a worker has not set so far.
    #[error(
        "`{name}`: row {row} is at version {version}, the get asks for {wanted}, and only this worker can set it"
    )]
    NeverSet {
        /// The table.
        name: String,
        /// The row.
        row: u64,
        /// Its version.
        version: u64,
        /// The version asked for.
        wanted: u64,
    },
    /// Set on a table with a sum, add on one without, or a look at a sum in place.
    #[error("`{name}` {}", if *sum { "is a sum: its rows are added to, and are read by copying" } else { "is not a sum: its rows are set" })]
    WrongFold {
        /// The table.
        name: String,
        /// Whether it is a sum.
        sum: bool,
    },
    /// A table that this worker has dropped.
    #[error("table `{name}` was dropped")]
    Dropped {
        /// The table.
        name: String,
    },
    /// The others did not drop a table in time.
    #[error("dropping table `{name}` waited {waited:.1?} for workers {missing:?} to drop it too")]
    DropTimeout {
        /// The table.
        name: String,
        /// Those that did not.
        missing: Vec<Rank>,
        /// How long.
        waited: Duration,
    },
    /// The others did not declare a table in time, or a server did not make their rows.
    #[error("table `{name}` waited {waited:.1?} for workers {missing:?} to declare it and have its rows")]
    TableTimeout {
        /// The table.
        name: String,
        /// Those that did not.
        missing: Vec<Rank>,
        /// How long.
        waited: Duration,
    },
    /// What a get needs of a row's producer did not come in time.
    #[error("`{name}` waited {waited:.1?} for {}", due.in_words(*row, (*version, *wanted), *producer))]
    GetTimeout {
        /// What that is.
        due: Due,
        /// The table.
        name: String,
        /// The row.
        row: u64,
        /// Its version.
        version: u64,
        /// The version asked for.
        wanted: u64,
        /// Its producer.
        producer: Rank,
        /// How long.
        waited: Duration,
    },
    /// A producer wrote rows again and again faster than they could be read together.
    #[error(
        "`{name}` waited {waited:.1?} for row {row} and others to stay unchanged long enough to be read together"
    )]
    NeverStill {
        /// The table.
        name: String,
        /// One of the rows.
        row: u64,
        /// How long.
        waited: Duration,
    },
    /// A producer is gone, and rows of it that were read together were never current at once: of some of its sets only a part had
    /// come when it was lost.
    #[error(
        "`{name}` has row {row} of worker {producer} only as it was before others of these rows were set: the worker was lost before more of its sets had come"
    )]
    Apart {
        /// The table.
        name: String,
        /// A row that is older than the others.
        row: u64,
        /// Its producer.
        producer: Rank,
    },
    /// Workers wait for each other in a circle: this wait and theirs would last until their deadlines.
    #[error("{goal} waited {waited:.1?} {}: {knot}", CANNOT_COME)]
    Knot {
        /// What this one waits for.
        goal: Goal,
        /// Each worker of the circle, and what it waits for.
        knot: String,
        /// The workers that this one waits for.
        missing: Vec<Rank>,
        /// How long.
        waited: Duration,
    },
    /// The others did not come to the barrier in time.
    #[error("{barrier} waited {waited:.1?} for {}", whom(missing, *silent))]
    BarrierTimeout {
        /// Which barrier, in words.
        barrier: String,
        /// Those that did not come.
        missing: Vec<Rank>,
        /// Where none is known not to have come: the server that did not say which.
        silent: Option<u32>,
        /// How long.
        waited: Duration,
    },
    /// Worker 0 has not done, or not all of, what it was to do for all, such as a load.
    #[error("{what} was not done: worker 0 failed: {why}")]
    FirstFailed {
        /// What it was to do.
        what: String,
        /// Why.
        why: String,
    },
    /// Worker 0 has gone without doing what it was to do for all.
    #[error("{what} was not done: worker 0, whose arguments count, has gone")]
    FirstGone {
        /// What it was to do.
        what: String,
    },
    /// A server could not be reached in time.
    #[error("server {server} at {path} could not be reached in {waited:.1?}: {reason}")]
    ConnectTimeout {
        /// Its number.
        server: u32,
        /// Its socket.
        path: String,
        /// Why the last attempt failed.
        reason: String,
        /// How long.
        waited: Duration,
    },
    /// A server's socket was made by another user of this host.
    #[error(
        "the socket of server {server} belongs to user {got}, expected this process's own user, {expected}; nothing was sent to it"
    )]
    OtherUser {
        /// The server's number.
        server: u32,
        /// This process's user.
        expected: u32,
        /// The socket's.
        got: u32,
    },
    /// A server's certificate is not trusted, or it speaks no TLS.
    #[error("server {server} at {address} could not be trusted: {reason}")]
    Untrusted {
        /// Its number.
        server: u32,
        /// Its address.
        address: String,
        /// What TLS says.
        reason: String,
    },
    /// A server or shard did not answer in time.
    #[error("server {server} did not {what} within {waited:.1?}")]
    Unanswered {
        /// Its number.
        server: u32,
        /// What was asked.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// A server did not take everything that this worker had submitted in time.
    #[error("server {server} took {taken} of {submitted} messages of this worker within {waited:.1?}")]
    NotTaken {
        /// Its number.
        server: u32,
        /// How many it took: chunks, and what else the worker told its shards.
        taken: u64,
        /// Of how many.
        submitted: u64,
        /// How long.
        waited: Duration,
    },
    /// Another thread of this worker was in the way for too long.
    #[error("{what} waited {waited:.1?} for another thread of this worker, which is itself waiting")]
    InLine {
        /// What could not begin.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// The server said what this worker does not understand.
    #[error("server {server} broke the protocol: {what}")]
    Protocol {
        /// Its number.
        server: u32,
        /// What it did.
        what: String,
    },
    /// The system said no.
    #[error("could not {what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The caller asked to stop waiting (Ctrl-C).
    #[error("interrupted")]
    Interrupted,
}

/// What a get waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Due {
    /// That the row reaches the version that it asks for.
    Version,
    /// What the producer set before the last barrier, whatever version is asked for.
    BeforeBarrier,
    /// What the producer set before it was gone: only then it is known that no newer version comes.
    BeforeGone,
    /// Rows that come one by one, as they were at one moment.
    AtOneMoment,
}

impl Due {
    fn in_words(self, row: u64, (version, wanted): (u64, u64), producer: Rank) -> String {
        match self {
            Self::Version => format!(
                "row {row} to reach version {wanted}; it is at {version}; waiting for worker {producer}"
            ),
            Self::BeforeBarrier => format!(
                "what worker {producer} set before the last barrier; row {row} is at version {version} here, and may be newer there"
            ),
            Self::BeforeGone => format!(
                "what worker {producer} set before it was gone; row {row} is at version {version} here, the get asks for {wanted}"
            ),
            Self::AtOneMoment => {
                format!("row {row} and others as they were at one moment at worker {producer}")
            }
        }
    }
}

/// Which workers a wait was for, in words.
fn whom(missing: &[Rank], silent: Option<u32>) -> String {
    match silent {
        _ if !missing.is_empty() => format!("workers {missing:?}"),
        Some(server) => format!("server {server}"),
        None => "no known worker".to_owned(),
    }
}

impl Error {
    /// What the system said when `what` was tried, with the limit that was reached, if it was one.
    pub(crate) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::System { what, reason: limits::explain_io(&error.into()) }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Failed(failure) => return failure.hint(),
            Self::Refused(refusal) => return refusal.hint(),
            Self::Options(error) => return error.hint(),
            Self::Start(error) => return error.hint(),
            Self::Forked => {
                "join a job in the process that trains, or start processes without fork (Python: the method `spawn`)".to_owned()
            }
            Self::Closed => "use it before `close()`, or call `ps.init()` in a new process".to_owned(),
            Self::AlreadyPushed { .. } => {
                "call `job.clock()` after each iteration, or push with `more=True` until the iteration's last"
                    .to_owned()
            }
            Self::NoMatrix { .. } => "push the product".to_owned(),
            Self::UnknownElement { .. } => {
                "indices count from 0, along the dimensions that they name".to_owned()
            }
            Self::WrongSize { .. } => "give an array of the tensor's shape and dtype".to_owned(),
            Self::UnknownRow { .. } => {
                "name the row in `produce` or `consume` when the table is declared".to_owned()
            }
            Self::NotProducer { .. } => {
                "set only rows that were named in `produce`; for rows of several producers declare a sum and add".to_owned()
            }
            Self::RowTwice { .. } => "name each row once; to add up values for one row, declare a sum and add".to_owned(),
            Self::ClockBackwards { .. } => "give clocks that never fall, as versions do".to_owned(),
            Self::NeverSet { .. } => "set the row first, or read with more slack".to_owned(),
            Self::WrongFold { sum: true, .. } => "use add and get, or declare the table without a sum".to_owned(),
            Self::WrongFold { sum: false, .. } => "use set, or declare the table with a sum".to_owned(),
            Self::GetTimeout { producer, .. } => {
                format!("check what worker {producer} is doing, or raise `timeout` or the option `deadline`")
            }
            Self::TableTimeout { missing, .. } if !missing.is_empty() => {
                format!(
                    "every worker must declare the table; check what worker {} is doing, and whether its server's log says that \
                     the job is kept waiting",
                    missing[0]
                )
            }
            Self::Dropped { .. } => "declare it again: its name is free when all workers have dropped it".to_owned(),
            Self::DropTimeout { .. } => {
                "every worker that declared the table must drop it; repeat the call to continue waiting".to_owned()
            }
            Self::NeverStill { .. } => "read fewer rows at a time, or set them less often".to_owned(),
            Self::Apart { .. } => "get these rows one at a time: each is as it came last".to_owned(),
            Self::NonFinite { .. } => {
                "find the NaN in the gradient; lower the learning rate, or clip".to_owned()
            }
            Self::Unfinished { .. } => {
                "push what is last of it first, or load after the next clock, which drops it".to_owned()
            }
            Self::PartWaits { .. } => {
                "push an array, which is added to it; a push without one sends it".to_owned()
            }
            Self::StaleLane { .. } => "push what you mean, or call `lane()` again and fill that first".to_owned(),
            Self::NotStill { .. } => "give `out=`, or pull without slack under BSP".to_owned(),
            Self::PullTimeout { missing, .. }
            | Self::LaneTimeout { missing, .. }
            | Self::BarrierTimeout { missing, .. }
                if !missing.is_empty() =>
            {
                format!(
                    "check what worker {} is doing, or raise `timeout` or the option `deadline`",
                    missing[0]
                )
            }
            Self::PullTimeout { silent: None, .. }
            | Self::LaneTimeout { silent: None, .. }
            | Self::BarrierTimeout { silent: None, .. } => {
                "raise `timeout` or the option `deadline`".to_owned()
            }
            Self::FirstFailed { .. } => {
                "mend what worker 0 says, then make the call again on every worker".to_owned()
            }
            Self::FirstGone { .. } => "do it before worker 0 leaves, or restart the job".to_owned(),
            Self::InLine { .. } => {
                "check what this worker's other threads wait for, or raise `timeout` or the option `deadline`".to_owned()
            }
            Self::Knot { .. } => REMEDY.to_owned(),
            Self::NoValue { .. } => "declare the tensor on worker 0 too".to_owned(),
            Self::ConnectTimeout { .. } => {
                "start the server first, or raise the option `deadline`".to_owned()
            }
            Self::NotTaken { server, .. }
            | Self::Unanswered { server, .. }
            | Self::PullTimeout { silent: Some(server), .. }
            | Self::LaneTimeout { silent: Some(server), .. }
            | Self::BarrierTimeout { silent: Some(server), .. } => format!(
                "check what server {server} is doing and the connection to it, or raise `timeout` or the option `deadline`"
            ),
            Self::Protocol { server, .. } => format!(
                "give every worker and server the same version of Penstock, and every worker the servers in the same order; if that is so, check the output of server {server}"
            ),
            Self::Untrusted { .. } => {
                "give servers certificates of the authority in the option `ca`, or leave `ca` empty: the job's secret proves who the server is"
                    .to_owned()
            }
            Self::OtherUser { .. } => {
                "start servers and workers as the same user; if this user did start the server, find out who can write to the socket's directory"
                    .to_owned()
            }
            Self::System { .. } => "run `penstock doctor` on this host".to_owned(),
            _ => return None,
        };
        Some(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A get behind a barrier, which takes whatever was set before that, was said to wait for version 0.
    #[test]
    fn a_get_says_what_it_waited_for_and_never_for_a_version_that_is_there() {
        let says = |due, version, wanted| {
            let (name, waited) = ("U".to_owned(), Duration::from_secs(2));
            Error::GetTimeout { due, name, row: 5, version, wanted, producer: 1, waited }.to_string()
        };
        assert_eq!(
            says(Due::Version, 1, 2),
            "`U` waited 2.0s for row 5 to reach version 2; it is at 1; waiting for worker 1"
        );
        assert_eq!(
            says(Due::BeforeBarrier, 0, 0),
            "`U` waited 2.0s for what worker 1 set before the last barrier; row 5 is at version 0 here, and may be newer there"
        );
        assert_eq!(
            says(Due::BeforeGone, 1, 2),
            "`U` waited 2.0s for what worker 1 set before it was gone; row 5 is at version 1 here, the get asks for 2"
        );
        assert_eq!(
            says(Due::AtOneMoment, 3, 2),
            "`U` waited 2.0s for row 5 and others as they were at one moment at worker 1"
        );
    }

    #[test]
    fn who_waits_for_a_server_or_does_not_understand_it_is_told_where_to_look() {
        let silent =
            Error::Unanswered { server: 3, what: "open the barrier", waited: Duration::from_secs(60) };
        let strange = Error::Protocol { server: 3, what: "it named too few extents".to_owned() };
        for error in [silent, strange] {
            assert!(error.hint().is_some_and(|hint| hint.contains("server 3")), "{error}");
        }
    }
}
