use super::*;
use crate::server::budget;
use crate::server::first_touch::FirstTouch;
use penstock_proto::account::Limits;
use penstock_proto::items::registry::Part;
use penstock_proto::items::spec::MAX_TABLES;
use penstock_proto::items::{Propagation, TableSpec};
use rustix::fs::SealFlags;

/// More than is gone over in one turn.
const RANGES: u64 = A_TURN;
const WORKERS: u32 = 3;

struct Server {
    tables: Tables,
    members: Members,
    bells: Bells,
    first_touch: FirstTouch,
    request: u64,
}

impl Server {
    fn new() -> Self {
        Self::of(&Account::default())
    }

    fn of(account: &Account) -> Self {
        let tables = Tables::charged_to(account, true, 1);
        let (members, bells) = (Members::of(0..WORKERS), Bells::default());
        Self { tables, members, bells, first_touch: FirstTouch::default(), request: 0 }
    }

    fn ask(&mut self, rank: Rank, ask: TableAsk) -> Answers {
        self.request += 1;
        let Self { tables, members, bells, request, .. } = self;
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

const LARGE: PartitionId = PartitionId { table: 0, rank: 0 };

impl Server {
    /// Asks for the rows of `partition`'s producer, as [`RANGES`] rows of this many bytes; returns what is answered at once.
    fn map(&mut self, rank: Rank, partition: PartitionId, row_bytes: u32) -> Answers {
        self.tables.first = false; // the book is elsewhere
        let (slots, propagation) = (RANGES as u32, Propagation::Eager);
        self.ask(rank, TableAsk::Partition { partition, slots, row_bytes, propagation })
    }

    fn touch(&mut self) -> (Answers, Vec<Sealed>) {
        self.first_touch.begin_turn();
        self.touch_more()
    }

    /// In the same turn.
    fn touch_more(&mut self) -> (Answers, Vec<Sealed>) {
        self.tables.touch(&self.members, &mut self.bells, &mut self.first_touch)
    }

    /// Bytes of a partition that are in memory.
    fn in_memory(&self, partition: PartitionId) -> u64 {
        self.tables.partitions.get(&partition).map_or(0, |homed| homed.in_memory())
    }
}

fn whose(answers: &Answers) -> Vec<(Rank, bool)> {
    answers.iter().map(|(rank, _, answer)| (*rank, answer.is_ok())).collect()
}

// All of it was touched in the turn of the request, five seconds for a table of four gigabytes: whoever was told of no sign of life
// meanwhile took the server for lost.
#[test]
fn a_large_partition_is_touched_in_turns_and_given_to_its_producer_when_all_of_it_was() {
    let mut server = Server::new();
    assert_eq!(whose(&server.map(1, LARGE, 1024)), [], "a consumer waits for the producer");
    assert_eq!(whose(&server.map(0, LARGE, 1024)), []);
    assert_eq!(server.in_memory(LARGE), 0, "nothing is touched in the turn of a request");
    let early = server.ask(0, TableAsk::Mapped { partition: LARGE });
    assert_eq!(whose(&early), [(0, false)], "it has not been given it so far");
    let mut turns = 0;
    loop {
        let before = server.in_memory(LARGE);
        let (answers, sealed) = server.touch();
        turns += 1;
        let touched = server.in_memory(LARGE) - before;
        assert!(touched <= 16 << 20, "{touched} bytes in one turn");
        assert!(sealed.is_empty());
        if !server.tables.is_untouched() {
            assert_eq!(whose(&answers), [(0, true)], "its consumers wait until it is sealed");
            break;
        }
        assert_eq!(whose(&answers), []);
        assert_eq!(whose(&server.map(0, LARGE, 1024)), [], "who asks again waits on");
    }
    assert!(turns >= 8, "{turns} turns for {} bytes", server.in_memory(LARGE));
    assert!(server.in_memory(LARGE) >= 2 * RANGES * 1024, "all of it");
    let sealed = server.ask(0, TableAsk::Mapped { partition: LARGE });
    assert_eq!(whose(&sealed), [(1, true), (0, true)]);
}

#[test]
fn a_small_partition_waits_for_no_large_one() {
    let mut server = Server::new();
    let small = PartitionId { table: 1, rank: 1 };
    assert!(server.map(0, LARGE, 1024).is_empty());
    server.touch();
    assert!(server.map(1, small, 8).is_empty());
    assert_eq!(whose(&server.touch().0), [(1, true)]);
    assert!(server.tables.is_untouched(), "the large one takes more");
}

// A turn touched as much for tensors as for tables: twice as much as it says.
#[test]
fn tables_and_tensors_are_touched_in_one_turn_together_and_none_waits_for_all_of_the_other() {
    let mut server = Server::new();
    assert!(server.map(0, LARGE, 1024).is_empty());
    let (mut tables, mut tensors) = (0, 0);
    for _ in 0..6 {
        server.first_touch.begin_turn();
        let before = server.in_memory(LARGE);
        // A tensor takes what there is.
        let mut tensor = |server: &mut Server| {
            tensors += u32::from(!server.first_touch.is_over());
            server.first_touch.spend(usize::MAX);
        };
        if !server.first_touch.is_for_tables_first() {
            tensor(&mut server);
            server.touch_more();
            assert_eq!(server.in_memory(LARGE), before, "the turn is over");
        } else {
            server.touch_more();
            tensor(&mut server);
            tables += u32::from(server.in_memory(LARGE) > before);
        }
    }
    assert_eq!((tables, tensors), (3, 3));
}

#[test]
fn who_waits_for_memory_that_is_not_there_is_told_so_and_all_of_it_is_given_back() {
    let account = Account::new(Limits::NONE);
    let mut server = Server::of(&account);
    let before = account.taken(Resource::Bytes);
    for rank in [1, 0] {
        assert!(server.map(rank, LARGE, 1024).is_empty());
    }
    assert!(account.taken(Resource::Bytes) >= before + 2 * RANGES * 1024);
    server.first_touch.memory = 40 << 20;
    let refused: Answers = (0..3).flat_map(|_| server.touch().0).collect();
    assert_eq!(whose(&refused), [(1, false), (0, false)]);
    for (_, _, answer) in &refused {
        assert!(matches!(answer, Err(Refusal::System { what, .. }) if what == "make a table's memory"));
    }
    drop(refused);
    assert!(!server.tables.is_untouched());
    assert_eq!(account.taken(Resource::Bytes), before);
    server.first_touch.memory = usize::MAX;
    assert!(server.map(0, LARGE, 8).is_empty());
    assert_eq!(whose(&server.touch().0), [(0, true)], "there is memory again");
}

#[test]
fn rows_of_a_producer_that_goes_before_all_is_touched_are_sealed_when_it_is() {
    let mut server = Server::new();
    for rank in [1, 0] {
        assert!(server.map(rank, LARGE, 1024).is_empty());
    }
    server.touch();
    server.members.live.remove(&0);
    server.members.lost.insert(0);
    let (answers, sealed) = server.tables.abandon(0, &server.members.live, &mut server.bells);
    server.tables.forget(0);
    assert!(answers.is_empty() && sealed.is_empty(), "some of it is not there");
    let mut told = (Vec::new(), 0);
    while server.tables.is_untouched() {
        let (answers, sealed) = server.touch();
        told.0.extend(whose(&answers));
        told.1 += sealed.len();
    }
    assert_eq!(told, (vec![(1, true)], 1));

    // What nobody wants any more is touched no further.
    let mut server = Server::new();
    assert!(server.map(0, LARGE, 1024).is_empty());
    server.tables.forget(0);
    assert!(server.touch().0.is_empty() && !server.tables.is_untouched());
}

// The server could not seal them any more, and the others waited for a worker that was lost.
#[test]
fn rows_of_a_lost_producer_that_has_seen_to_it_that_they_cannot_be_sealed_are_made_anew() {
    let mut server = Server::new();
    for rank in [1, 0] {
        assert!(server.map(rank, LARGE, 8).is_empty());
    }
    let mut given = Vec::new();
    while server.tables.is_untouched() {
        given.extend(server.touch().0);
    }
    assert_eq!(whose(&given), [(0, true)]);
    let (_, its) = given.remove(0).2.unwrap();
    rustix::fs::fcntl_add_seals(&its[0], SealFlags::SEAL).unwrap();
    assert_eq!(whose(&server.ask(0, TableAsk::Mapped { partition: LARGE })), [(0, false)]);
    server.members.live.remove(&0);
    server.members.lost.insert(0);
    let (mut answers, mut sealed) = server.tables.abandon(0, &server.members.live, &mut server.bells);
    while server.tables.is_untouched() {
        let (more, also) = server.touch();
        answers.extend(more);
        sealed.extend(also);
    }
    assert_eq!((whose(&answers), sealed.len()), (vec![(1, true)], 1));
    let (_, ours) = answers.remove(0).2.unwrap();
    assert!(rustix::fs::fcntl_get_seals(&ours[0]).unwrap().contains(SealFlags::FUTURE_WRITE));
    assert!(!server.tables.is_unsealed());
}

// A worker whose wait had just been answered, and whose question about it came after, was told that it waits for itself: that all
// are there had made the table known, and none was ready for it.
#[test]
fn who_asks_about_a_wait_that_was_answered_meanwhile_waits_for_nobody() {
    let mut server = Server::new();
    let awaited = |server: &Server, rank| server.tables.awaited_by(rank, "U", &server.members.live);
    for rank in [0, 1] {
        server.declare(rank);
        server.join(rank);
    }
    assert_eq!((awaited(&server, 0), awaited(&server, 1)), (vec![2], vec![2]));
    assert_eq!(awaited(&server, 2), [], "it has said that it waits, and does not");
    server.declare(2);
    server.join(2);
    while server.tables.is_unsettled() {
        server.tables.settle(&server.members);
    }
    for rank in 0..WORKERS {
        assert_eq!(awaited(&server, rank), [], "worker {rank} was answered");
    }
    server.ask(1, TableAsk::Ready { name: "U".to_owned() });
    assert_eq!(awaited(&server, 1), [0, 2], "those that are not ready");
}

// They waited until any table was asked for: the last had been interrupted before it said that it waits.
#[test]
fn who_waits_for_a_table_has_it_once_the_last_has_declared_it() {
    let mut server = Server::new();
    for rank in [0, 1] {
        server.declare(rank);
        server.join(rank);
    }
    server.declare(2);
    while server.tables.is_unsettled() {
        server.tables.settle(&server.members);
    }
    assert!(server.tables.joining.is_empty());
}

// The others heard so before the last to declare it had, and were refused as long as it had not.
#[test]
fn who_hears_that_a_table_cannot_be_may_declare_it_anew_at_once() {
    let mut server = Server::new();
    let name = || "U".to_owned();
    let spec = || {
        let (rows, propagation) = (u64::from(WORKERS), Propagation::Eager);
        TableSpec { name: name(), rows, row_bytes: 8, sum: None, propagation, holds: String::new() }
    };
    let declare = |server: &mut Server, rank, row| {
        server.ask(rank, TableAsk::Begin { spec: spec(), home: 0, near: true });
        let bytes = RowSet::from_rows([row]).encode();
        server.ask(rank, TableAsk::Rows { name: name(), part: Part::Produce, bytes });
        server.ask(rank, TableAsk::End { name: name() })
    };
    for rank in [0, 1] {
        assert_eq!(declare(&mut server, rank, 0).len(), 1);
        assert!(server.join(rank).is_empty());
    }
    let answers = declare(&mut server, 2, 2);
    let told: BTreeSet<Rank> = answers.iter().filter(|answer| answer.2.is_err()).map(|it| it.0).collect();
    assert_eq!(told, (0..WORKERS).collect());
    for rank in 0..WORKERS {
        let answers = declare(&mut server, rank, rank.into());
        assert!(answers.iter().all(|answer| answer.2.is_ok()), "worker {rank}");
        server.join(rank);
    }
    assert!(server.tables.joining.is_empty());
}

// A worker that repeated its declaration, of no rows at all, had all ranges of the others gone over anew, at nobody's cost.
#[test]
fn a_declaration_that_is_repeated_begins_nothing_anew_and_ranges_that_are_gone_over_are_paid_for() {
    let mut server = Server::new();
    for rank in 0..WORKERS {
        server.declare(rank);
        server.join(rank);
    }
    // Each end of a range counts for one.
    let ends = u64::from(WORKERS) * 4 * RANGES;
    let mut turns = 0;
    while server.tables.is_unsettled() {
        server.tables.settle(&server.members);
        server.declare(2);
        turns += 1;
        assert!(turns < 100, "it ends");
    }
    assert!(server.tables.take_swept() >= ends);
}

// They were gone over whatever they took, for the price of the requests that asked for it.
#[test]
fn beside_other_jobs_ranges_rest_and_are_gone_on_with_later() {
    let mut server = Server::new();
    server.tables.rest(true);
    for rank in 0..WORKERS {
        server.declare(rank);
        assert!(server.join(rank).is_empty());
    }
    assert!(server.tables.is_unsettled() && !server.tables.may_settle());
    assert_eq!(server.tables.take_swept(), 0);
    server.tables.rest(false);
    let mut told = 0;
    while server.tables.may_settle() {
        told += server.tables.settle(&server.members).len();
    }
    assert_eq!(told, WORKERS as usize);
}

// A request for one table had all that anybody waited for settled, and cost what any request does.
#[test]
fn a_request_for_one_table_goes_over_the_names_of_the_waits_and_settles_no_other() {
    let mut server = Server::new();
    for at in 0..100 {
        let (name, propagation) = (format!("{at}"), Propagation::Eager);
        let spec = TableSpec {
            name: name.clone(),
            rows: 4,
            row_bytes: 8,
            sum: None,
            propagation,
            holds: String::new(),
        };
        server.ask(0, TableAsk::Begin { spec, home: 0, near: true });
        server.ask(0, TableAsk::Join { name });
    }
    server.tables.take_gone_over();
    assert!(server.ask(1, TableAsk::Join { name: "7".to_owned() }).is_empty());
    assert_eq!(server.tables.take_gone_over(), A_NAME * 101);
    assert!(server.ask(1, TableAsk::Ready { name: "7".to_owned() }).is_empty());
    assert_eq!(server.tables.take_gone_over(), A_NAME);
    server.tables.awaited_by(1, "7", &server.members.live);
    assert_eq!(server.tables.take_gone_over(), 102, "who asks for whom it waits");
    // What all wait for is told to all that wait for it.
    for rank in [0, 1, 2] {
        server.ask(rank, TableAsk::Ready { name: "9".to_owned() });
    }
    assert_eq!(server.tables.waiting.len(), 1, "worker 1 waits for table 7");
}
