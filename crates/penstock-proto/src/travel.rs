//! How a tensor's chunks travel between hosts, as its declaration says: what of the values, and how they and the contributions
//! are encoded.
//!
//! A [`Travel`] is a few numbers, and every worker declares the same. Each end looks them up once, when the tensor is declared,
//! in its [`Registry`]; the [`Terms`] that come of it are all that is asked when a chunk is sent.
//!
//! A filter of values makes what is read lag behind: a reader of a version has only the part of each update that the filter has
//! let pass so far. That is true of the last version too. Workers on the host of a chunk's home see what the others are sent, so
//! that all read the same; the value itself stands beside it, and is what a fold adds to.
//!
//! Contributions have a filter of their own kind ([`sums`]): what it holds back is carried into the worker's next push. It runs
//! where the contribution enters the lane, once for each push, however often frames are sent; so it changes what is trained,
//! and does so alike on every host. A worker that is lost takes with it what it carried.

use crate::compress::Compress;
use crate::encoding::{Agreed, Encoding, MAX_ENCODINGS, Member};
use crate::factors::{LowRank, MAX_RANK};
use crate::propagation::Propagation;
use crate::update::Updates;
use penstock_kernels::Dtype;
use penstock_kernels::codec;
use penstock_kernels::filter::sums::{self, SumFilter};
use penstock_kernels::filter::{self, Filter, SETTINGS, Unfit};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Which filter, and its settings.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Filtering {
    /// The filter's number.
    pub filter: u8,
    /// Its settings; 0 behind the last that it has.
    pub settings: [f64; SETTINGS],
}

impl Filtering {
    /// Everything passes.
    pub const NONE: Self = Self { filter: 0, settings: [0.0; SETTINGS] };

    /// What programs call "auto", in each direction: nothing is held back while the network keeps up; where it does not, at most all
    /// within twice the root mean square.
    pub const AUTO: Self = Self { filter: 1, settings: [0.0, 0.0, 1.0, 2.0, 0.0] };

    /// The filter of contributions of that name, with so many settings as it has; `None`: this process has no such filter.
    pub fn of_sums(name: &str, settings: &[f64]) -> Option<Self> {
        let row = sums::ALL.iter().find(|row| row.name == name && row.settings.len() == settings.len())?;
        Some(Self::numbered(row.number, settings))
    }

    /// The filter of values of that name, likewise.
    pub fn of_values(name: &str, settings: &[f64]) -> Option<Self> {
        let row = filter::ALL.iter().find(|row| row.name == name && row.settings.len() == settings.len())?;
        Some(Self::numbered(row.number, settings))
    }

    fn numbered(filter: u8, settings: &[f64]) -> Self {
        let mut all = [0.0; SETTINGS];
        all[..settings.len()].copy_from_slice(settings);
        Self { filter, settings: all }
    }
}

/// Compared bit for bit: workers have to declare the same bits.
impl PartialEq for Filtering {
    fn eq(&self, other: &Self) -> bool {
        self.filter == other.filter && self.settings.map(f64::to_bits) == other.settings.map(f64::to_bits)
    }
}

/// How a tensor travels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Travel {
    /// What of the values is sent at each publication.
    pub filter: Filtering,
    /// What of a contribution is sent, and what is carried into the next.
    pub sums: Filtering,
    /// Encodings of values, in the order in which they are tried; the last is raw.
    pub values: Vec<Encoding>,
    /// Encodings of contributions, likewise.
    pub contributions: Vec<Encoding>,
    /// The largest rank of contributions that travel as [factors](crate::factors); 0: none does.
    pub low_rank: u32,
    /// How all of it is compressed between hosts.
    pub compress: Compress,
}

/// Everything, raw.
impl Default for Travel {
    fn default() -> Self {
        let raw = || vec![Encoding::RAW];
        Self {
            filter: Filtering::NONE,
            sums: Filtering::NONE,
            values: raw(),
            contributions: raw(),
            low_rank: 0,
            compress: Compress::None,
        }
    }
}

impl Travel {
    /// Through filters of pushes and of values. What these hold back reads zero in a push, and is as it was in a value: the rest is
    /// sent alone, where that is shorter; unless the filter names a codec that suits it better. What has no filter goes raw.
    pub fn filtered(sums: Filtering, filter: Filtering, dtype: Dtype) -> Self {
        let sparse = Self::changes(dtype);
        // A filter that cannot be made is refused where the tensor is declared.
        let made = Registry::ALL.filter_of_sums(&sums, dtype).ok().flatten();
        let named = made.and_then(|filter| filter.codec()).map(Encoding);
        let of_values = Registry::ALL.filter_of_values(&filter, dtype).ok();
        // What moves in another way than by steps is mostly still.
        let steps = of_values.and_then(|filter| filter.codec()).map(Encoding);
        let encodings = |filtering: Filtering, shorter: [Option<Encoding>; 2]| {
            let shorter = shorter.into_iter().flatten().filter(|_| filtering != Filtering::NONE);
            shorter.chain([Encoding::RAW]).collect()
        };
        Self {
            filter,
            sums,
            values: encodings(filter, [steps, sparse]),
            contributions: encodings(sums, [named.or(sparse), None]),
            ..Self::default()
        }
    }
}

impl Travel {
    /// The same for a tensor whose contributions are mostly zeros: what goes raw is sent as the elements that differ from zero, and
    /// of a value from what was sent before, where that is shorter.
    #[must_use]
    pub fn sparse(mut self, dtype: Dtype) -> Self {
        for encodings in [&mut self.values, &mut self.contributions] {
            if *encodings == [Encoding::RAW] {
                encodings.splice(0..0, Self::changes(dtype));
            }
        }
        self
    }

    /// The same for a tensor some of whose contributions are given as factors: of up to this rank they travel as such.
    #[must_use]
    pub fn low_rank(self, low_rank: u32) -> Self {
        Self { low_rank, ..self }
    }

    /// The same, compressed behind its encodings.
    #[must_use]
    pub fn compressed(self, compress: Compress) -> Self {
        Self { compress, ..self }
    }

    /// The encoding of the elements that have changed.
    fn changes(dtype: Dtype) -> Option<Encoding> {
        let changes = |entry: &&codec::Entry| entry.codec.uses_base() && entry.codec.carries(dtype);
        codec::ALL.iter().find(changes).map(|entry| Encoding(entry.number))
    }
}

/// What travels one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// From the home.
    Values,
    /// To the home.
    Contributions,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Values => "values",
            Self::Contributions => "contributions",
        })
    }
}

/// Why a tensor cannot travel as it was declared to.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TravelError {
    /// There is no encoding, or there are too many.
    #[error("expected 1 to {MAX_ENCODINGS} encodings of {kind}, got {got}")]
    Count {
        /// Of what.
        kind: Kind,
        /// How many.
        got: usize,
    },
    /// The last encoding is not the one that always pays.
    #[error(
        "expected raw, which is 0, as the last encoding of {kind}, got {got}: it is sent where no other pays"
    )]
    NotRaw {
        /// Of what.
        kind: Kind,
        /// The last encoding.
        got: u8,
    },
    /// An encoding stands there twice.
    #[error("expected each encoding of {kind} once, got {got} twice")]
    Twice {
        /// Of what.
        kind: Kind,
        /// Which.
        got: u8,
    },
    /// This process has no such codec.
    #[error("expected encodings of {kind} among {known:?}, got {got}: a newer version may know it")]
    UnknownEncoding {
        /// Of what.
        kind: Kind,
        /// Those that it has.
        known: Vec<u8>,
        /// What was declared.
        got: u8,
    },
    /// This process has no such filter.
    #[error("expected a filter of {kind} among {known:?}, got {got}: a newer version may know it")]
    UnknownFilter {
        /// Of what.
        kind: Kind,
        /// Those that it has.
        known: Vec<u8>,
        /// What was declared.
        got: u8,
    },
    /// The codec or filter is for other elements.
    #[error("`{what}` is not for elements of type {}", dtype.name())]
    Elements {
        /// Its name.
        what: String,
        /// The tensor's.
        dtype: Dtype,
    },
    /// A setting of the filter is out of its range.
    #[error("expected {expected} for `{what}` of the filter `{filter}`, got {got}")]
    Setting {
        /// The filter's name.
        filter: String,
        /// The setting's.
        what: String,
        /// Its range.
        expected: String,
        /// What came.
        got: f64,
    },
    /// Only products of two matrices are contributions of low rank.
    #[error("expected a matrix where contributions travel as factors (`low_rank`), got shape {got:?}")]
    NoMatrix {
        /// The shape.
        got: Vec<u64>,
    },
    /// A rank that no contribution travels with.
    #[error("expected 0 to {MAX_RANK} for `low_rank`, got {got}")]
    Rank {
        /// What came.
        got: u32,
    },
}

impl TravelError {
    /// All texts in it that are to be shown cut and clean.
    pub(crate) fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::Count { .. }
            | Self::NotRaw { .. }
            | Self::Twice { .. }
            | Self::UnknownEncoding { .. }
            | Self::UnknownFilter { .. }
            | Self::NoMatrix { .. }
            | Self::Rank { .. } => Vec::new(),
            Self::Elements { what, dtype: _ } => vec![what],
            Self::Setting { filter, what, expected, got: _ } => vec![filter, what, expected],
        }
    }
}

/// The codecs and filters that a process has.
#[derive(Debug, Clone, Copy)]
pub struct Registry {
    /// Codecs, among them raw.
    pub codecs: &'static [codec::Entry],
    /// Filters of values.
    pub filters: &'static [filter::Entry],
    /// Filters of contributions.
    pub sums: &'static [sums::Entry],
}

impl Registry {
    /// All that there are.
    pub const ALL: Self = Self { codecs: codec::ALL, filters: filter::ALL, sums: sums::ALL };

    /// The codecs that these encodings name.
    fn agree(&self, kind: Kind, encodings: &[Encoding], dtype: Dtype) -> Result<Agreed, TravelError> {
        let Some(last) = encodings.last().filter(|_| encodings.len() <= MAX_ENCODINGS) else {
            return Err(TravelError::Count { kind, got: encodings.len() });
        };
        let mut members = [Member::RAW; MAX_ENCODINGS];
        for (place, (&encoding, member)) in encodings.iter().zip(&mut members).enumerate() {
            let got = encoding.0;
            let Some(entry) = self.codecs.iter().find(|entry| entry.number == got) else {
                let known = self.codecs.iter().map(|entry| entry.number).collect();
                return Err(TravelError::UnknownEncoding { kind, known, got });
            };
            if encodings[..place].contains(&encoding) {
                return Err(TravelError::Twice { kind, got });
            }
            if !entry.codec.carries(dtype) {
                return Err(TravelError::Elements { what: entry.name.to_owned(), dtype });
            }
            *member = Member { encoding, codec: entry.codec };
        }
        if *last != Encoding::RAW {
            return Err(TravelError::NotRaw { kind, got: last.0 });
        }
        Ok(Agreed::new(&members[..encodings.len()]))
    }

    /// The filter of values, made.
    fn filter_of_values(&self, filtering: &Filtering, dtype: Dtype) -> Result<Arc<dyn Filter>, TravelError> {
        let row = |entry: &'static filter::Entry| Row {
            number: entry.number,
            name: entry.name,
            settings: entry.settings,
            make: entry.make,
        };
        make(Kind::Values, self.filters.iter().map(row), filtering, dtype)
    }

    /// The filter of contributions, made; `None` where nothing is ever held back.
    fn filter_of_sums(
        &self,
        filtering: &Filtering,
        dtype: Dtype,
    ) -> Result<Option<Arc<dyn SumFilter>>, TravelError> {
        let row = |entry: &'static sums::Entry| Row {
            number: entry.number,
            name: entry.name,
            settings: entry.settings,
            make: entry.make,
        };
        make(Kind::Contributions, self.sums.iter().map(row), filtering, dtype)
    }
}

/// A filter of either kind, in a registry.
struct Row<T> {
    number: u8,
    name: &'static str,
    settings: &'static [&'static str],
    make: fn(Dtype, &[f64]) -> Result<T, Unfit>,
}

/// Makes the filter that is asked for.
fn make<T>(
    kind: Kind,
    mut rows: impl Iterator<Item = Row<T>>,
    filtering: &Filtering,
    dtype: Dtype,
) -> Result<T, TravelError> {
    let Filtering { filter: got, settings } = *filtering;
    let mut known = Vec::new();
    let Some(row) = rows.find(|row| {
        known.push(row.number);
        row.number == got
    }) else {
        return Err(TravelError::UnknownFilter { kind, known, got });
    };
    let refused = |place: usize, expected: &str| {
        let what =
            row.settings.get(place).map_or_else(|| format!("setting {place}"), |&what| what.to_owned());
        let (filter, expected) = (row.name.to_owned(), expected.to_owned());
        TravelError::Setting { filter, what, expected, got: settings[place.min(SETTINGS - 1)] }
    };
    let (its, others) = settings.split_at(row.settings.len().min(SETTINGS));
    if let Some(place) = its.iter().position(|setting| !setting.is_finite()) {
        return Err(refused(place, "a finite number"));
    }
    if let Some(place) = others.iter().position(|setting| setting.to_bits() != 0) {
        return Err(refused(its.len() + place, "0, as there is no such setting,"));
    }
    (row.make)(dtype, its).map_err(|unfit| match unfit {
        Unfit::Dtype => TravelError::Elements { what: row.name.to_owned(), dtype },
        Unfit::Setting { place, expected } => refused(place, expected),
    })
}

/// What a declaration comes to in this process.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Encodings of values.
    pub values: Agreed,
    /// Encodings of contributions.
    pub contributions: Agreed,
    /// What of the values is sent.
    pub filter: Arc<dyn Filter>,
    /// What of a contribution is sent; `None`: all of it.
    pub sums: Option<Arc<dyn SumFilter>>,
    /// Whether contributions may travel as factors.
    pub low_rank: Option<LowRank>,
    /// Who moves the values.
    pub propagation: Propagation,
    /// Whether readers see nothing of a value between two versions.
    pub shows_versions_only: bool,
    /// How updates travel, and what is sent whole beside them; `None`: it is values that are sent.
    pub updates: Option<Updates>,
}

impl Terms {
    /// Whether readers may lack something of the value, which is then kept beside what they see.
    pub fn holds_back(&self) -> bool {
        self.shows_versions_only || self.filter.holds_back()
    }
}

impl Travel {
    /// Looks up what it names, and judges it, foreign or our own. Readers pull, unless the declaration says otherwise.
    pub fn resolve(&self, dtype: Dtype, known: &Registry) -> Result<Terms, TravelError> {
        Ok(Terms {
            values: known.agree(Kind::Values, &self.values, dtype)?.compressed(self.compress),
            contributions: known
                .agree(Kind::Contributions, &self.contributions, dtype)?
                .compressed(self.compress),
            filter: known.filter_of_values(&self.filter, dtype)?,
            sums: known.filter_of_sums(&self.sums, dtype)?,
            low_rank: None,
            propagation: Propagation::Pull,
            shows_versions_only: false,
            updates: None,
        })
    }

    /// Encodings of updates: elements that are zero take no bytes, where that is shorter. Of contributions that a filter wrote in few
    /// bits it is the sum that is sent, which is not written so.
    pub(crate) fn updates(dtype: Dtype, known: &Registry) -> Agreed {
        let changes = |entry: &&codec::Entry| entry.codec.uses_base() && entry.codec.carries(dtype);
        let sparse = known.codecs.iter().find(changes);
        match sparse.map(|entry| Member { encoding: Encoding(entry.number), codec: entry.codec }) {
            Some(sparse) => Agreed::new(&[sparse, Member::RAW]),
            None => Agreed::RAW,
        }
    }

    /// Whether contributions to a tensor of this shape may travel as factors.
    pub(crate) fn factors(&self, shape: &[u64], dtype: Dtype) -> Result<Option<LowRank>, TravelError> {
        match (self.low_rank, shape) {
            (0, _) => Ok(None),
            (got, _) if got > MAX_RANK => Err(TravelError::Rank { got }),
            (most, &[_, columns]) => Ok(Some(LowRank { dtype, columns, most })),
            (_, got) => Err(TravelError::NoMatrix { got: got.to_vec() }),
        }
    }

    /// The first part in which `other` differs, as (what, ours, theirs).
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let numbers = |encodings: &[Encoding]| {
            let numbers: Vec<u8> = encodings.iter().map(|encoding| encoding.0).collect();
            format!("{numbers:?}")
        };
        let told = |Filtering { filter, settings }: Filtering, row: Option<(&str, &[&str])>| match row {
            _ if filter == 0 => "none".to_owned(),
            None => format!("{filter} with {settings:?}"),
            Some((name, names)) => {
                let settings = names.iter().zip(settings);
                let settings: Vec<String> =
                    settings.map(|(name, setting)| format!("{name} {setting}")).collect();
                if settings.is_empty() {
                    name.to_owned()
                } else {
                    format!("{name} with {}", settings.join(", "))
                }
            }
        };
        let of_values = |filtering: Filtering| {
            let row = filter::ALL.iter().find(|row| row.number == filtering.filter);
            told(filtering, row.map(|row| (row.name, row.settings)))
        };
        let of_sums = |filtering: Filtering| {
            let row = sums::ALL.iter().find(|row| row.number == filtering.filter);
            told(filtering, row.map(|row| (row.name, row.settings)))
        };
        let pairs = [
            ("filter of values", of_values(self.filter), of_values(other.filter)),
            ("filter of contributions", of_sums(self.sums), of_sums(other.sums)),
            ("encodings of values (as `sparse` says)", numbers(&self.values), numbers(&other.values)),
            (
                "encodings of contributions (as `sparse` says)",
                numbers(&self.contributions),
                numbers(&other.contributions),
            ),
            ("low_rank", self.low_rank.to_string(), other.low_rank.to_string()),
            ("compress", self.compress.to_string(), other.compress.to_string()),
        ];
        pairs.into_iter().find(|(_, ours, theirs)| ours != theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_kernels::codec::Raw;
    use penstock_kernels::filter::Everything;

    const BY: [u8; 2] = [1, 0];

    /// Codecs and filters that are told apart by their numbers, some of them for f32 alone.
    fn known() -> Registry {
        #[derive(Debug)]
        struct Narrow;

        impl codec::Codec for Narrow {
            fn carries(&self, dtype: Dtype) -> bool {
                dtype == Dtype::F32
            }

            fn lengths(&self, bytes: usize) -> std::ops::RangeInclusive<usize> {
                0..=2 * bytes
            }

            fn encode(
                &self,
                _: penstock_kernels::Foreign<'_>,
                _: Option<&[u8]>,
                _: &mut [u8],
            ) -> Option<usize> {
                None
            }

            fn decode(&self, _: &[u8], _: codec::Base, _: &mut [u8]) -> Result<(), codec::Undecodable> {
                Ok(())
            }
        }

        const fn entry(number: u8, name: &'static str, codec: &'static dyn codec::Codec) -> codec::Entry {
            codec::Entry { number, name, codec }
        }

        const BOUNDED: filter::Entry = filter::Entry {
            number: 4,
            name: "bounded",
            settings: &["bound"],
            make: |dtype, settings| match *settings {
                _ if dtype != Dtype::F32 => Err(Unfit::Dtype),
                [bound] if bound > 0.0 => Ok(Arc::new(Everything)),
                _ => Err(Unfit::Setting { place: 0, expected: "a number above 0" }),
            },
        };
        Registry {
            codecs: const { &[entry(0, "raw", &Raw), entry(1, "narrow", &Narrow), entry(2, "other", &Raw)] },
            filters: const { &[filter::ALL[0], BOUNDED] },
            sums: sums::ALL,
        }
    }

    fn travel(values: &[u8], contributions: &[u8], filter: u8, [first, second]: [f64; 2]) -> Travel {
        let encodings = |numbers: &[u8]| numbers.iter().map(|&number| Encoding(number)).collect();
        let filter = Filtering { filter, settings: [first, second, 0.0, 0.0, 0.0] };
        Travel {
            filter,
            values: encodings(values),
            contributions: encodings(contributions),
            ..Travel::default()
        }
    }

    #[test]
    fn what_nobody_says_otherwise_is_everything_raw_and_this_process_knows_it() {
        let terms = Travel::default().resolve(Dtype::F64, &Registry::ALL).unwrap();
        assert!(
            terms.values.is_verbatim() && terms.contributions.is_verbatim() && !terms.filter.holds_back()
        );
    }

    #[test]
    fn each_way_has_its_own_encodings_and_the_longest_payload_is_that_of_any() {
        let terms = travel(&BY, &[2, 0], 4, [0.5, 0.0]).resolve(Dtype::F32, &known()).unwrap();
        assert!(terms.values.expect(Encoding(1), (7, None), 8).is_ok());
        assert!(terms.values.expect(Encoding(2), (8, None), 8).is_err());
        assert!(terms.contributions.expect(Encoding(2), (8, None), 8).is_ok());
        assert!(terms.contributions.expect(Encoding(1), (7, None), 8).is_err());
        assert_eq!((terms.values.longest(8), terms.contributions.longest(8)), (16, 8));
        assert!(!terms.values.is_verbatim() && !terms.values.uses_base());
    }

    #[test]
    fn what_is_declared_wrong_is_refused_and_the_refusal_says_what_was_expected() {
        let nan = f64::NAN;
        for (declared, said) in [
            (travel(&[], &[0], 0, [0.0; 2]), "expected 1 to 4 encodings of values, got 0"),
            (
                travel(&[0], &[1, 2, 0, 1, 2], 0, [0.0; 2]),
                "expected 1 to 4 encodings of contributions, got 5",
            ),
            (
                travel(&[1], &[0], 0, [0.0; 2]),
                "expected raw, which is 0, as the last encoding of values, got 1: it is sent where no other pays",
            ),
            (
                travel(&[0], &[0, 1], 0, [0.0; 2]),
                "expected raw, which is 0, as the last encoding of contributions, got 1: it is sent where no other pays",
            ),
            (travel(&[1, 1, 0], &[0], 0, [0.0; 2]), "expected each encoding of values once, got 1 twice"),
            (
                travel(&[0], &[9, 0], 0, [0.0; 2]),
                "expected encodings of contributions among [0, 1, 2], got 9: a newer version may know it",
            ),
            (
                travel(&[0], &[0], 9, [0.0; 2]),
                "expected a filter of values among [0, 4], got 9: a newer version may know it",
            ),
            (
                travel(&[0], &[0], 4, [-1.0, 0.0]),
                "expected a number above 0 for `bound` of the filter `bounded`, got -1",
            ),
            (
                travel(&[0], &[0], 4, [nan, 0.0]),
                "expected a finite number for `bound` of the filter `bounded`, got NaN",
            ),
            (
                travel(&[0], &[0], 4, [1.0, 2.0]),
                "expected 0, as there is no such setting, for `setting 1` of the filter `bounded`, got 2",
            ),
            (
                travel(&[0], &[0], 0, [0.0, -0.0]),
                "expected 0, as there is no such setting, for `setting 1` of the filter `everything`, got -0",
            ),
            (
                travel(&[0], &[0], 0, [3.0, 0.0]),
                "expected 0, as there is no such setting, for `setting 0` of the filter `everything`, got 3",
            ),
        ] {
            assert_eq!(declared.resolve(Dtype::F32, &known()).unwrap_err().to_string(), said);
        }
        for (declared, what) in
            [(travel(&BY, &[0], 0, [0.0; 2]), "narrow"), (travel(&[0], &[0], 4, [1.0, 0.0]), "bounded")]
        {
            assert!(declared.resolve(Dtype::F32, &known()).is_ok());
            let refused = declared.resolve(Dtype::Bf16, &known()).unwrap_err();
            assert_eq!(refused.to_string(), format!("`{what}` is not for elements of type bfloat16"));
        }
    }

    #[test]
    fn a_difference_names_the_part_that_differs() {
        let ours = travel(&BY, &[0], 204, [0.5, 0.0]);
        assert_eq!(ours.difference(&ours.clone()), None);
        let packed = ours.clone().compressed(Compress::Auto);
        assert_eq!(ours.difference(&packed), Some(("compress", "none".to_owned(), "auto".to_owned())));
        let terms = travel(&BY, &[0], 4, [0.5, 0.0]).compressed(Compress::Auto);
        let terms = terms.resolve(Dtype::F32, &known()).unwrap();
        assert_eq!([terms.values, terms.contributions].map(|agreed| agreed.compress()), [Compress::Auto; 2]);
        for (theirs, what) in [
            (
                travel(&BY, &[0], 204, [0.25, 0.0]),
                (
                    "filter of values",
                    "204 with [0.5, 0.0, 0.0, 0.0, 0.0]",
                    "204 with [0.25, 0.0, 0.0, 0.0, 0.0]",
                ),
            ),
            (
                travel(&BY, &[0], 0, [0.0; 2]),
                ("filter of values", "204 with [0.5, 0.0, 0.0, 0.0, 0.0]", "none"),
            ),
            (
                travel(&[0], &[0], 204, [0.5, 0.0]),
                ("encodings of values (as `sparse` says)", "[1, 0]", "[0]"),
            ),
            (
                travel(&BY, &[1, 0], 204, [0.5, 0.0]),
                ("encodings of contributions (as `sparse` says)", "[0]", "[1, 0]"),
            ),
        ] {
            let (what, mine, its) = what;
            assert_eq!(ours.difference(&theirs), Some((what, mine.to_owned(), its.to_owned())));
        }
    }

    #[test]
    fn what_is_filtered_is_sent_sparse_where_that_is_shorter_and_the_rest_raw() {
        let bounded = Filtering::of_sums("DVF", &[0.5, 1.0, 0.0, 0.5, 0.0]).unwrap();
        let own = Filtering::of_sums("Own", &[7.0]).unwrap();
        assert_eq!(Filtering::of_values("Own", &[7.0]), None, "servers have none of a program's code");
        let top = Filtering::of_values("TopK", &[0.5]).unwrap();
        for (dtype, sparse) in [(Dtype::Bf16, 1), (Dtype::F16, 1), (Dtype::F32, 2), (Dtype::F64, 3)] {
            for sums in [bounded, own] {
                let travel = Travel::filtered(sums, Filtering::NONE, dtype);
                assert_eq!(travel.contributions, [Encoding(sparse), Encoding::RAW]);
                let terms = travel.resolve(dtype, &Registry::ALL).unwrap();
                assert!(terms.values.is_verbatim() && !terms.contributions.is_verbatim());
                assert!(terms.sums.is_some() && !terms.filter.holds_back());
            }
            let travel = Travel::filtered(Filtering::NONE, top, dtype);
            assert_eq!(travel.values, [Encoding(sparse), Encoding::RAW]);
            let terms = travel.resolve(dtype, &Registry::ALL).unwrap();
            assert!(terms.values.uses_base() && terms.contributions.is_verbatim() && terms.sums.is_none());
            assert!(terms.filter.holds_back());
        }
        assert_eq!(Travel::filtered(Filtering::NONE, Filtering::NONE, Dtype::F32), Travel::default());
        let both = [Encoding(2), Encoding::RAW];
        let sparse = Travel::default().sparse(Dtype::F32);
        assert_eq!((&sparse.values[..], &sparse.contributions[..]), (&both[..], &both[..]));
        assert_eq!(sparse.clone().sparse(Dtype::F32), sparse);
        let quantized = Filtering::of_sums("Quantize int8", &[]).unwrap();
        let travel = Travel::filtered(quantized, Filtering::NONE, Dtype::F32).sparse(Dtype::F32);
        assert_eq!((&travel.values[..], travel.contributions[0]), (&both[..], Encoding(24)));
        assert_eq!(Filtering::of_values("TopK", &[0.5, 1.0]), None);
        assert_eq!(Filtering::of_sums("DVF", &[0.5]), None);
        let (auto, follows) = (Some(Filtering::AUTO), "low 0, decay 0, relative 1, up 2, sufficient 0");
        assert_eq!(Filtering::of_sums("DVF", &Filtering::AUTO.settings), auto);
        assert_eq!(Filtering::of_values("DVF", &Filtering::AUTO.settings), auto);
        let told =
            Travel::filtered(Filtering::AUTO, Filtering::NONE, Dtype::F32).difference(&Travel::default());
        assert!(told.is_some_and(|(_, ours, _)| ours.contains(follows)));
        assert_eq!(Filtering::of_sums("dvf", &[0.5, 1.0, 0.0]), None);
    }

    #[test]
    fn what_is_quantized_is_sent_in_the_codec_that_its_filter_names() {
        for (name, settings, numbers) in [
            ("Quantize f16", &[][..], [Some(16), Some(17), None, None]),
            ("Quantize bf16", &[], [Some(20), Some(21), None, None]),
            ("Quantize int8", &[], [Some(24), Some(25), Some(26), Some(27)]),
            ("Quantize 2bit", &[0.5], [Some(28), Some(29), Some(30), Some(31)]),
            ("Quantize 1bit", &[], [Some(32), Some(33), Some(34), Some(35)]),
        ] {
            let sums = Filtering::of_sums(name, settings).unwrap();
            let of_values = Filtering::of_values(name, settings);
            assert_eq!(of_values, Some(sums), "it has the same number and settings");
            for (dtype, number) in Dtype::ALL.into_iter().zip(numbers) {
                let travel = Travel::filtered(sums, Filtering::NONE, dtype);
                let Some(number) = number else {
                    // It has 16 bits already.
                    assert!(travel.resolve(dtype, &Registry::ALL).unwrap().sums.is_none());
                    continue;
                };
                assert_eq!(travel.contributions, [Encoding(number), Encoding::RAW]);
                assert_eq!(travel.values, [Encoding::RAW]);
                let terms = travel.resolve(dtype, &Registry::ALL).unwrap();
                assert!(terms.sums.is_some() && !terms.contributions.uses_base());
            }
        }
        for (name, settings, first) in [
            ("Quantize int8", &[][..], 36),
            ("Quantize f16", &[], 40),
            ("Quantize bf16", &[], 44),
            ("Quantize 2bit", &[0.5], 48),
            ("Quantize 1bit", &[], 52),
        ] {
            let steps = Filtering::of_values(name, settings).unwrap();
            for (at, (dtype, sparse)) in Dtype::ALL.into_iter().zip([2, 3, 1, 1]).enumerate() {
                let travel = Travel::filtered(Filtering::NONE, steps, dtype);
                let terms = travel.resolve(dtype, &Registry::ALL).unwrap();
                if name.ends_with("f16") && dtype.size() == 2 {
                    assert!(!terms.filter.holds_back());
                    continue;
                }
                let expected = [Encoding(first + at as u8), Encoding(sparse), Encoding::RAW];
                assert_eq!(travel.values, expected, "{name} of {dtype:?}");
                assert!(terms.filter.holds_back() && terms.values.uses_base());
            }
        }
        let travel = |name, settings: &[f64]| {
            Travel::filtered(Filtering::of_sums(name, settings).unwrap(), Filtering::NONE, Dtype::F32)
        };
        let differs = travel("Quantize int8", &[]).difference(&travel("Quantize 2bit", &[0.5]));
        let told =
            ("filter of contributions", "Quantize int8".into(), "Quantize 2bit with threshold 0.5".into());
        assert_eq!(differs, Some(told));
    }

    #[test]
    fn contributions_have_a_filter_of_their_own_which_is_told_by_its_name() {
        let bounded = |low| Travel {
            sums: Filtering { filter: 1, settings: [low, 1.0, 0.0, low, 0.0] },
            ..Travel::default()
        };
        let sums = |travel: &Travel| travel.resolve(Dtype::F16, &Registry::ALL).unwrap().sums;
        assert!(
            sums(&bounded(0.5)).is_some()
                && sums(&bounded(0.0)).is_none()
                && sums(&Travel::default()).is_none()
        );
        let what = "filter of contributions";
        let (ours, theirs) = (
            "DVF with low 0.5, decay 1, relative 0, up 0.5, sufficient 0",
            "DVF with low 0.25, decay 1, relative 0, up 0.25, sufficient 0",
        );
        let differs = bounded(0.5).difference(&bounded(0.25));
        assert_eq!(differs, Some((what, ours.to_owned(), theirs.to_owned())));
        let differs = bounded(0.5).difference(&Travel::default());
        assert_eq!(differs, Some((what, ours.to_owned(), "none".to_owned())));
        let refused = |travel: Travel| travel.resolve(Dtype::F16, &Registry::ALL).unwrap_err().to_string();
        let said = "expected a number of at least 0 for `low` of the filter `DVF`, got -1";
        assert_eq!(refused(bounded(-1.0)), said);
        let unknown = Travel { sums: Filtering { filter: 200, ..Filtering::NONE }, ..Travel::default() };
        let said = "expected a filter of contributions among [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], got 200: a newer version may know it";
        assert_eq!(refused(unknown), said);
    }
}
