//! docs/layout.md and the code say the same.
#![cfg(not(loom))]

use penstock_fabric::doorbell::{Bell, Sleeping};
use penstock_fabric::layout::{Count, LaneLayout, ModelLayout, page};
use penstock_fabric::publish::ChunkHeader;
use penstock_fabric::ring::{CAPACITY, Ring};
use penstock_kernels::Settings;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::handshake::{
    MAGIC, MAX_HANDSHAKE_BYTES, MAX_JOB_NAME_BYTES, PLAIN_BINDING, Purpose, SOCKET_BINDING, ServerHandshake,
    WorkerHandshake,
};
use penstock_proto::message::{PROTOCOL_VERSION, Secret};
use penstock_proto::record::{CHECKSUM_BYTES, LENGTH_BYTES, record};
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
fn a_submission_has_its_fields_where_the_page_draws_them() {
    let settings = Settings([0.5, 0.25, 0.125, 2.0, 4.0]);
    let kinds = [
        ("push", Submission::Push { tensor: 7, first: 8, count: 9, stamp: 10, settings }),
        ("clock", Submission::Clock { clock: 10 }),
        ("load", Submission::Load { tensor: 7, first: 8, count: 9, slot: 1, part: 2, steps: 10 }),
        ("zero", Submission::Zero { tensor: 7 }),
        ("leave", Submission::Leave),
    ];
    let rows = table("## Submission");
    for (kind, submission) in kinds {
        let words = submission.encode();
        let halves = [words[0] as u32, (words[0] >> 32) as u32, words[1] as u32, (words[1] >> 32) as u32];
        for (cell, half) in rows[kind].iter().zip(halves) {
            let expected = match *cell {
                "tensor" => 7,
                "first chunk" => 8,
                "chunks" => 9,
                number => number.parse().expect("a number or a field"),
            };
            assert_eq!(half, expected, "{kind}: {cell}");
        }
        assert_eq!(words[2], if rows[kind][4] == "0" { 0 } else { 10 }, "{kind}: word 2");
        let third = match rows[kind][5] {
            "setting 0" => 0.5f64.to_bits(),
            "slot, part" => 1 | 2 << 32,
            _ => 0,
        };
        assert_eq!(words[3], third, "{kind}: word 3");
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

/// Word `number` of a frame, as the two halves that the page draws.
fn halves(bytes: &[u8; HEADER_BYTES], number: usize) -> (u32, u32) {
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    (half(8 * number), half(8 * number + 4))
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
        ("value", Notice::Value { tensor: 7, chunk: 8, version: 9, steps: 10 }),
        ("state", Notice::State { tensor: 7, chunk: 8 }),
        ("folded", Notice::Folded { tensor: 7, count: 9 }),
        ("fetched", Notice::Fetched { tensor: 7, ticket: 9 }),
        ("taken", Notice::Taken),
    ];
    for (name, notice) in notices {
        let bytes = bare(Body::Notice(notice));
        let (kind, tensor) = halves(&bytes, 6);
        let got = [kind, tensor, halves(&bytes, 7).0, halves(&bytes, 8).0, halves(&bytes, 9).0];
        for (cell, got) in rows[name].iter().zip(got) {
            let expected = match *cell {
                "tensor" => 7,
                "chunk" => 8,
                "version" | "contributions folded" | "ticket" => 9,
                "steps" => 10,
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
    assert_eq!(&made[LENGTH_BYTES + CHECKSUM_BYTES..], b"message");
}

#[test]
fn a_handshake_is_as_long_as_the_page_draws_it() {
    let session = [3; 16];
    let purposes = [
        ("0 control", Purpose::Control, vec![0]),
        ("1 shard (rank, 16 bytes of session, shard)", Purpose::Shard { rank: 1, session, shard: 2 }, {
            let mut bytes = vec![1, 1];
            bytes.extend(session);
            bytes.push(2);
            bytes
        }),
        ("2 items (rank, 16 bytes of session)", Purpose::Items { rank: 1, session }, {
            let mut bytes = vec![2, 1];
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
    let hello = rows["hello"][1];
    assert!(hello.contains(std::str::from_utf8(&MAGIC).expect("letters")));
    assert!(hello.contains(&format!("now {PROTOCOL_VERSION};")));
    assert!(hello.contains(&format!("at most {MAX_JOB_NAME_BYTES} bytes")));
    assert!(PAGE.contains(&format!("at most {MAX_HANDSHAKE_BYTES} bytes")));
    assert!(PAGE.contains(std::str::from_utf8(&SOCKET_BINDING).expect("letters")));
    assert_eq!(PLAIN_BINDING, [0; 32]);
}
