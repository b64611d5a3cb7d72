//! The committed header is what the sources say.
//!
//! `PENSTOCK_BLESS=1 cargo test -p penstock-capi --test header` writes it anew.

use penstock_kernels::filter::sums;
use penstock_kernels::{Flag, RULES};
use std::path::Path;

#[test]
fn the_header_is_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = root.join("include/penstock.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml can be read");
    let bindings = cbindgen::Builder::new().with_crate(root).with_config(config).generate();
    let mut made = Vec::new();
    bindings.expect("the sources can be read").write(&mut made);
    let made = String::from_utf8(made).expect("a header is text");
    if std::env::var_os("PENSTOCK_BLESS").is_some() {
        std::fs::write(&committed, &made).expect("the header can be written");
    }
    let found = std::fs::read_to_string(&committed).expect("include/penstock.h is committed");
    let differs = made.lines().zip(found.lines()).find(|(made, found)| made != found);
    assert_eq!(
        differs, None,
        "(made, committed); PENSTOCK_BLESS=1 cargo test -p penstock-capi --test header writes it anew"
    );
    assert_eq!(made.len(), found.len());
}

#[test]
fn the_header_has_every_optimizer_of_the_table_with_its_numbers_and_flags() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/penstock.h");
    let header = std::fs::read_to_string(header).expect("include/penstock.h is committed");
    let lines: Vec<&str> = header.lines().map(str::trim).collect();
    let find = |line: &str| {
        lines.iter().position(|found| *found == line).unwrap_or_else(|| panic!("penstock.h lacks `{line}`"))
    };
    let capitals = |name: &str| format!("PENSTOCK_{}", name.to_uppercase());
    for (place, row) in RULES.iter().enumerate() {
        let constant = find(&format!("{} = {place},", capitals(row.name)));
        if row.settings.is_empty() {
            continue;
        }
        find(&format!("penstock_optimizer penstock_{}(double lr);", row.name.to_lowercase()));
        let numbers: Vec<&str> = row.settings.iter().map(|setting| setting.name).collect();
        numbers.iter().for_each(|number| _ = find(&format!("double {number};")));
        // A flag that goes by a number has no bit, and every one of these rules can climb.
        let bits = row.flags.iter().filter(|flag| !matches!(flag, Flag::Momentum | Flag::Maximize));
        let bits: String = bits.map(|flag| format!("; {}", capitals(flag.name()))).collect();
        let says = format!(": {}{bits}.", numbers.join(", "));
        assert!(lines[constant - 1].ends_with(&says), "expected `{says}`, got `{}`", lines[constant - 1]);
        assert!(row.flags.contains(&Flag::Maximize), "{} cannot climb: say so in penstock.h", row.name);
    }
    for flag in Flag::ALL.into_iter().filter(|flag| *flag != Flag::Momentum) {
        assert!(header.contains(&format!("{} = ", capitals(flag.name()))), "{flag:?}");
    }
}

#[test]
fn the_header_has_every_filter_of_the_table_with_its_number_and_settings() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/penstock.h");
    let header = std::fs::read_to_string(header).expect("include/penstock.h is committed");
    let lines: Vec<&str> = header.lines().map(str::trim).collect();
    // A program's own is Python's.
    for row in sums::ALL.iter().filter(|row| row.name != "Own") {
        let name = row.name.replace("pK", "p_K").replace("mK", "m_K").replace(' ', "_").to_uppercase();
        let line = format!("PENSTOCK_{name} = {},", row.number);
        let constant = lines.iter().position(|found| *found == line);
        let above = lines[constant.unwrap_or_else(|| panic!("penstock.h lacks `{line}`")) - 1];
        for setting in row.settings {
            assert!(above.contains(setting), "`{above}` of `{line}` does not name `{setting}`");
        }
    }
}
