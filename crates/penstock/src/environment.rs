//! The names of Penstock's own environment variables, and those that are nearly one of them.

use crate::options::TABLE;

/// What Penstock reads of the environment beside the options.
pub const NAMES: [&str; 17] = [
    "PENSTOCK_ADDRESS",
    "PENSTOCK_ADMIN_TOKEN",
    "PENSTOCK_ANNOUNCE_FD",
    "PENSTOCK_DIRECTORY",
    "PENSTOCK_ENDED_FD",
    "PENSTOCK_HINTS",
    "PENSTOCK_JOB",
    "PENSTOCK_MANAGER",
    "PENSTOCK_PARENT",
    "PENSTOCK_RANK",
    "PENSTOCK_RENDEZVOUS",
    "PENSTOCK_REPORT_FD",
    "PENSTOCK_SECRET",
    "PENSTOCK_SERVERS",
    "PENSTOCK_SERVER_TOKEN",
    "PENSTOCK_SIZE",
    "PENSTOCK_TOPOLOGY",
];

const PREFIX: &str = "PENSTOCK_";
const OF_TESTS: [&str; 4] = ["PENSTOCK_BENCH_", "PENSTOCK_TEST_", "PENSTOCK_BLESS", "PENSTOCK_CUTS"];
/// Similarity from which on a name is taken for a misspelling of another.
const NEAR: f64 = 0.8;

/// A variable that begins with `PENSTOCK_` and that nothing reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// Its name.
    pub name: String,
    /// The one that was meant, if it is nearly that.
    pub meant: Option<&'static str>,
}

impl std::fmt::Display for Stray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the environment variable {} sets nothing: Penstock reads no variable of that name",
            self.name
        )
    }
}

impl Stray {
    /// What to do about one that is nearly one of ours.
    pub fn hint(&self) -> Option<String> {
        let meant = self.meant?;
        Some(format!("did you mean {meant}? If not, unset it, or give it another name"))
    }
}

/// Those of the environment's names that set nothing, in their order.
pub fn strays(names: impl IntoIterator<Item = String>) -> Vec<Stray> {
    let known = || NAMES.into_iter().chain(TABLE.iter().map(|row| row.env));
    let is_stray = |name: &String| {
        name.starts_with(PREFIX)
            && !known().any(|one| one == name)
            && !OF_TESTS.iter().any(|prefix| name.starts_with(prefix))
            && !is_of_kubernetes(name)
    };
    let likeness = |name: &str, one: &str| likeness(&name[PREFIX.len()..], &one[PREFIX.len()..]);
    let meant = |name: &str| {
        let near = known().map(|one| (likeness(name, one), one)).filter(|(likeness, _)| *likeness >= NEAR);
        near.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, one)| one)
    };
    names.into_iter().filter(is_stray).map(|name| Stray { meant: meant(&name), name }).collect()
}

/// Kubernetes gives each pod such variables for each service, so for one that is named penstock, too.
fn is_of_kubernetes(name: &str) -> bool {
    let is_port = |rest: &str| {
        let digits = rest.strip_prefix('_').map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
        let numbered = digits.is_some_and(|after| after.len() + 1 < rest.len() && after.starts_with('_'));
        rest.is_empty() || numbered
    };
    let ports = name.match_indices("_PORT").any(|(at, port)| is_port(&name[at + port.len()..]));
    ports || ["_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|word| name.contains(word))
}

/// How similar two words are, from 0 to 1 (Ratcliff and Obershelp): twice the letters of the longest run that both have, and of
/// such runs to its left and right, divided by the letters of both.
fn likeness(one: &str, other: &str) -> f64 {
    2.0 * common(one.as_bytes(), other.as_bytes()) as f64 / (one.len() + other.len()).max(1) as f64
}

fn common(one: &[u8], other: &[u8]) -> usize {
    let run = |(i, j): (usize, usize)| one[i..].iter().zip(&other[j..]).take_while(|(a, b)| a == b).count();
    let starts = (0..one.len()).flat_map(|i| (0..other.len()).map(move |j| (i, j)));
    // The first of those that are equally long.
    let longest = starts
        .map(|start| (run(start), start))
        .reduce(|best, next| if next.0 > best.0 { next } else { best });
    match longest {
        None | Some((0, _)) => 0,
        Some((length, (i, j))) => {
            length + common(&one[..i], &other[..j]) + common(&one[i + length..], &other[j + length..])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stray(name: &str) -> Option<Option<&'static str>> {
        strays([name.to_owned()]).pop().map(|stray| stray.meant)
    }

    #[test]
    fn a_name_that_is_nearly_one_of_ours_is_found_with_the_one_that_was_meant() {
        for (name, meant) in [
            ("PENSTOCK_CONSISTENSY", "PENSTOCK_CONSISTENCY"),
            ("PENSTOCK_SERVER", "PENSTOCK_SERVERS"),
            ("PENSTOCK_RANKS", "PENSTOCK_RANK"),
            ("PENSTOCK_LEASES", "PENSTOCK_LEASE"),
        ] {
            assert_eq!(stray(name), Some(Some(meant)), "{name}");
        }
        assert_eq!(stray("PENSTOCK_TIMEOUT"), Some(None));
        assert_eq!(stray("PENSTOCK_"), Some(None));
    }

    #[test]
    fn names_that_are_read_or_made_by_others_are_none() {
        let options = TABLE.iter().map(|row| row.env);
        let made =
            ["PENSTOCK_SERVICE_HOST", "PENSTOCK_PORT", "PENSTOCK_PORT_7700_TCP", "PENSTOCK_MANAGER_PORT"];
        let others = ["PATH", "PENSTOCKS", "PENSTOCK_TEST_X", "PENSTOCK_BENCH_X"];
        for name in NAMES.into_iter().chain(options).chain(made).chain(others) {
            assert_eq!(stray(name), None, "{name}");
        }
        assert_eq!(stray("PENSTOCK_PORTS"), Some(None));
    }

    #[test]
    fn likeness_is_that_of_words() {
        assert_eq!(likeness("RANK", "RANK"), 1.0);
        assert_eq!(likeness("", ""), 0.0);
        assert_eq!(likeness("ABCD", "BCDE"), 0.75);
    }
}
