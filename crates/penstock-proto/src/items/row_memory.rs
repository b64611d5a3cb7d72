//! What the [node](super::node) needs of memory that holds rows.

/// What a reader got with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Look {
    /// Number of the producer's set that wrote it.
    pub number: u64,
    /// Its clock; its version, if the look was taken from a moment.
    pub clock: u64,
    /// The set after which it still was the newest.
    pub as_of: u64,
}

/// A moment between two sets, from which rows are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Sets that are finished.
    pub done: u64,
    /// The last set of several rows that was begun, then or shortly before.
    pub several: u64,
    /// Iterations that the producer had completed.
    pub floor: u64,
}

/// Rows that were written: `count` from `first` on, by the set whose number has this low half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Slot of the first.
    pub first: u32,
    /// Rows.
    pub count: u32,
    /// Low half of the set's number.
    pub set: u32,
}

/// Too many rows were written to be listed: any may have changed, by sets up to the one whose number has this low half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unlisted {
    /// Low half of that set's number. It may not be finished.
    pub until: u32,
}

/// The writer overtook the reader. Look again, from a later moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Torn;

/// Rows of one producer: written here, by another process of this host, or from what a peer sends.
pub trait Memory {
    /// Appends what was written since the last call, in the order of sets, perhaps more than once, the last perhaps of a set
    /// that is not finished. Without a list, nothing is appended.
    fn changed(&mut self, changed: &mut Vec<Changed>) -> Result<(), Unlisted>;

    /// Now.
    fn now(&self) -> Moment;

    /// What a row carries as of a moment: its clock is its version.
    fn look(&self, slot: u32, now: Moment) -> Result<Look, Torn>;

    /// The same, and its value.
    fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Torn>;

    /// Rows that can be read at once come in runs of this length, which begin at its multiples. 0: there are no such runs.
    fn run(&self) -> u32;

    /// Reads the run that begins at `first`, if one set wrote the newest value of each of its rows; `None` if they must be read
    /// one by one.
    fn read_run(&self, first: u32, now: Moment, out: &mut [u8]) -> Result<Option<Look>, Torn>;

    /// Begins to bring all rows to where they were after set `number` of the producer, by at least `rows` rows. What was begun
    /// before and not finished is as if it had never been.
    fn open(&mut self, number: u64, rows: usize);

    /// One of those rows: set `number` wrote it. Nothing is done if it has a later one.
    fn put(&mut self, slot: u32, number: u64, clock: u64, value: &[u8]);

    /// The same for rows that follow each other from `first` on, which one set wrote.
    fn put_run(&mut self, first: u32, number: u64, clock: u64, values: &[u8]);

    /// All of them are here.
    fn finish(&mut self);

    /// What was begun is dropped.
    fn abort(&mut self);

    /// A row by itself: set `number` wrote it, and after set `as_of` it still was the newest, of this version. Without a value
    /// it is the one that is here.
    fn refresh(&mut self, slot: u32, number: u64, version: u64, as_of: u64, value: Option<&[u8]>);

    /// The producer has completed `floor` iterations.
    fn raise(&mut self, floor: u64);

    /// Rows have changed: threads that wait for them here may look.
    fn wake(&mut self);
}
