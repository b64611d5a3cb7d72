//! Writes the corpus: `cargo run --manifest-path fuzz/Cargo.toml --bin seeds`.

fn main() {
    for (target, seeds) in penstock_fuzz::seeds::all() {
        let folder = penstock_fuzz::seeds::folder(target);
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        for (name, data) in seeds {
            std::fs::write(folder.join(name), data).expect("a file can be written");
        }
    }
}
