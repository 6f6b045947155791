//! What holds for any input.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use decanus_net::page::{self, Content, Pages};
use decanus_net::{AllowList, Class, Guard, PageOptions, Reply, classify};
use proptest::prelude::*;
use url::Url;

/// Pieces of which pages and faults are made.
fn html() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ -~\n]{0,12}",
        "\\PC{0,6}",
        prop::sample::select(vec![
            "<p>",
            "</p>",
            "<div class=a>",
            "</div>",
            "<a href='",
            "'>",
            "</a>",
            "<script>",
            "</script>",
            "<title>",
            "</title>",
            "<head>",
            "</head>",
            "<!--",
            "-->",
            "<noscript>",
            "</noscript>",
            "<svg>",
            "</svg>",
            "<base href=x>",
            "&amp;",
            "&#",
            "&#x41;",
            "<table>",
            "<td>",
            "</td>",
            "<b>",
            "</i>",
            "<![CDATA[",
            "]]>",
            "<nav>",
            "<textarea>",
            "\0",
            "\r",
            "\u{1b}[2J",
            "\u{202e}",
            "<",
            ">",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn reply(content_type: &str, body: Vec<u8>) -> Reply {
    Reply {
        status: 200,
        headers: vec![("content-type".to_owned(), content_type.to_owned())],
        body,
        truncated: false,
        url: Url::parse("http://h.test/").unwrap(),
    }
}

proptest! {
    /// A mapped address is what it maps, NAT64 too; no other form that carries an address is public.
    #[test]
    fn carried_addresses(bits in any::<u32>(), fill in any::<u64>()) {
        let carried = Ipv4Addr::from(bits);
        let class = classify(IpAddr::V4(carried));
        prop_assert_eq!(classify(IpAddr::V6(carried.to_ipv6_mapped())), class);
        let low = u128::from(bits);
        prop_assert_eq!(classify(IpAddr::V6(Ipv6Addr::from(0x64_ff9b << 96 | low))), class);
        let fill = u128::from(fill);
        for hidden in [
            low,
            0xffff << 48 | low,
            0x2002 << 112 | low << 80 | fill,
            0x2001 << 112 | fill << 32 | u128::from(!bits),
            0x64_ff9b_0001 << 80 | low,
        ] {
            prop_assert_ne!(classify(IpAddr::V6(Ipv6Addr::from(hidden))), Class::Public, "{}", Ipv6Addr::from(hidden));
        }
        let isatap = 0x2a00 << 112 | 0x5efe << 32 | low;
        prop_assert_eq!(classify(IpAddr::V6(Ipv6Addr::from(isatap))), class);
    }

    /// Nothing outside 2000::/3 is public but mapped addresses and NAT64, and the standard library agrees on the rest.
    #[test]
    fn only_what_was_given_out_is_public(bits in any::<u128>(), small in any::<u32>()) {
        let address = Ipv6Addr::from(bits);
        if bits >> 125 != 1 && bits >> 32 != 0xffff && bits >> 32 != 0x64_ff9b << 64 {
            prop_assert_ne!(classify(IpAddr::V6(address)), Class::Public);
        }
        let v4 = Ipv4Addr::from(small);
        if v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_broadcast() || v4.is_documentation()
            || v4.is_multicast() || v4.is_unspecified() {
            prop_assert_ne!(classify(IpAddr::V4(v4)), Class::Public);
        }
    }

    /// However an IPv4 address is written, the guard sees the address.
    #[test]
    fn spellings_of_addresses(bits in any::<u32>()) {
        let [a, b, c, d] = bits.to_be_bytes();
        let class = classify(IpAddr::V4(Ipv4Addr::from(bits)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let guard = Guard::default();
        for host in [
            format!("{bits}"), format!("0x{bits:x}"), format!("0{bits:o}"), format!("{a}.{b}.{c}.{d}."), format!("0x{a:X}.0{b:o}.{c}.{d}"),
            format!("{a}.{}", bits & 0xff_ffff), format!("{a}.{b}.{}", bits & 0xffff), format!("[::ffff:{a}.{b}.{c}.{d}]"),
        ] {
            let verdict = runtime.block_on(async {
                guard.check(guard.parse(&format!("http://{host}/"))?, std::time::Duration::from_secs(1)).await
            });
            prop_assert_eq!(verdict.is_ok(), class == Class::Public, "{}: {:?}", host, verdict);
        }
    }

    #[test]
    fn any_text_may_be_no_url(text in "\\PC{0,40}", list in "[a-z0-9.:,\\[\\]* /]{0,30}") {
        let _ = Guard::default().parse(&text);
        let _ = Guard::default().parse(&format!("http://{text}"));
        let _ = AllowList::parse(&list);
        let _ = text.parse::<Pages>();
    }

    #[test]
    fn pages_are_bounded_and_tidy(html in html(), max_chars in 0..200usize, max_links in 0..5usize) {
        for content in [Content::Auto, Content::All, Content::Main] {
            let options = PageOptions { max_chars, max_links, content, ..PageOptions::default() };
            let page = page::read(&reply("text/html; charset=utf-8", html.clone().into_bytes()), &options).unwrap();
            prop_assert!(page.text.chars().count() <= max_chars && page.links.len() <= max_links);
            prop_assert!(!page.text.chars().any(|c| c.is_control() && c != '\n'));
            prop_assert!(!page.text.contains("\n\n\n") && !page.text.contains(" \n") && !page.text.contains("  "));
            if content == Content::All {
                let whole = PageOptions { max_chars: usize::MAX, ..options.clone() };
                let whole = page::read(&reply("text/html; charset=utf-8", html.clone().into_bytes()), &whole).unwrap();
                prop_assert!(whole.text.starts_with(&page.text) && !whole.truncated);
                prop_assert_eq!(page.truncated, page.text != whole.text);
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        body in prop::collection::vec(any::<u8>(), 0..300),
        content_type in prop::sample::select(vec!["", "text/html", "text/plain; charset=gbk", "text/html; charset=utf-16le", "application/pdf", "text/x; charset=iso-2022-jp"]),
        pdf in any::<bool>(),
    ) {
        let body = if pdf { [b"%PDF-1.5\n".as_slice(), &body].concat() } else { body };
        let options = PageOptions { pages: Some("1-3".parse().unwrap()), ..PageOptions::default() };
        let _ = page::read(&reply(content_type, body), &options);
    }
}
