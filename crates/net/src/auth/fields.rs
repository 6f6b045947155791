//! The fields of a credential, and what each scheme makes of them.

use decanus_base::names::did_you_mean;
use url::{Host, Url};

use super::definition::{ClientAuth, Definition, GrantType, OAuth, Place, Scheme};
use super::pattern::UrlPattern;
use crate::request::forbidden_header;

const SCHEMES: [&str; 6] = ["api_key", "bearer", "basic", "oauth2", "oidc", "google_service_account"];

/// The fields of a definition as they are written, in a file or on a command line; nothing is checked yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields {
    /// `scheme`.
    pub scheme: String,
    /// `urls`.
    pub urls: Vec<String>,
    /// `env`: the variable that holds the secret; without it the secret is stored.
    pub env: Option<String>,
    /// `in`: where an API key goes: header, query, cookie.
    pub place: Option<String>,
    /// `name`: of that header, member of the query or cookie.
    pub name: Option<String>,
    /// `prefix`: before an API key.
    pub prefix: Option<String>,
    /// `username`.
    pub username: Option<String>,
    /// `grant`: how OAuth2 gets tokens.
    pub grant: Option<String>,
    /// `client_id`.
    pub client_id: Option<String>,
    /// `client_auth`: how the client shows who it is: basic, post, none.
    pub client_auth: Option<String>,
    /// `scopes`.
    pub scopes: Vec<String>,
    /// `audience`.
    pub audience: Option<String>,
    /// `subject`: the user for whom a service account acts.
    pub subject: Option<String>,
    /// `issuer` of OpenID Connect.
    pub issuer: Option<String>,
    /// `token_url`.
    pub token_url: Option<String>,
    /// `authorization_url`.
    pub authorization_url: Option<String>,
    /// `device_url`: where a device gets its code.
    pub device_url: Option<String>,
    /// `revocation_url`.
    pub revocation_url: Option<String>,
    /// `port` of the loopback redirect; any free one without it.
    pub port: Option<String>,
}

/// A field and what is wrong with it.
pub(crate) type Fault = (&'static str, String);

impl Fields {
    /// The single-valued fields by name.
    pub(crate) fn singles(&mut self) -> [(&'static str, &mut Option<String>); 16] {
        [
            ("env", &mut self.env),
            ("in", &mut self.place),
            ("name", &mut self.name),
            ("prefix", &mut self.prefix),
            ("username", &mut self.username),
            ("grant", &mut self.grant),
            ("client_id", &mut self.client_id),
            ("client_auth", &mut self.client_auth),
            ("audience", &mut self.audience),
            ("subject", &mut self.subject),
            ("issuer", &mut self.issuer),
            ("token_url", &mut self.token_url),
            ("authorization_url", &mut self.authorization_url),
            ("device_url", &mut self.device_url),
            ("revocation_url", &mut self.revocation_url),
            ("port", &mut self.port),
        ]
    }

    /// Takes the fields that a scheme has, and refuses those that are left.
    pub(crate) fn build(&self, name: &str) -> Result<Definition, Fault> {
        let mut rest = self.clone();
        let scheme = match self.scheme.trim() {
            "api_key" => rest.api_key()?,
            "bearer" | "http_bearer" => Scheme::Bearer,
            "basic" => Scheme::Basic {
                username: needed("username", rest.username.take()).and_then(|user| {
                    // RFC 7617: the first colon ends the name.
                    if user.contains(':') || user.chars().any(char::is_control) {
                        return Err(("username", "it has a colon or control characters in it".to_owned()));
                    }
                    Ok(user)
                })?,
            },
            "oauth2" => rest.oauth(false)?,
            "oidc" | "openid_connect" => rest.oauth(true)?,
            "google_service_account" | "service_account" => Scheme::ServiceAccount {
                scopes: scopes(std::mem::take(&mut rest.scopes))?,
                audience: rest.audience.take(),
                subject: rest.subject.take(),
            },
            other => {
                let shown = decanus_base::text::escape_controls(&decanus_base::text::brief(other, 40));
                let guess = did_you_mean(other, SCHEMES);
                return Err(("scheme", format!("'{shown}' is none of {}{guess}", SCHEMES.join(", "))));
            }
        };
        let env = rest.env.take();
        if let Some(variable) = &env
            && (variable.is_empty() || variable.contains(['=', '\0']))
        {
            return Err(("env", format!("'{}' is no name of a variable", variable.escape_debug())));
        }
        if self.urls.is_empty() {
            return Err((
                "urls",
                "at least one URL is needed: nothing is sent anywhere without".to_owned(),
            ));
        }
        let urls = self.urls.iter().map(|u| UrlPattern::parse(u)).collect::<Result<_, _>>();
        if !rest.scopes.is_empty() {
            return Err(("scopes", format!("the scheme {} has none", self.scheme)));
        }
        if let Some((field, _)) = rest.singles().into_iter().find(|(_, value)| value.is_some()) {
            return Err((field, format!("the scheme {} has no such field", self.scheme)));
        }
        Ok(Definition {
            name: name.to_owned(),
            urls: urls.map_err(|why| ("urls", why))?,
            scheme,
            env,
            fields: self.clone(),
        })
    }

    fn api_key(&mut self) -> Result<Scheme, Fault> {
        let place = match self.place.take().as_deref().map_or("header", str::trim) {
            "header" => Place::Header,
            "query" | "querystring" => Place::Query,
            "cookie" => Place::Cookie,
            other => {
                let shown = decanus_base::text::escape_controls(&decanus_base::text::brief(other, 40));
                return Err(("in", format!("'{shown}' is none of header, query, cookie")));
            }
        };
        let name = self.name.take().unwrap_or_else(|| "X-API-Key".to_owned());
        let is_token = !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
        let good = match place {
            Place::Query => !name.is_empty() && !name.chars().any(char::is_control),
            Place::Header | Place::Cookie => is_token,
        };
        let shown = name.escape_debug();
        if !good {
            return Err(("name", format!("'{shown}' contains invalid characters")));
        }
        if place == Place::Header && (forbidden_header(&name) || name.eq_ignore_ascii_case("cookie")) {
            return Err(("name", format!("the header '{shown}' can't be set")));
        }
        let prefix = self.prefix.take().unwrap_or_default();
        if prefix.chars().any(char::is_control) {
            return Err(("prefix", "it contains invalid characters".to_owned()));
        }
        Ok(Scheme::ApiKey { place, name, prefix })
    }

    fn oauth(&mut self, oidc: bool) -> Result<Scheme, Fault> {
        let grant = match self.grant.take().as_deref().map(str::trim) {
            Some("client_credentials") => GrantType::ClientCredentials,
            Some("authorization_code") => GrantType::AuthorizationCode,
            Some("device_code") => GrantType::DeviceCode,
            None => GrantType::AuthorizationCode,
            Some(other) => {
                let shown = decanus_base::text::escape_controls(&decanus_base::text::brief(other, 40));
                return Err((
                    "grant",
                    format!("'{shown}' is none of client_credentials, authorization_code, device_code"),
                ));
            }
        };
        let client_auth = match self.client_auth.take().as_deref().map(str::trim) {
            None | Some("basic") => ClientAuth::Basic,
            Some("post") => ClientAuth::Post,
            Some("none") => ClientAuth::None,
            Some(_) => return Err(("client_auth", "it is none of basic, post, none".to_owned())),
        };
        if grant == GrantType::ClientCredentials && client_auth == ClientAuth::None {
            return Err(("client_auth", "client_credentials need a secret".to_owned()));
        }
        let mut scopes = scopes(std::mem::take(&mut self.scopes))?;
        let issuer = if oidc {
            if grant != GrantType::ClientCredentials && !scopes.iter().any(|s| s == "openid") {
                scopes.insert(0, "openid".to_owned());
            }
            Some(place_of("issuer", needed("issuer", self.issuer.take())?)?)
        } else {
            None
        };
        let url = |field: &'static str, value: Option<String>, need: bool| match value {
            Some(value) => place_of(field, value).map(Some),
            // The discovery document has them.
            None if need && !oidc => Err((field, "it is needed".to_owned())),
            None => Ok(None),
        };
        Ok(Scheme::OAuth(Box::new(OAuth {
            grant,
            client_id: needed("client_id", self.client_id.take())?,
            client_auth,
            scopes,
            audience: self.audience.take(),
            token_url: url("token_url", self.token_url.take(), true)?,
            authorization_url: url(
                "authorization_url",
                self.authorization_url.take(),
                grant == GrantType::AuthorizationCode,
            )?,
            device_url: url("device_url", self.device_url.take(), grant == GrantType::DeviceCode)?,
            revocation_url: url("revocation_url", self.revocation_url.take(), false)?,
            issuer,
            port: match self.port.take() {
                None => None,
                Some(port) => Some(
                    port.trim()
                        .parse::<u16>()
                        .ok()
                        .filter(|p| *p > 0)
                        .ok_or(("port", "it is no number of a port".to_owned()))?,
                ),
            },
        })))
    }
}

fn needed(field: &'static str, value: Option<String>) -> Result<String, Fault> {
    value
        .filter(|v| !v.is_empty())
        .ok_or((field, "it is needed".to_owned()))
}

fn scopes(given: Vec<String>) -> Result<Vec<String>, Fault> {
    let all: Vec<String> = given
        .iter()
        .flat_map(|s| s.split_ascii_whitespace())
        .map(str::to_owned)
        .collect();
    // RFC 6749, 3.3.
    let good = |s: &String| s.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\');
    match all.iter().find(|s| !good(s)) {
        Some(bad) => Err((
            "scopes",
            format!("'{}' contains invalid characters", bad.escape_debug()),
        )),
        None => Ok(all),
    }
}

/// A URL that gets secrets.
fn place_of(field: &'static str, text: String) -> Result<String, Fault> {
    match check_place(&text) {
        Ok(()) => Ok(text),
        Err(why) => Err((field, why)),
    }
}

/// Whether secrets may be sent to a URL: by https, or to this machine.
pub(crate) fn check_place(text: &str) -> Result<(), String> {
    let url = Url::parse(text).map_err(|e| format!("it is no URL: {e}"))?;
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("it has a user, a password or a fragment in it".to_owned());
    }
    let here = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    match url.scheme() {
        "https" => Ok(()),
        "http" if here => Ok(()),
        _ => Err("it must begin with https://, since secrets are sent there".to_owned()),
    }
}
