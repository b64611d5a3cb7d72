//! The handshake: both ends of a connection prove that they know the job's secret, without sending it. It is the same over the
//! network and over a Unix socket.
//!
//! | who | says |
//! |---|---|
//! | worker | hello: protocol version, job, purpose, a fresh nonce |
//! | server | its own fresh nonce; HMAC-SHA256(secret, "server", binding, both hellos) |
//! | worker | HMAC-SHA256(secret, "worker", binding, both hellos) |
//! | server | welcome to the connection, or a refusal |
//!
//! *binding* is the TLS exporter of this very connection (RFC 9266), [`PLAIN_BINDING`] where there is no TLS, or
//! [`SOCKET_BINDING`] on a Unix socket, where the kernel says whose process is at the other end: a machine in the middle has a
//! different binding on each side, so the proofs that it would have to pass on do not fit. That is why certificates need not be
//! trusted, and a certificate authority is an addition, not a need. A recorded handshake is worthless: each end contributes a
//! nonce that it has just drawn.
//!
//! In place of its hello a server may say why it takes no worker like this one. Nothing is proved then, so only those refusals are
//! believed that a server gives there ([`WorkerHandshake::answer`]), and one that was welcomed before takes none of them for the
//! server's.
//!
//! A job that does not exist is answered like one whose secret is wrong (the server draws a secret for it), so no stranger learns
//! which jobs there are.

use crate::Rank;
use crate::error::Refusal;
use crate::mac;
use crate::message::{PROTOCOL_VERSION, Secret, decode, encode};
use crate::overlay::Stripes;
use crate::overlay::lending::Rendezvous;
use crate::peer::PeerId;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Longest message of a handshake. A refusal is the longest.
pub const MAX_HANDSHAKE_BYTES: usize = 2048;
/// Longest name of a job.
pub const MAX_JOB_NAME_BYTES: usize = 256;

/// Random bytes, drawn for one connection.
pub type Nonce = [u8; 32];
pub use crate::message::Session;
/// What ties a handshake to its connection.
pub type Binding = [u8; 32];

/// The binding of a network connection without TLS: nothing ties it.
pub const PLAIN_BINDING: Binding = [0; 32];
/// The binding of a Unix socket: a proof that was given on a network connection is worthless there, and the other way round.
pub const SOCKET_BINDING: Binding = *b"a Unix socket of this very host.";

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Control messages ([`crate::message`]).
    Control,
    /// Frames ([`crate::frame`]) to one shard, of a peer that has said hello on its control connection.
    Shard {
        /// Who it is.
        peer: PeerId,
        /// Its session.
        session: Session,
        /// The shard.
        shard: u32,
    },
    /// Frames of some stripes of one shard, from a worker that passes them on. It takes no frames but signs of life.
    Relay {
        /// Who is fed.
        child: Rank,
        /// The server.
        server: u32,
        /// The shard, among those of its server.
        shard: u32,
        /// Which cut into stripes, as its [route](crate::overlay::Route) says.
        striping: u32,
        /// What it is fed.
        stripes: Stripes,
        /// Whether it is on the parent's own host, and where it would be lent the memory that values stand in there.
        rendezvous: Option<Rendezvous>,
    },
    /// Messages about items ([`crate::items::wire`]), of such a peer.
    Items {
        /// Who it is.
        peer: PeerId,
        /// Its session.
        session: Session,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WorkerHello {
    magic: [u8; 4],
    version: u32,
    job: String,
    purpose: Purpose,
    nonce: Nonce,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ServerHello {
    nonce: Nonce,
    proof: [u8; 32],
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct WorkerProof {
    proof: [u8; 32],
}

/// The server's last word.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// The connection may be used.
    Accepted,
    /// No.
    Refused(Refusal),
}

/// First bytes of a hello, behind the record's length.
pub const MAGIC: [u8; 4] = *b"PSTK";

fn mac(secret: &Secret, who: &[u8], binding: &Binding, worker: &[u8], server: &Nonce) -> Hmac<Sha256> {
    // Each part has a fixed length but the hello, which comes last.
    mac::of(&secret.0, [b"penstock handshake 1 ", who, binding, server, worker])
}

fn malformed(what: &str) -> Refusal {
    Refusal::Malformed { what: what.to_owned() }
}

/// Whether a server says this to who has proved nothing, and so before it has proved anything itself. Who says something else
/// there, that the job has ended because of some worker, say, is no server.
fn is_said_before_a_proof(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Authentication
            | Refusal::TlsRequired
            | Refusal::Busy
            | Refusal::ProtocolVersion { .. }
            | Refusal::System { .. }
            | Refusal::Malformed { .. }
    )
}

/// The worker's end.
#[derive(Debug)]
pub struct WorkerHandshake {
    secret: Secret,
    hello: Vec<u8>,
}

impl WorkerHandshake {
    /// Starts one: what to send first. `nonce` is drawn for this connection.
    pub fn start(
        job: &str,
        secret: Secret,
        purpose: Purpose,
        nonce: Nonce,
    ) -> Result<(Self, Vec<u8>), Refusal> {
        let hello =
            WorkerHello { magic: MAGIC, version: PROTOCOL_VERSION, job: job.to_owned(), purpose, nonce };
        let hello = encode(&hello).map_err(|error| malformed(&error.to_string()))?;
        Ok((Self { secret, hello: hello.clone() }, hello))
    }

    /// Takes the server's hello: what to send then. Refused if the server does not know the secret, or says so itself. Whoever
    /// refuses here has proved nothing.
    pub fn answer(&self, server: &[u8], binding: &Binding) -> Result<Vec<u8>, Refusal> {
        // A server that cannot talk to us says so instead.
        if let Ok(Verdict::Refused(refusal)) = decode::<Verdict>(server) {
            return Err(if is_said_before_a_proof(&refusal) {
                refusal.brief()
            } else {
                Refusal::Authentication
            });
        }
        let server: ServerHello = decode(server).map_err(|error| malformed(&error.to_string()))?;
        let proves = mac(&self.secret, b"server", binding, &self.hello, &server.nonce);
        proves.verify_slice(&server.proof).map_err(|_| Refusal::Authentication)?;
        let proof = mac(&self.secret, b"worker", binding, &self.hello, &server.nonce);
        let proof = WorkerProof { proof: proof.finalize().into_bytes().into() };
        encode(&proof).map_err(|error| malformed(&error.to_string()))
    }

    /// Takes the server's verdict.
    pub fn finish(verdict: &[u8]) -> Result<(), Refusal> {
        match decode::<Verdict>(verdict) {
            Ok(Verdict::Accepted) => Ok(()),
            Ok(Verdict::Refused(refusal)) => Err(refusal.brief()),
            Err(error) => Err(malformed(&error.to_string())),
        }
    }
}

/// The server's end, when the worker's hello has come.
#[derive(Debug)]
pub struct ServerHandshake {
    hello: Vec<u8>,
    /// The job that is asked for.
    pub job: String,
    /// What the connection is for.
    pub purpose: Purpose,
    challenge: Option<(Secret, Nonce, Binding)>,
}

impl ServerHandshake {
    /// Takes the worker's hello.
    pub fn start(hello: &[u8]) -> Result<Self, Refusal> {
        let read: WorkerHello = decode(hello).map_err(|error| malformed(&error.to_string()))?;
        if read.magic != MAGIC {
            return Err(malformed("it does not start as a worker's hello does"));
        }
        if read.version != PROTOCOL_VERSION {
            return Err(Refusal::ProtocolVersion { expected: PROTOCOL_VERSION, got: read.version });
        }
        if read.job.len() > MAX_JOB_NAME_BYTES {
            return Err(malformed("the job's name is too long"));
        }
        Ok(Self { hello: hello.to_vec(), job: read.job, purpose: read.purpose, challenge: None })
    }

    /// What to send then. `secret` is the job's, or one drawn at random where there is no such job.
    pub fn challenge(&mut self, secret: Secret, nonce: Nonce, binding: Binding) -> Vec<u8> {
        let proof = mac(&secret, b"server", &binding, &self.hello, &nonce);
        let proof = proof.finalize().into_bytes().into();
        self.challenge = Some((secret, nonce, binding));
        encode(&ServerHello { nonce, proof }).expect("two arrays fit into a message")
    }

    /// Takes the worker's proof.
    pub fn finish(&self, proof: &[u8]) -> Result<(), Refusal> {
        let Some((secret, nonce, binding)) = &self.challenge else { return Err(Refusal::Authentication) };
        let WorkerProof { proof } = decode(proof).map_err(|error| malformed(&error.to_string()))?;
        let proves = mac(secret, b"worker", binding, &self.hello, nonce);
        proves.verify_slice(&proof).map_err(|_| Refusal::Authentication)
    }
}

/// A verdict's bytes.
pub fn verdict(verdict: &Verdict) -> Vec<u8> {
    encode(verdict).expect("a refusal fits into a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: Secret = Secret([3; 32]);

    fn shake(
        theirs: Secret,
        ours: Secret,
        (worker_binding, server_binding): (Binding, Binding),
    ) -> Result<(), Refusal> {
        let (worker, hello) = WorkerHandshake::start("a", theirs, Purpose::Control, [1; 32])?;
        let mut server = ServerHandshake::start(&hello)?;
        let challenge = server.challenge(ours, [2; 32], server_binding);
        server.finish(&worker.answer(&challenge, &worker_binding)?)
    }

    #[test]
    fn both_ends_that_know_the_secret_agree() {
        assert_eq!(shake(SECRET, SECRET, ([0; 32], [0; 32])), Ok(()));
    }

    #[test]
    fn another_secret_or_a_machine_in_the_middle_is_refused_by_the_worker_already() {
        assert_eq!(shake(SECRET, Secret([4; 32]), ([0; 32], [0; 32])), Err(Refusal::Authentication));
        assert_eq!(shake(SECRET, SECRET, ([0; 32], [1; 32])), Err(Refusal::Authentication));
    }

    #[test]
    fn a_replayed_proof_does_not_fit_the_servers_next_nonce() {
        let (worker, hello) = WorkerHandshake::start("a", SECRET, Purpose::Control, [1; 32]).unwrap();
        let mut first = ServerHandshake::start(&hello).unwrap();
        let proof = worker.answer(&first.challenge(SECRET, [2; 32], [0; 32]), &[0; 32]).unwrap();
        assert_eq!(first.finish(&proof), Ok(()));
        let mut second = ServerHandshake::start(&hello).unwrap();
        second.challenge(SECRET, [9; 32], [0; 32]);
        assert_eq!(second.finish(&proof), Err(Refusal::Authentication));
    }

    #[test]
    fn the_servers_own_proof_sent_back_to_it_is_none() {
        let (_, hello) = WorkerHandshake::start("a", SECRET, Purpose::Control, [1; 32]).unwrap();
        let mut server = ServerHandshake::start(&hello).unwrap();
        let challenge: ServerHello = decode(&server.challenge(SECRET, [2; 32], [0; 32])).unwrap();
        let reflected = encode(&WorkerProof { proof: challenge.proof }).unwrap();
        assert_eq!(server.finish(&reflected), Err(Refusal::Authentication));
    }

    // It was believed, and the worker's job ended in the other worker's name.
    #[test]
    fn who_has_proved_nothing_is_believed_only_what_a_server_says_before_its_proof() {
        use crate::error::{JobFailure, Loss};
        let (worker, _) = WorkerHandshake::start("a", SECRET, Purpose::Control, [1; 32]).unwrap();
        let told = |refusal: &Refusal| {
            worker.answer(&verdict(&Verdict::Refused(refusal.clone())), &[0; 32]).unwrap_err()
        };
        for refusal in [
            Refusal::TlsRequired,
            Refusal::Busy,
            Refusal::ProtocolVersion { expected: PROTOCOL_VERSION + 1, got: PROTOCOL_VERSION },
            malformed("it does not start as a worker's hello does"),
        ] {
            assert_eq!(told(&refusal), refusal);
        }
        let lost = JobFailure::WorkerLost { rank: 1, loss: Loss::Died };
        for refusal in [
            Refusal::Ended(lost),
            Refusal::Ended(JobFailure::Stopped { server: 0 }),
            Refusal::Over,
            Refusal::RankTaken { rank: 0 },
            Refusal::RankOutOfRange { rank: 0, size: 0 },
            Refusal::NoValue { name: "w".to_owned() },
        ] {
            assert_eq!(told(&refusal), Refusal::Authentication);
            let proved = WorkerHandshake::finish(&verdict(&Verdict::Refused(refusal.clone())));
            assert_eq!(proved, Err(refusal), "behind its proof it is");
        }
        let long = "A".repeat(1900);
        for text in ["\u{1b}[2J\u{1b}]0;mine\u{7}\nno error at all\r", &long] {
            let told = told(&malformed(text)).to_string();
            assert!(!told.contains(char::is_control) && told.len() < 1200, "{told:?}");
        }
    }

    #[test]
    fn a_proof_before_the_challenge_is_refused() {
        let (_, hello) = WorkerHandshake::start("a", SECRET, Purpose::Control, [1; 32]).unwrap();
        let server = ServerHandshake::start(&hello).unwrap();
        assert_eq!(server.finish(&[0; 32]), Err(Refusal::Authentication));
    }

    proptest! {
        #[test]
        fn no_bytes_make_either_end_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ServerHandshake::start(&bytes);
            let (worker, hello) = WorkerHandshake::start("a", SECRET, Purpose::Control, [1; 32]).unwrap();
            let _ = worker.answer(&bytes, &[0; 32]);
            let mut server = ServerHandshake::start(&hello).unwrap();
            server.challenge(SECRET, [2; 32], [0; 32]);
            prop_assert!(server.finish(&bytes).is_err());
            let _ = WorkerHandshake::finish(&bytes);
        }
    }
}
