//! Code from the proto files, for the example that writes it and the test that compares it.

use std::error::Error;
use std::path::{Path, PathBuf};

/// The files; what they import is found beside them.
const FILES: [&str; 4] = [
    "penstock/v1/admin.proto",
    "penstock/v1/jobs.proto",
    "penstock/v1/proofs.proto",
    "penstock/v1/servers.proto",
];

/// The folder of this crate.
pub(crate) fn crate_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Generates the code into the folder `out`.
pub(crate) fn generate(out: &Path) -> Result<(), Box<dyn Error>> {
    let files = protox::compile(FILES, [crate_folder().join("proto")])?;
    tonic_prost_build::configure()
        // Debug is written by hand where a message holds a secret: a log line must not.
        .skip_debug(["penstock.v1.CreateJobReply", "penstock.v1.ShowJobReply", "penstock.v1.HostedJob"])
        .out_dir(out)
        .compile_fds(files)?;
    Ok(())
}
