//! Challenges: nonces that the manager gives to anyone who asks, and takes back once.
//!
//! A nonce is its time, random bytes, and a tag over these and over the caller with the caller's nonce, by a key that lives as
//! long as this manager. Nothing is kept for a nonce that was given out, so a flood of challenges takes none from others. Kept
//! are the nonces that callers who know a secret have used, for as long as they would be valid, separately for each secret.
//! Where too many of one secret are used, those older than the oldest kept are no longer valid. So no job can use up another's.

use super::shared::Shared;
use crate::error::{Reason, Refusal};
use crate::limits;
use crate::proof::{Nonce, Nonces, Prover, mac};
use crate::proto;
use crate::proto::proofs_server::Proofs;
use crate::secret::random;
use hmac::{Hmac, Mac as _};
use penstock_proto::message::Secret;
use sha2::Sha256;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// Bytes of a nonce: its time in nanoseconds since the manager started, random ones, and its tag.
const TIME: usize = 8;
const DRAWN: usize = 8;

/// What tells nonces of the same life apart, earliest first.
type Mark = (Duration, [u8; DRAWN]);

/// Used nonces of one secret.
#[derive(Debug, Default)]
struct Used {
    marks: BTreeSet<Mark>,
    /// The last one that was forgotten before its time: earlier ones may have been used.
    forgotten: Option<Mark>,
}

impl Used {
    /// Takes a nonce once.
    fn take(&mut self, now: Duration, mark: Mark) -> bool {
        while self.marks.first().is_some_and(|first| is_over(now, first.0)) {
            self.marks.pop_first();
        }
        if self.forgotten.is_some_and(|last| mark <= last) || !self.marks.insert(mark) {
            return false;
        }
        if self.marks.len() > limits::USED_PROOFS {
            self.forgotten = self.marks.pop_first();
        }
        true
    }
}

fn is_over(now: Duration, given: Duration) -> bool {
    now.saturating_sub(given) >= limits::PROOF_LIFE
}

/// The nonces of one manager's life.
#[derive(Debug)]
pub(super) struct Challenges {
    key: Secret,
    used: Mutex<AllUsed>,
}

/// Used nonces, by whose secret.
#[derive(Debug, Default)]
struct AllUsed {
    /// The latest time at which any were forgotten: a call that read the clock before that but comes after it counts as of this
    /// time.
    latest: Duration,
    by: BTreeMap<Prover, Used>,
}

impl Challenges {
    pub(super) fn new() -> Self {
        Self { key: Secret(random()), used: Mutex::default() }
    }

    fn tag(&self, who: &Prover, client: &Nonce, head: &[u8]) -> Hmac<Sha256> {
        mac(&self.key, b"penstock challenge 1 ", &[client, head, who.spell().as_bytes()])
    }

    /// A new nonce for `who`.
    fn draw(&self, now: Duration, who: &Prover, client: &Nonce) -> Nonce {
        let mut nonce = [0; 32];
        let (head, tag) = nonce.split_at_mut(TIME + DRAWN);
        // Enough for 584 years.
        head[..TIME].copy_from_slice(&(now.as_nanos() as u64).to_le_bytes());
        head[TIME..].copy_from_slice(&random::<DRAWN>());
        tag.copy_from_slice(&self.tag(who, client, head).finalize().into_bytes()[..32 - TIME - DRAWN]);
        nonce
    }

    /// What the manager gave to `who`, not too long ago; it may have been used.
    pub(super) fn recognize(&self, now: Duration, who: &Prover, nonces: &Nonces) -> Result<Mark, Refusal> {
        let (head, tag) = nonces.manager.split_at(TIME + DRAWN);
        let genuine = self.tag(who, &nonces.client, head).verify_truncated_left(tag).is_ok();
        let time = u64::from_le_bytes(head[..TIME].try_into().expect("split there"));
        let given = Duration::from_nanos(time);
        match genuine && !is_over(now, given) {
            true => Ok((given, head[TIME..].try_into().expect("split there"))),
            false => Err(Refusal::stale()),
        }
    }

    /// Takes what was recognized, once.
    pub(super) fn take(&self, now: Duration, who: &Prover, mark: Mark) -> Result<(), Refusal> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let now = used.latest.max(now);
        used.latest = now;
        if !used.by.contains_key(who) {
            // Time for jobs that are gone to be forgotten: what they have used is no longer valid.
            used.by.retain(|_, used| used.marks.last().is_some_and(|last| !is_over(now, last.0)));
        }
        // It may have been taken, and forgotten, since it was recognized.
        match !is_over(now, mark.0) && used.by.entry(who.clone()).or_default().take(now, mark) {
            true => Ok(()),
            false => Err(Refusal::stale()),
        }
    }
}

/// Kinds of callers that prove something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Admin,
    Server,
    Worker,
}

impl Kind {
    /// The refusal of one that proves nothing.
    pub(super) fn refusal(self) -> Refusal {
        match self {
            Self::Admin => Prover::Admin.refusal(),
            Self::Server => Prover::Server.refusal(),
            Self::Worker => Refusal::job_secret(),
        }
    }
}

pub(super) struct ProofsService(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl Proofs for ProofsService {
    async fn challenge(
        &self,
        request: Request<proto::ChallengeRequest>,
    ) -> Result<Response<proto::ChallengeReply>, Status> {
        let sent = request.into_inner();
        let invalid = |message: &str| Refusal::new(Reason::Invalid, message);
        let prover = sent.prover();
        let client: Nonce = sent.nonce.try_into().map_err(|_| invalid("expected a nonce of 32 bytes"))?;
        let kind = match prover {
            proto::Prover::Admin => Kind::Admin,
            proto::Prover::Server => Kind::Server,
            proto::Prover::Worker => Kind::Worker,
            proto::Prover::Unspecified => {
                return Err(invalid("expected an administrator, a server or a worker").into());
            }
        };
        let (who, secret) = self.0.whose(kind, &sent.job);
        let nonces = Nonces { client, manager: self.0.challenges.draw(self.0.now(), &who, &client) };
        let proof = nonces.manager_proof(&secret, &who).to_vec();
        Ok(Response::new(proto::ChallengeReply { nonce: nonces.manager.to_vec(), proof }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn draw(challenges: &Challenges, now: Duration, who: &Prover) -> Nonces {
        let client = random();
        Nonces { client, manager: challenges.draw(now, who, &client) }
    }

    fn redeem(challenges: &Challenges, now: Duration, who: &Prover, nonces: &Nonces) -> bool {
        challenges.recognize(now, who, nonces).and_then(|mark| challenges.take(now, who, mark)).is_ok()
    }

    #[test]
    fn a_nonce_is_good_once_for_who_asked_and_not_for_long() {
        let challenges = Challenges::new();
        let (admin, worker) = (Prover::Admin, Prover::Worker { job: "a".to_owned() });
        let nonces = draw(&challenges, SECOND, &admin);
        assert!(!redeem(&challenges, SECOND, &worker, &nonces));
        assert!(!redeem(&challenges, SECOND, &admin, &Nonces { client: random(), ..nonces }));
        assert!(!redeem(&Challenges::new(), SECOND, &admin, &nonces), "of a manager's earlier life");
        for index in 0..32 {
            let mut changed = nonces;
            changed.manager[index] ^= 1;
            assert!(!redeem(&challenges, SECOND, &admin, &changed), "byte {index}");
        }
        assert!(redeem(&challenges, SECOND, &admin, &nonces));
        assert!(!redeem(&challenges, SECOND, &admin, &nonces));
        let late = draw(&challenges, SECOND, &admin);
        assert!(!redeem(&challenges, SECOND + limits::PROOF_LIFE, &admin, &late));
    }

    #[test]
    fn a_nonce_that_was_used_and_forgotten_is_not_good_for_who_looked_at_the_clock_before() {
        let challenges = Challenges::new();
        let who = Prover::Admin;
        let end = SECOND + limits::PROOF_LIFE;
        let before = end - Duration::from_nanos(1);
        let nonces = draw(&challenges, SECOND, &who);
        let recognize = |now, nonces| challenges.recognize(now, &who, nonces).unwrap();
        let mark = recognize(SECOND, &nonces);
        assert!(challenges.take(SECOND, &who, mark).is_ok());
        // Recognized in time, while another call makes the manager forget it.
        let again = recognize(before, &nonces);
        let other = draw(&challenges, end, &who);
        assert!(redeem(&challenges, end, &who, &other));
        assert!(challenges.take(before, &who, again).is_err());
    }

    #[test]
    fn who_uses_very_many_shortens_the_life_of_its_own_and_of_no_others() {
        let challenges = Challenges::new();
        let (greedy, other) = (Prover::Worker { job: "a".to_owned() }, Prover::Admin);
        let (first, old, theirs) = (
            draw(&challenges, SECOND, &greedy),
            draw(&challenges, SECOND, &greedy),
            draw(&challenges, SECOND, &other),
        );
        assert!(redeem(&challenges, SECOND, &greedy, &first));
        for tick in 1..=limits::USED_PROOFS as u64 + 1 {
            let now = SECOND + Duration::from_micros(tick);
            let nonces = draw(&challenges, now, &greedy);
            assert!(redeem(&challenges, now, &greedy, &nonces));
        }
        let now = SECOND * 2;
        assert!(!redeem(&challenges, now, &greedy, &first), "forgotten, and still not good again");
        assert!(!redeem(&challenges, now, &greedy, &old));
        let new = draw(&challenges, now, &greedy);
        assert!(redeem(&challenges, now, &greedy, &new));
        assert!(redeem(&challenges, now, &other, &theirs));
        let kept = |challenges: &Challenges| {
            challenges.used.lock().unwrap().by.values().map(|used| used.marks.len()).sum::<usize>()
        };
        assert!(kept(&challenges) <= limits::USED_PROOFS + 1);
        // Once their time is over nothing is kept of them.
        let later = now + limits::PROOF_LIFE;
        let server = draw(&challenges, later, &Prover::Server);
        assert!(redeem(&challenges, later, &Prover::Server, &server));
        assert_eq!(kept(&challenges), 1);
    }
}
