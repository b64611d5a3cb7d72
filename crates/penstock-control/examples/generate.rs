//! Writes `src/generated/` anew from `proto/`: `cargo run -p penstock-control --example generate`. It needs no protoc.

#[path = "generate/code.rs"]
mod code;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    code::generate(&code::crate_folder().join("src/generated"))
}
