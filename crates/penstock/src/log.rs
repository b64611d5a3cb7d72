//! Warnings, a line each on standard error: what a server or a manager has to say without being asked.
//!
//! Nothing waits for a reader: a server's thread that did would stop whenever the reader does. What is not taken at once is
//! lost. Nor can peers make the log grow without end: the same line is written once a minute, and only so many lines in all.

use crate::wait::poll;
use penstock_proto::error::{MAX_TEXT_BYTES, shorten};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::SendFlags;
use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// How long a line is not repeated: what is tried again and again, or happens at each connection, would fill a disk.
const QUIET: Duration = Duration::from_secs(60);
/// Lines in that time. No one reads more than that, and each is remembered, in 1 MiB at most in all.
const MOST: usize = 1024;

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

/// Lines that were said lately: when, and how often they were not said again since.
#[derive(Debug, Default)]
struct Recent(HashMap<String, (Instant, u64)>);

impl Recent {
    /// Whether this line is to be said now, and how often it was not since it was said last.
    fn admits(&mut self, text: &str, now: Instant) -> Option<u64> {
        let old = |since: Instant| now.saturating_duration_since(since) >= QUIET;
        if let Some((since, unsaid)) = self.0.get_mut(text) {
            if !old(*since) {
                *unsaid += 1;
                return None;
            }
            *since = now;
            return Some(std::mem::take(unsaid));
        }
        if self.0.len() >= MOST {
            self.0.retain(|_, (since, _)| !old(*since));
        }
        if self.0.len() >= MOST {
            return None;
        }
        self.0.insert(text.to_owned(), (now, 0));
        Some(0)
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
        let Some(unsaid) = recent.admits(&text, Instant::now()) else { return };
        drop(recent);
        self.outlet.write(&line(&text, unsaid));
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

/// `unsaid`: how often it was not said since it was said last.
fn line(text: &str, unsaid: u64) -> String {
    match unsaid {
        0 => format!("warning: {text}\n"),
        _ => format!("warning: {text}, {unsaid} more times since this was said last\n"),
    }
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
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line(&said.text(), 0));
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
    fn nobody_waits_for_who_reads_the_lines() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        for (stderr, way) in [(OwnedFd::from(writer), Way::Write), (one, Way::Send)] {
            let outlet = Outlet::of(stderr.as_fd()).unwrap();
            assert_eq!(outlet.way, way);
            (0..20_000).for_each(|_| outlet.write(&line("nobody reads this", 0)));
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
        outlet.write(&line("in a file", 2));
        file.write_all(b"after\n").unwrap();
        let mut found = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut found).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, "before\nwarning: in a file, 2 more times since this was said last\nafter\n");
        let folder = rustix::fs::open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(Outlet::of(folder.as_fd()).is_none());
    }

    // An acceptor without descriptors said the same ten times a second.
    #[test]
    fn what_is_said_again_and_again_is_said_once_a_minute_with_a_count() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(recent.admits("no descriptors", start), Some(0));
        assert!((1..60).all(|second| recent.admits("no descriptors", after(second)).is_none()));
        assert_eq!(recent.admits("another", after(59)), Some(0));
        assert_eq!(recent.admits("no descriptors", after(60)), Some(59));
        assert_eq!(recent.admits("no descriptors", after(61)), None);
        let news = |recent: &mut Recent, from: usize, second| {
            (from..from + 5000).filter(|n| recent.admits(&format!("{n}"), after(second)).is_some()).count()
        };
        assert_eq!(news(&mut recent, 0, 62), MOST - 2);
        assert_eq!(news(&mut recent, 10_000, 63), 0);
        assert!(news(&mut recent, 20_000, 122) > MOST / 2 && recent.0.len() <= MOST);
    }
}
