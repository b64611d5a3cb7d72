//! The first server's book of tables: takes each worker's rows in parts, and when all have declared says who produces what.

use super::rows::RowSet;
use super::spec::{MAX_OWN_ROWS, MAX_TABLES, TableError, TableId, TableSpec};
use crate::Rank;
use crate::account::{Account, Charge, Exhausted, Resource};
use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

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
    /// Rows that it produces: slots of its region.
    pub slots: u32,
    /// The server that its region is homed at.
    pub home: u32,
    /// Whether it is on that server's host, so that others there map its region.
    pub near: bool,
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
    produce: Vec<u8>,
    consume: Vec<u8>,
    sets: Option<(RowSet, RowSet)>,
    home: u32,
    near: bool,
    /// For the bytes, then for the sets.
    charge: Charge,
}

#[derive(Debug)]
struct Table {
    id: TableId,
    spec: TableSpec,
    workers: BTreeMap<Rank, Declaration>,
    failed: Option<TableError>,
    _charge: Charge,
}

/// All tables of a job.
#[derive(Debug, Default)]
pub struct Registry {
    account: Account,
    tables: BTreeMap<String, Table>,
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

    /// A worker begins to declare a table, or repeats that it does.
    pub fn begin(&mut self, rank: Rank, spec: &TableSpec, home: u32, near: bool) -> Result<(), TableError> {
        spec.check()?;
        let id = self.tables.len() as TableId;
        if !self.tables.contains_key(&spec.name) && id >= MAX_TABLES {
            return Err(TableError::TooManyTables);
        }
        let peer = self.account.peer(rank);
        let exhausted = |why: Exhausted| TableError::Exhausted { name: spec.name.clone(), why };
        let table = match self.tables.entry(spec.name.clone()) {
            Entry::Occupied(table) => table.into_mut(),
            Entry::Vacant(place) => place.insert(Table {
                id,
                spec: spec.clone(),
                workers: BTreeMap::new(),
                failed: None,
                _charge: peer.charge(Resource::Bytes, TABLE_BYTES).map_err(exhausted)?,
            }),
        };
        // A declaration that differs fails for all: the others would wait for this worker for ever.
        if let Err(error) = table.spec.compare(spec) {
            table.failed.get_or_insert_with(|| error.clone());
            return Err(error);
        }
        if table.workers.get(&rank).is_some_and(|declared| declared.sets.is_some()) {
            return Err(TableError::DeclaredTwice { name: spec.name.clone() });
        }
        let charge = peer.charge(Resource::Bytes, TABLE_BYTES).map_err(exhausted)?;
        table.workers.insert(rank, Declaration { home, near, charge, ..Declaration::default() });
        Ok(())
    }

    /// More bytes of a worker's encoded rows.
    pub fn part(&mut self, rank: Rank, name: &str, part: Part, bytes: &[u8]) -> Result<(), TableError> {
        let declaration = self.open(rank, name)?;
        let set = match part {
            Part::Produce => &mut declaration.produce,
            Part::Consume => &mut declaration.consume,
        };
        if set.len() + bytes.len() > MAX_SET_BYTES {
            return Err(TableError::OutOfTurn { what: "a longer set of rows than any".to_owned() });
        }
        // Where a vector grows it is twice as long, and there twice.
        let charged = declaration.charge.grow(3 * bytes.len() as u64);
        charged.map_err(|why| TableError::Exhausted { name: name.to_owned(), why })?;
        set.extend_from_slice(bytes);
        Ok(())
    }

    fn open(&mut self, rank: Rank, name: &str) -> Result<&mut Declaration, TableError> {
        let declaration = self.tables.get_mut(name).and_then(|table| table.workers.get_mut(&rank));
        declaration.filter(|declaration| declaration.sets.is_none()).ok_or_else(|| TableError::OutOfTurn {
            what: format!("rows of table `{name}`, which was not begun"),
        })
    }

    /// A worker has told all its rows.
    pub fn end(&mut self, rank: Rank, name: &str) -> Result<(), TableError> {
        let declaration = self.open(rank, name)?;
        let sets = [&declaration.produce, &declaration.consume].map(|set| RowSet::decoded_bytes(set));
        // The sets, and what is made of them when producers and consumers are brought together.
        let needed = 2 * sets.iter().sum::<u64>();
        let charged = declaration.charge.grow(needed);
        charged.map_err(|why| TableError::Exhausted { name: name.to_owned(), why })?;
        let decode = |bytes: &[u8]| {
            RowSet::decode(bytes).map_err(|error| TableError::OutOfTurn { what: error.to_string() })
        };
        let sets = (decode(&declaration.produce)?, decode(&declaration.consume)?);
        (declaration.produce, declaration.consume) = (Vec::new(), Vec::new());
        declaration.charge.shrink_to(TABLE_BYTES + needed);
        declaration.sets = Some(sets);
        let Some(table) = self.tables.get_mut(name) else { return Ok(()) };
        if let Err(error) = table.check(rank) {
            table.failed.get_or_insert(error);
        }
        Ok(())
    }

    /// What to answer a worker that waits for the table: nothing as long as a live worker has not declared it.
    pub fn joined(
        &mut self,
        rank: Rank,
        name: &str,
        live: &BTreeSet<Rank>,
    ) -> Option<Result<Joined, TableError>> {
        let table = self.tables.get_mut(name)?;
        if let Some(error) = &table.failed {
            return Some(Err(error.clone()));
        }
        let declared = |rank: &Rank| table.workers.get(rank).is_some_and(|worker| worker.sets.is_some());
        if !live.iter().all(declared) {
            return None;
        }
        if let Err(error) = table.check_consumers() {
            table.failed = Some(error.clone());
            return Some(Err(error));
        }
        let consume = table.workers.get(&rank)?.sets.as_ref().map(|(_, consume)| consume)?;
        let concerns = |other: &Rank, produce: &RowSet| {
            !produce.is_empty() && (*other == rank || !produce.intersection(consume).is_empty())
        };
        let producers = table.workers.iter().filter_map(|(&other, declared)| {
            let (produce, _) = declared.sets.as_ref()?;
            let producer = Producer {
                rank: other,
                slots: produce.len() as u32,
                home: declared.home,
                near: declared.near,
            };
            concerns(&other, produce).then_some(producer)
        });
        Some(Ok(Joined { id: table.id, producers: producers.collect() }))
    }

    /// Those who have not declared a table yet.
    pub fn missing(&self, name: &str, live: &BTreeSet<Rank>) -> Vec<Rank> {
        let Some(table) = self.tables.get(name) else { return live.iter().copied().collect() };
        let declared = |rank: &&Rank| table.workers.get(rank).is_none_or(|worker| worker.sets.is_none());
        live.iter().filter(declared).copied().collect()
    }

    /// Rows that `producer` produces, encoded.
    pub fn produced(&self, name: &str, producer: Rank) -> Option<Vec<u8>> {
        let declared = self.tables.get(name)?.workers.get(&producer)?;
        declared.sets.as_ref().map(|(produce, _)| produce.encode())
    }
}

impl Table {
    fn check(&self, rank: Rank) -> Result<(), TableError> {
        let name = || self.spec.name.clone();
        let Some((produce, consume)) = self.workers.get(&rank).and_then(|worker| worker.sets.as_ref()) else {
            return Ok(());
        };
        for (set, what) in [(produce, "produced"), (consume, "consumed")] {
            if set.end() > self.spec.rows {
                let (rows, got) = (self.spec.rows, set.end() - 1);
                return Err(TableError::RowOutOfRange { name: name(), rows, got, what: what.to_owned() });
            }
            if set.len() > MAX_OWN_ROWS {
                return Err(TableError::TooManyRows { name: name(), what: what.to_owned(), got: set.len() });
            }
        }
        if self.spec.sum.is_some() {
            return Ok(());
        }
        let others = self.workers.iter().filter(|(other, _)| **other != rank);
        for (&other, declared) in others {
            let Some((theirs, _)) = &declared.sets else { continue };
            if let Some(row) = theirs.intersection(produce).iter().next() {
                let (first, second) = (rank.min(other), rank.max(other));
                return Err(TableError::TwoProducers { name: name(), row, first, second });
            }
        }
        Ok(())
    }

    fn check_consumers(&self) -> Result<(), TableError> {
        let sets = || self.workers.iter().filter_map(|(rank, worker)| Some((*rank, worker.sets.as_ref()?)));
        let produced = sets().fold(RowSet::default(), |all, (_, (produce, _))| all.union(produce));
        for (rank, (_, consume)) in sets() {
            if produced.intersection(consume).len() == consume.len() {
                continue;
            }
            if let Some(row) = consume.iter().find(|&row| !produced.contains(row)) {
                return Err(TableError::NoProducer { name: self.spec.name.clone(), row, rank });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Propagation;
    use super::*;

    fn spec() -> TableSpec {
        let (name, propagation) = ("U".to_owned(), Propagation::Eager);
        TableSpec { name, rows: 10, row_bytes: 8, sum: None, propagation }
    }

    fn declare(registry: &mut Registry, rank: Rank, spec: &TableSpec, produce: &[u64], consume: &[u64]) {
        registry.begin(rank, spec, rank, true).unwrap();
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
        let (mut registry, live) = (Registry::default(), BTreeSet::from([0, 1, 2]));
        declare(&mut registry, 0, &spec(), &[0, 1, 2], &[5]);
        declare(&mut registry, 1, &spec(), &[5, 6], &[]);
        assert_eq!(registry.joined(0, "U", &live), None);
        assert_eq!(registry.missing("U", &live), [2]);
        declare(&mut registry, 2, &spec(), &[], &[0, 6]);
        let ranks = |joined: Option<Result<Joined, TableError>>| -> Vec<Rank> {
            joined.unwrap().unwrap().producers.iter().map(|producer| producer.rank).collect()
        };
        assert_eq!(ranks(registry.joined(0, "U", &live)), [0, 1]);
        assert_eq!(ranks(registry.joined(1, "U", &live)), [1]);
        assert_eq!(ranks(registry.joined(2, "U", &live)), [0, 1]);
        assert_eq!(registry.produced("U", 1), Some(RowSet::from_rows([5, 6]).encode()));
    }

    #[test]
    fn a_worker_that_is_gone_is_not_waited_for() {
        let mut registry = Registry::default();
        declare(&mut registry, 0, &spec(), &[0], &[0]);
        assert!(registry.joined(0, "U", &BTreeSet::from([0])).unwrap().is_ok());
    }

    #[test]
    fn all_hear_of_two_producers_of_a_row_and_a_sum_may_have_them() {
        let (mut registry, live) = (Registry::default(), BTreeSet::from([0, 1]));
        declare(&mut registry, 0, &spec(), &[3, 4], &[]);
        declare(&mut registry, 1, &spec(), &[4], &[]);
        for rank in [0, 1] {
            let error = registry.joined(rank, "U", &live).unwrap().unwrap_err();
            let expected = TableError::TwoProducers { name: "U".to_owned(), row: 4, first: 0, second: 1 };
            assert_eq!(error, expected);
        }
        let sum = TableSpec { name: "S".to_owned(), sum: Some(penstock_kernels::Dtype::F64), ..spec() };
        declare(&mut registry, 0, &sum, &[3, 4], &[]);
        declare(&mut registry, 1, &sum, &[4], &[3, 4]);
        assert!(registry.joined(1, "S", &live).unwrap().is_ok());
    }

    #[test]
    fn declarations_that_make_no_sense_are_refused_by_name() {
        let (mut registry, live) = (Registry::default(), BTreeSet::from([0, 1]));
        declare(&mut registry, 0, &spec(), &[1], &[2]);
        declare(&mut registry, 1, &spec(), &[], &[]);
        let error = registry.joined(1, "U", &live).unwrap().unwrap_err();
        assert_eq!(error, TableError::NoProducer { name: "U".to_owned(), row: 2, rank: 0 });
        let other = TableSpec { row_bytes: 16, ..spec() };
        assert!(matches!(registry.begin(1, &other, 0, true), Err(TableError::Differs { .. })));
        assert!(matches!(registry.begin(1, &spec(), 0, true), Err(TableError::DeclaredTwice { .. })));
        assert!(matches!(registry.end(1, "V"), Err(TableError::OutOfTurn { .. })));
        let far = TableSpec { name: "F".to_owned(), ..spec() };
        declare(&mut registry, 0, &far, &[10], &[]);
        let error = registry.joined(0, "F", &BTreeSet::from([0])).unwrap().unwrap_err();
        assert!(matches!(error, TableError::RowOutOfRange { got: 10, .. }));
    }
}
