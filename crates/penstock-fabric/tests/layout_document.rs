//! docs/layout.md and the code say the same.
#![cfg(not(loom))]

use penstock_fabric::doorbell::{Bell, Sleeping};
use penstock_fabric::items::partition::{Layout, MAX_ROW_BYTES, WAITERS_BYTES};
use penstock_fabric::items::slot::{Progress, RowGroup, Slot};
use penstock_fabric::items::waiters::{LINES, Line, Summary, Wanted, announce_then_look};
use penstock_fabric::layout::{Count, LINE, LaneLayout, ModelLayout, Shared, flags, page, pages};
use penstock_fabric::memory::ExtentLayout;
use penstock_fabric::publish::{ChunkHeader, Numbers, Published, Publisher};
use penstock_fabric::region::Mapping;
use penstock_fabric::ring::{CAPACITY, Consumer, Producer, Ring};
use penstock_fabric::sync::{Ordering, OwnedU64};
use penstock_kernels::compress::Compressor;
use penstock_kernels::{Dtype, Settings};
use penstock_proto::checksum;
use penstock_proto::chunk::Cut;
use penstock_proto::compress::Packed;
use penstock_proto::error::Refusal;
use penstock_proto::factors::down::Named;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::handshake::{
    MAGIC, MAX_HANDSHAKE_BYTES, MAX_JOB_NAME_BYTES, PLAIN_BINDING, Purpose, SOCKET_BINDING, ServerHandshake,
    Verdict, WorkerHandshake, verdict,
};
use penstock_proto::job::job_number;
use penstock_proto::message::{MAX_SHARDS, PROTOCOL_VERSION, Secret, encode};
use penstock_proto::overlay::Stripes;
use penstock_proto::overlay::lending::{MAX_WORD_BYTES, Word};
use penstock_proto::peer::{PeerId, Role};
use penstock_proto::placement::Extent;
use penstock_proto::record::{CHECKSUM_BYTES, LENGTH_BYTES, record};
use penstock_proto::remote::Holding;
use penstock_proto::submission::{Submission, WORDS};
use std::collections::BTreeMap;

const PAGE: &str = include_str!("../../../docs/layout.md");

/// The rows of the table under `heading`, by first cell.
fn table(heading: &str) -> BTreeMap<&'static str, Vec<&'static str>> {
    let section = PAGE.split(heading).nth(1).expect("the heading is there");
    let section = section.split("\n## ").next().expect("it has a body");
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        (cells.next().expect("a row has cells"), cells.collect())
    })
    .collect()
}

#[test]
fn every_structure_has_the_size_that_the_page_gives() {
    let sizes = [
        ("Sleeping", size_of::<Sleeping>()),
        ("Bell", size_of::<Bell>()),
        ("Count", size_of::<Count>()),
        ("Slot", WORDS * 8),
        ("Ring", size_of::<Ring>()),
        ("ChunkHeader", size_of::<ChunkHeader>()),
    ];
    let rows = table("## Structures");
    assert_eq!(rows.len(), sizes.len());
    for (name, size) in sizes {
        assert_eq!(rows[name][0].parse(), Ok(size), "{name}");
    }
    assert!(rows["Ring"][2].contains(&format!("{CAPACITY} slots")));
}

#[test]
fn what_lender_and_borrower_say_has_the_numbers_that_the_page_gives() {
    let (nonce, proof, tensor) = ([1; 32], [2; 32], 7);
    let section = PAGE.split("\n## Lending\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let words = [
        ("the lender's first", Word::Lender { nonce, proof }, 65),
        ("the borrower's first", Word::Borrower { proof }, 33),
        ("lent", Word::Lent { tensor }, 2),
        ("borrowed", Word::Borrowed { tensor }, 2),
        ("returned", Word::Returned { tensor }, 2),
    ];
    for (number, (name, word, bytes)) in words.into_iter().enumerate() {
        let encoded = word.encode();
        assert_eq!((usize::from(encoded[0]), encoded.len()), (number, bytes), "{name}");
        assert!(section.contains(&format!("\n- {number}, {name}")), "{name}");
    }
    assert!(section.contains(&format!("at\nmost {MAX_WORD_BYTES} bytes a message")));
}

/// A row that is added to the page is read by a test of this file, or this one fails.
#[test]
fn the_page_has_the_tables_that_are_read_here_and_no_others() {
    let tables = PAGE.split("\n## ").skip(1).map(|section| {
        let heading = section.split(['\n', ',']).next().expect("a heading");
        let heads = section.lines().filter(|line| line.starts_with("|---")).count();
        let lines = section.lines().filter(|line| line.starts_with('|')).count();
        (heading, lines - 2 * heads)
    });
    let read = [
        ("Submission", 14),
        ("Frame", 11 + 3 + 14),
        // Read beside its code.
        ("Seal", 2 + 4),
        ("Record", 4),
        ("Handshake", 4),
        ("Lending", 0),
        ("Structures", 6),
        ("Regions", 5),
        ("Slabs", 2),
        ("Rows of a table", 6),
        ("Publication of a chunk", 0),
    ];
    assert_eq!(tables.collect::<Vec<_>>(), read);
}

/// The first words of a structure that `change` has changed in fresh memory.
fn words<T: Shared, const N: usize>(change: impl FnOnce(&T)) -> [u64; N] {
    let memory = Mapping::private(pages(size_of::<T>())).expect("there is memory");
    change(memory.at::<T>(0));
    std::array::from_fn(|word| memory.at::<OwnedU64>(8 * word).own())
}

fn halves_of(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[test]
fn every_structure_has_its_fields_in_the_order_that_the_page_gives() {
    let rows = table("## Structures");
    assert_eq!(words(Sleeping::announce), [1]);
    assert!(rows["Sleeping"][2].contains("u32: 1 while the shard sleeps"));
    let [bell] = words(|bell: &Bell| {
        bell.announce(7);
        bell.ring();
    });
    assert_eq!(halves_of(bell), (1, 7));
    assert_eq!(rows["Bell"][2], "u32 rings (the futex), u32 what is waited for");
    assert_eq!(words(|count: &Count| count.0.store(9, Ordering::Relaxed)), [9]);
    assert_eq!(rows["Count"][2], "u64");
    let line = LINE / 8;
    let ring: [u64; 25] = words(|ring: &Ring| {
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        assert_eq!(producer.push(ring, [3; WORDS]), Ok(()));
        assert_eq!(producer.push(ring, [4; WORDS]), Ok(()));
        assert_eq!(consumer.pop(ring), Ok(Some([3; WORDS])));
    });
    assert_eq!((ring[0], ring[line], ring[2 * line], ring[3 * line]), (2, 1, 3, 4));
    assert!(rows["Ring"][2].starts_with("u64 tail (worker) and u64 head (shard), a line each, then"));
    let publish = |header: &ChunkHeader| {
        Publisher::new(header, &mut 0).publish(Published { version: 5, steps: 6 });
    };
    assert_eq!(words(publish), [2, 5, 6]);
    let number = |header: &ChunkHeader| {
        Publisher::new(header, &mut 0).number(Numbers { publication: 7, content: 8 });
    };
    assert_eq!(words(number), [1, 0, 0, 7, 8]);
    let fields = "u64 sequence, u64 version, u64 steps; of a mirror, u64 publication, u64 content";
    assert_eq!(rows["ChunkHeader"][2], fields);
}

#[test]
fn a_submission_has_its_fields_where_the_page_draws_them() {
    let settings = Settings([0.5, 0.25, 0.125, 2.0, 4.0]);
    let kinds = [
        ("push", Submission::Push { tensor: 7, first: 8, count: 9, stamp: 10, settings }),
        ("clock", Submission::Clock { clock: 10 }),
        ("load", Submission::Load { tensor: 7, first: 8, count: 9, slot: 1, part: 2, steps: 10 }),
        ("zero", Submission::Zero { tensor: 7 }),
        ("fetch", Submission::Fetch { tensor: 7, state: true, version: 10, ticket: 11 }),
        ("leave", Submission::Leave),
        ("flush", Submission::Flush { tensor: 7 }),
        ("fetch chunks", Submission::FetchChunks { tensor: 7, first: 8, count: 9, version: 10, ticket: 11 }),
        ("skip", Submission::Skip { tensor: 7, first: 8, count: 9, stamp: 10, settings }),
        ("factor", Submission::Factor { tensor: 7, rank: 3, at: 10 }),
        (
            "push of a product",
            Submission::PushProduct { tensor: 7, first: 8, count: 9, stamp: 10, settings, rank: 3 },
        ),
        ("attached", Submission::Attached { epoch: 4, stripes: Stripes(10) }),
        ("strayed", Submission::Strayed { epoch: 4, stripes: Stripes(10), parent: 5 }),
        ("holds", Submission::Holds { tensor: 7, first: 8, epoch: 4, positions: [10, 11, 1, 2, 3, 4] }),
    ];
    let rows = table("## Submission");
    assert_eq!(rows.len(), kinds.len());
    for (kind, submission) in kinds {
        let words = submission.encode();
        let halves = [words[0] as u32, (words[0] >> 32) as u32, words[1] as u32, (words[1] >> 32) as u32];
        for (cell, half) in rows[kind].iter().zip(halves) {
            let expected = match *cell {
                "tensor" => 7,
                "first chunk" => 8,
                "chunks" => 9,
                "rank" => 3,
                "epoch" => 4,
                "parent" => 5,
                "10, rank" => 10 | 3 << 16,
                "0: value, 1: state" => 1,
                number => number.parse().expect("a number or a field"),
            };
            assert_eq!(half, expected, "{kind}: {cell}");
        }
        assert_eq!(words[2], if rows[kind][4] == "0" { 0 } else { 10 }, "{kind}: word 2");
        let third = match rows[kind][5] {
            "setting 0" => 0.5f64.to_bits(),
            "slot, part" => 1 | 2 << 32,
            "ticket" | "position" => 11,
            number => number.parse().expect("a number or a field"),
        };
        assert_eq!(words[3], third, "{kind}: word 3");
        let rest = match rows[kind][6] {
            "settings 1 to 4" => [0.25, 0.125, 2.0, 4.0].map(f64::to_bits),
            "positions of 4 more" => [1, 2, 3, 4],
            number => [number.parse().expect("a number or a field"); 4],
        };
        assert_eq!(words[4..], rest, "{kind}: words 4 to 7");
    }
}

#[test]
fn a_small_tensor_takes_the_lines_that_the_page_gives() {
    let rows = table("## Slabs");
    assert_eq!(rows["model"][0].parse(), Ok(ModelLayout::pooled(100, 1, 2).total()));
    assert_eq!(rows["lane"][0].parse(), Ok(LaneLayout::pooled(100, 2).total()));
}

#[test]
fn a_page_has_its_bell_its_heartbeat_and_then_a_ring_for_each_shard() {
    let row = &table("## Regions")["page"];
    assert!(row[2].contains(&format!("Bell at {}", page::BELL)));
    assert!(row[2].contains(&format!("(Count) at {}", page::HEARTBEAT)));
    assert!(row[3].contains(&format!("from {} on", page::ring(0))));
    assert_eq!(page::bytes(2), page::ring(2));
}

#[test]
fn the_other_regions_have_their_parts_where_the_page_draws_them() {
    let rows = table("## Regions");
    let count = size_of::<Count>();
    let shards = MAX_SHARDS as usize;
    assert_eq!(rows["flags"][2], format!("a Sleeping for each of {MAX_SHARDS} shards"));
    assert_eq!(
        rows["flags"][3],
        format!("{MAX_SHARDS} Counts: heartbeat by shard; then one: heartbeat of the control thread")
    );
    assert_eq!(flags::sleeping(1), size_of::<Sleeping>());
    assert_eq!(flags::heartbeat(0), flags::sleeping(MAX_SHARDS));
    assert_eq!(flags::heartbeat(flags::CONTROL), flags::heartbeat(0) + shards * count);
    assert_eq!(flags::BYTES, pages(flags::heartbeat(flags::CONTROL) + count));
    let model = ModelLayout::new(5000, 3);
    assert_eq!(rows["model"][2], "the server's extent of the value, in whole pages");
    assert_eq!(model.data, pages(5000));
    let then = format!("{MAX_SHARDS} Counts: progress by shard, version + 1; then a ChunkHeader a chunk");
    assert_eq!(rows["model"][3], then);
    assert_eq!((ModelLayout::progress(1), model.header(0)), (count, shards * count));
    assert_eq!(model.header(1), model.header(0) + size_of::<ChunkHeader>());
    assert_eq!(model.total(), model.data + pages(model.header(3)));
    let lane = LaneLayout::new(5000);
    assert_eq!(rows["lane"][2], "the same extent of the contribution, in whole pages");
    assert_eq!(rows["lane"][3], format!("{MAX_SHARDS} Counts: folded chunks by shard"));
    assert_eq!((lane.data, LaneLayout::folded(1)), (pages(5000), count));
    assert_eq!(lane.tail, pages(shards * count));
    let state = ExtentLayout::new(Cut::new(8192, 4096), Extent { first: 0, count: 2 }, Dtype::Bf16, 8);
    assert_eq!(rows["state"][2], "for each chunk, all optimizer arrays one after the other");
    assert_eq!(state.state(1), 4096 / 2 * 8..2 * (4096 / 2 * 8));
}

#[test]
fn rows_of_a_table_lie_where_the_page_draws_them() {
    let rows = table("## Rows of a table");
    let number = |cell: &str| {
        let digits = cell.split(' ').next().expect("a cell starts with its number").replace(',', "");
        digits.parse::<usize>().unwrap_or_else(|_| panic!("a number, not {cell}"))
    };
    let (progress, head, row_group) = (
        number(rows["progress"][0]),
        number(rows["head of a row"][0]),
        number(rows["heads of row groups"][0]),
    );
    assert_eq!(
        (progress, head, row_group),
        (size_of::<Progress>(), size_of::<Slot>(), size_of::<RowGroup>())
    );
    let entry = number(rows["change log"][0]);
    assert_eq!(rows["change log"][0], "8 an entry, 64 to 65,536 entries, a power of two");
    assert!(PAGE.contains("for rows of at most 40 bytes; else from the next cache line on, in whole lines"));
    assert_eq!(rows["buffers of a row"][0], "twice the row");
    assert_eq!(rows["first buffers of row groups, then second"][0], "twice the rows in row groups");
    assert!(
        PAGE.contains(
            "Rows of at most 1024 bytes in whole words also have a place in a *row group*: 8 to 64"
        )
    );
    assert!(PAGE.contains("as many as make 1024 bytes"));
    let lines = |bytes: usize| bytes.next_multiple_of(LINE);
    for bytes in [1, 8, 39, 40, 41, 48, 64, 100, 512, 1016, 1024, 1032, MAX_ROW_BYTES as usize] {
        for slots in [0, 1, 7, 8, 31, 32, 33, 100, 40_000] {
            let slots = if bytes > 4096 { slots.min(8) } else { slots };
            let layout = Layout::new(slots, bytes as u32);
            let entries = (2 * slots as usize).clamp(64, 65_536).next_power_of_two();
            assert_eq!(layout.slot(0), lines(progress + entry * entries), "{slots} of {bytes}");
            let stride = if bytes <= 40 {
                lines(head + 2 * bytes.next_multiple_of(8))
            } else {
                lines(head) + 2 * lines(bytes)
            };
            assert_eq!(layout.slot(slots) - layout.slot(0), slots as usize * stride, "{slots} of {bytes}");
            let group = (1024 / bytes).next_power_of_two().clamp(8, 64);
            let row_groups = if bytes % 8 == 0 && bytes <= 1024 { slots as usize / group } else { 0 };
            let total = layout.slot(slots) + row_groups * (row_group + 2 * group * bytes);
            assert_eq!(layout.total(), pages(total), "{slots} of {bytes}");
        }
    }
}

#[test]
fn what_a_table_s_rows_carry_stands_in_the_order_that_the_page_gives() {
    let rows = table("## Rows of a table");
    let progress = |progress: &Progress| {
        progress.finish(1);
        progress.begin_several(2);
        progress.raise(3);
        progress.begin_log(4);
        progress.finish_log(5);
    };
    assert_eq!(words(progress), [1, 2, 3, 4, 5]);
    assert_eq!(
        rows["progress"][2],
        "u64 sets finished, u64 last set of several rows begun, u64 iterations completed, u64 and u64 change log \
         entries begun and written"
    );
    let head = |slot: &Slot| {
        slot.buffers.finish(0, 1, 3);
        slot.buffers.finish(1, 2, 4);
        slot.confirm(1, 4, 5);
        slot.buffers.begin(0);
    };
    assert_eq!(words(head), [u64::MAX, 2, 3, 4, 5]);
    assert_eq!(
        rows["head of a row"][2],
        "u64 and u64 numbers of the sets that wrote the two buffers (all ones: unfinished), u64 and u64 their \
         clocks, u64 the set after which the newest still was the newest (mirrors)"
    );
    let row_group = |row_group: &RowGroup| {
        row_group.buffers.finish(0, 1, 3);
        row_group.buffers.finish(1, 2, 4);
        row_group.part(5);
        row_group.part(6);
    };
    assert_eq!(words(row_group), [1, 2, 3, 4, 5]);
    assert!(rows["heads of row groups"][2].ends_with(
        "the last word: the first set after the row group's newest that wrote one of its rows by itself"
    ));
}

#[test]
fn the_page_of_sleepers_is_as_the_page_says() {
    let wanted = Wanted { slot: 7, version: 8 };
    let line = Line::new();
    let [summary] = words(|summary: &Summary| {
        summary.announce(&line, wanted);
    });
    assert_eq!(halves_of(summary), (1, 0));
    let [summary] = words(|mut summary: &Summary| {
        announce_then_look(&mut summary, |summary, by| summary.announce_follower(by), |_| {});
    });
    assert_eq!(halves_of(summary), (0, 1));
    let lines: [u64; 3] = words(|line: &Line| {
        assert!(line.claim());
        Summary::new().announce(line, wanted);
    });
    // Nothing has rung: rings are 0.
    assert_eq!(lines, [1 | 1 << 32, 7 << 32, 8]);
    let drawn = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(drawn.contains(&format!(
        "{} bytes of flags (u32 whether a line is armed, u32 whether the thread that passes rows on sleeps), then {LINES} \
         lines of {} bytes (u32 owned, u32 armed, u32 rings (the futex), u32 slot, u64 version waited for)",
        size_of::<Summary>(),
        size_of::<Line>()
    )));
    assert_eq!(WAITERS_BYTES, size_of::<Summary>() + LINES * size_of::<Line>());
}

/// Word `number` of a frame, as the two halves that the page draws.
fn halves(bytes: &[u8; HEADER_BYTES], number: usize) -> (u32, u32) {
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    (half(8 * number), half(8 * number + 4))
}

#[test]
fn a_frame_has_its_words_where_the_page_draws_them() {
    let payload = [6; 40];
    let submission = Submission::Zero { tensor: 7 };
    let frame = |wanted| {
        let body = Body::Submission { submission, wanted };
        Header::bare(job_number("a"), 12, body).with_payload(&payload).encode()
    };
    let bytes = frame(true);
    let word = |number: usize| u64::from_le_bytes(bytes[8 * number..][..8].try_into().expect("eight bytes"));
    let rows = table("## Frame");
    let drawn = [
        ("0 low", "`PSF` and the layout's version, 1"),
        (
            "0 high",
            "byte 0: the kind, see below; byte 1: encoding, 0 raw; byte 2: 1 if the result of the push or skip is wanted; byte 3: compressed by, 0 nothing, 1 lz4, 2 zstd",
        ),
        ("1", "the job: XXH3 of its name"),
        ("2", "epoch, 0"),
        (
            "3",
            "from a worker: the frame's number, from 1, over all connections; from a shard: how many of the worker's \
             frames were taken",
        ),
        ("4 low", "bytes of the payload"),
        ("4 high", "bytes that it decompresses to, more than in the low half; 0 if it is not compressed"),
        ("5", "XXH3 of the payload"),
        ("6 to 13", "a submission as above (a push or load of one chunk), or a notice"),
        ("14", "0"),
        ("15", "XXH3 of words 0 to 14"),
    ];
    for (words, holds) in drawn {
        assert_eq!(rows[words], [holds], "{words}");
    }
    assert_eq!((&bytes[..4], &bytes[4..8]), (&b"PSF\x01"[..], &[1, 0, 1, 0][..]));
    assert_eq!(frame(false)[6], 0);
    for (by, number) in Compressor::ALL.into_iter().zip(1..) {
        let whole = Header::decode(&bytes).expect("it is one");
        let bytes = whole.with_packed(Some(Packed { by, length: 77 })).encode();
        assert_eq!((bytes[7], halves(&bytes, 4)), (number, (40, 77)));
    }
    assert_eq!([1, 2, 3, 4, 5].map(word), [job_number("a"), 0, 12, 40, checksum::of(&payload)]);
    assert_eq!(std::array::from_fn(|at| word(6 + at)), submission.encode());
    assert_eq!((word(14), word(15)), (0, checksum::of(&bytes[..8 * 15])));
}

#[test]
fn a_frame_has_its_kind_and_its_notice_where_the_page_draws_them() {
    let bare = |body| Header::bare(11, if body == Body::Alive { 0 } else { 12 }, body).encode();
    let submission = Body::Submission { submission: Submission::Leave, wanted: false };
    let kinds = [
        ("submits", bare(submission)),
        ("notifies", bare(Body::Notice(Notice::Taken))),
        ("alive", bare(Body::Alive)),
    ];
    let rows = table("## Frame");
    for (kind, bytes) in &kinds {
        assert_eq!(rows[kind][0].parse(), Ok(halves(bytes, 0).1), "{kind}");
        assert_eq!(halves(bytes, 1), (11, 0), "word 1 is the job");
        let unnumbered =
            PAGE.contains(&format!("| {kind} | 3 |")) && PAGE.contains("no number (word 3 is 0)");
        assert_eq!(halves(bytes, 3), (if unnumbered { 0 } else { 12 }, 0), "{kind}: word 3 is the number");
    }
    let drawn = |row: &&str| row.split('|').nth(3).is_some_and(|cell| cell.trim().starts_with("from a "));
    assert_eq!(PAGE.lines().filter(drawn).count(), kinds.len());
    let notices = [
        (
            "value",
            Notice::Value {
                tensor: 7,
                chunk: 8,
                version: 9,
                steps: 10,
                publication: 11,
                base: 12,
                content: 1,
            },
        ),
        ("state", Notice::State { tensor: 7, chunk: 8 }),
        ("folded", Notice::Folded { tensor: 7, count: 9 }),
        ("fetched", Notice::Fetched { tensor: 7, ticket: 9 }),
        ("taken", Notice::Taken),
        (
            "raised",
            Notice::Raised { tensor: 7, chunk: 8, count: 13, version: 9, steps: 10, contents: [14; 4] },
        ),
        ("update", Notice::Update { tensor: 7, chunk: 8, version: 9, steps: 10, publication: 11, base: 12 }),
        ("whole", Notice::Whole { tensor: 7, chunk: 8, version: 9, steps: 10, publication: 11, content: 15 }),
        ("factor", Notice::Factor { tensor: 7, name: Named { writer: 8, turn: 9 }, rank: 13, at: 10 }),
        ("seal", Notice::Seal),
        ("lent", Notice::Lent { tensor: 7, chunk: 8, count: 13 }),
        ("standing", Notice::Standing { tensor: 7, stripe: 8, digest: 9 }),
        ("route", Notice::Route),
        (
            "expected",
            Notice::Expected { tensor: 7, first: 8, held: [Holding { content: 15, version: 9 }; 3] },
        ),
    ];
    for (place, said) in
        [(5, "how many in the high half of word 7"), (8, "its rank in the high half of word 7")]
    {
        assert_eq!(halves(&bare(Body::Notice(notices[place].1)), 7), (8, 13));
        assert!(PAGE.contains(said), "{said}");
    }
    for (name, notice) in notices {
        let bytes = bare(Body::Notice(notice));
        let (kind, tensor) = halves(&bytes, 6);
        let [chunk, version, steps, publication, base] = [7, 8, 9, 10, 11].map(|word| halves(&bytes, word).0);
        let got = [kind, tensor, chunk, version, steps, publication, base];
        for (cell, got) in rows[name].iter().zip(got) {
            let expected = match *cell {
                "content" => 15,
                "tensor" => 7,
                "chunk" | "stripe" | "worker" => 8,
                "version" | "contributions folded" | "ticket" | "digest" | "turn" => 9,
                "steps" | "at" => 10,
                "publication" => 11,
                "base" => 12,
                "contents" => 14,
                number => number.parse().expect("a number or a field"),
            };
            assert_eq!(got, expected, "{name}: {cell}");
        }
    }
}

#[test]
fn a_record_has_in_front_of_its_message_what_the_page_says() {
    let section = PAGE.split("\n## Record").nth(1).expect("the heading is there");
    let cells = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let bytes: Vec<usize> = cells.map_while(|row| row.split('|').nth(1)?.trim().parse().ok()).collect();
    assert_eq!(bytes, [4, 4, CHECKSUM_BYTES]);
    assert_eq!(bytes[0] + bytes[1], LENGTH_BYTES);
    let made = record(b"message");
    assert_eq!(made[..4], 7u32.to_le_bytes());
    let drawn = [
        "length of the message",
        "the low half of the XXH3 of those 4 bytes",
        "XXH3 of the message",
        "the message",
    ];
    let holds = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let holds: Vec<&str> = holds.filter_map(|row| row.split('|').nth(2)).map(str::trim).take(4).collect();
    assert_eq!(holds, drawn);
    assert_eq!(made[4..8], (checksum::of(&made[..4]) as u32).to_le_bytes());
    assert_eq!(made[8..16], checksum::of(b"message").to_le_bytes());
    assert_eq!(&made[LENGTH_BYTES + CHECKSUM_BYTES..], b"message");
}

#[test]
fn a_handshake_is_as_long_as_the_page_draws_it() {
    let session = [3; 16];
    // Role, number and incarnation, in the order in which the page names them.
    let peer = PeerId { role: Role::Follower, number: 1, incarnation: 7 };
    let purposes = [
        ("0 control", Purpose::Control, vec![0]),
        ("1 shard (peer, 16 bytes of session, shard)", Purpose::Shard { peer, session, shard: 2 }, {
            let mut bytes = vec![1, 2, 1, 7];
            bytes.extend(session);
            bytes.push(2);
            bytes
        }),
        (
            "2 relay (child, server, shard, striping, stripes, an option of 16 bytes: the name where its parent lends to it)",
            Purpose::Relay {
                child: 5,
                server: 6,
                shard: 2,
                striping: 4,
                stripes: Stripes(9),
                rendezvous: Some([8; 16]),
            },
            [&[2, 5, 6, 2, 4, 9, 1][..], &[8; 16]].concat(),
        ),
        ("3 items (peer, 16 bytes of session)", Purpose::Items { peer, session }, {
            let mut bytes = vec![3, 2, 1, 7];
            bytes.extend(session);
            bytes
        }),
    ];
    let rows = table("## Handshake");
    for (drawn, purpose, bytes) in purposes {
        let (worker, hello) =
            WorkerHandshake::start("abc", Secret([1; 32]), purpose, [4; 32]).expect("it is short");
        let mut expected = MAGIC.to_vec();
        expected.extend([PROTOCOL_VERSION as u8, 3]);
        expected.extend(b"abc");
        expected.extend(bytes);
        expected.extend([4; 32]);
        assert_eq!(hello, expected, "{drawn}");
        assert!(rows["hello"][1].contains(drawn), "{drawn}");
        let mut server = ServerHandshake::start(&hello).expect("it is a hello");
        let challenge = server.challenge(Secret([1; 32]), [5; 32], PLAIN_BINDING);
        assert_eq!((challenge.len(), &challenge[..32]), (64, &[5; 32][..]), "{}", rows["challenge"][1]);
        let proof = worker.answer(&challenge, &PLAIN_BINDING).expect("the secret is the job's");
        assert_eq!(proof.len(), 32, "{}", rows["proof"][1]);
    }
    assert_eq!(
        rows["verdict"][1],
        "0 accepted, 1 refused and the refusal; a refusal may come instead of the challenge"
    );
    assert_eq!(verdict(&Verdict::Accepted), [0]);
    assert_eq!(verdict(&Verdict::Refused(Refusal::Busy))[0], 1);
    for (role, number) in
        [Role::Worker, Role::Server, Role::Follower, Role::Relay, Role::Replica].iter().zip(0..)
    {
        let peer = PeerId { role: *role, number: 1, incarnation: 7 };
        assert_eq!(encode(&peer).expect("it is short"), [number, 1, 7]);
        assert!(PAGE.contains(&format!("{number} {role}")), "{role}");
    }
    let hello = rows["hello"][1];
    assert!(hello.contains(std::str::from_utf8(&MAGIC).expect("letters")));
    assert!(hello.contains(&format!("now {PROTOCOL_VERSION};")));
    assert!(hello.contains(&format!("at most {MAX_JOB_NAME_BYTES} bytes")));
    assert!(PAGE.contains(&format!("at most {MAX_HANDSHAKE_BYTES} bytes")));
    assert!(PAGE.contains(std::str::from_utf8(&SOCKET_BINDING).expect("letters")));
    assert_eq!(PLAIN_BINDING, [0; 32]);
}
