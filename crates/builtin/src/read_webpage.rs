//! The text of a page.

use std::time::Duration;

use decanus_chat::Effect;
use decanus_net::page::{Content, Pages};
use decanus_net::{PageOptions, Request, page};
use decanus_tool::{FnTool, ToolError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::network::{Network, failure};

const ACCEPT: &str = "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.8";

/// Bytes of a page, and of a PDF.
const LARGEST_PAGE: usize = 5_000_000;
const LARGEST_PDF: usize = 20_000_000;

/// Redirects that are followed, each of them checked.
const REDIRECTS: usize = 5;

/// Links of a page.
const MOST_LINKS: usize = 200;

/// Arguments of `read_webpage`.
#[derive(Deserialize, JsonSchema)]
pub struct ReadWebpage {
    /// The URL, http or https.
    url: String,
    /// Characters of text at most: 20,000 when left out, 200,000 at most.
    #[schemars(extend("type" = ["integer", "null"]))]
    max_chars: Option<Value>,
    /// Whether to give the page's links, too.
    links: Option<bool>,
    /// Which part: auto (the default: the main part of a long page with navigation around it), all, or main.
    content: Option<String>,
    /// Pages of a PDF, such as 1-3,7.
    pages: Option<String>,
}

pub(crate) fn tool(network: Network) -> FnTool<ReadWebpage> {
    FnTool::new(
        "read_webpage",
        "Reads a web page, a text or pages of a PDF at a public URL and gives title and readable text.",
        move |args: ReadWebpage, _| {
            let network = network.clone();
            async move { read(&network, args).await }
        },
    )
    .effect(Effect::ReadOnly)
    .open_world()
    .example(
        "What does https://example.com say?",
        json!({"url": "https://example.com"}),
    )
    .example(
        "Summarise the page https://example.com/news",
        json!({"url": "https://example.com/news"}),
    )
}

async fn read(network: &Network, args: ReadWebpage) -> Result<Value, ToolError> {
    let pages: Option<Pages> = args
        .pages
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|e| failure(&e))?;
    let content: Content = args
        .content
        .as_deref()
        .unwrap_or("auto")
        .parse()
        .map_err(|e| failure(&e))?;
    let wants_links = args.links.unwrap_or(false);
    let options = PageOptions {
        max_chars: max_chars(args.max_chars.as_ref()),
        content,
        max_links: if wants_links { MOST_LINKS } else { 0 },
        pages,
    };
    let largest = if options.pages.is_some() {
        LARGEST_PDF
    } else {
        LARGEST_PAGE
    };
    let request = Request::get(args.url.clone())
        .header("Accept", ACCEPT)
        .redirects(REDIRECTS)
        .max_body(largest);
    let client = network.client()?;
    let reply = client.fetch(request).await.map_err(|e| failure(&e))?;
    let place = reply.url.to_string();
    let page = page::read_within(reply, options, Duration::from_secs(30))
        .await
        .map_err(|e| failure(&e))?;
    let mut result = json!({
        "url": args.url,
        "title": page.title,
        "text": page.text,
        "truncated": page.truncated,
    });
    if url_differs(&args.url, &place) {
        result["final_url"] = place.into();
    }
    if page.main_only {
        result["main_only"] = true.into();
    }
    if wants_links {
        let links = page.links.into_iter().map(|l| json!({"text": l.text, "url": l.url}));
        result["links"] = links.collect();
    }
    if let Some(count) = page.page_count {
        result["page_count"] = count.into();
    }
    if !page.notes.is_empty() {
        result["notes"] = page.notes.into();
    }
    Ok(result)
}

/// The number that was asked for, as far as it is allowed; it may have any number of digits.
fn max_chars(asked: Option<&Value>) -> usize {
    const MOST: usize = 200_000;
    match asked {
        None | Some(Value::Null) => 20_000,
        Some(value) => {
            let text = value.to_string();
            let beyond = if text.starts_with('-') { 1 } else { MOST };
            text.parse::<usize>().unwrap_or(beyond).clamp(1, MOST)
        }
    }
}

/// Whether a redirect led elsewhere; a URL without its path is the same with `/`.
fn url_differs(given: &str, last: &str) -> bool {
    let given = given.split('#').next().unwrap_or_default();
    let last = last.split('#').next().unwrap_or_default();
    !given.eq_ignore_ascii_case(last) && !format!("{given}/").eq_ignore_ascii_case(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_characters_is_brought_into_the_limits() {
        for (asked, taken) in [
            ("0", 1),
            ("-5", 1),
            ("7", 7),
            ("200001", 200_000),
            ("99999999999999999999999999", 200_000),
            ("-99999999999999999999999999", 1),
            ("null", 20_000),
        ] {
            let value: Value = serde_json::from_str(asked).unwrap();
            assert_eq!(max_chars(Some(&value)), taken, "{asked}");
        }
        assert_eq!(max_chars(None), 20_000);
    }
}
