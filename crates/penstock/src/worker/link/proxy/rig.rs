//! What a shard of another host says, honestly or not, and the memory of a worker that hears it.

use super::RemoteHome;
use super::mirrored::Mirrored;
use crate::wire::travel::members::plain_tensor;
use penstock_fabric::memory::{ExtentLayout, HomeRegions, LaneView, Place, ServerPart, WorkerMemory};
use penstock_kernels::filter::Everything;
use penstock_kernels::{Dtype, Rule};
use penstock_proto::TensorId;
use penstock_proto::chunk::Cut;
use penstock_proto::encoding::{Agreed, Encoding};
use penstock_proto::factors::down::Named;
use penstock_proto::factors::{PIECE, ROWS};
use penstock_proto::frame::{Body, Header, Notice};
use penstock_proto::job::job_number;
use penstock_proto::placement::Extent;
use penstock_proto::propagation::Propagation;
use penstock_proto::travel::{Registry, Terms, Travel};
use std::sync::Arc;

pub(super) const JOB: &str = "job";
pub(super) const W: TensorId = 3;
/// Bytes of a chunk.
pub(super) const CHUNK: usize = 4096;
/// The ticket that a fetch of the worker's would bring back.
const TICKET: u64 = 5;

/// Memory of `W`, of whose two chunks shard 0 is home of the first: the proxy's, and the worker's view of it.
pub(super) fn tensor(agreed: Agreed) -> (Mirrored, Seen) {
    let terms = Terms {
        values: agreed,
        contributions: agreed,
        filter: Arc::new(Everything),
        sums: None,
        low_rank: None,
        propagation: Propagation::Pull,
        shows_versions_only: false,
        updates: None,
    };
    tensor_on(terms, 0)
}

/// The same of a tensor whose updates come, and are folded by this rule.
pub(super) fn updated(rule: Rule) -> (Mirrored, Seen) {
    let mut spec = plain_tensor("w", 2 * CHUNK as u64 / 4, Travel::default());
    (spec.rule, spec.propagation) = (rule, Propagation::Update);
    tensor_on(spec.check(&Registry::ALL).unwrap(), rule.slots().count() * 4)
}

fn tensor_on(terms: Terms, state_per_element: usize) -> (Mirrored, Seen) {
    let (cut, extent) = (Cut::new(2 * CHUNK as u64, CHUNK as u32), Extent { first: 0, count: 2 });
    let layout = ExtentLayout::new(cut, extent, Dtype::F32, state_per_element);
    let (mut homes, model) = HomeRegions::new("w", layout).unwrap().split(&[0, 1], 2);
    let (mut lanes, region) = LaneView::new("lane", layout.lane(), 2).unwrap();
    let place =
        Place::Own(model.model().try_clone_to_owned().unwrap(), region.fd().try_clone_to_owned().unwrap());
    let (memory, _) =
        WorkerMemory::new(cut, Dtype::F32, &[ServerPart { extent, place: Some(place) }]).unwrap();
    let remote = Arc::<RemoteHome>::default();
    let seen = Seen { memory, remote: Arc::clone(&remote) };
    (Mirrored::new(0, homes.remove(0), lanes.remove(0), remote, Arc::new(terms)), seen)
}

/// What the worker sees.
pub(super) struct Seen {
    memory: WorkerMemory,
    remote: Arc<RemoteHome>,
}

/// The first chunk's bytes and version, the progress and the folds that were counted for the worker, and the ticket that came.
pub(super) type What = (Vec<u8>, u64, u64, u64, u64);

impl Seen {
    pub(super) fn what(&self) -> What {
        let mut bytes = vec![0; CHUNK];
        // The other thread may be in the middle of writing it.
        let read = std::iter::repeat_with(|| self.memory.read_chunk(0, &mut bytes[..]));
        let published = read.into_iter().find_map(Result::ok).expect("it is whole in the end");
        let fetched = self.remote.fetched.load(std::sync::atomic::Ordering::Acquire);
        let (progress, folded) = (self.memory.progress(0, 0), self.memory.folded(0, 0));
        (bytes, published.version, progress.unwrap(), folded.unwrap(), fetched)
    }
}

/// The same where nothing came but [`good`] of that version.
pub(super) fn only_good(version: u64) -> What {
    (vec![version as u8; CHUNK], version, version + 1, 0, 0)
}

fn frame(header: Header, encoding: Encoding, base: u64, payload: &[u8]) -> Vec<u8> {
    [&header.with_encoded(encoding, base, payload).encode()[..], payload].concat()
}

pub(super) fn notice(notice: Notice) -> Header {
    Header::bare(job_number(JOB), 0, Body::Notice(notice))
}

pub(super) fn value(tensor: TensorId, chunk: u32, version: u64) -> Header {
    notice(Notice::Value {
        tensor,
        chunk,
        version,
        steps: 1,
        publication: version.wrapping_mul(2),
        base: 0,
        content: 1,
    })
}

/// A value as an honest shard sends it.
pub(super) fn good(version: u64) -> Vec<u8> {
    frame(value(W, 0, version), Encoding::RAW, 0, &[version as u8; CHUNK])
}

/// What follows a breach: a good value, and good news of each other kind.
pub(super) fn good_behind(version: u64) -> Vec<u8> {
    let folded = notice(Notice::Folded { tensor: W, count: 1 });
    let fetched = notice(Notice::Fetched { tensor: W, ticket: TICKET });
    [good(version), folded.encode().to_vec(), fetched.encode().to_vec()].concat()
}

/// Frames that no honest shard sends behind version 3 to a worker that agreed to `CHANGES` and raw, and what is said of each.
pub(super) fn breaches(changes: Encoding) -> Vec<(Vec<u8>, &'static str)> {
    let raw = |header, bytes: usize| frame(header, Encoding::RAW, 0, &vec![9; bytes]);
    let next = value(W, 0, 4);
    let empty = |header: Header| header.encode().to_vec();
    let factor = Notice::Factor { tensor: W, name: Named { writer: 1, turn: 1 }, rank: 1, at: 0 };
    let update = Notice::Update { tensor: W, chunk: 0, version: 4, steps: 4, publication: 8, base: 6 };
    let numbered = Header { sequence: 7, ..notice(Notice::Taken) };
    vec![
        (raw(value(9, 0, 4), CHUNK), "4096 bytes for Value { tensor: 9, chunk: 0,"),
        (raw(value(W, 1, 4), CHUNK), "4096 bytes for Value { tensor: 3, chunk: 1,"),
        (raw(value(W, 7, 4), CHUNK), "4096 bytes for Value { tensor: 3, chunk: 7,"),
        (raw(next, CHUNK - 1), "expected 4096 to 4096 bytes of a chunk of 4096, got 4095"),
        (raw(next, CHUNK + 4), "expected 4096 to 4096 bytes of a chunk of 4096, got 4100"),
        (empty(next), "expected 4096 to 4096 bytes of a chunk of 4096, got 0"),
        (frame(next, changes, 0, &[0; CHUNK]), "expected 0 to 4095 bytes of a chunk of 4096, got 4096"),
        (frame(next, Encoding(8), 0, &[9; 8]), "expected an encoding that the tensor agreed to, got 8"),
        (frame(next, changes, 0, &[1; 16]), "chunk 0: a payload's last word: expected 1023, got 16843009"),
        (frame(next, changes, 4, &[]), "chunk 0 came as a difference against publication 4, expected 6"),
        (raw(value(W, 0, 2), CHUNK), "chunk 0 fell to version 2"),
        (raw(value(W, 0, u64::MAX), CHUNK), "chunk 0 has version 18446744073709551615"),
        (raw(notice(Notice::State { tensor: W, chunk: 0 }), 8), "8 bytes for State"),
        (raw(notice(Notice::Folded { tensor: W, count: 1 }), 8), "8 bytes for Folded"),
        (raw(notice(Notice::Taken), 8), "8 bytes for Taken"),
        (raw(notice(factor), 8), "a factor of worker 1 of tensor 3, whose updates name none"),
        (raw(notice(factor), PIECE + 1), "16385 bytes for Factor"),
        (empty(notice(update).with_encoded(ROWS, 0, &[0; 64])), "64 bytes for Update"),
        (empty(numbered), "7"),
        (empty(Header { job: 2, ..notice(Notice::Taken) }), "a frame of another job or epoch"),
        (empty(Header { epoch: 1, ..notice(Notice::Taken) }), "a frame of another job or epoch"),
        (empty(Header::bare(job_number(JOB), 0, Body::Alive)), "a worker's frame"),
    ]
}
