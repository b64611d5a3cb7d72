//! A second codec and a second filter, for tests alone: they prove that the seams carry more than what travels raw.

pub(crate) mod changes;
pub(crate) mod loud;

use changes::Changes;
use loud::Loud;
use penstock_kernels::{codec, filter};

/// All codecs and this one, as tests make them known.
#[allow(dead_code, reason = "each test uses its part")]
pub(crate) const CODECS: &[codec::Entry] =
    &[codec::ALL[0], codec::Entry { number: 9, name: "changes", codec: &Changes }];
/// All filters and this one.
#[allow(dead_code, reason = "each test uses its part")]
pub(crate) const FILTERS: &[filter::Entry] =
    &[filter::ALL[0], filter::Entry { number: 207, name: "loud", settings: &["quiet"], make: Loud::make }];
