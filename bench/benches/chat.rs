//! Parts of the work on a long chat, by themselves: `cargo bench -p decanus-bench --bench chat`.

use std::sync::LazyLock;

use decanus::chat::{Message, file, parse, print};
use decanus_bench::{hostile, sample};
use divan::Bencher;
use divan::counter::BytesCount;

static CHAT: LazyLock<String> = LazyLock::new(|| sample::text(&sample::steps(50_000_000)));

fn main() {
    divan::main();
}

#[divan::bench(sample_count = 10)]
fn read(bencher: Bencher<'_, '_>) {
    bencher.counter(BytesCount::of_str(&*CHAT)).bench(|| parse(&CHAT));
}

#[divan::bench(sample_count = 10)]
fn read_and_look_for_a_torn_step(bencher: Bencher<'_, '_>) {
    bencher.counter(BytesCount::of_str(&*CHAT)).bench(|| file::load(&CHAT));
}

#[divan::bench(sample_count = 10)]
fn write(bencher: Bencher<'_, '_>) {
    let messages = parse(&CHAT).messages;
    bencher.counter(BytesCount::of_str(&*CHAT)).bench(|| print(&messages));
}

/// Texts of a megabyte that are hard to read, and as a content hard to print.
fn hostile_names() -> impl Iterator<Item = &'static str> {
    hostile::ALL.iter().map(|(name, _)| *name)
}

fn hostile(name: &str) -> String {
    let made = hostile::ALL.iter().find(|(known, _)| *known == name);
    made.map(|(_, make)| make(1_000_000)).unwrap_or_default()
}

#[divan::bench(args = hostile_names(), sample_count = 10)]
fn read_hostile(bencher: Bencher<'_, '_>, name: &str) {
    let text = hostile(name);
    bencher.counter(BytesCount::of_str(&text)).bench(|| parse(&text));
}

#[divan::bench(args = hostile_names(), sample_count = 10)]
fn write_hostile(bencher: Bencher<'_, '_>, name: &str) {
    let message = [Message::user(hostile(name).trim())];
    let size = BytesCount::of_str(&message[0].content);
    bencher.counter(size).bench(|| print(&message));
}
