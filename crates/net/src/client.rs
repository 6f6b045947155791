//! Requests out, replies back, within limits.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use decanus_base::Secret;
use futures::io::AsyncReadExt;
use futures::{StreamExt, TryStreamExt};
use reqwest::StatusCode;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue, LOCATION,
};
use url::Url;

use crate::allow::AllowList;
use crate::authorizer::{Authorizer, Grant, Hop};
use crate::decode::{self, Source};
use crate::error::{Error, Refusal, causes, show_url};
use crate::guard::{Guard, Target, same_origin};
use crate::reply::Reply;
use crate::request::{Method, Request, merge_query};
use crate::resolver::Resolver;

/// What one request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Looking up the name, and again connecting (with TLS).
    pub connect: Duration,
    /// Waiting for the next piece of the answer, the first too.
    pub read: Duration,
    /// All of it, redirects included.
    pub total: Duration,
    /// Bytes of the body after decompression; the rest is not read.
    pub max_body: usize,
    /// Redirects, whatever a request asks for.
    pub max_redirects: usize,
}

impl Default for Limits {
    /// 5 s to connect, 15 s for the next piece, 30 s in all, a million bytes, five redirects.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            read: Duration::from_secs(15),
            total: Duration::from_secs(30),
            max_body: 1_000_000,
            max_redirects: 5,
        }
    }
}

/// Puts a client together.
#[derive(Default)]
pub struct ClientBuilder {
    allowed: AllowList,
    limits: Limits,
    resolver: Option<Arc<dyn Resolver>>,
    authorizer: Option<Arc<dyn Authorizer>>,
    tls: Option<rustls::ClientConfig>,
}

impl ClientBuilder {
    /// What may be reached besides the public network. Nothing by default, whatever the environment says: see
    /// [`AllowList::from_env`].
    #[must_use]
    pub fn allow(mut self, allowed: AllowList) -> Self {
        self.allowed = allowed;
        self
    }

    /// Other limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Another way to look up names.
    #[must_use]
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Who adds credentials.
    #[must_use]
    pub fn authorizer(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.authorizer = Some(authorizer);
        self
    }

    /// A configuration of TLS of one's own, for a private authority; the system's certificates by default.
    #[must_use]
    pub fn tls(mut self, config: rustls::ClientConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// The client.
    pub fn build(self) -> Client {
        let mut guard = Guard::new(self.allowed);
        if let Some(resolver) = self.resolver {
            guard = guard.resolver(resolver);
        }
        let tls = OnceLock::new();
        if let Some(config) = self.tls {
            // The cell is new.
            let _ = tls.set(config);
        }
        Client(Arc::new(Inner {
            guard,
            limits: self.limits,
            authorizer: self.authorizer,
            tls,
        }))
    }
}

struct Inner {
    guard: Guard,
    limits: Limits,
    authorizer: Option<Arc<dyn Authorizer>>,
    /// Reading the system's certificates takes a while, so they are read once, and not before they are needed.
    tls: OnceLock<rustls::ClientConfig>,
}

/// The guarded client. Cheap to clone.
///
/// Every hop gets a connection of its own to the addresses that were checked for it: a connection that is kept open
/// would belong to an older check.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

impl Default for Client {
    fn default() -> Self {
        Self::builder().build()
    }
}

/// A request on its way: what is sent at the next hop.
struct Travel {
    method: Method,
    target: Target,
    headers: HeaderMap,
    body: Vec<u8>,
    /// Whether all hops so far went to the origin of the first.
    at_home: bool,
    max_body: usize,
    /// What was granted on the way and must not come back in an answer.
    secrets: Vec<Secret>,
}

impl Travel {
    fn hop(&self) -> Hop<'_> {
        Hop {
            method: self.method,
            url: &self.target.url,
            headers: &self.headers,
            body: &self.body,
        }
    }
}

impl Client {
    /// Puts a client together.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A client that allows what the environment allows.
    ///
    /// # Errors
    /// When the list in the environment cannot be read.
    pub fn from_env() -> Result<Self, Error> {
        Ok(Self::builder().allow(AllowList::from_env()?).build())
    }

    /// The same client, where this one adds credentials.
    #[must_use]
    pub fn with_authorizer(&self, authorizer: Arc<dyn Authorizer>) -> Self {
        Self(Arc::new(Inner {
            guard: self.0.guard.clone(),
            limits: self.0.limits,
            authorizer: Some(authorizer),
            tls: self.0.tls.clone(),
        }))
    }

    /// The check that stands before every connection, for those who want to ask it alone.
    pub fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Sends a request. Any status is a reply, also one of a redirect that may not be followed.
    ///
    /// # Errors
    /// When the URL or a redirect's target is refused, nothing can be sent, time is up, or the connection fails or ends
    /// in the middle of the body.
    pub async fn send(&self, request: Request) -> Result<Reply, Error> {
        // What is wrong with the URL is said before what is wrong with the rest.
        let mut url = self.0.guard.parse(&request.url)?;
        merge_query(&mut url, request.query.iter().map(|(n, v)| (n.as_str(), v.as_str())));
        let (method, shown) = (request.method, show_url(&url));
        let total = self.0.limits.total;
        match tokio::time::timeout(total, self.travel(request, url)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Timeout {
                method,
                url: shown,
                why: format!("it took longer than {}", seconds(total)),
            }),
        }
    }

    /// [`Client::send`], where only statuses from 200 to 299 are replies.
    ///
    /// # Errors
    /// As there, and [`Error::Http`] for other statuses.
    pub async fn fetch(&self, request: Request) -> Result<Reply, Error> {
        let method = request.method;
        let reply = self.send(request).await?;
        if reply.is_success() {
            return Ok(reply);
        }
        Err(Error::Http {
            method,
            url: show_url(&reply.url),
            note: String::new(),
            reply: Box::new(reply),
        })
    }

    async fn travel(&self, request: Request, url: Url) -> Result<Reply, Error> {
        let limits = &self.0.limits;
        let (headers, body) = request.encode()?;
        let may_follow = if request.method.is_safe() {
            request.redirects.min(limits.max_redirects)
        } else {
            0
        };
        let mut travel = Travel {
            method: request.method,
            target: self.0.guard.check(url, limits.connect).await?,
            headers,
            body,
            at_home: true,
            max_body: request.max_body.unwrap_or(limits.max_body),
            secrets: Vec::new(),
        };
        let mut followed = 0;
        loop {
            let response = self.hop(&mut travel).await?;
            let next = location(&response).filter(|_| request.redirects > 0 && may_follow > 0);
            let Some(next) = next else {
                return read(travel, response, limits).await;
            };
            if followed == may_follow {
                let reply = head(&travel, &response);
                return Err(Error::Http {
                    method: travel.method,
                    url: show_url(&travel.target.url),
                    note: format!(": more than {may_follow} redirects"),
                    reply: Box::new(reply),
                });
            }
            followed += 1;
            self.follow(&mut travel, &next).await?;
        }
    }

    /// Goes where a redirect leads, with less luggage when that is another origin.
    async fn follow(&self, travel: &mut Travel, location: &str) -> Result<(), Error> {
        let from = &travel.target.url;
        let mut url = from.join(location).map_err(|e| Refusal::Invalid {
            shown: format!("the redirect of {}", show_url(from)),
            why: e.to_string(),
        })?;
        url.set_fragment(None);
        if from.scheme() == "https" && url.scheme() == "http" {
            return Err(Refusal::Downgrade(show_url(&url)).into());
        }
        if !same_origin(from, &url) {
            travel.at_home = false;
            // Any header may be a credential, so only those stay that say what is wanted.
            let wanted = [ACCEPT, ACCEPT_LANGUAGE];
            let keep = |name: &HeaderName| wanted.contains(name);
            let names: Vec<HeaderName> = travel.headers.keys().filter(|n| !keep(n)).cloned().collect();
            for name in names {
                travel.headers.remove(name);
            }
        }
        tracing::debug!("redirect to {}", show_url(&url));
        travel.target = self.0.guard.check(url, self.0.limits.connect).await?;
        Ok(())
    }

    /// One request and the head of its answer; a second one when the first was not let in and there are other credentials.
    async fn hop(&self, travel: &mut Travel) -> Result<reqwest::Response, Error> {
        let Some(authorizer) = self.0.authorizer.as_ref().filter(|_| travel.at_home) else {
            return self.attempt(travel, Grant::default()).await;
        };
        let shown = show_url(&travel.target.url);
        let failed = |why: String| Error::Authorization {
            url: shown.clone(),
            why,
        };
        let grant = authorizer.grant(travel.hop()).await.map_err(|e| failed(e.0))?;
        travel.secrets.extend(grant.secrets.iter().cloned());
        let response = self.attempt(travel, grant.clone()).await?;
        let turned_away = response.status() == StatusCode::UNAUTHORIZED && grant != Grant::default();
        if !turned_away || !travel.method.is_safe() {
            return Ok(response);
        }
        if !authorizer
            .refused(travel.hop(), &grant)
            .await
            .map_err(|e| failed(e.0))?
        {
            return Ok(response);
        }
        let grant = authorizer.grant(travel.hop()).await.map_err(|e| failed(e.0))?;
        travel.secrets.extend(grant.secrets.iter().cloned());
        self.attempt(travel, grant).await
    }

    async fn attempt(&self, travel: &Travel, grant: Grant) -> Result<reqwest::Response, Error> {
        let mut url = travel.target.url.clone();
        let mut headers = travel.headers.clone();
        add(grant, &mut url, &mut headers).map_err(|why| Error::Authorization {
            url: show_url(&travel.target.url),
            why,
        })?;
        if !headers.contains_key(ACCEPT_ENCODING) {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(decode::ACCEPTED));
        }
        let client = self.pinned(&travel.target)?;
        let mut builder = client.request(travel.method.into(), url).headers(headers);
        if !travel.body.is_empty() {
            builder = builder.body(travel.body.clone());
        }
        builder.send().await.map_err(|e| self.failure(travel, e))
    }

    /// A client that connects to the addresses of this target and knows no others.
    fn pinned(&self, target: &Target) -> Result<reqwest::Client, Error> {
        let limits = &self.0.limits;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("decanus/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            // Bodies are decompressed here, up to a limit; a feature of reqwest that others want must not do it first.
            .no_gzip()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(0)
            .connect_timeout(limits.connect)
            .read_timeout(limits.read)
            .dns_resolver(Arc::new(Pinned {
                host: target.url.host_str().unwrap_or_default().to_owned(),
                addresses: target.addresses.clone(),
            }));
        builder = if target.url.scheme() == "https" {
            builder.tls_backend_preconfigured(self.tls()?)
        } else {
            let _ = rustls::crypto::ring::default_provider().install_default();
            builder.tls_certs_only([])
        };
        builder.build().map_err(|e| Error::Setup(causes(&e)))
    }

    fn tls(&self) -> Result<rustls::ClientConfig, Error> {
        if let Some(config) = self.0.tls.get() {
            return Ok(config.clone());
        }
        let config = system_tls().map_err(|e| Error::Setup(e.to_string()))?;
        // Whoever was first wins; the two are the same.
        Ok(self.0.tls.get_or_init(|| config).clone())
    }

    fn failure(&self, travel: &Travel, error: reqwest::Error) -> Error {
        let (method, url) = (travel.method, show_url(&travel.target.url));
        // The message of reqwest would hold the query.
        let error = error.without_url();
        if error.is_timeout() {
            let limits = &self.0.limits;
            let why = if error.is_connect() {
                format!("no connection within {}", seconds(limits.connect))
            } else {
                format!("nothing came for {}", seconds(limits.read))
            };
            return Error::Timeout { method, url, why };
        }
        // Before the network: such an error is one of both.
        if let Some(why) = certificate_fault(&error) {
            return Error::Certificate { method, url, why };
        }
        Error::Network {
            method,
            url,
            why: causes(&error),
        }
    }
}

/// The addresses of one host and no other.
struct Pinned {
    host: String,
    addresses: Vec<IpAddr>,
}

impl Resolve for Pinned {
    fn resolve(&self, name: Name) -> Resolving {
        let known = name.as_str().eq_ignore_ascii_case(&self.host);
        // Port 0 stands for the URL's own.
        let addresses: Vec<SocketAddr> = self.addresses.iter().map(|a| SocketAddr::new(*a, 0)).collect();
        let host = name.as_str().to_owned();
        Box::pin(async move {
            if known {
                Ok(Box::new(addresses.into_iter()) as Addrs)
            } else {
                Err(format!("'{host}' was not checked").into())
            }
        })
    }
}

fn system_tls() -> Result<rustls::ClientConfig, rustls::Error> {
    use rustls_platform_verifier::BuilderVerifierExt;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_platform_verifier()?.with_no_client_auth())
}

/// Adds what was granted, in place of what the caller gave under the same names.
fn add(grant: Grant, url: &mut Url, headers: &mut HeaderMap) -> Result<(), String> {
    for (name, value) in &grant.headers {
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("'{name}' is no name of a header"))?;
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the value for the header '{name}' has characters in it that can't be sent"))?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    merge_query(url, grant.query.iter().map(|(n, v)| (n.as_str(), v.expose())));
    Ok(())
}

/// Where an answer sends its reader.
fn location(response: &reqwest::Response) -> Option<String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let value = response.headers().get(LOCATION)?;
    Some(String::from_utf8_lossy(value.as_bytes()).trim().to_owned())
}

/// The reply as far as its head goes.
fn head(travel: &Travel, response: &reqwest::Response) -> Reply {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut reply = Reply {
        status: response.status().as_u16(),
        headers: response
            .headers()
            .iter()
            .map(|(n, v)| (n.as_str().to_owned(), text(v)))
            .collect(),
        body: Vec::new(),
        truncated: false,
        url: travel.target.url.clone(),
    };
    reply.redact(&travel.secrets, travel.max_body);
    reply
}

/// Reads the body to its end or to one byte more than is wanted.
async fn read(travel: Travel, response: reqwest::Response, limits: &Limits) -> Result<Reply, Error> {
    let mut reply = head(&travel, &response);
    let (method, url) = (travel.method, show_url(&travel.target.url));
    let broken = |e: std::io::Error| {
        if timed_out(&e) {
            let why = format!("nothing came for {}", seconds(limits.read));
            return Error::Timeout {
                method,
                url: url.clone(),
                why,
            };
        }
        Error::Network {
            method,
            url: url.clone(),
            why: format!("the body can't be read to its end: {}", causes(&e)),
        }
    };
    let encodings = response.headers().get_all(CONTENT_ENCODING);
    let encodings: Vec<_> = encodings
        .iter()
        .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
        .collect();
    let pieces = response
        .bytes_stream()
        .map_err(|e| std::io::Error::other(e.without_url()));
    let source: Source = Box::pin(pieces.boxed().into_async_read());
    let mut source = match decode::decode(source, &encodings.join(",")).await.map_err(broken)? {
        Ok(source) => source,
        Err(encoding) => {
            let shown = decanus_base::text::escape_controls(&decanus_base::text::brief(&encoding, 40));
            return Err(Error::Content(format!(
                "the answer of {url} is compressed as '{shown}', which can't be read"
            )));
        }
    };
    let wanted = travel.max_body.saturating_add(1);
    let mut piece = vec![0; 32 * 1024];
    while reply.body.len() < wanted {
        let room = piece.len().min(wanted - reply.body.len());
        let n = source.read(&mut piece[..room]).await.map_err(broken)?;
        if n == 0 {
            break;
        }
        reply.body.extend_from_slice(&piece[..n]);
    }
    if reply.body.len() > travel.max_body {
        reply.body.truncate(travel.max_body);
        reply.truncated = true;
    }
    reply.redact(&travel.secrets, travel.max_body);
    Ok(reply)
}

/// Whether reqwest gave up waiting, somewhere behind an error of reading.
fn timed_out(error: &std::io::Error) -> bool {
    let mut next = error.get_ref().map(|e| e as &(dyn std::error::Error + 'static));
    while let Some(cause) = next {
        if cause
            .downcast_ref::<reqwest::Error>()
            .is_some_and(reqwest::Error::is_timeout)
        {
            return true;
        }
        next = match cause.downcast_ref::<std::io::Error>() {
            Some(io) if io.kind() == std::io::ErrorKind::TimedOut => return true,
            Some(io) => io.get_ref().map(|e| e as &(dyn std::error::Error + 'static)),
            None => cause.source(),
        };
    }
    false
}

/// What TLS says of a certificate, somewhere behind an error of connecting.
fn certificate_fault(error: &reqwest::Error) -> Option<String> {
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(e @ (rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)) =
            cause.downcast_ref::<rustls::Error>()
        {
            return Some(e.to_string());
        }
        // An io::Error does not name what it wraps as its source, but the source of that.
        next = match cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
            None => cause.source(),
        };
    }
    None
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}
