//! The small server to which the browser brings the code.

use std::time::Duration;

use decanus_base::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::login::code_of;

/// A browser says what it wants at once.
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST: usize = 16 * 1024;

pub(crate) struct Loopback {
    listener: TcpListener,
    port: u16,
}

impl Loopback {
    /// Listens on this machine only, on a port that is free.
    pub async fn open(port: Option<u16>) -> Result<Self, String> {
        let fail = |e: std::io::Error| match port {
            Some(port) => format!("port {port} of this machine can't be listened on: {e}"),
            None => format!("no port of this machine can be listened on: {e}"),
        };
        let listener = TcpListener::bind(("127.0.0.1", port.unwrap_or(0)))
            .await
            .map_err(fail)?;
        let port = listener.local_addr().map_err(fail)?.port();
        Ok(Self { listener, port })
    }

    /// Where the browser is sent.
    pub fn redirect(&self) -> String {
        format!("http://127.0.0.1:{}/callback", self.port)
    }

    /// Waits for the browser. Connections that say nothing, or something else, keep nobody waiting: browsers open some in
    /// advance and ask for icons.
    pub async fn code(self, state: &str, issuer: Option<&str>) -> Result<Secret, String> {
        let mut talks = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (state, issuer) = (state.to_owned(), issuer.map(str::to_owned));
                        talks.spawn(async move {
                            tokio::time::timeout(PATIENCE, talk(stream, &state, issuer.as_deref())).await.ok().flatten()
                        });
                    }
                    // Out of file descriptors, for instance: it may pass.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
                Some(ended) = talks.join_next() => {
                    if let Ok(Some(outcome)) = ended {
                        return outcome;
                    }
                }
            }
        }
    }
}

/// One request. Nothing when it is none of ours.
async fn talk(mut stream: TcpStream, state: &str, issuer: Option<&str>) -> Option<Result<Secret, String>> {
    let mut head = Vec::new();
    let mut piece = [0; 2048];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = stream.read(&mut piece).await.ok()?;
        if n == 0 || head.len() + n > LONGEST {
            return None;
        }
        head.extend_from_slice(&piece[..n]);
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let query = match target.split_once('?') {
        Some(("/callback", query)) if method == "GET" => query,
        _ => {
            answer(&mut stream, "404 Not Found", "Nothing is here.").await;
            return None;
        }
    };
    let outcome = code_of(query, state, issuer);
    match &outcome {
        Ok(_) => answer(&mut stream, "200 OK", "decanus goes on. You can close this window.").await,
        // What came in is not repeated: somebody else may have sent the browser here.
        Err(_) => {
            answer(
                &mut stream,
                "400 Bad Request",
                "Logging in failed. The terminal says why.",
            )
            .await
        }
    }
    Some(outcome)
}

async fn answer(stream: &mut TcpStream, status: &str, text: &str) {
    let reply = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\ncache-control: no-store\r\n\
         referrer-policy: no-referrer\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    // A browser that went away has its code delivered all the same.
    let _ = stream.write_all(reply.as_bytes()).await;
    let _ = stream.shutdown().await;
}
