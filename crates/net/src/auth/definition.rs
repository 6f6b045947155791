//! What a credential is, without its secret: `auth/NAME.yaml` under the user's decanus folder.

use std::path::Path;

use decanus_base::yaml::{self, YamlError};

use super::error::AuthError;
use super::fields::{Fault, Fields};
use super::pattern::UrlPattern;

/// A credential without its secret.
#[derive(Debug, Clone)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// Where it is sent.
    pub urls: Vec<UrlPattern>,
    /// How it is sent.
    pub scheme: Scheme,
    /// The variable that holds the secret.
    pub env: Option<String>,
    pub(super) fields: Fields,
}

/// How a credential is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheme {
    /// A key under a name.
    ApiKey {
        /// Where.
        place: Place,
        /// The name.
        name: String,
        /// What stands before the key.
        prefix: String,
    },
    /// `Authorization: Bearer`, with the secret itself.
    Bearer,
    /// `Authorization: Basic`.
    Basic {
        /// The user; the secret is the password.
        username: String,
    },
    /// Tokens by OAuth2; with an issuer, by OpenID Connect.
    OAuth(Box<OAuth>),
    /// Tokens for a service account of Google; the secret is its key file.
    ServiceAccount {
        /// What is asked for.
        scopes: Vec<String>,
        /// Whom the assertion is for; the token URL of the key file without it.
        audience: Option<String>,
        /// For whom the account acts.
        subject: Option<String>,
    },
}

/// Where an API key goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A header.
    Header,
    /// The query.
    Query,
    /// A cookie.
    Cookie,
}

/// How OAuth2 gets tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantType {
    /// With the client's own secret.
    ClientCredentials,
    /// A user allows it in a browser on this machine.
    AuthorizationCode,
    /// A user allows it in a browser anywhere.
    DeviceCode,
}

impl GrantType {
    /// As files write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientCredentials => "client_credentials",
            Self::AuthorizationCode => "authorization_code",
            Self::DeviceCode => "device_code",
        }
    }
}

/// How a client shows who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// By HTTP Basic.
    Basic,
    /// In the form.
    Post,
    /// Not at all: it has no secret.
    None,
}

/// OAuth2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuth {
    /// How tokens are got.
    pub grant: GrantType,
    /// The client.
    pub client_id: String,
    /// How it shows who it is.
    pub client_auth: ClientAuth,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// For whom the token is.
    pub audience: Option<String>,
    /// The issuer of OpenID Connect, exactly as its discovery document has it.
    pub issuer: Option<String>,
    /// Where tokens come from.
    pub token_url: Option<String>,
    /// Where a user allows it.
    pub authorization_url: Option<String>,
    /// Where a device gets its code.
    pub device_url: Option<String>,
    /// Where tokens are given up.
    pub revocation_url: Option<String>,
    /// The port of the loopback redirect.
    pub port: Option<u16>,
}

const FIELDS: [&str; 19] = [
    "scheme",
    "urls",
    "env",
    "in",
    "name",
    "prefix",
    "username",
    "grant",
    "client_id",
    "client_auth",
    "scopes",
    "audience",
    "subject",
    "issuer",
    "token_url",
    "authorization_url",
    "device_url",
    "revocation_url",
    "port",
];

impl Definition {
    /// Checks what a user gave.
    ///
    /// # Errors
    /// The first field that is wrong, missing or not one of its scheme.
    pub fn new(name: &str, fields: &Fields) -> Result<Self, AuthError> {
        let fault = |(field, why): Fault| AuthError::Field {
            name: decanus_base::text::escape_controls(&decanus_base::text::brief(name, 60)),
            field,
            why,
        };
        if !is_name(name) {
            return Err(fault((
                "NAME",
                "a name has only letters, digits, -, _ and ., and does not begin with a dot".to_owned(),
            )));
        }
        fields.build(name).map_err(fault)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong, with file and line.
    pub fn read(name: &str, text: &str, file: &Path) -> Result<Self, YamlError> {
        let node = yaml::parse(text, file)?;
        node.only(&FIELDS)?;
        let mut fields = Fields::default();
        if let Some(scheme) = node.get("scheme") {
            fields.scheme = scheme.text()?;
        }
        for (field, target) in [("urls", 0), ("scopes", 1)] {
            let Some(list) = node.get(field) else { continue };
            let texts = list
                .sequence()?
                .into_iter()
                .map(yaml::Node::text)
                .collect::<Result<Vec<_>, _>>()?;
            match target {
                0 => fields.urls = texts,
                _ => fields.scopes = texts,
            }
        }
        for (field, target) in fields.singles() {
            *target = node.get(field).map(yaml::Node::text).transpose()?;
        }
        fields.build(name).map_err(|(field, why)| match node.get(field) {
            Some(at) => at.error(why),
            None => node.error(format!("{field}: {why}")),
        })
    }

    /// The file.
    pub fn write(&self) -> String {
        use std::fmt::Write;
        let mut fields = self.fields.clone();
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let list = |texts: &[String]| serde_json::Value::from(texts.to_vec()).to_string();
        let mut out = format!("scheme: {}\nurls: {}\n", quoted(&fields.scheme), list(&fields.urls));
        if !fields.scopes.is_empty() {
            let _ = writeln!(out, "scopes: {}", list(&fields.scopes));
        }
        for (field, value) in fields.singles() {
            if let Some(value) = value {
                let _ = writeln!(out, "{field}: {}", quoted(value));
            }
        }
        out
    }

    /// The scheme's name.
    pub fn scheme_name(&self) -> &'static str {
        match &self.scheme {
            Scheme::ApiKey { .. } => "api_key",
            Scheme::Bearer => "bearer",
            Scheme::Basic { .. } => "basic",
            Scheme::OAuth(oauth) if oauth.issuer.is_some() => "oidc",
            Scheme::OAuth(_) => "oauth2",
            Scheme::ServiceAccount { .. } => "google_service_account",
        }
    }

    /// Whether it has a secret at all.
    pub fn wants_secret(&self) -> bool {
        !matches!(&self.scheme, Scheme::OAuth(oauth) if oauth.client_auth == ClientAuth::None)
    }

    /// What the secret is called.
    pub fn secret_name(&self) -> &'static str {
        match &self.scheme {
            Scheme::ApiKey { .. } => "key",
            Scheme::Bearer => "token",
            Scheme::Basic { .. } => "password",
            Scheme::OAuth(_) => "client secret",
            Scheme::ServiceAccount { .. } => "key file",
        }
    }

    /// What a token belongs to: with another of these it is another token.
    pub(crate) fn fingerprint(&self) -> String {
        let mut hasher = decanus_base::digest::ValueHasher::new();
        hasher.text(self.scheme_name());
        let mut field = |name: &str, value: &Option<String>| {
            hasher.text(name).text(value.as_deref().unwrap_or_default());
        };
        let f = &self.fields;
        for (name, value) in [
            ("grant", &f.grant),
            ("client_id", &f.client_id),
            ("audience", &f.audience),
            ("subject", &f.subject),
            ("issuer", &f.issuer),
            ("token_url", &f.token_url),
            ("authorization_url", &f.authorization_url),
            ("device_url", &f.device_url),
        ] {
            field(name, value);
        }
        let mut scopes: Vec<&str> = f.scopes.iter().flat_map(|s| s.split_ascii_whitespace()).collect();
        scopes.sort_unstable();
        hasher.text(&scopes.join(" "));
        hasher.hex()
    }
}

/// Whether a text can be a credential's name.
pub(crate) fn is_name(name: &str) -> bool {
    decanus_base::names::is_valid(name) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Definition, String> {
        Definition::read("x", text, Path::new("auth/x.yaml")).map_err(|e| e.to_string())
    }

    #[test]
    fn files_are_read_and_written_again() {
        for text in [
            "scheme: api_key\nurls: [https://h.test]\nin: query\nname: k\nenv: KEY\n",
            "scheme: basic\nurls: https://h.test\nusername: \"a \\\"b\\\" é\"\n",
            "scheme: oauth2\nurls: [https://h.test]\nclient_id: 007\ntoken_url: https://t.test/token\nscopes: [b, a c]\ngrant: client_credentials\n",
            "scheme: oidc\nurls: [https://h.test, 'https://*.g.test/v1']\nclient_id: c\nclient_auth: none\nissuer: https://i.test\nport: 8765\n",
            "scheme: google_service_account\nurls: [https://h.test]\nscopes: s\n",
        ] {
            let first = read(text).unwrap();
            let again = read(&first.write()).unwrap();
            assert_eq!(
                (&first.scheme, &first.urls, &first.env),
                (&again.scheme, &again.urls, &again.env)
            );
            assert_eq!(first.fingerprint(), again.fingerprint());
        }
        let Scheme::OAuth(oidc) = read("scheme: oidc\nurls: https://h.test\nclient_id: c\nissuer: https://i.test\n")
            .unwrap()
            .scheme
        else {
            panic!()
        };
        assert_eq!(
            (oidc.scopes, oidc.grant),
            (vec!["openid".to_owned()], GrantType::AuthorizationCode)
        );
    }

    #[test]
    fn tokens_belong_to_client_scopes_and_places() {
        let with = |line: &str| {
            read(&format!(
                "scheme: oauth2\ngrant: client_credentials\nurls: [https://h.test]\nclient_id: c\ntoken_url: https://t.test/token\n{line}"
            ))
            .unwrap()
            .fingerprint()
        };
        assert_eq!(with("scopes: [a, b]"), with("scopes: b a"));
        assert_ne!(with("scopes: a"), with("scopes: b"));
        assert_ne!(with("audience: a"), with(""));
    }

    #[test]
    fn faults_name_file_line_and_field() {
        let oauth = "scheme: oauth2\nurls: [https://h.test]\n";
        for (text, words) in [
            ("urls: [https://h.test]\n", "auth/x.yaml:1: scheme: '' is none of"),
            ("scheme: bearr\nurls: [https://h.test]\n", "did you mean bearer"),
            ("scheme: bearer\n", "urls: at least one"),
            (
                "scheme: bearer\nurls: [https://h.test]\ntoken: abc\n",
                "auth/x.yaml:3: token: unknown key",
            ),
            (
                "scheme: bearer\nurls: [https://h.test]\nusername: u\n",
                "auth/x.yaml:3: username: the scheme bearer has no",
            ),
            (
                "scheme: bearer\nurls:\n  - h.test\n",
                "auth/x.yaml:3: urls: 'h.test' is no URL",
            ),
            ("scheme: basic\nurls: [https://h.test]\n", "username: it is needed"),
            ("scheme: basic\nurls: [https://h.test]\nusername: 'a:b'\n", "colon"),
            (
                "scheme: api_key\nurls: [https://h.test]\nin: body\n",
                "'body' is none of header, query, cookie",
            ),
            ("scheme: api_key\nurls: [https://h.test]\nname: Host\n", "can't be set"),
            (
                "scheme: api_key\nurls: [https://h.test]\nname: \"X\\r\\nY\"\n",
                "contains invalid characters",
            ),
            (oauth, "client_id: it is needed"),
            (&format!("{oauth}client_id: c\n"), "token_url: it is needed"),
            (
                &format!("{oauth}client_id: c\ntoken_url: http://t.test/\n"),
                "must begin with https",
            ),
            (
                &format!("{oauth}client_id: c\ntoken_url: https://t.test/\n"),
                "authorization_url: it is needed",
            ),
            (
                &format!("{oauth}client_id: c\ntoken_url: https://t.test/\ngrant: device_code\n"),
                "device_url: it is needed",
            ),
            (&format!("{oauth}grant: password\n"), "none of client_credentials"),
            (
                &format!("{oauth}grant: client_credentials\nclient_auth: none\n"),
                "need a secret",
            ),
            (&format!("{oauth}scopes: ['a\"']\n"), "scopes: 'a\\\"' contains invalid"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}{error}");
        }
        for bad in ["", ".x", "a/b", "a b", "é"] {
            assert!(
                Definition::new(bad, &Fields::default())
                    .unwrap_err()
                    .to_string()
                    .contains("NAME"),
                "{bad}"
            );
        }
    }
}
