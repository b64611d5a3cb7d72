//! By what a worker's door knows which worker of the job has come.
//!
//! All workers of a job know its secret, so that one could name itself as any other. A server tells each child a *pass* for each of
//! its parents: a number that comes of the parent's session, which only that parent and its servers know, and of who the child
//! is. The parent works it out for whoever comes. It never travels between them: both prove that they know it, with the secret
//! ([`Pass::secret`]), in the [handshake](crate::handshake). So a child knows its parent by it, too.

use crate::Rank;
use crate::mac;
use crate::message::{Secret, Session};
use hmac::Mac as _;
use serde::{Deserialize, Serialize};

/// What makes a session a key for this, and for nothing else.
const OF_SESSION: &[u8; 16] = b"penstock pass 1\0";

/// One child's for one parent, of one server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pass([u8; 16]);

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pass(..)")
    }
}

impl Pass {
    /// The pass of the worker of this rank, for a parent of this session, as this server gives it.
    pub fn new(parent: &Session, server: u32, child: Rank) -> Self {
        let mut key = [0; blake3::KEY_LEN];
        key[..16].copy_from_slice(parent);
        key[16..].copy_from_slice(OF_SESSION);
        let mut who = [0; 8];
        who[..4].copy_from_slice(&server.to_le_bytes());
        who[4..].copy_from_slice(&child.to_le_bytes());
        let hash = blake3::keyed_hash(&key, &who);
        Self(hash.as_bytes()[..16].try_into().expect("sixteen bytes of a hash"))
    }

    /// What parent and child prove to each other that they know, in place of the job's secret.
    pub fn secret(&self, of_job: &Secret) -> Secret {
        let mac = mac::of(&of_job.0, [&b"penstock door 1 "[..], &self.0]);
        Secret(mac.finalize().into_bytes().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_child_has_another_pass_for_each_parent_of_each_server_and_it_proves_nothing_elsewhere() {
        let jobs = [Secret([3; 32]), Secret([4; 32])];
        let passes = [[1; 16], [2; 16]].into_iter().flat_map(|parent| {
            (0..3).flat_map(move |server| (0..3).map(move |child| Pass::new(&parent, server, child)))
        });
        let secrets: Vec<[u8; 32]> = passes
            .flat_map(|pass| jobs.map(|job| pass.secret(&job).0))
            .chain(jobs.map(|job| job.0))
            .collect();
        assert_eq!(secrets.iter().collect::<HashSet<_>>().len(), 2 * 3 * 3 * 2 + 2);
        assert_eq!(Pass::new(&[1; 16], 2, 5), Pass::new(&[1; 16], 2, 5));
        assert_eq!(format!("{:?}", Pass::new(&[1; 16], 2, 5)), "Pass(..)", "no log says it");
    }
}
