//! Addresses of a name. The system's resolver knows neither deadlines nor Ctrl-C, so a thread of its own asks it, and is left
//! behind if there is no answer.

use crate::patience::{Interrupted, Patience};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::Builder;

/// Asks for the addresses of a host, with this port.
pub(crate) type Resolver = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Why a name led to no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// The system says why.
    Refused(String),
    /// It has not answered in time.
    Late,
    /// It could not be asked, for this reason.
    NotAsked(String),
    Interrupted(Interrupted),
}

/// The question that is under way, if there is one: it is not asked twice.
#[derive(Debug, Default)]
pub(crate) struct Lookup(Option<Receiver<io::Result<Vec<SocketAddr>>>>);

/// Asks the system.
pub(crate) fn system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

impl Lookup {
    /// The addresses of `host`, at least one. What is an address already is not looked up.
    pub(crate) fn resolve(
        &mut self,
        host: &str,
        port: u16,
        patience: &Patience<'_>,
        resolver: Resolver,
    ) -> Result<Vec<SocketAddr>, Unresolved> {
        if let Some(address) = written(host, port) {
            return Ok(vec![address]);
        }
        let asked = match self.0.take() {
            Some(asked) => asked,
            None => ask(host, port, resolver).map_err(|error| Unresolved::NotAsked(plain(&error)))?,
        };
        let answer = match patience.receive(&asked).map_err(Unresolved::Interrupted)? {
            Some(answer) => Ok(answer),
            None => asked.try_recv(),
        };
        match answer {
            Ok(Ok(found)) if found.is_empty() => Err(Unresolved::Refused("it is unknown".to_owned())),
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(Unresolved::Refused(plain(&error))),
            Err(TryRecvError::Empty) => {
                self.0 = Some(asked);
                Err(Unresolved::Late)
            }
            // The thread that asked has ended: the next try asks again.
            Err(TryRecvError::Disconnected) => {
                Err(Unresolved::Refused("the look-up ended without an answer".to_owned()))
            }
        }
    }
}

fn ask(host: &str, port: u16, resolver: Resolver) -> io::Result<Receiver<io::Result<Vec<SocketAddr>>>> {
    let (answers, asked) = channel();
    let host = host.to_owned();
    Builder::new().name("penstock-resolve".to_owned()).spawn(move || {
        // No caller waits for it any more if this fails.
        let _ = answers.send(resolver(&host, port));
    })?;
    Ok(asked)
}

/// The address that is written there.
fn written(host: &str, port: u16) -> Option<SocketAddr> {
    let bare = || host.parse::<IpAddr>().ok().map(|address| (address, port).into());
    // One that is valid on this host's link only has the link's number behind it.
    bare().or_else(|| format!("[{host}]:{port}").parse::<SocketAddrV6>().ok().map(SocketAddr::V6))
}

/// What the system says of an error, without what Rust adds.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    text.split(" (os error").next().unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(600);

    fn none(_: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        panic!("nobody asks");
    }

    fn stuck(_: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        std::thread::sleep(LONG);
        Ok(Vec::new())
    }

    #[test]
    fn what_is_an_address_is_not_looked_up() {
        for (host, expected) in
            [("10.0.0.1", "10.0.0.1:7"), ("fd00::1", "[fd00::1]:7"), ("fe80::1%2", "[fe80::1%2]:7")]
        {
            let found = Lookup::default().resolve(host, 7, &Patience::new(LONG, &|| false), none);
            assert_eq!(found, Ok(vec![expected.parse().expect("it is one")]));
        }
    }

    #[test]
    fn a_name_server_that_does_not_answer_ends_at_the_deadline_or_when_the_caller_is_interrupted() {
        let began = Instant::now();
        let mut lookup = Lookup::default();
        let short = Patience::new(Duration::from_millis(50), &|| false);
        assert_eq!(lookup.resolve("a", 7, &short, stuck), Err(Unresolved::Late));
        let interrupted = Err(Unresolved::Interrupted(Interrupted));
        assert_eq!(lookup.resolve("a", 7, &Patience::new(LONG, &|| true), stuck), interrupted);
        assert!(began.elapsed() < LONG / 2);
    }

    // It was waited for until the deadline.
    #[test]
    fn a_look_up_that_ends_without_an_answer_is_made_again() {
        let mut lookup = Lookup::default();
        let reason = "the look-up ended without an answer".to_owned();
        assert_eq!(
            lookup.resolve("a", 7, &Patience::new(LONG, &|| false), none),
            Err(Unresolved::Refused(reason))
        );
        let again: Resolver = |_, port| Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]);
        let found = lookup.resolve("a", 7, &Patience::new(LONG, &|| false), again);
        assert_eq!(found, Ok(vec![SocketAddr::from(([10, 0, 0, 1], 7))]));
    }

    #[test]
    fn a_slow_answer_is_waited_for_and_not_asked_for_twice() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        fn slow(_: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            ASKED.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(200));
            Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))])
        }
        let mut lookup = Lookup::default();
        let first = Patience::new(Duration::from_millis(1), &|| false);
        assert_eq!(lookup.resolve("a", 7, &first, slow), Err(Unresolved::Late));
        let found = lookup.resolve("a", 7, &Patience::new(LONG, &|| false), slow);
        assert_eq!(found, Ok(vec![SocketAddr::from(([10, 0, 0, 1], 7))]));
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    }
}
