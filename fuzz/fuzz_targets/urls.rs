//! The guard of the network: nothing breaks down; what is allowed leads to public addresses only, and what is connected to
//! is what was checked.
#![no_main]

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use decanus_net::{AllowList, Class, Guard, Resolver, Target, classify, show_url};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use url::Url;

thread_local! {
    static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
}

/// Says that a name has these addresses.
struct Says(Vec<IpAddr>);

#[async_trait]
impl Resolver for Says {
    async fn lookup(&self, _: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(self.0.clone())
    }
}

// One byte of choice, addresses, a NUL, a URL, a NUL, a redirect.
fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else {
        return;
    };
    let mut parts = rest.splitn(3, |b| *b == 0);
    let addresses = addresses(parts.next().unwrap_or_default(), choice);
    for address in &addresses {
        judge(*address);
    }
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let redirect = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let _ = AllowList::parse(&redirect);
    let guard = Guard::new(AllowList::default()).resolver(Arc::new(Says(addresses.clone())));
    if let Ok(url) = guard.parse(&text) {
        let again = guard.parse(url.as_str());
        assert_eq!(again.as_ref(), Ok(&url), "another URL when it is read again");
        if let Some(target) = check(&guard, &url) {
            connects(&target, &url, &addresses);
        }
    }
    // A redirect is resolved against the URL and checked, but never read as a text of its own.
    let base = Url::parse(&text).or_else(|_| Url::parse("https://a.example/b?c"));
    if let Ok(Ok(mut url)) = base.map(|base| base.join(&redirect)) {
        url.set_fragment(None);
        if let Some(target) = check(&guard, &url) {
            connects(&target, &url, &addresses);
        }
    }
});

/// Four bytes each, or sixteen.
fn addresses(bytes: &[u8], choice: u8) -> Vec<IpAddr> {
    if choice & 1 == 0 {
        let four = bytes.chunks_exact(4).filter_map(|c| <[u8; 4]>::try_from(c).ok());
        return four.map(|c| IpAddr::V4(Ipv4Addr::from(c))).collect();
    }
    let sixteen = bytes.chunks_exact(16).filter_map(|c| <[u8; 16]>::try_from(c).ok());
    sixteen.map(|c| IpAddr::V6(Ipv6Addr::from(c))).collect()
}

fn check(guard: &Guard, url: &Url) -> Option<Target> {
    let shown = show_url(url);
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
    RUNTIME.with(|cell| {
        let runtime = cell.get_or_init(|| match Builder::new_current_thread().enable_time().build() {
            Ok(runtime) => runtime,
            Err(e) => panic!("no runtime: {e}"),
        });
        runtime.block_on(guard.check(url.clone(), Duration::from_secs(5))).ok()
    })
}

/// What is allowed is what is asked: reqwest hands the URL to hyper as a `http::Uri`, which takes it apart by itself.
fn connects(target: &Target, url: &Url, resolved: &[IpAddr]) {
    assert_eq!(&target.url, url);
    assert!(matches!(url.scheme(), "http" | "https"));
    assert!(url.username().is_empty() && url.password().is_none());
    assert!(!target.addresses.is_empty());
    for address in &target.addresses {
        assert_eq!(classify(*address), Class::Public, "{address}");
        judge(*address);
    }
    // What is no URI is not sent at all.
    let Ok(uri) = url.as_str().parse::<http::Uri>() else {
        return;
    };
    let host = uri.host().unwrap_or_default();
    assert_eq!(Some(host), url.host_str());
    assert_eq!(uri.scheme_str(), Some(url.scheme()));
    assert_eq!(uri.port_u16(), url.port());
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    match literal {
        Ok(address) => assert_eq!(target.addresses, [address]),
        Err(_) => {
            assert_eq!(target.addresses, resolved);
            let name = host.trim_end_matches('.');
            assert!(!name.eq_ignore_ascii_case("localhost") && !name.ends_with(".localhost"));
        }
    }
}

/// Against the standard library's own opinion.
fn judge(address: IpAddr) {
    let public = classify(address) == Class::Public;
    let private = match address {
        IpAddr::V4(v4) => is_private(v4),
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                || v6.to_ipv4().is_some_and(is_private)
        }
    };
    assert!(!(public && private), "{address}");
}

fn is_private(v4: Ipv4Addr) -> bool {
    v4.is_loopback()
        || v4.is_private()
        || v4.is_link_local()
        || v4.is_unspecified()
        || v4.is_broadcast()
        || v4.is_multicast()
        || v4.is_documentation()
}
