//! A server that cannot start leaves nothing behind. A test file of its own, because the limit on descriptors, which belongs to
//! the process, is lowered for good.

mod common;

use common::{config, socket_path};
use penstock::server::Server;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::time::{Duration, Instant};

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("penstock-")).count()
}

/// Whether there are so many, or soon: a thread that was joined may stand in /proc for a moment.
fn has_threads(count: usize) -> bool {
    let since = Instant::now();
    while threads() != count {
        if since.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_start_that_fails_at_any_step_leaves_no_thread_no_descriptor_and_no_file() {
    let (descriptors_before, threads_before) = (descriptors(), threads());
    let (mut failed, mut started) = (0, 0);
    for room in (0..40).rev() {
        let path = socket_path();
        let config = config(Some(path.clone()), &["127.0.0.1:0".to_owned()], "4");
        // The server takes all that the hard limit allows, so that is what is lowered.
        let most = Some(descriptors_before as u64 + room);
        setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
        let ok = Server::start(config).is_ok();
        (failed, started) = (failed + usize::from(!ok), started + usize::from(ok));
        let what = format!("room for {room} descriptors, started: {ok}");
        assert_eq!(descriptors(), descriptors_before, "{what}");
        assert!(has_threads(threads_before), "{what}: {} threads", threads());
        assert!(!path.exists(), "room for {room} descriptors");
    }
    assert!(failed > 10 && started > 0, "{failed} failed, {started} started");
}
