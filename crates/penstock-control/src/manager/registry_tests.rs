//! The registry's promises, second by second.

use super::*;

const LEASE: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn job(name: &str, servers: u32, memory: u64) -> Job {
    let spec = Spec { name: name.to_owned(), workers: 2, servers, memory, share: 0.5, settings: Vec::new() };
    Job {
        spec,
        id: format!("id of {name}"),
        secret: Secret([7; 32]),
        created: 0,
        placement: Vec::new(),
        pinned: false,
        ranks: BTreeMap::new(),
        outcome: None,
        linger: Duration::ZERO,
    }
}

fn registry() -> Registry {
    Registry::new(Vec::new(), LEASE, Secret([0; 32]))
}

/// The server does what it has to, and says so.
fn obey(registry: &mut Registry, now: Duration, server: &str, change: impl Fn(&mut Status)) {
    let status = |job: &Job| {
        let mut status = Status { id: job.id.clone(), ..Status::default() };
        change(&mut status);
        (job.spec.name.clone(), status)
    };
    let hosted = registry.desired(server).into_iter().map(|(_, job)| status(job)).collect();
    registry.heartbeat(now, server, hosted).unwrap();
}

fn running() -> Registry {
    let mut registry = registry();
    registry.register(at(0), "a", "/a", 100).unwrap();
    registry.create(at(0), job("j", 1, 60)).unwrap();
    obey(&mut registry, at(0), "a", |_| {});
    assert_eq!(registry.hand_out(at(0), "j"), Ok(Readiness::Ready(vec!["/a".to_owned()])));
    registry
}

#[test]
fn a_wrong_secret_and_an_unknown_name_are_refused_alike() {
    let mut registry = running();
    let wrong = registry.proved("j", &Secret([8; 32])).unwrap_err();
    let unknown = registry.proved("k", &Secret([7; 32])).unwrap_err();
    assert_eq!(wrong, unknown);
    assert_eq!(registry.proved("k", &Secret([0; 32])).unwrap_err(), unknown);
    assert!(registry.proved("j", &Secret([7; 32])).is_ok());
}

#[test]
fn a_job_that_nobody_uses_is_placed_anew_when_its_server_is_lost() {
    let mut registry = registry();
    registry.register(at(0), "a", "/a", 100).unwrap();
    registry.create(at(0), job("j", 1, 60)).unwrap();
    registry.register(at(5), "b", "/b", 100).unwrap();
    assert_eq!(registry.jobs["j"].placement, ["a"]);
    registry.heartbeat(at(9), "b", BTreeMap::new()).unwrap();
    registry.tick(at(9));
    assert_eq!(registry.jobs["j"].placement, ["a"], "a lease is not over before its end");
    registry.tick(at(10));
    assert_eq!(registry.jobs["j"].placement, ["b"]);
}

#[test]
fn a_server_that_says_goodbye_is_not_waited_for() {
    let mut registry = registry();
    registry.register(at(0), "a", "/a", 100).unwrap();
    registry.create(at(0), job("j", 1, 60)).unwrap();
    registry.register(at(1), "b", "/b", 100).unwrap();
    registry.leave(at(1), "a");
    assert_eq!(registry.jobs["j"].placement, ["b"]);
    assert!(!registry.servers.contains_key("a"), "no job needs it");
}

#[test]
fn a_job_with_workers_stays_where_its_state_is() {
    let mut registry = running();
    registry.register(at(5), "b", "/b", 100).unwrap();
    registry.tick(at(12));
    assert!(registry.has_lost_a_server(at(12), &registry.jobs["j"]));
    assert_eq!(registry.jobs["j"].placement, ["a"]);
    assert!(matches!(registry.hand_out(at(12), "j"), Ok(Readiness::NotYet(_))));
    // The server comes back, and with it the job.
    obey(&mut registry, at(13), "a", |_| {});
    assert!(matches!(registry.hand_out(at(13), "j"), Ok(Readiness::Ready(_))));
}

#[test]
fn after_a_restart_servers_have_a_lease_to_come_back() {
    let mut pinned = job("j", 1, 60);
    (pinned.placement, pinned.pinned) = (vec!["a".to_owned()], true);
    let mut idle = job("k", 1, 10);
    idle.placement = vec!["a".to_owned()];
    let mut registry = Registry::new(vec![pinned, idle], LEASE, Secret([0; 32]));
    registry.register(at(1), "b", "/b", 100).unwrap();
    registry.tick(at(9));
    assert_eq!(registry.jobs["k"].placement, ["a"]);
    assert!(registry.unsaved.is_empty(), "nothing has changed");
    registry.register(at(9), "a", "/a", 100).unwrap();
    obey(&mut registry, at(9), "a", |_| {});
    assert!(matches!(registry.hand_out(at(9), "j"), Ok(Readiness::Ready(_))));
}

// It had ended well while the manager was away, and stood as failed for good, because one of its servers came back first.
#[test]
fn after_a_restart_a_job_ends_when_all_its_servers_said_how_or_had_a_lease_to() {
    for comes_back in [true, false] {
        let mut placed = job("j", 2, 60);
        (placed.placement, placed.pinned) = (vec!["a".to_owned(), "b".to_owned()], true);
        let mut registry = Registry::new(vec![placed], LEASE, Secret([0; 32]));
        let end = |status: &mut Status| status.ended = true;
        registry.register(at(1), "a", "/a", 100).unwrap();
        obey(&mut registry, at(1), "a", end);
        assert_eq!(registry.jobs["j"].outcome, None, "the other may say that it failed");
        let expected = if comes_back {
            registry.register(at(2), "b", "/b", 100).unwrap();
            obey(&mut registry, at(2), "b", end);
            Outcome::Ended
        } else {
            obey(&mut registry, at(10), "a", end);
            Outcome::Failed("a server was lost".to_owned())
        };
        assert_eq!(registry.jobs["j"].outcome, Some(expected));
    }
}

// It had said that the job ended well, and left: the job then stood as failed, because a server was lost.
#[test]
fn what_a_server_said_of_a_job_before_it_went_counts() {
    for (leaves, ended) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut registry = registry();
        registry.register(at(0), "a", "/a", 100).unwrap();
        registry.register(at(0), "b", "/b", 100).unwrap();
        registry.create(at(0), job("j", 2, 60)).unwrap();
        for server in ["a", "b"] {
            obey(&mut registry, at(1), server, |_| {});
        }
        assert!(matches!(registry.hand_out(at(1), "j"), Ok(Readiness::Ready(_))));
        obey(&mut registry, at(1), "a", |status| status.ended = ended);
        if leaves {
            registry.leave(at(2), "a");
        }
        let later = at(if leaves { 3 } else { 30 });
        obey(&mut registry, later, "b", |status| status.ended = true);
        let lost = Outcome::Failed("a server was lost".to_owned());
        assert_eq!(registry.jobs["j"].outcome, Some(if ended { Outcome::Ended } else { lost }));
    }
}

#[test]
fn a_server_never_promises_more_memory_than_it_has() {
    let mut registry = running();
    let refusal = registry.create(at(1), job("k", 1, 41)).unwrap_err();
    assert_eq!(refusal.reason, Reason::Quota);
    assert!(!registry.jobs.contains_key("k"));
    registry.create(at(1), job("k", 1, 40)).unwrap();
    assert_eq!(registry.jobs["k"].placement, ["a"]);
}

#[test]
fn a_job_waits_for_as_many_servers_as_it_wants() {
    let mut registry = registry();
    registry.create(at(0), job("j", 2, 60)).unwrap();
    registry.register(at(0), "a", "/a", 100).unwrap();
    assert!(registry.jobs["j"].placement.is_empty());
    registry.register(at(0), "b", "/b", 100).unwrap();
    assert_eq!(registry.jobs["j"].placement.len(), 2);
}

#[test]
fn a_later_job_of_the_same_name_is_not_taken_for_the_earlier() {
    let mut registry = running();
    registry.delete(at(1), "j").unwrap();
    registry.create(at(1), Job { id: "later".to_owned(), ..job("j", 1, 60) }).unwrap();
    assert!(!registry.is_content("a"), "the server still hosts the earlier one");
    let ended = Status { id: "id of j".to_owned(), ended: true, ..Status::default() };
    registry.heartbeat(at(1), "a", BTreeMap::from([("j".to_owned(), ended)])).unwrap();
    assert_eq!(registry.jobs["j"].outcome, None);
    assert!(matches!(registry.hand_out(at(1), "j"), Ok(Readiness::NotYet(_))));
}

#[test]
fn a_job_ends_when_its_last_server_says_so_and_says_why_it_failed() {
    let mut registry = registry();
    registry.register(at(0), "a", "/a", 100).unwrap();
    registry.register(at(0), "b", "/b", 100).unwrap();
    registry.create(at(0), job("j", 2, 60)).unwrap();
    let end = |status: &mut Status| status.ended = true;
    obey(&mut registry, at(1), "b", |_| {});
    obey(&mut registry, at(1), "a", end);
    assert_eq!(registry.jobs["j"].outcome, None);
    obey(&mut registry, at(2), "b", |status| {
        end(status);
        status.failure = "worker 1 died".to_owned();
    });
    let refusal = registry.hand_out(at(2), "j").unwrap_err();
    assert_eq!(refusal.reason, Reason::Failed);
    assert!(refusal.message.contains("worker 1 died"), "{refusal}");
    // Its servers keep it for a lease, then its memory is free again.
    registry.tick(at(11));
    assert!(registry.is_content("a"));
    obey(&mut registry, at(11), "a", end);
    registry.tick(at(12));
    assert!(!registry.is_content("a"));
    assert_eq!(registry.rooms(at(12), |_| true)["a"].free, 100);
}

#[test]
fn ranks_are_given_lowest_first_and_the_same_to_who_asks_again() {
    let mut registry = running();
    assert_eq!(registry.enlist("j", "x", None, 0), Ok(0));
    assert_eq!(registry.enlist("j", "y", None, 2), Ok(1));
    assert_eq!(registry.enlist("j", "x", None, 0), Ok(0));
    assert_eq!(registry.enlist("j", "z", None, 0).unwrap_err().reason, Reason::Full);
    assert_eq!(registry.enlist("j", "z", Some(1), 0), Ok(1), "a launcher's word goes before ours");
    assert_eq!(registry.enlist("j", "z", Some(2), 0).unwrap_err().reason, Reason::Full);
    assert_eq!(registry.enlist("j", "w", None, 3).unwrap_err().reason, Reason::Full);
}
