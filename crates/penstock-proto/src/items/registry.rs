//! The first server's book of tables: takes each worker's rows in parts, and when all have declared says who produces what.

use super::rows::RowSet;
use super::spec::{MAX_OWN_ROWS, MAX_TABLES, TableError, TableId, TableSpec};
use super::sweep::{Orphan, Sets, Sources, Sweep, Wrong};
use super::wire::{PartitionId, Shape};
use crate::Rank;
use crate::account::{Account, Charge, Exhausted, Resource};
use crate::membership::Members;
use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use super::sweep::Work;

/// Which of a worker's two sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Rows that it produces.
    Produce,
    /// Rows that it consumes.
    Consume,
}

/// A producer, as its consumers are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    /// Its rank.
    pub rank: Rank,
    /// Rows that it produces: slots of its partition.
    pub slots: u32,
    /// The server that its partition is homed at.
    pub home: u32,
    /// Whether it is on that server's host, so that others there map its partition.
    pub near: bool,
}

/// Rows that no worker produces, counted as those of a worker that was lost before it declared their table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// The table.
    pub name: String,
    /// The worker.
    pub rank: Rank,
    /// Its rows.
    pub rows: RowSet,
}

/// What a worker learns of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The table's number.
    pub id: TableId,
    /// Producers of rows that the worker consumes, and the worker itself if it produces any, by rank.
    pub producers: Vec<Producer>,
}

#[derive(Debug, Default)]
struct Declaration {
    /// What comes in parts, until it is complete. It does not count before.
    coming: Option<Coming>,
    /// Rows that it produces and consumes, once it has told them all.
    sets: Option<Sets>,
    /// Those that it produces, encoded: consumers ask for them part by part.
    encoded: Vec<u8>,
    home: u32,
    near: bool,
    /// For the sets.
    charge: Charge,
}

#[derive(Debug, Default)]
struct Coming {
    produce: Vec<u8>,
    consume: Vec<u8>,
    /// For the bytes.
    charge: Charge,
}

#[derive(Debug)]
struct Table {
    id: TableId,
    spec: TableSpec,
    workers: BTreeMap<Rank, Declaration>,
    failed: Option<TableError>,
    /// Workers that have heard that it failed.
    heard: BTreeSet<Rank>,
    _charge: Charge,
    /// For its place among the tables that there may be: of who began it, and of the job once all know of it. So nobody takes the
    /// places of the others' tables with names that only it has.
    place: Charge,
    /// Whether it is known which worker produces what, and workers are told: from then on no worker's rows change.
    told: bool,
    matched: Matched,
    /// Workers that have mapped, or subscribed to, what they need.
    ready: BTreeSet<Rank>,
}

/// How far producers and consumers have been brought together.
#[derive(Debug, Default)]
enum Matched {
    #[default]
    Not,
    Partly(Box<Sweep>),
    All(Sources),
}

/// What became of a table that workers wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// A live worker has not declared it.
    Lacking,
    /// There is more to do than could be done this time.
    Partly,
    /// What to answer is known.
    Known,
}

/// All tables of a job.
#[derive(Debug, Default)]
pub struct Registry {
    account: Account,
    tables: BTreeMap<String, Table>,
    /// Their names, by number.
    names: BTreeMap<TableId, String>,
    next: TableId,
    inherited: Vec<Inherited>,
}

/// Most bytes of one worker's row sets.
const MAX_SET_BYTES: usize = 1 << 28;

/// Bytes that a table, and a worker's declaration of it, take beside the sets of rows.
const TABLE_BYTES: u64 = 2048;

impl Registry {
    /// Without tables. What is kept for a worker is charged to its account within this one.
    pub fn charged_to(account: Account) -> Self {
        Self { account, ..Self::default() }
    }

    /// Whether some worker has begun to declare a table of this name.
    pub fn knows(&self, name: &str) -> bool {
        self.tables.contains_key(name)
    }

    /// A worker begins to declare a table, or repeats that it does: a declaration that timed out is made again. It may then
    /// name other rows than before, unless some worker has been told of the table meanwhile. One that failed is made anew once
    /// all `live` workers that made it have heard so; until then it is refused with what was wrong.
    pub fn begin(
        &mut self,
        rank: Rank,
        spec: &TableSpec,
        home: u32,
        near: bool,
        live: &BTreeSet<Rank>,
    ) -> Result<(), TableError> {
        spec.check()?;
        let known = self.tables.len();
        let peer = self.account.worker(rank);
        let exhausted = |why: Exhausted| TableError::Exhausted { name: spec.name.clone(), why };
        // Before anything is kept: where there is no room for it, the name stays as free as it was.
        let own_charge = peer.charge(Resource::Bytes, TABLE_BYTES).map_err(exhausted)?;
        let table = match self.tables.entry(spec.name.clone()) {
            Entry::Occupied(table) => table.into_mut(),
            Entry::Vacant(_) if known >= MAX_TABLES as usize || self.next == TableId::MAX => {
                return Err(TableError::TooManyTables);
            }
            Entry::Vacant(place) => {
                let charge = peer.charge(Resource::Bytes, TABLE_BYTES).map_err(exhausted)?;
                let place_charge = peer.charge(Resource::Tables, 1).map_err(exhausted)?;
                let id = self.next;
                self.next += 1;
                self.names.insert(id, spec.name.clone());
                place.insert(Table {
                    id,
                    spec: spec.clone(),
                    workers: BTreeMap::new(),
                    failed: None,
                    heard: BTreeSet::new(),
                    told: false,
                    matched: Matched::Not,
                    ready: BTreeSet::new(),
                    _charge: charge,
                    place: place_charge,
                })
            }
        };
        table.start_over(rank, spec, live);
        // Once some have been told of the table, a worker that declares it otherwise is refused alone.
        let result = table.spec.compare(spec);
        if table.told {
            result?;
        } else if let Err(error) = result {
            // It fails for all of them: otherwise the others would wait for this worker for ever.
            table.failed.get_or_insert_with(|| error.clone());
            table.heard.insert(rank);
            return Err(error);
        } else if let Some(error) = &table.failed {
            if table.heard.insert(rank) {
                return Err(error.clone());
            }
            let ranks = table.unheard(live).collect();
            return Err(TableError::NotAllTold { name: spec.name.clone(), why: error.to_string(), ranks });
        }
        if table.spec.holds.is_empty() {
            table.spec.holds.clone_from(&spec.holds);
        }
        let declaration = table.workers.entry(rank).or_default();
        declaration.coming = Some(Coming { charge: own_charge, ..Coming::default() });
        if !table.told {
            (declaration.home, declaration.near) = (home, near);
        }
        Ok(())
    }

    /// More bytes of a worker's encoded rows.
    pub fn part(&mut self, rank: Rank, name: &str, part: Part, bytes: &[u8]) -> Result<(), TableError> {
        let taken = self.take_part(rank, name, part, bytes);
        if matches!(taken, Err(TableError::Exhausted { .. })) {
            self.give_up(rank, name);
        }
        taken
    }

    fn take_part(&mut self, rank: Rank, name: &str, part: Part, bytes: &[u8]) -> Result<(), TableError> {
        let Coming { produce, consume, charge } = self.open(rank, name)?.coming.get_or_insert_default();
        let set = match part {
            Part::Produce => produce,
            Part::Consume => consume,
        };
        if set.len() + bytes.len() > MAX_SET_BYTES {
            return Err(TableError::OutOfTurn { what: "a longer set of rows than any".to_owned() });
        }
        // Where a vector grows it is twice as long, and there twice.
        let charged = charge.grow(3 * bytes.len() as u64);
        charged.map_err(|why| TableError::Exhausted { name: name.to_owned(), why })?;
        set.extend_from_slice(bytes);
        Ok(())
    }

    /// Keeps nothing of a declaration for which there is no memory: the worker may make a smaller one, of whatever name.
    fn give_up(&mut self, rank: Rank, name: &str) {
        let Some(table) = self.tables.get_mut(name) else { return };
        let Some(declaration) = table.workers.get_mut(&rank) else { return };
        declaration.coming = None;
        if declaration.sets.is_some() {
            return;
        }
        table.workers.remove(&rank);
        if table.workers.is_empty() && !table.told && table.failed.is_none() {
            let id = table.id;
            self.remove(name, id);
        }
    }

    fn open(&mut self, rank: Rank, name: &str) -> Result<&mut Declaration, TableError> {
        let declaration = self.tables.get_mut(name).and_then(|table| table.workers.get_mut(&rank));
        declaration.filter(|declaration| declaration.coming.is_some()).ok_or_else(|| TableError::OutOfTurn {
            what: format!("rows of table `{name}`, which was not begun"),
        })
    }

    /// A worker has told all its rows.
    pub fn end(&mut self, rank: Rank, name: &str) -> Result<(), TableError> {
        let taken = self.take_end(rank, name);
        if matches!(taken, Err(TableError::Exhausted { .. })) {
            self.give_up(rank, name);
        }
        taken
    }

    fn take_end(&mut self, rank: Rank, name: &str) -> Result<(), TableError> {
        let mut coming = self.open(rank, name)?.coming.take().unwrap_or_default();
        let sets = [&coming.produce, &coming.consume].map(|set| RowSet::decoded_bytes(set));
        // No more is made of them when producers and consumers are brought together.
        let needed = sets.iter().sum::<u64>();
        let charged = coming.charge.grow(needed);
        charged.map_err(|why| TableError::Exhausted { name: name.to_owned(), why })?;
        let decode = |bytes: &[u8]| {
            RowSet::decode(bytes).map_err(|error| TableError::OutOfTurn { what: error.to_string() })
        };
        let sets = Arc::new((decode(&coming.produce)?, decode(&coming.consume)?));
        let mut charge = std::mem::take(&mut coming.charge);
        let mut encoded = coming.produce;
        encoded.shrink_to_fit();
        charge.shrink_to(TABLE_BYTES + needed + encoded.len() as u64);
        let Some(table) = self.tables.get_mut(name) else { return Ok(()) };
        let Some(declaration) = table.workers.get_mut(&rank) else { return Ok(()) };
        if let Some(before) = declaration.sets.as_ref().filter(|_| table.told) {
            let (produce, consume) = &**before;
            let differs =
                |before, now, what| TableError::rows_differ(name, before, now, what).map_or(Ok(()), Err);
            return differs(produce, &sets.0, "produced")
                .and_then(|()| differs(consume, &sets.1, "consumed"));
        }
        // A call that is repeated says the same: what has been gone over of it stays.
        if declaration.sets.as_ref().is_some_and(|before| *before == sets) {
            return Ok(());
        }
        (declaration.sets, declaration.encoded, declaration.charge) = (Some(sets), encoded, charge);
        table.matched = Matched::Not;
        if let Err(error) = table.check(rank) {
            table.failed.get_or_insert(error);
        }
        Ok(())
    }

    /// The number of the table of this name.
    pub fn id(&self, name: &str) -> Option<TableId> {
        Some(self.tables.get(name)?.id)
    }

    /// A worker has mapped, or subscribed to, what it needs of a table.
    pub fn get_ready(&mut self, rank: Rank, name: &str) {
        self.tables.get_mut(name).into_iter().for_each(|table| _ = table.ready.insert(rank));
    }

    /// Rows that a worker which is not among `live` any more was to produce of tables that it was never told it may use, as it was
    /// not ready for them, or others are not so far: it has set none of them.
    pub fn never_set(&self, rank: Rank, live: &BTreeSet<Rank>) -> impl Iterator<Item = (&str, &RowSet)> {
        let told = move |table: &Table| table.ready.contains(&rank) && live.is_subset(&table.ready);
        self.tables.iter().filter(move |(_, table)| table.failed.is_none() && !told(table)).filter_map(
            move |(name, table)| {
                let (produce, _) = &**table.workers.get(&rank)?.sets.as_ref()?;
                (!produce.is_empty()).then_some((&name[..], produce))
            },
        )
    }

    /// Workers that have.
    pub fn ready(&self, name: &str) -> Option<&BTreeSet<Rank>> {
        self.tables.get(name).map(|table| &table.ready)
    }

    /// Whether a table of this name has the number, and `rank` has declared it.
    pub fn is(&self, name: &str, id: TableId, rank: Rank) -> bool {
        self.tables.get(name).is_some_and(|table| table.id == id && table.workers.contains_key(&rank))
    }

    /// All have dropped a table: its name is free.
    pub fn remove(&mut self, name: &str, id: TableId) {
        if self.tables.get(name).is_some_and(|table| table.id == id) {
            self.tables.remove(name);
            self.names.remove(&id);
        }
    }

    /// What a partition at server `home` holds, for workers on its producer's host; `None` if no worker was told of
    /// such a partition.
    pub fn shape(&self, partition: PartitionId, home: u32) -> Option<Shape> {
        let table = self.tables.get(self.names.get(&partition.table)?).filter(|table| table.told)?;
        let declared = table.workers.get(&partition.rank).filter(|it| it.near && it.home == home)?;
        let (produce, _) = &**declared.sets.as_ref().filter(|sets| !sets.0.is_empty())?;
        let TableSpec { row_bytes, propagation, .. } = table.spec;
        Some(Shape { slots: produce.len() as u32, row_bytes, propagation })
    }

    /// Brings producers and consumers of a table together, as soon as all live workers have declared it and as far as `work`
    /// allows: once for all that wait for it.
    ///
    /// Rows that no worker produces count as those of a worker that was lost before it declared the table, if there is one: where
    /// the others may go on without it, they go on without its rows.
    pub fn settle(&mut self, name: &str, members: &Members, work: &mut Work) -> Settled {
        let Some(table) = self.tables.get_mut(name) else { return Settled::Lacking };
        if table.failed.is_some() {
            return Settled::Known;
        }
        if !members.live.iter().all(|&rank| table.has(rank)) {
            return Settled::Lacking;
        }
        match table.settle(members, &self.account, work) {
            Ok((settled, inherited)) => {
                self.inherited.extend(inherited);
                settled
            }
            Err(error) => {
                table.matched = Matched::Not;
                table.failed = Some(error);
                Settled::Known
            }
        }
    }

    /// What to answer a worker that waits for a table: nothing as long as that is not [known](Self::settle).
    pub fn joined(&mut self, rank: Rank, name: &str) -> Option<Result<Joined, TableError>> {
        if let Err(error) = self.tell_failure(rank, name) {
            return Some(Err(error));
        }
        let table = self.tables.get(name)?;
        let Matched::All(sources) = &table.matched else { return None };
        let producer = |rank: Rank| {
            let declared = table.workers.get(&rank)?;
            let slots = declared.sets.as_ref()?.0.len() as u32;
            Some(Producer { rank, slots, home: declared.home, near: declared.near })
        };
        let producers = sources.of(rank)?.into_iter().filter_map(producer).collect();
        Some(Ok(Joined { id: table.id, producers }))
    }

    /// Tells a worker why a table cannot be, if that is known.
    pub fn tell_failure(&mut self, rank: Rank, name: &str) -> Result<(), TableError> {
        match self.tables.get_mut(name) {
            Some(Table { failed: Some(error), heard, .. }) => {
                heard.insert(rank);
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }

    /// Workers that have not declared a table yet.
    pub fn missing(&self, name: &str, live: &BTreeSet<Rank>) -> Vec<Rank> {
        let Some(table) = self.tables.get(name) else { return live.iter().copied().collect() };
        let declared = |rank: &&Rank| table.workers.get(rank).is_none_or(|worker| worker.sets.is_none());
        live.iter().filter(declared).copied().collect()
    }

    /// Rows that `producer` produces, encoded.
    pub fn produced(&self, name: &str, producer: Rank) -> Option<&[u8]> {
        let declared = self.tables.get(name)?.workers.get(&producer)?;
        declared.sets.as_ref().map(|_| &declared.encoded[..])
    }

    /// Rows that were given to workers that were lost, since this was asked last.
    pub fn take_inherited(&mut self) -> Vec<Inherited> {
        std::mem::take(&mut self.inherited)
    }
}

impl Table {
    /// Forgets a declaration that failed, once all that made it have heard so and one of them makes it anew: what was wrong may
    /// be right now. No worker was ever told of the table.
    fn start_over(&mut self, rank: Rank, spec: &TableSpec, live: &BTreeSet<Rank>) {
        if self.failed.is_none() || !self.heard.contains(&rank) || self.unheard(live).next().is_some() {
            return;
        }
        self.spec = spec.clone();
        self.failed = None;
        self.workers.clear();
        self.heard.clear();
        self.matched = Matched::Not;
    }

    /// Whether a worker has declared it.
    fn has(&self, rank: Rank) -> bool {
        self.workers.get(&rank).is_some_and(|worker| worker.sets.is_some())
    }

    /// Workers that declared it, are here, and have not heard that it failed.
    fn unheard(&self, live: &BTreeSet<Rank>) -> impl Iterator<Item = Rank> {
        self.workers.keys().copied().filter(|rank| live.contains(rank) && !self.heard.contains(rank))
    }

    /// What is wrong with a worker's rows, whatever those of the others are.
    fn check(&self, rank: Rank) -> Result<(), TableError> {
        let name = || self.spec.name.clone();
        let Some(sets) = self.workers.get(&rank).and_then(|worker| worker.sets.as_ref()) else {
            return Ok(());
        };
        for (set, what) in [(&sets.0, "produced"), (&sets.1, "consumed")] {
            if set.end() > self.spec.rows {
                let (rows, got) = (self.spec.rows, set.end() - 1);
                return Err(TableError::RowOutOfRange { name: name(), rows, got, what: what.to_owned() });
            }
            if set.len() > MAX_OWN_ROWS {
                return Err(TableError::TooManyRows { name: name(), what: what.to_owned(), got: set.len() });
            }
        }
        Ok(())
    }

    fn settle(
        &mut self,
        members: &Members,
        account: &Account,
        work: &mut Work,
    ) -> Result<(Settled, Option<Inherited>), TableError> {
        let name = || self.spec.name.clone();
        let exhausted = |why: Exhausted| TableError::Exhausted { name: name(), why };
        // Once workers were told, rows without a producer have one.
        let heir = members.lost.iter().copied().find(|&rank| !self.told && !self.has(rank));
        let mut sweep = match std::mem::take(&mut self.matched) {
            Matched::All(sources) => {
                self.matched = Matched::All(sources);
                return Ok((Settled::Known, None));
            }
            // It may have begun before there was an heir.
            Matched::Partly(sweep) if sweep.lists_orphans() || heir.is_none() => sweep,
            _ => {
                let sets = self.workers.iter();
                let sets = sets.filter_map(|(&rank, worker)| Some((rank, Arc::clone(worker.sets.as_ref()?))));
                let shared = self.spec.sum.is_some();
                let sweep = Sweep::new(sets.collect(), shared, heir.is_some(), account);
                Box::new(sweep.map_err(exhausted)?)
            }
        };
        let done = sweep.go_on(work).map_err(|wrong| match wrong {
            Wrong::Both { row, first, second } => {
                TableError::TwoProducers { name: name(), row, first, second }
            }
            Wrong::Exhausted(why) => exhausted(why),
        });
        if !done? {
            self.matched = Matched::Partly(sweep);
            return Ok((Settled::Partly, None));
        }
        let orphan = sweep.orphan().filter(|_| !self.told);
        let inherited = orphan.map(|orphan| self.inherit(orphan, heir, &mut sweep, members)).transpose()?;
        self.matched = Matched::All(sweep.into_sources(inherited.as_ref().map(|it| it.rank)));
        self.told = true;
        // Where not one place is left for the job to take it before that is given back, it stays the worker's.
        if let Ok(place) = account.charge(Resource::Tables, 1) {
            self.place = place;
        }
        Ok((Settled::Known, inherited))
    }

    /// Gives rows that are consumed and that no worker produces to a worker that was lost, and says which; without such a worker
    /// they are refused.
    fn inherit(
        &mut self,
        orphan: Orphan,
        heir: Option<Rank>,
        sweep: &mut Sweep,
        members: &Members,
    ) -> Result<Inherited, TableError> {
        let orphans = sweep.take_orphans().filter(|(orphans, _)| orphans.len() <= MAX_OWN_ROWS);
        let (Some(heir), Some((orphans, mut charge))) = (heir, orphans) else {
            let gone = members.left.union(&members.lost).copied();
            let gone: BTreeSet<Rank> = gone.filter(|&rank| !self.has(rank)).collect();
            let (name, gone) = (self.spec.name.clone(), gone.into_iter().collect());
            let Orphan { consumer: rank, row } = orphan;
            return Err(TableError::NoProducer { name, row, rank, gone });
        };
        // At the home of a consumer that can map them, if there is one.
        let consumers = || sweep.orphaned().filter_map(|rank| self.workers.get(&rank));
        let host = consumers().find(|worker| worker.near).or_else(|| consumers().next());
        let (home, near) = host.map_or((0, false), |worker| (worker.home, worker.near));
        let inherited = Inherited { name: self.spec.name.clone(), rank: heir, rows: orphans.clone() };
        let encoded = orphans.encode();
        // As long as who looks on has the other one, both.
        charge.shrink_to(TABLE_BYTES + 2 * orphans.kept_bytes() + encoded.len() as u64);
        let sets = Some(Arc::new((orphans, RowSet::default())));
        self.workers.insert(heir, Declaration { sets, encoded, home, near, charge, coming: None });
        Ok(inherited)
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Propagation;
    use super::*;
    use crate::account::Limits;

    impl Registry {
        /// What a worker that waits is told, however much there is to do for it.
        fn told(&mut self, rank: Rank, name: &str, members: &Members) -> Option<Result<Joined, TableError>> {
            let mut work = Work::MAX;
            match self.settle(name, members, &mut work) {
                Settled::Known => self.joined(rank, name),
                Settled::Lacking | Settled::Partly => None,
            }
        }
    }

    fn spec() -> TableSpec {
        let (name, propagation) = ("U".to_owned(), Propagation::Eager);
        TableSpec { name, rows: 10, row_bytes: 8, sum: None, propagation, holds: String::new() }
    }

    fn all() -> BTreeSet<Rank> {
        (0..3).collect()
    }

    fn declare(registry: &mut Registry, rank: Rank, spec: &TableSpec, produce: &[u64], consume: &[u64]) {
        registry.begin(rank, spec, rank, true, &all()).unwrap();
        for (part, rows) in [(Part::Produce, produce), (Part::Consume, consume)] {
            let bytes = RowSet::from_rows(rows.iter().copied()).encode();
            for half in bytes.chunks(1) {
                registry.part(rank, &spec.name, part, half).unwrap();
            }
        }
        registry.end(rank, &spec.name).unwrap();
    }

    #[test]
    fn a_worker_is_told_of_the_producers_that_concern_it_once_all_have_declared() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1, 2]));
        declare(&mut registry, 0, &spec(), &[0, 1, 2], &[5]);
        declare(&mut registry, 1, &spec(), &[5, 6], &[]);
        assert_eq!(registry.told(0, "U", &live), None);
        assert_eq!(registry.missing("U", &live.live), [2]);
        declare(&mut registry, 2, &spec(), &[], &[0, 6]);
        let ranks = |joined: Option<Result<Joined, TableError>>| -> Vec<Rank> {
            joined.unwrap().unwrap().producers.iter().map(|producer| producer.rank).collect()
        };
        assert_eq!(ranks(registry.told(0, "U", &live)), [0, 1]);
        assert_eq!(ranks(registry.told(1, "U", &live)), [1]);
        assert_eq!(ranks(registry.told(2, "U", &live)), [0, 1]);
        assert_eq!(registry.produced("U", 1), Some(&RowSet::from_rows([5, 6]).encode()[..]));
    }

    // One whose time was up while it waited for the others had said that it is ready, and was not named.
    #[test]
    fn who_goes_before_it_was_told_that_it_may_use_a_table_has_set_none_of_its_rows() {
        let mut registry = Registry::default();
        for rank in 0..3 {
            let produce = if rank == 2 { vec![] } else { vec![u64::from(rank)] };
            declare(&mut registry, rank, &spec(), &produce, &[]);
        }
        let never_set = |registry: &Registry, rank, others: [Rank; 2]| {
            registry.never_set(rank, &others.into()).map(|(_, rows)| rows.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(never_set(&registry, 0, [1, 2]), ["0"]);
        registry.get_ready(0, "U");
        assert_eq!(never_set(&registry, 0, [1, 2]), ["0"], "the others are not ready");
        registry.get_ready(1, "U");
        assert_eq!(never_set(&registry, 0, [1, 2]), ["0"], "worker 2 is not ready");
        assert!(never_set(&registry, 2, [0, 1]).is_empty(), "it has no rows");
        registry.get_ready(2, "U");
        assert!(never_set(&registry, 0, [1, 2]).is_empty(), "it may have set them");
    }

    // Each part that was asked for was cut out of the whole set, encoded anew: the thread that keeps the leases did nothing else.
    #[test]
    fn rows_that_are_asked_for_part_by_part_were_encoded_once() {
        let (mut registry, account) = (Registry::default(), Account::default());
        registry.account = account.clone();
        declare(&mut registry, 0, &spec(), &[0, 2, 4], &[]);
        let first = registry.produced("U", 0).map(<[u8]>::as_ptr);
        assert_eq!(registry.produced("U", 0).map(<[u8]>::as_ptr), first);
        let kept = account.taken(Resource::Bytes);
        declare(&mut registry, 0, &spec(), &[0, 2, 4], &[]);
        assert_eq!(account.taken(Resource::Bytes), kept, "what stands again is charged once");
        registry.remove("U", 0);
        assert_eq!((account.taken(Resource::Bytes), registry.produced("U", 0)), (0, None));
    }

    // They were looked at one by one.
    #[test]
    fn a_row_without_a_producer_is_found_behind_two_billion_that_have_one() {
        let mut registry = Registry::default();
        let wide = TableSpec { rows: 1 << 40, ..spec() };
        registry.begin(0, &wide, 0, true, &all()).unwrap();
        for (part, end) in [(Part::Produce, MAX_OWN_ROWS - 1), (Part::Consume, MAX_OWN_ROWS)] {
            let bytes = RowSet::from_ranges(std::iter::once(0..end)).encode();
            registry.part(0, "U", part, &bytes).unwrap();
        }
        registry.end(0, "U").unwrap();
        let error = registry.told(0, "U", &Members::of([0])).unwrap().unwrap_err();
        assert!(matches!(error, TableError::NoProducer { row, .. } if row == MAX_OWN_ROWS - 1), "{error}");
    }

    // Each worker's ranges were looked for among those of each other, twice, and again whenever one asked.
    #[test]
    fn rows_in_many_ranges_are_gone_over_once_and_not_for_each_worker() {
        const WORKERS: u64 = 28;
        const RANGES: u64 = 200;
        let (mut registry, live) = (Registry::default(), Members::of(0..WORKERS as Rank));
        let wide = TableSpec { rows: WORKERS * RANGES, ..spec() };
        let dealt = |to: u64| (0..RANGES).map(|turn| turn * WORKERS + to % WORKERS).collect::<Vec<_>>();
        for rank in 0..WORKERS {
            declare(&mut registry, rank as Rank, &wide, &dealt(rank), &dealt(rank + 1));
        }
        let ends = 2 * 2 * WORKERS * RANGES;
        let (mut work, mut turns) = (0, 0);
        loop {
            let mut left = 100;
            let settled = registry.settle("U", &live, &mut left);
            (work, turns) = (work + 100 - left, turns + 1);
            if settled == Settled::Known {
                break;
            }
            assert_eq!((settled, registry.joined(0, "U")), (Settled::Partly, None));
        }
        assert_eq!((work, turns), (ends, ends / 100), "each end of a range once, in turns that end");
        for rank in (0..WORKERS as Rank).chain([0; 10]) {
            assert_eq!(registry.settle("U", &live, &mut 0), Settled::Known, "nothing more is looked at");
            let producers = registry.joined(rank, "U").unwrap().unwrap().producers;
            let mut expected = [rank, (rank + 1) % WORKERS as Rank];
            expected.sort_unstable();
            assert_eq!(producers.iter().map(|it| it.rank).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn rows_that_change_while_they_are_gone_over_are_gone_over_anew() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        declare(&mut registry, 0, &spec(), &[0, 2, 4], &[]);
        declare(&mut registry, 1, &spec(), &[1, 3], &[0]);
        assert_eq!(registry.settle("U", &live, &mut 5), Settled::Partly);
        declare(&mut registry, 1, &spec(), &[0, 3], &[0]);
        let error = registry.told(0, "U", &live).unwrap().unwrap_err();
        assert!(matches!(error, TableError::TwoProducers { row: 0, first: 0, second: 1, .. }), "{error}");
    }

    #[test]
    fn an_heir_may_appear_while_rows_are_gone_over() {
        let mut registry = Registry::default();
        declare(&mut registry, 0, &spec(), &[0, 2], &[0, 5, 7]);
        assert_eq!(registry.settle("U", &Members::of([0]), &mut 5), Settled::Partly);
        let members = Members { lost: [1].into(), ..Members::of([0]) };
        let producers = registry.told(0, "U", &members).unwrap().unwrap().producers;
        assert_eq!(producers.iter().map(|it| (it.rank, it.slots)).collect::<Vec<_>>(), [(0, 2), (1, 2)]);
    }

    #[test]
    fn where_there_is_no_memory_to_bring_workers_together_all_of_them_hear_so() {
        let mut registry = Registry::default();
        for rank in [0, 1] {
            declare(&mut registry, rank, &spec(), &[rank.into()], &[0]);
        }
        registry.account = Account::new(Limits::NONE.with(Resource::Bytes, 16));
        for rank in [0, 1] {
            let told = registry.told(rank, "U", &Members::of([0, 1]));
            assert!(matches!(told, Some(Err(TableError::Exhausted { .. }))), "{told:?}");
        }
    }

    // It could take all of them, and the others were told that there were too many tables, and not whose.
    #[test]
    fn who_begins_tables_that_nobody_else_declares_leaves_the_others_theirs() {
        let account = Account::new(Limits::NONE.with(Resource::Tables, 100));
        let mut registry = Registry::charged_to(account.clone());
        let named = |name: String| TableSpec { name, ..spec() };
        let begin =
            |registry: &mut Registry, rank, name| registry.begin(rank, &named(name), rank, true, &all());
        let refused = (0..100).find_map(|at| begin(&mut registry, 0, format!("t{at}")).err()).unwrap();
        let TableError::Exhausted { why, .. } = refused else { panic!("{refused}") };
        assert_eq!((why.resource, account.taken(Resource::Tables)), (Resource::Tables, 80));
        begin(&mut registry, 0, "t7".to_owned()).unwrap();
        // The others go on: what both have declared counts for neither of them.
        let live = Members::of([1, 2]);
        for at in 0..18 {
            let its = named(format!("u{at}"));
            [1, 2].into_iter().for_each(|rank| declare(&mut registry, rank, &its, &[rank.into()], &[1]));
            assert!(registry.told(1, &its.name, &live).unwrap().is_ok());
            assert_eq!(account.worker(1).taken(Resource::Tables), 0, "all know of it: it is the job's");
        }
        assert_eq!(account.taken(Resource::Tables), 98);
        let id = registry.id("u0").unwrap();
        registry.remove("u0", id);
        assert_eq!(account.taken(Resource::Tables), 97);
    }

    // Who was ready for a table that was given up counted as ready for the next of its name.
    #[test]
    fn who_was_ready_for_a_table_that_is_no_more_is_not_for_the_next_of_its_name() {
        let account = Account::new(Limits::NONE.with(Resource::Bytes, 1 << 20));
        let mut registry = Registry::charged_to(account);
        registry.begin(0, &spec(), 0, true, &all()).unwrap();
        registry.get_ready(1, "U");
        assert_eq!(registry.ready("U"), Some(&[1].into()));
        while registry.part(0, "U", Part::Produce, &[1; 4096]).is_ok() {}
        assert!(!registry.knows("U"), "there is no memory for it");
        registry.begin(0, &spec(), 0, true, &all()).unwrap();
        assert_eq!(registry.ready("U"), Some(&BTreeSet::new()));
    }

    #[test]
    fn only_a_partition_that_workers_were_told_of_has_a_shape() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        declare(&mut registry, 0, &spec(), &[0, 1, 2], &[]);
        let at = |table, rank| PartitionId { table, rank };
        assert_eq!(registry.shape(at(0, 0), 0), None, "nobody was told");
        declare(&mut registry, 1, &spec(), &[], &[0]);
        assert!(registry.told(1, "U", &live).unwrap().is_ok());
        let shape = Shape { slots: 3, row_bytes: 8, propagation: Propagation::Eager };
        assert_eq!(registry.shape(at(0, 0), 0), Some(shape));
        for (partition, home) in [(at(0, 0), 1), (at(0, 1), 1), (at(0, 2), 0), (at(1, 0), 0)] {
            assert_eq!(registry.shape(partition, home), None, "{partition:?} at server {home}");
        }
        registry.remove("U", 0);
        assert_eq!(registry.shape(at(0, 0), 0), None, "it was dropped");
    }

    #[test]
    fn who_gave_up_waiting_declares_again_and_gets_the_same_table() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        declare(&mut registry, 0, &spec(), &[0], &[1]);
        assert_eq!(registry.told(0, "U", &live), None);
        // It gave up, and asks for other rows: no worker has been told of the first ones.
        declare(&mut registry, 0, &spec(), &[0, 2], &[1]);
        declare(&mut registry, 1, &spec(), &[1], &[2]);
        let joined = registry.told(1, "U", &live).unwrap().unwrap();
        assert_eq!(
            joined.producers.iter().map(|one| (one.rank, one.slots)).collect::<Vec<_>>(),
            [(0, 2), (1, 1)]
        );
        // Now that a worker knows, the same again is the same table, also while it is being told.
        registry.begin(0, &spec(), 0, true, &all()).unwrap();
        assert!(registry.told(1, "U", &live).unwrap().is_ok());
        declare(&mut registry, 0, &spec(), &[0, 2], &[1]);
        assert_eq!(registry.told(0, "U", &live).unwrap().unwrap().id, joined.id);
        registry.begin(0, &spec(), 0, true, &all()).unwrap();
        let refused = registry.end(0, "U").unwrap_err();
        assert!(matches!(refused, TableError::DeclaredTwice { .. }), "{refused}");
        assert!(registry.told(0, "U", &live).unwrap().is_ok(), "what was refused has changed nothing");
    }

    #[test]
    fn a_declaration_that_failed_is_made_anew_once_all_who_made_it_have_heard() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        let fails = |registry: &mut Registry, rank| {
            let error = registry.told(rank, "U", &live).unwrap().unwrap_err();
            assert!(matches!(error, TableError::NoProducer { row: 4, .. }), "{error}");
        };
        declare(&mut registry, 0, &spec(), &[0], &[1]);
        declare(&mut registry, 1, &spec(), &[1], &[4]);
        fails(&mut registry, 1);
        // Worker 0 still waits: it has to hear what became of what it said.
        let refused = registry.begin(1, &spec(), 1, true, &all()).unwrap_err();
        let TableError::NotAllTold { why, ranks, .. } = &refused else { panic!("{refused}") };
        assert!(why.contains("row 4") && *ranks == [0], "{refused}");
        fails(&mut registry, 1);
        fails(&mut registry, 0);
        let wider = TableSpec { row_bytes: 16, ..spec() };
        declare(&mut registry, 1, &wider, &[1, 4], &[4]);
        assert_eq!(registry.told(1, "U", &live), None, "what worker 0 said before does not count any more");
        declare(&mut registry, 0, &wider, &[0], &[1]);
        assert!(
            registry.told(0, "U", &live).unwrap().is_ok() && registry.told(1, "U", &live).unwrap().is_ok()
        );
    }

    #[test]
    fn a_declaration_for_which_there_is_no_memory_keeps_none() {
        for too_long in [Part::Produce, Part::Consume] {
            let account = Account::new(Limits::NONE.with(Resource::Bytes, 1 << 20));
            let mut registry = Registry::charged_to(account.clone());
            declare(&mut registry, 0, &spec(), &[0], &[0]);
            let before = account.taken(Resource::Bytes);
            let other = TableSpec { name: "V".to_owned(), ..spec() };
            for name in ["V", "U"] {
                let begun =
                    registry.begin(1, &TableSpec { name: name.to_owned(), ..spec() }, 0, true, &all());
                begun.unwrap();
                let refused = (0..1000).find_map(|_| registry.part(1, name, too_long, &[1; 4096]).err());
                assert!(matches!(refused, Some(TableError::Exhausted { .. })), "{refused:?}");
                assert_eq!(account.taken(Resource::Bytes), before, "of {name}");
            }
            let little = Account::new(Limits::NONE.with(Resource::Bytes, TABLE_BYTES * 8 / 5));
            let mut empty = Registry::charged_to(little.clone());
            assert!(empty.begin(1, &spec(), 0, true, &all()).is_err());
            assert!(!empty.knows("U") && little.taken(Resource::Bytes) == 0);
            // It declares something else, and the others' tables are what they were.
            registry.begin(1, &TableSpec { row_bytes: 16, ..other }, 0, true, &all()).unwrap();
            assert_eq!(registry.missing("U", &all()), [1, 2]);
        }
    }

    #[test]
    fn declarations_that_differed_may_agree_the_next_time() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        let wider = TableSpec { row_bytes: 16, ..spec() };
        declare(&mut registry, 0, &spec(), &[0], &[0]);
        assert!(matches!(registry.begin(1, &wider, 0, true, &all()), Err(TableError::Differs { .. })));
        assert!(registry.told(0, "U", &live).unwrap().is_err());
        for rank in [1, 0] {
            declare(&mut registry, rank, &wider, &[rank.into()], &[0]);
        }
        assert!(registry.told(0, "U", &live).unwrap().is_ok());
    }

    // Its new sets went with those of the worker that heard last, and it was told that it waited for itself.
    #[test]
    fn who_makes_a_failed_declaration_anew_too_early_is_refused_and_loses_nothing_later() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        let wider = TableSpec { row_bytes: 16, ..spec() };
        declare(&mut registry, 0, &spec(), &[0], &[1]);
        assert!(registry.begin(1, &wider, 1, true, &live.live).is_err());
        assert!(registry.begin(1, &spec(), 1, true, &live.live).is_err(), "worker 0 has not heard");
        assert!(registry.told(0, "U", &live).unwrap().is_err());
        declare(&mut registry, 1, &spec(), &[1], &[0]);
        declare(&mut registry, 0, &spec(), &[0], &[1]);
        for rank in [0, 1] {
            assert!(registry.told(rank, "U", &live).unwrap().is_ok(), "worker {rank}");
        }
    }

    #[test]
    fn who_was_lost_before_it_heard_of_a_failure_keeps_nobody_from_declaring_anew() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1, 2]));
        for (rank, produce) in [(0, &[0u64][..]), (1, &[1]), (2, &[])] {
            declare(&mut registry, rank, &spec(), produce, &[4]);
        }
        for rank in [0, 1] {
            assert!(registry.told(rank, "U", &live).unwrap().is_err());
        }
        let live = Members { lost: [2].into(), ..Members::of([0, 1]) };
        for rank in [0, 1] {
            let begun = registry.begin(rank, &spec(), rank, true, &live.live);
            assert!(begun.is_ok(), "worker {rank}: {begun:?}");
        }
    }

    // It failed for all that asked again, though some had it.
    #[test]
    fn who_declares_otherwise_what_others_have_is_refused_alone() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        let wider = TableSpec { row_bytes: 16, ..spec() };
        for rank in [0, 1] {
            declare(&mut registry, rank, &spec(), &[rank.into()], &[0]);
        }
        assert!(registry.told(0, "U", &live).unwrap().is_ok());
        assert!(matches!(registry.begin(1, &wider, 1, true, &live.live), Err(TableError::Differs { .. })));
        declare(&mut registry, 1, &spec(), &[1], &[0]);
        assert!(registry.told(1, "U", &live).unwrap().is_ok());
    }

    #[test]
    fn a_name_that_all_have_dropped_is_free_for_another_table() {
        let (mut registry, live) = (Registry::default(), Members::of([0]));
        declare(&mut registry, 0, &spec(), &[0], &[]);
        let before = registry.told(0, "U", &live).unwrap().unwrap().id;
        registry.remove("U", before + 1);
        assert!(registry.told(0, "U", &live).is_some(), "another table's number");
        registry.remove("U", before);
        let wider = TableSpec { row_bytes: 16, ..spec() };
        declare(&mut registry, 0, &wider, &[0], &[]);
        assert_ne!(registry.told(0, "U", &live).unwrap().unwrap().id, before);
    }

    #[test]
    fn a_worker_that_is_gone_is_not_waited_for() {
        let mut registry = Registry::default();
        declare(&mut registry, 0, &spec(), &[0], &[0]);
        assert!(registry.told(0, "U", &Members::of([0])).unwrap().is_ok());
    }

    #[test]
    fn rows_of_one_that_was_lost_before_it_declared_them_are_its_all_the_same() {
        let mut registry = Registry::default();
        declare(&mut registry, 0, &spec(), &[0, 1], &[0, 1, 2, 4]);
        declare(&mut registry, 2, &spec(), &[4, 5], &[0, 6]);
        let members = Members { lost: [1].into(), ..Members::of([0, 2]) };
        let heir = |rank| Producer { rank: 1, slots: 2, home: rank, near: true };
        for rank in [0, 2] {
            let producers = registry.told(rank, "U", &members).unwrap().unwrap().producers;
            assert!(producers.contains(&heir(0)), "{rank}: {producers:?}");
        }
        let rows = RowSet::from_rows([2, 6]);
        assert_eq!(registry.produced("U", 1), Some(&rows.encode()[..]));
        let inherited = Inherited { name: "U".to_owned(), rank: 1, rows };
        assert_eq!(registry.take_inherited(), [inherited], "whoever looks on is told of it, once");
    }

    #[test]
    fn who_left_without_declaring_a_table_is_named_where_its_rows_are_missing() {
        let mut registry = Registry::default();
        declare(&mut registry, 0, &spec(), &[0], &[0, 1]);
        let members = Members { left: [2].into(), ..Members::of([0]) };
        let error = registry.told(0, "U", &members).unwrap().unwrap_err();
        assert_eq!(error, TableError::NoProducer { name: "U".to_owned(), row: 1, rank: 0, gone: vec![2] });
        assert!(error.to_string().contains("workers [2] left before they declared the table"), "{error}");
    }

    #[test]
    fn all_hear_of_two_producers_of_a_row_and_a_sum_may_have_them() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        declare(&mut registry, 0, &spec(), &[3, 4], &[]);
        declare(&mut registry, 1, &spec(), &[4], &[]);
        for rank in [0, 1] {
            let error = registry.told(rank, "U", &live).unwrap().unwrap_err();
            let expected = TableError::TwoProducers { name: "U".to_owned(), row: 4, first: 0, second: 1 };
            assert_eq!(error, expected);
        }
        let sum = TableSpec { name: "S".to_owned(), sum: Some(penstock_kernels::Dtype::F64), ..spec() };
        declare(&mut registry, 0, &sum, &[3, 4], &[]);
        declare(&mut registry, 1, &sum, &[4], &[3, 4]);
        assert!(registry.told(1, "S", &live).unwrap().is_ok());
    }

    #[test]
    fn declarations_that_make_no_sense_are_refused_by_name() {
        let (mut registry, live) = (Registry::default(), Members::of([0, 1]));
        declare(&mut registry, 0, &spec(), &[1], &[2]);
        declare(&mut registry, 1, &spec(), &[], &[]);
        let error = registry.told(1, "U", &live).unwrap().unwrap_err();
        assert_eq!(error, TableError::NoProducer { name: "U".to_owned(), row: 2, rank: 0, gone: Vec::new() });
        let other = TableSpec { row_bytes: 16, ..spec() };
        assert!(matches!(registry.begin(1, &other, 0, true, &all()), Err(TableError::Differs { .. })));
        assert!(matches!(registry.end(1, "V"), Err(TableError::OutOfTurn { .. })));
        let far = TableSpec { name: "F".to_owned(), ..spec() };
        declare(&mut registry, 0, &far, &[10], &[]);
        let error = registry.told(0, "F", &Members::of([0])).unwrap().unwrap_err();
        assert!(matches!(error, TableError::RowOutOfRange { got: 10, .. }));
    }
}
