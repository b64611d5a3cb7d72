//! What somebody says: in how many letters, and which.

/// What the user can do about an error, for the line that starts with `hint:`.
pub trait Hint {
    /// One sentence, or nothing where the error says it all.
    fn hint(&self) -> Option<String>;
}

/// Most bytes of a text in which somebody says what went wrong: so whoever is told why a job failed is told in one message.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Cuts what is longer than `most` bytes, and says so. What is left are letters: line ends become spaces, and no other character
/// rules a terminal or a log that a peer's words are shown in.
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
