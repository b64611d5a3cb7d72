//! What every link promises ([`penstock_fabric::net::link`]), as tests. The author of a link makes [`Ends`] of it, and names them
//! in [`conformance!`].

use penstock_fabric::net::frames::{Batch, FrameReader, FrameWriter, Places, Step};
use penstock_fabric::net::link::{Got, Interest, Link, Segment};
use penstock_kernels::{Foreign, Settings};
use penstock_proto::encoding::{Agreed, Sent, Source};
use penstock_proto::frame::{Body, Header};
use penstock_proto::submission::Submission;
use proptest::collection::vec;
use proptest::prelude::*;
use std::io::IoSliceMut;
use std::time::Duration;

/// Both ends of a connection, 0 and 1, and whatever lies between.
pub(crate) trait Ends {
    type Link: Link;

    /// A new connection, of which nothing is left to be read.
    fn connect() -> Self;

    fn end(&mut self, at: usize) -> &mut Self::Link;

    /// Waits until an end may go on as far as `interest` says; whether it may.
    fn wait(&mut self, at: usize, interest: Interest, longest: Duration) -> bool;

    /// An end goes away. What it has sent still arrives.
    fn close(&mut self, at: usize);

    /// The connection breaks, which an end hears of by an error.
    fn cut(&mut self, at: usize);
}

/// For what is bound to come, and for what is bound not to.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);

const READ: Interest = Interest { read: true, write: false };
const WRITE: Interest = Interest { read: false, write: true };

/// The byte at a place of what is sent, which no other way has there.
fn byte(from: usize, at: usize) -> u8 {
    (at as u32 ^ (at as u32 >> 8)).wrapping_mul(31).wrapping_add(97 * from as u32) as u8
}

fn bytes(from: usize, first: usize, count: usize) -> Vec<u8> {
    (first..first + count).map(|at| byte(from, at)).collect()
}

/// Writes once what follows `first`, in parts of these sizes; how much was taken.
fn write<E: Ends>(ends: &mut E, from: usize, first: usize, sizes: &[usize]) -> usize {
    let all = bytes(from, first, sizes.iter().sum());
    let mut rest = &all[..];
    // In turns our own and foreign.
    let part = |(at, size): (usize, &usize)| {
        let bytes = rest.split_off(..*size).unwrap();
        if at % 2 == 0 { Segment::Own(bytes) } else { Segment::Foreign(Foreign::of(bytes)) }
    };
    let parts: Vec<_> = sizes.iter().enumerate().map(part).collect();
    let taken = ends.end(from).write(&parts).unwrap();
    assert!(taken <= all.len(), "it took {taken} of {}", all.len());
    taken
}

/// Reads once, into parts of these sizes; what came.
fn read<E: Ends>(ends: &mut E, at: usize, sizes: &[usize]) -> std::io::Result<(Got, Vec<u8>)> {
    let mut parts: Vec<_> = sizes.iter().map(|size| vec![0; *size]).collect();
    let mut slices: Vec<_> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    let got = ends.end(at).read(&mut slices)?;
    let mut all = parts.concat();
    let came = if let Got::Bytes(bytes) = got { bytes } else { 0 };
    assert!(all[came..].iter().all(|byte| *byte == 0), "it wrote behind what it brought");
    all.truncate(came);
    Ok((got, all))
}

/// Reads until `count` bytes are there that were written at the other end.
fn receive<E: Ends>(ends: &mut E, at: usize, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        match read(ends, at, &[4000, 0, 9]).unwrap() {
            (Got::Bytes(_), came) => all.extend(came),
            (Got::Nothing, _) => {
                let flushed = ends.end(1 - at).flush().unwrap();
                let came = ends.wait(at, READ, if flushed { LONG } else { SHORT });
                assert!(came || !flushed, "{} of {count} bytes came", all.len());
            }
            (Got::End, _) => panic!("the end came behind {} of {count} bytes", all.len()),
        }
    }
    all
}

/// Sends a few bytes, to the last.
fn send<E: Ends>(ends: &mut E, from: usize, count: usize) {
    send_from(ends, from, &mut 0, count);
}

/// The same, of what follows the first `sent`.
fn send_from<E: Ends>(ends: &mut E, from: usize, sent: &mut usize, count: usize) {
    let end = *sent + count;
    while *sent < end {
        *sent += write(ends, from, *sent, &[end - *sent]);
    }
    while !ends.end(from).flush().unwrap() {}
}

/// Reads until nothing is there, or a short read was the last of it.
fn read_until_dry<E: Ends>(ends: &mut E, at: usize) -> Vec<u8> {
    const ROOM: usize = 4000;
    let mut all = Vec::new();
    loop {
        match read(ends, at, &[ROOM]).unwrap() {
            (Got::Bytes(count), came) => {
                all.extend(came);
                if count < ROOM && ends.end(at).short_is_all() {
                    return all;
                }
            }
            (Got::Nothing, _) => return all,
            (Got::End, _) => panic!("nobody has closed it"),
        }
    }
}

/// Writes until no more is taken; how much was.
fn fill<E: Ends>(ends: &mut E, from: usize) -> usize {
    let mut sent = 0;
    loop {
        match write(ends, from, sent, &[1, 4000]) {
            0 if !ends.wait(from, WRITE, SHORT) => return sent,
            taken => sent += taken,
        }
        assert!(sent < 1 << 28, "it takes whatever it is given");
    }
}

type Sizes = Vec<usize>;

fn sizes() -> impl Strategy<Value = Sizes> {
    let size = prop_oneof![0..4usize, 0..1000usize, 0..60_000usize];
    vec(size, 1..5).prop_filter("room for a byte", |sizes| sizes.iter().any(|size| *size > 0))
}

/// Which end writes, in parts of which sizes; in parts of which sizes the other reads. Buffers stay as they are: with smaller
/// ones than are full the kernel waits for many seconds before it goes on.
fn step() -> impl Strategy<Value = (usize, Sizes, Sizes)> {
    (0..2usize, sizes(), sizes())
}

pub(crate) fn what_is_read_is_what_was_written_whole_and_in_order<E: Ends>() {
    proptest!(ProptestConfig::with_cases(24), |(steps in vec(step(), 1..60))| {
        let (mut ends, mut written, mut got) = (E::connect(), [0; 2], [0; 2]);
        for (from, writes, reads) in steps {
            written[from] += write(&mut ends, from, written[from], &writes);
            let (_, came) = read(&mut ends, 1 - from, &reads).unwrap();
            prop_assert!(came == bytes(from, got[from], came.len()));
            got[from] += came.len();
            prop_assert!(got[from] <= written[from]);
        }
        for from in 0..2 {
            let rest = receive(&mut ends, 1 - from, written[from] - got[from]);
            prop_assert!(rest == bytes(from, got[from], rest.len()));
            prop_assert_eq!(read(&mut ends, 1 - from, &[1]).unwrap().0, Got::Nothing);
        }
    });
}

pub(crate) fn a_read_with_little_room_leaves_the_rest<E: Ends>() {
    let mut ends = E::connect();
    send(&mut ends, 0, 300);
    let mut all = Vec::new();
    while all.len() < 300 {
        match read(&mut ends, 1, &[0, 1]).unwrap() {
            (Got::Bytes(came), byte) => {
                assert_eq!(came, 1);
                all.extend(byte);
            }
            (Got::Nothing, _) => assert!(ends.wait(1, READ, LONG)),
            (Got::End, _) => panic!("nobody has closed it"),
        }
    }
    assert_eq!(all, bytes(0, 0, 300));
}

pub(crate) fn nothing_to_read_is_neither_an_error_nor_the_end<E: Ends>() {
    let mut ends = E::connect();
    for at in [0, 1, 0, 1] {
        assert_eq!(read(&mut ends, at, &[16]).unwrap().0, Got::Nothing);
        assert!(!ends.wait(at, READ, SHORT));
    }
    send(&mut ends, 1, 5);
    assert!(ends.wait(0, READ, LONG));
    assert_eq!(receive(&mut ends, 0, 5), bytes(1, 0, 5));
    assert_eq!(read(&mut ends, 0, &[16]).unwrap().0, Got::Nothing);
}

pub(crate) fn a_short_read_brings_all_that_is_there_if_the_link_says_so<E: Ends>() {
    let mut ends = E::connect();
    if !ends.end(1).short_is_all() {
        return;
    }
    for round in 0..100 {
        assert_eq!(write(&mut ends, 0, 300 * round, &[200, 100]), 300);
        assert!(ends.wait(1, READ, LONG));
        assert_eq!(read(&mut ends, 1, &[1, 4000]).unwrap(), (Got::Bytes(300), bytes(0, 300 * round, 300)));
        assert_eq!(read(&mut ends, 1, &[16]).unwrap().0, Got::Nothing);
    }
}

pub(crate) fn a_wait_ends_at_once_for_what_came_behind_the_last_read<E: Ends>() {
    for from in [0, 1] {
        let (mut ends, mut sent) = (E::connect(), 0);
        for _ in 0..20 {
            send_from(&mut ends, from, &mut sent, 300);
            assert!(ends.wait(1 - from, READ, LONG));
            let mut came = read_until_dry(&mut ends, 1 - from);
            // Before the wait begins, which an edge would miss.
            send_from(&mut ends, from, &mut sent, 300);
            while came.len() < 600 {
                assert!(ends.wait(1 - from, READ, LONG) && ends.wait(1 - from, READ, LONG));
                came.extend(read_until_dry(&mut ends, 1 - from));
            }
            assert_eq!(came, bytes(from, sent - 600, 600));
        }
    }
}

pub(crate) fn a_full_link_takes_nothing_and_goes_on_when_it_was_read<E: Ends>() {
    for from in [0, 1] {
        let mut ends = E::connect();
        let mut sent = fill(&mut ends, from);
        // What was sent is acknowledged meanwhile, which makes a little room again, but not for ever.
        loop {
            match write(&mut ends, from, sent, &[100]) {
                0 => break,
                taken => sent += taken,
            }
            assert!(sent < 1 << 28, "it takes whatever it is given");
        }
        assert!(receive(&mut ends, 1 - from, sent) == bytes(from, 0, sent));
        assert!(ends.wait(from, WRITE, LONG), "it stays full though it was read");
        let before = sent;
        while sent < before + 1000 {
            sent += write(&mut ends, from, sent, &[before + 1000 - sent]);
        }
        assert_eq!(receive(&mut ends, 1 - from, 1000), bytes(from, before, 1000));
    }
}

pub(crate) fn interest_is_what_a_link_waits_for<E: Ends>() {
    let mut ends = E::connect();
    for at in [0, 1] {
        let link = ends.end(at);
        assert!(link.flush().unwrap() && !link.holds_output());
        assert_eq!(link.interest(false), READ, "it has nothing to send");
        assert_eq!(link.interest(true), Interest { read: true, write: true });
    }
    let sent = fill(&mut ends, 0);
    let link = ends.end(0);
    assert_eq!(link.interest(false).write, link.holds_output(), "it sends what it holds");
    assert!(link.interest(true).write && link.interest(true).read);
    assert!(link.flush().unwrap() != link.holds_output());
    assert_eq!(receive(&mut ends, 1, sent).len(), sent);
    while !ends.end(0).flush().unwrap() {
        assert!(ends.wait(0, WRITE, LONG), "what it held is gone only when it was flushed");
    }
    assert_eq!(ends.end(0).interest(false), READ);
}

pub(crate) fn a_smaller_buffer_has_no_more_under_way<E: Ends>() {
    let filled = |bytes| {
        let mut ends = E::connect();
        for at in [0, 1] {
            ends.end(at).resize(bytes).unwrap();
        }
        fill(&mut ends, 0)
    };
    let (small, large) = (filled(16 << 10), filled(256 << 10));
    assert!(0 < small && small <= large, "{small} and {large} bytes");
}

pub(crate) fn the_end_comes_behind_everything_that_was_sent_and_stays<E: Ends>() {
    for (closing, count) in [(0, 0), (1, 0), (0, 3000), (1, 3000)] {
        let mut ends = E::connect();
        send(&mut ends, closing, count);
        ends.close(closing);
        let other = 1 - closing;
        let mut all = Vec::new();
        loop {
            match read(&mut ends, other, &[1000]).unwrap() {
                (Got::Bytes(_), came) => all.extend(came),
                (Got::Nothing, _) => assert!(ends.wait(other, READ, LONG), "the end was not told"),
                (Got::End, _) => break,
            }
        }
        assert_eq!(all, bytes(closing, 0, count));
        for _ in 0..3 {
            assert_eq!(read(&mut ends, other, &[1000]).unwrap().0, Got::End);
        }
    }
}

pub(crate) fn an_error_is_told_once_and_nothing_comes_after_it<E: Ends>() {
    for at in [0, 1] {
        let mut ends = E::connect();
        ends.cut(at);
        loop {
            match read(&mut ends, at, &[1000]) {
                Err(_) => break,
                Ok((Got::Nothing, _)) => assert!(ends.wait(at, READ, LONG), "the error was not told"),
                Ok((got, _)) => panic!("{got:?}, and no error"),
            }
        }
        for _ in 0..3 {
            assert_eq!(read(&mut ends, at, &[1000]).unwrap().0, Got::End);
            assert!(ends.end(at).write(&[Segment::Own(b"more")]).is_err(), "it takes what nobody will get");
        }
    }
}

/// Lets any payload in.
struct Anywhere;

impl Places for Anywhere {
    type Place = Vec<u8>;

    fn place(&mut self, header: &Header) -> Result<Vec<u8>, String> {
        Ok(vec![0; header.length as usize])
    }

    fn memory<'a>(&'a mut self, place: &'a mut Vec<u8>) -> Option<&'a mut [u8]> {
        Some(place)
    }
}

fn push(at: usize) -> Header {
    let settings = Settings([at as f64; 5]);
    let submission = Submission::Push { tensor: 3, first: at as u32, count: 1, stamp: 9, settings };
    Header::bare(1, at as u64 + 1, Body::Submission { submission, wanted: at.is_multiple_of(2) })
}

pub(crate) fn pushes_arrive_bit_for_bit_in_frames<E: Ends>() {
    let payloads = vec(prop_oneof![0..2usize, 0..300usize, 0..20_000usize], 1..40);
    proptest!(ProptestConfig::with_cases(12), |(payloads in payloads, from in 0..2usize)| {
        let chunk = |at: usize| bytes(from, 1000 * at, payloads[at]);
        let (mut ends, mut buffer) = (E::connect(), Vec::new());
        let (mut writer, mut reader) = (FrameWriter::default(), FrameReader::new());
        let (mut sent, mut came) = (0, 0);
        while came < payloads.len() {
            if writer.flush(ends.end(from)).unwrap() && sent < payloads.len() {
                let last = payloads.len().min(sent + 7);
                let chunks: Vec<_> = (sent..last).map(chunk).collect();
                let mut batch = Batch::new(&mut buffer);
                for (at, chunk) in (sent..).zip(&chunks) {
                    // In turns from a lane, from a copy of one, and from where it stands.
                    let source = match at % 3 {
                        0 => Source::Lane(Foreign::of(chunk)),
                        1 => Source::ExposedLane(Foreign::of(chunk)),
                        _ => Source::Stands(chunk),
                    };
                    let whole = Sent { source, shadow: None, position: 0 };
                    batch.push_chunk(push(at), &Agreed::default(), &whole);
                }
                writer.send(ends.end(from), &batch.frames()).unwrap();
                sent = last;
            }
            match reader.next(ends.end(1 - from), &mut Anywhere) {
                Step::Frame(header, payload) => {
                    prop_assert_eq!((header.body, header.sequence), (push(came).body, came as u64 + 1));
                    prop_assert!(payload == chunk(came));
                    came += 1;
                }
                Step::Header => {}
                Step::Nothing if writer.is_clear() && !ends.end(from).holds_output() => {
                    prop_assert!(came == sent || ends.wait(1 - from, READ, LONG), "a frame is lost");
                }
                Step::Nothing => {}
                step => panic!("{step:?}"),
            }
        }
        prop_assert!(writer.is_clear() && !ends.end(from).holds_output());
    });
}

/// Counts reads that were in vain.
struct Counting<'a, L> {
    link: &'a mut L,
    in_vain: &'a mut u32,
}

impl<L: Link> Link for Counting<'_, L> {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> std::io::Result<Got> {
        let got = self.link.read(parts)?;
        *self.in_vain += u32::from(got == Got::Nothing);
        Ok(got)
    }

    fn short_is_all(&self) -> bool {
        self.link.short_is_all()
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> std::io::Result<usize> {
        self.link.write(parts)
    }

    fn flush(&mut self) -> std::io::Result<bool> {
        self.link.flush()
    }

    fn holds_output(&self) -> bool {
        self.link.holds_output()
    }

    fn resize(&self, bytes: usize) -> std::io::Result<()> {
        self.link.resize(bytes)
    }
}

pub(crate) fn a_reader_that_looks_again_after_each_wait_gets_every_frame_and_reads_no_more_than_it_must<
    E: Ends,
>() {
    for from in [0, 1] {
        let (mut ends, mut buffer) = (E::connect(), Vec::new());
        let (mut writer, mut reader) = (FrameWriter::default(), FrameReader::new());
        let (mut came, mut in_vain) = (0, 0);
        for burst in 1..8 {
            let (last, chunk) = (came + burst, bytes(from, 7 * burst, 100));
            let mut batch = Batch::new(&mut buffer);
            for at in came..last {
                let whole = Sent { source: Source::Stands(&chunk), shadow: None, position: 0 };
                batch.push_chunk(push(at), &Agreed::default(), &whole);
            }
            writer.send(ends.end(from), &batch.frames()).unwrap();
            while came < last {
                let flushed = writer.flush(ends.end(from)).unwrap();
                let waited = ends.wait(1 - from, READ, if flushed { LONG } else { SHORT });
                assert!(waited || !flushed, "a frame is lost");
                reader.look_again();
                loop {
                    let link = ends.end(1 - from);
                    match reader.next(&mut Counting { link, in_vain: &mut in_vain }, &mut Anywhere) {
                        Step::Frame(header, payload) => {
                            assert!(header.body == push(came).body && payload == chunk);
                            came += 1;
                        }
                        Step::Header => {}
                        Step::Nothing => break,
                        step => panic!("{step:?}"),
                    }
                }
            }
        }
        assert!(in_vain == 0 || !ends.end(1 - from).short_is_all(), "{in_vain} reads were in vain");
    }
}

/// The suite for one kind of [`Ends`].
macro_rules! conformance {
    ($name:ident, $ends:ty) => {
        $crate::suite::conformance!($name, $ends,
            what_is_read_is_what_was_written_whole_and_in_order
            a_read_with_little_room_leaves_the_rest
            nothing_to_read_is_neither_an_error_nor_the_end
            a_short_read_brings_all_that_is_there_if_the_link_says_so
            a_wait_ends_at_once_for_what_came_behind_the_last_read
            a_full_link_takes_nothing_and_goes_on_when_it_was_read
            interest_is_what_a_link_waits_for
            a_smaller_buffer_has_no_more_under_way
            the_end_comes_behind_everything_that_was_sent_and_stays
            an_error_is_told_once_and_nothing_comes_after_it
            pushes_arrive_bit_for_bit_in_frames
            a_reader_that_looks_again_after_each_wait_gets_every_frame_and_reads_no_more_than_it_must
        );
    };
    ($name:ident, $ends:ty, $($promise:ident)*) => {
        mod $name {
            $(
                #[test]
                fn $promise() {
                    $crate::suite::$promise::<$ends>();
                }
            )*
        }
    };
}
pub(crate) use conformance;
