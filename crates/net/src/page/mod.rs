//! Pages as text.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::time::{Duration, Instant};

use decanus_base::text::{brief, escape_controls};
use url::Url;

use crate::error::{Error, show_url};
use crate::reply::{Reply, binary_kind, is_text_type, looks_binary};

pub mod charset;
mod extract;
mod pdf;
mod text;

/// How much of a page is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// The main part where a page is one of much text with other things around it (see [`Page::main_only`]), else all.
    #[default]
    Auto,
    /// All text.
    All,
    /// The main part, whatever the page is like; all text when none can be told.
    Main,
}

impl FromStr for Content {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            "main" => Ok(Self::Main),
            _ => {
                let shown = escape_controls(&brief(text, 40));
                Err(Error::Argument(format!("content is auto, all or main, not '{shown}'")))
            }
        }
    }
}

/// Which pages of a PDF: `1-3,7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pages(Vec<RangeInclusive<u32>>);

impl Pages {
    /// The numbers, each once, in the order in which they were asked for, as far as the document goes.
    fn within(&self, last: u32) -> Vec<u32> {
        let mut numbers = Vec::new();
        for range in &self.0 {
            for number in *range.start()..=(*range.end()).min(last) {
                if !numbers.contains(&number) {
                    numbers.push(number);
                }
            }
        }
        numbers
    }
}

impl FromStr for Pages {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fail = || {
            let shown = escape_controls(&brief(text, 40));
            Error::Argument(format!(
                "pages are numbers from 1 and ranges, such as 1-3,7, not '{shown}'"
            ))
        };
        let number = |n: &str| n.trim().parse::<u32>().ok().filter(|n| *n > 0).ok_or_else(fail);
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first <= last { Ok(first..=last) } else { Err(fail()) }
        };
        let ranges: Vec<_> = text.split(',').map(range).collect::<Result<_, _>>()?;
        if ranges.len() > 100 {
            return Err(fail());
        }
        Ok(Self(ranges))
    }
}

/// What is wanted of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOptions {
    /// Characters of text; what is longer is cut.
    pub max_chars: usize,
    /// Which part of it.
    pub content: Content,
    /// How many links are wanted; none by default.
    pub max_links: usize,
    /// Which pages of a PDF; without them a PDF is no text.
    pub pages: Option<Pages>,
}

impl Default for PageOptions {
    /// 20,000 characters, no links.
    fn default() -> Self {
        Self {
            max_chars: 20_000,
            content: Content::Auto,
            max_links: 0,
            pages: None,
        }
    }
}

/// A link of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its text.
    pub text: String,
    /// Where it leads, absolute.
    pub url: String,
}

/// A page as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The title, when it has one.
    pub title: Option<String>,
    /// The text.
    pub text: String,
    /// Whether there was more text.
    pub truncated: bool,
    /// Whether the text is the main part only.
    pub main_only: bool,
    /// Links, when asked for, each URL once.
    pub links: Vec<Link>,
    /// How many pages a PDF has.
    pub page_count: Option<u32>,
    /// What a reader should know: an unknown charset, many characters that could not be read.
    pub notes: Vec<String>,
}

/// The text of a reply.
///
/// # Errors
/// When the reply is no text, or a PDF that was not asked for by pages or cannot be read.
pub fn read(reply: &Reply, options: &PageOptions) -> Result<Page, Error> {
    read_until(reply, options, None)
}

/// [`read`] on a thread of its own, since large pages take a while, and for no longer than `time`.
///
/// # Errors
/// As there, and when the time is up.
pub async fn read_within(reply: Reply, options: PageOptions, time: Duration) -> Result<Page, Error> {
    let url = show_url(&reply.url);
    let until = Instant::now() + time;
    let work = tokio::task::spawn_blocking(move || read_until(&reply, &options, Some(until)));
    match tokio::time::timeout(time, work).await {
        Ok(Ok(page)) => page,
        Ok(Err(_)) => Err(Error::Content(format!("the page {url} can't be read"))),
        Err(_) => Err(Error::Content(format!("the page {url} takes too long to read"))),
    }
}

fn read_until(reply: &Reply, options: &PageOptions, until: Option<Instant>) -> Result<Page, Error> {
    let url = &reply.url;
    match kind(reply) {
        Kind::Html => Ok(html(reply, options)),
        Kind::Text => {
            let decoded = charset::decode(&reply.body, reply.header("content-type").unwrap_or_default(), false);
            let (text, cut) = text::plain(&decoded.text, options.max_chars);
            Ok(Page {
                text,
                truncated: cut || reply.truncated,
                notes: decoded.notes,
                ..Page::default()
            })
        }
        Kind::Pdf => {
            let Some(pages) = &options.pages else {
                return Err(Error::Content(format!(
                    "{} is a PDF: say which pages to read, such as pages=1-5",
                    show_url(url)
                )));
            };
            if reply.truncated {
                return Err(Error::Content(format!(
                    "the PDF {} is larger than {} bytes",
                    show_url(url),
                    reply.body.len()
                )));
            }
            let read = catch_unwind(AssertUnwindSafe(|| {
                pdf::read(&reply.body, pages, options.max_chars, until)
            }));
            let failed = |why: String| Error::Content(format!("the PDF {} can't be read: {why}", show_url(url)));
            read.unwrap_or_else(|_| Err("it is damaged".to_owned())).map_err(failed)
        }
        Kind::Binary(what) => Err(Error::Content(format!(
            "{} is no text: it is {what} ({} bytes{})",
            show_url(url),
            reply.body.len(),
            if reply.truncated { " and more" } else { "" }
        ))),
    }
}

enum Kind {
    Html,
    Text,
    Pdf,
    Binary(String),
}

/// What a reply is, by its type; by its first bytes when these are of no text, or when it has no type or one that says
/// nothing.
fn kind(reply: &Reply) -> Kind {
    let media_type = reply.media_type();
    let is_stated_text = media_type.is_empty() || is_text_type(&media_type);
    if let Some(what) = binary_kind(&reply.body).filter(|_| is_stated_text)
        && !reply.body.starts_with(b"%PDF-")
    {
        return Kind::Binary(format!("{what}, whatever its type says"));
    }
    let is_pdf = reply.body.starts_with(b"%PDF-");
    match media_type.as_str() {
        _ if is_pdf && is_stated_text => Kind::Pdf,
        "text/html" | "application/xhtml+xml" => Kind::Html,
        "application/pdf" | "application/x-pdf" => Kind::Pdf,
        "application/octet-stream" | "binary/octet-stream" | "application/x-download" if is_pdf => Kind::Pdf,
        "" if looks_binary(&reply.body) => Kind::Binary("of no stated type".to_owned()),
        "" if looks_like_html(&reply.body) => Kind::Html,
        "" => Kind::Text,
        other if is_text_type(other) => Kind::Text,
        other => Kind::Binary(escape_controls(&brief(other, 60))),
    }
}

/// Whether there is a tag somewhere at the beginning.
fn looks_like_html(body: &[u8]) -> bool {
    let start = &body[..body.len().min(4096)];
    let opens = |w: &[u8]| w[0] == b'<' && (w[1].is_ascii_alphabetic() || w[1] == b'!' || w[1] == b'/');
    start.windows(2).any(opens)
}

fn html(reply: &Reply, options: &PageOptions) -> Page {
    let decoded = charset::decode(&reply.body, reply.header("content-type").unwrap_or_default(), true);
    let mut page = text::of_html(&decoded.text, Some(&reply.url), options.max_chars, options.max_links);
    if let Some(main) = extract::main_part(&decoded.text, &page, options.content) {
        let base = page.base.clone();
        let part = text::of_html(&main, base.as_ref(), options.max_chars, options.max_links);
        page = text::Extracted {
            title: page.title,
            facts: page.facts,
            ..part
        };
        return finish(page, true, reply, decoded.notes);
    }
    finish(page, false, reply, decoded.notes)
}

fn finish(page: text::Extracted, main_only: bool, reply: &Reply, notes: Vec<String>) -> Page {
    Page {
        title: page.title,
        text: page.text,
        truncated: page.cut || reply.truncated,
        main_only,
        links: page.links,
        page_count: None,
        notes,
    }
}

/// The text of HTML that is at hand already, as [`read`] makes it.
pub fn from_html(html: &str, url: &Url, options: &PageOptions) -> Page {
    let reply = Reply {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/html; charset=utf-8".to_owned())],
        body: html.as_bytes().to_vec(),
        truncated: false,
        url: url.clone(),
    };
    self::html(&reply, options)
}
