//! What the environment says: Penstock's own variables, and those that launchers set.
//!
//! The same table as `penstock.rendezvous.environment`, in the same order: torchrun and mpirun are themselves started under
//! srun, and leave its variables to their processes.

use super::JoinError;
use penstock_join::introduce::Topology;
use penstock_proto::message::Secret;

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Launcher {
    Penstock,
    /// None that is known: the program says rank and size itself.
    Hand,
    Torchrun,
    Mpirun,
    Srun,
}

/// This process among those that were started together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) launcher: Launcher,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The variable that says how many there are.
    pub(crate) announced_by: &'static str,
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

/// Environment variables by name; one that is empty counts as not set.
pub(crate) struct Environment<'a>(pub(crate) &'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn whole_number(&self, name: &'static str) -> Result<u32, JoinError> {
        let got = self.get(name).unwrap_or_default();
        got.parse().map_err(|_| JoinError::NoNumber { name, got })
    }

    /// Whether srun started this process. A batch script has SLURM_NTASKS and SLURM_PROCID too, but is one process.
    fn is_step(&self) -> bool {
        ["SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"].iter().any(|name| self.get(name).is_some())
    }

    /// Where this process stands; `None` if it was started alone.
    pub(crate) fn place(&self) -> Result<Option<Place>, JoinError> {
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
                    return Err(JoinError::NoRank { announced_by, size, rank });
                }
                continue;
            }
            let rank = self.whole_number(rank)?;
            // Also of one process: it would train alone, as rank 0 of 1.
            if rank >= size {
                return Err(JoinError::OutOfSize { rank, size, announced_by });
            }
            return Ok(Some(Place { launcher, rank, size, announced_by }));
        }
        for Source { rank, size, .. } in SOURCES.iter().filter(|source| source.launcher == Launcher::Mpirun) {
            self.refuse_half(rank, size[0])?;
        }
        // `RANK` alone is anybody's name; beside torchrun's rendezvous address it is torchrun's.
        if ["MASTER_ADDR", "MASTER_PORT"].iter().any(|name| self.get(name).is_some()) {
            self.refuse_half("RANK", "WORLD_SIZE")?;
        }
        Ok(None)
    }

    /// Refuses a rank without a size: each process would train alone, as rank 0 of 1.
    fn refuse_half(&self, rank: &'static str, size: &'static str) -> Result<(), JoinError> {
        match (self.get(rank), self.get(size)) {
            (Some(got), None) => Err(JoinError::NoSize { rank, got, size }),
            _ => Ok(()),
        }
    }

    /// Refuses a rendezvous address where nothing says how many meet; for a process that has no place.
    pub(crate) fn refuse_rendezvous_alone(&self) -> Result<(), JoinError> {
        match self.get("PENSTOCK_RENDEZVOUS") {
            Some(_) => Err(JoinError::RendezvousAlone),
            None => Ok(()),
        }
    }

    /// Slurm's count of tasks, where the program runs in the batch script itself instead of in a step.
    pub(crate) fn several_without_step(&self) -> Option<u32> {
        let tasks = self.get("SLURM_NTASKS")?.parse().ok()?;
        (tasks > 1 && !self.is_step()).then_some(tasks)
    }

    /// The servers' endpoint strings, in the servers' order; empty where none are named.
    pub(crate) fn servers(&self) -> Vec<String> {
        let named = self.get("PENSTOCK_SERVERS").unwrap_or_default();
        named.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect()
    }

    pub(crate) fn job(&self) -> String {
        self.get("PENSTOCK_JOB").unwrap_or_else(|| "job".to_owned())
    }

    pub(crate) fn secret(&self) -> Result<Option<Secret>, JoinError> {
        let Some(hex) = self.get("PENSTOCK_SECRET") else { return Ok(None) };
        let got = hex.chars().count();
        Secret::from_hex(&hex).map(Some).ok_or(JoinError::NoSecret { got })
    }

    /// Where the servers stand that the job starts itself.
    pub(crate) fn topology(&self) -> Result<Topology, JoinError> {
        match self.get("PENSTOCK_TOPOLOGY").as_deref() {
            None | Some("cs") => Ok(Topology::Cs),
            Some("cc") => Ok(Topology::Cc),
            Some(got) => Err(JoinError::NoTopology { got: got.to_owned() }),
        }
    }

    /// Whether some of the processes are on other hosts, as far as the launcher says.
    pub(crate) fn on_several_hosts(&self, place: &Place) -> bool {
        let nodes = |name| self.get(name).and_then(|nodes| nodes.parse::<u32>().ok());
        match place.launcher {
            Launcher::Srun => {
                nodes("SLURM_STEP_NUM_NODES").or_else(|| nodes("SLURM_NNODES")).is_some_and(|n| n > 1)
            }
            _ => ON_THIS_HOST.iter().find_map(|name| nodes(name)).is_some_and(|here| here < place.size),
        }
    }

    /// What the processes that were started together have in common, and no others on this host at this time.
    pub(crate) fn launch(&self, launcher: Launcher) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Option<Place>, JoinError> {
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
        assert_eq!(refused, Err(JoinError::NoRank { announced_by: "WORLD_SIZE", size: 2, rank: "RANK" }));
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
            assert_eq!(place(&[(rank, "1")]), Err(JoinError::NoSize { rank, got, size }));
        }
        assert_eq!(place(&[("RANK", "1")]), Ok(None));
        assert!(matches!(
            place(&[("RANK", "1"), ("MASTER_ADDR", "a")]),
            Err(JoinError::NoSize { rank: "RANK", .. })
        ));
        let step = [("PMI_RANK", "1"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "3")];
        assert_eq!(place(&step).unwrap().unwrap().launcher, Launcher::Srun);
    }

    // Each process trained alone, in silence, where the size said one or none.
    #[test]
    fn a_rank_outside_the_size_is_refused_for_every_size() {
        for (rank, size) in [(1, 1), (0, 0), (3, 0), (2, 2)] {
            for (name, announced_by) in [("PENSTOCK_RANK", "PENSTOCK_SIZE"), ("RANK", "WORLD_SIZE")] {
                let refused = place(&[(name, &rank.to_string()), (announced_by, &size.to_string())]);
                assert_eq!(refused, Err(JoinError::OutOfSize { rank, size, announced_by }));
            }
        }
    }

    #[test]
    fn a_rank_that_is_no_number_is_refused_by_its_name() {
        let refused = place(&[("RANK", "-1"), ("WORLD_SIZE", "2")]);
        assert_eq!(refused, Err(JoinError::NoNumber { name: "RANK", got: "-1".to_owned() }));
    }

    #[test]
    fn a_secret_that_is_none_is_refused_and_not_shown() {
        let refused =
            Environment(&lookup(&[("PENSTOCK_SECRET", "hush")])).secret().expect_err("it is too short");
        assert!(refused.to_string().contains("4 characters") && !refused.to_string().contains("hush"));
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
