//! A worker that passes on something else than it was given: what its children must not take for the home's.

use crate::rng::Rng;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::seal::Sealer;

/// How.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// It has changed what the value is, and what says that it is whole.
    Value,
    /// It has changed what version that is.
    Version,
    /// It has passed on an old frame of the home once more, behind this one or instead of it.
    Repeated,
    /// It has put the seal of another frame before this one.
    Seal,
    /// It has passed on nothing.
    Withheld,
}

impl Lie {
    /// The word in the log.
    pub fn word(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Version => "version",
            Self::Repeated => "repeated",
            Self::Seal => "seal",
            Self::Withheld => "withheld",
        }
    }
}

/// What a liar does with what it passes on to one child.
#[derive(Debug)]
pub struct Liar {
    once_in: u64,
    rng: Rng,
    /// All that it may do.
    lies: &'static [Lie],
    /// With which it seals what it has changed: of use to [`Sabotage`](crate::sabotage::Sabotage) alone.
    sealer: Option<Sealer>,
    /// A seal and its frame that were passed on once.
    old: Option<[Vec<u8>; 2]>,
}

/// Each frame of `bytes`, if they are whole ones.
fn frames(mut bytes: &[u8]) -> Option<Vec<(Header, &[u8])>> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::decode(header).ok()?;
        let (payload, rest) = rest.split_at_checked(header.length as usize)?;
        frames.push((header, payload));
        bytes = rest;
    }
    bytes.is_empty().then_some(frames)
}

fn bytes(header: &Header, payload: &[u8]) -> Vec<u8> {
    [&header.encode()[..], payload].concat()
}

impl Liar {
    /// One that lies about one frame in so many.
    pub fn new(once_in: u64, rng: Rng) -> Self {
        let lies = &[Lie::Value, Lie::Version, Lie::Repeated, Lie::Seal, Lie::Withheld];
        Self { once_in, rng, lies, sealer: None, old: None }
    }

    /// One that withholds one frame in so many.
    pub fn withholding(once_in: u64, rng: Rng) -> Self {
        Self { lies: &[Lie::Withheld], ..Self::new(once_in, rng) }
    }

    /// One that seals as the home does.
    pub fn sealing(once_in: u64, rng: Rng, sealer: Sealer) -> Self {
        Self { lies: &[Lie::Value, Lie::Version], sealer: Some(sealer), ..Self::new(once_in, rng) }
    }

    /// What it passes on instead of these frames, and what it has done.
    pub fn pass_on(&mut self, given: &[u8]) -> (Vec<u8>, Vec<Lie>) {
        let (mut out, mut told) = (Vec::with_capacity(given.len()), Vec::new());
        // Whoever writes a part of a frame does not lie about it.
        let Some(frames) = frames(given) else { return (given.to_vec(), told) };
        let mut seal = Vec::new();
        for (header, payload) in frames {
            let is_value = matches!(header.body, Body::Notice(Notice::Value { .. } | Notice::Raised { .. }));
            if header.body == Body::Notice(Notice::Seal) {
                seal = bytes(&header, payload);
            } else if is_value && self.rng.once_in(self.once_in) {
                told.extend(self.lie(std::mem::take(&mut seal), header, payload, &mut out));
            } else {
                let frame = bytes(&header, payload);
                out.extend_from_slice(&seal);
                out.extend_from_slice(&frame);
                if is_value && (self.old.is_none() || self.rng.once_in(4)) {
                    self.old = Some([std::mem::take(&mut seal), frame]);
                }
                seal.clear();
            }
        }
        (out, told)
    }

    fn lie(&mut self, seal: Vec<u8>, header: Header, payload: &[u8], out: &mut Vec<u8>) -> Option<Lie> {
        let (mut header, mut payload) = (header, payload.to_vec());
        let lie = self.rng.pick(self.lies);
        let mut put =
            |seal: &[u8], frame: &[u8]| [seal, frame].iter().for_each(|it| out.extend_from_slice(it));
        match (lie, &self.old) {
            (Lie::Value, _) if !payload.is_empty() => {
                let at = self.rng.within(0..=payload.len() as u64 - 1) as usize;
                payload[at] ^= 1 << self.rng.within(0..=7);
                let base = match header.body {
                    Body::Notice(Notice::Value { base, .. }) => base,
                    _ => 0,
                };
                header = header.with_encoded(header.encoding, base, &payload);
            }
            (Lie::Version, _) => {
                if let Body::Notice(Notice::Value { version, .. } | Notice::Raised { version, .. }) =
                    &mut header.body
                {
                    *version += 1;
                }
            }
            (Lie::Repeated, Some([old_seal, old_frame])) => {
                if self.rng.once_in(2) {
                    put(&seal, &bytes(&header, &payload));
                }
                put(old_seal, old_frame);
                return Some(lie);
            }
            (Lie::Seal, Some([old_seal, old_frame])) if *old_frame != bytes(&header, &payload) => {
                put(old_seal, &bytes(&header, &payload));
                return Some(lie);
            }
            (Lie::Withheld, _) => return Some(lie),
            _ => {
                put(&seal, &bytes(&header, &payload));
                return None;
            }
        }
        let sealed = self.sealer.as_ref().map(|sealer| {
            let mut sealed = Vec::new();
            sealer.seal(&[sealer.leaf(&header, &payload)], |_, proof| {
                let header = Header::bare(header.job, 0, Body::Notice(Notice::Seal)).with_payload(proof);
                sealed = bytes(&header, proof);
            });
            sealed
        });
        put(sealed.as_ref().unwrap_or(&seal), &bytes(&header, &payload));
        Some(lie)
    }
}
