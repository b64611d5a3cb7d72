//! Requests of the control plane, over connections that break.
//!
//! A request has a number. A worker repeats on a new connection what has no answer, in the order in which it was asked; the
//! server keeps its answers until the worker says that it has them, and answers what is repeated with what it said before:
//!
//! - **Q-1** A request is carried out once, and the worker hears the answer, wherever connections break.
//!
//! Pure state. Memory: a message for each request without an answer, and for each answer that the worker has not said to have.

use crate::message::{Ask, MessageError, Request, encode};
use std::collections::BTreeMap;

/// Answers kept at most for a worker that may connect again, and their bytes: those that it has not confirmed. It has no more
/// requests open at once than it has threads that ask.
const MOST_KEPT: usize = 4096;
const MOST_KEPT_BYTES: usize = 4 << 20;

/// A worker's side: what it has asked and not heard, each with the thread that waits for the answer.
#[derive(Debug)]
pub struct Requests<T> {
    next: u64,
    closed: bool,
    open: BTreeMap<u64, (Vec<u8>, T)>,
}

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self { next: 1, closed: false, open: BTreeMap::new() }
    }
}

impl<T> Requests<T> {
    /// Asks: the request's number, and its message. Once they are [closed](Self::close), `waits` is dropped at once.
    pub fn ask(&mut self, body: Ask, waits: T) -> Result<(u64, Vec<u8>), MessageError> {
        let id = self.next;
        let settled = self.open.keys().next().copied().unwrap_or(id);
        let bytes = encode(&Request { id, settled, body })?;
        self.next += 1;
        if !self.closed {
            self.open.insert(id, (bytes.clone(), waits));
        }
        Ok((id, bytes))
    }

    /// The number below which nothing is open.
    pub fn settled(&self) -> u64 {
        self.open.keys().next().copied().unwrap_or(0)
    }

    /// A request needs no answer any more: it has come, or no thread waits for it. Returns the thread that waited, if one did.
    pub fn settle(&mut self, id: u64) -> Option<T> {
        self.open.remove(&id).map(|(_, waits)| waits)
    }

    /// What is to be said again on a new connection, in the order in which it was asked.
    pub fn again(&self) -> impl Iterator<Item = &[u8]> {
        self.open.values().map(|(bytes, _)| bytes.as_slice())
    }

    /// There will be no more answers: no thread waits any more, nor for what is still asked.
    pub fn close(&mut self) {
        self.closed = true;
        self.open.clear();
    }
}

/// A server's side: the answers that one worker may have to be told again.
#[derive(Debug, Default)]
pub struct Answers {
    kept: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Answers {
    /// The answer that was given to a request, if it was answered before.
    pub fn to(&self, request: u64) -> Option<&[u8]> {
        self.kept.get(&request).map(Vec::as_slice)
    }

    /// The worker needs no answer any more to requests before this one.
    pub fn settle(&mut self, settled: u64) {
        while let Some(oldest) = self.kept.first_entry()
            && *oldest.key() < settled
        {
            self.bytes -= oldest.remove().len();
        }
    }

    /// Keeps an answer until the worker says that it no longer needs it. `false`: it leaves more of them open than
    /// any honest worker.
    pub fn keep(&mut self, request: u64, answer: &[u8]) -> bool {
        self.bytes += answer.len();
        self.bytes -= self.kept.insert(request, answer.to_vec()).map_or(0, |before| before.len());
        self.kept.len() <= MOST_KEPT && self.bytes <= MOST_KEPT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::decode;

    fn asked(bytes: &[u8]) -> Request {
        decode(bytes).unwrap()
    }

    /// Q-1, at the worker.
    #[test]
    fn what_has_no_answer_is_said_again_in_its_order_and_what_is_settled_is_named() {
        let mut requests = Requests::default();
        let ids: Vec<u64> = (0..3).map(|waits| requests.ask(Ask::Clocks, waits).unwrap().0).collect();
        assert_eq!(ids, [1, 2, 3]);
        assert_eq!((requests.settle(2), requests.settle(2)), (Some(1), None));
        let again: Vec<u64> = requests.again().map(|bytes| asked(bytes).id).collect();
        assert_eq!((again, requests.settled()), (vec![1, 3], 1));
        requests.settle(1);
        let (id, bytes) = requests.ask(Ask::Barrier, 3).unwrap();
        assert_eq!((id, asked(&bytes).settled), (4, 3));
        requests.close();
        assert_eq!((requests.again().count(), requests.settled()), (0, 0));
        requests.ask(Ask::Barrier, 4).unwrap();
        assert_eq!(requests.again().count(), 0, "nor does any other");
    }

    /// Q-1, at the server.
    #[test]
    fn an_answer_is_kept_until_it_is_said_to_have_come() {
        let mut answers = Answers::default();
        for request in 1..=3 {
            assert!(answers.keep(request, &[request as u8]));
        }
        assert_eq!(answers.to(2), Some(&[2][..]));
        answers.settle(3);
        assert_eq!((answers.to(2), answers.to(3)), (None, Some(&[3][..])));
    }

    #[test]
    fn who_settles_nothing_is_found_out() {
        let mut answers = Answers::default();
        let kept = (1..).find(|&request| !answers.keep(request, &[0])).unwrap();
        assert_eq!(kept, MOST_KEPT as u64 + 1);
        let mut answers = Answers::default();
        assert!(answers.keep(1, &vec![0; MOST_KEPT_BYTES]));
        assert!(answers.keep(1, &[0]), "what is answered again takes the place of what was said before");
        assert!(!answers.keep(2, &vec![0; MOST_KEPT_BYTES]));
    }
}
