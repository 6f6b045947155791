//! Links GCC's C++ and OpenMP libraries into the binary, where llama.cpp needs them and the compiler has them as archives.
//!
//! The dynamic loader would look up some two thousand symbols of theirs at each start, which takes longer than the work of
//! a small command (docs/benchmarks.md has the figures). Where an archive is missing the shared library is used as ever.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARIES: [&str; 2] = ["libstdc++.a", "libgomp.a"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let is = |variable: &str, value: &str| env::var(variable).is_ok_and(|v| v == value);
    let gnu = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    // The compiler of this machine knows nothing of the libraries of another one.
    if env::var_os("CARGO_FEATURE_LOCAL").is_none() || !gnu || env::var("HOST") != env::var("TARGET") {
        return;
    }
    let Some(out) = env::var_os("OUT_DIR") else { return };
    // In a folder that holds archives only, and that the linker looks into first, `-lstdc++` means the archive.
    let folder = PathBuf::from(out).join("archives");
    let _ = fs::remove_dir_all(&folder);
    let copied = LIBRARIES.iter().filter(|name| copy(name, &folder).is_some()).count();
    if copied > 0 {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
}

fn copy(name: &str, folder: &Path) -> Option<()> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let said = Command::new(compiler)
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    let file = PathBuf::from(String::from_utf8(said.stdout).ok()?.trim());
    // A compiler that does not have it repeats the bare name.
    if !file.is_absolute() || !file.is_file() {
        return None;
    }
    fs::create_dir_all(folder).ok()?;
    fs::copy(&file, folder.join(name)).ok()?;
    Some(())
}
