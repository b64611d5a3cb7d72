//! What a home keeps of the chunks of one tensor beside their bytes: what was published of each, what of that is new to whom, what
//! filters hold back of it, and the updates and factors that led there.
//!
//! The bytes are the caller's: mapped memory at a server, vectors in the simulator. It says what it is about to do to them, and what
//! it did.

use super::home::Publication;
use crate::checksum::OncePublished;
use crate::encoding::{Agreed, Encoding, Sent, Source};
use crate::factors::LowRank;
use crate::factors::down::{self, Contributed, Named, Needed};
use crate::overlay::Digests;
use crate::shard::Fold;
use crate::stream::Streams;
use crate::travel::Terms;
use crate::update::{Kept, Updates};
use crate::{Rank, TensorId};
use penstock_kernels::filter::{Behind, Coordinates};
use std::sync::Arc;

/// What a home keeps of one tensor's chunks; `local`: the how manieth of them.
#[derive(Debug)]
pub struct Ledger {
    terms: Arc<Terms>,
    chunks: Vec<Entry>,
    /// Of each chunk the last update, where those are sent; else empty.
    kept: Vec<Kept>,
    /// What workers on other hosts held, where that has to be kept.
    streams: Option<Streams>,
    /// What came as factors, where updates are sent that may be of them.
    contributed: Option<Contributed>,
    /// Whether peers on other hosts pass its values on; how routes cut them, and what stands of each stripe.
    by_trees: bool,
    digests: Digests,
}

/// One chunk's.
#[derive(Debug, Default)]
struct Entry {
    version: u64,
    steps: u64,
    /// What stands there, as it is sent to several.
    sum: OncePublished,
    /// How far what is seen is behind.
    behind: Behind,
    /// The last publication that changed what is seen, and whether the next does.
    changed: u64,
    changes: bool,
}

impl Ledger {
    /// Of a tensor with chunks of these lengths, none of which is published. `shares`: of each stripe that routes cut its values in.
    pub fn new(
        id: TensorId,
        terms: Arc<Terms>,
        lengths: impl ExactSizeIterator<Item = usize> + Clone,
        workers: u32,
        shares: &[u32],
    ) -> Self {
        let (count, longest) = (lengths.len(), lengths.clone().next().unwrap_or(0));
        let chunks = (0..count).map(|_| Entry::default()).collect();
        let kept = (0..count).filter(|_| terms.updates.is_some()).map(|_| Kept::default()).collect();
        let streams = Streams::new(&terms, lengths);
        let low_rank = terms.low_rank.filter(|_| terms.updates.is_some());
        let contributed = low_rank.map(|low_rank| Contributed::new(low_rank, count, workers));
        let digests = Digests::new(id, count, longest as u64, shares);
        Self { terms, chunks, kept, streams, contributed, by_trees: false, digests }
    }

    /// How its chunks travel.
    pub fn terms(&self) -> &Arc<Terms> {
        &self.terms
    }
}

/// What happens to its chunks.
impl Ledger {
    /// What is seen of a chunk, by this number, is about to change, or to be published as it is. Called while nobody has changed it:
    /// later calls until the next publication do nothing, if they have a number that no publication has.
    pub fn keep(&mut self, local: usize, sequence: u64, seen: &[u8]) {
        if let Some(streams) = &mut self.streams {
            streams.keep(local, sequence, seen);
        }
    }

    /// Contributions are about to be folded into a chunk: what a filter does not let pass of that is held back.
    pub fn falls_behind(&mut self, local: usize) {
        if self.terms.holds_back() {
            self.chunks[local].behind.falls();
        }
    }

    /// These writers' contributions were folded into a chunk. `sum`: what its rule was given, where that is sent; it is encoded if
    /// somebody may be sent it.
    pub fn folded(&mut self, local: usize, fold: &Fold, writers: &[Rank], sum: Option<&[u8]>, is_sent: bool) {
        let Self { terms, chunks, kept, contributed, .. } = self;
        let entry = &mut chunks[local];
        if let (Some(update), Some(sum)) = (kept.get_mut(local), sum) {
            let Fold { settings, step, scale } = fold;
            let agreed = terms.updates.as_ref().map(|updates| &updates.agreed).filter(|_| is_sent);
            let factored = contributed.as_ref().filter(|_| agreed.is_some());
            let factored = factored.and_then(|contributed| contributed.of(local, writers));
            let factored = factored.map(|factored| (factored, *scale));
            update.fold(entry.changed, (*step, settings), sum, factored, agreed);
        }
        entry.changes |= !terms.holds_back();
        // What stood in the lanes is in the value.
        if let Some(contributed) = contributed {
            writers.iter().for_each(|&writer| contributed.forget(writer, local));
        }
    }

    /// A chunk's value (slot 0) or an array of its optimizer's state was loaded. Of a value nothing is held back: a filter's bound is
    /// for changes. Otherwise all that is small in a fresh model would read zero.
    pub fn loaded(&mut self, local: usize, slot: u32) {
        let entry = &mut self.chunks[local];
        if slot == 0 {
            entry.behind.catches_up();
        }
        // To who folds for itself, the state is as much as the value.
        let is_folded = self.kept.get_mut(local).map(Kept::change).is_some();
        entry.changes |= slot == 0 || is_folded;
    }

    /// Whether something may have been held back of a chunk, before all of it passes.
    pub fn catches_up(&mut self, local: usize) -> bool {
        self.chunks[local].behind.catches_up()
    }

    /// What is seen of a chunk was changed by something else than what is said above.
    pub fn changes(&mut self, local: usize) {
        self.chunks[local].changes = true;
    }

    /// Whether what is published next is what readers see already, under a count of steps that goes with the optimizer's state.
    /// `was_published`: whether anything was.
    pub fn is_unseen(&self, local: usize, version: u64, was_published: bool) -> bool {
        let entry = &self.chunks[local];
        let again = was_published && version == entry.version;
        self.terms.shows_versions_only && again && !entry.changes
    }

    /// Whether a filter has to choose what of a chunk is seen, before it is published.
    pub fn is_behind(&self, local: usize) -> bool {
        self.chunks[local].behind != Behind::Not
    }

    /// Lets the filter's choice of a chunk pass into what is `seen`; how often it went over it.
    pub fn choose(&mut self, local: usize, at: Coordinates, whole: &[u8], seen: &mut [u8]) -> u32 {
        let entry = &mut self.chunks[local];
        let choices = entry.behind.publish(&*self.terms.filter, at, whole, seen);
        entry.changes |= choices > 0;
        choices
    }

    /// A chunk was published under this number.
    pub fn published(&mut self, local: usize, version: u64, steps: u64, sequence: u64) {
        let entry = &mut self.chunks[local];
        if let Some(update) = self.kept.get_mut(local) {
            update.publish(sequence);
        }
        (entry.version, entry.steps) = (version, steps);
        if std::mem::take(&mut entry.changes) {
            entry.changed = sequence;
        }
        self.digests.count(local, version, entry.changed);
    }
}

/// What goes to peers on other hosts.
impl Ledger {
    /// How many chunks there are.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// What stands published of a chunk, under this number.
    pub fn publication(&self, local: usize, sequence: u64) -> Publication {
        let Entry { version, steps, changed, .. } = self.chunks[local];
        Publication { version, steps, sequence, changed }
    }

    /// A chunk as it is sent: this is seen of it, by this number.
    pub fn send<'a>(&'a self, local: usize, sequence: u64, seen: &'a [u8], position: u64) -> Sent<'a> {
        match &self.streams {
            None => {
                let source = Source::Published(seen, &self.chunks[local].sum, sequence);
                Sent { source, shadow: None, position }
            }
            Some(streams) => streams.send(local, sequence, seen, position),
        }
    }

    /// How values are encoded.
    pub fn values(&self) -> &Agreed {
        &self.terms.values
    }

    /// How updates travel, where those are sent.
    pub fn updates(&self) -> Option<&Updates> {
        self.terms.updates.as_ref()
    }

    /// The content that a chunk's update leads on from, if there is one that leads to what stands there, and all that it names is kept.
    pub fn update_base(&self, local: usize) -> Option<u64> {
        let base = self.kept.get(local)?.base(self.chunks[local].changed)?;
        let mut factors = (0..).map_while(|place| self.needed(local, place));
        factors.all(|one| self.right(one.name).is_some()).then_some(base)
    }

    /// That update.
    pub fn update(&self, local: usize) -> (Encoding, &[u8]) {
        self.kept[local].payload()
    }

    /// The right factor that comes at this place among those that a chunk's update names.
    pub fn needed(&self, local: usize, place: usize) -> Option<Needed> {
        let low_rank = self.terms.low_rank.as_ref()?;
        down::needed(low_rank, self.kept.get(local)?.factors()?, place)
    }

    /// A right factor, while it is kept.
    pub fn right(&self, name: Named) -> Option<&[u8]> {
        self.contributed.as_ref()?.find(name)
    }

    /// Whether its values go by others too.
    pub fn goes_by_trees(&self) -> bool {
        self.by_trees
    }

    /// From now on they do, or do not; whether that is new.
    pub fn go_by_trees(&mut self, by_trees: bool) -> bool {
        // An update is worth nothing to who lacks the one before.
        self.terms.updates.is_none() && std::mem::replace(&mut self.by_trees, by_trees) != by_trees
    }

    /// How routes cut its values.
    pub fn stripe_by(&mut self, shares: &[u32]) {
        self.digests.cut(shares);
    }

    /// The stripe that a chunk goes in.
    pub fn stripe(&self, local: usize) -> usize {
        self.digests.stripe(local)
    }

    /// What stands of a stripe.
    pub fn digest(&self, stripe: usize) -> u64 {
        self.digests.of(stripe).unwrap_or(0)
    }
}

/// What comes from workers on other hosts.
impl Ledger {
    /// How contributions are encoded.
    pub fn contributions(&self) -> &Agreed {
        &self.terms.contributions
    }

    /// Whether they come as factors.
    pub fn low_rank(&self) -> Option<LowRank> {
        self.terms.low_rank
    }

    /// Something is put into a worker's lane of a chunk.
    pub fn receives(&mut self, writer: Rank, local: usize) {
        if let Some(contributed) = &mut self.contributed {
            contributed.forget(writer, local);
        }
    }

    /// A worker's next right factor is here, whole.
    pub fn keep_right(&mut self, writer: Rank, rank: u32, bytes: &[u8]) {
        if let Some(contributed) = &mut self.contributed {
            contributed.came(writer, rank, bytes);
        }
    }

    /// The product of these rows with the worker's last right factor stands in its lane of a chunk.
    pub fn keep_rows(&mut self, writer: Rank, local: usize, rank: u32, rows: &[u8]) {
        if let Some(contributed) = &mut self.contributed {
            contributed.multiplied(writer, local, rank, rows);
        }
    }

    /// A worker has left: nothing is kept of what it alone is charged for.
    pub fn left(&mut self, writer: Rank) {
        if let Some(contributed) = &mut self.contributed {
            contributed.left(writer);
        }
    }
}
