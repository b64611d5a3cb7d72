//! What processes say of themselves in the first round of an exchange, and what every one of them concludes from it: which of
//! them start servers. In the second round those that started one give its endpoint string.

use penstock_fabric::net::endpoint::Endpoint;
use penstock_proto::message::MAX_SERVERS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Longest name of a job in an error, in bytes.
const NAME_SHOWN: usize = 200;

/// Where the servers stand that the job starts itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One on each host.
    #[default]
    Cs,
    /// One, on rank 0's.
    Cc,
}

/// The job's secret where rank 0 has made it, in hex digits. It is not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MadeSecret(pub String);

impl fmt::Debug for MadeSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MadeSecret(..)")
    }
}

/// A process, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// An id that two processes share exactly if they may share memory.
    pub host: String,
    /// The job that it was started for.
    pub job: String,
    /// Whether it was given the job's secret.
    pub has_secret: bool,
    /// Rank 0's counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// If no process was given a secret, and the launcher's own secrets travel the same way: the one that rank 0 made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<MadeSecret>,
}

/// Why the processes are not one job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    /// Another program, or another version.
    #[error("rank {rank} sent something that is not understood")]
    Foreign {
        /// Whose it is.
        rank: usize,
    },
    /// Two jobs.
    #[error("rank {rank} was started for the job '{job}', rank 0 for '{first}'")]
    Job {
        /// The first that differs.
        rank: usize,
        /// Its job.
        job: String,
        /// Rank 0's.
        first: String,
    },
    /// Some were given a secret.
    #[error("rank {having} has a PENSTOCK_SECRET, rank {lacking} has none")]
    Secret {
        /// One that was.
        having: usize,
        /// One that was not.
        lacking: usize,
    },
    /// It was one of those that start servers.
    #[error("rank {rank} had to start a server, and named none")]
    NoServer {
        /// Which one.
        rank: usize,
    },
}

impl Disagreement {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Foreign { .. } => "is another program there?",
            Self::Job { .. } => "give all processes the same PENSTOCK_JOB",
            Self::Secret { .. } => "give it to all processes (mpirun: -x PENSTOCK_SECRET), or to none",
            Self::NoServer { .. } => "see its output",
        }
    }
}

/// What all processes have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The rank that starts each server, in the servers' order.
    pub owners: Vec<usize>,
    /// Whether all processes share a host, and with it memory.
    pub one_host: bool,
    /// The secret that rank 0 has made.
    pub secret: Option<MadeSecret>,
}

impl Introduction {
    /// Its bytes.
    pub fn spell(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text can be written")
    }
}

/// The plan, from everyone's introduction in rank order; every process comes to the same answer.
pub fn agree(messages: &[Vec<u8>]) -> Result<Plan, Disagreement> {
    let read = |(rank, message): (usize, &Vec<u8>)| {
        serde_json::from_slice::<Introduction>(message).map_err(|_| Disagreement::Foreign { rank })
    };
    let everyone: Vec<Introduction> = messages.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let Some(first) = everyone.first() else { return Err(Disagreement::Foreign { rank: 0 }) };
    for (rank, one) in everyone.iter().enumerate() {
        if one.job != first.job {
            return Err(Disagreement::Job { rank, job: shown(&one.job), first: shown(&first.job) });
        }
        if one.has_secret != first.has_secret {
            let (having, lacking) = if one.has_secret { (rank, 0) } else { (0, rank) };
            return Err(Disagreement::Secret { having, lacking });
        }
    }
    let hosts: Vec<&str> = everyone.iter().map(|one| &one.host[..]).collect();
    let (owners, one_host) = plan(&hosts, first.topology.unwrap_or_default());
    Ok(Plan { owners, one_host, secret: first.secret.clone() })
}

/// A name that another process gives itself, as every terminal may show it.
fn shown(name: &str) -> String {
    let mut name = name.to_owned();
    penstock_proto::error::shorten(&mut name, NAME_SHOWN);
    name
}

/// The servers' endpoint strings, in the servers' order, from what each rank has said in the second round.
pub fn servers(owners: &[usize], told: &[Vec<u8>]) -> Result<Vec<String>, Disagreement> {
    let named = |&rank: &usize| match told.get(rank).map(|one| std::str::from_utf8(one)) {
        None | Some(Ok("")) => Err(Disagreement::NoServer { rank }),
        // Errors and logs show it.
        Some(Ok(text)) if !penstock_proto::error::is_harmless(text) => Err(Disagreement::Foreign { rank }),
        Some(Ok(text)) if text.parse::<Endpoint>().is_ok() => Ok(text.to_owned()),
        Some(_) => Err(Disagreement::Foreign { rank }),
    };
    owners.iter().map(named).collect()
}

/// Which ranks start servers, from the host of each; and whether all are on one.
pub fn plan(hosts: &[&str], topology: Topology) -> (Vec<usize>, bool) {
    let mut known = BTreeSet::new();
    let mut first: Vec<usize> = (0..hosts.len()).filter(|&rank| known.insert(hosts[rank])).collect();
    first.truncate(match topology {
        Topology::Cs => MAX_SERVERS as usize,
        Topology::Cc => 1,
    });
    (first, known.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(host: &str) -> Introduction {
        let (host, job) = (host.to_owned(), "job".to_owned());
        Introduction { host, job, has_secret: true, topology: None, secret: None }
    }

    fn agreed(everyone: &[Introduction]) -> Result<Plan, Disagreement> {
        agree(&everyone.iter().map(Introduction::spell).collect::<Vec<_>>())
    }

    #[test]
    fn the_first_of_each_host_starts_its_server_or_rank_0_the_only_one() {
        assert_eq!(plan(&["a", "a", "b", "b"], Topology::Cs), (vec![0, 2], false));
        assert_eq!(plan(&["a", "b"], Topology::Cc), (vec![0], false));
        assert_eq!(plan(&["a", "a"], Topology::Cs), (vec![0], true));
    }

    #[test]
    fn rank_0_says_where_servers_stand() {
        let cc = Introduction { topology: Some(Topology::Cc), ..from("a") };
        assert_eq!(agreed(&[cc.clone(), from("b")]).map(|plan| plan.owners), Ok(vec![0]));
        assert_eq!(agreed(&[from("a"), cc]).map(|plan| plan.owners), Ok(vec![0]));
        assert_eq!(agreed(&[from("a"), from("b")]).map(|plan| plan.owners), Ok(vec![0, 1]));
    }

    #[test]
    fn the_servers_are_those_that_their_owners_name() {
        let odd = "/x\u{2028}hint: look there".as_bytes();
        let told =
            [&b"tcp://10.0.0.1:7"[..], b"", b"/run/s", b"tcp://:", b"\xff", b"unix:/x\x1b[2J", b"/x\n", odd];
        let told = told.map(<[u8]>::to_vec);
        let named = vec!["tcp://10.0.0.1:7".to_owned(), "/run/s".to_owned()];
        assert_eq!(servers(&[0, 2], &told), Ok(named));
        for (rank, refused) in [
            (1, Disagreement::NoServer { rank: 1 }),
            (3, Disagreement::Foreign { rank: 3 }),
            (4, Disagreement::Foreign { rank: 4 }),
            (5, Disagreement::Foreign { rank: 5 }),
            (6, Disagreement::Foreign { rank: 6 }),
            (7, Disagreement::Foreign { rank: 7 }),
            (8, Disagreement::NoServer { rank: 8 }),
        ] {
            assert_eq!(servers(&[0, rank], &told), Err(refused));
        }
    }

    #[test]
    fn whoever_shows_what_was_said_does_not_show_the_secret() {
        let secret = Some(MadeSecret("abad1dea".repeat(8)));
        let first = Introduction { has_secret: false, secret, ..from("a") };
        let plan = agreed(std::slice::from_ref(&first)).expect("it is alone");
        assert_eq!(plan.secret, first.secret);
        for shown in [format!("{first:?}"), format!("{plan:?}"), format!("{plan:#?}")] {
            assert!(!shown.contains("abad1dea"), "{shown}");
        }
    }

    #[test]
    fn processes_of_two_jobs_and_those_without_the_secret_are_named() {
        let other = Introduction { job: "other".to_owned(), ..from("a") };
        let refused = agreed(&[from("a"), other]).expect_err("they are two");
        assert_eq!(refused.to_string(), "rank 1 was started for the job 'other', rank 0 for 'job'");
        let hostile = Introduction { job: format!("\x1b[2J{}", "x".repeat(5000)), ..from("a") };
        for everyone in [[from("a"), hostile.clone()], [hostile, from("a")]] {
            let text = agreed(&everyone).expect_err("they are two").to_string();
            assert!(text.len() < 500 && !text.contains(char::is_control), "{text}");
        }
        let lacking = Introduction { has_secret: false, ..from("a") };
        assert_eq!(agreed(&[from("a"), lacking]), Err(Disagreement::Secret { having: 0, lacking: 1 }));
        assert_eq!(agree(&[from("a").spell(), b"[]".to_vec()]), Err(Disagreement::Foreign { rank: 1 }));
    }
}
