//! What came of runs with rates, as a table; and how they are asked for.

use super::{Failure, Held, Left, Outcome, Rates, Scenario, Trouble, Unlike};
use penstock_proto::overlay::Shape;

/// What to run: all shapes for all hosts.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Hosts, with one worker each.
    #[arg(long, value_delimiter = ',', default_value = "4,8,15")]
    hosts: Vec<u32>,
    /// Who passes on to whom: shapes as an option `tree` has them. Those with settings of their own are separated by spaces.
    #[arg(long, value_parser = shapes, default_value = "star,chain,striped,tree:degree=2")]
    shape: std::vec::Vec<Shape>,
    /// What the bits come from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes of a version.
    #[arg(long, value_parser = bytes, default_value = "256MiB")]
    bytes: u64,
    /// Bytes that go on together: a chunk.
    #[arg(long, value_parser = bytes, default_value = "1MiB")]
    block: u64,
    /// How many of those are really there, by default 4 KiB: each takes the time and the room of so many.
    #[arg(long, value_parser = bytes)]
    chunk: Option<u64>,
    /// Bits a second of each link, as in 1gbit.
    #[arg(long, value_parser = rate, default_value = "1gbit")]
    rate: f64,
    /// Microseconds from one host to another, beside the bytes' own time.
    #[arg(long, default_value_t = 100.0)]
    hop: f64,
    /// Bytes of a connection's buffers, at each end.
    #[arg(long, value_parser = bytes, default_value = "4MiB")]
    buffer: u64,
    /// Versions that are published one after the other. The last is shown; where a host is in trouble, all.
    #[arg(long, default_value_t = 2)]
    versions: u64,
    /// Microseconds from one chunk to the next that is published of a version.
    #[arg(long, default_value_t = 0.0)]
    pace: f64,
    /// Bytes that each worker's uplink sends beside each version: what it pushes.
    #[arg(long, value_parser = bytes, default_value = "0")]
    push: u64,
    /// An inner node hangs while a version is on its way.
    #[arg(long, conflicts_with_all = ["slow", "slow_up"])]
    hangs: bool,
    /// An inner node's link has this part of its rate from a version on, as in 0.1.
    #[arg(long, conflicts_with = "slow_up")]
    slow: Option<f64>,
    /// Only its uplink has.
    #[arg(long)]
    slow_up: Option<f64>,
    /// How many versions are published behind that one.
    #[arg(long, default_value_t = 1)]
    behind: u64,
    /// One host's uplink has this part of the rate from the beginning, as in 0.2: of the host in the middle.
    #[arg(long)]
    slower: Option<f64>,
    /// Plans take all links to be alike, whatever is measured.
    #[arg(long)]
    alike: bool,
}

/// Shapes, by commas or spaces. What follows a comma and is no shape belongs to the one before.
fn shapes(text: &str) -> Result<Vec<Shape>, String> {
    let mut texts: Vec<String> = Vec::new();
    for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
        match texts.last_mut() {
            Some(last) if part.contains('=') && !part.contains(':') => {
                last.push(',');
                last.push_str(part);
            }
            _ => texts.push(part.to_owned()),
        }
    }
    let shape = |text: String| text.parse::<Shape>().map_err(|error| error.to_string());
    texts.into_iter().map(shape).collect()
}

fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 6] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
    ];
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((text, 1));
    let count = number.trim().parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
    count.ok_or_else(|| format!("expected bytes as in 256MiB or 16MB, got `{text}`"))
}

fn rate(text: &str) -> Result<f64, String> {
    let unit = [("gbit", 1e9), ("mbit", 1e6)]
        .iter()
        .find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, *bits)));
    let bits = unit.and_then(|(number, unit)| Some(number.trim().parse::<f64>().ok()? * unit));
    let bits = bits.filter(|bits| bits.is_finite() && *bits > 0.0);
    bits.map(|bits| bits / 8.0).ok_or_else(|| format!("expected a rate as in 1gbit or 100mbit, got `{text}`"))
}

impl Arguments {
    fn scenario(&self, hosts: u32, shape: Shape) -> Result<Scenario, Failure> {
        let chunk = self.chunk.unwrap_or(4 << 10);
        let wrong = |expected, got: String| Failure::Scenario { expected, got };
        let chunk =
            u32::try_from(chunk).map_err(|_| wrong("a chunk of less than 4 GiB", chunk.to_string()))?;
        let trouble = match (self.hangs, self.slow) {
            (true, _) => Some(Trouble::Hangs),
            (_, slow) => slow.map(Trouble::Slow).or_else(|| self.slow_up.map(Trouble::SlowUp)),
        };
        Ok(Scenario {
            seed: self.seed,
            hosts,
            shape,
            bytes: self.bytes,
            block: self.block,
            chunk,
            rate: self.rate,
            hop: self.hop * 1e-6,
            buffer: self.buffer,
            versions: if trouble.is_some() {
                self.versions.max(3 + self.behind)
            } else {
                self.versions.max(1)
            },
            pace: self.pace * 1e-6,
            push: self.push,
            trouble,
            behind: self.behind,
            unlike: match self.slower {
                Some(part) if hosts > 0 => vec![Unlike { rank: (hosts - 1) / 2, up: part, down: 1.0 }],
                _ => Vec::new(),
            },
            rates: if self.alike { Rates::Alike } else { Rates::Measured },
        })
    }

    /// Runs all, and shows each as soon as it is over.
    ///
    /// # Errors
    /// One that does not hold, with its scenario.
    pub fn run(&self, mut show: impl FnMut(&str)) -> Result<(), String> {
        let one = self.scenario(1, Shape::Star).map_err(|error| error.to_string())?.transfer();
        let (gbit, hop) = (self.rate * 8e-9, self.hop);
        show(&format!(
            "{} bytes in blocks of {}, {gbit} Gbit/s, {hop} us a hop; one transfer takes {:.1} ms\n\n{}",
            self.bytes,
            self.block,
            one * 1e3,
            HEAD
        ));
        for &hosts in &self.hosts {
            for &shape in &self.shape {
                let scenario = self.scenario(hosts, shape).map_err(|error| error.to_string())?;
                let outcome = scenario.run().map_err(|error| format!("{error}\n{scenario:#?}"))?;
                show(&lines(hosts, &outcome));
            }
        }
        Ok(())
    }
}

const HEAD: &str = "hosts  shape                      time ms   half ms    ratio  planned  busiest    all  depth  values   seals  others";

/// An outcome, as lines of a table: of the last version, or of all where a worker was in trouble or a plan was made anew, and who has left it.
pub fn lines(hosts: u32, outcome: &Outcome) -> String {
    let Outcome { shape, prediction, held, troubled, left, blamed, moved, .. } = outcome;
    let shown =
        if troubled.is_some() || *moved > 0 { &held[..] } else { &held[held.len().saturating_sub(1)..] };
    let mut lines: Vec<String> = Vec::new();
    for Held { seconds, half, ratio, busiest, all, frames } in shown {
        let (ms, half, all) = (seconds * 1e3, half * 1e3, all / f64::from(hosts));
        lines.push(format!(
            "{hosts:>5}  {:<24} {ms:>9.1} {half:>9.1} {ratio:>7.2}x {:>7.2}x {busiest:>7.2}x {all:>5.2}x {:>6} {:>7} {:>7} {:>7}",
            shape.to_string(),
            prediction.ratio,
            prediction.depth,
            frames.values,
            frames.seals,
            frames.others,
        ));
    }
    if let Some((rank, version)) = troubled {
        lines.push(format!("       worker {rank} was in trouble from version {version} on"));
    }
    if *moved > 0 {
        let times = if *moved == 1 { "once".to_owned() } else { format!("{moved} times") };
        lines.push(format!("       planned anew {times} for what links carry"));
    }
    for Left { rank, parent, version, after, why } in left {
        let parent = parent.map_or_else(|| "nobody".to_owned(), |rank| format!("worker {rank}"));
        let after = after * 1e3;
        lines.push(format!("       version {version}, {after:.1} ms: worker {rank} left {parent}: {why}"));
    }
    for rank in blamed {
        lines.push(format!("       worker {rank} passes nothing on any more"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_told_apart_by_commas_and_spaces() {
        let text = "star,striped:4,tree:degree=2,depth=5 chain,tree:degree=3";
        let all: Vec<String> = shapes(text).unwrap().iter().map(Shape::to_string).collect();
        assert_eq!(all, ["star", "striped:4", "tree:degree=2,depth=5", "chain", "tree:degree=3"]);
        assert!(shapes("stars").is_err());
    }

    #[test]
    fn bytes_and_rates_have_units() {
        assert_eq!([bytes("16MB"), bytes("1MiB"), bytes("300")], [Ok(16_000_000), Ok(1 << 20), Ok(300)]);
        assert_eq!([rate("1gbit"), rate("100mbit")], [Ok(125e6), Ok(12.5e6)]);
        assert!(bytes("many").is_err() && rate("10").is_err() && rate("-1gbit").is_err());
    }
}
