//! docs/layout.md and the code say the same.
#![cfg(not(loom))]

use penstock_fabric::doorbell::{Bell, Sleeping};
use penstock_fabric::layout::{Count, LaneLayout, ModelLayout, page};
use penstock_fabric::publish::ChunkHeader;
use penstock_fabric::ring::{CAPACITY, Ring};
use penstock_kernels::Settings;
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
