//! Credentials for URLs: what the user keeps, and what is sent of it where.
//!
//! A credential is a file `auth/NAME.yaml` under the user's decanus folder ([`Definition`]): a scheme, the URLs that it
//! belongs to ([`UrlPattern`]), never a secret. Secrets and tokens are in `auth/store.age`, encrypted. A project has no
//! part in this: it could otherwise have a credential sent to a server of its own choice.
//!
//! [`Auth`] is the [`Authorizer`](crate::Authorizer) of a [`Client`].

mod apply;
mod definition;
mod discovery;
mod error;
mod fields;
mod jwt;
mod login;
mod loopback;
mod pattern;
mod private;
mod store;
#[cfg(test)]
mod tests;
mod tokens;
mod wire;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use decanus_base::Secret;
use decanus_base::names::did_you_mean;
use url::Url;

pub use apply::Shown;
pub use definition::{ClientAuth, Definition, GrantType, OAuth, Place, Scheme};
pub use error::AuthError;
pub use fields::Fields;
pub use login::Prompt;
pub use pattern::UrlPattern;
pub use tokens::TokenState;

use crate::allow::AllowList;
use crate::client::Client;
use crate::error::show_url;
use definition::is_name;
use discovery::Discovery;
use store::Store;

/// The user's credentials. Cheap to clone.
#[derive(Clone)]
pub struct Auth(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    store: Store,
    /// What asks token servers. Made when it is needed first.
    client: OnceLock<Client>,
    discovery: Discovery,
    /// One renewal of a credential at a time in this process.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    now: fn() -> i64,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").field("dir", &self.0.dir).finish_non_exhaustive()
    }
}

/// A credential as lists show it.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What it is, or what is wrong with its file.
    pub definition: Result<Definition, AuthError>,
    /// Where its secret is.
    pub secret: SecretState,
    /// The token that is kept for it.
    pub token: Option<TokenState>,
}

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretState {
    /// The credential has none.
    NotNeeded,
    /// It should be stored and is not.
    Missing,
    /// It is stored; this is all that may be shown of it.
    Stored {
        /// Its last four characters at most.
        masked: String,
    },
    /// A variable holds it.
    Variable {
        /// The variable.
        name: String,
        /// Whether it holds anything now.
        set: bool,
    },
}

/// What became of a token whose credential was removed.
#[derive(Debug)]
pub enum Revocation {
    /// There was none, or its server has no place to give it up.
    None,
    /// The server knows.
    Done,
    /// The server could not be told.
    Failed(AuthError),
}

impl Auth {
    /// The credentials of a user. Token servers are asked by a guarded client that allows what the environment allows.
    pub fn new(home: &Path) -> Self {
        let dir = home.join("auth");
        Self(Arc::new(Inner {
            store: Store::new(&dir),
            dir,
            client: OnceLock::new(),
            discovery: Discovery::default(),
            turns: Mutex::default(),
            now,
        }))
    }

    /// As [`Auth::new`], where another client asks token servers. It should have no authorizer.
    pub fn with_client(home: &Path, client: Client) -> Self {
        let auth = Self::new(home);
        // The cell is new.
        let _ = auth.0.client.set(client);
        auth
    }

    fn now(&self) -> i64 {
        (self.0.now)()
    }

    fn client(&self, name: &str) -> Result<Client, AuthError> {
        if let Some(client) = self.0.client.get() {
            return Ok(client.clone());
        }
        let allowed = AllowList::for_auth_from_env().map_err(|e| AuthError::server(name, e.to_string()))?;
        let client = Client::builder().allow(allowed).build();
        Ok(self.0.client.get_or_init(|| client).clone())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.dir.join(format!("{name}.yaml"))
    }

    /// The names of all credentials, sorted.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub fn names(&self) -> Result<Vec<String>, AuthError> {
        let entries = match std::fs::read_dir(&self.0.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(AuthError::store(&self.0.dir, e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.map_err(|e| AuthError::store(&self.0.dir, e))?.file_name();
            if let Some(name) = file.to_str().and_then(|f| f.strip_suffix(".yaml"))
                && is_name(name)
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn read(&self, name: &str) -> Result<Definition, AuthError> {
        let path = self.path(name);
        let text = decanus_base::files::read_text(&path).map_err(|e| AuthError::store(&path, e))?;
        Ok(Definition::read(name, &text, &path)?)
    }

    /// One credential.
    ///
    /// # Errors
    /// When there is none of that name, or its file is wrong.
    pub fn get(&self, name: &str) -> Result<Definition, AuthError> {
        if !is_name(name) || !self.path(name).exists() {
            let names = self.names()?;
            return Err(AuthError::Unknown {
                name: decanus_base::text::escape_controls(&decanus_base::text::brief(name, 60)),
                guess: did_you_mean(name, names.iter().map(String::as_str)),
            });
        }
        self.read(name)
    }

    /// The credential that belongs to a URL: the one with the closest pattern.
    ///
    /// # Errors
    /// When a credential's file is wrong, so that nobody knows whether it would belong, or when two belong alike.
    pub fn find(&self, url: &Url) -> Result<Option<Definition>, AuthError> {
        let mut best: Vec<(_, Definition)> = Vec::new();
        for name in self.names()? {
            let definition = self.read(&name)?;
            let matching = definition.urls.iter().filter(|p| p.matches(url));
            let Some(rank) = matching.map(UrlPattern::rank).max() else {
                continue;
            };
            match best.first().map(|(r, _)| rank.cmp(r)) {
                Some(std::cmp::Ordering::Less) => continue,
                Some(std::cmp::Ordering::Greater) => best.clear(),
                _ => {}
            }
            best.push((rank, definition));
        }
        if best.len() > 1 {
            return Err(AuthError::Ambiguous {
                url: show_url(url),
                names: best.into_iter().map(|(_, d)| format!("'{}'", d.name)).collect(),
            });
        }
        Ok(best.pop().map(|(_, definition)| definition))
    }

    /// All credentials, as far as they may be shown.
    ///
    /// # Errors
    /// When the folder or the store can't be read; a wrong file is in its own row.
    pub fn list(&self) -> Result<Vec<Listed>, AuthError> {
        let names = self.names()?;
        let stored = self.0.store.read()?;
        let row = |name: String| {
            let definition = self.read(&name);
            let entry = stored.get(&name).cloned().unwrap_or_default();
            let secret = match &definition {
                Ok(d) if !d.wants_secret() => SecretState::NotNeeded,
                Ok(Definition {
                    env: Some(variable), ..
                }) => SecretState::Variable {
                    set: std::env::var_os(variable).is_some_and(|v| !v.is_empty()),
                    name: variable.clone(),
                },
                _ => entry.secret().map_or(SecretState::Missing, |s| SecretState::Stored {
                    masked: mask(s.expose()),
                }),
            };
            let token = match (&definition, entry.token) {
                (Ok(d), Some(token)) if token.fingerprint == d.fingerprint() => Some(TokenState::of(&token)),
                _ => None,
            };
            Listed {
                name,
                definition,
                secret,
                token,
            }
        };
        Ok(names.into_iter().map(row).collect())
    }

    /// Keeps a credential, in place of one of the same name. A secret is stored unless the definition names a variable;
    /// without a secret, one that is stored stays.
    ///
    /// # Errors
    /// When the secret is not of the scheme's kind, or nothing can be written.
    pub fn set(&self, definition: &Definition, secret: Option<Secret>) -> Result<(), AuthError> {
        if let Some(secret) = &secret {
            apply::check_secret(definition, secret)?;
        }
        let drop_secret = definition.env.is_some() || !definition.wants_secret();
        let changed = secret.is_some();
        self.0.store.update(|all| {
            let entry = all.entry(definition.name.clone()).or_default();
            if drop_secret {
                entry.secret = None;
            } else if let Some(secret) = &secret {
                entry.secret = Some(secret.expose().to_owned());
            }
            // A token that another secret has bought is not this one's.
            if changed
                || entry
                    .token
                    .as_ref()
                    .is_some_and(|t| t.fingerprint != definition.fingerprint())
            {
                entry.token = None;
            }
            if entry.secret.is_none() && entry.token.is_none() {
                all.remove(&definition.name);
            }
        })?;
        private::write(&self.path(&definition.name), definition.write().as_bytes())
    }

    /// Forgets a credential with its secret and its tokens; the server is told, if it has a place for that.
    ///
    /// # Errors
    /// When there is none of that name, or it can't be removed. A credential whose file is wrong can be removed.
    pub async fn remove(&self, name: &str) -> Result<Revocation, AuthError> {
        let definition = match self.get(name) {
            Err(e @ AuthError::Unknown { .. }) => return Err(e),
            other => other.ok(),
        };
        let path = self.path(name);
        let secret = definition.as_ref().and_then(|d| self.client_secret(d).ok().flatten());
        // The file first: without it nothing is sent any more.
        std::fs::remove_file(&path).map_err(|e| AuthError::store(&path, e))?;
        let entry = self.0.store.update(|all| all.remove(name))?;
        match (definition, entry.and_then(|e| e.token)) {
            (Some(definition), Some(token)) => Ok(self.revoke(&definition, secret, &token).await),
            _ => Ok(Revocation::None),
        }
    }

    /// The secret of a credential, from its variable or the store.
    fn secret(&self, definition: &Definition) -> Result<Secret, AuthError> {
        let secret = match &definition.env {
            Some(variable) => {
                let value = std::env::var(variable).ok().filter(|v| !v.is_empty());
                value.map(Secret::new).ok_or_else(|| AuthError::NoVariable {
                    name: definition.name.clone(),
                    variable: variable.clone(),
                })?
            }
            None => {
                let stored = self.0.store.read()?;
                let entry = stored.get(&definition.name);
                entry
                    .and_then(store::Entry::secret)
                    .ok_or_else(|| AuthError::NoSecret(definition.name.clone()))?
            }
        };
        apply::check_secret(definition, &secret)?;
        Ok(secret)
    }

    /// The secret of a client, if it has one.
    fn client_secret(&self, definition: &Definition) -> Result<Option<Secret>, AuthError> {
        definition.wants_secret().then(|| self.secret(definition)).transpose()
    }
}

/// What may be shown of a secret: nothing of a short one, the last four characters of others.
pub fn mask(secret: &str) -> String {
    const DOTS: &str = "••••••••";
    let count = secret.chars().count();
    if count < 12 || secret.contains('\n') {
        return DOTS.to_owned();
    }
    let tail: String = secret.chars().skip(count - 4).collect();
    format!("{DOTS}{}", decanus_base::text::escape_controls(&tail))
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}
