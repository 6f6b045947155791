//! Web pages, made up anew each time: the same pages for the same number, and no files to keep.

use crate::sample::Writer;

/// The sentence that stands in the main part of each page.
pub const IN_MAIN: &str = "This sentence belongs to the main part of the page.";
/// The text that stands beside each main part.
pub const BESIDE: &str = "Sign up for the letter of this site";

/// The page of a number: news, a blog, documentation, an encyclopaedia and a forum in turns, short and long, with all that
/// stands around a text.
pub fn page(number: usize) -> String {
    let mut page = Page {
        writer: Writer::new(0x9a6e ^ number as u64),
        out: String::with_capacity(32 * 1024),
    };
    page.head(number);
    page.top();
    match number % 5 {
        0 => page.article("article", "story-body", "By A. Writer"),
        1 => page.article("div", "post entry-content", "Posted yesterday"),
        2 => page.documentation(),
        3 => page.encyclopaedia(),
        _ => page.forum(),
    }
    page.beside();
    page.bottom();
    page.out
}

struct Page {
    writer: Writer,
    out: String,
}

impl Page {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn words(&mut self, count: usize) -> String {
        let mut text = String::new();
        for n in 0..count {
            if n > 0 {
                text.push(' ');
            }
            text.push_str(self.writer.word());
        }
        text
    }

    fn head(&mut self, number: usize) {
        let title = self.words(6);
        let about = self.words(20);
        self.put(&format!(
            "<!DOCTYPE html>\n<html lang=\"en\" class=\"no-js\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title} | Example {number}</title>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"description\" content=\"{about}\">\n\
             <meta property=\"og:title\" content=\"{title}\">\n<link rel=\"canonical\" href=\"https://example.com/p/{number}\">\n"
        ));
        for n in 0..4 {
            self.put(&format!("<link rel=\"stylesheet\" href=\"/static/{n}.css\">\n"));
        }
        self.put("<style>\n");
        for n in 0..40 {
            self.put(&format!(
                ".c{n} > .d{n}:hover {{ margin: 0 {n}px; color: #{n:06x}; }}\n"
            ));
        }
        self.put("</style>\n<script type=\"application/ld+json\">{\"@context\":\"https://schema.org\",\"@type\":\"Article\"}</script>\n<script>\n");
        for n in 0..60 {
            self.put(&format!(
                "window.q = window.q || []; if (q.length < {n}) {{ q.push(['track', \"<b>{n}</b>\"]); }}\n"
            ));
        }
        self.put("</script>\n</head>\n<body class=\"page single\">\n");
    }

    fn top(&mut self) {
        self.put("<a class=\"skip\" href=\"#main\">Skip to content</a>\n<header class=\"site-header\" role=\"banner\"><a href=\"/\"><img src=\"/logo.svg\" alt=\"Example\"></a>\n<nav class=\"main-nav\"><ul>\n");
        let count = 12 + self.writer.below(30);
        self.links(count);
        self.put("</ul></nav>\n<form class=\"search\" action=\"/s\"><input name=\"q\" placeholder=\"Search\"><button>Go</button></form></header>\n<ol class=\"breadcrumb\">\n");
        self.links(3);
        self.put("</ol>\n");
    }

    fn links(&mut self, count: usize) {
        for n in 0..count {
            let words = 1 + self.writer.below(4);
            let text = self.words(words);
            self.put(&format!(
                "<li class=\"item i{n}\"><a href=\"/section/{n}?ref=nav&amp;x=1\">{text}</a></li>\n"
            ));
        }
    }

    /// A paragraph of running text, with what stands in one.
    fn paragraph(&mut self) {
        self.put("<p>");
        for sentence in 0..3 + self.writer.below(5) {
            if sentence > 0 {
                self.put(" ");
            }
            let words = 4 + self.writer.below(8);
            let (head, tail) = (self.words(words), self.words(words));
            let middle = self.words(2);
            let middle = match self.writer.below(6) {
                0 => format!("<a href=\"https://example.org/w/{sentence}\">{middle}</a>"),
                1 => format!("<em>{middle}</em>"),
                2 => format!("<strong>{middle}</strong> &ndash;"),
                3 => format!("&ldquo;{middle}&rdquo;"),
                _ => middle,
            };
            self.put(&format!("{head} {middle}, {tail}."));
        }
        self.put("</p>\n");
    }

    fn heading(&mut self, level: u8) {
        let text = self.words(5);
        self.put(&format!("<h{level} id=\"s{level}\">{text}</h{level}>\n"));
    }

    fn body(&mut self, paragraphs: usize) {
        for n in 0..paragraphs {
            self.paragraph();
            if n == 0 {
                self.put(&format!("<p>{IN_MAIN} "));
                let text = self.words(30);
                self.put(&format!("{text}.</p>\n"));
            }
            match self.writer.below(9) {
                0 => self.heading(2),
                1 => {
                    let caption = self.words(8);
                    self.put(&format!("<figure class=\"wide\"><img src=\"/i/{n}.jpg\" srcset=\"/i/{n}-2.jpg 2x\" alt=\"\"><figcaption>{caption}</figcaption></figure>\n"));
                }
                2 => {
                    let quote = self.words(25);
                    self.put(&format!("<blockquote><p>{quote}</p></blockquote>\n"));
                }
                3 => self.list(),
                4 => self.put("<div class=\"ad-slot\" data-slot=\"mid\"><script>ads.show('mid')</script></div>\n"),
                _ => {}
            }
        }
    }

    fn list(&mut self) {
        self.put("<ul>\n");
        for _ in 0..3 + self.writer.below(5) {
            let text = self.words(9);
            self.put(&format!("<li>{text}</li>\n"));
        }
        self.put("</ul>\n");
    }

    fn article(&mut self, element: &str, class: &str, byline: &str) {
        self.put(&format!("<main id=\"main\"><{element} class=\"{class}\">\n"));
        self.heading(1);
        self.put(&format!("<div class=\"meta\"><span class=\"byline\">{byline}</span> <time datetime=\"2026-11-30\">30 November</time><ul class=\"share\"><li><a href=\"#\">Share</a></li><li><a href=\"#\">Print</a></li></ul></div>\n"));
        let paragraphs = 6 + self.writer.below(24);
        self.body(paragraphs);
        self.put(&format!("</{element}>\n"));
        let comments = self.writer.below(8);
        self.comments(comments);
        self.put("</main>\n");
    }

    fn documentation(&mut self) {
        self.put("<div class=\"wrap\"><nav class=\"toc\" role=\"navigation\"><ul>\n");
        self.links(25);
        self.put("</ul></nav>\n<main class=\"content\" id=\"main\">\n");
        self.heading(1);
        for _ in 0..3 + self.writer.below(6) {
            self.heading(2);
            let paragraphs = 1 + self.writer.below(4);
            self.body(paragraphs);
            self.put("<pre><code class=\"language-rust\">");
            for n in 0..6 {
                let name = self.writer.word();
                self.put(&format!(
                    "<span class=\"kw\">let</span> {name}_{n} = <span class=\"fn\">read</span>(&amp;{name})?;\n"
                ));
            }
            self.put("</code></pre>\n");
        }
        self.put("</main></div>\n");
    }

    fn encyclopaedia(&mut self) {
        self.put("<div id=\"content\" class=\"mw-body\"><div id=\"main\" class=\"mw-parser-output\">\n");
        self.heading(1);
        self.put("<table class=\"infobox\"><tbody>\n");
        self.rows(8, 2);
        self.put("</tbody></table>\n");
        for _ in 0..4 + self.writer.below(5) {
            self.heading(2);
            let paragraphs = 2 + self.writer.below(4);
            self.body(paragraphs);
        }
        self.put("<table class=\"wikitable\"><tbody>\n");
        self.rows(15, 5);
        self.put("</tbody></table>\n<ol class=\"references\">\n");
        for n in 0..20 {
            let text = self.words(12);
            self.put(&format!(
                "<li id=\"cite-{n}\"><a href=\"#ref-{n}\">^</a> <cite>{text}</cite></li>\n"
            ));
        }
        self.put("</ol></div></div>\n");
    }

    fn rows(&mut self, rows: usize, columns: usize) {
        for _ in 0..rows {
            self.put("<tr>");
            for _ in 0..columns {
                let text = self.words(3);
                self.put(&format!("<td>{text}</td>"));
            }
            self.put("</tr>\n");
        }
    }

    fn forum(&mut self) {
        self.put("<main id=\"main\" class=\"question\">\n");
        self.heading(1);
        self.put("<div class=\"post-text\">\n");
        let paragraphs = 4 + self.writer.below(8);
        self.body(paragraphs);
        self.put("</div>\n");
        let answers = 2 + self.writer.below(8);
        self.comments(answers);
        self.put("</main>\n");
    }

    fn comments(&mut self, count: usize) {
        self.put("<section class=\"comments\" id=\"comments\"><h3>Comments</h3>\n");
        for n in 0..count {
            self.put(&format!(
                "<div class=\"comment\" id=\"c{n}\"><div class=\"who\"><a href=\"/u/{n}\">user{n}</a> said</div>\n"
            ));
            self.paragraph();
            self.put("<a class=\"reply\" href=\"#\">Reply</a></div>\n");
        }
        self.put("</section>\n");
    }

    fn beside(&mut self) {
        self.put(&format!("<aside class=\"sidebar\"><div class=\"promo\"><h4>{BESIDE}</h4><form><input type=\"email\"><button>Sign up</button></form></div>\n<div class=\"related\"><h4>Read next</h4><ul>\n"));
        self.links(10);
        self.put("</ul></div></aside>\n");
    }

    fn bottom(&mut self) {
        self.put("<footer class=\"site-footer\">\n");
        for _ in 0..4 {
            self.put("<div class=\"column\"><h5>More</h5><ul>\n");
            self.links(8);
            self.put("</ul></div>\n");
        }
        self.put("<p class=\"legal\">&copy; 2026 Example. All rights reserved. <a href=\"/privacy\">Privacy</a></p></footer>\n<script src=\"/static/app.js\" async></script>\n<noscript><img src=\"/pixel.gif\" alt=\"\"></noscript>\n</body>\n</html>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_the_same_each_time_and_differ() {
        assert_eq!(page(7), page(7));
        assert_ne!(page(7), page(12));
        for number in 0..20 {
            let page = page(number);
            assert!(page.contains(IN_MAIN) && page.contains(BESIDE), "{number}");
            assert!((8_000..100_000).contains(&page.len()), "{number}: {}", page.len());
        }
    }
}
