use super::*;
use crate::server::budget;
use penstock_proto::items::registry::Part;
use penstock_proto::items::spec::MAX_TABLES;
use penstock_proto::items::{Propagation, TableSpec};

/// More than is gone over in one turn.
const RANGES: u64 = A_TURN;
const WORKERS: u32 = 3;

struct Server {
    tables: Tables,
    members: Members,
    bells: Bells,
    request: u64,
}

impl Server {
    fn new() -> Self {
        Self::of(&Account::default())
    }

    fn of(account: &Account) -> Self {
        let tables = Tables::charged_to(account, true, 1);
        Self { tables, members: Members::of(0..WORKERS), bells: Bells::default(), request: 0 }
    }

    fn ask(&mut self, rank: Rank, ask: TableAsk) -> Answers {
        self.request += 1;
        let Self { tables, members, bells, request } = self;
        let asker = Asker { rank, request: *request, local: true, members, passer: None };
        tables.ask(&asker, ask, bells).0
    }

    /// Each worker produces every third row and consumes the next worker's.
    fn declare(&mut self, rank: Rank) {
        let name = || "U".to_owned();
        let (rows, propagation) = (RANGES * u64::from(WORKERS), Propagation::Eager);
        let spec =
            TableSpec { name: name(), rows, row_bytes: 8, sum: None, propagation, holds: String::new() };
        self.ask(rank, TableAsk::Begin { spec, home: 0, near: true });
        let dealt = |to: Rank| {
            let to = u64::from(to % WORKERS);
            RowSet::from_rows((0..RANGES).map(|turn| turn * u64::from(WORKERS) + to))
        };
        for (part, set) in [(Part::Produce, dealt(rank)), (Part::Consume, dealt(rank + 1))] {
            for bytes in set.encode().chunks(PART_BYTES) {
                let answers = self.ask(rank, TableAsk::Rows { name: name(), part, bytes: bytes.to_vec() });
                assert!(matches!(answers[..], [(_, _, Ok((TableAnswer::Done, _)))]));
            }
        }
        self.ask(rank, TableAsk::End { name: name() });
    }

    fn join(&mut self, rank: Rank) -> Answers {
        self.ask(rank, TableAsk::Join { name: "U".to_owned() })
    }
}

// The request of the last worker took as long as all ranges of all pairs of workers take: 38 seconds for 28 with 500,000 each.
#[test]
fn a_large_table_is_made_in_turns_and_who_waits_for_it_waits_for_no_worker() {
    let mut server = Server::new();
    for rank in 0..WORKERS {
        server.declare(rank);
        let answers = server.join(rank);
        assert!(answers.is_empty(), "{} answers in the turn of a request", answers.len());
    }
    // Each end of a range counts for one.
    let least = u64::from(WORKERS) * 4 * RANGES / (A_TURN + LEAST);
    let (mut turns, mut told) = (0, BTreeSet::new());
    while server.tables.is_unsettled() {
        assert_eq!(server.tables.undeclared("U", &server.members.live), []);
        assert!(server.join(1).is_empty(), "one that asks again makes no turn longer");
        let answers = server.tables.settle(&server.members);
        turns += 1;
        for (rank, _, answer) in answers {
            let Ok((TableAnswer::Joined { producers, .. }, _)) = answer else { panic!("worker {rank}") };
            assert_eq!(producers.len(), 2, "its own and the next worker's");
            told.insert(rank);
        }
    }
    assert!(turns >= least, "{turns} turns of {least}");
    assert_eq!(told, server.members.live);
    assert_eq!(server.join(1).len(), 1, "what is known is told at once");
    assert_eq!(server.tables.undeclared("U", &server.members.live), [0, 1, 2], "nobody is ready so far");
}

// One of them began as many as there may be in a job, in four seconds, and the other could make none.
#[test]
fn who_takes_all_the_tables_that_it_gets_leaves_the_other_workers_some() {
    let mut server = Server::of(&Account::new(budget::limits(1 << 40, 4, false)));
    let mut begin = |rank: Rank, at: u32| {
        let (name, propagation) = (format!("{rank}.{at}"), Propagation::Eager);
        let spec = TableSpec { name, rows: 4, row_bytes: 8, sum: None, propagation, holds: String::new() };
        server.ask(rank, TableAsk::Begin { spec, home: 0, near: true }).remove(0).2
    };
    let (begun, refusal) = (0..MAX_TABLES).find_map(|at| Some((at, begin(0, at).err()?))).unwrap();
    let Refusal::Table(TableError::Exhausted { why, .. }) = refusal else { panic!("{refusal}") };
    assert_eq!((why.resource, why.left), (Resource::Tables, 0));
    assert!(begun > MAX_TABLES / 2 && begin(1, 0).is_ok() && begin(2, 0).is_ok());
}
