//! The text of web pages: ours as `read_webpage` reads a page by default, and trafilatura, on the same pages in turns.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use decanus_bench::pages;
use decanus_net::{PageOptions, Reply, page};
use url::Url;

use crate::table::{Measure, Row, Target};
use crate::{Failed, Options};

/// Turns into which the pages are divided.
const TURNS: usize = 5;

/// Both sides on all pages. The time is that of the extraction alone, on one thread; each side counts the pages of which it
/// found the main part, and those of which it gave what stands beside it, too.
pub fn measure(options: &Options) -> Result<Vec<Row>, Failed> {
    let name = format!("text of {} web pages : trafilatura", options.pages);
    let target = Target::RatioAtMost(0.2);
    if !options.peers_python.is_file() {
        return Ok(vec![Row::not_measured(name, target, "there is no Python with it")]);
    }
    let folder = tempfile::tempdir_in(&options.scratch)?;
    let file = folder.path().join("pages");
    let (mut ours, mut reference) = (Found::default(), Found::default());
    let mut bytes = 0;
    for turn in 0..TURNS {
        let numbers = turn * options.pages / TURNS..(turn + 1) * options.pages / TURNS;
        let pages: Vec<String> = numbers.map(pages::page).collect();
        bytes += pages.iter().map(String::len).sum::<usize>();
        write(&file, &pages)?;
        ours.add(read(pages)?);
        reference.add(trafilatura(&options.peers_python, &file)?);
    }
    eprintln!(
        "{} pages, {:.1} KiB each on average; the main part was found of {} (trafilatura: {}), what stands beside it was given of {} ({})",
        options.pages,
        bytes as f64 / 1024.0 / options.pages.max(1) as f64,
        ours.main,
        reference.main,
        ours.beside,
        reference.beside,
    );
    Ok(vec![Row::new(
        name,
        target,
        Measure::Time(ours.time),
        Measure::Time(reference.time),
    )])
}

/// What was found, and how long it took.
#[derive(Default)]
struct Found {
    time: Duration,
    main: u64,
    beside: u64,
}

impl Found {
    fn add(&mut self, other: Self) {
        self.time += other.time;
        self.main += other.main;
        self.beside += other.beside;
    }
}

/// Each page after its length in eight bytes.
fn write(path: &Path, pages: &[String]) -> Result<(), Failed> {
    let mut file = BufWriter::new(File::create(path)?);
    for page in pages {
        file.write_all(&u64::try_from(page.len())?.to_le_bytes())?;
        file.write_all(page.as_bytes())?;
    }
    file.flush()?;
    Ok(())
}

/// As `read_webpage` does it once a page is there.
fn read(pages: Vec<String>) -> Result<Found, Failed> {
    let url = Url::parse("https://example.com/page")?;
    let options = PageOptions::default();
    let mut found = Found::default();
    for page in pages {
        let reply = Reply {
            status: 200,
            headers: vec![("content-type".to_owned(), "text/html; charset=utf-8".to_owned())],
            body: page.into_bytes(),
            truncated: false,
            url: url.clone(),
        };
        let start = Instant::now();
        let page = page::read(&reply, &options)?;
        found.time += start.elapsed();
        found.main += u64::from(page.text.contains(pages::IN_MAIN));
        found.beside += u64::from(page.text.contains(pages::BESIDE));
    }
    Ok(found)
}

fn trafilatura(python: &Path, pages: &Path) -> Result<Found, Failed> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/pages.py");
    let mut program = Command::new(python);
    program.arg(script).arg(pages).args([pages::IN_MAIN, pages::BESIDE]);
    let output = program.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("trafilatura ended with {}", output.status).into());
    }
    let [time, main, beside]: [u64; 3] = serde_json::from_slice(&output.stdout)?;
    Ok(Found {
        time: Duration::from_nanos(time),
        main,
        beside,
    })
}
