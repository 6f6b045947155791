//! Pages as text: nothing breaks down, nothing takes time out of proportion (libFuzzer's `-timeout`), limits hold, and no
//! character that does something is left.
#![no_main]

use decanus_net::page::{self, Content, Page};
use decanus_net::{PageOptions, Reply};
use libfuzzer_sys::fuzz_target;
use url::Url;

const TYPES: &[&str] = &[
    "text/html; charset=utf-8",
    "text/html",
    "application/xhtml+xml",
    "text/html; charset=utf-16",
    "text/html; charset=gb18030",
    "text/html; charset=iso-2022-jp",
    "",
    "text/plain",
];

/// A page that grows is a page that shows what grows faster than it.
const LARGEST: usize = 256 * 1024;

// Three bytes of choice, then the page.
fuzz_target!(|data: &[u8]| {
    let &[choice, many, limit, ref body @ ..] = data else {
        return;
    };
    let content = [Content::Auto, Content::All, Content::Main][usize::from(choice % 3)];
    let media_type = TYPES[usize::from(choice / 3) % TYPES.len()];
    let body = match many {
        // The middle of it again and again.
        0..32 if body.len() > 2 => {
            let (head, rest) = body.split_at(body.len() / 4);
            let (middle, tail) = rest.split_at(rest.len() * 2 / 3);
            let times = (LARGEST / middle.len().max(1)).min(1 << (many / 2));
            [head, &middle.repeat(times), tail].concat()
        }
        _ => body.to_vec(),
    };
    let max_chars = match limit {
        0..64 => usize::from(limit),
        64..128 => 20_000,
        _ => 200_000,
    };
    let max_links = if limit % 2 == 0 { 0 } else { usize::from(limit) };
    let length = body.len();
    let reply = Reply {
        status: 200,
        headers: vec![("content-type".to_owned(), media_type.to_owned())],
        body,
        truncated: false,
        url: match Url::parse("http://h.test/a/b?c") {
            Ok(url) => url,
            Err(e) => panic!("{e}"),
        },
    };
    let options = PageOptions {
        max_chars,
        content,
        max_links,
        pages: None,
    };
    // A body without a type may be a PDF or no text.
    let Ok(page) = page::read(&reply, &options) else { return };
    bounded(&page, max_chars, max_links, length);
});

fn bounded(page: &Page, max_chars: usize, max_links: usize, length: usize) {
    let chars = page.text.chars().count();
    assert!(chars <= max_chars, "{chars} characters of {max_chars}");
    assert!(chars <= length, "{chars} characters from {length} bytes");
    harmless(&page.text);
    if let Some(title) = &page.title {
        assert!(title.chars().count() <= 1000 && !title.is_empty());
        harmless(title);
    }
    assert!(page.links.len() <= max_links);
    for link in &page.links {
        harmless(&link.text);
        assert!(link.text.chars().count() <= 200 && link.url.len() <= 4096);
        let url = Url::parse(&link.url);
        assert!(
            url.is_ok_and(|u| matches!(u.scheme(), "http" | "https") && u.as_str() == link.url),
            "{}",
            link.url
        );
    }
    for note in &page.notes {
        harmless(note);
    }
}

fn harmless(text: &str) {
    let does_something = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e007f}')
    };
    assert!(!text.contains(does_something), "{text:?}");
}
