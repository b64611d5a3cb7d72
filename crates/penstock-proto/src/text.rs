//! What a peer says: how long it may be, and in which characters.

/// What the user can do about an error, for the line that starts with `hint:`.
pub trait Hint {
    /// One sentence, or nothing where the error says it all.
    fn hint(&self) -> Option<String>;
}

/// Most bytes of a text that says what went wrong: so the reason why a job failed always fits into one message.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Cuts what is longer than `most` bytes, and says so. Line ends become spaces, and other control characters are replaced, so
/// that none controls a terminal or a log in which a peer's words are shown.
pub fn shorten(text: &mut String, most: usize) {
    const CUT: &str = " ...";
    if text.contains(char::is_control) {
        *text = text.chars().map(harmless).collect();
    }
    if text.len() > most {
        let end = (0..=most - CUT.len()).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push_str(CUT);
    }
}

fn harmless(letter: char) -> char {
    match letter {
        '\n' | '\r' | '\t' => ' ',
        letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
        letter => letter,
    }
}
