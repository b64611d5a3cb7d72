//! Tables of items, as the control thread knows them: the book (on the first server), and the regions that are homed here.
//!
//! Rows between workers of this host never pass through the server: it makes a region, gives it to its producer, and once that one has
//! mapped it seals it against every other writer and gives it to the consumers.

use super::catalog::Catalog;
use penstock_fabric::items::region::{Layout, WAITERS_BYTES, Waiters, make};
use penstock_fabric::region::Region;
use penstock_proto::Rank;
use penstock_proto::error::Refusal;
use penstock_proto::items::TableError;
use penstock_proto::items::control::{PART_BYTES, TableAnswer, TableAsk};
use penstock_proto::items::registry::{Joined, Registry};
use penstock_proto::items::spec::MAX_ROW_BYTES;
use penstock_proto::items::wire::{RegionId, Shape};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A region that is homed here, of a producer on this host.
struct Homed {
    layout: Layout,
    shape: Shape,
    region: Region,
    page: Region,
    waiters: Waiters,
    sealed: bool,
    /// Consumers that wait until it is: rank and request.
    waiting: Vec<(Rank, u64)>,
}

/// A region that has its writer and no other, for whoever passes its rows on.
pub(super) struct Sealed {
    pub(super) id: RegionId,
    pub(super) region: OwnedFd,
    pub(super) layout: Layout,
    pub(super) shape: Shape,
    pub(super) waiters: Waiters,
}

#[derive(Default)]
pub(super) struct Tables {
    registry: Registry,
    regions: BTreeMap<RegionId, Homed>,
    /// Workers that wait for a table: rank, request, name.
    joining: Vec<(Rank, u64, String)>,
    /// Workers that are ready for a table, and those that wait until all are: rank, request, name.
    ready: BTreeMap<String, BTreeSet<Rank>>,
    waiting: Vec<(Rank, u64, String)>,
}

/// What a request is answered with.
pub(super) type Answered = Result<(TableAnswer, Vec<OwnedFd>), Refusal>;

/// Answers that have become possible, by rank and request.
pub(super) type Answers = Vec<(Rank, u64, Answered)>;

/// Who asks.
pub(super) struct Asker<'a> {
    pub(super) rank: Rank,
    pub(super) request: u64,
    /// Whether it is on this host.
    pub(super) local: bool,
    /// The bell of who passes rows on.
    pub(super) bell: BorrowedFd<'a>,
    /// Workers that are here or may still come.
    pub(super) live: &'a BTreeSet<Rank>,
}

impl Tables {
    /// Carries out a request: what can be answered now, to the asker and to others, and a region that was sealed by it.
    pub(super) fn ask(
        &mut self,
        asker: &Asker<'_>,
        ask: TableAsk,
        catalog: &mut Catalog,
    ) -> (Answers, Option<Sealed>) {
        let mut answers = Vec::new();
        let mut sealed = None;
        let rank = asker.rank;
        let done = |result: Result<(), TableError>| match result {
            Ok(()) => Ok((TableAnswer::Done, Vec::new())),
            Err(error) => Err(Refusal::Table(error)),
        };
        let answer = match ask {
            TableAsk::Begin { spec, home, near } => Some(done(self.registry.begin(rank, &spec, home, near))),
            TableAsk::Rows { name, part, bytes } => Some(done(self.registry.part(rank, &name, part, &bytes))),
            TableAsk::End { name } => Some(done(self.registry.end(rank, &name))),
            TableAsk::Join { name } => {
                let waits = self
                    .joining
                    .iter()
                    .any(|(other, request, _)| (*other, *request) == (rank, asker.request));
                if !waits {
                    self.joining.push((rank, asker.request, name));
                }
                answers.append(&mut self.join(asker.live));
                None
            }
            TableAsk::Ready { name } => {
                self.ready.entry(name.clone()).or_default().insert(rank);
                if !self.waiting.iter().any(|(other, request, _)| (*other, *request) == (rank, asker.request))
                {
                    self.waiting.push((rank, asker.request, name));
                }
                answers.append(&mut self.join(asker.live));
                None
            }
            TableAsk::Absent { name } => {
                let ranks = self.registry.missing(&name, asker.live);
                Some(Ok((TableAnswer::Absent { ranks }, Vec::new())))
            }
            TableAsk::Produced { name, rank, from } => Some(self.produced(&name, rank, from)),
            TableAsk::Region { region, slots, row_bytes, propagation } => {
                let shape = Shape { slots, row_bytes, propagation };
                self.region(asker, region, shape, catalog).transpose()
            }
            TableAsk::Mapped { region } => match self.seal(asker, region, &mut answers) {
                Ok(it) => {
                    sealed = Some(it);
                    Some(Ok((TableAnswer::Done, Vec::new())))
                }
                Err(refusal) => Some(Err(refusal)),
            },
        };
        answers.extend(answer.map(|answer| (rank, asker.request, answer)));
        (answers, sealed)
    }

    /// Answers those who wait for tables that all live workers have declared, or are ready for.
    pub(super) fn join(&mut self, live: &BTreeSet<Rank>) -> Answers {
        let mut answers = Vec::new();
        self.waiting.retain(|(rank, request, name)| {
            let all = self.ready.get(name).is_some_and(|ready| live.is_subset(ready));
            if all {
                answers.push((*rank, *request, Ok((TableAnswer::Done, Vec::new()))));
            }
            !all
        });
        self.joining.retain(|(rank, request, name)| match self.registry.joined(*rank, name, live) {
            None => true,
            Some(joined) => {
                let answer = joined
                    .map(|Joined { id, producers }| (TableAnswer::Joined { id, producers }, Vec::new()));
                answers.push((*rank, *request, answer.map_err(Refusal::Table)));
                false
            }
        });
        answers
    }

    fn produced(&self, name: &str, rank: Rank, from: u64) -> Answered {
        let all =
            self.registry.produced(name, rank).ok_or_else(|| out_of_turn("a producer that there is not"))?;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(all.len());
        let bytes = all[from..all.len().min(from + PART_BYTES)].to_vec();
        Ok((TableAnswer::Produced { bytes, total: all.len() as u64 }, Vec::new()))
    }

    fn region(
        &mut self,
        asker: &Asker<'_>,
        id: RegionId,
        shape: Shape,
        catalog: &mut Catalog,
    ) -> Result<Option<(TableAnswer, Vec<OwnedFd>)>, Refusal> {
        if !asker.local {
            return Err(out_of_turn("a region that is to be mapped on another host"));
        }
        if shape.slots == 0 || !(1..=MAX_ROW_BYTES).contains(&shape.row_bytes) {
            return Err(out_of_turn("a region without rows, or with too long ones"));
        }
        let layout = Layout::new(shape.slots, shape.row_bytes);
        let homed = match self.regions.entry(id) {
            Entry::Occupied(homed) => homed.into_mut(),
            Entry::Vacant(place) => place.insert(Homed::make(id, shape, layout, catalog)?),
        };
        if homed.shape != shape {
            return Err(out_of_turn("a region with other rows than it has"));
        }
        if !homed.sealed && asker.rank != id.rank {
            homed.waiting.push((asker.rank, asker.request));
            return Ok(None);
        }
        homed.pass(asker.bell).map(Some)
    }

    fn seal(&mut self, asker: &Asker<'_>, id: RegionId, answers: &mut Answers) -> Result<Sealed, Refusal> {
        let homed = self.regions.get_mut(&id).filter(|_| id.rank == asker.rank);
        let homed = homed.ok_or_else(|| out_of_turn("a region that is another's"))?;
        if !homed.sealed {
            homed.region.seal().map_err(|errno| Refusal::System {
                what: "seal a table's memory".to_owned(),
                reason: errno.to_string(),
            })?;
            homed.sealed = true;
        }
        for (rank, request) in std::mem::take(&mut homed.waiting) {
            answers.push((rank, request, homed.pass(asker.bell)));
        }
        let region = clone(homed.region.fd())?;
        Ok(Sealed { id, region, layout: homed.layout, shape: homed.shape, waiters: homed.waiters.clone() })
    }
}

impl Homed {
    fn make(id: RegionId, shape: Shape, layout: Layout, catalog: &mut Catalog) -> Result<Self, Refusal> {
        let bytes = (layout.total() + WAITERS_BYTES) as u64;
        catalog.take_for_table(id.table, bytes)?;
        let made = make(&layout).and_then(|region| Ok((region, Waiters::make()?)));
        let (region, (waiters, page)) = made.map_err(|errno| {
            catalog.give_back(bytes);
            let (what, reason) = ("make a table's memory".to_owned(), errno.to_string());
            Refusal::System { what, reason }
        })?;
        Ok(Self { layout, shape, region, page, waiters, sealed: false, waiting: Vec::new() })
    }

    fn pass(&self, bell: BorrowedFd<'_>) -> Answered {
        let descriptors = vec![clone(self.region.fd())?, clone(self.page.fd())?, clone(bell)?];
        Ok((TableAnswer::Region, descriptors))
    }
}

fn clone(fd: impl AsFd) -> Result<OwnedFd, Refusal> {
    fd.as_fd().try_clone_to_owned().map_err(|error| Refusal::System {
        what: "pass a table's memory".to_owned(),
        reason: error.to_string(),
    })
}

fn out_of_turn(what: &str) -> Refusal {
    Refusal::Table(TableError::OutOfTurn { what: what.to_owned() })
}
