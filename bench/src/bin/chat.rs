//! What has to be done with a long chat in a process of its own, so that its memory can be told:
//! `write FILE BYTES` makes one; `open FILE` and `read FILE` print the most memory that was resident, in KiB.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use decanus::chat::ChatFile;
use decanus_bench::sample;
use nix::sys::resource::{UsageWho, getrusage};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["write", path, bytes] => {
            std::fs::write(path, sample::text(&sample::steps(bytes.parse()?)))?;
            // What is still to be written would be synced with the first message that is appended.
            std::fs::File::open(path)?.sync_all()?;
            return Ok(());
        }
        ["open", path] => {
            black_box(ChatFile::open(Path::new(path), Duration::ZERO, &|| false)?);
        }
        ["read", path] => {
            black_box(ChatFile::read(Path::new(path))?);
        }
        _ => return Err("write FILE BYTES, open FILE or read FILE".into()),
    }
    println!("{}", getrusage(UsageWho::RUSAGE_SELF)?.max_rss());
    Ok(())
}
