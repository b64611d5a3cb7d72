//! What a peer says: how long it may be, and in which characters.

/// What the user can do about an error, for the line that starts with `hint:`.
pub trait Hint {
    /// One sentence, or nothing where the error says it all.
    fn hint(&self) -> Option<String>;
}

/// Most bytes of a text that says what went wrong: so the reason why a job failed always fits into one message.
pub const MAX_TEXT_BYTES: usize = 1024;

const LINE_SEPARATOR: char = '\u{2028}';
const PARAGRAPH_SEPARATOR: char = '\u{2029}';

/// Cuts what is longer than `most` bytes, and says so. Line ends become spaces, and what else controls a terminal or a log is
/// replaced, the direction of writing too: a peer's words are shown there, and neither make lines of their own nor turn others.
pub fn shorten(text: &mut String, most: usize) {
    const CUT: &str = " ...";
    if !is_harmless(text) {
        *text = text.chars().map(harmless).collect();
    }
    if text.len() > most {
        let end = (0..=most - CUT.len()).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push_str(CUT);
    }
}

/// Whether none of it would be replaced by [`shorten`].
pub fn is_harmless(text: &str) -> bool {
    text.chars().all(|letter| harmless(letter) == letter)
}

fn harmless(letter: char) -> char {
    match letter {
        '\n' | '\r' | '\t' | LINE_SEPARATOR | PARAGRAPH_SEPARATOR => ' ',
        // Embeddings, overrides and isolates of text that is written from right to left.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
        letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
        letter => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let mut text = text.to_owned();
        shorten(&mut text, MAX_TEXT_BYTES);
        text
    }

    // Python splits lines at them, and so a peer's words were taken for the error of the process that showed them.
    #[test]
    fn no_peers_words_make_a_line_of_their_own_wherever_lines_are_split() {
        for end in ['\n', '\r', LINE_SEPARATOR, PARAGRAPH_SEPARATOR] {
            assert_eq!(shown(&format!("disk full{end}hint: ...")), "disk full hint: ...", "{end:?}");
        }
        for end in ['\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}'] {
            assert_eq!(shown(&format!("disk full{end}hint: ...")), "disk full\u{fffd}hint: ...", "{end:?}");
        }
    }

    #[test]
    fn no_peers_words_turn_the_direction_in_which_others_are_written() {
        for turn in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            assert_eq!(shown(&format!("worker 1{turn} :tsol")), "worker 1\u{fffd} :tsol", "{turn:?}");
        }
        let own = "\u{5e9}\u{5dc}\u{5d5}\u{5dd}, \u{e9}t\u{e9}, \u{2014} \u{1f600}";
        assert_eq!(shown(own), own, "what is only written stays");
    }
}
