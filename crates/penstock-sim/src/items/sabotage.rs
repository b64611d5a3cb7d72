//! How tables can be sabotaged.

/// A promise broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Leaves out rows that came from a peer.
    LosesRows,
    /// Takes what the change log could not list for nothing.
    ForgetsTheUnlisted,
    /// Where a row was overtaken, does not list one of those that have changed meanwhile.
    ForgetsWhatChangedMeanwhile,
    /// Mixes a row that came with another.
    TearsRows,
    /// Brings back what a row was before.
    FallsBack,
    /// Looks at each row as of a moment of its own.
    SplitsSets,
    /// Says that its producer has completed one iteration more, and that rows have the version of the next.
    PromisesTooMuch,
    /// Shows rows of a set before the others have come.
    ShowsHalfSets,
    /// Tells no one that rows have changed.
    KeepsSilent,
    /// Answers a fetch with rows that are older than it asks for.
    AnswersTooEarly,
    /// Sends rows at every version, whether or not it is needed.
    SendsUnneeded,
    /// Sends rows twice.
    SendsAgain,
    /// Sends rows that answer a fetch as if they did not.
    ForgetsTickets,
    /// Answers a fetch with some of its rows.
    AnswersInPart,
    /// Answers a fetch with a row more.
    AnswersTooMuch,
    /// Answers fetches that were withdrawn.
    IgnoresWithdrawals,
    /// Goes on by a subscription that was replaced.
    IgnoresResubscriptions,
    /// The home says that it has brought rows when it is asked to bring them.
    BringsNothing,
    /// A worker that gives up what it has fetched keeps the question, and takes the answer for none.
    KeepsQuestions,
    /// A worker stands at a barrier before its rows are at the home.
    StandsUnflushed,
    /// The home takes a new connection for the one before.
    MistakesConnections,
}
