//! What the environment says of this process and its job: Penstock's own variables, and those that launchers set.
//!
//! | launcher | rank | size |
//! |---|---|---|
//! | Penstock, or by hand | PENSTOCK_RANK | PENSTOCK_SIZE |
//! | torchrun, or by hand | RANK | WORLD_SIZE |
//! | Open MPI's mpirun | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_SIZE |
//! | MPICH's and Intel's mpiexec | PMI_RANK | PMI_SIZE |
//! | srun | SLURM_PROCID | SLURM_STEP_NUM_TASKS, SLURM_NTASKS |
//!
//! The order matters: torchrun and mpirun are themselves started under srun, and leave its variables to their processes.

use crate::introduce::Topology;
use penstock_proto::message::Secret;

/// How a process gets what it lacks.
pub const HOW_TO_GIVE_A_SECRET: &str = "make one where the job is started, so that every process gets it: export PENSTOCK_SECRET=$(penstock secret)";

/// What started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `penstock run`, or a user by hand.
    Penstock,
    /// None that is known: the program says rank and size itself.
    Hand,
    /// PyTorch's.
    Torchrun,
    /// MPI's.
    Mpirun,
    /// Slurm's.
    Srun,
}

impl Launcher {
    /// As Python calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penstock | Self::Hand => "penstock",
            Self::Torchrun => "torchrun",
            Self::Mpirun => "mpirun",
            Self::Srun => "srun",
        }
    }

    /// Where it is explained.
    pub fn page(self) -> &'static str {
        match self {
            Self::Penstock | Self::Hand => "docs/launchers/penstock-run.md",
            Self::Torchrun => "docs/launchers/torchrun.md",
            Self::Mpirun => "docs/launchers/mpirun.md",
            Self::Srun => "docs/launchers/slurm.md",
        }
    }
}

/// This process among those that were started together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What started it.
    pub launcher: Launcher,
    /// Which it is.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// The variable that says how many.
    pub announced_by: &'static str,
}

struct Source {
    launcher: Launcher,
    rank: &'static str,
    size: &'static [&'static str],
}

const SOURCES: [Source; 5] = [
    Source { launcher: Launcher::Penstock, rank: "PENSTOCK_RANK", size: &["PENSTOCK_SIZE"] },
    Source { launcher: Launcher::Torchrun, rank: "RANK", size: &["WORLD_SIZE"] },
    Source { launcher: Launcher::Mpirun, rank: "OMPI_COMM_WORLD_RANK", size: &["OMPI_COMM_WORLD_SIZE"] },
    Source { launcher: Launcher::Mpirun, rank: "PMI_RANK", size: &["PMI_SIZE"] },
    Source {
        launcher: Launcher::Srun,
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
    },
];

/// Where launchers say how many of the processes are on this host.
const ON_THIS_HOST: [&str; 3] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"];

/// Why the environment cannot be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadVariable {
    /// It holds no number.
    #[error("expected {name} to be a whole number, got `{got}`")]
    NoNumber {
        /// Its name.
        name: String,
        /// What it holds.
        got: String,
    },
    /// Several processes, and none knows which it is.
    #[error(
        "{announced_by} says that {size} processes were started, but {rank} does not say which of them this is"
    )]
    NoRank {
        /// Whose variables they are.
        launcher: Launcher,
        /// The variable that says how many there are.
        announced_by: &'static str,
        /// How many.
        size: u32,
        /// The variable that is not set.
        rank: &'static str,
    },
    /// A rank without a size: each process would train alone.
    #[error("{rank} says that this process is number {got} of several, but {size} is not set")]
    NoSize {
        /// The variable that says which it is.
        rank: &'static str,
        /// What it says.
        got: String,
        /// The variable that is not set.
        size: &'static str,
    },
    /// A place to meet, but nothing that says how many processes meet.
    #[error("PENSTOCK_RENDEZVOUS says where processes meet, but PENSTOCK_RANK and PENSTOCK_SIZE are not set")]
    RendezvousAlone,
    /// A rank beyond the size.
    #[error("rank {rank} is outside the job's size, which {announced_by} says is {size}")]
    OutOfSize {
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
        /// What says it.
        announced_by: &'static str,
    },
    /// Not 64 hex digits. It is not shown.
    #[error("expected PENSTOCK_SECRET to be 64 hex digits, got {got} characters")]
    NoSecret {
        /// How many characters it has.
        got: usize,
    },
    /// Servers where no process could start one.
    #[error(
        "PENSTOCK_TOPOLOGY={got} asks for servers on hosts without workers, where no process could start one"
    )]
    NoWorkersThere {
        /// `ncc` or `ncs`.
        got: String,
    },
    /// None that is known.
    #[error(
        "expected PENSTOCK_TOPOLOGY to be cs (a server on each host) or cc (one, on rank 0's), got `{got}`"
    )]
    NoTopology {
        /// What it is.
        got: String,
    },
}

impl BadVariable {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::NoNumber { .. } => "start workers with `penstock run`".to_owned(),
            Self::NoRank { launcher, announced_by, .. } => {
                let page = launcher.page();
                format!("let the launcher set both, as {page} shows; to train alone, unset {announced_by}")
            }
            Self::NoSize { rank, size, .. } => {
                format!("set {size} to the number of processes, the same for all; to train alone, unset {rank}")
            }
            Self::RendezvousAlone => {
                "set PENSTOCK_SIZE to the number of processes, the same for all, and PENSTOCK_RANK to this one's, from 0, or let a launcher do so; to train alone, unset PENSTOCK_RENDEZVOUS".to_owned()
            }
            Self::OutOfSize { .. } => "ranks count from 0; let the launcher set both".to_owned(),
            Self::NoSecret { .. } => HOW_TO_GIVE_A_SECRET.to_owned(),
            Self::NoWorkersThere { .. } => {
                "start `penstock server` on those hosts and give the workers PENSTOCK_MANAGER or PENSTOCK_SERVERS".to_owned()
            }
            Self::NoTopology { .. } => {
                "for servers on hosts without workers, start `penstock server` there and give the workers PENSTOCK_MANAGER or PENSTOCK_SERVERS".to_owned()
            }
        }
    }
}

/// Environment variables by name; one that is empty counts as not set.
pub struct Environment<'a>(pub &'a dyn Fn(&str) -> Option<String>);

impl std::fmt::Debug for Environment<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It holds the secret.
        formatter.debug_struct("Environment").finish_non_exhaustive()
    }
}

impl Environment<'_> {
    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    /// A variable's value that is a whole number, in digits alone.
    pub fn whole_number(&self, name: &str) -> Result<u32, BadVariable> {
        let got = self.get(name).unwrap_or_default();
        digits(&got).ok_or_else(|| BadVariable::NoNumber { name: name.to_owned(), got })
    }

    /// Whether srun started this process. A batch script has SLURM_NTASKS and SLURM_PROCID too, but is one process.
    fn is_step(&self) -> bool {
        ["SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"].iter().any(|name| self.get(name).is_some())
    }

    /// Where this process stands; `None` if it was started alone.
    pub fn place(&self) -> Result<Option<Place>, BadVariable> {
        for &Source { launcher, rank, size } in &SOURCES {
            let Some(&announced_by) = size.iter().find(|name| self.get(name).is_some()) else {
                if launcher == Launcher::Penstock {
                    self.refuse_half(rank, size[0])?;
                }
                continue;
            };
            if launcher == Launcher::Srun && !self.is_step() {
                continue;
            }
            let size = self.whole_number(announced_by)?;
            if self.get(rank).is_none() {
                if size > 1 {
                    return Err(BadVariable::NoRank { launcher, announced_by, size, rank });
                }
                continue;
            }
            let rank = self.whole_number(rank)?;
            // Also of one process: it would train alone, as rank 0 of 1.
            if rank >= size {
                return Err(BadVariable::OutOfSize { rank, size, announced_by });
            }
            return Ok(Some(Place { launcher, rank, size, announced_by }));
        }
        for Source { rank, size, .. } in SOURCES.iter().filter(|source| source.launcher == Launcher::Mpirun) {
            self.refuse_half(rank, size[0])?;
        }
        // `RANK` alone is a name that any program may use; beside torchrun's rendezvous address it is torchrun's.
        if ["MASTER_ADDR", "MASTER_PORT"].iter().any(|name| self.get(name).is_some()) {
            self.refuse_half("RANK", "WORLD_SIZE")?;
        }
        Ok(None)
    }

    /// Refuses a rank without a size: each process would train alone, as rank 0 of 1.
    fn refuse_half(&self, rank: &'static str, size: &'static str) -> Result<(), BadVariable> {
        match (self.get(rank), self.get(size)) {
            (Some(got), None) => Err(BadVariable::NoSize { rank, got, size }),
            _ => Ok(()),
        }
    }

    /// Refuses a rendezvous address where nothing says how many meet; for a process that has no place.
    pub fn refuse_rendezvous_alone(&self) -> Result<(), BadVariable> {
        match self.get("PENSTOCK_RENDEZVOUS") {
            Some(_) => Err(BadVariable::RendezvousAlone),
            None => Ok(()),
        }
    }

    /// Slurm's count of tasks, where the program runs in the batch script itself instead of in a step.
    pub fn several_without_step(&self) -> Option<u32> {
        let tasks = digits(&self.get("SLURM_NTASKS")?)?;
        (tasks > 1 && !self.is_step()).then_some(tasks)
    }

    /// The servers' endpoint strings, in the servers' order; empty where none are named.
    pub fn servers(&self) -> Vec<String> {
        let named = self.get("PENSTOCK_SERVERS").unwrap_or_default();
        named.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect()
    }

    /// The job's name.
    pub fn job(&self) -> String {
        self.get("PENSTOCK_JOB").unwrap_or_else(|| "job".to_owned())
    }

    /// The job's secret, if there is one.
    pub fn secret(&self) -> Result<Option<Secret>, BadVariable> {
        let Some(hex) = self.get("PENSTOCK_SECRET") else { return Ok(None) };
        let got = hex.chars().count();
        Secret::from_hex(&hex).map(Some).ok_or(BadVariable::NoSecret { got })
    }

    /// Where the servers stand that the job starts itself.
    pub fn topology(&self) -> Result<Topology, BadVariable> {
        match self.get("PENSTOCK_TOPOLOGY") {
            None => Ok(Topology::Cs),
            Some(got) => match &got[..] {
                "cs" => Ok(Topology::Cs),
                "cc" => Ok(Topology::Cc),
                "ncc" | "ncs" => Err(BadVariable::NoWorkersThere { got }),
                _ => Err(BadVariable::NoTopology { got }),
            },
        }
    }

    /// Whether some of the processes are on other hosts, as far as the launcher says.
    pub fn on_several_hosts(&self, place: &Place) -> bool {
        let nodes = |name| self.get(name).and_then(|nodes| digits(&nodes));
        match place.launcher {
            Launcher::Srun => {
                nodes("SLURM_STEP_NUM_NODES").or_else(|| nodes("SLURM_NNODES")).is_some_and(|n| n > 1)
            }
            _ => ON_THIS_HOST.iter().find_map(|name| nodes(name)).is_some_and(|here| here < place.size),
        }
    }

    /// What the processes that were started together have in common, and no others on this host at this time.
    pub fn launch(&self, launcher: Launcher) -> Option<String> {
        let all = |names: &[&str]| {
            let found: Option<Vec<String>> = names.iter().map(|name| self.get(name)).collect();
            found.map(|values| values.join("/"))
        };
        let one = |name: &str| self.get(name).unwrap_or_default();
        match launcher {
            Launcher::Mpirun => all(&["PMIX_NAMESPACE"]).or_else(|| all(&["OMPI_MCA_ess_base_jobid"])),
            Launcher::Srun => {
                let step = all(&["SLURM_JOB_ID", "SLURM_STEP_ID"])?;
                Some(format!("{step}/{}", one("SLURM_RESTART_COUNT")))
            }
            Launcher::Torchrun => {
                let rendezvous = all(&["MASTER_ADDR", "MASTER_PORT"])?;
                let (run, restart) = (one("TORCHELASTIC_RUN_ID"), one("TORCHELASTIC_RESTART_COUNT"));
                Some(format!("{rendezvous}/{run}/{restart}"))
            }
            Launcher::Penstock | Launcher::Hand => None,
        }
    }
}

fn digits(text: &str) -> Option<u32> {
    // A sign is not a digit.
    text.bytes().all(|one| one.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Option<Place>, BadVariable> {
        Environment(&lookup(variables)).place()
    }

    fn lookup(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        move |name| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    #[test]
    fn each_launcher_says_who_this_is() {
        let cases: [(&[(&str, &str)], Launcher); 5] = [
            (&[("PENSTOCK_RANK", "1"), ("PENSTOCK_SIZE", "3")], Launcher::Penstock),
            (&[("RANK", "1"), ("WORLD_SIZE", "3")], Launcher::Torchrun),
            (&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3")], Launcher::Mpirun),
            (&[("PMI_RANK", "1"), ("PMI_SIZE", "3")], Launcher::Mpirun),
            (&[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "3")], Launcher::Srun),
        ];
        for (variables, launcher) in cases {
            let found = place(variables).expect("it is whole").expect("there are several");
            assert_eq!((found.launcher, found.rank, found.size), (launcher, 1, 3));
        }
    }

    #[test]
    fn what_was_started_last_goes_first() {
        let slurm = [
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        let found = place(&slurm).expect("it is whole").expect("there are several");
        assert_eq!((found.launcher, found.rank), (Launcher::Mpirun, 2));
    }

    #[test]
    fn a_batch_script_is_one_process_and_is_told_so_where_more_were_asked_for() {
        let batch = lookup(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]);
        assert_eq!(Environment(&batch).place(), Ok(None));
        assert_eq!(Environment(&batch).several_without_step(), Some(4));
    }

    #[test]
    fn a_size_without_a_rank_is_refused_unless_it_is_one() {
        assert_eq!(place(&[("WORLD_SIZE", "1")]), Ok(None));
        let refused = place(&[("WORLD_SIZE", "2")]);
        assert_eq!(
            refused,
            Err(BadVariable::NoRank {
                launcher: Launcher::Torchrun,
                announced_by: "WORLD_SIZE",
                size: 2,
                rank: "RANK"
            })
        );
    }

    // Each process trained alone, in silence.
    #[test]
    fn a_rank_without_a_size_is_refused_unless_it_is_anybodys_name() {
        for (rank, size) in [
            ("PENSTOCK_RANK", "PENSTOCK_SIZE"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
        ] {
            let got = "1".to_owned();
            assert_eq!(place(&[(rank, "1")]), Err(BadVariable::NoSize { rank, got, size }));
        }
        assert_eq!(place(&[("RANK", "1")]), Ok(None));
        assert!(matches!(
            place(&[("RANK", "1"), ("MASTER_ADDR", "a")]),
            Err(BadVariable::NoSize { rank: "RANK", .. })
        ));
        let step = [("PMI_RANK", "1"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "3")];
        assert_eq!(place(&step).unwrap().unwrap().launcher, Launcher::Srun);
    }

    // Each process trained alone, in silence, where the size was one or missing.
    #[test]
    fn a_rank_outside_the_size_is_refused_for_every_size() {
        for (rank, size) in [(1, 1), (0, 0), (3, 0), (2, 2)] {
            for (name, announced_by) in [("PENSTOCK_RANK", "PENSTOCK_SIZE"), ("RANK", "WORLD_SIZE")] {
                let refused = place(&[(name, &rank.to_string()), (announced_by, &size.to_string())]);
                assert_eq!(refused, Err(BadVariable::OutOfSize { rank, size, announced_by }));
            }
        }
    }

    #[test]
    fn a_rank_that_is_no_number_is_refused_by_its_name() {
        for got in ["-1", "+1", " 1", "1x", "4294967296", "\u{ff11}"] {
            let refused = place(&[("RANK", got), ("WORLD_SIZE", "2")]);
            let (name, got) = ("RANK".to_owned(), got.to_owned());
            assert_eq!(refused, Err(BadVariable::NoNumber { name, got }));
        }
    }

    #[test]
    fn a_secret_that_is_none_is_refused_and_not_shown() {
        let refused =
            Environment(&lookup(&[("PENSTOCK_SECRET", "hush")])).secret().expect_err("it is too short");
        assert!(refused.to_string().contains("4 characters") && !refused.to_string().contains("hush"));
    }

    #[test]
    fn topologies_that_need_hosts_without_workers_are_explained() {
        let topology = |got| Environment(&lookup(&[("PENSTOCK_TOPOLOGY", got)])).topology();
        assert_eq!((topology(""), topology("cc")), (Ok(Topology::Cs), Ok(Topology::Cc)));
        for got in ["ncc", "ncs"] {
            assert_eq!(topology(got), Err(BadVariable::NoWorkersThere { got: got.to_owned() }));
        }
        assert_eq!(topology("ring"), Err(BadVariable::NoTopology { got: "ring".to_owned() }));
    }

    #[test]
    fn processes_on_other_hosts_are_noticed() {
        let two =
            Place { launcher: Launcher::Mpirun, rank: 0, size: 2, announced_by: "OMPI_COMM_WORLD_SIZE" };
        assert!(Environment(&lookup(&[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")])).on_several_hosts(&two));
        assert!(!Environment(&lookup(&[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")])).on_several_hosts(&two));
        assert!(!Environment(&lookup(&[])).on_several_hosts(&two));
        let step = Place { launcher: Launcher::Srun, ..two };
        assert!(Environment(&lookup(&[("SLURM_NNODES", "2")])).on_several_hosts(&step));
    }

    #[test]
    fn two_launches_at_one_time_have_different_names() {
        let launch = |variables: &[(&str, &str)], launcher| Environment(&lookup(variables)).launch(launcher);
        let first = launch(&[("PMIX_NAMESPACE", "prterun-a-1@1")], Launcher::Mpirun);
        assert_ne!(first, launch(&[("PMIX_NAMESPACE", "prterun-a-2@1")], Launcher::Mpirun));
        let again = [("MASTER_ADDR", "a"), ("MASTER_PORT", "1"), ("TORCHELASTIC_RESTART_COUNT", "1")];
        assert_ne!(launch(&again, Launcher::Torchrun), launch(&again[..2], Launcher::Torchrun));
        assert_eq!(launch(&[], Launcher::Srun), None);
    }
}
