//! Which jobs and servers there are, and which server hosts what. Pure state: the time is an argument, what has to be written to
//! disk is a set of names.
//!
//! | a job whose server is lost | then |
//! |---|---|
//! | no worker was told its servers yet | it is placed anew |
//! | workers may have state there | it stays: it goes on if the server comes back, else an administrator deletes it |
//!
//! After a restart no server counts as lost before a lease has passed: until then each has the time to come back.

use super::job::{Job, Outcome, Server, Spec, Status};
use super::placement::{Room, Wish, place};
use crate::error::{Reason, Refusal};
use crate::limits;
use penstock_proto::message::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a worker can be told.
#[derive(Debug, PartialEq)]
pub(super) enum Readiness {
    /// The endpoint strings of its servers.
    Ready(Vec<String>),
    /// Not yet, and why.
    NotYet(String),
}

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) jobs: BTreeMap<String, Job>,
    pub(super) servers: BTreeMap<String, Server>,
    /// Names of jobs that differ from what is on disk; also those that are gone.
    pub(super) unsaved: BTreeSet<String>,
    lease: Duration,
    /// Stands for the secret of a job that does not exist, so that such a call takes the same course, and as long.
    nobody: Secret,
}

impl Registry {
    pub(super) fn new(jobs: Vec<Job>, lease: Duration, nobody: Secret) -> Self {
        let jobs = jobs.into_iter().map(|job| (job.spec.name.clone(), job)).collect();
        Self { jobs, servers: BTreeMap::new(), unsaved: BTreeSet::new(), lease, nobody }
    }

    // --- jobs

    pub(super) fn create(&mut self, now: Duration, job: Job) -> Result<(), Refusal> {
        let name = job.spec.name.clone();
        if self.jobs.contains_key(&name) {
            return Err(Refusal::new(Reason::JobExists, format!("there is a job `{name}` already")));
        }
        if self.jobs.len() >= limits::JOBS {
            let message = format!("there are {} jobs already, the most that a manager keeps", limits::JOBS);
            return Err(Refusal::new(Reason::Quota, message));
        }
        self.check_room(now, &job.spec)?;
        self.unsaved.insert(name.clone());
        self.jobs.insert(name, job);
        self.place(now);
        Ok(())
    }

    /// Refuses what does not fit now, where there are enough servers; where there are too few the job waits for more.
    fn check_room(&self, now: Duration, spec: &Spec) -> Result<(), Refusal> {
        let rooms = self.rooms(now, |_| true);
        if rooms.len() < spec.servers as usize {
            return Ok(());
        }
        let mut free: Vec<u64> = rooms.values().map(|room| room.free).collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        let offered = free[spec.servers as usize - 1];
        if offered >= spec.memory_each() {
            return Ok(());
        }
        let message = format!(
            "the job `{}` needs {} bytes on each of {} servers, but only {offered} are free there",
            spec.name,
            spec.memory_each(),
            spec.servers,
        );
        Err(Refusal::new(Reason::Quota, message))
    }

    pub(super) fn job(&self, name: &str) -> Result<&Job, Refusal> {
        self.jobs.get(name).ok_or_else(|| Refusal::new(Reason::NoSuchJob, "there is no job of that name"))
    }

    pub(super) fn delete(&mut self, now: Duration, name: &str) -> Result<(), Refusal> {
        self.job(name)?;
        self.jobs.remove(name);
        self.unsaved.insert(name.to_owned());
        self.place(now);
        Ok(())
    }

    /// The secret of a job, or one that no one has.
    pub(super) fn secret_of(&self, name: &str) -> Secret {
        self.jobs.get(name).map_or(self.nobody, |job| job.secret)
    }

    /// The job whose secret a caller has proved, if it is still there: it may have been deleted since, and its name given to
    /// another.
    pub(super) fn proved(&mut self, name: &str, secret: &Secret) -> Result<&mut Job, Refusal> {
        self.jobs.get_mut(name).filter(|job| job.secret == *secret).ok_or_else(Refusal::job_secret)
    }

    /// Gives `worker` a rank of the job: `wanted`, or the one it has, or the lowest free one.
    pub(super) fn enlist(
        &mut self,
        name: &str,
        worker: &str,
        wanted: Option<u32>,
        size: u32,
    ) -> Result<u32, Refusal> {
        let job = self.jobs.get_mut(name).ok_or_else(Refusal::job_secret)?;
        job.check_worker(wanted, size)?;
        let workers = job.spec.workers;
        let held = job.ranks.iter().find(|(_, holder)| *holder == worker).map(|(&rank, _)| rank);
        // A launcher that gives ranks may start a worker again: the servers see to it that a rank joins once.
        let free = || (0..workers).find(|rank| !job.ranks.contains_key(rank));
        let Some(rank) = wanted.or(held).or_else(free) else {
            let message = format!("all {workers} ranks of the job `{name}` are taken");
            return Err(Refusal::new(Reason::Full, message));
        };
        if held != Some(rank) {
            held.map(|rank| job.ranks.remove(&rank));
            job.ranks.insert(rank, worker.to_owned());
            self.unsaved.insert(name.to_owned());
        }
        Ok(rank)
    }

    /// Where the job's servers are, once all of them host it.
    pub(super) fn readiness(&self, now: Duration, name: &str) -> Result<Readiness, Refusal> {
        let job = self.jobs.get(name).ok_or_else(Refusal::job_secret)?;
        match &job.outcome {
            Some(Outcome::Ended) => Err(Refusal::new(Reason::Ended, format!("the job `{name}` has ended"))),
            Some(Outcome::Failed(why)) => {
                Err(Refusal::new(Reason::Failed, format!("the job `{name}` failed: {why}")))
            }
            None => Ok(match self.missing(now, job) {
                Some(why) => Readiness::NotYet(why),
                None => Readiness::Ready(
                    job.placement.iter().map(|id| self.servers[id].endpoint.clone()).collect(),
                ),
            }),
        }
    }

    /// The same, for a worker that then goes there: the job stays where it is from now on.
    pub(super) fn hand_out(&mut self, now: Duration, name: &str) -> Result<Readiness, Refusal> {
        let ready = self.readiness(now, name)?;
        if let (Readiness::Ready(_), Some(job)) = (&ready, self.jobs.get_mut(name))
            && !job.pinned
        {
            job.pinned = true;
            self.unsaved.insert(name.to_owned());
        }
        Ok(ready)
    }

    /// Why not all servers of a job host it; says nothing of other jobs.
    pub(super) fn missing(&self, now: Duration, job: &Job) -> Option<String> {
        if job.placement.is_empty() {
            return Some(format!("too few servers have room for it (it needs {})", job.spec.servers));
        }
        job.placement.iter().enumerate().find_map(|(index, id)| {
            let server = self.servers.get(id).filter(|server| self.is_live(now, server));
            let Some(server) = server else {
                return Some(format!("server {index} is not responding"));
            };
            match server.hosted.get(&job.spec.name).filter(|status| status.id == job.id) {
                None => Some(format!("server {index} does not host it yet")),
                Some(status) if !status.refused.is_empty() => {
                    Some(format!("server {index} could not host it: {}", status.refused))
                }
                Some(_) => None,
            }
        })
    }

    /// Whether one of the job's servers is lost.
    pub(super) fn has_lost_a_server(&self, now: Duration, job: &Job) -> bool {
        job.placement.iter().any(|id| self.is_lost(now, id))
    }

    // --- servers

    pub(super) fn register(
        &mut self,
        now: Duration,
        id: &str,
        endpoint: &str,
        memory: u64,
    ) -> Result<(), Refusal> {
        if !self.servers.contains_key(id) && self.servers.len() >= limits::SERVERS {
            let message =
                format!("there are {} servers already, the most that a manager keeps", limits::SERVERS);
            return Err(Refusal::new(Reason::Quota, message));
        }
        let hosted = self.servers.remove(id).map_or_else(BTreeMap::new, |server| server.hosted);
        let server = Server { endpoint: endpoint.to_owned(), memory, seen: Some(now), hosted };
        self.servers.insert(id.to_owned(), server);
        self.place(now);
        Ok(())
    }

    /// Renews a lease, and takes in what the server says.
    pub(super) fn heartbeat(
        &mut self,
        now: Duration,
        id: &str,
        hosted: BTreeMap<String, Status>,
    ) -> Result<(), Refusal> {
        let unknown = || Refusal::new(Reason::UnknownServer, "the server is not registered");
        let was_live = self.servers.get(id).is_some_and(|server| self.is_live(now, server));
        let server = self.servers.get_mut(id).ok_or_else(unknown)?;
        server.seen = Some(now);
        server.hosted = hosted;
        self.conclude(now);
        if !was_live {
            self.place(now);
        }
        Ok(())
    }

    pub(super) fn leave(&mut self, now: Duration, id: &str) {
        if let Some(server) = self.servers.get_mut(id) {
            server.seen = None;
        }
        self.tick(now);
    }

    /// The jobs that a server has to host, with its index in each.
    pub(super) fn desired(&self, id: &str) -> Vec<(usize, &Job)> {
        let index = |job: &Job| job.placement.iter().position(|at| at == id);
        self.jobs.values().filter_map(|job| Some((index(job)?, job))).collect()
    }

    /// Whether a server reports just the jobs that it has to host.
    pub(super) fn is_content(&self, id: &str) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let desired = self.desired(id);
        desired.len() == server.hosted.len()
            && desired
                .iter()
                .all(|(_, job)| server.hosted.get(&job.spec.name).is_some_and(|status| status.id == job.id))
    }

    pub(super) fn is_live(&self, now: Duration, server: &Server) -> bool {
        server.seen.is_some_and(|seen| now < seen + self.lease)
    }

    /// Not merely not heard of yet after a restart.
    fn is_lost(&self, now: Duration, id: &str) -> bool {
        self.servers.get(id).map_or(now >= self.lease, |server| !self.is_live(now, server))
    }

    /// Not heard of yet after a restart, and not to be given up so far.
    fn is_expected(&self, now: Duration, id: &str) -> bool {
        !self.servers.contains_key(id) && !self.is_lost(now, id)
    }

    // --- time

    /// Whether a lease or the time after a job's end is over, so that a tick would change something.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        let over = |job: &Job| job.outcome.is_some() && !job.placement.is_empty() && now >= job.linger;
        let moves = |job: &Job| job.outcome.is_none() && !job.pinned && self.has_lost_a_server(now, job);
        self.jobs.values().any(|job| over(job) || moves(job)) || !self.forgotten(now).is_empty()
    }

    /// What the passing of time brings.
    pub(super) fn tick(&mut self, now: Duration) {
        for job in self.jobs.values_mut() {
            if job.outcome.is_some() && !job.placement.is_empty() && now >= job.linger {
                job.placement.clear();
                self.unsaved.insert(job.spec.name.clone());
            }
        }
        self.place(now);
        for id in self.forgotten(now) {
            self.servers.remove(&id);
        }
    }

    /// Lost servers that no job needs any more.
    fn forgotten(&self, now: Duration) -> Vec<String> {
        let used: BTreeSet<&String> = self.jobs.values().flat_map(|job| &job.placement).collect();
        self.servers.keys().filter(|id| self.is_lost(now, id) && !used.contains(id)).cloned().collect()
    }

    /// Ends the jobs that all their servers say have ended. If a server has gone, its last word counts; one that went
    /// without is lost.
    fn conclude(&mut self, now: Duration) {
        let mut ended = Vec::new();
        let concerned = |job: &&Job| {
            let expected = job.placement.iter().any(|id| self.is_expected(now, id));
            job.outcome.is_none() && !job.placement.is_empty() && !expected
        };
        for job in self.jobs.values().filter(concerned) {
            let over = |status: &&Status| status.id == job.id && status.ended;
            let (mut said, mut goes_on) = (Vec::new(), false);
            for server in job.placement.iter().filter_map(|id| self.servers.get(id)) {
                match server.hosted.get(&job.spec.name).filter(over) {
                    Some(status) => said.push(status),
                    None => goes_on |= self.is_live(now, server),
                }
            }
            if goes_on || said.is_empty() {
                continue;
            }
            let failure = said.iter().map(|status| &status.failure).find(|failure| !failure.is_empty());
            let outcome = match failure {
                Some(why) => Outcome::Failed(why.clone()),
                None if said.len() < job.placement.len() => Outcome::Failed("a server was lost".to_owned()),
                None => Outcome::Ended,
            };
            ended.push((job.spec.name.clone(), outcome));
        }
        for (name, outcome) in ended {
            let job = self.jobs.get_mut(&name).expect("found above");
            job.outcome = Some(outcome);
            job.linger = now + self.lease;
            self.unsaved.insert(name);
        }
    }

    // --- placement

    /// Places anew what may move. Does nothing to jobs that stand well.
    fn place(&mut self, now: Duration) {
        let movable = |job: &Job| {
            let expected = job.placement.iter().any(|id| self.is_expected(now, id));
            job.outcome.is_none() && (!job.pinned || job.placement.is_empty()) && !expected
        };
        let mut rooms = self.rooms(now, |job| !movable(job));
        let wishes = self.jobs.values().filter(|job| movable(job)).map(wish).collect();
        let placed: Vec<(String, Vec<String>)> =
            place(&mut rooms, wishes).into_iter().map(|(name, to)| (name.to_owned(), to)).collect();
        for (name, to) in placed {
            let job = self.jobs.get_mut(&name).expect("wishes are jobs");
            if job.placement != to {
                job.placement = to;
                self.unsaved.insert(name);
            }
        }
    }

    /// What is left on each live server beside the jobs that `counted` names.
    pub(super) fn rooms(&self, now: Duration, counted: impl Fn(&Job) -> bool) -> BTreeMap<String, Room> {
        let live = self.servers.iter().filter(|(_, server)| self.is_live(now, server));
        let mut rooms: BTreeMap<String, Room> =
            live.map(|(id, server)| (id.clone(), Room { free: server.memory, load: 0.0 })).collect();
        for job in self.jobs.values().filter(|job| counted(job)) {
            for id in &job.placement {
                if let Some(room) = rooms.get_mut(id) {
                    room.free = room.free.saturating_sub(job.spec.memory_each());
                    room.load += job.spec.share;
                }
            }
        }
        rooms
    }
}

fn wish(job: &Job) -> Wish<'_> {
    Wish {
        name: &job.spec.name,
        share: job.spec.share,
        memory: job.spec.memory_each(),
        servers: job.spec.servers as usize,
        current: &job.placement,
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
