//! How a job can be sabotaged, so that tests can show that the checkers see it.

/// A promise that is broken now and then, for tests of the checkers: by a shard's memory, or at the ends of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sabotage {
    /// Folds the same lanes a second time.
    FoldsTwice,
    /// Leaves the last writer out of a fold.
    LosesAnUpdate,
    /// Folds in any order.
    FoldsInAnyOrder,
    /// Shows readers half of the new value and half of the old one.
    TearsAChunk,
    /// Does not publish a new version that it says is there.
    KeepsTheOldMirror,
    /// Publishes under the next version's number.
    PublishesTooEarly,
    /// Publishes under the number of an earlier version.
    FallsBack,
    /// Folds into what was published before the last publication.
    UndoesAFold,
    /// Never tells that the tensor came past version 1.
    KeepsSilent,
    /// Forgets which results a worker on another host wants.
    ForgetsWhatIsWanted,
    /// Takes a fetch that is made again, on a new connection, for one that it has answered.
    DoesNotFetchAgain,
    /// A worker's memory returns a ticket when it is given, not when what it is for has come.
    ReturnsTicketsTooEarly,
    /// Leaves chunks out of what a fetch brings.
    LosesNotices,
    /// Sends all of a tensor to who asks for some of its chunks.
    SendsAllForSome,
    /// Sends one chunk to who asks for several, one after the other.
    SendsOneForSome,
    /// Opens the barrier when all but one stand at it.
    OpensBarriersEarly,
    /// Does not tell some that stood at a barrier that it has opened.
    ForgetsWhoStood,
    /// Keeps no answers: what is asked again is carried out again.
    ForgetsAnswers,
    /// Takes what is open for settled.
    SettlesWhatIsOpen,
    /// Lets a worker go before its shards have taken what it submitted.
    LetsGoAtOnce,
    /// A bit of what was decoded flips in a worker's memory, and nobody notices.
    BelievesDamagedFrames,
    /// The control thread takes workers for lost before their lease is over.
    IsImpatient,
    /// The control thread takes no worker for lost.
    LosesNobody,
    /// A worker does not count what comes from the control thread as signs that it lives.
    IsDeaf,
    /// A shard is not told which workers are lost.
    KeepsTheLost,
    /// A worker does not make a silent connection to the control thread again.
    KeepsSilentConnections,
    /// A worker sends the right factor of its last contribution with the left one of the next.
    SendsTheLastFactor,
    /// A home decodes, and encodes, by another codec than was agreed to.
    DecodesByAnother,
    /// A home sends what its filter holds back.
    LeaksThroughTheFilter,
    /// Readers on a home's host see what its filter holds back.
    ShowsWhatIsHeldBack,
    /// Readers see what was folded before it is in a version that is final.
    ShowsWhatIsNotFinal,
    /// A home does not tell those on other hosts of what it has published.
    ForgetsToBroadcast,
    /// A home says that a chunk has another version when it has another value.
    RaisesWhatHasChanged,
    /// A home takes what came before what the receivers hold for what they hold.
    MistakesTheShadow,
    /// An end that has work left, frames that it has read or submissions that waited for room, waits until more bytes come.
    ForgetsWhatItHasRead,
    /// The link loses the end of what a worker reads at once.
    DropsWhatItHasRead,
    /// An end goes on with a connection to a shard that has ended.
    KeepsEndedConnections,
    /// A load returns once it is submitted, not once the shards have taken it.
    AnnouncesLoadsTooEarly,
    /// A shard counts a chunk of a load as taken, and keeps the value that was there.
    LosesChunksOfLoads,
    /// A shard takes half of a chunk of a load.
    HalvesLoads,
    /// A shard takes a chunk of the load before the last for what was loaded.
    BringsBackLoads,
    /// A worker on another host does not fetch anew behind a barrier.
    ForgetsBarriers,
    /// A worker on another host does not fetch anew what it has loaded itself.
    ForgetsOwnLoads,
    /// A worker passes some frames on to nobody, and those that it feeds never look whether something is late.
    LosesWhatIsPassedOn,
    /// What a worker has changed is passed on under a seal that others believe.
    BelievesAnySeal,
    /// A home takes it for granted that whoever has left its parents holds what stands.
    TrustsPositions,
    /// A home does not feed a worker that has left its parents.
    ForgetsWhoStrayed,
    /// A worker folds an update that has come a second time.
    AppliesUpdatesTwice,
    /// A worker says that it has folded an update, and has not.
    SkipsUpdates,
    /// Of what comes whole a worker keeps the optimizer's state that it had.
    KeepsTheOldState,
    /// A home sends its last update to who lacks the one before.
    SendsUpdatesToAnyone,
    /// A home sends the right factor before the one that its update names.
    SendsAnotherFactor,
}

impl Sabotage {
    /// Whether only jobs show it in which leases decide.
    pub fn needs_leases(self) -> bool {
        use Sabotage::{IsDeaf, IsImpatient, KeepsSilentConnections, KeepsTheLost, LosesNobody};
        matches!(self, IsImpatient | LosesNobody | IsDeaf | KeepsTheLost | KeepsSilentConnections)
    }

    /// Whether it is a worker that breaks it, in what it holds of values of another host.
    pub fn is_at_mirrors(self) -> bool {
        use Sabotage::{AppliesUpdatesTwice, BelievesDamagedFrames, KeepsTheOldState, SkipsUpdates};
        matches!(self, BelievesDamagedFrames | AppliesUpdatesTwice | SkipsUpdates | KeepsTheOldState)
    }

    /// Whether only jobs show it in which workers feed each other.
    pub fn needs_trees(self) -> bool {
        use Sabotage::{BelievesAnySeal, ForgetsWhoStrayed, LosesWhatIsPassedOn, TrustsPositions};
        matches!(self, BelievesAnySeal | ForgetsWhoStrayed | LosesWhatIsPassedOn | TrustsPositions)
    }
}
