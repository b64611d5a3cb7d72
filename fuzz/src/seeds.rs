//! The part of the corpus that is made from real messages. `replay` refuses one that was made of an earlier version's.

use crate::{UPDATED, sealed, updates};
use penstock_join::exchange::Verdict;
use penstock_join::tcp::proof::{Claim, Conversation, MAGIC, Side};
use penstock_kernels::codec;
use penstock_kernels::compress::{Compressor, compress};
use penstock_kernels::{Dtype, Foreign, Settings};
use penstock_proto::compress::Packed;
use penstock_proto::encoding::Encoding;
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::factors::LowRank;
use penstock_proto::factors::down::{Contributed, Named};
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::handshake::{self, Purpose, ServerHandshake, WorkerHandshake, verdict};
use penstock_proto::items::wire::{Encoder, Entry, Head, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::job::job_number;
use penstock_proto::message::{
    Answer, Ask, Joining, PROTOCOL_VERSION, Reply, Request, Secret, Welcome, encode,
};
use penstock_proto::overlay::Stripes;
use penstock_proto::peer::PeerId;
use penstock_proto::record::record;
use penstock_proto::submission::{NO_MORE, Submission};
use penstock_proto::update::{self, Updates};
use penstock_proto::uplink::Measured;
use std::path::{Path, PathBuf};

/// A target, and its files: their names and what is in them.
pub type Seeds = (&'static str, Vec<(String, Vec<u8>)>);

/// Where the corpus of a target lies.
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// All of them.
pub fn all() -> Vec<Seeds> {
    let settings = Settings([0.1, 0.9, 0.0, 0.0, 0.0]);
    let submissions = [
        Submission::Push { tensor: 1, first: 2, count: 1, stamp: 3, settings },
        Submission::Clock { clock: 4 },
        Submission::Load { tensor: 1, first: 0, count: 1, slot: 1, part: 0, steps: 9 },
        Submission::Zero { tensor: 1 },
        Submission::Flush { tensor: 1 },
        Submission::Fetch { tensor: 1, state: false, version: 3, ticket: 8 },
        Submission::FetchChunks { tensor: 1, first: 2, count: 3, version: 3, ticket: 9 },
        Submission::Skip { tensor: 1, first: 2, count: 3, stamp: 3, settings },
        Submission::Factor { tensor: 1, rank: 2, at: 0 },
        Submission::PushProduct { tensor: 1, first: 2, count: 3, stamp: 3, settings, rank: 4 },
        Submission::Attached { epoch: 2, stripes: Stripes(5) },
        Submission::Strayed { epoch: 2, stripes: Stripes(5), parent: 1 },
        Submission::Holds { tensor: 1, first: 2, epoch: 2, positions: [3, 0, 7, 9, NO_MORE, 0] },
    ];
    let job = job_number("job");
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for (submission, sequence) in submissions.iter().zip(1..) {
        let body = Body::Submission { submission: *submission, wanted: true };
        frames.push(Header::bare(job, sequence, body).encode().to_vec());
    }
    for notice in [
        Notice::Value { tensor: 1, chunk: 2, version: 3, steps: 4, publication: 6, base: 5, content: 1 },
        Notice::State { tensor: 1, chunk: 2 },
        Notice::Folded { tensor: 1, count: 5 },
        Notice::Fetched { tensor: 1, ticket: 8 },
        Notice::Taken,
        Notice::Raised { tensor: 1, chunk: 2, count: 3, version: 4, steps: 5, contents: [1, 1, 2, 3] },
        Notice::Update { tensor: 1, chunk: 2, version: 3, steps: 4, publication: 6, base: 5 },
        Notice::Whole { tensor: 1, chunk: 2, version: 3, steps: 4, publication: 6, content: 5 },
        Notice::Factor { tensor: 1, name: Named { writer: 2, turn: 3 }, rank: 4, at: 5 },
        Notice::Seal,
        Notice::Standing { tensor: 1, stripe: 2, digest: 3 },
        Notice::Lent { tensor: 1, chunk: 2, count: 3 },
        Notice::Route,
    ] {
        frames.push(Header::bare(job, 5, Body::Notice(notice)).encode().to_vec());
    }
    for by in Compressor::ALL {
        let notice =
            Notice::Value { tensor: 1, chunk: 2, version: 3, steps: 4, publication: 6, base: 0, content: 6 };
        let packed = Some(Packed { by, length: 4096 });
        let header = Header::bare(job, 5, Body::Notice(notice)).with_payload(&[7; 24]);
        frames.push(header.with_packed(packed).encode().to_vec());
    }
    let secret = Secret([7; 32]);
    let (worker, hello) =
        WorkerHandshake::start("job", secret, Purpose::Control, [2; 32]).expect("it is short");
    let mut server = ServerHandshake::start(&hello).expect("it is ours");
    // Another secret, so that the fuzzer's own cannot be proved with what stands in the corpus.
    let challenge = server.challenge(Secret([8; 32]), [1; 32], [0; 32]);
    let refused = verdict(&handshake::Verdict::Refused(Refusal::Busy));
    drop(worker);
    let door = "10.0.0.1:7700".parse().ok();
    let overlay = Joining { tree: "auto".to_owned(), door, rack: "zone/rack".to_owned(), rate: 125_000_000 };
    let requests = [
        Ask::Hello { version: PROTOCOL_VERSION, session: [3; 16], peer: PeerId::worker(1), size: 2, overlay },
        Ask::Beat,
        Ask::Barrier,
        Ask::Missing { tensor: 1, version: 2 },
        Ask::Leave { how: penstock_proto::message::Departure::Failed { what: "why".to_owned() } },
        Ask::Uplink(Measured { sends: 125_000_000, to: Some(1), takes: 25_000_000 }),
    ];
    let (key, chunk_bytes) = ([6; 32], 32768);
    let welcome = Welcome { server: 0, servers: 1, shards: 2, chunk_bytes, lease_ms: 10_000, others: 1, key };
    let lost = JobFailure::WorkerLost { rank: 1, loss: Loss::Died };
    let replies = [
        Answer::Welcome(welcome),
        Answer::Alive,
        Answer::Missing { ranks: vec![1, 5] },
        Answer::Failed(lost),
    ];
    let mut messages: Vec<Vec<u8>> = Vec::new();
    messages
        .extend(requests.map(|body| {
            encode(&Request { id: 7, settled: 6, open: vec![2, 5], body }).expect("it is short")
        }));
    messages.extend(replies.map(|body| encode(&Reply { id: 7, body }).expect("it is short")));
    let records = messages.iter().take(3).flat_map(|message| record(message)).collect::<Vec<u8>>();
    let words =
        |submission: &Submission| submission.encode().iter().flat_map(|word| word.to_le_bytes()).collect();
    let payload = |frame: &Vec<u8>| [&frame[..], b"payload"].concat();

    let endpoints =
        ["/run/s0", "tcp://10.0.0.1:7700", "tcp://[::1]:80?also=a:1&host=ab&unix=/run/{job}.sock"];
    vec![
        named("frame", frames.iter().map(payload).chain(submissions.iter().map(words)).collect()),
        named("stream", vec![frames[..5].concat(), frames[..2].concat()]),
        named(
            "reader",
            vec![
                [&[200, 9, 1][..], &frames[0], &[2; 300]].concat(),
                [&[40, 255, 130][..], &[6; 2000]].concat(),
            ],
        ),
        named(
            "outbox",
            vec![vec![0, 3, 1, 0, 1, 0, 2, 1, 3, 1, 1, 0], vec![0, 1, 0, 2, 1, 0, 3, 0, 1, 0, 2, 4]],
        ),
        named(
            "handshake_server",
            vec![[&hello[..], &hello[..]].concat(), [&hello[..], &challenge[..]].concat()],
        ),
        named("handshake_worker", vec![challenge, refused, verdict(&handshake::Verdict::Accepted)]),
        named("rendezvous", rendezvous()),
        named("records", vec![records, record(b"one"), vec![0xff; 5]]),
        named("messages", messages),
        named("submission", submissions.iter().map(words).collect()),
        named("items", items()),
        named("endpoint", endpoints.map(|text| text.as_bytes().to_vec()).to_vec()),
        ("codec", quantized()),
        named("compress", compressed()),
        named(
            "factors",
            vec![
                // One of two pieces, and rows.
                vec![63, 4, 2, 0, 64, 0, 2, 16, 64, 0, 2, 1, 200, 1],
                // One and its rows; then another, of which a piece is missing.
                vec![3, 4, 1, 0, 4, 0, 1, 2, 20, 1, 2, 0, 4, 0, 2, 2, 20, 1],
            ],
        ),
        named("factors_down", factored()),
        named("update", updated()),
        named("seal", seals()),
    ]
}

/// Two workers' right factors, and updates of both, of one, and of one that has not come.
fn factored() -> Vec<Vec<u8>> {
    let low_rank = LowRank { dtype: Dtype::F32, columns: 64, most: 4 };
    let mut contributed = Contributed::new(low_rank, 100, 4);
    let frame = |six: [u8; 6], bytes: &[u8]| [&six[..], bytes].concat();
    let mut frames = vec![0, 4];
    for (writer, rank) in [(1, 1), (3, 2)] {
        let right = vec![1; low_rank.right(rank)];
        frames.extend(frame([1, writer as u8, 1, rank as u8, 0, (right.len() / 256) as u8], &[]));
        contributed.came(writer, rank, &right);
        contributed.multiplied(writer, 0, rank, &vec![2; low_rank.left(rank)]);
    }
    let update = |writers: &[u32]| {
        let mut sum = Vec::new();
        contributed.of(0, writers).expect("all came so").write(0.5, &mut sum);
        frame([4, 0, 0, 0, 0, sum.len() as u8], &sum)
    };
    vec![
        [&frames[..], &update(&[1, 3]), &update(&[3])].concat(),
        [&frames[..], &[0; 6], &update(&[1])].concat(),
        [&[0, 4][..], &update(&[1, 3])].concat(),
    ]
}

/// Value and state whole, and updates behind that: one that is mostly zeros, one that is not, one of something else.
fn updated() -> Vec<Vec<u8>> {
    let Updates { agreed, .. } = updates();
    let frame =
        |whole: bool, [publication, base, version]: [u8; 3], (encoding, payload): (Encoding, &[u8])| {
            let kind = encoding.0 << 1 | u8::from(whole);
            [&[kind, publication, base, version, version, payload.len() as u8][..], payload].concat()
        };
    let (encoding, both) = update::whole(&agreed, &[1; UPDATED], &[0; UPDATED]);
    let whole = frame(true, [2, 2, 0], (encoding, &both));
    let update = |numbers: [u8; 3], elements: usize| {
        let mut sum = [0; UPDATED];
        sum.chunks_exact_mut(4).take(elements).for_each(|one| one.copy_from_slice(&1f32.to_le_bytes()));
        let mut kept = update::Kept::default();
        let settings = Settings([0.5, 0.5, 0.0, 0.0, 0.0]);
        let step = u64::from(numbers[2]) - 1;
        kept.fold(numbers[1].into(), (step, &settings), &sum, None, Some(&agreed));
        frame(false, numbers, kept.payload())
    };
    vec![
        [&whole[..], &update([4, 2, 1], 1), &update([6, 4, 2], UPDATED / 4)].concat(),
        [&whole[..], &update([4, 2, 1], 0), &update([4, 2, 1], 0)].concat(),
        update([4, 2, 1], 1),
    ]
}

/// Proofs of batches of several sizes as they are; and flipped bits, of a proof, a notice and a payload, and none.
fn seals() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (count, place) in [(1, 0), (5, 4), (16, 7)] {
        let (frames, _) = sealed(count);
        let as_it_is = [count as u8 - 1, place as u8];
        seeds.push([&as_it_is[..], &frames[place].proof].concat());
        let flipped = [as_it_is[0] | 16, as_it_is[1]];
        seeds.push(flipped.to_vec());
        let proof = frames[place].proof.len();
        for at in [0, 1, 40, 70, proof + 48, proof + 80, proof + HEADER_BYTES] {
            seeds.push([&flipped[..], &vec![0; at], &[1]].concat());
        }
    }
    seeds
}

/// Blocks of each compressor: of as much as there is room for, of more, and cut off.
fn compressed() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (how, by) in (0..).zip(Compressor::ALL) {
        let numbers: Vec<u8> = (0..1024_u32).flat_map(|at| ((at % 37) as f32 / 8.0).to_le_bytes()).collect();
        let mut out = Vec::new();
        for bytes in [&numbers[..], &numbers[..256], &[7; 4096], &[0; 1 << 18]] {
            let length = compress(by, bytes, &mut out).expect("it repeats itself");
            // As the target reads it: 256 times 16 bytes.
            seeds.push([&[how, 255][..], &out[..length]].concat());
            seeds.push([&[how, 255][..], &out[..length / 2]].concat());
        }
        seeds.push([&[how, 15][..], &numbers[..300]].concat());
    }
    seeds
}

/// A payload of each codec of numbers that take few bits: ones and their negatives, which every form has.
fn quantized() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (at, entry) in codec::ALL.iter().enumerate().filter(|(_, entry)| entry.number >= 16) {
        let dtype = Dtype::ALL.into_iter().find(|dtype| entry.codec.carries(*dtype)).expect("it is of one");
        let one: &[u8] = match dtype {
            Dtype::F32 => &[0, 0, 0x80, 0x3f],
            Dtype::F64 => &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
            Dtype::F16 => &[0, 0x3c],
            Dtype::Bf16 => &[0x80, 0x3f],
        };
        let mut chunk = one.repeat(128 / one.len());
        chunk.chunks_exact_mut(one.len()).step_by(3).for_each(|one| one[one.len() - 1] |= 0x80);
        let mut payload = vec![0; *entry.codec.lengths(chunk.len()).end()];
        let length = entry.codec.encode(Foreign::of(&chunk), None, &mut payload).expect("it is of the form");
        // As the target reads it: the codec's place, against zeros, and 16 times 8 bytes.
        let seed = [&[at as u8, 1, 15][..], &payload[..length]].concat();
        seeds.push((format!("seed-of-{}", entry.number), seed));
    }
    seeds
}

/// A worker's whole side of a rendezvous under another secret, what rank 0 tells all, and a place.
fn rendezvous() -> Vec<Vec<u8>> {
    let claim = Claim { rank: 1, size: 3 };
    let mut talk = Conversation::new(Side::Worker, &Secret([8; 32]), "job", [[2; 32], [1; 32]]);
    let hello = [&MAGIC[..], &[2; 32], &claim.spell(), &talk.proof(claim)].concat();
    let said = [hello, talk.frame(b"+a")].concat();
    let waited = std::time::Duration::from_millis(1500);
    let verdicts = [
        Verdict::Given(vec![b"a".to_vec(), Vec::new(), b"c".to_vec()]),
        Verdict::Late { missing: vec![1, 2], waited, no_room: None },
        Verdict::Failed { text: "rank 1 could not join: no memory".to_owned() },
    ];
    let mut seeds = vec![said, talk.frame(b"+b"), b"node1:7070".to_vec(), b"[fd00::1]:7070".to_vec()];
    seeds.extend(verdicts.iter().map(Verdict::spell));
    seeds
}

/// Whole conversations with a home: an offer, a subscription, rows, questions.
fn items() -> Vec<Vec<u8>> {
    let partition = PartitionId { table: 0, rank: 0 };
    let talk = |propagation| {
        let shape = Shape { slots: 3, row_bytes: 8, propagation };
        let apart = propagation != Propagation::Eager;
        let head = Head { serial: 2, ticket: 1, done: 1, floor: 1, apart, ..Head::default() };
        let mut entries = Vec::new();
        let entry = Entry { place: 0, number: 1, clock: 1, as_of: 1, count: 1, value: Some(&[7; 8]) };
        let mut encoder = Encoder::rows(&mut entries, partition, &Head { last: true, ..head });
        encoder.entry(&entry, apart);
        encoder.end();
        let mut said = Vec::new();
        let messages = [
            (0, Message::Offer { partition, shape }),
            (1, Message::Subscribe { partition, shape, done: 0, serial: 1, rows: RowSet::from_rows(0..2) }),
            (1, Message::Need { partition, versions: vec![1, 2] }),
            (1, Message::Fetch { partition, ticket: 1, version: 1, places: RowSet::from_rows([0]) }),
            (1, Message::Fetch { partition, ticket: 2, version: 2, places: RowSet::from_rows([1]) }),
            (1, Message::Withdraw { partition, ticket: 2 }),
            (1, Message::Flush { id: 1 }),
        ];
        let mut say = |peer: u8, record: &[u8]| {
            said.extend([peer, record.len() as u8 - 16]);
            said.extend_from_slice(&record[16..]);
        };
        for (peer, message) in messages {
            let mut record = Vec::new();
            Encoder::message(&mut record, &message);
            say(peer, &record);
        }
        say(0, &entries);
        said
    };
    [Propagation::Eager, Propagation::Lazy, Propagation::Bounded].map(talk).to_vec()
}

fn named(target: &'static str, corpus: Vec<Vec<u8>>) -> Seeds {
    let names = (0..).map(|number| format!("seed-{number:02}"));
    (target, names.zip(corpus).collect())
}
