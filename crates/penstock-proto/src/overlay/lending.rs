//! Workers of one host that share one copy: what the *lender*, whose mirror it is, and a *borrower*, which reads there, say to each
//! other before a descriptor goes over.
//!
//! The borrower listens on a Unix socket in its user's directory, of a name that it has just drawn, and says that name to its parent
//! when it comes to be fed. So only that parent knows that it is to go there, though any process of the user can see the name. It
//! connects, and both prove that they know the child's [pass](super::Pass) for this parent, over the name and numbers that both have
//! just drawn: each other's incarnation before, another worker of the job, and another process of the same user prove nothing. The
//! kernel says whose processes they are; nothing is said to another user's.
//!
//! | who | says |
//! |---|---|
//! | lender | its nonce; HMAC-SHA256(pass, "lender", name, nonce) |
//! | borrower | HMAC-SHA256(pass, "borrower", name, nonce) |
//! | lender | of each tensor, as it comes: that it is lent; and its region's descriptor |
//! | borrower | that it reads a tensor there: from now on it is only told which chunks are new |
//! | borrower | that it reads it there no more, though it is fed there: the values come again, and then it is lent anew |
//!
//! Of a tensor these come in this order, and from the beginning again.
//!
//! Each end hangs up when it is over. Nothing is taken away by words: what is lent is read-only to the borrower, and stays as long as
//! one of them has it.

use crate::TensorId;
use crate::hex::hex;
use crate::mac;
use crate::message::Secret;
use hmac::Mac as _;
use serde::{Deserialize, Serialize};

/// Where a borrower expects its lender: its socket's name, drawn for one connection to one parent.
pub type Rendezvous = [u8; 16];
/// Drawn by the lender.
pub type Nonce = [u8; 32];
/// That an end knows the pass.
pub type Proof = [u8; 32];

/// Longest word.
pub const MAX_WORD_BYTES: usize = 128;

/// What they say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// The lender's first.
    Lender {
        /// Fresh.
        nonce: Nonce,
        /// Over the name and this.
        proof: Proof,
    },
    /// The borrower's first.
    Borrower {
        /// Over the name and the lender's nonce.
        proof: Proof,
    },
    /// A tensor's region: its descriptor comes beside this.
    Lent {
        /// The tensor.
        tensor: TensorId,
    },
    /// The borrower reads this tensor there from now on.
    Borrowed {
        /// The tensor.
        tensor: TensorId,
    },
    /// It reads it there no more.
    Returned {
        /// The tensor.
        tensor: TensorId,
    },
}

impl Word {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("numbers can be written")
    }

    /// The word in `bytes`, all of them.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_WORD_BYTES {
            return None;
        }
        match postcard::take_from_bytes(bytes) {
            Ok((word, [])) => Some(word),
            _ => None,
        }
    }
}

/// Which end proves that it knows the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Who lends.
    Lender,
    /// Who borrows.
    Borrower,
}

fn mac(pass: &Secret, end: End, rendezvous: &Rendezvous, nonce: &Nonce) -> impl hmac::Mac {
    let who: &[u8; 8] = match end {
        End::Lender => b"lender  ",
        End::Borrower => b"borrower",
    };
    mac::of(&pass.0, [&b"penstock lending 1 "[..], who, rendezvous, nonce])
}

/// An end's proof. `pass`: of [`Pass::secret`](super::Pass::secret).
pub fn proof(pass: &Secret, end: End, rendezvous: &Rendezvous, nonce: &Nonce) -> Proof {
    let bytes = mac(pass, end, rendezvous, nonce).finalize().into_bytes();
    let mut proof = [0; 32];
    proof.copy_from_slice(&bytes);
    proof
}

/// Whether that end knows the pass.
pub fn proves(pass: &Secret, end: End, rendezvous: &Rendezvous, nonce: &Nonce, proof: &Proof) -> bool {
    mac(pass, end, rendezvous, nonce).verify_slice(proof).is_ok()
}

/// What the names of borrowers' sockets begin with.
pub const SOCKET_PREFIX: &str = "borrower-";

/// The name of a borrower's socket in its user's directory.
pub fn socket_name(rendezvous: &Rendezvous) -> String {
    format!("{SOCKET_PREFIX}{}", hex(rendezvous))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic_and_what_is_read_is_written_so(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(word) = Word::decode(&bytes) {
                prop_assert_eq!(Word::decode(&word.encode()), Some(word));
            }
        }
    }

    #[test]
    fn every_word_reads_back_and_fits() {
        for word in [
            Word::Lender { nonce: [255; 32], proof: [254; 32] },
            Word::Borrower { proof: [253; 32] },
            Word::Lent { tensor: u32::MAX },
            Word::Borrowed { tensor: 7 },
            Word::Returned { tensor: 8 },
        ] {
            let bytes = word.encode();
            assert!(bytes.len() <= MAX_WORD_BYTES);
            assert_eq!(Word::decode(&bytes), Some(word));
            assert_eq!(Word::decode(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn a_proof_is_of_one_end_with_one_pass_for_one_name_and_nonce() {
        let (pass, other) = (Secret([1; 32]), Secret([2; 32]));
        let made = proof(&pass, End::Lender, &[3; 16], &[4; 32]);
        assert!(proves(&pass, End::Lender, &[3; 16], &[4; 32], &made));
        assert!(!proves(&pass, End::Borrower, &[3; 16], &[4; 32], &made), "its own, sent back");
        assert!(!proves(&other, End::Lender, &[3; 16], &[4; 32], &made));
        assert!(!proves(&pass, End::Lender, &[5; 16], &[4; 32], &made), "of another incarnation");
        assert!(!proves(&pass, End::Lender, &[3; 16], &[5; 32], &made));
    }

    #[test]
    fn a_name_says_its_number() {
        assert_eq!(socket_name(&[0xa5; 16]), "borrower-a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5");
    }
}
