//! Bytes as hexadecimal digits.

use std::fmt::Write as _;

/// Lower-case digits, two a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// The bytes of exactly as many digits, in either case.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_read_back_as_the_bytes_that_they_were_and_nothing_else_is_read() {
        assert_eq!(hex(&[0, 0x5a, 0xff]), "005aff");
        assert_eq!(unhex("005Aff"), Some([0, 0x5a, 0xff]));
        for no_digits in ["", "005af", "005aff0", "005ag0", "+05aff", "\u{ff11}aff"] {
            assert_eq!(unhex::<3>(no_digits), None, "{no_digits}");
        }
    }
}
