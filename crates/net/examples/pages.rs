//! Reads the HTML files of a folder as `read_webpage` would, and says how long that took.
//!
//! `cargo run --release -p decanus-net --example pages -- DIR [auto|all|main] [rounds]`; with one file it prints its text.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use decanus_net::page::{self, Content};
use decanus_net::{PageOptions, Reply};

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let mut args = std::env::args().skip(1);
    let place = PathBuf::from(args.next().ok_or("a folder or a file")?);
    let content: Content = args.next().as_deref().unwrap_or("auto").parse()?;
    let rounds: u32 = args.next().as_deref().unwrap_or("1").parse()?;
    let options = PageOptions {
        content,
        max_chars: 200_000,
        ..PageOptions::default()
    };
    let mut files = Vec::new();
    collect(&place, &mut files)?;
    let replies: Vec<(PathBuf, Reply)> = files
        .into_iter()
        .map(|file| Ok::<_, Failed>((file.clone(), reply(&file)?)))
        .collect::<Result<_, _>>()?;
    let (mut bytes, mut main, mut chars) = (0, 0, 0);
    let mut slowest = (Duration::ZERO, PathBuf::new());
    let start = Instant::now();
    for (file, reply) in &replies {
        for _ in 0..rounds {
            let began = Instant::now();
            let page = page::read(reply, &options)?;
            if began.elapsed() > slowest.0 {
                slowest = (began.elapsed(), file.clone());
            }
            bytes += reply.body.len();
            main += usize::from(page.main_only);
            chars += page.text.chars().count();
            if replies.len() == 1 && rounds == 1 {
                println!("{}\n", page.text);
            }
        }
    }
    let took = start.elapsed();
    let pages = replies.len() * rounds as usize;
    println!(
        "{pages} pages, {bytes} bytes, {chars} characters of text, {main} by their main part: {took:.1?} ({:.0} pages a second, {:.1} MB a second)",
        pages as f64 / took.as_secs_f64(),
        bytes as f64 / 1e6 / took.as_secs_f64(),
    );
    println!("slowest: {} ({:.1?})", slowest.1.display(), slowest.0);
    Ok(())
}

fn collect(place: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failed> {
    if place.is_file() {
        files.push(place.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(place)? {
        let path = entry?.path();
        let is_page = path.extension().is_some_and(|e| e == "html" || e == "htm");
        if path.is_dir() || is_page {
            collect(&path, files)?;
        }
    }
    Ok(())
}

fn reply(file: &Path) -> Result<Reply, Failed> {
    Ok(Reply {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/html".to_owned())],
        body: std::fs::read(file)?,
        truncated: false,
        url: url::Url::parse("http://h.test/")?,
    })
}
