//! HMAC-SHA256 over parts: a proof of knowing a key.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// Over all parts, one behind the other. All but one have a fixed length, so that nothing can be read in two ways.
pub fn of<'a>(key: &[u8], parts: impl IntoIterator<Item = &'a [u8]>) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    parts.into_iter().for_each(|part| mac.update(part));
    mac
}
