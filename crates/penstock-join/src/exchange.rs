//! What processes tell each other in a round of an exchange, and what rank 0 tells all of them then: the *verdict*.
//!
//! | bytes | say |
//! |---|---|
//! | `+` message | what a process gives |
//! | `-` text | that it cannot go on, and why |
//! | `+`, and for each rank length (4) and message | the verdict: everyone's messages, in rank order |
//! | `-` JSON | the verdict: the one error that ends the attempt for all |
//!
//! So a process that fails says so instead of leaving the others to wait, and only rank 0 has to know which are missing. The
//! bytes are the same whatever carries them: [`crate::tcp`], or what a launcher offers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Longest message of a process: some endpoint strings, or an error's text.
pub const MESSAGE_LIMIT: usize = 16 * 1024;
/// Time after the deadline in which rank 0's verdict may still come: it names the missing ranks, so it is worth more than an
/// error of one's own.
pub const VERDICT_MARGIN: Duration = Duration::from_secs(5);
/// The contribution of a process that went away without one.
pub const GONE: &[u8] = b"-it went away during the rendezvous";

const GIVEN: u8 = b'+';
const FAILED: u8 = b'-';
const LENGTH_BYTES: usize = 4;
/// Longest text of an error, in bytes.
const TEXT_LIMIT: usize = 2000;

/// Contributions by rank.
pub type Contributions = BTreeMap<u32, Vec<u8>>;

/// What a process gives.
pub fn given(message: &[u8]) -> Vec<u8> {
    [&[GIVEN], message].concat()
}

/// That a process cannot go on.
pub fn failed(why: &str) -> Vec<u8> {
    [&[FAILED], shortened(why).as_bytes()].concat()
}

/// Whether a process says that it cannot go on.
pub fn is_failure(contribution: &[u8]) -> bool {
    contribution.first() == Some(&FAILED)
}

/// The most bytes of a verdict.
pub fn verdict_limit(size: u32) -> usize {
    1 + size as usize * (LENGTH_BYTES + 1 + MESSAGE_LIMIT)
}

/// What a process says of itself, as every terminal may show it.
fn shortened(text: &str) -> String {
    let mut text = text.to_owned();
    penstock_proto::error::shorten(&mut text, TEXT_LIMIT);
    text
}

/// How a round ended, the same for every process.
#[derive(Clone, PartialEq)]
pub enum Verdict {
    /// Everyone's message, in rank order.
    Given(Vec<Vec<u8>>),
    /// Not every process came.
    Late {
        /// Ranks that did not.
        missing: Vec<u32>,
        /// How long rank 0 waited.
        waited: Duration,
        /// What the system said where rank 0 could not let in all that came.
        no_room: Option<String>,
    },
    /// A process could not go on.
    Failed {
        /// Which one, and why.
        text: String,
    },
}

/// Of messages only their lengths: one may hold the job's secret.
impl fmt::Debug for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(messages) => {
                let lengths: Vec<usize> = messages.iter().map(Vec::len).collect();
                formatter.debug_struct("Given").field("bytes", &lengths).finish_non_exhaustive()
            }
            Self::Late { missing, waited, no_room } => {
                let mut shown = formatter.debug_struct("Late");
                shown.field("missing", missing).field("waited", waited).field("no_room", no_room).finish()
            }
            Self::Failed { text } => formatter.debug_struct("Failed").field("text", text).finish(),
        }
    }
}

/// What came is not a verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoVerdict {
    /// It does not begin as a verdict does, or says what none says.
    #[error("expected the messages of all processes, got something else")]
    Foreign,
    /// It is shorter than it says.
    #[error("the messages of all processes end in the middle of one")]
    Cut,
    /// Too few or too many messages.
    #[error("expected the messages of {expected} processes, got {got}")]
    Count {
        /// How many processes there are.
        expected: u32,
        /// How many messages came.
        got: usize,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Told {
    Late {
        missing: Vec<u32>,
        waited: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        no_room: Option<String>,
    },
    Failed {
        text: String,
    },
}

impl Verdict {
    /// The verdict over what all gave; over what came so far, where one of them cannot go on.
    pub fn over(contributions: &Contributions) -> Self {
        match contributions.iter().find(|(_, one)| is_failure(one)) {
            Some((rank, one)) => {
                let why = String::from_utf8_lossy(&one[1..]);
                // Rank 0 shows this text without having read it from a verdict.
                Self::Failed { text: shortened(&format!("rank {rank} could not join: {why}")) }
            }
            None => Self::Given(
                contributions.values().map(|one| one.get(1..).unwrap_or_default().to_vec()).collect(),
            ),
        }
    }

    /// Its bytes.
    pub fn spell(&self) -> Vec<u8> {
        let told = match self {
            Self::Given(messages) => {
                let mut bytes = vec![GIVEN];
                for message in messages {
                    let length = u32::try_from(message.len()).expect("a message is short");
                    bytes.extend_from_slice(&length.to_le_bytes());
                    bytes.extend_from_slice(message);
                }
                return bytes;
            }
            Self::Late { missing, waited, no_room } => {
                let (missing, waited) = (missing.clone(), waited.as_secs_f64());
                Told::Late { missing, waited, no_room: no_room.as_deref().map(shortened) }
            }
            Self::Failed { text } => Told::Failed { text: shortened(text) },
        };
        let told = serde_json::to_vec(&told).expect("numbers and text can be written");
        [vec![FAILED], told].concat()
    }

    /// Reads one that speaks of `size` processes.
    pub fn read(bytes: &[u8], size: u32) -> Result<Self, NoVerdict> {
        match bytes.split_first() {
            Some((&GIVEN, rest)) => messages(rest, size).map(Self::Given),
            Some((&FAILED, rest)) => match serde_json::from_slice(rest).map_err(|_| NoVerdict::Foreign)? {
                Told::Late { missing, waited, no_room } => {
                    let waited = Duration::try_from_secs_f64(waited).map_err(|_| NoVerdict::Foreign)?;
                    Ok(Self::Late { missing, waited, no_room: no_room.as_deref().map(shortened) })
                }
                Told::Failed { text } => Ok(Self::Failed { text: shortened(&text) }),
            },
            _ => Err(NoVerdict::Foreign),
        }
    }
}

fn messages(mut rest: &[u8], size: u32) -> Result<Vec<Vec<u8>>, NoVerdict> {
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or(NoVerdict::Cut)?;
        let (message, behind) =
            behind.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(NoVerdict::Cut)?;
        messages.push(message.to_vec());
        rest = behind;
    }
    if messages.len() == size as usize {
        Ok(messages)
    } else {
        Err(NoVerdict::Count { expected: size, got: messages.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_verdict_reads_back_as_it_was_spelled() {
        let verdicts = [
            Verdict::Given(vec![b"a".to_vec(), Vec::new(), vec![0; MESSAGE_LIMIT]]),
            Verdict::Late { missing: vec![1, 2], waited: Duration::from_millis(500), no_room: None },
            Verdict::Late { missing: vec![1], waited: Duration::ZERO, no_room: Some("no memory".to_owned()) },
            Verdict::Failed { text: "rank 1 could not join: \u{fc}".to_owned() },
        ];
        for verdict in verdicts {
            let spelled = verdict.spell();
            assert!(spelled.len() <= verdict_limit(3));
            assert_eq!(Verdict::read(&spelled, 3), Ok(verdict));
        }
    }

    #[test]
    fn a_verdict_does_not_show_what_was_said() {
        let shown = format!("{:?}", Verdict::Given(vec![b"[7, 7]".to_vec()]));
        assert_eq!(shown, "Given { bytes: [6], .. }");
    }

    #[test]
    fn a_verdict_that_is_cut_or_speaks_of_others_is_none() {
        let whole = Verdict::Given(vec![b"abc".to_vec(); 2]).spell();
        for end in 2..whole.len() {
            assert!(Verdict::read(&whole[..end], 2).is_err(), "{end} bytes");
        }
        assert_eq!(Verdict::read(&whole, 3), Err(NoVerdict::Count { expected: 3, got: 2 }));
        assert_eq!(
            Verdict::read(b"-{\"kind\": \"late\", \"missing\": [1], \"waited\": -1}", 2),
            Err(NoVerdict::Foreign)
        );
        assert_eq!(Verdict::read(b"GET /", 2), Err(NoVerdict::Foreign));
    }

    #[test]
    fn the_first_that_cannot_go_on_is_the_verdict() {
        let came = [(0, given(b"a")), (2, failed("no memory")), (3, failed("no disk"))];
        let text = "rank 2 could not join: no memory".to_owned();
        assert_eq!(Verdict::over(&came.into()), Verdict::Failed { text });
    }

    // Rank 0 in C showed it as it came.
    #[test]
    fn a_reason_is_clean_and_short_for_whoever_shows_the_verdict() {
        let raw = [b"-\x1b[2J".to_vec(), vec![b'x'; MESSAGE_LIMIT]].concat();
        let Verdict::Failed { text } = Verdict::over(&[(1, raw)].into()) else { panic!("it failed") };
        assert!(text.len() <= TEXT_LIMIT && !text.contains(char::is_control), "{text}");
    }

    #[test]
    fn a_long_reason_is_cut_between_two_characters() {
        let long = failed(&"\u{20ac}".repeat(TEXT_LIMIT));
        assert!(long.len() <= 1 + TEXT_LIMIT && std::str::from_utf8(&long).is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), begun in 0..3_usize) {
            let begins: [&[u8]; 3] = [b"", b"+", b"-{\"kind\": \"late\""];
            let _ = Verdict::read(&[begins[begun], &bytes].concat(), 2);
        }
    }
}
