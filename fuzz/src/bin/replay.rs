//! Runs every target on its corpus, then on mutations of it for some seconds: `replay [SECONDS [SEED]]`. For machines without
//! nightly; libFuzzer, guided by coverage, finds more.

use penstock_fuzz::{TARGETS, seeds};
use std::time::{Duration, Instant};

/// splitmix64: chance that anyone can repeat.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn mutate(&mut self, data: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(data.len() + 1);
            match self.below(6) {
                0 if at < data.len() => data[at] ^= 1 << self.below(8),
                1 if at < data.len() => data[at] = self.next() as u8,
                2 => data.insert(at, self.next() as u8),
                3 => data.truncate(at),
                4 => data.extend_from_slice(&other[self.below(other.len())..]),
                _ => {
                    let end = (at + 8).min(data.len());
                    data[at.min(end)..end].fill([0, 0xff, 0x7f, 0x80][self.below(4)]);
                }
            }
        }
        data.truncate(4096);
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = seeds::folder(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a folder that can be read").path())
        .collect();
    files.sort();
    files.iter().map(|path| std::fs::read(path).expect("a file that can be read")).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (seconds, seed) = (number(9), number(1));
    for (target, seeds) in seeds::all() {
        for (name, data) in seeds {
            let path = seeds::folder(target).join(name);
            let is_current = std::fs::read(&path).is_ok_and(|bytes| bytes == data);
            assert!(is_current, "{}: not what this version makes; run `seeds`", path.display());
        }
    }
    for (name, body) in TARGETS {
        let seeds = corpus(name);
        assert!(!seeds.is_empty(), "{name} has no corpus");
        seeds.iter().for_each(|data| body(data));
        let (mut chance, mut runs) = (Chance(seed), 0u64);
        let until = Instant::now() + Duration::from_secs(seconds) / TARGETS.len() as u32;
        while Instant::now() < until {
            let mut data = seeds[chance.below(seeds.len())].clone();
            let other = chance.below(seeds.len());
            chance.mutate(&mut data, &seeds[other]);
            body(&data);
            runs += 1;
        }
        println!("{name}: {} files of the corpus and {runs} mutations held (seed {seed})", seeds.len());
    }
}
