//! Requests of the control plane, over connections that break.
//!
//! A request has a number. A worker repeats on a new connection what has no answer, in the order in which it was asked; the
//! server keeps its answers until the worker says that it has them, and answers what is repeated with what it said before:
//!
//! - **Q-1** A request is carried out once, and the worker hears the answer, wherever connections break.
//!
//! Each request says which of those before it are still open, and not only below which none is: one may wait for hours, at a
//! barrier, while others are asked and answered by the thousand.
//!
//! Pure state. Memory: a message for each request without an answer, and for each answer that the worker has not said to have; and
//! up to [`MOST_NAMED`] numbers, in each message and at the server.

use crate::message::{Ask, MessageError, Request, encode};
use std::collections::BTreeMap;

/// Open requests that a message names at most. Of more it says less: nothing of the first that it cannot name, and of what comes
/// behind that.
pub const MOST_NAMED: usize = 1024;
/// Answers kept at most for a worker that may connect again, and their bytes: those that it has not confirmed, which are no more
/// than it has threads that ask, where these are no more than a message names.
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
        let (settled, open) = self.settled();
        let bytes = encode(&Request { id, settled, open, body })?;
        self.next += 1;
        if !self.closed {
            self.open.insert(id, (bytes.clone(), waits));
        }
        Ok((id, bytes))
    }

    /// A number, at most that of the next request, and which of the requests before it are open. Once they are
    /// [closed](Self::close) nothing is kept by which to tell, and what was drawn may still be on its way: then it says nothing.
    pub fn settled(&self) -> (u64, Vec<u64>) {
        if self.closed {
            return (0, Vec::new());
        }
        let mut open: Vec<u64> = self.open.keys().copied().take(MOST_NAMED + 1).collect();
        let settled = if open.len() > MOST_NAMED { open.pop() } else { None };
        (settled.unwrap_or(self.next), open)
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
    /// What the worker last said: requests before this one are settled, but for those that are `open`.
    settled: u64,
    open: Vec<u64>,
}

impl Answers {
    /// The answer that was given to a request, if it was answered before.
    pub fn to(&self, request: u64) -> Option<&[u8]> {
        self.kept.get(&request).map(Vec::as_slice)
    }

    /// The worker needs no answer any more to requests before `settled`, but to those that are `open`. `false`: no honest worker
    /// says so. Messages of several threads, and repeated ones, come in any order: an older one says nothing new.
    pub fn settle(&mut self, settled: u64, open: &[u64]) -> bool {
        let ascends =
            open.is_sorted_by(|one, next| one < next) && open.last().is_none_or(|&last| last < settled);
        if !ascends || open.len() > MOST_NAMED {
            return false;
        }
        if settled < self.settled {
            return true;
        }
        self.open = open.iter().copied().filter(|&request| !self.is_settled(request)).collect();
        self.settled = settled;
        // No more than the message names and what goes, however much is kept behind it.
        let before = self.kept.range(..settled).map(|(&request, _)| request);
        let done: Vec<u64> = before.filter(|&request| self.is_settled(request)).collect();
        for answer in done.iter().filter_map(|request| self.kept.remove(request)) {
            self.bytes -= answer.len();
        }
        true
    }

    /// Whether nobody waits any more for this request's answer. It is not to be carried out if it comes again, which it may where
    /// a thread said it on the connection on which another had just repeated it.
    pub fn is_settled(&self, request: u64) -> bool {
        request < self.settled && self.open.binary_search(&request).is_err()
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
        assert_eq!((again, requests.settled()), (vec![1, 3], (4, vec![1, 3])));
        requests.settle(1);
        let (id, bytes) = requests.ask(Ask::Barrier, 3).unwrap();
        let Request { settled, open, .. } = asked(&bytes);
        assert_eq!((id, settled, open), (4, 4, vec![3]));
        requests.close();
        assert_eq!(requests.again().count(), 0);
        let (_, overtakes) = requests.ask(Ask::Barrier, 4).unwrap();
        let Request { id, settled, open, .. } = asked(&overtakes);
        assert_eq!((id, settled, open), (5, 0, vec![]), "nothing of 4, which may not have been sent");
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
        assert!(answers.settle(3, &[]));
        assert_eq!((answers.to(2), answers.to(3)), (None, Some(&[3][..])));
    }

    /// one that waits for hours keeps none of the others' answers.
    #[test]
    fn only_what_is_open_is_kept_however_long_one_waits() {
        let (mut requests, mut answers) = (Requests::default(), Answers::default());
        let mut hear = |requests: &Requests<()>, bytes: &[u8], long: usize| {
            let Request { id, settled, open, .. } = asked(bytes);
            assert!(requests.settled().1.contains(&id) && answers.settle(settled, &open));
            assert!(!answers.is_settled(id));
            (answers.keep(id, &vec![0; long]), answers.kept.len())
        };
        let (waits, _) = requests.ask(Ask::Barrier, ()).unwrap();
        for round in 0..2 * MOST_KEPT {
            let (id, bytes) = requests.ask(Ask::Clocks, ()).unwrap();
            assert_eq!(hear(&requests, &bytes, if round < 16 { MOST_KEPT_BYTES / 8 } else { 1 }), (true, 1));
            requests.settle(id);
        }
        let (id, bytes) = requests.ask(Ask::Clocks, ()).unwrap();
        assert_eq!(hear(&requests, &bytes, 1), (true, 1));
        assert_eq!(requests.settled(), (id + 1, vec![waits, id]));
        assert!(!answers.is_settled(waits) && answers.is_settled(waits + 1) && !answers.is_settled(id));
    }

    #[test]
    fn who_has_more_open_than_a_message_names_says_less_and_nothing_wrong() {
        let (mut requests, mut answers) = (Requests::default(), Answers::default());
        let most = MOST_NAMED as u64;
        for waits in 0..2 * most {
            let (id, bytes) = requests.ask(Ask::Barrier, waits).unwrap();
            let Request { settled, open, .. } = asked(&bytes);
            assert_eq!((settled, open.len() as u64), (id.min(most + 1), (id - 1).min(most)));
            assert!(answers.settle(settled, &open) && !answers.is_settled(id) && answers.keep(id, &[0]));
        }
        assert_eq!(answers.kept.len(), 2 * MOST_NAMED, "all are open");
        (1..=most).for_each(|id| _ = requests.settle(id));
        let (settled, open) = requests.settled();
        assert_eq!((settled, open.len()), (2 * most + 1, MOST_NAMED));
        assert!(answers.settle(settled, &open));
        assert_eq!((answers.kept.len(), answers.bytes), (MOST_NAMED, MOST_NAMED));
    }

    /// messages of several threads are said in any order.
    #[test]
    fn what_was_settled_stays_so_whatever_older_messages_say() {
        let mut answers = Answers::default();
        assert!((1..=5).all(|request| answers.keep(request, &[0])));
        assert!(answers.settle(6, &[2, 4]) && answers.settle(6, &[4, 5]) && answers.settle(3, &[1, 2]));
        let settled: Vec<u64> = (1..=7).filter(|&request| answers.is_settled(request)).collect();
        let kept: Vec<u64> = answers.kept.keys().copied().collect();
        assert_eq!((settled, kept, answers.bytes), (vec![1, 2, 3, 5], vec![4], 1));
    }

    #[test]
    fn who_settles_nothing_or_what_cannot_be_is_found_out() {
        let mut answers = Answers::default();
        for open in [vec![3, 2], vec![2, 2], vec![1, 4], (0..=MOST_NAMED as u64).collect()] {
            assert!(!answers.settle(if open.len() > MOST_NAMED { u64::MAX } else { 4 }, &open), "{open:?}");
        }
        assert_eq!((answers.settled, answers.open.len()), (0, 0));
        let mut answers = Answers::default();
        let kept = (1..).find(|&request| !answers.keep(request, &[0])).unwrap();
        assert_eq!(kept, MOST_KEPT as u64 + 1);
        let mut answers = Answers::default();
        assert!(answers.keep(1, &vec![0; MOST_KEPT_BYTES]));
        assert!(answers.keep(1, &[0]), "what is answered again takes the place of what was said before");
        assert!(!answers.keep(2, &vec![0; MOST_KEPT_BYTES]));
    }
}
