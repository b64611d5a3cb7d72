//! The receiver of one stream.

use std::io::Result;
use std::time::{Duration, Instant};

use super::datagram::{AHEAD, Header, TOKEN};
use super::socket::Socket;
use super::{MOST_MESSAGES, MOST_PAYLOAD};

/// One message, as far as it came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Message {
    /// What the sender says of when it sent it: see [`super`].
    pub sent_ns: u64,
    /// When the last of its datagrams came: nanoseconds of the kernel's clock of the day.
    pub came_ns: u64,
    /// How many of its datagrams came; 0: none.
    pub datagrams: u32,
}

/// What has come so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heard {
    /// Datagrams of messages that count.
    pub datagrams: u64,
    /// Datagrams that were sent ahead.
    pub ahead: u64,
    /// Datagrams of another stream, or of somebody else.
    pub foreign: u64,
}

/// Receives one stream.
#[derive(Debug)]
pub struct Receiver {
    token: [u8; TOKEN],
    stream: u32,
    together: u32,
    messages: Vec<Message>,
    heard: Heard,
    buffer: Vec<u8>,
}

impl Receiver {
    /// For a stream of so many messages, of so many datagrams each.
    ///
    /// # Panics
    ///
    /// If that is more than a stream may have.
    pub fn new(token: [u8; TOKEN], stream: u32, messages: u32, together: u32) -> Self {
        assert!(messages < MOST_MESSAGES, "expected fewer than {MOST_MESSAGES} messages, got {messages}");
        Self {
            token,
            stream,
            together,
            messages: vec![Message::default(); messages as usize],
            heard: Heard::default(),
            buffer: vec![0; MOST_PAYLOAD],
        }
    }

    /// Receives until the last message is complete (true), or nothing has come for `quiet` (false), but no longer than `limit`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn run(&mut self, socket: &Socket, quiet: Duration, limit: Duration) -> Result<bool> {
        let end = Instant::now() + limit;
        while !self.is_complete() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !socket.readable(quiet.min(left))? {
                break;
            }
            while let Some(arrival) = socket.receive(&mut self.buffer)? {
                let buffer = std::mem::take(&mut self.buffer);
                for datagram in buffer[..arrival.len].chunks(arrival.datagram) {
                    self.take(datagram, arrival.came_ns);
                }
                self.buffer = buffer;
                if self.is_complete() || Instant::now() > end {
                    break;
                }
            }
        }
        Ok(self.is_complete())
    }

    /// The sender has sent only so many of the messages.
    pub fn end(&mut self, messages: u32) {
        self.messages.truncate(messages as usize);
    }

    fn is_complete(&self) -> bool {
        self.messages.last().is_none_or(|last| last.datagrams >= self.together)
    }

    fn take(&mut self, datagram: &[u8], came_ns: u64) {
        let header = Header::read(&self.token, datagram).filter(|header| header.stream == self.stream);
        let Some(header) = header else {
            self.heard.foreign += 1;
            return;
        };
        if header.message == AHEAD {
            self.heard.ahead += 1;
        } else if let Some(message) = self.messages.get_mut(header.message as usize) {
            message.sent_ns = header.sent_ns;
            message.came_ns = message.came_ns.max(came_ns);
            message.datagrams += 1;
            self.heard.datagrams += 1;
        } else {
            self.heard.foreign += 1;
        }
    }

    /// The messages, in order, those that did not come among them.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// What came.
    pub fn heard(&self) -> Heard {
        self.heard
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::super::{Sent, Stream};
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const TOKEN_OF_OURS: [u8; TOKEN] = [5; TOKEN];
    const GAP: Duration = Duration::from_micros(200);

    fn pair() -> (Socket, Socket) {
        let bound = || Socket::bind(SocketAddr::new(HERE, 0)).unwrap();
        let (mut one, mut other) = (bound(), bound());
        one.connect(SocketAddr::new(HERE, other.port().unwrap())).unwrap();
        other.connect(SocketAddr::new(HERE, one.port().unwrap())).unwrap();
        (one, other)
    }

    fn stream(together: usize, messages: u32) -> Stream {
        Stream {
            token: TOKEN_OF_OURS,
            number: 3,
            payload: 100,
            together,
            messages,
            gap: GAP,
            ahead: 4,
            ahead_gap: GAP / 2,
            limit: Duration::from_secs(5),
        }
    }

    /// Sends a stream again until the sender was at work for `least` messages; what came of the others is thrown away.
    fn some(least: u32, stream: &Stream, from: &mut Socket, to: &Socket) -> Sent {
        loop {
            let sent = stream.send(from).unwrap();
            if sent.messages >= least {
                return sent;
            }
            while to.receive(&mut [0; MOST_PAYLOAD]).unwrap().is_some() {}
        }
    }

    fn run(receiver: &mut Receiver, socket: &Socket) -> bool {
        receiver.run(socket, Duration::from_secs(5), Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn every_message_is_there_with_the_time_of_its_start_and_of_its_end() {
        for together in [1, 5] {
            let (mut from, to) = pair();
            let sent = some(2, &stream(together, 50), &mut from, &to);
            assert_eq!(sent.paused.is_zero(), sent.messages == 50, "{sent:?}");
            assert!(sent.elapsed >= sent.messages * GAP, "{sent:?}");
            let mut receiver = Receiver::new(TOKEN_OF_OURS, 3, 50, together as u32);
            receiver.end(sent.messages);
            assert!(run(&mut receiver, &to));
            let datagrams = u64::from(sent.messages) * together as u64;
            assert_eq!(receiver.heard(), Heard { datagrams, ahead: 4 * together as u64, foreign: 0 });
            assert_eq!(receiver.messages().len(), sent.messages as usize);
            assert!(receiver.messages().iter().all(|message| message.datagrams == together as u32));
            assert!(receiver.messages().is_sorted_by(|one, next| one.sent_ns < next.sent_ns));
            // The clock of the day may be put back meanwhile, though hardly twice.
            let came = receiver.messages().windows(2).filter(|two| two[0].came_ns > two[1].came_ns);
            assert!(came.count() <= 1, "{:?}", receiver.messages());
            assert_eq!(to.dropped().unwrap(), 0);
        }
    }

    #[test]
    fn a_stream_that_ended_early_is_complete_when_what_was_sent_of_it_is_there() {
        let (mut from, to) = pair();
        let sent = some(2, &stream(2, 50), &mut from, &to);
        let mut receiver = Receiver::new(TOKEN_OF_OURS, 3, 60, 2);
        assert!(!receiver.run(&to, Duration::from_millis(1), Duration::from_secs(5)).unwrap());
        receiver.end(sent.messages);
        assert!(run(&mut receiver, &to));
        assert_eq!(receiver.heard().datagrams, 2 * u64::from(sent.messages));
    }

    #[test]
    fn a_sender_whose_gap_is_shorter_than_a_call_ends_its_stream_and_says_so() {
        let (mut from, _to) = pair();
        let sent = Stream { gap: Duration::from_nanos(10), ..stream(5, 1000) }.send(&mut from).unwrap();
        assert!(sent.messages < 1000 && sent.paused > Duration::ZERO, "{sent:?}");
    }

    #[test]
    fn a_stream_of_another_number_or_token_is_not_taken_for_this_one() {
        let (mut from, to) = pair();
        let ahead = |token| Stream { token, ahead: 5, ..stream(1, 0) };
        for token in [TOKEN_OF_OURS, [6; TOKEN]] {
            ahead(token).send(&mut from).unwrap();
        }
        let mut receiver = Receiver::new(TOKEN_OF_OURS, 4, 5, 2);
        assert!(!receiver.run(&to, Duration::from_millis(1), Duration::from_secs(5)).unwrap());
        assert_eq!(receiver.heard(), Heard { datagrams: 0, ahead: 0, foreign: 10 });
        // Of the messages that come the receiver knows one.
        receiver.end(1);
        some(2, &Stream { number: 4, ahead: 0, ..stream(2, 50) }, &mut from, &to);
        assert!(run(&mut receiver, &to));
        assert_eq!(receiver.heard().datagrams, 2);
    }

    #[test]
    fn datagrams_that_nobody_fetched_are_counted_as_the_hosts_own_loss() {
        let (mut from, to) = pair();
        Stream { payload: 1400, ahead: 2000, ahead_gap: Duration::ZERO, ..stream(40, 0) }
            .send(&mut from)
            .unwrap();
        let mut receiver = Receiver::new(TOKEN_OF_OURS, 3, 1, 40);
        receiver.run(&to, Duration::from_millis(1), Duration::from_secs(5)).unwrap();
        let heard = receiver.heard();
        assert!(to.dropped().unwrap() > 0 && heard.ahead < 40 * 2000, "{heard:?}");
    }

    #[test]
    fn only_the_peer_that_shows_the_token_is_met() {
        let bound = || Socket::bind(SocketAddr::new(HERE, 0)).unwrap();
        let (mut listener, mut guest) = (bound(), bound());
        guest.connect(SocketAddr::new(HERE, listener.port().unwrap())).unwrap();
        guest.greet(&[7; TOKEN]).unwrap();
        // A datagram that begins with the token is not enough.
        stream(1, 3).send(&mut guest).unwrap();
        assert!(!listener.met(&TOKEN_OF_OURS, HERE, Duration::from_millis(20)).unwrap());
        guest.greet(&TOKEN_OF_OURS).unwrap();
        let elsewhere = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
        assert!(!listener.met(&TOKEN_OF_OURS, elsewhere, Duration::from_millis(20)).unwrap());
        guest.greet(&TOKEN_OF_OURS).unwrap();
        assert!(listener.met(&TOKEN_OF_OURS, HERE, Duration::from_secs(5)).unwrap());
        some(1, &stream(1, 50), &mut listener, &guest);
        assert!(run(&mut Receiver::new(TOKEN_OF_OURS, 3, 1, 1), &guest));
        assert!(guest.mtu().unwrap() > 1000);
    }
}
