//! The other processes' end of a rendezvous: each comes to rank 0, again and again until rank 0 is there.

use super::proof::{
    Claim, Conversation, Digest, FRAME_HEAD_BYTES, MAGIC, Nonce, Side, TAKEN, WELCOME, WRONG_SECRET,
    WRONG_SIZE,
};
use super::{Cause, Party, RendezvousAddress, RendezvousError, STRANGER_TIME, again, nonce};
use crate::exchange::{VERDICT_MARGIN, verdict_limit};
use crate::patience::{Interrupted, Patience};
use crate::resolve::{Lookup, Resolver, Unresolved, plain, system};
use penstock_fabric::descriptors;
use penstock_fabric::net::quiet::Quiet;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// How long rank 0 may say that another process has this rank. An earlier connection of this process, or one that says nothing,
/// has ended by then.
const TAKEN_TIME: Duration = Duration::from_secs(12);
const _: () = assert!(TAKEN_TIME.as_secs() > 2 * STRANGER_TIME.as_secs());
/// Bytes of a verdict for which there is room before they have come.
const READ_BYTES: usize = 64 * 1024;

/// Why a connection is of no use.
enum Unfit {
    /// Trying again may help.
    Passing(Cause),
    /// It took too long.
    Late,
    /// It will not.
    Final(RendezvousError),
}

impl From<Interrupted> for Unfit {
    fn from(interrupted: Interrupted) -> Self {
        Self::Final(interrupted.into())
    }
}

/// The end of a process that is not rank 0.
#[derive(Debug)]
pub struct Visitor {
    party: Party,
    at: RendezvousAddress,
    met: Option<(TcpStream, Conversation)>,
    lookup: Lookup,
    resolver: Resolver,
}

impl Visitor {
    /// Nothing is sent yet.
    pub fn new(party: Party, at: RendezvousAddress) -> Self {
        Self { party, at, met: None, lookup: Lookup::default(), resolver: system }
    }

    /// Hands a contribution to rank 0.
    pub fn deliver(&mut self, contribution: &[u8], patience: &Patience<'_>) -> Result<(), RendezvousError> {
        self.party.refuse_too_many()?;
        let (mut stream, mut conversation) = match self.met.take() {
            Some(met) => met,
            None => self.meet(patience)?,
        };
        let sent = send(&mut stream, &conversation.frame(contribution), patience);
        self.met = Some((stream, conversation));
        sent.map_err(|unfit| match unfit {
            Unfit::Final(error) => error,
            Unfit::Passing(_) => RendezvousError::Left { at: self.at.clone() },
            Unfit::Late => RendezvousError::Undecided { at: self.at.clone() },
        })
    }

    /// The verdict, which may come up to [`VERDICT_MARGIN`] after the end of `patience`. It follows a [`Self::deliver`].
    pub fn await_verdict(&mut self, patience: &Patience<'_>) -> Result<Vec<u8>, RendezvousError> {
        let at = &self.at;
        let Some((stream, conversation)) = &mut self.met else {
            return Err(RendezvousError::Left { at: at.clone() });
        };
        let patience = patience.another(patience.left() + VERDICT_MARGIN);
        let changed = || Unfit::Final(RendezvousError::Changed { at: at.clone() });
        let mut answer = || {
            let mut head = [0; FRAME_HEAD_BYTES];
            receive(stream, &mut head, &patience)?;
            let (length, tag) = head.split_first_chunk().expect("a head is longer");
            let length = u32::from_le_bytes(*length) as usize;
            if length > verdict_limit(self.party.size) {
                return Err(changed());
            }
            let mut payload = Vec::new();
            while payload.len() < length {
                let begun = payload.len();
                payload.resize(length.min(begun + READ_BYTES), 0);
                receive(stream, &mut payload[begun..], &patience)?;
            }
            let tag: &Digest = tag.try_into().expect("the rest is the tag");
            conversation.take(tag, &payload).map_err(|_| changed())?;
            Ok(payload)
        };
        answer().map_err(|unfit| match unfit {
            Unfit::Final(error) => error,
            Unfit::Late => RendezvousError::Undecided { at: self.at.clone() },
            Unfit::Passing(_) => RendezvousError::Left { at: self.at.clone() },
        })
    }

    /// Comes to rank 0, again and again. Nothing tells when a port on another host begins to listen.
    fn meet(&mut self, patience: &Patience<'_>) -> Result<(TcpStream, Conversation), RendezvousError> {
        let (mut last, mut taken_since) = (None, None);
        let attempt = || {
            let cause = match self.come(patience) {
                Ok(met) => return Ok(ControlFlow::Break(met)),
                Err(Unfit::Final(error)) => return Err(error),
                Err(Unfit::Passing(cause)) => cause,
                // Where the time was up in the middle of an attempt, the one before says more.
                Err(Unfit::Late) if patience.is_over() => last.take().unwrap_or(Cause::Silent),
                Err(Unfit::Late) => Cause::Silent,
            };
            if !matches!(cause, Cause::Taken { .. }) {
                taken_since = None;
            } else if taken_since.get_or_insert_with(Instant::now).elapsed() > TAKEN_TIME {
                return Err(RendezvousError::Taken { at: self.at.clone(), rank: self.party.rank });
            }
            last = Some(cause.clone());
            Ok(ControlFlow::Continue(cause))
        };
        match again(patience, attempt)? {
            ControlFlow::Break(met) => Ok(met),
            ControlFlow::Continue(cause) => Err(self.late(cause)),
        }
    }

    /// Connects, and each side proves itself to the other.
    fn come(&mut self, patience: &Patience<'_>) -> Result<(TcpStream, Conversation), Unfit> {
        let mut stream = self.reach(&patience.at_most(STRANGER_TIME))?;
        let patience = patience.at_most(STRANGER_TIME);
        let own = nonce().map_err(Unfit::Final)?;
        send(&mut stream, &[&MAGIC[..], &own].concat(), &patience)?;
        let mut theirs = Nonce::default();
        receive(&mut stream, &mut theirs, &patience)?;

        let Party { rank, size, secret, job } = &self.party;
        let claim = Claim { rank: *rank, size: *size };
        let conversation = Conversation::new(Side::Worker, secret, job, [own, theirs]);
        send(&mut stream, &[&claim.spell()[..], &conversation.proof(claim)].concat(), &patience)?;
        let other_secret = || RendezvousError::OtherSecret { at: self.at.clone(), rank: *rank };
        let mut answer = [0];
        receive(&mut stream, &mut answer, &patience)?;
        match answer[0] {
            WELCOME => {}
            WRONG_SECRET => return Err(Unfit::Final(other_secret())),
            WRONG_SIZE => {
                let mut expected = [0; 4];
                receive(&mut stream, &mut expected, &patience)?;
                let (at, expected) = (self.at.clone(), u32::from_le_bytes(expected));
                return Err(Unfit::Final(RendezvousError::OtherSize {
                    at,
                    expected,
                    rank: *rank,
                    size: *size,
                }));
            }
            TAKEN => return Err(Unfit::Passing(Cause::Taken { rank: *rank })),
            _ => return Err(Unfit::Passing(Cause::Foreign)),
        }
        let mut proof = Digest::default();
        receive(&mut stream, &mut proof, &patience)?;
        if conversation.proves(&proof, claim) {
            Ok((stream, conversation))
        } else {
            Err(Unfit::Final(other_secret()))
        }
    }

    /// A connection to the first of the rendezvous host's addresses that takes one.
    fn reach(&mut self, patience: &Patience<'_>) -> Result<TcpStream, Unfit> {
        let RendezvousAddress { host, port } = &self.at;
        let found = self.lookup.resolve(host, *port, patience, self.resolver);
        let addresses = found.map_err(|unresolved| match unresolved {
            // It may be made known later than this process begins: in a cluster, when rank 0's host is ready.
            Unresolved::Refused(reason) => Unfit::Passing(Cause::NoAddress { host: host.clone(), reason }),
            Unresolved::Late => Unfit::Passing(Cause::Unresolved { host: host.clone() }),
            Unresolved::NotAsked(reason) => {
                Unfit::Final(RendezvousError::System { what: "look up a name", reason })
            }
            Unresolved::Interrupted(interrupted) => interrupted.into(),
        })?;
        reach_one_of(&addresses, patience)
    }

    fn late(&self, cause: Cause) -> RendezvousError {
        RendezvousError::Late { at: self.at.clone(), cause }
    }
}

/// One that never answers, as behind a firewall, leaves the others their share of the time.
fn reach_one_of(addresses: &[SocketAddr], patience: &Patience<'_>) -> Result<TcpStream, Unfit> {
    let mut unfit = Unfit::Late;
    for (address, rest) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        match reach(*address, &patience.at_most(patience.left() / rest)) {
            Err(Unfit::Final(error)) => return Err(Unfit::Final(error)),
            Err(other) => unfit = other,
            Ok(stream) => return Ok(stream),
        }
    }
    Err(unfit)
}

fn reach(address: SocketAddr, patience: &Patience<'_>) -> Result<TcpStream, Unfit> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let unreachable = |errno: Errno| {
        let mut reason = plain(&errno.into());
        if let Some(first) = reason.get_mut(..1) {
            first.make_ascii_lowercase();
        }
        Unfit::Passing(Cause::Unreachable { address, reason })
    };
    let socket = || socket_with(family, SocketType::STREAM, flags, None);
    let socket = match socket() {
        Err(Errno::MFILE) if matches!(descriptors::raise_limit(), Ok(true)) => socket(),
        other => other,
    };
    let socket = socket.map_err(|errno| {
        if !descriptors::is_no_room(&errno.into()) {
            return unreachable(errno);
        }
        // It says nothing of rank 0.
        let reason = plain(&errno.into());
        Unfit::Final(RendezvousError::System { what: "open a socket", reason })
    })?;
    match connect(&socket, &address) {
        Ok(()) => {}
        // One that a signal interrupts goes on too.
        Err(Errno::INPROGRESS | Errno::INTR) => {
            let mut watched = [PollFd::new(&socket, PollFlags::OUT)];
            patience.poll(&mut watched, Duration::MAX)?;
            if watched[0].revents().is_empty() {
                return Err(Unfit::Late);
            }
            match sockopt::socket_error(&socket) {
                Ok(Ok(())) => {}
                Ok(Err(errno)) | Err(errno) => return Err(unreachable(errno)),
            }
        }
        Err(errno) => return Err(unreachable(errno)),
    }
    let stream = socket.into();
    // Where nothing listens at one of the ports that the system gives out, it may give it to the very connection
    // that asks for it.
    if is_own(&stream) { Err(unreachable(Errno::CONNREFUSED)) } else { Ok(stream) }
}

/// Whether it leads to itself.
fn is_own(stream: &TcpStream) -> bool {
    stream.local_addr().is_ok_and(|own| stream.peer_addr().is_ok_and(|peer| own == peer))
}

/// Sends all of `bytes`.
fn send(stream: &mut TcpStream, mut bytes: &[u8], patience: &Patience<'_>) -> Result<(), Unfit> {
    while !bytes.is_empty() {
        match Quiet(stream).write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) => passing(stream, &error, PollFlags::OUT, patience)?,
        }
    }
    Ok(())
}

/// Fills `bytes`.
fn receive(stream: &mut TcpStream, mut bytes: &mut [u8], patience: &Patience<'_>) -> Result<(), Unfit> {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => return Err(Unfit::Passing(Cause::Ended)),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) => passing(stream, &error, PollFlags::IN, patience)?,
        }
    }
    Ok(())
}

/// Waits until a stream that would block goes on.
fn passing(
    stream: &TcpStream,
    error: &std::io::Error,
    what: PollFlags,
    patience: &Patience<'_>,
) -> Result<(), Unfit> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock if patience.is_over() => Err(Unfit::Late),
        ErrorKind::WouldBlock => Ok(patience.poll(&mut [PollFd::new(stream, what)], Duration::MAX)?),
        _ => Err(Unfit::Passing(Cause::Ended)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, getsockname, listen};
    use std::net::{Ipv4Addr, TcpListener};

    fn stuck(_: &str, _: u16) -> std::io::Result<Vec<SocketAddr>> {
        std::thread::sleep(Duration::from_secs(600));
        Ok(Vec::new())
    }

    // It ignored both its deadline and Ctrl-C.
    #[test]
    fn a_name_server_that_does_not_answer_ends_at_the_deadline_and_with_the_caller() {
        let (host, secret, job) =
            ("a".to_owned(), penstock_proto::message::Secret([7; 32]), "job".to_owned());
        let at = RendezvousAddress { host, port: 7 };
        let mut visitor = Visitor::new(Party { rank: 1, size: 2, secret, job }, at.clone());
        visitor.resolver = stuck;
        let cause = Cause::Unresolved { host: "a".to_owned() };
        let late = visitor.deliver(b"+", &Patience::new(Duration::from_millis(200), &|| false));
        assert_eq!(late, Err(RendezvousError::Late { at, cause }));
        let ended = visitor.deliver(b"+", &Patience::new(Duration::from_secs(600), &|| true));
        assert_eq!(ended, Err(RendezvousError::Interrupted(Interrupted)));
    }

    // A process that came took its own hello for rank 0's answer.
    #[test]
    fn a_connection_that_leads_to_itself_is_known() {
        let one = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
        bind(&one, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        connect(&one, &SocketAddr::try_from(getsockname(&one).unwrap()).unwrap()).unwrap();
        assert!(is_own(&one.into()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_own(&TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
    }

    // At a name with one address that a firewall hides, processes never met at the other.
    #[test]
    fn an_address_that_never_answers_leaves_the_next_its_time() {
        let silent =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
        bind(&silent, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        listen(&silent, 0).unwrap();
        let full = SocketAddr::try_from(getsockname(&silent).unwrap()).unwrap();
        let never = || false;
        let short = || Patience::new(Duration::from_millis(200), &never);
        // Connections that are not accepted fill it; from then on the kernel drops what comes.
        let filled: Vec<_> = (0..8).map_while(|_| reach(full, &short()).ok()).collect();
        assert!(filled.len() < 8, "it takes no more");

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let open = listener.local_addr().unwrap();
        let met = reach_one_of(&[full, open], &short()).ok().expect("the second answers");
        assert_eq!(met.peer_addr().unwrap(), open);
    }
}
