//! Pages as text.

use std::str::FromStr;
use std::time::Duration;

use decanus_net::page::{self, Content, Pages};
use decanus_net::{PageOptions, Reply};
use url::Url;

use crate::support::fixture;

fn reply(content_type: &str, body: impl Into<Vec<u8>>) -> Reply {
    let headers = if content_type.is_empty() {
        Vec::new()
    } else {
        vec![("content-type".to_owned(), content_type.to_owned())]
    };
    Reply {
        status: 200,
        headers,
        body: body.into(),
        truncated: false,
        url: Url::parse("http://h.test/dir/page?key=SENTINEL").unwrap(),
    }
}

fn read(html: &str) -> page::Page {
    page::read(&reply("text/html; charset=utf-8", html), &PageOptions::default()).unwrap()
}

fn text(html: &str) -> String {
    read(html).text
}

#[test]
fn worked_examples() {
    let menu = read(
        "<html><head><title>Tea &amp; Cake</title></head><body><h1>Menu</h1><p>One &lt;b&gt; two.</p><p>Three</p></body></html>",
    );
    assert_eq!(menu.title.as_deref(), Some("Tea & Cake"));
    assert_eq!(
        (menu.text.as_str(), menu.truncated),
        ("Menu\n\nOne <b> two.\n\nThree", false)
    );
    assert_eq!(
        text("<p>A</p><pre>x  y\n\n\n\nz</pre><span>B</span><b>C</b>"),
        "A\n\nx y\n\nz\nB C"
    );
    let scripts = read("<script>var a=1<2;</script>ok<style>p{}</style><noscript>ns</noscript>");
    assert_eq!((scripts.text.as_str(), scripts.title), ("ok ns", None));
    assert_eq!(text("<table><tr><td>1</td><td>2</td></tr></table>"), "1 2");
    assert_eq!(text("a &amp;lt; b"), "a &lt; b");
    let options = |max_chars| PageOptions {
        max_chars,
        ..PageOptions::default()
    };
    let hundred = reply("text/html", "x".repeat(100));
    for (max, length, truncated) in [
        (10, 10, true),
        (1, 1, true),
        (100, 100, false),
        (99, 99, true),
        (0, 0, true),
    ] {
        let page = page::read(&hundred, &options(max)).unwrap();
        assert_eq!((page.text.len(), page.truncated), (length, truncated), "{max}");
    }
    let latin = "<title>caf\u{e9}</title>".chars().map(|c| c as u8).collect::<Vec<u8>>();
    let title = |content_type: &str| {
        page::read(&reply(content_type, latin.clone()), &PageOptions::default())
            .unwrap()
            .title
    };
    assert_eq!(title("text/html; charset=iso-8859-1").as_deref(), Some("café"));
    assert_eq!(title("text/html").as_deref(), Some("caf\u{fffd}"));
}

#[test]
fn tag_soup() {
    for (html, expected) in [
        ("x < y and y > z", "x < y and y > z"),
        ("<p title=\"a>b\">c</p>", "c"),
        ("<!-- <p>no</p> --><p>yes</p><!-- never ended", "yes"),
        ("<param><link><track>a", "a"),
        ("a<progress>b</progress>", "a b"),
        ("a&#x41;&#66;&nbsp;&#160;b&eacute;&hellip;", "aAB bé…"),
        ("&#0;&#99999999;&#xD800;", "\u{fffd}\u{fffd}\u{fffd}"),
        ("&bogus; &amp &amp;amp; &#39;&apos;&quot;", "&bogus; & &amp; ''\""),
        ("<head><title>T</title><p>A", "A"),
        ("<head><script>x</script>gone</head>kept", "kept"),
        ("<title>T</title>text", "text"),
        ("<svg><title>icon</title><text>drawn</text></svg>b", "drawn b"),
        ("<textarea><b>raw</b></textarea>", "<b>raw</b>"),
        ("<noscript><p>a</p><p>b &amp; c</p></noscript>", "a\n\nb & c"),
        ("<noscript><noscript>x</noscript>", ""),
        ("<script>never ended <p>a", ""),
        ("<div>a</div\n><div>b</div>", "a\n\nb"),
        ("one<br>two<br/>three<hr>four", "one\ntwo\nthree\nfour"),
        ("<ul><li>1<li>2</ul>", "1\n2"),
        ("\r\n a \t b \r\n\r\n\r\n c ", "a b\n\nc"),
        ("", ""),
        ("<", "<"),
        ("</", "</"),
        ("<p", ""),
    ] {
        assert_eq!(text(html), expected, "{html}");
    }
    assert_eq!(
        read("<svg><title>no</title></svg><title> yes\n sir </title><title>third</title>")
            .title
            .as_deref(),
        Some("yes\n sir")
    );
    assert_eq!(read("<title> </title>").title, None);
}

#[test]
fn what_does_something_on_a_terminal_is_left_out() {
    let page = read("<title>a\u{1b}]0;x\u{7}b</title><p>c\u{1b}[2Jd\u{9b}e\u{202e}f\u{e0041}g\u{0}h&#27;i&#8238;");
    assert_eq!(page.title.as_deref(), Some("a]0;xb"));
    assert_eq!(page.text.replace('\u{fffd}', ""), "c[2Jdefghi");
    let plain = page::read(
        &reply("text/plain", "a\u{1b}[2J  b\r\n\tc\n\n\n"),
        &PageOptions::default(),
    )
    .unwrap();
    assert_eq!(plain.text, "a[2J  b\r\n\tc\n\n\n");
}

#[test]
fn charsets() {
    let page = page::read(&reply("text/html", fixture("sjis.html")), &PageOptions::default()).unwrap();
    assert_eq!(
        (page.title.as_deref(), page.text.as_str()),
        (Some("日本語のページ"), "こんにちは")
    );
    let page = page::read(&reply("text/html", fixture("cp1252.html")), &PageOptions::default()).unwrap();
    assert_eq!(page.text, "Grund für “Rätsel” – 5 €");
    assert!(page.notes.is_empty());
    let page = page::read(&reply("text/html", vec![0xe9; 50]), &PageOptions::default()).unwrap();
    assert!(
        page.notes[0].contains("50 characters could not be read"),
        "{:?}",
        page.notes
    );
}

#[test]
fn kinds_of_replies() {
    let read = |content_type: &str, body: &[u8]| page::read(&reply(content_type, body), &PageOptions::default());
    for content_type in [
        "application/json",
        "text/plain; charset=utf-8",
        "application/ld+json",
        "text/csv",
        "application/rss+xml",
    ] {
        let page = read(content_type, b"{\"a\": \"<b>\"}  &amp;\n").unwrap();
        assert_eq!(
            (page.text.as_str(), page.title),
            ("{\"a\": \"<b>\"}  &amp;\n", None),
            "{content_type}"
        );
    }
    for content_type in [
        "image/png",
        "application/octet-stream",
        "audio/mpeg",
        "application/zip",
        "image/\u{1b}[2J",
    ] {
        let error = read(content_type, b"<p>x</p>").unwrap_err();
        assert_eq!(error.class(), "ToolError");
        assert!(error.to_string().contains("is no text"), "{error}");
        assert!(
            !error.to_string().contains("SENTINEL") && !error.to_string().contains('\u{1b}'),
            "{error}"
        );
    }
    assert_eq!(read("", b"<!doctype html><p>x</p>").unwrap().text, "x");
    assert_eq!(read("", b"a < b  c").unwrap().text, "a < b  c");
    assert!(read("", b"a\0b").unwrap_err().to_string().contains("of no stated type"));
    assert_eq!(read("Application/XHTML+XML; a=b", b"<p>x</p>").unwrap().text, "x");
    let cut = Reply {
        truncated: true,
        ..reply("text/html", "<p>x")
    };
    assert!(page::read(&cut, &PageOptions::default()).unwrap().truncated);
    let error = read("application/pdf", b"%PDF-1.7").unwrap_err().to_string();
    assert!(error.contains("is a PDF: say which pages"), "{error}");
}

#[test]
fn links_on_request() {
    let html = "<a href='../up'>Up <b>there</b></a><a href=//o.test/x#f>o</a><a href=../up>again</a><a href='#here'>h</a>\
        <a href=javascript:alert(1)>j</a><a href=mailto:a@b>m</a><a href='http://['>bad</a><a>none</a><area href=map>\
        <a href=' q?a=1&amp;b=2 '>left open<a href=last>last</a>";
    let options = PageOptions {
        max_links: 10,
        ..PageOptions::default()
    };
    let page = page::read(&reply("text/html", html), &options).unwrap();
    let links: Vec<_> = page.links.iter().map(|l| (l.text.as_str(), l.url.as_str())).collect();
    assert_eq!(
        links,
        [
            ("Up there", "http://h.test/up"),
            ("o", "http://o.test/x#f"),
            ("", "http://h.test/dir/map"),
            ("left open", "http://h.test/dir/q?a=1&b=2"),
            ("last", "http://h.test/dir/last"),
        ]
    );
    let based = format!("<head><base href='http://base.test/a/'></head>{html}");
    let page = page::read(
        &reply("text/html", based),
        &PageOptions {
            max_links: 1,
            ..options
        },
    )
    .unwrap();
    assert_eq!(page.links.len(), 1);
    assert_eq!(page.links[0].url, "http://base.test/up");
    assert!(read(html).links.is_empty());
}

/// A page with a text of some length and the usual things around it.
fn article() -> String {
    let menu: String = (0..60)
        .map(|i| format!("<li><a href='/m{i}'>Menu entry {i}</a></li>"))
        .collect();
    let sentence = "The river rose slowly that spring, and the people of the town, who had seen it before, carried their books upstairs. ";
    let paragraphs: String = (0..12)
        .map(|i| format!("<p>Paragraph {i}. {}</p>", sentence.repeat(3)))
        .collect();
    format!(
        "<html><head><title>The flood</title></head><body><nav><ul>{menu}</ul></nav><div id=content><article><h1>The flood</h1>\
         {paragraphs}<p>See <a href='more'>the map</a> for more, if you please.</p></article></div>\
         <aside><ul>{menu}</ul></aside><footer><p>All rights reserved, cookies, imprint</p></footer></body></html>"
    )
}

#[test]
fn the_main_part_of_a_page_that_has_one() {
    let read = |html: &str, content| {
        page::read(
            &reply("text/html", html),
            &PageOptions {
                content,
                max_links: 100,
                ..PageOptions::default()
            },
        )
        .unwrap()
    };
    let html = article();
    for content in [Content::Auto, Content::Main] {
        let page = read(&html, content);
        assert!(page.main_only, "{content:?}");
        assert!(
            page.text.contains("Paragraph 0. The river") && page.text.contains("Paragraph 11."),
            "{}",
            page.text
        );
        assert!(
            !page.text.contains("Menu entry") && !page.text.contains("All rights"),
            "{}",
            page.text
        );
        assert_eq!(page.title.as_deref(), Some("The flood"));
        assert_eq!(page.links.len(), 1);
        assert_eq!(page.links[0].url, "http://h.test/dir/more");
    }
    let all = read(&html, Content::All);
    assert!(!all.main_only && all.text.contains("Menu entry 59") && all.text.contains("All rights"));
    // Without anything around it, and when it is short, a page is given whole.
    let long = format!(
        "<h1>Title</h1>{}",
        "<p>Some words, many of them, with commas, in a row.</p>".repeat(100)
    );
    let short = "<nav>menu</nav><p>Short</p><footer>end</footer>";
    for (html, words) in [(long.as_str(), "Title"), (short, "menu")] {
        let page = read(html, Content::Auto);
        assert!(!page.main_only && page.text.contains(words), "{}", page.text);
    }
    assert_eq!(read("<p>x", Content::Main).text, "x");
    assert!("Rest".parse::<Content>().is_err() && "MAIN".parse::<Content>().is_ok());
}

#[test]
fn hostile_pages_take_no_more_time_than_others() {
    let options = PageOptions {
        content: Content::Main,
        max_links: 100,
        ..PageOptions::default()
    };
    let n = 100_000;
    let attributes: String = (0..n).map(|i| format!(" a{i}=x")).collect();
    let formatting: String = (0..n).map(|i| format!("<b a={i}><p>")).collect();
    for html in [
        "<div>".repeat(n),
        "<div></x>".repeat(n),
        "<table><tr><td>".repeat(n),
        format!("<p{attributes}>x"),
        format!("<p a=\"{}\">x", "y".repeat(4_000_000)),
        formatting,
        "<a href=x>".repeat(n),
        "<svg>".repeat(n) + &"</svg>".repeat(n),
        "<!--".repeat(n),
        "<noscript>".repeat(n),
        "<script>".repeat(n),
        "&".repeat(n * 10),
        "&amp;".repeat(n * 5),
        "<".repeat(n * 10),
        "</a".repeat(n),
        "<![CDATA[".repeat(n),
        "\n ".repeat(n * 10),
        "<p>".repeat(n),
        "<nav>".repeat(n) + &"x ".repeat(5000),
        "<ul><li>".repeat(n),
        "<title>".repeat(n),
        "<base href=x>".repeat(n),
    ] {
        let page = page::read(&reply("text/html", html), &options).unwrap();
        assert!(page.text.len() <= 4 * options.max_chars);
    }
}

mod pdf {
    use lopdf::content::{Content, Operation};
    use lopdf::{Document, Object, Stream, dictionary};

    use super::*;

    /// A PDF of these pages; each is a list of operators.
    fn document(pages: &[Vec<Operation>], form: Option<Vec<Operation>>) -> Vec<u8> {
        let mut document = Document::with_version("1.5");
        let tree = document.new_object_id();
        let font = document.add_object(dictionary! {"Type" => "Font", "Subtype" => "Type1", "BaseFont" => "Courier", "Encoding" => "WinAnsiEncoding"});
        let form_id = document.new_object_id();
        let resources = document.add_object(dictionary! {
            "Font" => dictionary! {"F1" => font},
            "XObject" => dictionary! {"X1" => form_id},
        });
        let encode = |operations: &[Operation]| {
            Content {
                operations: operations.to_vec(),
            }
            .encode()
            .unwrap()
        };
        let form = encode(&form.unwrap_or_default());
        let kind = dictionary! {"Type" => "XObject", "Subtype" => "Form", "Resources" => resources};
        document
            .objects
            .insert(form_id, Object::Stream(Stream::new(kind, form)));
        let kids: Vec<Object> = pages
            .iter()
            .map(|operations| {
                let content = document.add_object(Stream::new(dictionary! {}, encode(operations)));
                let page =
                    dictionary! {"Type" => "Page", "Parent" => tree, "Contents" => content, "Resources" => resources};
                document.add_object(page).into()
            })
            .collect();
        let count = i64::try_from(kids.len()).unwrap();
        document.objects.insert(
            tree,
            Object::Dictionary(dictionary! {"Type" => "Pages", "Kids" => kids, "Count" => count}),
        );
        let catalog = document.add_object(dictionary! {"Type" => "Catalog", "Pages" => tree});
        let info = document.add_object(dictionary! {"Title" => Object::string_literal("On  rivers")});
        document.trailer.set("Root", catalog);
        document.trailer.set("Info", info);
        document.compress();
        let mut bytes = Vec::new();
        document.save_to(&mut bytes).unwrap();
        bytes
    }

    fn op(operator: &str, operands: Vec<Object>) -> Operation {
        Operation::new(operator, operands)
    }

    fn says(text: &str) -> Vec<Operation> {
        let text = Object::string_literal(text);
        vec![
            op("BT", vec![]),
            op("Tf", vec!["F1".into(), 12.into()]),
            op("Tj", vec![text]),
            op("ET", vec![]),
        ]
    }

    fn read(body: Vec<u8>, pages: &str) -> Result<page::Page, String> {
        let options = PageOptions {
            pages: Some(Pages::from_str(pages).unwrap()),
            ..PageOptions::default()
        };
        page::read(&reply("application/pdf", body), &options).map_err(|e| e.to_string())
    }

    #[test]
    fn pages_on_request() {
        let body = document(
            &[
                says("First page"),
                says("Second page"),
                vec![],
                says("Fourth \x1b page"),
            ],
            None,
        );
        let page = read(body.clone(), "1-2").unwrap();
        assert_eq!(page.text, "First page\n\nSecond page");
        assert_eq!((page.title.as_deref(), page.page_count), (Some("On rivers"), Some(4)));
        let page = read(body.clone(), "4,1, 3-99").unwrap();
        assert_eq!(page.text, "Fourth page\n\nFirst page");
        assert_eq!(page.notes, ["page 3 has no text; it may be a picture"]);
        assert!(read(body.clone(), "7").unwrap_err().contains("it has 4 pages"));
        let options = PageOptions {
            max_chars: 5,
            pages: Some(Pages::from_str("1").unwrap()),
            ..PageOptions::default()
        };
        let page = page::read(&reply("", body.clone()), &options).unwrap();
        assert_eq!((page.text.as_str(), page.truncated), ("First", true));
        let cut = Reply {
            truncated: true,
            ..reply("application/pdf", body)
        };
        assert!(
            page::read(&cut, &options)
                .unwrap_err()
                .to_string()
                .contains("is larger than")
        );
        for bad in ["", "0", "a", "3-1", "1-", "-1", "1,,2", "99999999999"] {
            assert!(Pages::from_str(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_and_words() {
        let literal = Object::string_literal;
        let mut operations = says("One");
        operations.truncate(3);
        operations.extend([
            op("Td", vec![0.into(), (-14).into()]),
            op(
                "TJ",
                vec![vec![literal("Tw"), 20.into(), literal("o"), (-300).into(), literal("three")].into()],
            ),
            op("Td", vec![50.into(), 0.into()]),
            op("Tj", vec![literal("four")]),
            op("'", vec![literal("five")]),
            op("ET", vec![]),
            op("Do", vec!["X1".into()]),
        ]);
        let page = read(document(&[operations], Some(says("in a form"))), "1").unwrap();
        assert_eq!(page.text, "One\nTwo three four\nfive\nin a form");
    }

    #[tokio::test]
    async fn broken_and_hostile_files() {
        let good = document(&[says("text")], None);
        for length in [5, 20, good.len() / 3, good.len() / 2, good.len() - 40] {
            let _ = read(good[..length].to_vec(), "1");
        }
        assert!(
            read(b"%PDF-1.7 nothing".to_vec(), "1")
                .unwrap_err()
                .contains("can't be read")
        );
        // A form that holds itself, twice.
        let mut circle = says("round");
        circle.extend([op("Do", vec!["X1".into()]), op("Do", vec!["X1".into()])]);
        let page = read(document(&[circle.clone()], Some(circle)), "1").unwrap();
        assert!(page.text.starts_with("round\nround"));
        // A page that is nothing but zeros for a gigabyte.
        let mut bomb = Document::load_mem(&good).unwrap();
        let id = *bomb.get_pages().get(&1).unwrap();
        let content = bomb.get_page_contents(id)[0];
        let mut stream = Stream::new(dictionary! {}, vec![b' '; 64 * 1024 * 1024]);
        stream.compress().unwrap();
        bomb.objects.insert(content, Object::Stream(stream));
        let mut bytes = Vec::new();
        bomb.save_to(&mut bytes).unwrap();
        let page = read(bytes, "1").unwrap();
        assert!(page.notes[0].starts_with("page 1: "), "{:?}", page.notes);
        let options = PageOptions {
            pages: Some(Pages::from_str("1").unwrap()),
            ..PageOptions::default()
        };
        let page = page::read_within(reply("application/pdf", good), options, Duration::from_secs(60))
            .await
            .unwrap();
        assert_eq!(page.text, "text");
    }
}
