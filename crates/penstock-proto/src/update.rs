//! Updates: what a home folded, as it is sent to those who fold it too (parameter-flow.md, equation 4: servers broadcast U, and
//! servers and workers both come to W' = F(W, U)).
//!
//! What travels is the sum that the rule was given, and the numbers that it was given with it; [`penstock_kernels::apply`] takes the
//! step from there. Elements that are zero take no bytes, whatever the rule makes of the value: under momentum, Adam or weight decay
//! every element of that changes. Where all that was summed came as factors, they go in place of the sum, if that is shorter
//! ([`factors::down`](crate::factors::down)).
//!
//! - **U-1** An update goes only to a receiver that holds the content that it leads on from, with the optimizer's state that was
//!   beside it; any other receiver refuses it, and gets both whole. So each receiver holds the home's value and state, bit for bit.
//!
//! A home keeps the last update of each chunk, encoded once for all receivers. Whoever lacks more than that one (who comes late, was
//! cut off, or is slow), or lacks something that no update made (a load), is sent value and state as they stand, in one frame.
//!
//! Bytes of a chunk of B bytes with S state slots, down, for each receiver and version: those of the elements that are not zero, at
//! most B, and [`PREFIX_BYTES`]; (1 + S) B where it is sent whole. Memory: at the home B for each chunk, charged to the job; at a
//! receiver (1 + S) B instead of B.

use crate::encoding::{Agreed, Encoding, Payload, Sent, Source};
use crate::factors::ROWS;
use crate::factors::down::Factored;
use penstock_kernels::{Foreign, Plan, Settings};

/// What stands before an update's sum: the optimizer steps that were behind the chunk, and the five numbers of the rule.
pub const PREFIX_BYTES: usize = size_of::<u64>() + size_of::<Settings>();

/// How updates of a tensor travel.
#[derive(Debug, Clone, Copy)]
pub struct Updates {
    /// Encodings, also of what goes whole.
    pub agreed: Agreed,
    /// What folds them, at their home and where they come.
    pub plan: Plan,
}

/// A payload that is too short to be an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected an update, which has at least {PREFIX_BYTES} bytes, got {got}")]
pub struct NoUpdate {
    /// Its bytes.
    pub got: usize,
}

/// An update's payload, taken apart: how many steps were behind the chunk, the numbers of this one, and its sum as it is encoded.
/// Versions may have passed since, which count as steps: the chunk's published steps do not tell.
pub fn split(payload: &[u8]) -> Result<(u64, Settings, &[u8]), NoUpdate> {
    let (prefix, sum) = payload.split_first_chunk::<PREFIX_BYTES>().ok_or(NoUpdate { got: payload.len() })?;
    let [step, numbers @ ..] = prefix.as_chunks::<8>().0 else { unreachable!("it has six words") };
    let mut settings = Settings::NONE;
    for (number, bytes) in settings.0.iter_mut().zip(numbers) {
        *number = f64::from_le_bytes(*bytes);
    }
    Ok((u64::from_le_bytes(*step), settings, sum))
}

/// Bytes that a home keeps of the updates of so many chunks, of so many bytes in all; 0 where none are sent.
pub fn bytes_kept(updates: Option<&Updates>, chunks: u64, bytes: u64) -> u64 {
    if updates.is_some() { bytes + chunks * (PREFIX_BYTES + size_of::<Kept>()) as u64 } else { 0 }
}

/// The last update of one chunk, as it is sent.
#[derive(Debug, Default)]
pub struct Kept {
    /// The publication that it leads on from, and to; 0: to none.
    base: u64,
    publication: u64,
    encoding: Encoding,
    payload: Vec<u8>,
    standing: Standing,
}

/// What has happened to the chunk since it was published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Nothing,
    /// It was folded once, and the update is kept.
    Folded,
    /// More than that, or something else: no update leads there.
    Changed,
}

impl Kept {
    /// The chunk was folded with these numbers, after so many steps, and the rule was given this sum. `content`: the last publication
    /// that changed what is seen of it before. `factored`: the factors of all that was summed, and what that was scaled by, if all
    /// came so. The update is kept if somebody may be sent it.
    pub fn fold(
        &mut self,
        content: u64,
        (step, settings): (u64, &Settings),
        sum: &[u8],
        factored: Option<(Factored<'_>, f64)>,
        agreed: Option<&Agreed>,
    ) {
        let is_first = self.standing == Standing::Nothing;
        let Some(agreed) = agreed.filter(|_| is_first) else {
            self.standing = Standing::Changed;
            return;
        };
        self.standing = Standing::Folded;
        (self.base, self.publication) = (content, 0);
        self.payload.clear();
        // No more than is paid for.
        self.payload.reserve_exact(PREFIX_BYTES + agreed.longest(sum.len()));
        self.payload.extend_from_slice(&step.to_le_bytes());
        settings.0.iter().for_each(|number| self.payload.extend_from_slice(&number.to_le_bytes()));
        let sent = Sent { source: Source::Stands(sum), shadow: None, position: 0 };
        let encoded = agreed.encode(&sent, &mut self.payload, PREFIX_BYTES);
        self.encoding = encoded.encoding;
        match encoded.payload {
            Payload::Stands(bytes) => {
                self.payload.truncate(PREFIX_BYTES);
                self.payload.extend_from_slice(bytes);
            }
            Payload::Buffered(range) => self.payload.truncate(range.end),
            Payload::Lane(_) => unreachable!("it does not come from a lane"),
        }
        let encoded = self.payload.len() - PREFIX_BYTES;
        if let Some((factored, scale)) = factored.filter(|(factored, _)| factored.pays(encoded)) {
            self.encoding = ROWS;
            self.payload.truncate(PREFIX_BYTES);
            factored.write(scale, &mut self.payload);
        }
    }

    /// What it brings in place of its sum, if that is factors.
    pub fn factors(&self) -> Option<&[u8]> {
        (self.encoding == ROWS).then(|| &self.payload[PREFIX_BYTES..])
    }

    /// Value or state were changed by something else than a fold.
    pub fn change(&mut self) {
        self.standing = Standing::Changed;
    }

    /// What has happened is published under this number; whether what receivers hold has to change for it.
    pub fn publish(&mut self, publication: u64) -> bool {
        let standing = std::mem::take(&mut self.standing);
        if standing == Standing::Folded {
            self.publication = publication;
        }
        standing != Standing::Nothing
    }

    /// The content that it leads on from to this one, if it leads there.
    pub fn base(&self, content: u64) -> Option<u64> {
        (content > 0 && self.publication == content).then_some(self.base)
    }

    /// As it is sent.
    pub fn payload(&self) -> (Encoding, &[u8]) {
        (self.encoding, &self.payload)
    }
}

/// Value and state of a chunk, one after the other, as they are sent whole.
pub fn whole(agreed: &Agreed, value: &[u8], state: &[u8]) -> (Encoding, Vec<u8>) {
    let mut both = Vec::with_capacity(value.len() + state.len());
    both.extend_from_slice(value);
    both.extend_from_slice(state);
    // So that it is copied: nobody else keeps it.
    let sent = Sent { source: Source::ExposedLane(Foreign::of(&both)), shadow: None, position: 0 };
    let mut buffer = Vec::new();
    let encoded = agreed.encode(&sent, &mut buffer, 0);
    let encoding = encoded.encoding;
    let Payload::Buffered(range) = encoded.payload else { unreachable!("what is lent is copied") };
    buffer.truncate(range.end);
    (encoding, buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::travel::{Registry, Travel};
    use penstock_kernels::Dtype;
    use penstock_kernels::codec::Base;

    const SETTINGS: Settings = Settings([0.1, 0.9, 0.0, -0.0, 5e-324]);
    const BYTES: usize = 1024;

    fn agreed() -> Agreed {
        Travel::updates(Dtype::F32, &Registry::ALL)
    }

    fn sum(nonzero: usize) -> Vec<u8> {
        (0..BYTES / 4)
            .flat_map(|at| if at < nonzero { (at as f32 + 0.5).to_le_bytes() } else { [0; 4] })
            .collect()
    }

    #[test]
    fn an_update_comes_apart_into_what_it_was_made_of_and_zeros_take_no_bytes() {
        let agreed = agreed();
        for (nonzero, most) in [(0, 2), (3, 100), (BYTES / 4, BYTES)] {
            let (mut kept, sum) = (Kept::default(), sum(nonzero));
            kept.fold(0, (7, &SETTINGS), &sum, None, Some(&agreed));
            assert!(kept.publish(2));
            let (encoding, payload) = kept.payload();
            let (step, settings, rest) = split(payload).unwrap();
            assert_eq!(step, 7);
            assert_eq!(settings.0.map(f64::to_bits), SETTINGS.0.map(f64::to_bits));
            assert!(rest.len() <= most, "{} bytes for {nonzero} elements", rest.len());
            let mut decoded = vec![9; BYTES];
            let codec = agreed.expect(encoding, (rest.len(), None), BYTES).unwrap();
            codec.decode(rest, Base::Zeros, &mut decoded).unwrap();
            assert_eq!(decoded, sum);
        }
    }

    #[test]
    fn what_is_too_short_is_no_update() {
        assert_eq!(split(&[0; PREFIX_BYTES - 1]), Err(NoUpdate { got: PREFIX_BYTES - 1 }));
        assert!(
            split(&[0; PREFIX_BYTES]).is_ok_and(|(step, settings, rest)| step == 0
                && settings == Settings::NONE
                && rest.is_empty())
        );
    }

    /// U-1.
    #[test]
    fn an_update_leads_from_one_content_to_the_next_and_from_nowhere_else() {
        let (mut kept, agreed) = (Kept::default(), agreed());
        assert!(!kept.publish(2) && kept.base(0).is_none() && kept.base(2).is_none());
        kept.fold(2, (1, &SETTINGS), &sum(1), None, Some(&agreed));
        assert_eq!(kept.base(2), None, "it is not published so far");
        assert!(kept.publish(4));
        // A version that passes without an update leaves it as it is.
        assert!(!kept.publish(6));
        assert_eq!((kept.base(4), kept.base(6), kept.base(2)), (Some(2), None, None));
        // Loaded after it was folded, or folded twice.
        kept.fold(4, (1, &SETTINGS), &sum(1), None, Some(&agreed));
        kept.change();
        assert!(kept.publish(8));
        assert_eq!(kept.base(8), None);
        (0..2).for_each(|_| kept.fold(8, (1, &SETTINGS), &sum(1), None, Some(&agreed)));
        assert!(kept.publish(10));
        assert_eq!(kept.base(10), None);
        // Nobody was there who could be sent it.
        kept.fold(10, (1, &SETTINGS), &sum(1), None, None);
        assert!(kept.publish(12));
        assert_eq!(kept.base(12), None);
        kept.fold(12, (1, &SETTINGS), &sum(1), None, Some(&agreed));
        assert!(kept.publish(14));
        assert_eq!(kept.base(14), Some(12));
    }

    #[test]
    fn value_and_state_go_whole_in_one_payload() {
        let (agreed, value, state) = (agreed(), sum(3), vec![0; 2 * BYTES]);
        let (encoding, payload) = whole(&agreed, &value, &state);
        assert!(payload.len() < 100, "{}", payload.len());
        let mut both = vec![9; 3 * BYTES];
        let codec = agreed.expect(encoding, (payload.len(), None), 3 * BYTES).unwrap();
        codec.decode(&payload, Base::Zeros, &mut both).unwrap();
        assert_eq!(both, [value, state].concat());
        let dense: Vec<u8> = (0..BYTES).map(|at| at as u8 | 1).collect();
        assert_eq!(whole(&agreed, &dense, &dense), (Encoding::RAW, [&dense[..], &dense].concat()));
    }
}
