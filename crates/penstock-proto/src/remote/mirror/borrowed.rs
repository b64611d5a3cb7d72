//! Values that stand in memory which another worker of the host lends: what stands there is what is held, and nothing is written.
//!
//! The lender writes as its own mirror says, by the rules of everything else here, and with each chunk the numbers by which the home
//! knows it: version, publication, content. Who borrows takes these for its own when it looks, so tickets, digests and what it tells
//! the home are as exact as if the frames had come to itself. What the home sends nevertheless is not written anywhere: it is waited for
//! as what others bring is, and if the borrower goes back to memory of its own before that stands there, it says that it has lost it.
//!
//! A lender may say what is not so. So back in memory of its own, the borrower *doubts* all that it has by a lender's word alone: it tells
//! the home what it holds, and what the home says behind that is so, whether versions rise by that or fall. What the home says before
//! may be older than what stood there, as from an honest one.

use super::{Broken, Effect, Mirror, Mirrored};
use crate::TensorId;
use crate::clock::MAX_CLOCK;
use crate::overlay::{MAX_STRIPES, Stripes};
use crate::progress::Progress;
use crate::remote::contents::Contents;
use crate::remote::returning::Holding;

/// What stands of a chunk in a lender's memory, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stands {
    /// Its version.
    pub version: u64,
    /// Optimizer steps behind it.
    pub steps: u64,
    /// The publication whose value it is.
    pub publication: u64,
    /// The one that last changed what is seen.
    pub content: u64,
}

/// What of a chunk's numbers nobody but a lender has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// Nothing.
    None,
    /// Its publication: of the rest the home's seal was seen since.
    Publication,
    /// All.
    All,
}

/// A value that the home has sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value {
    pub(super) version: u64,
    pub(super) steps: u64,
    pub(super) publication: u64,
    pub(super) base: u64,
    pub(super) content: u64,
}

/// What a value of the home does to a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is not in doubt: as to any other.
    Sure,
    /// This.
    Is(Effect),
    /// Nothing, as it is against something else; the home takes it for held.
    Unusable,
}

impl Mirrored {
    /// Whether any of so many chunks is in doubt, and no seal was seen of any: what that was seen of may have been raised further.
    pub(super) fn is_doubted(&self, chunk: u32, count: u32) -> bool {
        let doubts = self.doubts.get(self.locals(chunk, count)).unwrap_or_default();
        doubts.contains(&Doubt::All) && !doubts.contains(&Doubt::Publication)
    }

    /// Those of so many chunks that are in doubt.
    pub(super) fn doubted(&self, chunk: u32, count: u32) -> Vec<usize> {
        let is_doubted = |local: &usize| self.doubts.get(*local).is_some_and(|&doubt| doubt != Doubt::None);
        self.locals(chunk, count).filter(is_doubted).collect()
    }

    /// The home's seal was seen of what is held of these, but not of their publications.
    pub(super) fn doubt_publications(&mut self, locals: Vec<usize>) {
        locals.into_iter().for_each(|local| self.doubts[local] = Doubt::Publication);
    }

    /// The home has sent a value, and had taken so many frames by then.
    pub(super) fn hear_doubted(
        &mut self,
        (tensor, local): (TensorId, usize),
        taken: u64,
        value: Value,
    ) -> Answer {
        let doubt = self.doubts.get(local).copied().unwrap_or(Doubt::None);
        if doubt == Doubt::None {
            return Answer::Sure;
        }
        let (chunk, held) = (self.chunks[local], self.positions[local]);
        let Value { version, steps, publication, base, content } = value;
        let fits = base == 0 || base == held;
        if taken < self.behind {
            // What stood there may be newer than that.
            if publication <= held || version + 1 < self.versions[local] {
                return Answer::Is(Effect::Nothing);
            }
            if !fits {
                self.lost.insert(local, publication);
                return Answer::Unusable;
            }
            return Answer::Sure;
        }
        if doubt == Doubt::Publication && content <= self.contents[local] {
            if content == self.contents[local] {
                (self.positions[local], self.doubts[local]) = (publication, Doubt::None);
                self.lost.remove(&local);
            }
            return Answer::Is(Effect::Nothing);
        }
        if !fits {
            self.lost.insert(local, publication);
            return Answer::Unusable;
        }
        let fell = version + 1 < self.versions[local];
        let progress = self.take(local, version, publication, content);
        let progress = if fell { self.count_again() } else { progress };
        // Also where a lender had claimed more.
        self.returning.holds(local, Holding::ALL);
        Answer::Is(Effect::Publish { tensor, chunk, version, steps, progress })
    }

    /// The home has raised chunks of which some are in doubt, behind all that stood there; what there is to be told of the least version
    /// of all. An error: it has something else than is held, which is lost with that; whether it is to be told so.
    pub(super) fn raised_doubted(
        &mut self,
        chunk: u32,
        count: u32,
        version: u64,
        contents: Contents,
    ) -> Result<Option<u64>, bool> {
        let locals = self.locals(chunk, count);
        if self.contents(chunk, count) != Some(contents) || self.positions[locals.clone()].contains(&0) {
            let mut is_new = false;
            for local in locals.filter(|&local| self.doubts[local] == Doubt::All) {
                is_new |= self.lost.insert(local, u64::MAX).is_none();
            }
            return Err(is_new);
        }
        self.singles_came(locals.clone(), version);
        for local in locals {
            self.holds(local, version, self.contents[local]);
            self.returning.holds(local, Holding::ALL);
        }
        Ok(self.count_again())
    }

    /// Versions may have fallen: the least of all.
    fn count_again(&mut self) -> Option<u64> {
        self.progress = Progress::default();
        self.progress.risen(self.versions.iter().copied())
    }

    /// Whether what stands there is at least what is held.
    fn is_reached_by(&self, local: usize, stands: &Stands) -> bool {
        stands.version <= MAX_CLOCK
            && stands.version + 1 >= self.versions[local]
            && stands.content >= self.contents[local]
            && stands.publication >= self.positions[local]
            && stands.publication > 0
    }

    /// The home has sent a chunk's value, which is not written. `is_fed`: though others feed it.
    pub(super) fn sent_nevertheless(
        &mut self,
        local: usize,
        is_fed: bool,
        (version, publication, content): (u64, u64, u64),
    ) {
        self.direct = self.direct.saturating_add(usize::from(is_fed));
        if publication > self.positions[local] {
            self.lost.insert(local, publication);
            self.expects(self.chunks[local], [Holding { content, version }]);
        }
    }

    /// The home has raised chunks, as they are held here, to a version.
    pub(super) fn raised_nevertheless(&mut self, chunk: u32, count: u32, version: u64, contents: Contents) {
        // Where something newer stands by now, that has come to a version of its own.
        if self.contents(chunk, count) != Some(contents) {
            return;
        }
        let Ok(first) = self.chunks.binary_search(&chunk) else { return };
        for local in first..first + count as usize {
            let content = self.contents[local];
            self.expects(self.chunks[local], [Holding { content, version }]);
        }
    }
}

impl Mirror {
    /// Whether a tensor may be borrowed now: the home was asked for it, broadcasts, and what is new of it goes by trees.
    pub fn may_borrow(&self, tensor: TensorId) -> bool {
        let may = |it: &Mirrored| it.broadcast && it.asked && it.by_trees && !it.borrowed;
        self.tensors.get(tensor).is_some_and(may) && !self.left
    }

    /// Whether of each chunk what is held here, or something newer, stands in a lender's memory.
    pub fn is_reached(&self, tensor: TensorId, stands: impl IntoIterator<Item = (u32, Stands)>) -> bool {
        let Some(mirrored) = self.tensors.get(tensor) else { return false };
        let mut seen = 0;
        let all = stands.into_iter().all(|(chunk, stands)| {
            seen += 1;
            self.is_reached_at(tensor, chunk, &stands)
        });
        all && seen == mirrored.chunks.len()
    }

    /// Whether that is so of one chunk.
    pub fn is_reached_at(&self, tensor: TensorId, chunk: u32, stands: &Stands) -> bool {
        self.tensors.get(tensor).is_some_and(|mirrored| {
            mirrored.chunks.binary_search(&chunk).is_ok_and(|local| mirrored.is_reached_by(local, stands))
        })
    }

    /// From now on a tensor's values stand in a lender's memory, or do no more.
    pub fn borrow(&mut self, tensor: TensorId, is_borrowed: bool) {
        if let Some(mirrored) = self.tensors.get_mut(tensor) {
            mirrored.borrowed = is_borrowed;
            if is_borrowed {
                mirrored.doubts.resize(mirrored.chunks.len(), Doubt::None);
                mirrored.direct = 0;
            } else {
                mirrored.behind = u64::MAX;
                self.gave_back = true;
            }
        }
    }

    /// This stands of a chunk in a lender's memory, and is held from now on. Refused is what no honest lender has there.
    pub fn found(&mut self, tensor: TensorId, chunk: u32, stands: Stands) -> Result<Effect, Broken> {
        let Some(mirrored) = self.tensors.get_mut(tensor) else { return Ok(Effect::Nothing) };
        let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return Ok(Effect::Nothing) };
        let Stands { version, steps, publication, content } = stands;
        if version > MAX_CLOCK {
            return Err(Broken::TooNew { chunk, version });
        }
        if !mirrored.is_reached_by(local, &stands) {
            return Err(Broken::Fell { chunk, version });
        }
        let held = (mirrored.versions[local], mirrored.contents[local], mirrored.positions[local]);
        if held == (version + 1, content, publication) {
            return Ok(Effect::Nothing);
        }
        let progress = mirrored.take(local, version, publication, content);
        if mirrored.lost.get(&local).is_some_and(|&since| publication >= since) {
            mirrored.lost.remove(&local);
        }
        Ok(Effect::Publish { tensor, chunk, version, steps, progress })
    }

    /// Of a chunk nothing is held any more: its lender's memory was left in the middle of a write. Its version stays: nobody reads it
    /// before the home has sent it.
    pub fn lose(&mut self, tensor: TensorId, chunk: u32) {
        let Some(mirrored) = self.tensors.get_mut(tensor) else { return };
        let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return };
        if let Some(version) = mirrored.versions[local].checked_sub(1) {
            let content = mirrored.contents[local];
            mirrored.returning.loses(local, Holding { content, version });
        }
        // No home's frame that speaks of what was held is taken for it.
        (mirrored.positions[local], mirrored.contents[local]) = (0, 0);
        mirrored.digests.forget(local);
        if let Some(doubt) = mirrored.doubts.get_mut(local) {
            *doubt = Doubt::All;
        }
        mirrored.lost.insert(local, u64::MAX);
    }

    /// Tells the home what is held of what was borrowed, where that was not told since: it says what of that is so, and sends the rest.
    /// Not of these stripes, of which it is told anyway.
    pub fn doubt(&mut self, told: Stripes) {
        if !std::mem::take(&mut self.gave_back) || self.left {
            return;
        }
        let Some(epoch) = self.route.as_ref().map(|route| route.epoch) else { return };
        let rest = Stripes::first(MAX_STRIPES).without(told);
        if rest.is_empty() {
            return;
        }
        for (tensor, mirrored) in self.tensors.iter() {
            if mirrored.lost.is_empty() && mirrored.doubts.iter().all(|&doubt| doubt == Doubt::None) {
                continue;
            }
            mirrored.held(tensor, epoch, rest).for_each(|holds| self.outbox.submit(holds, 1));
        }
        if told.is_empty() {
            self.has_told();
        }
    }

    /// The home was told what is held of all that was borrowed: what it says behind that is so.
    pub(super) fn has_told(&mut self) {
        let behind = self.outbox.progress().1;
        let mirrored = self.tensors.iter_mut().map(|(_, mirrored)| mirrored);
        mirrored.filter(|it| it.behind == u64::MAX).for_each(|it| it.behind = behind);
    }

    /// Whether something is lost that a lender had, and that the home has not sent so far.
    pub fn lacks(&self) -> bool {
        self.tensors.iter().any(|(_, mirrored)| !mirrored.borrowed && !mirrored.lost.is_empty())
    }

    /// Tensors that are borrowed, and of which the home sends the values itself nevertheless: they do not go by trees.
    pub fn sent_past(&self) -> impl Iterator<Item = TensorId> {
        let is_sent = |mirrored: &Mirrored| mirrored.borrowed && mirrored.direct > 2 * mirrored.chunks.len();
        self.tensors.iter().filter(move |(_, mirrored)| is_sent(mirrored)).map(|(id, _)| id)
    }

    /// A tensor that is borrowed no more, as the home sends its values itself: nor is it again before the home has said that it goes by
    /// trees.
    pub fn goes_past(&mut self, tensor: TensorId) {
        self.tensors.get_mut(tensor).into_iter().for_each(|mirrored| mirrored.by_trees = false);
    }

    /// The lender of a tensor that was given back sends its values again. What it had said meanwhile is only that some were new: the home
    /// is told what is held, and sends the rest.
    pub fn renew(&mut self, tensor: TensorId) {
        let Some(epoch) = self.route.as_ref().map(|route| route.epoch).filter(|_| !self.left) else { return };
        let given_back = |it: &&Mirrored| it.broadcast && it.asked && !it.borrowed;
        let Some(mirrored) = self.tensors.get(tensor).filter(given_back) else { return };
        let all = mirrored.held(tensor, epoch, Stripes::first(MAX_STRIPES));
        all.for_each(|holds| self.outbox.submit(holds, 1));
    }

    /// The least version + 1 of a tensor's chunks.
    pub fn least(&self, tensor: TensorId) -> u64 {
        self.tensors.get(tensor).and_then(|mirrored| mirrored.progress.least()).unwrap_or(0)
    }

    /// Whether a tensor's values stand in a lender's memory.
    pub fn is_borrowed(&self, tensor: TensorId) -> bool {
        self.tensors.get(tensor).is_some_and(|mirrored| mirrored.borrowed)
    }
}
