//! Compressing chunks that go, and decompressing those that came, behind their encodings ([`penstock_proto::compress`]); and whether
//! those are tried at all ([`Worth`]).
//!
//! One [`Squeezer`] belongs to one end of a connection. It keeps a [`Chooser`] for each tensor of which chunks may be compressed, and a
//! [`Worth`] for each that may be encoded or go raw, tells them what the link carries, and measures how long compressing and encoding
//! take. Where neither may be it does nothing, and asks the link nothing.

use super::link::Link;
use penstock_kernels::codec::Undecodable;
use penstock_kernels::compress::{Compressor, compress, decompress};
use penstock_proto::TensorId;
use penstock_proto::compress::{Chooser, Compress, LEAST, Packed, Squeezed};
use penstock_proto::encoding::{Agreed, Attempt, Worth};
use penstock_proto::numbered::Numbered;
use std::time::Duration;

/// Chunks after which the link is asked again what it carries: a system call, of which few are made beside one for a batch.
const ASKED_EACH: u32 = 16;

/// What one end of a connection compresses.
#[derive(Debug, Default)]
pub(super) struct Squeezer {
    choosers: Numbered<Chooser>,
    worths: Numbered<Worth>,
    /// What chunks are compressed to: as long as the longest becomes at most.
    room: Vec<u8>,
    /// What the link carries, bytes a second, as far as it ever had enough to send to show that.
    rate: Option<f64>,
    /// Chunks until it is asked again.
    asked: u32,
    /// Whether it does not leave this host, once that was asked.
    stays_here: Option<bool>,
    sent: Squeezed,
}

/// The same, while frames are collected for its link.
pub(super) struct Squeezing<'a, L> {
    squeezer: &'a mut Squeezer,
    link: &'a L,
    /// To how many links the thread sends the next chunk.
    links: usize,
    /// Whether what comes next is passed on by who gets it.
    goes_on: bool,
}

impl Squeezer {
    /// For frames to this link, by a thread that sends the same to so many.
    pub(super) fn onto<'a, L: Link>(&'a mut self, link: &'a L, links: usize) -> Squeezing<'a, L> {
        Squeezing { squeezer: self, link, links, goes_on: false }
    }

    /// Another connection: what its link carries is not known.
    pub(super) fn connect(&mut self) {
        (self.rate, self.asked, self.stays_here) = (None, 0, None);
    }

    /// What became of the chunks that were sent since this was asked last.
    pub(super) fn take_sent(&mut self) -> Squeezed {
        std::mem::take(&mut self.sent)
    }
}

impl<L: Link> Squeezing<'_, L> {
    /// To so many links the next chunk is sent.
    pub(super) fn serves(&mut self, links: usize) {
        self.links = links;
    }

    /// What the tensor's next chunk is to be tried with.
    pub(super) fn next(&mut self, tensor: TensorId, agreed: &Agreed) -> Option<Compressor> {
        if agreed.compress() == Compress::None {
            return None;
        }
        if self.squeezer.choosers.get(tensor).is_none() {
            self.squeezer.choosers.insert(tensor, Chooser::new(agreed.compress()));
        }
        if self.squeezer.choosers.get(tensor)?.asks() {
            let (rate, links) = (self.rate(), self.links);
            self.squeezer.choosers.get_mut(tensor)?.carries(rate, links);
        }
        self.squeezer.choosers.get_mut(tensor)?.attempt()
    }

    /// Whether what comes next is passed on by who gets it, over links of which nothing is known here.
    pub(super) fn goes_on(&mut self, goes_on: bool) {
        self.goes_on = goes_on;
    }

    /// Whether the encodings of the tensor's next chunk are tried.
    pub(super) fn encodes(&mut self, tensor: TensorId, agreed: &Agreed) -> Attempt {
        if self.goes_on || !agreed.gives_way() || self.stays_here() {
            return Attempt::Encoded;
        }
        let (rate, links) = (self.rate(), self.links);
        if self.squeezer.worths.get(tensor).is_none() {
            self.squeezer.worths.insert(tensor, Worth::default());
        }
        self.squeezer.worths.get_mut(tensor).map_or(Attempt::Encoded, |worth| {
            worth.carries(rate, links);
            worth.attempt()
        })
    }

    /// Whether the link does not leave this host, asked once for each connection: who sends to itself has no line to be measured.
    fn stays_here(&mut self) -> bool {
        let link = self.link;
        *self.squeezer.stays_here.get_or_insert_with(|| link.stays_here())
    }

    /// A moment, by which it is measured how long encoding takes.
    pub(super) fn now(&self) -> Option<Duration> {
        self.link.now()
    }

    /// A chunk of the tensor of so many bytes, whose encoding began at this moment, came to so many.
    pub(super) fn encoded(&mut self, tensor: TensorId, begun: Option<Duration>, bytes: usize, became: usize) {
        let took = begun.and_then(|begun| Some(self.link.now()?.saturating_sub(begun)));
        if let Some(worth) = self.squeezer.worths.get_mut(tensor) {
            worth.tried(bytes, became, took);
        }
    }

    /// What the link carries, as far as that is known; it is asked now and then.
    fn rate(&mut self) -> Option<f64> {
        let Squeezer { rate, asked, .. } = &mut *self.squeezer;
        *asked = asked.checked_sub(1).unwrap_or_else(|| {
            // What was cut short by having nothing to send carries as much at least.
            if let Some(flow) = self.link.flow()
                && let Some(seen) = flow.rate
            {
                *rate = if flow.cut_short { rate.map(|known| known.max(seen)) } else { Some(seen) };
            }
            ASKED_EACH
        });
        *rate
    }

    /// The chunk, as it was encoded, is tried with that. What it became, if it is shorter.
    pub(super) fn squeeze(
        &mut self,
        tensor: TensorId,
        by: Compressor,
        bytes: &[u8],
    ) -> Option<(Packed, &[u8])> {
        let Squeezer { choosers, room, .. } = &mut *self.squeezer;
        let chooser = choosers.get_mut(tensor).filter(|_| bytes.len() >= LEAST)?;
        let begun = chooser.asks().then(|| self.link.now()).flatten();
        let length = compress(by, bytes, room);
        let took = begun.and_then(|begun| Some(self.link.now()?.saturating_sub(begun)));
        chooser.tried(by, bytes.len(), length.unwrap_or(bytes.len()), took);
        let length = length?;
        Some((Packed { by, length: u32::try_from(bytes.len()).ok()? }, &room[..length]))
    }

    /// A chunk of the tensor goes with so many bytes, and was compressed, if it was; `tried` says whether that was attempted.
    pub(super) fn goes(
        &mut self,
        (tensor, agreed): (TensorId, &Agreed),
        length: usize,
        packed: Option<Packed>,
        tried: bool,
    ) {
        if agreed.compress() == Compress::None {
            return;
        }
        self.squeezer.sent.count(length, packed);
        if !tried && let Some(chooser) = self.squeezer.choosers.get_mut(tensor) {
            chooser.went(length);
        }
    }
}

/// The payload as it was encoded: itself, or decompressed into `room`. Its lengths were judged with its header (E-2).
pub(super) fn unpack<'a>(
    packed: Option<Packed>,
    payload: &'a [u8],
    room: &'a mut Vec<u8>,
) -> Result<&'a [u8], Undecodable> {
    let Some(Packed { by, length }) = packed else { return Ok(payload) };
    let length = length as usize;
    if room.len() < length {
        room.resize(length, 0);
    }
    let out = &mut room[..length];
    decompress(by, payload, out)?;
    Ok(out)
}
