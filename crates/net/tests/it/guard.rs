//! Which URLs are refused.

use std::time::Duration;

use decanus_net::{AllowList, Client, Error, Guard, Refusal, Request};
use decanus_testkit::{Reply, ScriptedServer};

use crate::support::{Names, client, fixture};

/// Whether the guard lets a URL pass, without asking the network.
async fn verdict(url: &str) -> Result<(), Refusal> {
    let guard = Guard::default().resolver(Names::new(&[("good.example", &["93.184.216.34"])]));
    let url = guard.parse(url)?;
    guard.check(url, Duration::from_secs(5)).await.map(drop)
}

#[tokio::test]
async fn the_tables_of_addresses() {
    let mut lines = 0;
    for file in ["ipv4.urls.tsv", "ipv6.urls.tsv"] {
        for line in String::from_utf8(fixture(file)).unwrap().lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            let verdict = verdict(fields[0]).await;
            assert_eq!(verdict.is_ok(), fields[1] == "allow", "{line}: {verdict:?}");
            lines += 1;
        }
    }
    assert!(lines > 40);
}

#[tokio::test]
async fn hosts_in_all_spellings() {
    let refused = [
        "http://127.0.0.1/x",
        "http://127.255.255.254/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://a.localhost:8080/",
        "http://127.0.0.1./",
        "http://127.0.0.01/",
        "http://0x7f.0.0.1/",
        "http://0X7F000001/",
        "http://[::ffff:7f00:1]/",
        "http://%31%32%37.0.0.1/",
        "http://１２７.０.０.１/",
        "http://①②⑦.⓪.⓪.①/",
        "http://127。0。0。1/",
        "http://[0::1]/",
        "https://[::FFFF:10.0.0.1]:443/",
        "HTTP://10.0.0.1",
        "http://169.254.169.254/latest/meta-data/",
        "http://0/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://168.63.129.16/",
        "http://0xa9fea9fe:80/",
        "http://017700000001/",
    ];
    for url in refused {
        let refusal = verdict(url).await.unwrap_err();
        assert!(matches!(refusal, Refusal::Restricted { .. }), "{url}: {refusal}");
        assert!(refusal.to_string().contains("restricted network address"), "{refusal}");
    }
    for url in [
        "http://8.8.8.8/",
        "http://172.15.0.1/",
        "http://172.32.0.1/",
        "http://100.63.255.255/",
        "http://100.128.0.0/",
    ] {
        assert_eq!(verdict(url).await, Ok(()), "{url}");
    }
    for url in [
        "http://good.example/",
        "https://GOOD.example.:443/a?b#c",
        "http://good.example:8080",
    ] {
        assert_eq!(verdict(url).await, Ok(()), "{url}");
    }
}

#[tokio::test]
async fn what_is_no_url_of_the_web() {
    for url in [
        "ftp://h/x",
        "file:///etc/passwd",
        "gopher://h/",
        "javascript:alert(1)",
        "data:text/html,x",
        "mailto:a@b",
        "ws://h/",
    ] {
        let refusal = verdict(url).await.unwrap_err().to_string();
        assert!(refusal.contains("must use http or https"), "{url}: {refusal}");
    }
    let invalid = [
        "invalid url",
        "",
        "http://",
        "http:///x",
        "http:x",
        "http:/x",
        "http://?x",
        "//good.example/",
        "good.example",
        "/etc/passwd",
        "http://good.example/a b",
        " http://good.example/",
        "http://good.example/\n",
        "http://good\t.example/",
        "http://good.example\\@127.0.0.1/",
        "http:\\\\127.0.0.1\\",
        "http://[fe80::1%25eth0]/",
        "http://[::1",
        "http://a:99999/",
        "http://256.1.1.1/",
        "http://1.2.3.4.5/",
        "http://good.example:x/",
        "http://a\u{0}b/",
        "http://a%00b/",
        "http://./",
        "http://xn--/",
    ];
    for url in invalid {
        let refusal = verdict(url).await.unwrap_err();
        assert!(matches!(refusal, Refusal::Invalid { .. }), "{url:?}: {refusal}");
        assert!(refusal.to_string().contains("Invalid URL provided"), "{refusal}");
    }
    let long = verdict(&format!("http://good.example/{}", "a".repeat(100_000)))
        .await
        .unwrap_err();
    assert!(long.to_string().len() < 400, "{long}");
    for url in [
        "http://good.example@127.0.0.1/",
        "http://127.0.0.1:80@good.example/",
        "https://me:secret@good.example/",
    ] {
        let refusal = verdict(url).await.unwrap_err();
        assert!(matches!(refusal, Refusal::UserInfo(_)), "{url}: {refusal}");
        assert!(!refusal.to_string().contains("secret"), "{refusal}");
    }
    for url in [
        "http://good.example:22/",
        "http://good.example:25/",
        "http://good.example:6379/",
        "https://good.example:0/",
    ] {
        assert!(matches!(verdict(url).await, Err(Refusal::Port { .. })), "{url}");
    }
}

#[tokio::test]
async fn every_address_of_a_name_counts() {
    let names = Names::new(&[
        ("rebind.test", &["127.0.0.1"]),
        ("two.test", &["93.184.216.34", "10.1.2.3"]),
        ("six.test", &["2606:4700:4700::1111", "::ffff:192.168.0.1"]),
        ("none.test", &[]),
    ]);
    let client = client(names, "");
    let message = async |url: &str| client.send(Request::get(url)).await.unwrap_err();
    let error = message("http://rebind.test/").await;
    assert!(
        error
            .to_string()
            .contains("rebind.test -> 127.0.0.1 is a restricted network address"),
        "{error}"
    );
    assert_eq!(error.class(), "ToolArgumentError");
    assert!(
        message("http://two.test/")
            .await
            .to_string()
            .contains("two.test -> 10.1.2.3")
    );
    assert!(
        message("http://six.test/")
            .await
            .to_string()
            .contains("six.test -> ::ffff:192.168.0.1")
    );
    for url in ["http://nope.invalid/", "http://none.test/"] {
        let error = message(url).await;
        assert!(error.to_string().contains("Could not resolve host"), "{error}");
        assert_eq!(error.class(), "ToolNetworkError");
    }
}

#[tokio::test]
async fn a_refused_server_sees_no_connection() {
    let server = ScriptedServer::always(Reply::new(200, "text/plain", "secret"));
    let port = server.address().port();
    let names = Names::new(&[("h.test", &["127.0.0.1"])]);
    for (url, allowed) in [
        (format!("http://127.0.0.1:{port}/"), String::new()),
        (format!("http://h.test:{port}/"), String::new()),
        (format!("http://h.test:{port}/"), format!("127.0.0.1:{port}")),
        (format!("http://h.test:{port}/"), "h.test:1".to_owned()),
        (format!("http://localhost:{port}/"), "h.test".to_owned()),
    ] {
        let error = client(names.clone(), &allowed)
            .send(Request::get(&url))
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::Refused(Refusal::Restricted { .. })),
            "{url} {allowed}: {error}"
        );
    }
    assert!(server.requests().is_empty());
    for allowed in ["1", "true", "h.test", &format!("H.TEST.:{port}")] {
        let reply = client(names.clone(), allowed)
            .send(Request::get(format!("http://h.test:{port}/")))
            .await
            .unwrap();
        assert_eq!(reply.body, b"secret", "{allowed}");
    }
}

#[tokio::test]
async fn metadata_is_refused_unless_it_is_listed() {
    let names = Names::new(&[("cloud.test", &["169.254.169.254"])]);
    let all = Guard::new(AllowList::parse("1").unwrap()).resolver(names);
    for url in [
        "http://169.254.169.254/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://cloud.test/",
    ] {
        let url = all.parse(url).unwrap();
        let refusal = all.check(url, Duration::from_secs(5)).await.unwrap_err();
        assert!(refusal.to_string().contains("cloud metadata"), "{refusal}");
    }
    let listed = Guard::new(AllowList::parse("169.254.169.254").unwrap());
    let url = listed.parse("http://0xa9.254.43518/").unwrap();
    assert!(listed.check(url, Duration::from_secs(5)).await.is_ok());
}

#[tokio::test]
async fn a_name_that_changes_is_asked_once_for_each_request() {
    let server = ScriptedServer::always(Reply::new(200, "text/plain", "mine"));
    let port = server.address().port();
    // The first answer is what is checked and what is connected to; a second look would lead nowhere.
    let names = Names::new(&[("h.test", &["127.0.0.1"])]);
    names.then("h.test", &["240.0.0.1"]);
    let reply = client(names.clone(), &format!("h.test:{port}"))
        .send(Request::get(format!("http://h.test:{port}/")))
        .await;
    assert_eq!(reply.unwrap().body, b"mine");
    assert_eq!(names.asked(), 1);
    // Public at first, this machine afterwards: the second request is checked again.
    let turning = Names::new(&[("turn.test", &["93.184.216.34"])]);
    turning.then("turn.test", &["127.0.0.1"]);
    let guard = Guard::default().resolver(turning);
    let url = guard.parse(&format!("http://turn.test:{port}/")).unwrap();
    let target = guard.check(url.clone(), Duration::from_secs(5)).await.unwrap();
    assert_eq!(target.addresses, ["93.184.216.34".parse::<std::net::IpAddr>().unwrap()]);
    assert!(guard.check(url, Duration::from_secs(5)).await.is_err());
}

#[tokio::test]
async fn nothing_is_allowed_by_default() {
    let error = Client::default()
        .send(Request::get("http://127.0.0.1:9999/"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal::Restricted { .. })), "{error}");
}
