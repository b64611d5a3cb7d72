//! Where a proxy mirrors the chunks of a tensor: in memory of its process, in which readers see them as those of a shard.

use super::RemoteHome;
use super::allowance::{Allowance, For};
use super::bypass::Share;
use super::lending::not_shared;
use penstock_fabric::memory::{
    HomeChunk, HomeMemory, LaneView, LendError, Lent, Look, StateMirror, Unread, Windows, untouched,
};
use penstock_fabric::net::remote_shard::{self, GoingBack, Kept, Update, Value};
use penstock_fabric::publish::{Numbers, Published, Torn};
use penstock_fabric::region::{Mapping, Region};
use penstock_fabric::sync::Ordering;
use penstock_kernels::codec::{Base, Undecodable};
use penstock_kernels::{Foreign, SumRoom};
use penstock_proto::encoding::Agreed;
use penstock_proto::factors::{LowRank, Standing};
use penstock_proto::frame::{Body, Notice};
use penstock_proto::remote::mirror::Stands;
use penstock_proto::travel::Terms;
use penstock_proto::update::Updates;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What it takes to be lent, and to be seen elsewhere: a region of its own, and where its worker sees what is mirrored there.
#[derive(Debug, Clone)]
pub(in crate::worker) struct Lendable {
    pub(in crate::worker) windows: Arc<Windows>,
    pub(in crate::worker) own: Arc<Own>,
}

/// A region whose descriptor is kept, to be lent.
#[derive(Debug)]
pub(in crate::worker) struct Own {
    region: Region,
    /// For its descriptor.
    _allowance: Allowance,
}

impl Own {
    pub(in crate::worker) fn new(region: Region, allowance: Allowance) -> Self {
        Self { region, _allowance: allowance }
    }
}

/// What is seen in another worker's memory.
struct Loan {
    lent: Lent,
    /// Where it goes back to, which takes next to no memory before: progress is counted there.
    spare: Region,
    /// For both.
    allowance: Allowance,
}

/// Where the chunks of one tensor are mirrored that a shard is home of.
pub(super) struct Mirrored {
    /// The shard, among those of its server.
    pub(super) shard: u32,
    pub(super) home: HomeMemory,
    pub(super) lane: LaneView,
    pub(super) remote: Arc<RemoteHome>,
    pub(super) state: Option<StateMirror>,
    /// How its chunks travel, both ways.
    pub(super) terms: Arc<Terms>,
    pub(super) share: Share,
    /// Where updates are decoded, where those come.
    pub(super) sum: SumRoom,
    /// Where its worker sees it, if that may be elsewhere; the region that it is mirrored in, unless it is borrowed; what another worker
    /// has offered, and what is borrowed.
    windows: Option<Arc<Windows>>,
    own: Option<Arc<Own>>,
    offer: Option<(Lent, Allowance)>,
    loan: Option<Loan>,
}

impl Mirrored {
    /// Mirrors what `home` holds. `shard`: among those of its server.
    pub(super) fn new(
        shard: u32,
        home: HomeMemory,
        lane: LaneView,
        remote: Arc<RemoteHome>,
        terms: Arc<Terms>,
    ) -> Self {
        let bytes = home.chunks().iter().map(|&chunk| home.range(chunk).len() as u64).sum();
        Self {
            shard,
            home,
            lane,
            remote,
            state: None,
            terms,
            share: Share::new(bytes),
            sum: SumRoom::default(),
            windows: None,
            own: None,
            offer: None,
            loan: None,
        }
    }

    /// The same of what may be lent, and borrowed.
    pub(super) fn lending(mut self, lendable: Option<Lendable>) -> Self {
        if let Some(Lendable { windows, own }) = lendable {
            (self.windows, self.own) = (Some(windows), Some(own));
        }
        self
    }

    /// The region that it is mirrored in, if it may be lent now.
    pub(super) fn lendable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.own.as_ref()?.region.fd())
    }

    /// Another worker offers its own; whether that is of use.
    pub(super) fn offer(&mut self, fd: OwnedFd, allowance: Allowance) -> Result<bool, LendError> {
        let Some(windows) = &self.windows else { return Ok(false) };
        self.offer = Some((Lent::new(fd, windows.layout())?, allowance));
        Ok(true)
    }

    /// Whether it is borrowed there.
    pub(super) fn reads_in(&self, fd: BorrowedFd<'_>) -> bool {
        let file = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
        self.loan.as_ref().is_some_and(|loan| {
            let there = file(loan.lent.fd());
            there.is_some() && there == file(fd)
        })
    }

    /// Whether one does, which is not borrowed.
    pub(super) fn is_offered(&self) -> bool {
        self.offer.is_some()
    }

    /// What was offered is of no use any more.
    pub(super) fn decline(&mut self) {
        self.offer = None;
    }

    fn tail(region: &Region, windows: &Windows) -> Result<Arc<Mapping>, LendError> {
        let layout = windows.layout().model();
        let tail = region.mapping().piece(layout.data..layout.total());
        tail.ok_or(LendError::System { what: "find a region's headers", errno: rustix::io::Errno::INVAL })
    }

    /// Has the worker see what is offered; whether it does. If not it sees its own. On an error it sees some of both.
    fn move_out(
        &mut self,
        (lent, allowance): (Lent, Allowance),
        windows: &Windows,
        own: &Region,
        progress: u64,
    ) -> Result<bool, LendError> {
        let ready = || {
            windows.count_pieces()?;
            let spare = untouched("penstock-mirror", windows.layout())?;
            let tails = (Self::tail(own, windows)?, Self::tail(&spare, windows)?);
            Ok::<_, LendError>((spare, tails))
        };
        let (spare, (own_tail, count)) = match ready() {
            Ok(ready) => ready,
            Err(error) => {
                not_shared(None, None, &error);
                return Ok(false);
            }
        };
        let home = self.home.in_another(spare.mapping());
        home.progress().0.store(progress, Ordering::Release);
        if let Err(error) = windows.switch(self.shard, lent.fd(), (Arc::clone(lent.tail()), count), || {}) {
            not_shared(None, None, &error);
            // What had been switched is put back: it was there a moment ago.
            windows.switch(self.shard, own.fd(), (Arc::clone(&own_tail), own_tail), || {})?;
            return Ok(false);
        }
        self.home = home;
        self.loan = Some(Loan { lent, spare, allowance });
        Ok(true)
    }
}

/// Why a worker fails that cannot go back.
fn cannot_go_back(error: &LendError) -> String {
    let what = "it could not go back from another worker's memory to its own";
    let hint = match error {
        LendError::Memory { .. } => "; give the workers of this host more memory, or set PENSTOCK_LEND=off",
        _ => "",
    };
    format!("{what}: {error}{hint}")
}

/// How the chunks of a tensor are copied on the way back, out of this memory.
struct Copying<'a, 'b> {
    lent: &'a Lent,
    home: &'a mut HomeMemory,
    way: &'a mut GoingBack<'b>,
    is_so: &'a dyn Fn(u32, &Stands) -> bool,
}

impl Copying<'_, '_> {
    /// Copies what stands there of each chunk that was not copied, or was changed since. `waits`: for what is being written, a while.
    fn go(&mut self, kept: &mut [(u32, (Option<u64>, Kept))], waits: bool) {
        for (chunk, kept) in kept {
            if kept.0.is_none_or(|sequence| !self.lent.is_still(*chunk, sequence)) {
                *kept = self.keep(*chunk, waits);
                self.way.wrote(self.home.range(*chunk).len());
            }
        }
    }

    /// Copies what stands of a chunk there, and publishes it here; what was kept, with the sequence that it had.
    fn keep(&mut self, chunk: u32, waits: bool) -> (Option<u64>, Kept) {
        let Self { lent, home, way, is_so } = self;
        let mut place = home.chunk(chunk);
        place.header.begin();
        loop {
            let since = Instant::now();
            match lent.copy(chunk, place.seen) {
                Ok(Some((sequence, published, numbers))) => {
                    let stands = stands(published, numbers);
                    // What no honest lender says is no reader's here either.
                    if !is_so(chunk, &stands) {
                        return (Some(sequence), Kept::Lost);
                    }
                    place.header.number(numbers);
                    place.header.publish(published);
                    return (Some(sequence), Kept::Whole(stands));
                }
                Err(Torn) if waits && way.may_wait() => {
                    // Another process writes there, and tells nobody when it has.
                    std::thread::sleep(GoingBack::LOOKS_APART);
                    way.waited(since.elapsed());
                }
                Ok(None) | Err(Torn) => break,
            }
        }
        // No pull takes it before the home has sent it. A view shows something of it, rather than zeros.
        lent.copy_unverified(chunk, place.seen);
        (None, Kept::Lost)
    }
}

fn stands(published: Published, Numbers { publication, content }: Numbers) -> Stands {
    Stands { version: published.version, steps: published.steps, publication, content }
}

impl Mirrored {
    /// Factors of this rank, as the tensor puts them in place of the server's extent.
    fn standing(&self, rank: u32) -> Standing {
        let low_rank =
            self.terms.low_rank.expect("factors stand where the declaration says that they travel");
        let chunk = self.home.chunks()[0];
        Standing { low_rank, rank, start: self.home.start(chunk) - self.home.range(chunk).start as u64 }
    }
}

impl remote_shard::Mirrored for Mirrored {
    fn chunks(&self) -> &[u32] {
        self.home.chunks()
    }

    fn values(&self) -> &Agreed {
        &self.terms.values
    }

    fn contributions(&self) -> &Agreed {
        &self.terms.contributions
    }

    fn bytes(&self, chunk: u32) -> Option<usize> {
        self.home.find(chunk).map(|_| self.home.range(chunk).len())
    }

    fn state_bytes(&self, chunk: u32) -> Option<usize> {
        self.home.find(chunk)?;
        self.state.as_ref().map(|state| state.bytes(chunk))
    }

    fn contribution(&self, chunk: u32) -> Foreign<'_> {
        self.lane.contribution(self.home.range(chunk))
    }

    fn low_rank(&self) -> Option<LowRank> {
        self.terms.low_rank
    }

    fn range_of(&self, chunk: u32) -> Range<u64> {
        let start = self.home.start(chunk);
        start..start + self.home.range(chunk).len() as u64
    }

    fn right_factor(&self, rank: u32, bytes: Range<usize>) -> Foreign<'_> {
        let standing = self.standing(rank).right();
        self.lane.contribution(standing.start + bytes.start..standing.start + bytes.end)
    }

    fn left_factor(&self, rank: u32, chunk: u32) -> Foreign<'_> {
        self.lane.contribution(self.standing(rank).left(self.range_of(chunk)))
    }

    fn is_broadcast(&self) -> bool {
        self.terms.propagation.is_unasked()
    }

    fn is_lane_exposed(&self) -> bool {
        // Set before the lane's address is given out; the ring orders it before whatever is pushed after that.
        self.remote.is_lane_exposed.load(Ordering::Relaxed)
    }

    fn wants(&self) -> bool {
        self.remote.wants.load(Ordering::Relaxed)
    }

    fn wanted(&self) -> u64 {
        self.remote.wanted.load(Ordering::Acquire)
    }

    fn updates(&self) -> Option<&Updates> {
        self.terms.updates.as_ref()
    }

    fn whole_bytes(&self, chunk: u32) -> Option<usize> {
        self.home.find(chunk)?;
        Some(self.home.range(chunk).len() + self.home.beside(chunk).len())
    }

    fn update(&mut self, chunk: u32, update: &Update<'_>, published: Published) -> Result<(), Undecodable> {
        let Self { home, terms, sum, .. } = self;
        let Updates { plan, .. } = terms.updates.as_ref().expect("it was asked whether updates come");
        let HomeChunk { mut header, seen, state, .. } = home.chunk(chunk);
        let sum = update.decode(plan, sum, seen.len())?;
        header.begin();
        update.fold(plan, sum, seen, state);
        header.publish(published);
        Ok(())
    }

    fn whole(&mut self, chunk: u32, whole: &Value<'_>, published: Published) -> Result<(), Undecodable> {
        let HomeChunk { mut header, seen, state, .. } = self.home.chunk(chunk);
        // Beside it: a script may be looking at the value, which is the same where a connection was made again.
        let mut aside = vec![0; seen.len() + state.len()];
        whole.decode(&mut aside)?;
        let (value, arrays) = aside.split_at(seen.len());
        header.begin();
        seen.copy_from_slice(value);
        state.copy_from_slice(arrays);
        header.publish(published);
        Ok(())
    }

    fn is_borrowed(&self) -> bool {
        self.loan.is_some()
    }

    fn look_there(&self, chunk: u32) -> Result<Option<Stands>, Torn> {
        let lent = self.loan.as_ref().map(|loan| &loan.lent);
        let lent = lent.or_else(|| self.offer.as_ref().map(|(lent, _)| lent));
        let look: Option<Look> = lent.map_or(Ok(None), |lent| lent.look(chunk))?;
        Ok(look.map(|(_, published, numbers)| stands(published, numbers)))
    }

    fn take_unread(&mut self) -> Option<Unread> {
        self.windows.as_ref().filter(|_| self.loan.is_some())?.take_unread(self.shard)
    }

    fn borrow(&mut self, progress: u64) -> Result<bool, String> {
        let Some(windows) = self.windows.clone().filter(|windows| windows.is_seated()) else {
            return Ok(false);
        };
        let (Some(lent), Some(own)) = (self.offer.take(), self.own.take()) else { return Ok(false) };
        let moved = self.move_out(lent, &windows, &own.region, progress);
        if let Ok(true) = moved {
            self.remote.borrows.store(true, Ordering::Relaxed);
        } else {
            self.own = Some(own);
        }
        moved.map_err(|error| cannot_go_back(&error))
    }

    fn take_back(
        &mut self,
        way: &mut GoingBack<'_>,
        is_so: &dyn Fn(u32, &Stands) -> bool,
    ) -> Result<Vec<(u32, Kept)>, String> {
        self.offer = None;
        let (Some(Loan { lent, spare, .. }), Some(windows)) = (&self.loan, &self.windows) else {
            return Ok(Vec::new());
        };
        // Before anything is stored there: a store for which there is no memory would end this process.
        let touched = windows.touch(self.shard, spare, &mut |bytes| way.wrote(bytes));
        let tail = touched.and_then(|()| Self::tail(spare, windows));
        let tail = tail.map_err(|error| cannot_go_back(&error))?;
        let nothing = |&chunk: &u32| (chunk, (None, Kept::Lost));
        let mut kept: Vec<_> = self.home.chunks().iter().map(nothing).collect();
        let mut copying = Copying { lent, home: &mut self.home, way, is_so };
        copying.go(&mut kept, true);
        // What changed meanwhile once more, so that readers wait for little.
        copying.go(&mut kept, true);
        windows
            .switch(self.shard, spare.fd(), (Arc::clone(&tail), tail), || {
                // Nobody reads there any more: whatever was read by now is not newer than this. And nobody waits here, as all do.
                copying.go(&mut kept, false);
            })
            .map_err(|error| cannot_go_back(&error))?;
        self.remote.borrows.store(false, Ordering::Relaxed);
        let given_back = |Loan { spare, allowance, .. }: Loan| Own::new(spare, allowance.now_for(For::OWN));
        self.own = self.loan.take().map(|loan| Arc::new(given_back(loan)));
        Ok(kept.into_iter().map(|(chunk, (_, kept))| (chunk, kept)).collect())
    }

    fn publish(&mut self, chunk: u32, value: &Value<'_>, published: Published) -> Result<(), Undecodable> {
        debug_assert!(self.loan.is_none(), "nothing is published where values are borrowed");
        let mut place = self.home.chunk(chunk);
        place.header.begin();
        let decoded = if !value.codec.is_verbatim() && value.header.base() == Base::Zeros {
            // A decoder begins with zeros, and a script may be looking at the value, which then is the same: what comes on a new
            // connection was here before.
            let mut aside = vec![0; place.seen.len()];
            value.decode(&mut aside).map(|()| place.seen.copy_from_slice(&aside))
        } else if self.share.bypasses_caches() {
            value.decode_past_cache(place.seen)
        } else {
            value.decode(place.seen)
        };
        match decoded {
            Ok(()) => {
                if let Body::Notice(Notice::Value { publication, content, .. }) = value.header.body {
                    place.header.number(Numbers { publication, content });
                }
                place.header.publish(published);
            }
            Err(refused) => {
                place.header.leave();
                return Err(refused);
            }
        }
        Ok(())
    }

    fn raise(&mut self, chunk: u32, published: Published) {
        self.home.header(chunk).publish(published);
    }

    fn progress(&mut self, progress: u64) {
        // Pairs with the acquire load in the worker's pull: who sees the progress sees the chunks.
        self.home.progress().0.store(progress, Ordering::Release);
    }

    fn state(&mut self, chunk: u32, state: &[u8]) {
        if let Some(place) = &self.state {
            place.write(chunk, state);
        }
    }

    fn folded(&mut self, count: u64) {
        // Pairs with the acquire load before the worker writes its lane again.
        self.lane.folded(self.shard).0.store(count, Ordering::Release);
    }

    fn fetched(&mut self, ticket: u64) {
        // Pairs with the acquire load in the worker's pull.
        self.remote.fetched.fetch_max(ticket, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::bypass;
    use super::super::rig::{self, CHUNK, JOB, Seen, W, breaches, good, good_behind, only_good};
    use super::*;
    use crate::wire::travel::members::{AGREED, CHANGES};
    use penstock_fabric::inlet::Inlet;
    use penstock_fabric::layout::page;
    use penstock_fabric::net::frames::Batch;
    use penstock_fabric::net::link::{Got, Link, Segment};
    use penstock_fabric::net::remote_shard::{Heard, Limits, Mirrored as _, Over, RemoteShard};
    use penstock_fabric::region::Mapping;
    use penstock_kernels::Settings;
    use penstock_kernels::codec::Codec;
    use penstock_kernels::compress::{Compressor, compress};
    use penstock_proto::compress::{Compress, Packed, Squeezed};
    use penstock_proto::encoding::{Encoding, Sent, Shadow, Source};
    use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
    use penstock_proto::job::job_number;
    use penstock_proto::submission::Submission;
    use std::collections::VecDeque;
    use std::io::{self, IoSliceMut};

    /// Notes where it decoded last, and gives the payload.
    #[derive(Debug)]
    struct Traced(std::sync::atomic::AtomicUsize);

    impl Codec for Traced {
        fn lengths(&self, bytes: usize) -> std::ops::RangeInclusive<usize> {
            bytes..=bytes
        }

        fn encode(&self, _: Foreign<'_>, _: Option<&[u8]>, _: &mut [u8]) -> Option<usize> {
            None
        }

        fn decode(&self, payload: &[u8], _: Base, chunk: &mut [u8]) -> Result<(), Undecodable> {
            self.0.store(chunk.as_ptr() as usize, Ordering::Relaxed);
            chunk.copy_from_slice(payload);
            Ok(())
        }
    }

    // A script may be looking at the value in place, and what comes whole on a new connection is what it sees: a decoder that filled
    // it with zeros first was seen.
    #[test]
    fn what_comes_whole_is_decoded_aside_and_a_difference_in_place() {
        let codec = Traced(0.into());
        let (mut mirrored, seen) = rig::tensor(Agreed::RAW);
        let place = mirrored.home.chunk(0).seen.as_ptr() as usize;
        for (version, base, in_place) in [(0, 0, false), (1, 7, true), (1, 0, false)] {
            let notice =
                Notice::Value { tensor: W, chunk: 0, version, steps: 0, publication: 9, base, content: 1 };
            let header = Header::bare(job_number(JOB), 1, Body::Notice(notice));
            let payload = vec![version as u8 + 1; CHUNK];
            let value = Value { header: &header, payload: &payload, codec: &codec };
            mirrored.publish(0, &value, Published { version, steps: 0 }).unwrap();
            assert_eq!(codec.0.load(Ordering::Relaxed) == place, in_place, "version {version}, base {base}");
            assert_eq!((seen.what().0, seen.what().1), (payload, version));
        }
    }

    /// A link in memory: brings what the shard says and keeps what it is told, so many bytes a call.
    struct Memory {
        most: usize,
        comes: VecDeque<u8>,
        went: Vec<u8>,
    }

    impl Link for Memory {
        fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
            let most = self.most.min(self.comes.len());
            let room = parts.iter_mut().flat_map(|part| part.iter_mut()).take(most);
            let came = room.map(|byte| *byte = self.comes.pop_front().unwrap()).count();
            Ok(if came == 0 { Got::Nothing } else { Got::Bytes(came) })
        }

        fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
            let bytes = Segment::copied(parts, self.most);
            self.went.extend_from_slice(&bytes);
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

    /// All in one read, and byte by byte.
    const PIECES: [usize; 3] = [usize::MAX, 100, 1];

    fn shard(agreed: Agreed) -> (RemoteShard<Mirrored, Inlet, Memory>, Seen) {
        let inlet = Inlet::new(Mapping::private(page::bytes(1)).unwrap(), 0);
        let (mut shard, (mirrored, seen)) =
            (RemoteShard::new(job_number(JOB), inlet, Limits::USUAL), rig::tensor(agreed));
        shard.declare(W, mirrored);
        (shard, seen)
    }

    fn link(most: usize, says: &[Vec<u8>]) -> Memory {
        Memory { most, comes: says.concat().into(), went: Vec::new() }
    }

    /// Everything that is heard until nothing more comes, but headers.
    fn heard(shard: &mut RemoteShard<Mirrored, Inlet, Memory>) -> Vec<Heard> {
        let mut all = Vec::new();
        while all.last() != Some(&Heard::Nothing) {
            shard.ready(true, true);
            all.push(shard.hear());
        }
        all.retain(|heard| *heard != Heard::Header);
        all.pop();
        all
    }

    /// Frames that were sent: submissions, and what they carried.
    fn went(shard: &RemoteShard<Mirrored, Inlet, Memory>) -> Vec<(Body, Vec<u8>)> {
        let mut rest = &shard.link().unwrap().went[..];
        let mut frames = Vec::new();
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let header = Header::decode(header).unwrap();
            let (payload, behind) = behind.split_at(header.length as usize);
            assert!(payload.is_empty() || header.check(payload).is_ok());
            frames.push((header.body, payload.to_vec()));
            rest = behind;
        }
        frames
    }

    // A breach was followed by a good value in the same read: that was published, though the job had failed.
    #[test]
    fn behind_a_breach_of_the_protocol_nothing_is_taken_however_it_comes() {
        for most in PIECES {
            for (bad, said) in breaches(CHANGES) {
                let (mut shard, seen) = shard(AGREED);
                shard.attach(link(most, &[good(3), bad, good_behind(4)]));
                let heard = heard(&mut shard);
                let [Heard::Frame, Heard::Over(Over::Broke(what))] = &heard[..] else {
                    panic!("{said}: {heard:?}")
                };
                assert!(what.contains(said), "{what}, not {said}");
                assert!(shard.link().is_none(), "{said}: the connection is given up");
                assert_eq!(seen.what(), only_good(3), "{said}");
                assert!(!shard.send().unwrap() && shard.hear() == Heard::Nothing);
            }
        }
    }

    #[test]
    fn an_encoding_that_was_not_agreed_to_is_a_breach_where_only_raw_was() {
        let (mut shard, seen) = shard(Agreed::default());
        let header = rig::value(W, 0, 4).with_encoded(CHANGES, 0, &[0; 8]).encode();
        shard.attach(link(usize::MAX, &[good(3), header.to_vec(), vec![0; 8], good_behind(4)]));
        let heard = heard(&mut shard);
        let [Heard::Frame, Heard::Over(Over::Broke(what))] = &heard[..] else { panic!("{heard:?}") };
        assert!(what.contains("expected an encoding that the tensor agreed to, got 9"), "{what}");
        assert_eq!(seen.what(), only_good(3));
    }

    #[test]
    fn a_value_that_is_compressed_comes_whole_and_one_that_does_not_decompress_is_a_breach() {
        for by in Compressor::ALL {
            let mut out = Vec::new();
            let length = compress(by, &[4; CHUNK], &mut out).unwrap();
            let frame = |says: usize, payload: &[u8]| {
                let packed = Some(Packed { by, length: says as u32 });
                let header = rig::value(W, 0, 4).with_payload(payload).with_packed(packed);
                [&header.encode()[..], payload].concat()
            };
            let good_packed = frame(CHUNK, &out[..length]);
            for most in PIECES {
                let (mut shard, seen) = shard(AGREED.compressed(Compress::Auto));
                shard.attach(link(most, &[good(3), good_packed.clone()]));
                assert_eq!(heard(&mut shard), [Heard::Frame, Heard::Frame]);
                assert_eq!(seen.what(), only_good(4));
                let (sent, received) = shard.squeezed();
                let after = (CHUNK + length) as u64;
                assert_eq!(sent, Squeezed::default());
                assert_eq!(received, Squeezed { chunks: 1, raw: 1, before: 2 * CHUNK as u64, after });
            }
            for (agreed, bad, said) in [
                (AGREED, &good_packed, "as the tensor agreed to, by none"),
                (
                    AGREED.compressed(Compress::Auto),
                    &frame(CHUNK + 1, &out[..length]),
                    "expected 4096 to 4096",
                ),
                (
                    AGREED.compressed(Compress::Auto),
                    &frame(CHUNK, &[9; 40]),
                    "once decompressed: expected 4096",
                ),
                (AGREED.compressed(Compress::Auto), &frame(CHUNK, &out[..length - 1]), "once decompressed"),
            ] {
                let (mut shard, seen) = shard(agreed);
                shard.attach(link(usize::MAX, &[good(3), bad.clone(), good_behind(5)]));
                let heard = heard(&mut shard);
                let [Heard::Frame, Heard::Over(Over::Broke(what))] = &heard[..] else {
                    panic!("{said}: {heard:?}")
                };
                assert!(what.contains(said), "{what}, not {said}");
                assert_eq!(seen.what(), only_good(3));
            }
        }
    }

    #[test]
    fn behind_damage_nothing_is_taken_until_there_is_another_connection() {
        for most in PIECES {
            for at in [0, 40, HEADER_BYTES, HEADER_BYTES + CHUNK - 1] {
                let (mut shard, seen) = shard(AGREED);
                let mut damaged = good(4);
                damaged[at] ^= 1;
                shard.attach(link(most, &[good(3), damaged, good_behind(5)]));
                let before = shard.sign();
                let heard_first = heard(&mut shard);
                assert!(
                    matches!(&heard_first[..], [Heard::Frame, Heard::Over(Over::Ended(_))]),
                    "{heard_first:?}"
                );
                assert!(shard.link().is_none() && shard.sign() > before);
                assert_eq!(seen.what(), only_good(3));
                shard.attach(link(most, &[good(4)]));
                assert_eq!(heard(&mut shard), [Heard::Frame]);
                assert_eq!(seen.what(), only_good(4));
            }
        }
    }

    #[test]
    fn what_was_submitted_goes_out_in_order_with_the_lane_and_again_on_the_next_connection() {
        let settings = Settings([0.0; 5]);
        let push = Submission::Push { tensor: W, first: 0, count: 2, stamp: 0, settings };
        let clock = Submission::Clock { clock: 1 };
        // Of a push goes what the shard is home of.
        let pushed = Submission::Push { tensor: W, first: 0, count: 1, stamp: 0, settings };
        let body = |submission| Body::Submission { submission, wanted: false };
        let taken = || rig::notice(Notice::Taken).encode().to_vec();
        for most in PIECES {
            let (mut shard, _) = shard(AGREED);
            shard.attach(link(most, &[]));
            [push, clock].into_iter().for_each(|submission| shard.submit(submission));
            assert!(heard(&mut shard).is_empty() && !shard.send().unwrap(), "the shard speaks first");
            for _ in 0..2 {
                shard.attach(link(most, &[taken()]));
                assert_eq!(heard(&mut shard), [Heard::Frame]);
                while shard.has_work() && shard.send().unwrap() {
                    shard.ready(false, true);
                }
                // A lane of zeros travels as no change.
                assert_eq!(went(&shard), [(body(pushed), vec![]), (body(clock), vec![])]);
                assert_eq!((shard.progress(), shard.is_delivered()), ((0, 2), false));
            }
            let counts = Header { sequence: 2, ..rig::notice(Notice::Taken) }.encode();
            shard.attach(link(most, &[counts.to_vec()]));
            assert_eq!(heard(&mut shard), [Heard::Frame]);
            assert_eq!((shard.progress(), shard.is_delivered()), ((2, 2), true));
        }
    }

    #[test]
    fn a_difference_is_received_beside_the_mirror_and_decoded_onto_what_stands_there() {
        let before = vec![3; CHUNK];
        let now = [vec![3; CHUNK - 16], vec![8; 16]].concat();
        let (mut buffer, shadow) = (Vec::new(), Some(Shadow { publication: 6, bytes: &before }));
        let mut batch = Batch::new(&mut buffer);
        let sent = Sent { source: Source::Stands(&now), shadow, position: 6 };
        batch.push_chunk(rig::value(W, 0, 4), &AGREED, &sent);
        let frames: Vec<u8> = batch
            .frames()
            .iter()
            .flat_map(|(header, payload)| [&header[..], &Segment::copied(&[*payload], CHUNK)].concat())
            .collect();
        assert_eq!(frames.len(), HEADER_BYTES + 32, "what has changed travels");
        for most in PIECES {
            let (mut shard, seen) = shard(AGREED);
            shard.attach(link(most, &[good(3), frames.clone()]));
            assert_eq!(heard(&mut shard), [Heard::Frame, Heard::Frame]);
            assert_eq!(seen.what(), (now.clone(), 4, 5, 0, 0));
        }
    }

    /// E-2.
    #[test]
    fn a_payload_that_is_refused_is_never_seen_by_a_reader() {
        // Through the caches, and past them.
        for mirrored_here in [0, 1 << 40] {
            let (mut mirrored, seen) = rig::tensor(AGREED);
            mirrored.share = Share::of(Box::leak(Box::new(bypass::Mirrored::beside(1 << 30))), mirrored_here);
            let publish = |mirrored: &mut Mirrored, encoding: Encoding, payload: &[u8], version| {
                let codec = AGREED.expect(encoding, (payload.len(), None), CHUNK).unwrap();
                let base = if encoding == CHANGES { 2 } else { 0 };
                let header = &rig::value(W, 0, version).with_encoded(encoding, base, payload);
                mirrored.publish(0, &Value { header, payload, codec }, Published { version, steps: version })
            };
            publish(&mut mirrored, Encoding::RAW, &[7; CHUNK], 1).unwrap();
            for payload in [&[1; 7][..], &[0xff; 8], &[1; 16]] {
                assert!(publish(&mut mirrored, CHANGES, payload, 2).is_err());
                assert_eq!(mirrored.home.seen(0), [7; CHUNK]);
                // Readers may go in, and see what they saw.
                assert_eq!(mirrored.home.sequence(0) % 2, 0);
                assert_eq!(seen.what(), (vec![7; CHUNK], 1, 0, 0, 0));
            }
            publish(&mut mirrored, Encoding::RAW, &[8; CHUNK], 2).unwrap();
            assert_eq!(seen.what(), (vec![8; CHUNK], 2, 0, 0, 0));
        }
        let next = rig::value(W, 0, 6);
        for (header, payload, said) in [
            (
                next.with_encoded(CHANGES, 4, &[0; CHUNK]),
                &[0; CHUNK][..],
                "expected 0 to 4095 bytes of a chunk of 4096, got 4096",
            ),
            (
                next.with_encoded(Encoding(8), 4, &[0; 8]),
                &[0; 8],
                "expected an encoding that the tensor agreed to, got 8",
            ),
        ] {
            let (mut shard, seen) = shard(AGREED);
            shard.attach(link(usize::MAX, &[good(3), header.encode().to_vec(), payload.to_vec()]));
            let heard = heard(&mut shard);
            let [Heard::Frame, Heard::Over(Over::Broke(what))] = &heard[..] else {
                panic!("{said}: {heard:?}")
            };
            assert!(what.contains(said), "{what}");
            assert_eq!(seen.what(), only_good(3), "{said}");
        }
    }
}
