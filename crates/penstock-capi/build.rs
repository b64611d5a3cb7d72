//! Gives the shared library its name for the dynamic linker: programs ask for the major version they were built with.

/// As long as the major version is 0, its interface may change with every minor version; the number counts those changes.
const INTERFACE: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpenstock.so.{INTERFACE}");
}
