//! The code under `src/generated/` is what the proto files give.

#[path = "../examples/generate/code.rs"]
mod code;

#[test]
fn the_committed_code_is_what_the_proto_files_give() {
    let fresh = tempfile::tempdir().unwrap();
    code::generate(fresh.path()).unwrap();
    let committed = code::crate_folder().join("src/generated");
    let names = |folder: &std::path::Path| {
        let mut names: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(fresh.path()), names(&committed));
    for name in names(&committed) {
        let read = |folder: &std::path::Path| std::fs::read_to_string(folder.join(&name)).unwrap();
        assert!(
            read(fresh.path()) == read(&committed),
            "{name:?} differs: run `cargo run -p penstock-control --example generate`"
        );
    }
}
