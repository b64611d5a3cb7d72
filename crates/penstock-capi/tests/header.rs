//! The committed header is what the sources say.
//!
//! `PENSTOCK_BLESS=1 cargo test -p penstock-capi --test header` writes it anew.

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
