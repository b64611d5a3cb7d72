//! An encoding that the product does not have, for tests: it proves that the way of a chunk carries more than raw.

#[path = "../../../penstock-kernels/tests/travel/changes.rs"]
mod changes;

use penstock_proto::encoding::{Agreed, Encoding, Member};

pub(crate) const CHANGES: Encoding = Encoding(9);
/// What a tensor could agree to.
pub(crate) const AGREED: Agreed =
    Agreed::new(&[Member { encoding: CHANGES, codec: &changes::Changes }, Member::RAW]);
