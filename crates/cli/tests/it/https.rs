//! TLS: certificates of one's own, and HTTP/2.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use decanus_testkit::Sandbox;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::support::run;

/// Node's own server, which speaks HTTP/2 where it is asked for in the handshake. The answer is the protocol's version.
const SERVER: &str = r#"
const fs = require("fs"), zlib = require("zlib");
const server = require("http2").createSecureServer(
  {key: fs.readFileSync("server.key"), cert: fs.readFileSync("server.pem"), allowHTTP1: true},
  (request, response) => {
    const text = "HTTP/" + request.httpVersion;
    const body = JSON.stringify({choices: [{message: {content: text}, finish_reason: "stop"}]});
    response.writeHead(200, {"content-type": "application/json", "content-encoding": "gzip"});
    response.end(zlib.gzipSync(body));
  });
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"#;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_certificate_authority_of_one_s_own_is_trusted_when_it_is_named_and_http_2_is_spoken() {
    let s = Sandbox::new();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".into()]).unwrap();
    let server = server.signed_by(&key, &authority).unwrap();
    s.write("ca.pem", authority.pem());
    s.write("server.pem", server.pem());
    s.write("server.key", key.serialize_pem());
    s.write("server.js", SERVER);
    let mut child = Command::new("node")
        .arg("server.js")
        .current_dir(s.path("."))
        .stdout(Stdio::piped())
        .spawn()
        .expect("Node is needed for this test");
    let mut port = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut port)
        .unwrap();
    let _server = Server(child);
    let url = format!("https://localhost:{}/v1", port.trim());
    s.write(
        "endpoints/e.yaml",
        format!("backend: openai\nurl: {url}\nmodel: m\nretries: 0\n"),
    );

    let ask = ["ask", "-e", "e", "--no-stream", "hi"];
    let refused = run(&s, &ask).exits(3);
    assert!(refused.stderr.contains("certificate"), "{refused}");
    let s = s.env("SSL_CERT_FILE", "ca.pem");
    assert_eq!(run(&s, &ask).exits(0).stdout, "HTTP/2.0\n");
}
