//! Which way a process joins its job. One order, for every face: what the program says itself goes first, then what the
//! environment says.
//!
//! | what is said | way |
//! |---|---|
//! | servers: PENSTOCK_SERVERS (`penstock run`, or by hand) | those servers |
//! | a manager: PENSTOCK_MANAGER, with PENSTOCK_JOB and PENSTOCK_SECRET | the servers that the manager names |
//! | several processes, and where they meet: PENSTOCK_RENDEZVOUS | they meet there |
//! | several processes: the variables of a [launcher](crate::launcher) | they meet by the launcher's own means |
//! | nothing | this process is alone |

use crate::launcher::{BadVariable, Environment, HOW_TO_GIVE_A_SECRET, Launcher, Place};
use penstock_proto::message::Secret;

/// What a program says of its job itself; what it leaves open, the environment says.
#[derive(Default)]
pub struct Given<'a> {
    /// The job's name.
    pub job: Option<&'a str>,
    /// Its secret, in hex digits.
    pub secret: Option<&'a str>,
    /// Endpoint strings, in the servers' order.
    pub servers: Vec<&'a str>,
    /// Rank and size.
    pub place: Option<(u32, u32)>,
    /// What says so: a function's name, for errors.
    pub by: &'static str,
}

impl Given<'_> {
    /// A variable of the environment, as if the environment had what is said here.
    pub fn over(&self, environment: &Environment<'_>, name: &str) -> Option<String> {
        match name {
            "PENSTOCK_JOB" if self.job.is_some() => self.job.map(str::to_owned),
            "PENSTOCK_SECRET" if self.secret.is_some() => self.secret.map(str::to_owned),
            "PENSTOCK_SERVERS" if !self.servers.is_empty() => Some(self.servers.join(",")),
            // The environment's servers were started for the environment's job, and its processes meet for it.
            "PENSTOCK_SERVERS" | "PENSTOCK_RENDEZVOUS"
                if self.job.is_some_and(|job| job != environment.job()) =>
            {
                None
            }
            _ => environment.get(name),
        }
    }

    /// Where this process stands.
    fn place(&self, environment: &Environment<'_>) -> Result<Option<Place>, BadVariable> {
        let Some((rank, size)) = self.place else { return environment.place() };
        if rank >= size {
            return Err(BadVariable::OutOfSize { rank, size, announced_by: self.by });
        }
        // The launcher of the processes still says where they meet.
        let launcher = environment.place().ok().flatten().map(|place| place.launcher);
        let launcher = launcher.filter(|launcher| *launcher != Launcher::Penstock).unwrap_or(Launcher::Hand);
        Ok(Some(Place { launcher, rank, size, announced_by: self.by }))
    }
}

/// The way in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// These servers.
    Servers {
        /// Endpoint strings, in the servers' order.
        servers: Vec<String>,
        /// The job's.
        secret: Secret,
        /// This process among the workers.
        place: Place,
    },
    /// Those that a manager names.
    Manager {
        /// The manager's `HOST:PORT`.
        address: String,
        /// The job's.
        secret: Secret,
        /// This process, if anything says which it is; otherwise the manager gives it a rank.
        place: Option<Place>,
    },
    /// The processes meet over TCP, and start the servers.
    Rendezvous {
        /// Where: rank 0's `HOST:PORT`.
        at: String,
        /// The job's.
        secret: Secret,
        /// This process among them.
        place: Place,
    },
    /// They meet by what their launcher offers, and start the servers.
    Launcher(Place),
    /// This process is the only one.
    Alone {
        /// Where something says so.
        place: Option<Place>,
    },
}

/// Why there is no way in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    /// A variable that cannot be.
    #[error(transparent)]
    Variable(#[from] BadVariable),
    /// Servers without a secret.
    #[error("PENSTOCK_SERVERS names servers, but PENSTOCK_SECRET is not set")]
    ServersWithoutSecret,
    /// Servers without a place among the workers.
    #[error("PENSTOCK_SERVERS names servers, but {lacking} is not set")]
    ServersWithoutPlace {
        /// The variable that is not set.
        lacking: &'static str,
    },
    /// A manager without a job.
    #[error("PENSTOCK_MANAGER names the manager at {address}, but PENSTOCK_JOB is not set")]
    ManagerWithoutJob {
        /// The manager's.
        address: String,
    },
    /// A manager without a secret.
    #[error("PENSTOCK_MANAGER names the manager at {address}, but PENSTOCK_SECRET is not set")]
    ManagerWithoutSecret {
        /// The manager's.
        address: String,
    },
    /// A place to meet at without a secret.
    #[error("PENSTOCK_RENDEZVOUS says that {size} processes meet, but PENSTOCK_SECRET is not set")]
    RendezvousWithoutSecret {
        /// How many there are.
        size: u32,
    },
    /// A batch script instead of a step.
    #[error("SLURM_NTASKS says that {tasks} processes are meant to run, but srun did not start this one")]
    NoStep {
        /// How many were asked for.
        tasks: u32,
    },
}

impl NoWay {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Variable(error) => return error.hint(),
            Self::ServersWithoutSecret | Self::RendezvousWithoutSecret { .. } => HOW_TO_GIVE_A_SECRET,
            Self::ServersWithoutPlace { .. } => "start workers with `penstock run`",
            Self::ManagerWithoutJob { .. } => {
                "set PENSTOCK_JOB to the job's name, as `penstock job list` shows it"
            }
            Self::ManagerWithoutSecret { .. } => {
                "`penstock job create` writes the job's secret; give it to every worker as PENSTOCK_SECRET"
            }
            Self::NoStep { .. } => {
                "start the program with `srun` in the batch script; to run alone, unset SLURM_NTASKS"
            }
        }
        .to_owned()
    }
}

/// The way in for a process that says this itself, in an environment that has it [already](Given::over).
pub fn way(given: &Given<'_>, environment: &Environment<'_>) -> Result<Way, NoWay> {
    let place = given.place(environment)?;
    let servers = environment.servers();
    if !servers.is_empty() {
        let secret = environment.secret()?.ok_or(NoWay::ServersWithoutSecret)?;
        let lacking =
            || ["PENSTOCK_RANK", "PENSTOCK_SIZE"].into_iter().find(|name| environment.get(name).is_none());
        let place = place
            .ok_or_else(|| NoWay::ServersWithoutPlace { lacking: lacking().unwrap_or("PENSTOCK_RANK") })?;
        return Ok(Way::Servers { servers, secret, place });
    }
    if let Some(address) = environment.get("PENSTOCK_MANAGER") {
        if environment.get("PENSTOCK_JOB").is_none() {
            return Err(NoWay::ManagerWithoutJob { address });
        }
        return match environment.secret()? {
            Some(secret) => Ok(Way::Manager { address, secret, place }),
            None => Err(NoWay::ManagerWithoutSecret { address }),
        };
    }
    match place {
        Some(place) if place.size > 1 => among_several(environment, place),
        // A program that says that it is alone may be told of several, and of where others meet.
        Some(place) if given.place.is_some() => Ok(Way::Alone { place: Some(place) }),
        place => {
            if let Some(tasks) = environment.several_without_step() {
                return Err(NoWay::NoStep { tasks });
            }
            if place.is_none() {
                environment.refuse_rendezvous_alone()?;
            }
            Ok(Way::Alone { place })
        }
    }
}

fn among_several(environment: &Environment<'_>, place: Place) -> Result<Way, NoWay> {
    let Some(at) = environment.get("PENSTOCK_RENDEZVOUS") else { return Ok(Way::Launcher(place)) };
    match environment.secret()? {
        Some(secret) => Ok(Way::Rendezvous { at, secret, place }),
        None => Err(NoWay::RendezvousWithoutSecret { size: place.size }),
    }
}

/// The options of a job that a manager keeps: what it was created with counts where the process says nothing itself (`says`, by
/// an option's name), and what the program gives goes before all. The CA is the manager's: a server proves itself by the job's
/// secret, and may have made its certificate itself.
pub fn options_under_manager<'a>(
    of_job: impl IntoIterator<Item = (&'a str, &'a str)>,
    given: impl IntoIterator<Item = (&'a str, &'a str)>,
    says: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    of_job.into_iter().filter(move |(name, _)| !says(name)).chain(given).chain([("ca", "")])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "abababababababababababababababababababababababababababababababab";
    type Variables<'a> = &'a [(&'a str, &'a str)];

    const TWO: [(&str, &str); 2] = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];

    fn taken(given: &Given<'_>, variables: &[Variables<'_>]) -> Result<Way, NoWay> {
        let outer = |name: &str| {
            let found = variables.iter().copied().flatten().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let outer = Environment(&outer);
        way(given, &Environment(&|name| given.over(&outer, name)))
    }

    fn place(launcher: Launcher, rank: u32, size: u32, announced_by: &'static str) -> Place {
        Place { launcher, rank, size, announced_by }
    }

    #[test]
    fn each_way_goes_before_those_below_it() {
        let secret = Secret::from_hex(SECRET).expect("they are 64 digits");
        let place = || place(Launcher::Mpirun, 1, 2, "PMI_SIZE");
        let said: [Variables<'_>; 4] = [
            &[("PENSTOCK_SERVERS", "/a,/b"), ("PENSTOCK_SECRET", SECRET)],
            &[("PENSTOCK_MANAGER", "m:1"), ("PENSTOCK_JOB", "j"), ("PENSTOCK_SECRET", SECRET)],
            &[("PENSTOCK_RENDEZVOUS", "h:1"), ("PENSTOCK_SECRET", SECRET)],
            &TWO,
        ];
        let ways = [
            Way::Servers { servers: vec!["/a".to_owned(), "/b".to_owned()], secret, place: place() },
            Way::Manager { address: "m:1".to_owned(), secret, place: Some(place()) },
            Way::Rendezvous { at: "h:1".to_owned(), secret, place: place() },
            Way::Launcher(place()),
        ];
        for (at, expected) in ways.into_iter().enumerate() {
            assert_eq!(taken(&Given::default(), &said[at..]), Ok(expected));
        }
        assert_eq!(taken(&Given::default(), &[]), Ok(Way::Alone { place: None }));
    }

    #[test]
    fn what_a_program_says_goes_before_its_environment() {
        let given = Given {
            job: Some("mine"),
            secret: Some(SECRET),
            servers: vec!["/mine"],
            place: Some((2, 3)),
            by: "init()",
        };
        let environment: [(&str, &str); 3] =
            [("PENSTOCK_SERVERS", "/theirs"), ("PENSTOCK_SECRET", "hush"), ("PENSTOCK_MANAGER", "m:1")];
        let Ok(Way::Servers { servers, place: found, .. }) = taken(&given, &[&environment, &TWO]) else {
            panic!("there are servers")
        };
        assert_eq!((servers, found), (vec!["/mine".to_owned()], place(Launcher::Mpirun, 2, 3, "init()")));
        let refused = taken(&Given { place: Some((3, 3)), by: "init()", ..Given::default() }, &[]);
        let beyond = BadVariable::OutOfSize { rank: 3, size: 3, announced_by: "init()" };
        assert_eq!(refused, Err(NoWay::Variable(beyond)));
    }

    // Its processes came to the environment's servers, which were another job's.
    #[test]
    fn servers_and_a_rendezvous_of_another_job_are_not_this_ones() {
        let theirs: [Variables<'_>; 2] = [
            &[("PENSTOCK_SERVERS", "/a"), ("PENSTOCK_RENDEZVOUS", "h:1"), ("PENSTOCK_SECRET", SECRET)],
            &TWO,
        ];
        let mine = Given { job: Some("mine"), ..Given::default() };
        assert_eq!(taken(&mine, &theirs), Ok(Way::Launcher(place(Launcher::Mpirun, 1, 2, "PMI_SIZE"))));
        let same = Given { job: Some("job"), ..Given::default() };
        assert!(matches!(taken(&same, &theirs), Ok(Way::Servers { .. })));
    }

    #[test]
    fn what_lacks_something_is_refused_by_name_and_with_a_hint() {
        let servers = ("PENSTOCK_SERVERS", "/a");
        let (manager, secret) = (("PENSTOCK_MANAGER", "m:1"), ("PENSTOCK_SECRET", SECRET));
        let cases: [(&[Variables<'_>], &str); 8] = [
            (&[&[servers], &TWO], "PENSTOCK_SERVERS names servers, but PENSTOCK_SECRET is not set"),
            (&[&[servers, secret]], "PENSTOCK_SERVERS names servers, but PENSTOCK_RANK is not set"),
            (&[&[manager, secret]], "the manager at m:1, but PENSTOCK_JOB is not set"),
            (&[&[manager, ("PENSTOCK_JOB", "j")]], "the manager at m:1, but PENSTOCK_SECRET is not set"),
            (&[&[("PENSTOCK_RENDEZVOUS", "h:1")], &TWO], "2 processes meet, but PENSTOCK_SECRET is not set"),
            (&[&[("PENSTOCK_RENDEZVOUS", "h:1")]], "PENSTOCK_RANK and PENSTOCK_SIZE are not set"),
            (&[&[("SLURM_NTASKS", "4")]], "srun did not start this one"),
            (&[&[servers, ("PENSTOCK_SECRET", "hush")]], "got 4 characters"),
        ];
        for (variables, says) in cases {
            let refused = taken(&Given::default(), variables).expect_err(says);
            assert!(refused.to_string().contains(says), "{refused}");
            assert!(!refused.hint().is_empty() && !refused.to_string().contains("hush"));
        }
    }

    #[test]
    fn a_program_that_says_that_it_is_alone_may_be_told_of_others() {
        let variables: [Variables<'_>; 2] = [&[("SLURM_NTASKS", "4")], &[("PENSTOCK_RENDEZVOUS", "h:1")]];
        let alone = Given { place: Some((0, 1)), by: "init()", ..Given::default() };
        let expected = Some(place(Launcher::Hand, 0, 1, "init()"));
        assert_eq!(taken(&alone, &variables), Ok(Way::Alone { place: expected }));
    }

    #[test]
    fn a_managed_job_was_created_with_what_counts_where_the_process_says_nothing() {
        let of_job = [("deadline", "9"), ("chunk_bytes", "4096"), ("ca", "/theirs")];
        let given = [("ca", "/mine"), ("lease", "3")];
        let found: Vec<_> = options_under_manager(of_job, given, |name| name == "deadline").collect();
        let last = |name: &str| found.iter().rfind(|(known, _)| *known == name).map(|(_, value)| *value);
        assert_eq!((last("deadline"), last("chunk_bytes")), (None, Some("4096")));
        assert_eq!((last("lease"), last("ca")), (Some("3"), Some("")));
    }
}
