//! What is fuzzed: everything that takes bytes from a network. Each function is one target; it asserts what must hold of any
//! bytes, not only that nothing panics. The same bodies run under libFuzzer (`fuzz_targets`) and on stable (`replay`).

pub mod seeds;

use penstock_fabric::items::partition::{Layout, Waiters, Writer};
use penstock_fabric::items::partition_memory::PartitionMemory;
use penstock_fabric::net::endpoint::Endpoint;
use penstock_fabric::net::frames::{FrameReader, Places, Step};
use penstock_fabric::net::link::{Got, Link, Segment};
use penstock_join::exchange::Verdict;
use penstock_join::tcp::RendezvousAddress;
use penstock_join::tcp::caller::{Caller, Expected};
use penstock_join::tcp::proof::{Claim, Conversation, MAGIC, Side};
use penstock_kernels::codec::{self, Base, Codec};
use penstock_kernels::compress::{self as compressors, Compressor};
use penstock_kernels::{Dtype, Factors, Foreign, Rule, SumRoom, apply, product};
use penstock_proto::compress::{Compress, Packed};
use penstock_proto::consistency::Consistency;
use penstock_proto::encoding::{Agreed, Encoding};
use penstock_proto::factors::down::{Named, Shown};
use penstock_proto::factors::{Held, LowRank, PIECE, ROWS};
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::handshake::{Purpose, ServerHandshake, WorkerHandshake};
use penstock_proto::items::RowSet;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::wire::{Encoder, Entries, MAX_MESSAGE_BYTES, Message, PartitionId, Shape};
use penstock_proto::message::{Reply, Request, Secret, decode, encode};
use penstock_proto::outbox::{Inbox, Outbox};
use penstock_proto::peer::{PeerId, Role};
use penstock_proto::propagation::Propagation;
use penstock_proto::record::{self, LENGTH_BYTES, Records};
use penstock_proto::remote::judge;
use penstock_proto::remote::mirror::{Effect, Mirror};
use penstock_proto::seal::{MOST_LEAVES, Scope, Sealer, Verifier};
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::submission::{Submission, WORDS};
use penstock_proto::travel::{Registry, Travel};
use penstock_proto::update::{self, Updates};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::sync::LazyLock;

/// A target: its name and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 18] = [
    ("frame", frame),
    ("stream", stream),
    ("reader", reader),
    ("outbox", outbox),
    ("handshake_server", handshake_server),
    ("handshake_worker", handshake_worker),
    ("rendezvous", rendezvous),
    ("records", records),
    ("messages", messages),
    ("submission", submission),
    ("endpoint", endpoint),
    ("items", items),
    ("codec", codec),
    ("compress", compress),
    ("factors", factors),
    ("factors_down", factors_down),
    ("update", update),
    ("seal", seal),
];

const SECRET: Secret = Secret([7; 32]);

fn words(data: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(data.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

/// A header that decodes says, encoded again, the same; and what comes with it is the chunk, or leaves the chunk as it was. The
/// fuzzer cannot guess a checksum, so it is put right half the time.
pub fn frame(data: &[u8]) {
    let Some((mut header, rest)) = data.split_first_chunk::<HEADER_BYTES>().map(|(head, rest)| (*head, rest))
    else {
        return;
    };
    if rest.first().is_some_and(|byte| byte % 2 == 0)
        && let Ok(submission) = Submission::decode(words(&header))
    {
        let wanted = header[70] % 2 == 0;
        header = Header::bare(3, 9, Body::Submission { submission, wanted }).with_payload(rest).encode();
    }
    if let Ok(read) = Header::decode(&header) {
        let again = read.encode();
        let twice = Header::decode(&again).expect("what was encoded decodes");
        assert_eq!(twice.encode(), again);
        let _ = read.check(rest);
        let mut chunk = vec![0xee; rest.len().next_multiple_of(8)];
        if let Ok(codec) = Agreed::default().expect(read.encoding, (rest.len(), read.packed), chunk.len()) {
            assert_eq!(codec.decode(rest, read.base(), &mut chunk), Ok(()), "its length was judged");
            assert_eq!(chunk, rest);
        } else {
            let refused = codec::Raw.decode(rest, read.base(), &mut chunk).is_err();
            assert!(!refused || chunk.iter().all(|&byte| byte == 0xee));
        }
    }
}

/// Foreign bytes decompress to exactly the room that there is, or not at all, and write nothing behind it; what was compressed comes
/// back; and a frame that says what the bytes decompress to is let in for a chunk of that length alone. The first two bytes say by
/// what, and how much room there is.
pub fn compress(data: &[u8]) {
    let [how, length, rest @ ..] = data else { return };
    let by = Compressor::ALL[usize::from(*how & 1)];
    let bytes = 16 * (1 + usize::from(*length)) * if how & 2 == 0 { 1 } else { 65 };
    let mut room = vec![0xee; bytes + 64];
    let unpacked = compressors::decompress(by, rest, &mut room[..bytes]);
    assert!(room[bytes..].iter().all(|&byte| byte == 0xee), "nothing is written behind its room");
    if unpacked.is_ok() {
        let mut shorter = vec![0; bytes - 1];
        assert!(compressors::decompress(by, rest, &mut shorter).is_err(), "it has one length");
    }
    let (mut out, mut back) = (Vec::new(), vec![0; rest.len()]);
    if let Some(length) = compressors::compress(by, rest, &mut out) {
        assert!(length < rest.len());
        assert_eq!(compressors::decompress(by, &out[..length], &mut back), Ok(()));
        assert_eq!(back, rest);
    }
    let agreed = Agreed::default().compressed(Compress::By(by));
    let packed = Packed { by, length: bytes as u32 };
    for chunk in [bytes, bytes + 1] {
        let taken = agreed.expect(Encoding::RAW, (rest.len(), Some(packed)), chunk);
        assert_eq!(taken.is_ok(), chunk == bytes);
        assert!(Agreed::default().expect(Encoding::RAW, (rest.len(), Some(packed)), chunk).is_err());
    }
}

/// What a codec decodes is the one payload of a chunk, and what it refuses changes nothing; a chunk comes back as it was. The
/// first three bytes say which codec, what is held before, and how long the chunk is; the rest is a payload first, then a chunk.
pub fn codec(data: &[u8]) {
    let [which, how, length, rest @ ..] = data else { return };
    let codec::Entry { number, codec, .. } = codec::ALL[usize::from(*which) % codec::ALL.len()];
    let base = if how & 1 == 0 { Base::Held } else { Base::Zeros };
    let bytes = 8 * (1 + usize::from(*length)) * if how & 2 == 0 { 1 } else { 33 };
    let held: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
    let onto = (base == Base::Held).then_some(&held[..]);
    let mut out = vec![0; *codec.lengths(bytes).end()];
    let mut chunk = held.clone();
    match codec.decode(rest, base, &mut chunk) {
        Err(_) => assert_eq!(chunk, held, "what is refused changes nothing"),
        Ok(()) => {
            let again = codec.encode(Foreign::of(&chunk), onto, &mut out);
            // Numbers swallow moves that are far smaller than they are: then it is another payload of the same chunk.
            let is_stepped = number >= codec::Steps::FIRST;
            let same = |payload: &[u8]| {
                let mut chunk = held.clone();
                codec.decode(payload, base, &mut chunk).map(|()| chunk)
            };
            // A codec of differences looks at a few blocks first, and may have enough of them.
            let one = again.map_or(codec.uses_base(), |length| {
                out[..length] == *rest || is_stepped && same(&out[..length]) == Ok(chunk.clone())
            });
            assert!(one, "there is one payload for a chunk");
        }
    }
    let mut value = if onto.is_some() { held.clone() } else { vec![0; bytes] };
    value.iter_mut().zip(rest).for_each(|(value, byte)| *value ^= byte);
    if let Some(length) = codec.encode(Foreign::of(&value), onto, &mut out) {
        let mut chunk = held.clone();
        assert_eq!(codec.decode(&out[..length], base, &mut chunk), Ok(()));
        assert_eq!(chunk, value);
    }
}

/// Pieces of right factors, and rows of left ones, of any rank and length: rows are taken only behind a right factor whose every
/// piece came in order, and are multiplied without leaving it. Each four bytes are a rank, where a piece begins, its length, and
/// whether it is rows, of a chunk at that place.
pub fn factors(data: &[u8]) {
    let Some(([columns, most], rest)) = data.split_first_chunk::<2>() else { return };
    let (columns, most) = (64 * (1 + u64::from(*columns)), u32::from(*most % 9));
    let low_rank = LowRank { dtype: Dtype::F32, columns, most };
    let mut held = Held::default();
    let (mut rank, mut whole) = (0, Vec::new());
    for four in rest.chunks_exact(4) {
        let [of, at, length, rows] = [four[0], four[1], four[2], four[3]].map(usize::from);
        if rows % 2 == 0 {
            let (at, length) = (at * 1024, 256 * length);
            let Ok(piece) = held.expect(&low_rank, of as u32, at as u64, length) else { continue };
            assert!((1..=most).contains(&(of as u32)) && piece == (at..at + length) && length <= PIECE);
            if at == 0 {
                (rank, whole) = (of, Vec::new());
            }
            assert_eq!((rank, whole.len()), (of, at), "pieces come in order");
            held.receive(&low_rank, rank as u32, piece.clone()).fill(of as u8);
            whole.resize(piece.end, of as u8);
            held.came(piece);
            continue;
        }
        let chunk = 256 * at as u64..256 * (at as u64 + 1 + length as u64);
        let lines = low_rank.rows(chunk.clone());
        let bytes = (lines.end - lines.start) as usize * low_rank.left(of as u32);
        let Ok(taken) = held.expect_rows(&low_rank, chunk.clone(), bytes) else { continue };
        assert_eq!((taken as usize, held.whole()), (rank, &whole[..]), "nothing is missing");
        assert_eq!(whole.len(), low_rank.right(taken));
        assert!(bytes as u64 <= (chunk.end - chunk.start) / 2 + 2 * low_rank.left(taken) as u64);
        let (u, mut out) = (vec![rows as u8; bytes], vec![0; (chunk.end - chunk.start) as usize]);
        let sizes = Factors { u: &u, v: held.whole(), columns: columns as usize, rank };
        product(Dtype::F32, sizes, low_rank.column(chunk.start), &mut out);
    }
}

/// Pieces of right factors, and updates that name some, as a home may send them: an update is of factors that came whole, as they came,
/// and is multiplied without leaving them. Each frame is six bytes (its kind, a worker, a turn, a rank, where a piece or the chunk begins,
/// and a length), and the bytes of the update.
pub fn factors_down(data: &[u8]) {
    let Some((&[columns, most], mut rest)) = data.split_first_chunk::<2>() else { return };
    let (columns, most) = (64 * (1 + u64::from(columns)), u32::from(most % 9));
    let low_rank = LowRank { dtype: Dtype::F32, columns, most };
    let (mut shown, mut came) = (Shown::default(), BTreeMap::<u32, (u64, u32, Vec<u8>)>::new());
    while let Some((&[kind, writer, turn, rank, at, length], behind)) = rest.split_first_chunk::<6>() {
        rest = behind;
        match kind % 8 {
            0 => {
                shown.connect();
                came.clear();
            }
            1..4 => {
                let name = Named { writer: writer.into(), turn: turn.into() };
                let (rank, at, piece) =
                    (rank.into(), 1024 * usize::from(at), vec![kind; 256 * usize::from(length)]);
                if shown.come(&low_rank, name, rank, at as u64, &piece).is_err() {
                    continue;
                }
                assert!((1..=most).contains(&rank) && piece.len() <= PIECE);
                if at == 0 {
                    came.insert(name.writer, (name.turn, rank, Vec::new()));
                }
                let (its_turn, its_rank, bytes) = came.get_mut(&name.writer).expect("its first piece came");
                assert_eq!(
                    (*its_turn, *its_rank, bytes.len()),
                    (name.turn, rank, at),
                    "pieces come in order"
                );
                bytes.extend_from_slice(&piece);
            }
            _ => {
                let (sum, behind) = rest.split_at(rest.len().min(usize::from(length)));
                rest = behind;
                let start = 256 * u64::from(at);
                let chunk = start..start + 256 * (1 + u64::from(writer % 8));
                let Ok(products) = shown.products(&low_rank, chunk.clone(), sum) else { continue };
                let lines = low_rank.rows(chunk.clone());
                let mut out = vec![0; (chunk.end - chunk.start) as usize];
                assert!(!products.all.is_empty());
                for (rank, u, v) in products.all {
                    assert_eq!(u.len(), (lines.end - lines.start) as usize * low_rank.left(rank));
                    assert_eq!(v.len(), low_rank.right(rank), "it is whole");
                    assert!(
                        came.values().any(|(turn, of, whole)| *turn > 0 && (*of, &whole[..]) == (rank, v))
                    );
                    let sizes = Factors { u, v, columns: columns as usize, rank: rank as usize };
                    product(Dtype::F32, sizes, products.column, &mut out);
                }
            }
        }
    }
}

/// Bytes of the chunk that `update` folds updates into.
pub const UPDATED: usize = 64;

/// How updates of it travel: under a rule that keeps one array.
pub fn updates() -> Updates {
    let spec = TensorSpec {
        name: "w".to_owned(),
        shape: vec![UPDATED as u64 / 4],
        dtype: Dtype::F32,
        rule: Rule::Sgd { momentum: true, nesterov: false, maximize: false },
        consistency: Consistency::Bsp,
        propagation: Propagation::Update,
        reduce: Reduce::Sum,
        rescale: 1.0,
        clip: None,
        refuse_nonfinite: false,
        travel: Travel::default(),
    };
    let terms = spec.check(&Registry::ALL).expect("such a tensor may be declared");
    terms.updates.expect("it is declared so")
}

/// Updates, and values and states whole, as a home may send them: an update is folded only if it is of what is held, and has the
/// numbers and the sum of a step; what is refused changes nothing. Each frame is six bytes (its kind and encoding, publication, base
/// or content, version, steps, and the length of the payload), and the payload.
pub fn update(data: &[u8]) {
    static UPDATES: LazyLock<Updates> = LazyLock::new(updates);
    let Updates { agreed, plan } = &*UPDATES;
    let mut mirror = Mirror::default();
    mirror.declare(1, vec![0], UPDATED as u64, true);
    mirror.connect();
    let (mut value, mut state, mut sum) = (SumRoom::default(), SumRoom::default(), SumRoom::default());
    let (value, state) = (value.of(UPDATED), state.of(UPDATED));
    let (mut held, mut rest) = (None, data);
    while let Some((&[kind, publication, base, version, steps, length], behind)) =
        rest.split_first_chunk::<6>()
    {
        let (payload, behind) = behind.split_at(behind.len().min(usize::from(length)));
        rest = behind;
        let [publication, base, version, steps] = [publication, base, version, steps].map(u64::from);
        let notice = if kind % 2 == 0 {
            Notice::Update { tensor: 1, chunk: 0, version, steps, publication, base }
        } else {
            Notice::Whole { tensor: 1, chunk: 0, version, steps, publication, content: base }
        };
        let header = Header::bare(3, 0, Body::Notice(notice)).with_encoded(Encoding(kind >> 1), 0, payload);
        let bytes = |notice: &Notice| match notice {
            Notice::Update { .. } => Some((*agreed, UPDATED)),
            _ => Some((*agreed, 2 * UPDATED)),
        };
        // Of factors is `factors_down`.
        let Some(codec) = judge::notice(&header, 3, bytes).ok().filter(|_| header.encoding != ROWS) else {
            continue;
        };
        let before = (value.to_vec(), state.to_vec());
        // Behind a breach the connection is given up.
        match mirror.hear(0, &notice, |_| 0) {
            Ok(Effect::Update { steps, .. }) => {
                assert!(held == Some(base) && publication > base && steps > 0);
                let (step, settings, encoded) = update::split(payload).expect("its length was judged");
                let sum = sum.of(UPDATED);
                let is_step = step < steps && settings.check(plan.rule).is_ok();
                if !is_step || codec.decode(encoded, Base::Zeros, sum).is_err() {
                    assert_eq!((value.to_vec(), state.to_vec()), before);
                    return;
                }
                apply(plan, &settings, step, Foreign::of(sum), value, state);
                held = Some(publication);
            }
            Ok(Effect::Whole { .. }) => {
                let mut both = vec![0; 2 * UPDATED];
                if codec.decode(payload, Base::Zeros, &mut both).is_err() {
                    return;
                }
                value.copy_from_slice(&both[..UPDATED]);
                state.copy_from_slice(&both[UPDATED..]);
                // Publications are numbered from 1 on: the number 0 holds no place on a connection.
                held = (publication > 0).then_some(base);
            }
            Ok(other) => unreachable!("{other:?} of {notice:?}"),
            Err(_) => return,
        }
    }
}

/// Whose frames `seal` knows.
const SCOPE: Scope = Scope { job: 3, server: 0, shard: 1 };

/// A frame that its home has sealed.
pub struct Sealed {
    /// Its header.
    pub header: Header,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Its proof.
    pub proof: Vec<u8>,
}

/// A batch of so many, none of whose frames another has, and who has verified all of them.
pub fn sealed(count: usize) -> (Vec<Sealed>, Verifier) {
    let sealer = Sealer::new(&SECRET.0, SCOPE);
    let version = count as u64;
    let frame = |chunk: u32| {
        let payload = vec![chunk as u8; chunk as usize % 3 * 20];
        let notice = if payload.is_empty() {
            Notice::Raised { tensor: 1, chunk, count: 3, version, steps: 5, contents: [6, 1, 2, 3] }
        } else {
            Notice::Value { tensor: 1, chunk, version, steps: 4, publication: 6, base: 5, content: 6 }
        };
        let header = Header::bare(SCOPE.job, 9, Body::Notice(notice)).with_payload(&payload);
        Sealed { header, payload, proof: Vec::new() }
    };
    let mut frames: Vec<Sealed> = (0..count as u32).map(frame).collect();
    let leaves: Vec<_> = frames.iter().map(|it| sealer.leaf(&it.header, &it.payload)).collect();
    sealer.seal(&leaves, |place, proof| frames[place].proof = proof.to_vec());
    let mut verifier = Verifier::new(&sealer.key(), SCOPE).expect("it is a sealer's");
    for it in &frames {
        assert_eq!(verifier.check(&it.proof, &it.header, &it.payload), Ok(()));
    }
    (frames, verifier)
}

/// What a relay may bring in place of a sealed frame and its proof: it is taken only if nothing of it that is sealed was changed. The
/// first byte says how many frames the batch has, and whether what follows the second, which says which frame, is the proof itself,
/// or bits to flip in proof, header and payload. The fuzzer cannot guess the header's checksum, so it is put right.
pub fn seal(data: &[u8]) {
    type Batch = (Vec<Sealed>, Verifier);
    static BATCHES: LazyLock<Vec<Batch>> = LazyLock::new(|| (1..=MOST_LEAVES).map(sealed).collect());
    let [how, which, rest @ ..] = data else { return };
    let (frames, known) = &BATCHES[usize::from(how % 16)];
    let Sealed { header, payload, proof } = &frames[usize::from(*which) % frames.len()];
    let (brought, other, bytes) = if how & 16 == 0 {
        (rest.to_vec(), *header, payload.clone())
    } else {
        let mut all = [&proof[..], &header.encode(), payload].concat();
        all.iter_mut().zip(rest).for_each(|(byte, bits)| *byte ^= bits);
        let (proof, rest) = all.split_at(proof.len());
        let (head, payload) = rest.split_first_chunk::<HEADER_BYTES>().expect("it is there");
        let mut head = *head;
        let sum = penstock_proto::checksum::of(&head[..HEADER_BYTES - 8]);
        head[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        let Ok(header) = Header::decode(&head) else { return };
        (proof.to_vec(), header, payload.to_vec())
    };
    let what = |header: &Header| (header.body, header.encoding, header.length);
    let same = what(&other) == what(header) && brought == *proof && bytes == *payload;
    let taken = known.clone().check(&brought, &other, &bytes);
    assert_eq!(taken.is_ok(), same, "{taken:?}");
    // Whether its signature is known already makes no difference.
    let mut fresh = Verifier::new(&Sealer::new(&SECRET.0, SCOPE).key(), SCOPE).expect("it is a sealer's");
    assert_eq!(fresh.check(&brought, &other, &bytes), taken);
}

/// A stream of frames into an inbox: it takes consecutive numbers only.
pub fn stream(data: &[u8]) {
    let mut inbox = Inbox::default();
    for chunk in data.chunks(HEADER_BYTES) {
        let Ok(bytes) = <&[u8; HEADER_BYTES]>::try_from(chunk) else { return };
        let Ok(header) = Header::decode(bytes) else { return };
        let before = inbox.count();
        if inbox.expect(header.sequence).is_err() {
            return;
        }
        assert_eq!(header.sequence, before + 1);
        inbox.take();
    }
}

/// A link that brings what a peer sent, in pieces of two sizes in turn, and then nothing.
struct Pieces<'a> {
    rest: &'a [u8],
    sizes: [usize; 2],
    short_is_all: bool,
}

impl Link for Pieces<'_> {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        self.sizes.swap(0, 1);
        let mut piece = &self.rest[..self.sizes[0].min(self.rest.len())];
        let mut come = 0;
        for part in parts {
            let (now, later) = piece.split_at(part.len().min(piece.len()));
            part[..now.len()].copy_from_slice(now);
            come += now.len();
            piece = later;
        }
        self.rest = &self.rest[come..];
        Ok(if come == 0 { Got::Nothing } else { Got::Bytes(come) })
    }

    fn short_is_all(&self) -> bool {
        self.short_is_all
    }

    fn write(&mut self, _: &[Segment<'_>]) -> io::Result<usize> {
        Ok(0)
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

/// Payloads of up to 64 KiB; every other one has a place.
struct EveryOther;

impl Places for EveryOther {
    type Place = Option<Vec<u8>>;

    fn place(&mut self, header: &Header) -> Result<Self::Place, String> {
        if header.length > 1 << 16 {
            return Err("too long".to_owned());
        }
        Ok(header.sequence.is_multiple_of(2).then(|| vec![0; header.length as usize]))
    }

    fn memory<'a>(&'a mut self, place: &'a mut Self::Place) -> Option<&'a mut [u8]> {
        place.as_deref_mut()
    }
}

/// All frames that come, and how it ends.
fn read_all(
    mut link: Pieces<'_>,
    mut reader: FrameReader<Option<Vec<u8>>>,
) -> (Vec<(Header, Vec<u8>)>, String) {
    let mut frames = Vec::new();
    loop {
        match reader.next(&mut link, &mut EveryOther) {
            Step::Header => {}
            Step::Frame(header, place) => {
                let payload = place.unwrap_or_else(|| reader.payload().to_vec());
                assert_eq!(payload.len(), header.length as usize);
                assert!(
                    payload.is_empty() || header.check(&payload).is_ok(),
                    "only what was verified is given out"
                );
                frames.push((header, payload));
            }
            Step::Nothing if !link.rest.is_empty() => reader.look_again(),
            Step::Nothing => return (frames, "nothing".to_owned()),
            Step::Ended(how) | Step::Broke(how) => return (frames, how),
        }
    }
}

/// The reader of frames: the same ones come out, and the same end, however the bytes are cut and however much is read ahead. The
/// fuzzer cannot guess a checksum, so a header that begins with an even byte is one of ours, with as much payload as is left.
pub fn reader(data: &[u8]) {
    let Some(([first, second, how], rest)) = data.split_first_chunk::<3>() else { return };
    let mut bytes = Vec::new();
    for (number, part) in (1..).zip(rest.chunks(1 + usize::from(*first))) {
        if part[0] % 2 == 0 {
            let body = Body::Submission { submission: Submission::Clock { clock: number }, wanted: false };
            bytes.extend_from_slice(&Header::bare(3, number, body).with_payload(part).encode());
        }
        bytes.extend_from_slice(part);
    }
    let whole = Pieces { rest: &bytes, sizes: [bytes.len(); 2], short_is_all: false };
    let sizes = [1 + usize::from(*second), 1 + usize::from(*first) * 7];
    let pieces = Pieces { rest: &bytes, sizes, short_is_all: how % 2 == 1 };
    let kept = usize::from(how / 2) * 64;
    let expected = read_all(whole, FrameReader::new());
    assert_eq!(read_all(pieces, FrameReader::reading_ahead(kept)), expected);
}

/// A worker's outbox against whatever a shard says it has taken: what is due is never a frame that was taken, and numbers rise.
pub fn outbox(data: &[u8]) {
    let mut outbox = Outbox::default();
    let (mut taken, mut sent, mut submitted) = (0u64, 0u64, 0u64);
    for pair in data.chunks_exact(2) {
        let number = u64::from(pair[1]);
        match pair[0] % 4 {
            0 => {
                outbox.submit(Submission::Clock { clock: number }, 1 + pair[1] as u32 % 5);
                submitted += 1 + number % 5;
            }
            1 => {
                if let Some(due) = outbox.due() {
                    assert!(due.sequence > taken && due.sequence <= submitted);
                    outbox.sent();
                    sent = sent.max(due.sequence);
                }
            }
            what => {
                let said = if pair[1] % 2 == 0 { taken + number / 2 } else { number };
                let result = if what == 2 { outbox.taken(said) } else { outbox.resume(said) };
                if result.is_ok() {
                    assert!(said >= taken && said <= sent, "{said} of {taken} to {sent}");
                    taken = said;
                }
            }
        }
        assert_eq!(outbox.is_empty(), taken == submitted);
    }
}

/// The server's end: no peer gets in without the secret.
pub fn handshake_server(data: &[u8]) {
    let (hello, proof) = data.split_at(data.len() / 2);
    if let Ok(mut server) = ServerHandshake::start(hello) {
        server.challenge(SECRET, [1; 32], [0; 32]);
        assert!(server.finish(proof).is_err());
    }
    let (_, hello) = WorkerHandshake::start("job", SECRET, Purpose::Control, [2; 32]).expect("it is short");
    let mut server = ServerHandshake::start(&hello).expect("it is ours");
    assert!(server.finish(data).is_err(), "before the challenge");
    server.challenge(SECRET, [1; 32], [0; 32]);
    assert!(server.finish(data).is_err());
}

/// The worker's end: no server is believed without the secret.
pub fn handshake_worker(data: &[u8]) {
    let (worker, _) = WorkerHandshake::start("job", SECRET, Purpose::Control, [2; 32]).expect("it is short");
    assert!(worker.answer(data, &[0; 32]).is_err());
    let _ = WorkerHandshake::finish(data);
}

/// Rank 0 of a rendezvous: no peer gets in without the secret, and none speaks for a process that is in, however the bytes are
/// cut. And what all are told, and where they meet: what reads is spelled the same.
pub fn rendezvous(data: &[u8]) {
    let expected = Expected { size: 3, secret: SECRET, job: "job".to_owned() };
    for step in [1, 7, data.len().max(1)] {
        let mut stranger = Caller::new([1; 32]);
        for piece in data.chunks(step) {
            let Ok(()) = stranger.receive(piece) else { break };
            match stranger.shake_hands(&expected, |rank| rank == 2) {
                Ok(rank) => assert_eq!(rank, None),
                Err(_) => break,
            }
            assert!(stranger.message().is_err());
        }

        let claim = Claim { rank: 1, size: 3 };
        let talk = Conversation::new(Side::Worker, &SECRET, "job", [[2; 32], [1; 32]]);
        let hello = [&MAGIC[..], &[2; 32], &claim.spell(), &talk.proof(claim)].concat();
        let mut member = Caller::new([1; 32]);
        member.receive(&hello).expect("it is short");
        assert_eq!(member.shake_hands(&expected, |_| false), Ok(Some(1)));
        for piece in data.chunks(step) {
            let Ok(()) = member.receive(piece) else { break };
            match member.message() {
                Ok(message) => assert_eq!(message, None),
                Err(_) => break,
            }
        }
    }
    for size in [2, 3] {
        match Verdict::read(data, size) {
            // Seconds as a decimal fraction may lose their last bit.
            Ok(Verdict::Late { .. }) | Err(_) => {}
            Ok(verdict) => assert_eq!(Verdict::read(&verdict.spell(), size), Ok(verdict)),
        }
    }
    if let Some(place) =
        std::str::from_utf8(data).ok().and_then(|text| text.parse::<RendezvousAddress>().ok())
    {
        assert_eq!(place.to_string().parse(), Ok(place));
    }
}

/// Records: however the stream is cut, the same ones come out, and none is longer than the limit.
pub fn records(data: &[u8]) {
    let read = |step: usize| {
        let (mut records, mut out) = (Records::new(64), Vec::new());
        for piece in data.chunks(step) {
            records.feed(piece);
            loop {
                match records.take() {
                    Ok(Some(record)) => {
                        assert!(record.len() <= 64);
                        out.push(record.to_vec());
                    }
                    Ok(None) => break,
                    Err(_) => return out,
                }
            }
        }
        out
    };
    assert_eq!(read(1), read(7));
    assert_eq!(read(1), read(data.len().max(1)));
}

/// Control messages: what decodes encodes to something that decodes to the same.
pub fn messages(data: &[u8]) {
    if let Ok(request) = decode::<Request>(data)
        && let Ok(bytes) = encode(&request)
    {
        // NaN is not equal to itself: compare what is written.
        let again = decode::<Request>(&bytes).expect("what was encoded decodes");
        assert_eq!(encode(&again).ok(), Some(bytes));
    }
    if let Ok(reply) = decode::<Reply>(data)
        && let Ok(bytes) = encode(&reply)
    {
        let again = decode::<Reply>(&bytes).expect("what was encoded decodes");
        assert_eq!(encode(&again).ok(), Some(bytes));
    }
}

/// Submissions: what decodes encodes to itself.
pub fn submission(data: &[u8]) {
    if let Ok(submission) = Submission::decode(words(data)) {
        let again = Submission::decode(submission.encode()).expect("what was encoded decodes");
        assert_eq!(again.encode(), submission.encode());
    }
}

/// Endpoints: what reads back is what was written.
pub fn endpoint(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(endpoint) = text.parse::<Endpoint>()
    {
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }
}

/// What a home of items does for hostile peers.
struct Little;

impl Host for Little {
    type Memory = PartitionMemory;

    fn make(&mut self, _: PartitionId, shape: &Shape) -> Option<PartitionMemory> {
        if u64::from(shape.slots) * u64::from(shape.row_bytes) > 1 << 16 {
            return None;
        }
        let writer = Writer::private(Layout::new(shape.slots, shape.row_bytes)).ok()?;
        Some(PartitionMemory::mirror(writer, Waiters::private().ok()?))
    }

    fn answered(&mut self, _: u64) {}

    fn flushed(&mut self, _: u64) {}
}

/// Two workers, and one that is not a worker.
fn fuzzed_peer(number: u8) -> PeerId {
    let role = if number == 2 { Role::Follower } else { Role::Worker };
    PeerId::first(role, number.into())
}

/// Messages about items: what decodes encodes to itself, and a home that is told anything at all by its peers goes on, says
/// only what can be read, and keeps rows readable. Each message of the input is a peer, a length, and so many bytes without
/// their checksum.
pub fn items(data: &[u8]) {
    let _ = RowSet::decode(data);
    let mut node = Node::new(Little);
    (0..3).for_each(|number| node.connected(fuzzed_peer(number)));
    let mut rest = data;
    while let Some(([peer, length], tail)) = rest.split_first_chunk::<2>() {
        let (body, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        let peer = fuzzed_peer(peer % 3);
        let mut record = penstock_proto::checksum::of(body).to_le_bytes().to_vec();
        record.extend_from_slice(body);
        if let Ok(message) = Message::decode(&record) {
            let mut again = Vec::new();
            Encoder::message(&mut again, &message);
            assert_eq!(Message::decode(&again[LENGTH_BYTES..]).expect("what was encoded decodes"), message);
        }
        if node.receive(peer, &record).is_err() {
            node.lost(peer);
            node.connected(peer);
        }
        for peer in (0..3).map(fuzzed_peer) {
            let mut out = Vec::new();
            node.transmit(peer, &mut out, 1 << 16);
            let mut sent = &out[..];
            while let Some((head, tail)) = sent.split_first_chunk::<LENGTH_BYTES>() {
                let length = record::length(head, MAX_MESSAGE_BYTES).expect("it is undamaged");
                let (record, tail) = tail.split_at(length);
                let message = Message::decode(record).expect("what a home says can be read");
                if let Message::Rows { head, entries, .. } = message {
                    assert!(Entries::new(entries, 1, head.apart).take(1 << 16).count() < 1 << 16);
                }
                sent = tail;
            }
        }
    }
}
