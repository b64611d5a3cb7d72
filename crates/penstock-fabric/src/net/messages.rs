//! Messages about items of a link and onto it, without blocking: what comes is passed on message by message, and what is sent is
//! asked for when the link takes more.

use super::Ended;
use super::link::{Got, Link, Segment};
use penstock_proto::account::{Account, Charge, Resource};
use penstock_proto::items::wire::MAX_MESSAGE_BYTES;
use penstock_proto::record::{self, LENGTH_BYTES, RecordError};
use std::io::{self, ErrorKind, IoSliceMut};

/// Bytes read at a time.
const READ: usize = 256 * 1024;
/// Bytes that are asked for at a time, about.
pub const WRITE: usize = 512 * 1024;
/// Bytes taken of a link, or given to it, before others get their turn.
const TURN: usize = 4 << 20;

/// The receiving end.
#[derive(Debug)]
pub struct MessageReader {
    /// Bytes read at a time.
    read: usize,
    account: Account,
    /// For what `input` has grown by.
    charge: Charge,
    input: Vec<u8>,
    /// Bytes of `input` that are read, and before which they are used.
    filled: usize,
    used: usize,
    /// Bytes that ever came.
    heard: u64,
    /// Its turn ended where more may have come.
    behind: bool,
}

impl MessageReader {
    /// For a link of which nothing was read. What it has to keep of a message beyond what any link's reader has is charged to
    /// `account`.
    pub fn new(account: Account) -> Self {
        Self::reading_ahead(READ, account)
    }

    /// The same that reads `bytes` at a time.
    pub fn reading_ahead(bytes: usize, account: Account) -> Self {
        let (charge, input) = (Charge::default(), vec![0; bytes]);
        Self { read: bytes, account, charge, input, filled: 0, used: 0, heard: 0, behind: false }
    }

    /// Bytes that ever came: it grows while the peer lives.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// Whether its last turn ended where more may have come: then the link need not say so again.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Reads, and passes on the messages that are whole, as long as it `has_time`; whether anything had come. The first of those that
    /// an earlier turn left here is passed on without asking, so that each turn gets on. `true` also where more may be there. An
    /// error may come behind messages that were taken.
    pub fn receive<L: Link, E: Into<Ended>>(
        &mut self,
        link: &mut L,
        mut has_time: impl FnMut() -> bool,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, Ended> {
        let (mut taken, mut any) = (0, false);
        self.behind = true;
        loop {
            while let Some(message) = message(&self.input[self.used..self.filled])? {
                if any && !has_time() {
                    return Ok(true);
                }
                any = true;
                let length = message.len();
                // An empty one says only that its sender is alive.
                if length > 0 {
                    take(message).map_err(Into::into)?;
                }
                self.used += LENGTH_BYTES + length;
            }
            if self.used == self.filled {
                (self.used, self.filled) = (0, 0);
                if self.input.len() > 4 * self.read {
                    (self.input, self.charge) = (vec![0; self.read], Charge::default());
                }
            }
            // Also amid a message, which may come byte by byte.
            if taken >= TURN || taken > 0 && !has_time() {
                return Ok(true);
            }
            if self.filled == self.input.len() {
                self.make_room()?;
            }
            // Also behind a short read: rows that came while earlier ones were taken are then passed on together with them, for one
            // read in vain a turn.
            let bytes = match link.read(&mut [IoSliceMut::new(&mut self.input[self.filled..])])? {
                Got::Bytes(bytes) => bytes,
                Got::Nothing => {
                    self.behind = false;
                    return Ok(any);
                }
                Got::End => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            };
            self.filled += bytes;
            (taken, any) = (taken + bytes, true);
            self.heard += bytes as u64;
        }
    }

    /// Makes room behind what is read: moves it to the front, and grows only as far as the message that is under way is long.
    fn make_room(&mut self) -> Result<(), Ended> {
        self.input.copy_within(self.used..self.filled, 0);
        (self.filled, self.used) = (self.filled - self.used, 0);
        if self.filled == self.input.len() {
            let longer = (2 * self.input.len()).min(MAX_MESSAGE_BYTES + self.read);
            if longer == self.input.len() {
                return Err(Ended::Peer("it sent a message without an end".to_owned()));
            }
            let charge = self.account.charge(Resource::Bytes, longer as u64);
            self.charge = charge.map_err(|why| Ended::Exhausted { what: "a long message", why })?;
            self.input.resize(longer, 0);
        }
        Ok(())
    }
}

/// The first message, if it is here whole.
fn message(bytes: &[u8]) -> Result<Option<&[u8]>, Ended> {
    let Some((head, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = record::length(head, MAX_MESSAGE_BYTES).map_err(|error| match error {
        RecordError::Damaged => Ended::damaged(&error),
        RecordError::TooLong { got, .. } => Ended::Peer(format!("it announced a message of {got} bytes")),
    })?;
    Ok(rest.get(..length))
}

/// The sending end. What the link does not take is held here.
#[derive(Debug)]
pub struct MessageWriter {
    account: Account,
    output: Vec<u8>,
    written: usize,
    /// For what `output` takes beyond what any link's may take.
    charge: Charge,
    /// Its turn ended while there was more to send.
    behind: bool,
}

impl MessageWriter {
    /// Of a link to which nothing was written. What it has to hold beyond what any link's writer may is charged to `account`.
    pub fn new(account: Account) -> Self {
        Self { account, output: Vec::new(), written: 0, charge: Charge::default(), behind: false }
    }

    /// Whether the link took everything that was asked for.
    pub fn is_clear(&self) -> bool {
        self.written == self.output.len()
    }

    /// Bytes for which there is room here.
    pub fn capacity(&self) -> usize {
        self.output.capacity()
    }

    /// Whether its last turn ended while there was more to send.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Sends what `give` adds, about [`WRITE`] bytes a time and none when there is no more, as far as the link takes it and as long
    /// as it `has_time`, which it has for the first; whether the link took anything. `give` returns how many of its bytes were paid
    /// for already.
    pub fn transmit<L: Link>(
        &mut self,
        link: &mut L,
        mut has_time: impl FnMut() -> bool,
        mut give: impl FnMut(&mut Vec<u8>) -> u64,
    ) -> Result<bool, Ended> {
        let (mut sent, mut given) = (0, false);
        self.behind = false;
        while sent < TURN {
            if self.is_clear() {
                if given && !has_time() {
                    break;
                }
                given = true;
                self.empty();
                let paid = give(&mut self.output);
                self.pay(paid)?;
                if self.output.is_empty() {
                    link.flush()?;
                    return Ok(sent > 0);
                }
            }
            match link.write(&[Segment::Own(&self.output[self.written..])])? {
                0 => return Ok(sent > 0),
                bytes => {
                    self.written += bytes;
                    sent += bytes;
                }
            }
        }
        self.behind = true;
        Ok(true)
    }

    /// A sign of life, or else what waits for the link to take it.
    pub fn beat<L: Link>(&mut self, link: &mut L) -> io::Result<()> {
        if self.is_clear() {
            self.empty();
            self.output.extend_from_slice(&record::length_bytes(0));
        }
        self.written += link.write(&[Segment::Own(&self.output[self.written..])])?;
        Ok(())
    }

    /// What was written is not kept: a row may have been long, and the next ones are short.
    fn empty(&mut self) {
        self.output.clear();
        self.written = 0;
        if self.output.capacity() > 2 * WRITE {
            (self.output, self.charge) = (Vec::new(), Charge::default());
        }
    }

    fn pay(&mut self, paid: u64) -> Result<(), Ended> {
        // It grows by more than it needs.
        self.output.shrink_to(2 * WRITE);
        let more = (self.output.capacity().saturating_sub(2 * WRITE) as u64).saturating_sub(paid);
        if more > self.charge.amount() {
            self.charge = Charge::default();
            let charge = self.account.charge(Resource::Bytes, more);
            self.charge = charge.map_err(|why| Ended::Exhausted { what: "rows on their way", why })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link on which all that ever comes has come, and which takes all that is sent.
    #[derive(Default)]
    struct Full {
        came: Vec<u8>,
        sent: Vec<u8>,
        /// Most bytes that a read brings: what is left comes meanwhile.
        piece: Option<usize>,
    }

    impl Link for Full {
        fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
            let bytes = parts[0].len().min(self.came.len()).min(self.piece.unwrap_or(usize::MAX));
            parts[0][..bytes].copy_from_slice(&self.came[..bytes]);
            self.came.drain(..bytes);
            Ok(if bytes > 0 { Got::Bytes(bytes) } else { Got::Nothing })
        }

        fn short_is_all(&self) -> bool {
            true
        }

        fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
            let [Segment::Own(bytes)] = parts else { panic!("a writer has one segment") };
            self.sent.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<bool> {
            Ok(true)
        }

        fn holds_output(&self) -> bool {
            false
        }

        fn resize(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
    }

    // The link has nothing more to say of what was read with them.
    #[test]
    fn messages_for_which_a_turn_had_no_time_are_taken_in_the_next() {
        let mut link = Full::default();
        for byte in 0..3 {
            link.came.extend_from_slice(&record::length_bytes(1));
            link.came.push(byte);
        }
        let (mut reader, mut taken) = (MessageReader::new(Account::default()), Vec::new());
        let mut take = |message: &[u8]| -> Result<(), Ended> {
            taken.extend_from_slice(message);
            Ok(())
        };
        for _ in 0..2 {
            assert!(reader.receive(&mut link, || false, &mut take).unwrap());
            assert!(reader.is_behind() && link.came.is_empty());
        }
        assert!(reader.receive(&mut link, || true, &mut take).unwrap());
        assert!(!reader.is_behind());
        assert!(!reader.receive(&mut link, || true, &mut take).unwrap(), "nothing is left");
        assert_eq!(taken, [0, 1, 2]);
    }

    // Of one that is not whole the time was not asked for.
    #[test]
    fn a_message_that_comes_byte_by_byte_takes_no_longer_than_a_turn() {
        let mut link = Full { piece: Some(1), ..Full::default() };
        link.came.extend_from_slice(&record::length_bytes(1000));
        link.came.resize(LENGTH_BYTES + 1000, 7);
        let mut reader = MessageReader::new(Account::default());
        let (mut left, mut taken, mut turns) = (0, 0, 0);
        while taken == 0 {
            left = 10;
            let has_time = || {
                left -= 1;
                left > 0
            };
            let take = |message: &[u8]| -> Result<(), Ended> {
                taken = message.len();
                Ok(())
            };
            assert!(reader.receive(&mut link, has_time, take).unwrap());
            assert!(reader.is_behind() || taken > 0);
            turns += 1;
        }
        assert!(taken == 1000 && turns > 90 && left < 10, "{taken} bytes in {turns} turns");
    }

    // A read that brought less than there was room for ended the turn: who passes rows on then sent each message of a fast
    // producer by itself.
    #[test]
    fn what_comes_while_messages_are_taken_is_taken_in_the_same_turn() {
        let mut link = Full { piece: Some(LENGTH_BYTES + 1), ..Full::default() };
        for byte in 0..3 {
            link.came.extend_from_slice(&record::length_bytes(1));
            link.came.push(byte);
        }
        let (mut reader, mut taken) = (MessageReader::new(Account::default()), Vec::new());
        let take = |message: &[u8]| -> Result<(), Ended> {
            taken.extend_from_slice(message);
            Ok(())
        };
        assert!(reader.receive(&mut link, || true, take).unwrap());
        assert_eq!(taken, [0, 1, 2]);
        assert!(!reader.is_behind());
    }

    #[test]
    fn what_a_turn_had_no_time_to_send_is_sent_in_the_next() {
        let (mut link, mut left) = (Full::default(), 3);
        let mut writer = MessageWriter::new(Account::default());
        let mut give = |out: &mut Vec<u8>| {
            if left > 0 {
                out.push(left);
                left -= 1;
            }
            0
        };
        assert!(writer.transmit(&mut link, || false, &mut give).unwrap() && writer.is_behind());
        assert_eq!(link.sent, [3]);
        assert!(writer.transmit(&mut link, || true, &mut give).unwrap() && !writer.is_behind());
        assert_eq!(link.sent, [3, 2, 1]);
    }
}
