//! Warnings, a line each on standard error: what a server or a manager has to say without being asked.
//!
//! Nothing waits for a reader: a server's thread that did would stop whenever the reader does. What is not taken at once is
//! lost. Nor can peers make the log grow without end, or keep others' lines out of it: the same line is written once a minute, and
//! only so many of one kind and thread: a job has threads of its own, and as many times as many lines as it has threads. How many
//! were left out is said with a later line of their kind and thread, or, once the thread has said nothing for a minute, with the
//! last of those, as soon as a thread or kind that is new says something, some at a time: no job's count stands in another's line.

use crate::wait::poll;
use penstock_proto::error::{MAX_TEXT_BYTES, shorten};
use penstock_proto::message::MAX_WORKERS;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::SendFlags;
use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// How long a line is not repeated: what is tried again and again, or happens at each connection, would fill a disk.
const QUIET: Duration = Duration::from_secs(60);
/// Lines of one kind and thread in that time. No one reads more than that, and each is remembered: 64 KiB at most of each kind
/// and thread that said anything in that time. Only of [`LOSSES`] there may be more, a line for each worker.
const MOST: usize = 64;
/// Most lines about sources that have ended which are written behind one of a new source.
const MOST_ENDED: usize = 16;
/// The target of warnings that a worker was lost: each is named, however many are lost together.
pub(crate) const LOSSES: &str = "penstock::losses";

/// From now on this process's warnings go to standard error, if it has one now. Where the process has another place for
/// them, they go there.
pub fn warn_on_stderr() {
    if let Some(outlet) = Outlet::of(std::io::stderr().as_fd()) {
        let _ = tracing::subscriber::set_global_default(Lines { outlet, recent: Mutex::default() });
    }
}

/// Where lines go, by a descriptor of its own: that of standard error may be closed and be another's later.
#[derive(Debug)]
struct Outlet {
    fd: OwnedFd,
    way: Way,
    /// The last line was taken in part.
    torn: AtomicBool,
}

/// How a line goes without waiting for a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A file needs no reader, and one that was opened anew would begin at its start; or the descriptor was opened not to wait.
    Write,
    /// A socket cannot be opened anew, but asked not to wait.
    Send,
    /// A pipe that may not be opened anew (another user's). One that can be written takes a line whole.
    Poll,
}

impl Outlet {
    /// `None` for nothing, and for a terminal that may not be opened anew: it says that it can be written when a line does
    /// not fit any more.
    fn of(stderr: BorrowedFd<'_>) -> Option<Self> {
        let found = rustix::fs::fstat(stderr).ok()?;
        let kind = FileType::from_raw_mode(found.st_mode);
        let copy = || rustix::io::fcntl_dupfd_cloexec(stderr, 3).ok();
        let anew = || {
            let path = format!("/proc/self/fd/{}", stderr.as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).ok()
        };
        let (fd, way) = match kind {
            FileType::RegularFile => (copy()?, Way::Write),
            FileType::Socket => (copy()?, Way::Send),
            FileType::Fifo => match anew() {
                Some(fd) => (fd, Way::Write),
                None => (copy()?, Way::Poll),
            },
            FileType::CharacterDevice => (anew()?, Way::Write),
            _ => return None,
        };
        Some(Self { fd, way, torn: AtomicBool::new(false) })
    }

    /// Writes a line in one piece, so that it is not mixed with others'; or not at all.
    fn write(&self, line: &str) {
        if self.way == Way::Poll && !self.takes_a_line() {
            return;
        }
        let torn = self.torn.load(Ordering::Relaxed);
        let line = if torn { format!("\n{line}") } else { line.to_owned() };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let taken = match self.way {
            Way::Send => rustix::net::send(&self.fd, line.as_bytes(), flags),
            Way::Write | Way::Poll => rustix::io::write(&self.fd, line.as_bytes()),
        };
        if let Ok(taken) = taken {
            self.torn.store(taken < line.len(), Ordering::Relaxed);
        }
    }

    fn takes_a_line(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
    }
}

/// Which warning it is, and who says it.
type Source = (Identifier, ThreadId);

/// What was not said since a line was said last.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Unsaid {
    /// The same.
    same: u64,
    /// Others of the same source, of which there were too many.
    others: u64,
}

/// Lines of one source that were said lately: when, and how often they were not said again since.
#[derive(Debug, Default)]
struct Lately {
    lines: HashMap<String, (Instant, u64)>,
    left_out: u64,
    /// The last of those that were left out.
    last: String,
}

impl Lately {
    /// As one of at most `most` lines.
    fn admits(&mut self, text: &str, now: Instant, most: usize) -> Option<Unsaid> {
        if let Some((since, unsaid)) = self.lines.get_mut(text) {
            if !is_old(*since, now) {
                *unsaid += 1;
                return None;
            }
            *since = now;
            let (same, others) = (std::mem::take(unsaid), std::mem::take(&mut self.left_out));
            return Some(Unsaid { same, others });
        }
        if self.lines.len() >= most {
            self.forget_old(now);
        }
        if self.lines.len() >= most {
            self.left_out += 1;
            text.clone_into(&mut self.last);
            return None;
        }
        self.lines.insert(text.to_owned(), (now, 0));
        Some(Unsaid { same: 0, others: std::mem::take(&mut self.left_out) })
    }

    fn forget_old(&mut self, now: Instant) {
        let Self { lines, left_out, last } = self;
        lines.retain(|text, (since, unsaid)| {
            let old = is_old(*since, now);
            if old && *unsaid > 0 {
                *left_out += *unsaid;
                text.clone_into(last);
            }
            !old
        });
    }

    /// What was left out, as a line of its own, where nothing else is remembered.
    fn end(&mut self) -> Option<(String, Unsaid)> {
        let others = self.left_out.checked_sub(1)?;
        Some((format!("left out earlier: {}", self.last), Unsaid { same: 0, others }))
    }
}

fn is_old(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= QUIET
}

/// The same by source: none keeps another's lines out.
#[derive(Debug, Default)]
struct Recent {
    sources: HashMap<Source, Lately>,
}

impl Recent {
    /// Whether this line is to be said now, as one of at most `most`, and what was not since it was said last.
    fn admits(&mut self, source: Source, text: &str, now: Instant, most: usize) -> Option<Unsaid> {
        self.sources.entry(source).or_default().admits(text, now, most)
    }

    /// Where another source comes, those that have said nothing lately are forgotten: threads end. What is to be said of them, of
    /// some now and of others when the next source comes: so many lines may wait for a slow reader, and no more.
    fn make_room(&mut self, source: &Source, now: Instant) -> Vec<(String, Unsaid)> {
        let mut ended = Vec::new();
        if !self.sources.contains_key(source) {
            self.sources.retain(|_, lately| {
                lately.forget_old(now);
                let stays = !lately.lines.is_empty() || (lately.left_out > 0 && ended.len() >= MOST_ENDED);
                if !stays {
                    ended.extend(lately.end());
                }
                stays
            });
        }
        ended
    }
}

/// Nothing of ours opens a span.
struct Lines {
    outlet: Outlet,
    recent: Mutex<Recent>,
}

impl Lines {
    fn takes(metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LevelFilter::WARN && metadata.target().starts_with("penstock")
    }

    /// How many lines of a kind, and thread, are said in a minute.
    fn most(metadata: &Metadata<'_>) -> usize {
        if metadata.target() == LOSSES { MAX_WORKERS as usize } else { MOST }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Self::takes(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let text = said.text();
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let source = (event.metadata().callsite(), std::thread::current().id());
        let (now, most) = (Instant::now(), Self::most(event.metadata()));
        let ended = recent.make_room(&source, now);
        let admitted = recent.admits(source, &text, now, most);
        drop(recent);
        // Its own first: what takes no more loses what is written last.
        let own = admitted.map(|unsaid| (text, unsaid));
        own.into_iter().chain(ended).for_each(|(text, unsaid)| self.outlet.write(&line(&text, unsaid)));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event, and its fields.
#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

fn line(text: &str, Unsaid { same, others }: Unsaid) -> String {
    let mut line = format!("warning: {text}");
    // Writing to a string does not fail.
    let _ = match same {
        0 => Ok(()),
        1 => write!(line, ", once more since this was said last"),
        _ => write!(line, ", {same} more times since this was said last"),
    };
    let _ = match others {
        0 => Ok(()),
        1 => write!(line, "; 1 other warning like it was left out before"),
        _ => write!(line, "; {others} other warnings like it were left out before"),
    };
    line.push('\n');
    line
}

impl Said {
    fn text(self) -> String {
        let mut text = match &self.fields[..] {
            "" => self.message,
            fields => format!("{} ({fields})", self.message),
        };
        // A peer may have had a part in the words.
        shorten(&mut text, MAX_TEXT_BYTES);
        text
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => {
                let comma = if self.fields.is_empty() { "" } else { ", " };
                write!(self.fields, "{comma}{name}: {value:?}")
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::io::{Read, Seek, Write};
    use std::sync::Arc;

    /// Keeps the lines.
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            Lines::takes(metadata)
        }

        fn event(&self, event: &Event<'_>) {
            let mut said = Said::default();
            event.record(&mut said);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line(&said.text(), Unsaid::default()));
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_warning_is_one_line_with_what_it_is_about_whatever_a_peer_said() {
        let kept = Arc::new(Mutex::default());
        tracing::subscriber::with_default(Kept(Arc::clone(&kept)), || {
            tracing::warn!(rank = 3, how = "died\n\u{1b}[2J", "a worker was lost");
            tracing::warn!("nothing beside it");
            tracing::warn!(reason = "x".repeat(5000), "long");
            tracing::info!("not worth a line");
        });
        let lines = kept.lock().unwrap();
        assert_eq!(lines[0], "warning: a worker was lost (rank: 3, how: died \u{fffd}[2J)\n");
        assert_eq!(lines[1], "warning: nothing beside it\n");
        assert!(lines[2].len() < 1100 && lines[2].ends_with(" ...\n"));
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn what_was_left_out_is_counted_as_one_counts() {
        let said = |same, others| line("no room", Unsaid { same, others });
        assert_eq!(said(0, 0), "warning: no room\n");
        let one = "warning: no room, once more since this was said last; 1 other warning like it was left out before\n";
        assert_eq!(said(1, 1), one);
        let two = "warning: no room, 2 more times since this was said last; 2 other warnings like it were left out before\n";
        assert_eq!(said(2, 2), two);
    }

    #[test]
    fn nobody_waits_for_who_reads_the_lines() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        for (stderr, way) in [(OwnedFd::from(writer), Way::Write), (one, Way::Send)] {
            let outlet = Outlet::of(stderr.as_fd()).unwrap();
            assert_eq!(outlet.way, way);
            (0..20_000).for_each(|_| outlet.write(&line("nobody reads this", Unsaid::default())));
            assert!(
                !rustix::fs::fcntl_getfl(&stderr).unwrap().contains(OFlags::NONBLOCK),
                "others have it too"
            );
        }
        drop((reader, other));
    }

    #[test]
    fn lines_go_behind_what_stands_in_a_file_and_nowhere_where_there_is_nothing() {
        let path = std::env::temp_dir().join(format!("penstock-test-{}-log", std::process::id()));
        let open = |options: &mut std::fs::OpenOptions| options.read(true).write(true).open(&path).unwrap();
        let mut file = open(std::fs::OpenOptions::new().create(true).truncate(true));
        file.write_all(b"before\n").unwrap();
        let outlet = Outlet::of(file.as_fd()).unwrap();
        outlet.write(&line("in a file", Unsaid { same: 2, others: 0 }));
        file.write_all(b"after\n").unwrap();
        let mut found = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut found).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, "before\nwarning: in a file, 2 more times since this was said last\nafter\n");
        let folder = rustix::fs::open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(Outlet::of(folder.as_fd()).is_none());
    }

    /// Two different warnings.
    fn sources() -> [Source; 2] {
        let found = Arc::new(Mutex::default());
        struct Sites(Arc<Mutex<Vec<Identifier>>>);
        impl Subscriber for Sites {
            fn enabled(&self, _: &Metadata<'_>) -> bool {
                true
            }

            fn event(&self, event: &Event<'_>) {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event.metadata().callsite());
            }

            fn new_span(&self, _: &Attributes<'_>) -> Id {
                Id::from_u64(1)
            }

            fn record(&self, _: &Id, _: &Record<'_>) {}

            fn record_follows_from(&self, _: &Id, _: &Id) {}

            fn enter(&self, _: &Id) {}

            fn exit(&self, _: &Id) {}
        }
        tracing::subscriber::with_default(Sites(Arc::clone(&found)), || {
            tracing::warn!("one");
            tracing::warn!("another");
        });
        let found = found.lock().unwrap();
        let here = std::thread::current().id();
        [(found[0].clone(), here), (found[1].clone(), here)]
    }

    fn news(recent: &mut Recent, source: &Source, from: usize, now: Instant) -> usize {
        let admits = |n: &usize| recent.admits(source.clone(), &format!("{n}"), now, MOST).is_some();
        (from..from + 5000).filter(admits).count()
    }

    // An acceptor without descriptors said the same ten times a second.
    #[test]
    fn what_is_said_again_and_again_is_said_once_a_minute_with_a_count() {
        let (mut recent, start, [source, _]) = (Recent::default(), Instant::now(), sources());
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut admits = |text, now| recent.admits(source.clone(), text, now, MOST);
        assert_eq!(admits("no descriptors", start), Some(Unsaid::default()));
        assert!((1..60).all(|second| admits("no descriptors", after(second)).is_none()));
        assert_eq!(admits("another", after(59)), Some(Unsaid::default()));
        assert_eq!(admits("no descriptors", after(60)), Some(Unsaid { same: 59, others: 0 }));
        assert_eq!(admits("no descriptors", after(61)), None);
        assert_eq!(news(&mut recent, &source, 0, after(62)), MOST - 2);
        assert_eq!(news(&mut recent, &source, 10_000, after(63)), 0);
        let unsaid = recent.admits(source.clone(), "no descriptors", after(120), MOST).unwrap();
        assert_eq!(unsaid, Unsaid { same: 1, others: 10_000 - (MOST as u64 - 2) });
        let text = line("no descriptors", unsaid);
        assert!(
            text.ends_with(
                ", once more since this was said last; 9938 other warnings like it were left out before\n"
            ),
            "{text}"
        );
        assert_eq!(news(&mut recent, &source, 20_000, after(122)), MOST - 1);
    }

    // A worker that caused a thousand different warnings a minute kept all others of the process out, also other jobs'.
    #[test]
    fn who_causes_warnings_without_end_keeps_out_none_of_another_kind_and_of_no_other_thread() {
        let (mut recent, now, [one, other]) = (Recent::default(), Instant::now(), sources());
        let elsewhere =
            || (one.0.clone(), std::thread::spawn(|| std::thread::current().id()).join().unwrap());
        assert_eq!(news(&mut recent, &one, 0, now), MOST);
        assert!(recent.admits(other, "a worker was lost", now, MOST).is_some());
        assert!(recent.admits(elsewhere(), "a worker was lost", now, MOST).is_some());
        // What a thread left out that has ended is said all the same, and not in the line of another, which may be another job's.
        let (newcomer, others) = (elsewhere(), 5000 - MOST as u64 - 1);
        let ended = recent.make_room(&newcomer, now + QUIET);
        assert_eq!(ended, [("left out earlier: 4999".to_owned(), Unsaid { same: 0, others })]);
        let unsaid = recent.admits(newcomer, "a worker was lost", now + QUIET, MOST);
        assert_eq!(unsaid, Some(Unsaid::default()));
        assert_eq!(recent.sources.len(), 1, "of threads that have ended nothing is remembered for longer");
    }

    #[test]
    fn what_was_said_again_by_a_thread_that_has_ended_is_said_once_more() {
        let (mut recent, now, [one, other]) = (Recent::default(), Instant::now(), sources());
        (0..3).for_each(|_| _ = recent.admits(one.clone(), "no descriptors", now, MOST));
        assert_eq!(recent.make_room(&one, now + QUIET), [], "it may say it itself");
        let ended = recent.make_room(&other, now + QUIET);
        let earlier = "left out earlier: no descriptors".to_owned();
        assert_eq!(ended, [(earlier, Unsaid { same: 0, others: 1 })]);
        assert!(recent.sources.is_empty());
    }

    // Lines of others came first, as many as there were threads that had ended: a reader that had stopped lost the newest.
    #[test]
    fn a_new_warning_comes_before_counts_of_threads_that_have_ended() {
        let (mut recent, [one, _]) = (Recent::default(), sources());
        let Some(before) = Instant::now().checked_sub(QUIET) else {
            let _ = writeln!(std::io::stderr(), "skipped: this machine has run for less than a minute");
            return;
        };
        for _ in 0..MOST_ENDED + 4 {
            let elsewhere = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
            (0..2).for_each(|_| _ = recent.admits((one.0.clone(), elsewhere), "earlier", before, MOST));
        }
        let path = std::env::temp_dir().join(format!("penstock-test-{}-order", std::process::id()));
        let outlet = Outlet::of(std::fs::File::create(&path).unwrap().as_fd()).unwrap();
        tracing::subscriber::with_default(Lines { outlet, recent: Mutex::new(recent) }, || {
            tracing::warn!(target: "penstock", "now");
            tracing::warn!(target: "penstock", "then");
        });
        let said = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let earlier = |lines| "warning: left out earlier: earlier\n".repeat(lines);
        assert_eq!(said, format!("warning: now\n{}warning: then\n{}", earlier(MOST_ENDED), earlier(4)));
    }

    // Of a job of which a hundred workers were lost at once, thirty-six were named nowhere.
    #[test]
    fn each_worker_that_is_lost_is_named_however_many_are_lost_at_once() {
        let path = std::env::temp_dir().join(format!("penstock-test-{}-losses", std::process::id()));
        let outlet = Outlet::of(std::fs::File::create(&path).unwrap().as_fd()).unwrap();
        tracing::subscriber::with_default(Lines { outlet, recent: Mutex::default() }, || {
            for rank in 0..MAX_WORKERS {
                tracing::warn!(target: LOSSES, rank, "a worker was lost");
                tracing::warn!(rank, "something else");
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let count = |what| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((count("lost"), count("something else")), (MAX_WORKERS as usize, MOST));
    }
}
