//! The manager's state directory: what survives its death.
//!
//! ```text
//! STATE/lock            held while a manager runs
//! STATE/manager.id      identity of this state
//! STATE/admin.token     64 hexadecimal digits
//! STATE/server.token    likewise
//! STATE/jobs/NAME.json  one job, its secret among the rest
//! ```
//!
//! The directory is its owner's alone (0700), and so is every file (0600). A file is written beside its place, synced
//! and renamed: a manager killed at any moment leaves each job whole, as it was before or after. What is there already is used
//! only if it belongs to this user or to root, and not everybody may write it: whoever chose a token would be administrator of
//! all jobs.

use super::job::{Job, Outcome, Spec, is_name};
use crate::secret::{self, hex, identity, is_identity, random, write_private};
use penstock_proto::message::Secret;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the job files.
const FORMAT: u32 = 1;

/// Why a state directory cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another manager runs on it.
    #[error("another manager uses the state directory `{}`", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The system refused.
    #[error("the state file or directory `{}` cannot be used: {reason}", path.display())]
    System {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Another user has made it, or could have.
    #[error("the state file or directory `{}` cannot be trusted: {reason}", path.display())]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
        /// Who could have made it.
        reason: String,
    },
    /// A file holds something else.
    #[error("the state file `{}` is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, without its contents.
        reason: String,
    },
}

impl StateError {
    /// What to do.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::InUse { .. } => "give each manager a directory of its own with --state",
            Self::System { .. } => "check the path, its permissions and the space left there",
            Self::Untrusted { .. } => {
                "whoever chose its tokens could read every job's secret: give --state a directory of this user's own (chown, chmod 700), not on a mount that gives files another owner"
            }
            Self::Damaged { .. } => {
                "take it from a backup, or move the file away: the job in it is then forgotten"
            }
        };
        Some(text.to_owned())
    }
}

/// An open state directory.
#[derive(Debug)]
pub(super) struct Store {
    jobs: PathBuf,
    /// Identity of this state.
    pub(super) identity: String,
    /// What administrators show.
    pub(super) admin: Secret,
    /// What servers show.
    pub(super) server: Secret,
    _lock: File,
}

impl Store {
    /// Opens a state directory, or makes it; returns the jobs in it.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Job>), StateError> {
        let jobs = path.join("jobs");
        let private = |folder: &Path| DirBuilder::new().recursive(true).mode(0o700).create(folder);
        for folder in [path, &jobs] {
            let distrusted = private(folder).and_then(|()| secret::distrust_folder(folder));
            let distrusted = distrusted.map_err(|error| system(folder, &error))?;
            distrusted.map_or(Ok(()), |reason| Err(untrusted(folder, reason)))?;
        }
        let lock = lock(path)?;
        let text = |name: &str, fresh: String| text_or_new(&path.join(name), &fresh);
        let token = |name: &str| {
            let digits = text(name, hex(&random::<32>()))?;
            Secret::from_hex(&digits)
                .ok_or_else(|| damaged(&path.join(name), "expected 64 hexadecimal digits"))
        };
        let id = text("manager.id", identity())?;
        if !is_identity(&id) {
            return Err(damaged(&path.join("manager.id"), "expected 32 hexadecimal digits"));
        }
        let (admin, server) = (token("admin.token")?, token("server.token")?);
        let found = read_all(&jobs)?;
        Ok((Self { jobs, identity: id, admin, server, _lock: lock }, found))
    }

    /// Writes a job.
    pub(super) fn save(&self, job: &Job) -> Result<(), StateError> {
        let path = self.path(&job.spec.name);
        let text = serde_json::to_vec_pretty(&Record::from(job)).expect("records are plain data");
        write_private(&path, &text, true).map_err(|error| system(&path, &error))
    }

    /// Forgets a job.
    pub(super) fn remove(&self, name: &str) -> Result<(), StateError> {
        let path = self.path(name);
        match std::fs::remove_file(&path).and_then(|()| File::open(&self.jobs)?.sync_all()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(system(&path, &error)),
            _ => Ok(()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        assert!(is_name(name), "only checked names become paths");
        self.jobs.join(format!("{name}.json"))
    }
}

fn lock(path: &Path) -> Result<File, StateError> {
    let at = path.join("lock");
    let open = File::options().create(true).truncate(false).write(true).mode(0o600).open(&at);
    let file = open.map_err(|error| system(&at, &error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StateError::InUse { path: path.to_owned() }),
        Err(error) => Err(system(&at, &error.into())),
    }
}

/// What stands in the file; if there is none, `fresh`, which is then written.
fn text_or_new(path: &Path, fresh: &str) -> Result<String, StateError> {
    if !path.try_exists().map_err(|error| system(path, &error))? {
        let written = write_private(path, format!("{fresh}\n").as_bytes(), false);
        written.map_err(|error| system(path, &error))?;
        return Ok(fresh.to_owned());
    }
    let text = String::from_utf8(read(path)?).map_err(|_| damaged(path, "expected text"))?;
    Ok(text.trim().to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, StateError> {
    let found = secret::read_trusted(path).map_err(|error| system(path, &error))?;
    found.map_err(|reason| untrusted(path, reason))
}

fn read_all(folder: &Path) -> Result<Vec<Job>, StateError> {
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let mut jobs = Vec::new();
    for entry in entries.map_err(|error| system(folder, &error))? {
        let path = entry.path();
        // What a killed manager left half written begins with a dot.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            std::fs::remove_file(&path).map_err(|error| system(&path, &error))?;
            continue;
        }
        if path.extension().is_some_and(|extension| extension == "json") {
            jobs.push(read_one(&path)?);
        }
    }
    Ok(jobs)
}

fn read_one(path: &Path) -> Result<Job, StateError> {
    let bytes = read(path)?;
    // Where, not what: the text around a mistake may be a secret.
    let record: Record = serde_json::from_slice(&bytes).map_err(|error| {
        damaged(path, &format!("not a job, at line {} column {}", error.line(), error.column()))
    })?;
    let job = Job::try_from(record).map_err(|reason| damaged(path, reason))?;
    match path.file_stem().is_some_and(|stem| stem.to_str() == Some(&job.spec.name)) {
        true => Ok(job),
        false => Err(damaged(path, "the job in it has another name")),
    }
}

fn system(path: &Path, error: &io::Error) -> StateError {
    StateError::System { path: path.to_owned(), reason: error.to_string() }
}

fn untrusted(path: &Path, reason: String) -> StateError {
    StateError::Untrusted { path: path.to_owned(), reason }
}

fn damaged(path: &Path, reason: &str) -> StateError {
    StateError::Damaged { path: path.to_owned(), reason: reason.to_owned() }
}

/// A job as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    name: String,
    id: String,
    secret: String,
    created: u64,
    workers: u32,
    servers: u32,
    memory: u64,
    share: f64,
    settings: Vec<(String, String)>,
    placement: Vec<String>,
    pinned: bool,
    ranks: BTreeMap<u32, String>,
    ended: bool,
    failure: Option<String>,
}

impl From<&Job> for Record {
    fn from(job: &Job) -> Self {
        let spec = job.spec.clone();
        Self {
            format: FORMAT,
            name: spec.name,
            id: job.id.clone(),
            secret: hex(&job.secret.0),
            created: job.created,
            workers: spec.workers,
            servers: spec.servers,
            memory: spec.memory,
            share: spec.share,
            settings: spec.settings,
            placement: job.placement.clone(),
            pinned: job.pinned,
            ranks: job.ranks.clone(),
            ended: job.outcome.is_some(),
            failure: match &job.outcome {
                Some(Outcome::Failed(why)) => Some(why.clone()),
                _ => None,
            },
        }
    }
}

impl TryFrom<Record> for Job {
    type Error = &'static str;

    fn try_from(record: Record) -> Result<Self, Self::Error> {
        if record.format != FORMAT {
            return Err("another version of Penstock wrote it");
        }
        if !is_name(&record.name) || record.workers == 0 || record.servers == 0 {
            return Err("its name or its size is not valid");
        }
        let outcome = match (record.ended, record.failure) {
            (_, Some(why)) => Some(Outcome::Failed(why)),
            (true, None) => Some(Outcome::Ended),
            (false, None) => None,
        };
        Ok(Self {
            spec: Spec {
                name: record.name,
                workers: record.workers,
                servers: record.servers,
                memory: record.memory,
                share: record.share,
                settings: record.settings,
            },
            id: record.id,
            secret: Secret::from_hex(&record.secret).ok_or("its secret is not valid")?,
            created: record.created,
            placement: record.placement,
            pinned: record.pinned,
            ranks: record.ranks,
            outcome,
            linger: Duration::ZERO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn job() -> Job {
        let spec = Spec {
            name: "j".to_owned(),
            workers: 2,
            servers: 1,
            memory: 5,
            share: 0.25,
            settings: vec![("consistency".to_owned(), "asp".to_owned())],
        };
        Job {
            spec,
            id: identity(),
            secret: Secret(random()),
            created: 3,
            placement: vec!["a".to_owned()],
            pinned: true,
            ranks: BTreeMap::from([(1, "w".to_owned())]),
            outcome: Some(Outcome::Failed("so".to_owned())),
            linger: Duration::ZERO,
        }
    }

    #[test]
    fn what_was_saved_is_found_again_and_what_was_removed_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let job = job();
        let (store, none) = Store::open(folder.path()).unwrap();
        assert!(none.is_empty());
        store.save(&job).unwrap();
        let (admin, identity) = (store.admin, store.identity.clone());
        drop(store);
        let (store, found) = Store::open(folder.path()).unwrap();
        assert_eq!((store.admin.0, &store.identity), (admin.0, &identity));
        assert_eq!(format!("{found:?}"), format!("{:?}", [&job]));
        assert_eq!(found[0].secret.0, job.secret.0);
        store.remove("j").unwrap();
        store.remove("j").unwrap();
        drop(store);
        assert!(Store::open(folder.path()).unwrap().1.is_empty());
    }

    // Whoever made the directory first chose the tokens, and was administrator of all jobs.
    #[test]
    #[expect(clippy::print_stderr, reason = "a skip is said aloud")]
    fn a_state_that_another_user_may_have_made_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        drop(Store::open(folder.path()).unwrap());
        let refused = |path: &Path| match Store::open(folder.path()) {
            Err(error @ StateError::Untrusted { .. }) => {
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                assert!(error.hint().unwrap().contains("--state"));
            }
            other => panic!("{other:?}"),
        };
        let token = folder.path().join("admin.token");
        for open in [folder.path().to_owned(), folder.path().join("jobs"), token.clone()] {
            std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
            refused(&open);
            std::fs::set_permissions(&open, PermissionsExt::from_mode(0o770)).unwrap();
        }
        let own = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None);
        let job = folder.path().join("jobs/j.json");
        let (store, _) = Store::open(folder.path()).unwrap();
        store.save(&self::job()).unwrap();
        drop(store);
        if own(&token, 1001).and_then(|()| own(&token, 0)).is_err() {
            eprintln!("SKIPPED: only root can give a file to another user");
            return;
        }
        for theirs in [folder.path().to_owned(), folder.path().join("jobs"), token, job] {
            own(&theirs, 1001).unwrap();
            refused(&theirs);
            own(&theirs, 0).unwrap();
        }
        drop(Store::open(folder.path()).unwrap());
        // A link says where to look.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        for (user, opens) in [(1001, false), (0, true)] {
            std::os::unix::fs::lchown(&link, Some(user), None).unwrap();
            assert_eq!(Store::open(&link).is_ok(), opens, "{user}");
        }
    }

    #[test]
    fn the_state_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("new");
        let (store, _) = Store::open(&state).unwrap();
        store.save(&job()).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for name in ["admin.token", "server.token", "manager.id", "lock", "jobs/j.json"] {
            assert_eq!(mode(&state.join(name)), 0o600, "{name}");
        }
        assert_eq!((mode(&state), mode(&state.join("jobs"))), (0o700, 0o700));
    }

    #[test]
    fn two_managers_never_share_a_state() {
        let folder = tempfile::tempdir().unwrap();
        let first = Store::open(folder.path()).unwrap();
        assert!(matches!(Store::open(folder.path()), Err(StateError::InUse { .. })));
        drop(first);
        assert!(Store::open(folder.path()).is_ok());
    }

    #[test]
    fn a_damaged_file_is_named_and_its_contents_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        store.save(&job()).unwrap();
        drop(store);
        let path = folder.path().join("jobs/j.json");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        let error = Store::open(folder.path()).unwrap_err();
        assert!(matches!(&error, StateError::Damaged { path: at, .. } if *at == path), "{error}");
    }

    #[test]
    fn what_a_killed_manager_left_half_written_is_cleared_away() {
        let folder = tempfile::tempdir().unwrap();
        drop(Store::open(folder.path()).unwrap());
        let half = folder.path().join("jobs/.j.json.abc");
        std::fs::write(&half, "{").unwrap();
        assert!(Store::open(folder.path()).unwrap().1.is_empty());
        assert!(!half.exists());
    }
}
