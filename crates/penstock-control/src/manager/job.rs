//! A job and a server, as the registry keeps them.

use crate::error::{Reason, Refusal};
use crate::limits;
use crate::proto;
use crate::settings::why_no_jobs;
use penstock_proto::message::{MAX_SERVERS, MAX_WORKERS, Secret};
use std::collections::BTreeMap;
use std::time::Duration;

/// Judges settings by the table of options: `Err` is what is wrong with them.
pub type CheckSettings = dyn Fn(&[(String, String)]) -> Result<(), String> + Send + Sync;

/// What a job is, apart from its secret.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) workers: u32,
    pub(super) servers: u32,
    pub(super) memory: u64,
    pub(super) share: f64,
    pub(super) settings: Vec<(String, String)>,
}

impl Spec {
    /// Reads and judges what a client sent.
    pub(super) fn check(sent: proto::JobSpec, settings: &CheckSettings) -> Result<Self, Refusal> {
        let refuse = |message: String| Err(Refusal::new(Reason::Invalid, message));
        if !is_name(&sent.name) {
            return refuse(format!(
                "expected a job's name of 1 to {} letters, digits, `.`, `_` or `-` that starts with a letter or a digit, got {:?}",
                limits::NAME_BYTES,
                cut(&sent.name, limits::NAME_BYTES)
            ));
        }
        if !(1..=MAX_WORKERS).contains(&sent.workers) {
            return refuse(format!("expected 1 to {MAX_WORKERS} workers, got {}", sent.workers));
        }
        if !(1..=MAX_SERVERS).contains(&sent.servers) {
            return refuse(format!("expected 1 to {MAX_SERVERS} servers, got {}", sent.servers));
        }
        if sent.memory == 0 {
            return refuse("expected memory of at least 1 byte, got 0".to_owned());
        }
        if !(sent.share > 0.0 && sent.share <= 1.0) {
            return refuse(format!("expected a share above 0 and up to 1, got {}", sent.share));
        }
        if sent.settings.len() > limits::SETTINGS {
            return refuse(format!(
                "expected at most {} settings, got {}",
                limits::SETTINGS,
                sent.settings.len()
            ));
        }
        let pairs: Vec<_> = sent.settings.into_iter().map(|setting| (setting.name, setting.value)).collect();
        for (name, value) in &pairs {
            if name.len() + value.len() > limits::SETTING_BYTES {
                return refuse(format!("a setting has more than {} bytes", limits::SETTING_BYTES));
            }
            if let Some(why) = why_no_jobs(name) {
                return refuse(format!("the option `{name}` cannot be set for a job: {why}"));
            }
        }
        settings(&pairs).map_err(|message| Refusal::new(Reason::Invalid, message))?;
        Ok(Self {
            name: sent.name,
            workers: sent.workers,
            servers: sent.servers,
            memory: sent.memory,
            share: sent.share,
            settings: pairs,
        })
    }

    /// Bytes on each of its servers.
    pub(super) fn memory_each(&self) -> u64 {
        self.memory.div_ceil(u64::from(self.servers))
    }

    pub(super) fn to_proto(&self) -> proto::JobSpec {
        proto::JobSpec {
            name: self.name.clone(),
            workers: self.workers,
            servers: self.servers,
            memory: self.memory,
            share: self.share,
            settings: settings(&self.settings),
        }
    }
}

/// Settings as they are sent.
pub(super) fn settings(pairs: &[(String, String)]) -> Vec<proto::Setting> {
    pairs.iter().map(|(name, value)| proto::Setting { name: name.clone(), value: value.clone() }).collect()
}

/// Whether `name` may name a job; such a name is also a harmless file name.
pub(super) fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    (1..=limits::NAME_BYTES).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
}

/// At most `most` bytes of a text, whole characters.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All workers closed it.
    Ended,
    /// It was stopped, for this reason.
    Failed(String),
}

/// A job. Everything but `linger` is kept on disk.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) spec: Spec,
    /// Tells it from a later one of the same name.
    pub(super) id: String,
    pub(super) secret: Secret,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// Its servers' identities, by index; empty until there are enough.
    pub(super) placement: Vec<String>,
    /// Whether a worker was told its servers: from then on it stays where it is, for its state is there.
    pub(super) pinned: bool,
    /// Which worker was given which rank.
    pub(super) ranks: BTreeMap<u32, String>,
    /// Whether and how it ended.
    pub(super) outcome: Option<Outcome>,
    /// Until when its servers keep it after it ended, so that its workers hear why.
    pub(super) linger: Duration,
}

impl Job {
    /// Refuses a worker that cannot be one of this job.
    pub(super) fn check_worker(&self, rank: Option<u32>, size: u32) -> Result<(), Refusal> {
        let Spec { name, workers, .. } = &self.spec;
        let full = |message: String| Err(Refusal::new(Reason::Full, message));
        if size != 0 && size != *workers {
            return full(format!("the job `{name}` is for {workers} workers, but {size} were started"));
        }
        match rank {
            Some(rank) if rank >= *workers => {
                full(format!("the job `{name}` has the ranks 0 to {}, got rank {rank}", workers - 1))
            }
            _ => Ok(()),
        }
    }
}

/// What a server says of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Status {
    pub(super) id: String,
    pub(super) workers_joined: u32,
    pub(super) memory_used: u64,
    pub(super) ended: bool,
    pub(super) failure: String,
    pub(super) refused: String,
}

/// A server.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) endpoint: String,
    pub(super) memory: u64,
    /// When it was last heard of, since the manager started; `None` once it has said goodbye.
    pub(super) seen: Option<Duration>,
    /// What it hosts, by job.
    pub(super) hosted: BTreeMap<String, Status>,
}
