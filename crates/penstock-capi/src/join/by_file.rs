//! Where the processes that a launcher started on this host meet: a file that rank 0 leaves for the others.
//!
//! Rank 0 starts a server inside its own process and writes the server's endpoint and the job's secret to a file in a directory
//! that only this user can enter; the others wait for the file. Its name is made from what the launcher gives all of them,
//! from the job's name, and from how often this process has joined a job of that name: processes that join two jobs one after the
//! other do not mix them up, and some of them may have a job of their own in between. When all have joined, the file is removed.
//!
//! A file may be left over from processes that were killed and whose launcher had the same name (process numbers are reused). So
//! what it says counts only while something listens at the endpoint; and that rank 0 has failed, only for those that were about
//! to join then. Such a note stays, for processes that come later.
//!
//! Cost: one file, one socket; a worker that comes early looks for the file every few milliseconds.

use super::carried::{self, LOOPBACK, Role, directory, random};
use super::error::JoinError;
use penstock::options::{Options, Transport};
use penstock::server::Server;
use penstock::user_directory::NoDirectory;
use penstock::worker::{Error, Job, Membership};
use penstock_fabric::net::endpoint::Endpoint;
use penstock_fabric::socket::Connection;
use penstock_join::launcher::{Environment, Place};
use penstock_proto::checksum;
use penstock_proto::hex::hex;
use penstock_proto::message::Secret;
use penstock_proto::redial::{Pauses, Redial};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// First words of the file.
const MAGIC: &str = "penstock rendezvous 1";
/// Longest file: an endpoint, a secret, or an error's text.
const MOST_BYTES: u64 = 16 * 1024;
/// Pauses between two looks for the file.
const PAUSES: Pauses = Pauses::doubling(Duration::from_micros(500), Duration::from_millis(10));

/// How far apart processes of one launch may begin, for one to hear of another's failure before.
const APART: Duration = Duration::from_secs(5);

/// Times that this process has joined, by the job's name.
static JOINS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

/// What rank 0 leaves for the others.
#[derive(Debug, Clone, PartialEq)]
enum Note {
    /// Where its server is.
    Here { endpoint: Endpoint, secret: Secret },
    /// That there is no server.
    Failed { reason: String },
}

impl Note {
    fn spell(&self) -> String {
        match self {
            Self::Here { endpoint, secret } => {
                format!("{MAGIC}\nsecret {}\nendpoint {endpoint}\n", hex(&secret.0))
            }
            Self::Failed { reason } => format!("{MAGIC}\nfailed {}\n", reason.replace('\n', " ")),
        }
    }

    /// `None` for anything that was not written by [`Note::spell`].
    fn read(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.lines();
        if lines.next()? != MAGIC {
            return None;
        }
        let first = lines.next()?;
        if let Some(reason) = first.strip_prefix("failed ") {
            return Some(Self::Failed { reason: reason.to_owned() });
        }
        let secret = Secret::from_hex(first.strip_prefix("secret ")?)?;
        let endpoint = lines.next()?.strip_prefix("endpoint ")?.parse().ok()?;
        Some(Self::Here { endpoint, secret })
    }
}

/// From when on this process waits, and how long.
struct Patience {
    since: Instant,
    /// The same, as files have it.
    began: SystemTime,
    longest: Duration,
}

impl Patience {
    fn new(longest: Duration) -> Self {
        Self { since: Instant::now(), began: SystemTime::now(), longest }
    }

    fn left(&self) -> Duration {
        self.longest.saturating_sub(self.since.elapsed())
    }

    /// Whether what was written then can be meant for this process: processes of one launch do not begin at one moment.
    fn concerns(&self, written: SystemTime) -> bool {
        written + APART >= self.began
    }
}

/// Joins with the others; returns the server too if this process carries it.
pub(super) fn join(
    environment: &Environment<'_>,
    place: &Place,
    options: Options,
) -> Result<(Job, Option<Server>), JoinError> {
    let patience = Patience::new(options.deadline);
    let directory = directory(environment)?;
    let file = directory.join(name(environment, place)?);
    if place.rank == 0 {
        let (job, server) = host(environment, place, &directory, &file, options, &patience)?;
        return Ok((job, Some(server)));
    }
    let (endpoint, secret) = find(&file, place, &patience)?;
    let job = gather(environment, place, endpoint, secret, options, &patience, |_| {});
    let told = |error| match look(&file, &patience) {
        Some(Note::Failed { reason }) => JoinError::RankZero { reason },
        _ => error,
    };
    Ok((job.map_err(told)?, None))
}

/// Joins, and waits for all others to do so. Where that fails, `tell` is called before the others could notice.
fn gather(
    environment: &Environment<'_>,
    place: &Place,
    endpoint: Endpoint,
    secret: Secret,
    options: Options,
    patience: &Patience,
    tell: impl Fn(&JoinError),
) -> Result<Job, JoinError> {
    let &Place { rank, size, .. } = place;
    let membership = Membership { servers: vec![endpoint], job: environment.job(), secret, rank, size };
    let job = Job::connect(&membership, options).map_err(JoinError::from).inspect_err(&tell)?;
    let here = job.barrier(Some(patience.left())).map_err(|error| late(error, place, patience));
    here.inspect_err(tell)?;
    Ok(job)
}

fn late(error: Error, place: &Place, patience: &Patience) -> JoinError {
    match error {
        Error::BarrierTimeout { missing, .. } if !missing.is_empty() => {
            JoinError::Late { missing, size: place.size, waited: patience.since.elapsed(), cause: None }
        }
        error => error.into(),
    }
}

/// Rank 0: starts the server, says where it is, and joins; or says why it could not.
fn host(
    environment: &Environment<'_>,
    place: &Place,
    directory: &Path,
    file: &Path,
    options: Options,
    patience: &Patience,
) -> Result<(Job, Server), JoinError> {
    let tell = |error: &JoinError| drop(leave(file, &Note::Failed { reason: error.to_string() }));
    remove_left_over(file);
    let (endpoint, secret, server) = start(environment, place, directory, &options).inspect_err(tell)?;
    leave(file, &Note::Here { endpoint: endpoint.clone(), secret })?;
    let job = gather(environment, place, endpoint, secret, options, patience, tell)?;
    // A process that comes now is too late.
    let _ = std::fs::remove_file(file);
    Ok((job, server))
}

fn start(
    environment: &Environment<'_>,
    place: &Place,
    directory: &Path,
    options: &Options,
) -> Result<(Endpoint, Secret, Server), JoinError> {
    let secret = match environment.secret()? {
        Some(secret) => secret,
        None => Secret(random()?),
    };
    // A user asks for TCP on one host to see what it costs.
    let listen = (options.transport == Transport::Tcp).then(|| LOOPBACK.to_owned());
    let role = Role { index: 0, servers: 1, workers: place.size, listen, secret };
    let (endpoint, server) = carried::start(environment, directory, role, options)?;
    Ok((endpoint, secret, server))
}

/// The others: what rank 0 has left. There is no event to wait for: neither file nor server may be there yet.
fn find(file: &Path, place: &Place, patience: &Patience) -> Result<(Endpoint, Secret), JoinError> {
    let look = || match look(file, patience) {
        Some(Note::Here { endpoint, secret }) if listens(&endpoint) => {
            Ok(ControlFlow::Break((endpoint, secret)))
        }
        Some(Note::Failed { reason }) => Err(JoinError::RankZero { reason }),
        _ => Ok(ControlFlow::Continue(())),
    };
    let sleep = |pause| {
        std::thread::sleep(pause);
        Ok::<_, JoinError>(())
    };
    match Redial::until(PAUSES, patience.longest).run(|| patience.since.elapsed(), sleep, look)? {
        ControlFlow::Break(found) => Ok(found),
        ControlFlow::Continue(()) => {
            let (size, waited) = (place.size, patience.since.elapsed());
            Err(JoinError::Late { missing: vec![0], size, waited, cause: None })
        }
    }
}

/// The note, if there is one that concerns this process.
fn look(file: &Path, patience: &Patience) -> Option<Note> {
    let opened = File::open(file).ok()?;
    let written = opened.metadata().ok()?.modified().ok()?;
    read(opened).filter(|note| matches!(note, Note::Here { .. }) || patience.concerns(written))
}

fn read(file: File) -> Option<Note> {
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Note::read(&text)
}

/// Whether a server is there. It takes no notice of a connection that says nothing.
fn listens(endpoint: &Endpoint) -> bool {
    endpoint.unix.as_ref().is_some_and(|path| Connection::connect(path).is_ok())
}

/// Writes the note so that no process can see half of it.
fn leave(file: &Path, note: &Note) -> Result<(), JoinError> {
    let refuse = |error: std::io::Error| {
        let path = file.parent().unwrap_or(file).to_owned();
        JoinError::Directory(NoDirectory { path, reason: error.to_string() })
    };
    let draft = file.with_extension(hex(&random::<8>()?));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&draft).and_then(|mut draft| draft.write_all(note.spell().as_bytes()));
    let left = written.and_then(|()| std::fs::rename(&draft, file));
    if left.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    left.map_err(refuse)
}

/// Removes what processes that were killed have left under the same name.
fn remove_left_over(file: &Path) {
    if let Some(Note::Here { endpoint, .. }) = File::open(file).ok().and_then(read)
        && !listens(&endpoint)
        && let Some(socket) = endpoint.unix
    {
        let mut lock = socket.clone().into_os_string();
        lock.push(".lock");
        for left_over in [socket, lock.into()] {
            let _ = std::fs::remove_file(left_over);
        }
    }
    let _ = std::fs::remove_file(file);
}

/// The file's name, the same for the processes that were started together and call for the same time.
fn name(environment: &Environment<'_>, place: &Place) -> Result<String, JoinError> {
    let launch = match environment.launch(place.launcher) {
        Some(launch) => launch,
        None => parent()?,
    };
    let job = environment.job();
    let join = {
        let mut joins = JOINS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = joins.entry(job.clone()).or_default();
        *count += 1;
        *count
    };
    let whole = format!("{}/{:?}/{launch}/{job}/{join}", penstock::host::id(), place.launcher);
    Ok(format!("{}.join", checksum::name_of(&whole)))
}

/// What started this process, where its launcher gives the job no name: the launcher's part on this host.
fn parent() -> Result<String, JoinError> {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let refuse = |reason: String| JoinError::System { what: "inspect the launcher's process", reason };
    let stat =
        std::fs::read_to_string(format!("/proc/{parent}/stat")).map_err(|error| refuse(error.to_string()))?;
    // Behind the name, which may hold anything, the 20th word is when it was started.
    let started = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19));
    let started = started.ok_or_else(|| refuse("it has no start time".to_owned()))?;
    Ok(format!("{parent}/{started}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_join::launcher::Launcher;
    use std::os::unix::fs::MetadataExt as _;

    fn note() -> Note {
        let endpoint = "tcp://127.0.0.1:7?host=1f&unix=/run/s".parse().expect("it is one");
        Note::Here { endpoint, secret: Secret([7; 32]) }
    }

    #[test]
    fn what_is_left_reads_back_as_it_was_written() {
        for note in [note(), Note::Failed { reason: "no memory; hint: buy some".to_owned() }] {
            assert_eq!(Note::read(&note.spell()), Some(note));
        }
    }

    #[test]
    fn half_a_note_is_none() {
        let whole = note().spell();
        for end in 0..whole.len() {
            assert_eq!(Note::read(&whole[..end]), None, "{end} bytes");
        }
        assert_eq!(Note::read("penstock rendezvous 2\nfailed x\n"), None);
    }

    #[test]
    fn a_note_whose_server_is_gone_is_not_followed() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("a.join");
        let endpoint = Endpoint { unix: Some(folder.path().join("gone.s")), ..Endpoint::default() };
        leave(&file, &Note::Here { endpoint, secret: Secret([7; 32]) }).expect("it can be written");
        let place = Place { launcher: Launcher::Mpirun, rank: 1, size: 2, announced_by: "PMI_SIZE" };
        let patience = Patience::new(Duration::from_millis(20));
        let found = find(&file, &place, &patience);
        assert!(matches!(found, Err(JoinError::Late { missing, size: 2, .. }) if missing == [0]));
    }

    #[test]
    fn a_failure_is_heard_by_those_who_begin_about_then_and_by_nobody_later() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("a.join");
        leave(&file, &Note::Failed { reason: "no memory".to_owned() }).expect("it can be written");
        let mut patience = Patience::new(Duration::from_secs(60));
        assert!(matches!(look(&file, &patience), Some(Note::Failed { .. })));
        patience.began += 2 * APART;
        assert_eq!(look(&file, &patience), None);
    }

    #[test]
    fn what_killed_processes_left_is_removed_and_what_others_left_is_not() {
        let folder = tempfile::tempdir().expect("there is room");
        let (file, socket) = (folder.path().join("a.join"), folder.path().join("gone.s"));
        let other = folder.path().join("b.join");
        for path in [&socket, &other] {
            File::create(path).expect("there is room");
        }
        let endpoint = Endpoint { unix: Some(socket.clone()), ..Endpoint::default() };
        leave(&file, &Note::Here { endpoint, secret: Secret([7; 32]) }).expect("it can be written");
        remove_left_over(&file);
        assert!(!file.exists() && !socket.exists() && other.exists());
    }

    #[test]
    fn nobody_else_can_read_a_note() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("a.join");
        leave(&file, &note()).expect("it can be written");
        let mode = std::fs::metadata(&file).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is a folder").count(), 1, "no draft is left");
    }

    #[test]
    fn processes_of_one_launch_meet_again_elsewhere() {
        let lookup = |name: &str| (name == "PMIX_NAMESPACE").then(|| "a@1".to_owned());
        let place = Place { launcher: Launcher::Mpirun, rank: 1, size: 2, announced_by: "PMI_SIZE" };
        let names = [(); 2].map(|()| name(&Environment(&lookup), &place).ok());
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn a_launcher_without_a_name_is_known_by_its_process() {
        let parent = parent().expect("there is one");
        assert_eq!(parent, self::parent().expect("there is one"));
        assert!(parent.split_once('/').is_some_and(|(_, started)| started.parse::<u64>().is_ok()));
    }
}
