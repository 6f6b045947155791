//! Certificates: the name of the URL is what is shown and checked, whatever address is connected to.

use std::sync::{Arc, Mutex};

use decanus_net::{AllowList, Client, Request};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{fixture, here, limits};

/// What servers saw: the name that was asked for in TLS, and the request.
type Seen = Arc<Mutex<Vec<(Option<String>, String)>>>;

/// A server with a certificate for `h.test` by an authority that no system knows.
async fn server() -> (u16, Seen) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from_pem_slice(&fixture("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(&fixture("server.key")).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Seen::default();
    let log = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let name = stream.get_ref().1.server_name().map(str::to_owned);
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap() > 0 {}
            log.lock().unwrap().push((name, String::from_utf8(request).unwrap()));
            stream
                .write_all(b"HTTP/1.1 302 Found\r\nlocation: http://h.test/\r\ncontent-length: 2\r\n\r\nok")
                .await
                .unwrap();
        }
    });
    (port, seen)
}

fn client(trusts: bool) -> Client {
    let builder = Client::builder()
        .resolver(here(&["h.test", "other.test"]))
        .allow(AllowList::parse("h.test,other.test").unwrap())
        .limits(limits());
    if !trusts {
        return builder.build();
    }
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&fixture("authority.pem")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    builder.tls(config).build()
}

#[tokio::test]
async fn name_and_port_of_the_url_go_along() {
    let (port, seen) = server().await;
    let reply = client(true)
        .send(Request::get(format!("https://h.test:{port}/x")))
        .await
        .unwrap();
    assert_eq!(reply.body, b"ok");
    let (name, request) = seen.lock().unwrap()[0].clone();
    assert_eq!(name.as_deref(), Some("h.test"));
    assert!(
        request.to_lowercase().contains(&format!("\r\nhost: h.test:{port}\r\n")),
        "{request}"
    );
    let error = client(true)
        .send(Request::get(format!("https://h.test:{port}/x")).redirects(5))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("a redirect from https to http"), "{error}");
    assert_eq!(error.class(), "ToolArgumentError");
}

#[tokio::test]
async fn certificates_are_checked() {
    let (port, seen) = server().await;
    for (trusts, host) in [(false, "h.test"), (true, "other.test")] {
        let error = client(trusts)
            .send(Request::get(format!("https://{host}:{port}/x?key=SENTINEL")))
            .await
            .unwrap_err();
        assert_eq!(error.class(), "ToolCertificateError", "{host}: {error}");
        assert!(
            error.to_string().contains("certificate during GET request to https://"),
            "{error}"
        );
        assert!(!error.to_string().contains("SENTINEL"), "{error}");
    }
    assert!(seen.lock().unwrap().is_empty());
    // No TLS at all is a fault of the network.
    let plain = decanus_testkit::ScriptedServer::always(decanus_testkit::Reply::new(200, "text/plain", "x"));
    let url = format!("https://h.test:{}/", plain.address().port());
    assert_eq!(
        client(true).send(Request::get(url)).await.unwrap_err().class(),
        "ToolNetworkError"
    );
}
