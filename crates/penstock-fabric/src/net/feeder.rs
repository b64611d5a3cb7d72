//! A *parent* of a worker, over any link: what it passes on of a home's values is the home's, as the seal beside each frame shows. It
//! greets, shows that it lives until then, and goes on with what it has under way where another feeds in its place.

use super::frames::{FrameReader, Places, Step};
use super::link::Link;
use penstock_kernels::codec::Codec;
use penstock_proto::frame::{Body, Header, Notice};
use penstock_proto::overlay::{Parent, Stripes};
use penstock_proto::seal::Verifier;
use std::time::Duration;

/// How long a parent may take to say that it feeds a child: it may have to hear of the child's route first.
const GREETS_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take that shows meanwhile that it lives: it goes back to memory of its own, and passes nothing on before.
const SHOWS_LIFE_FOR: Duration = Duration::from_secs(60);
/// How long what the parent before has under way is still taken.
const ENDS_WITHIN: Duration = Duration::from_millis(400);

/// One that feeds this worker.
pub(super) struct Feeder<L> {
    pub(super) parent: Parent,
    /// Whether it has said that it does; since when it has been waited for, and, whatever it said, at all; whether it has shown since
    /// it was looked at that it lives.
    pub(super) greeted: bool,
    since: Option<Duration>,
    awaited: Option<Duration>,
    lives: bool,
    /// What it feeds; what another feeds by now, of which it may have something that the other never had to pass on; since when.
    pub(super) stripes: Stripes,
    /// Whether values stand in memory that it lends, or stood there: of some it says only that they are new, also after that.
    pub(super) lends: bool,
    ending: Stripes,
    ends: Option<Duration>,
    link: L,
    reader: FrameReader<Option<&'static dyn Codec>>,
    /// Of the frame that comes next, if it has come.
    seal: Vec<u8>,
    is_sealed: bool,
    readable: bool,
}

/// What a look at one brought.
pub(super) enum Fed {
    /// A frame of the home, and what decodes it, if its tensor is known here; its payload is the reader's.
    Frame(Header, Option<&'static dyn Codec>),
    /// It feeds from now on.
    Greeting,
    /// A seal, or part of something.
    Part,
    /// Nothing now.
    Nothing,
    /// The connection has ended.
    Ended(String),
    /// It feeds no more: why.
    Over(String),
}

impl<L: Link> Feeder<L> {
    pub(super) fn new(parent: Parent, stripes: Stripes, link: L, read: usize) -> Self {
        let reader = FrameReader::reading_ahead(read);
        Self {
            parent,
            greeted: false,
            since: None,
            awaited: None,
            lives: false,
            stripes,
            lends: false,
            ending: Stripes::default(),
            ends: None,
            link,
            reader,
            seal: Vec::new(),
            is_sealed: false,
            readable: true,
        }
    }

    pub(super) fn stripes(&self) -> Stripes {
        self.stripes
    }

    /// Whether something of this stripe is taken of it.
    pub(super) fn brings(&self, stripe: usize) -> bool {
        self.stripes.or(self.ending).has(stripe)
    }

    /// It feeds these no more; whether anything is left.
    pub(super) fn forget(&mut self, stripes: Stripes) -> bool {
        (self.stripes, self.ending) = (self.stripes.without(stripes), self.ending.without(stripes));
        !self.stripes.or(self.ending).is_empty()
    }

    /// Another feeds these from now on: what is under way still comes. Whether anything is left.
    pub(super) fn hand_over(&mut self, stripes: Stripes) -> bool {
        let ending = if self.greeted { self.stripes.and(stripes) } else { Stripes::default() };
        self.stripes = self.stripes.without(stripes);
        if !ending.is_empty() {
            (self.ending, self.ends) = (self.ending.or(ending), None);
        }
        !self.stripes.or(self.ending).is_empty()
    }

    /// Whether something that was under way may still come.
    pub(super) fn is_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// It is waited for no longer than for a while, as of a moment of the owner's clock; whether anything is left.
    pub(super) fn end(&mut self, now: Duration) -> bool {
        if self.is_ending() && now.saturating_sub(*self.ends.get_or_insert(now)) > ENDS_WITHIN {
            self.ending = Stripes::default();
        }
        !self.stripes.or(self.ending).is_empty()
    }

    /// The next frame that it has, if it is the home's.
    pub(super) fn hear(
        &mut self,
        places: &mut impl Places<Place = Option<&'static dyn Codec>>,
        verifier: &mut Verifier,
    ) -> Fed {
        if !self.readable {
            return Fed::Nothing;
        }
        match self.reader.next(&mut self.link, places) {
            Step::Frame(header, codec) => {
                if header.body == Body::Alive && !self.greeted {
                    self.lives = true;
                    return Fed::Part;
                }
                let greets = header.body == Body::Notice(Notice::Taken);
                if greets == self.greeted {
                    return Fed::Over("it sent something else than a greeting and values".to_owned());
                }
                if greets {
                    self.greeted = true;
                    return Fed::Greeting;
                }
                if header.body == Body::Notice(Notice::Seal) {
                    if std::mem::replace(&mut self.is_sealed, true) {
                        return Fed::Over("it sent two seals for one frame".to_owned());
                    }
                    self.seal.clear();
                    self.seal.extend_from_slice(self.reader.payload());
                    return Fed::Part;
                }
                // What it says of its own memory nobody else has made, and whoever looks there believes nothing but what it finds.
                if matches!(header.body, Body::Notice(Notice::Lent { .. })) && self.lends && !self.is_sealed {
                    return Fed::Frame(header, None);
                }
                if !std::mem::take(&mut self.is_sealed) {
                    return Fed::Over("it sent a frame without a seal".to_owned());
                }
                match verifier.check(&self.seal, &header, self.reader.payload()) {
                    Ok(()) => Fed::Frame(header, codec),
                    Err(forged) => Fed::Over(forged.to_string()),
                }
            }
            Step::Header => Fed::Part,
            Step::Nothing => {
                self.readable = false;
                Fed::Nothing
            }
            Step::Ended(why) => Fed::Ended(why),
            Step::Broke(why) => Fed::Over(why),
        }
    }

    /// Time in which this process did nothing does not count.
    pub(super) fn begin_again(&mut self) {
        if !self.greeted {
            (self.since, self.awaited) = (None, None);
        }
    }

    /// Whether it has said nothing for long, or no greeting for very long, as of a moment of the owner's clock.
    pub(super) fn is_silent(&mut self, now: Duration) -> bool {
        if std::mem::take(&mut self.lives) {
            self.since = Some(now);
        }
        let for_long =
            |since: &mut Option<Duration>, most| now.saturating_sub(*since.get_or_insert(now)) > most;
        !self.greeted
            && (for_long(&mut self.since, GREETS_WITHIN) | for_long(&mut self.awaited, SHOWS_LIFE_FOR))
    }

    pub(super) fn seal(&self) -> &[u8] {
        &self.seal
    }

    pub(super) fn payload(&self) -> &[u8] {
        self.reader.payload()
    }

    pub(super) fn ready(&mut self) {
        self.readable = true;
        self.reader.look_again();
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    pub(super) fn link(&self) -> &L {
        &self.link
    }
}
