//! Warnings, a line each on standard error: what a server or a manager has to say that nobody asked for.
//!
//! Nothing waits for who reads it: a thread of a server that did would stand still with its reader. What is not taken at once is lost.

use crate::wait::poll;
use penstock_proto::error::{MAX_TEXT_BYTES, shorten};
use rustix::event::{PollFd, PollFlags};
use std::fmt::{Debug, Write as _};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// From now on this process's warnings go to standard error. Where the process has another place for them, they go there.
pub fn warn_on_stderr() {
    let _ = tracing::subscriber::set_global_default(Lines);
}

/// Nothing of ours opens a span.
struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LevelFilter::WARN && metadata.target().starts_with("penstock")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let stderr = std::io::stderr();
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        if poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0) {
            // In one piece, so that it is not mixed with others', and shorter than what a pipe that can be written takes at least.
            let _ = rustix::io::write(&stderr, said.line().as_bytes());
        }
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

impl Said {
    fn line(self) -> String {
        let mut text = match &self.fields[..] {
            "" => self.message,
            fields => format!("{} ({fields})", self.message),
        };
        // A peer may have had a part in the words.
        shorten(&mut text, MAX_TEXT_BYTES);
        format!("warning: {text}\n")
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
    use std::sync::{Arc, Mutex, PoisonError};

    /// Keeps the lines.
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            Lines.enabled(metadata)
        }

        fn event(&self, event: &Event<'_>) {
            let mut said = Said::default();
            event.record(&mut said);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(said.line());
        }

        fn new_span(&self, attributes: &Attributes<'_>) -> Id {
            Lines.new_span(attributes)
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
}
