//! Hints in the words of a C program. The core writes them for Python, where most of its users are; what has another name in C stands
//! here, a line each.

/// How Python spells it, and how C does. The longer of two that begin the same goes first.
const WORDS: [(&str, &str); 10] = [
    ("`ps.init()`", "penstock_init()"),
    ("`close()`", "penstock_finish()"),
    ("`job.clock()`", "penstock_clock()"),
    ("`lane()`", "penstock_lane()"),
    ("push with `more=True`", "push with `more` (see penstock_call)"),
    (
        "push an array, which is added to it; a push without one",
        "push data, which is added to it; a push of NULL",
    ),
    ("fold=\"sum\" and use add", "PENSTOCK_FOLD_SUM and use penstock_add()"),
    ("give `out=`", "use penstock_pull_into()"),
    ("give an array of the tensor's shape and dtype", "give a buffer of as many bytes as is expected"),
    (
        "name the row in `produce` or `consume`",
        "name the row among those that the worker produces or consumes",
    ),
];

/// A hint of the core, for a C program.
pub(crate) fn spoken(hint: &str) -> String {
    WORDS.iter().fold(hint.to_owned(), |hint, (python, c)| hint.replace(python, c))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the core's hints stand.
    const SOURCES: [&str; 7] = [
        include_str!("../../penstock/src/worker/error.rs"),
        include_str!("../../penstock/src/options.rs"),
        include_str!("../../penstock/src/server/error.rs"),
        include_str!("../../penstock-proto/src/error.rs"),
        include_str!("../../penstock-proto/src/spec.rs"),
        include_str!("../../penstock-proto/src/items/spec.rs"),
        include_str!("../../penstock-control/src/error.rs"),
    ];

    /// What a C program can make nothing of: a call of a Python object, or an argument by keyword.
    fn is_foreign(text: &str) -> bool {
        let quoted = text.split('`').skip(1).step_by(2);
        let call = |word: &str| word.ends_with("()") && !word.starts_with("penstock_");
        let keyword = |word: &str| word.ends_with("=True") || word.ends_with('=') || word.starts_with("ps.");
        let mut quoted = quoted.filter(|word| !word.contains(' '));
        quoted.any(|word| call(word) || keyword(word)) || text.contains("fold=") || text.contains("ps.")
    }

    /// The texts in a source's `fn hint`s.
    fn hints(source: &str) -> Vec<String> {
        let bodies =
            source.split("fn hint(&self)").skip(1).map(|rest| rest.split("\n    }").next().unwrap_or(rest));
        let literals = bodies.flat_map(|body| {
            body.replace("\\\"", "\u{1}")
                .split('"')
                .skip(1)
                .step_by(2)
                .map(|text| text.replace('\u{1}', "\""))
                .collect::<Vec<_>>()
        });
        literals.collect()
    }

    #[test]
    fn no_hint_of_the_core_speaks_python_to_a_c_program() {
        let all: Vec<String> = SOURCES.iter().flat_map(|source| hints(source)).collect();
        assert!(all.len() > 30, "{all:?}");
        assert!(all.iter().any(|hint| is_foreign(hint)), "this test would find it");
        let foreign: Vec<String> =
            all.iter().map(|hint| spoken(hint)).filter(|hint| is_foreign(hint)).collect();
        assert!(foreign.is_empty(), "{foreign:?}");
    }

    #[test]
    fn every_line_of_the_table_is_used() {
        let all: Vec<String> = SOURCES.iter().flat_map(|source| hints(source)).collect();
        for (python, _) in WORDS {
            assert!(all.iter().any(|hint| hint.contains(python)), "{python}");
        }
    }
}
