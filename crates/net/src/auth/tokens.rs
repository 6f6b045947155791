//! Tokens: taken from the store, renewed by one at a time, kept.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use decanus_base::Secret;
use decanus_base::files::OwnerLock;

use super::apply::ServiceKey;
use super::definition::{Definition, GrantType, OAuth, Scheme};
use super::discovery::Endpoints;
use super::error::AuthError;
use super::jwt::{self, Doubt, Expected};
use super::login::needed;
use super::store::StoredToken;
use super::wire::{self, Party, TokenReply, WireError};
use super::{Auth, Revocation};
use crate::client::Client;

/// A token is renewed this long before it expires, in seconds, or earlier by a quarter of a short life.
const EARLY: i64 = 60;
/// How long one process waits for another that renews the same credential; longer than a request can take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What may be shown of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenState {
    /// When it expires, in seconds since 1970.
    pub expires_at: Option<i64>,
    /// Whether it can be renewed without the user.
    pub refreshable: bool,
    /// What it allows.
    pub scope: Option<String>,
    /// Who logged in.
    pub subject: Option<String>,
}

impl TokenState {
    pub(crate) fn of(token: &StoredToken) -> Self {
        Self {
            expires_at: token.expires_at,
            refreshable: token.refresh_token.is_some(),
            scope: token.scope.clone(),
            subject: token.subject.clone(),
        }
    }
}

impl OAuth {
    pub(crate) fn party<'a>(&'a self, secret: Option<&'a Secret>) -> Party<'a> {
        Party {
            id: &self.client_id,
            secret,
            auth: self.client_auth,
        }
    }
}

impl Definition {
    pub(crate) fn oauth(&self) -> Option<&OAuth> {
        match &self.scheme {
            Scheme::OAuth(oauth) => Some(oauth),
            _ => None,
        }
    }
}

/// Whether a token can be sent now.
pub(crate) fn is_fresh(token: &StoredToken, now: i64) -> bool {
    let Some(expires) = token.expires_at else { return true };
    let early = EARLY.min((expires - token.issued_at).max(0) / 4);
    // A clock that was set back would make every token young again.
    now < expires - early && now >= token.issued_at - EARLY
}

impl Auth {
    /// A token that can be sent: the one in the store, or a new one. `refused` is one that a server did not take.
    pub(crate) async fn token(&self, definition: &Definition, refused: Option<&Secret>) -> Result<Secret, AuthError> {
        if let Some(token) = self.fresh(definition, refused)? {
            return Ok(token);
        }
        // A caller that goes away must not lose a refresh token that the server has already exchanged for the next.
        let (auth, definition, refused) = (self.clone(), definition.clone(), refused.cloned());
        let name = definition.name.clone();
        let renewal = tokio::spawn(async move { auth.renew(&definition, refused.as_ref()).await });
        renewal
            .await
            .unwrap_or_else(|e| Err(AuthError::server(&name, format!("the renewal ended early: {e}"))))
    }

    fn stored(&self, definition: &Definition) -> Result<Option<StoredToken>, AuthError> {
        let mut all = self.0.store.read()?;
        let token = all.remove(&definition.name).and_then(|e| e.token);
        Ok(token.filter(|t| t.fingerprint == definition.fingerprint()))
    }

    fn fresh(&self, definition: &Definition, refused: Option<&Secret>) -> Result<Option<Secret>, AuthError> {
        let token = self.stored(definition)?;
        let token = token.filter(|t| is_fresh(t, self.now()) && refused.is_none_or(|r| r.expose() != t.access_token));
        Ok(token.map(|t| Secret::new(t.access_token)))
    }

    /// Gets a new token, unless somebody else did while this one waited for its turn.
    async fn renew(&self, definition: &Definition, refused: Option<&Secret>) -> Result<Secret, AuthError> {
        let name = &definition.name;
        let turn = {
            let mut turns = self.0.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(name.clone()).or_default())
        };
        let _turn = turn.lock().await;
        let path = self.0.dir.join(format!("{name}.lock"));
        let waited = path.clone();
        let taken = tokio::task::spawn_blocking(move || OwnerLock::acquire(&waited, PATIENCE, &|| false)).await;
        let _lock = taken
            .map_err(|e| AuthError::store(&path, e))?
            .map_err(|e| AuthError::store(&path, e))?;
        if let Some(token) = self.fresh(definition, refused)? {
            return Ok(token);
        }
        let old = self.stored(definition)?;
        match self.ask(definition, old.as_ref()).await {
            Ok(token) => Ok(token),
            Err(Failure::Dead(error)) => {
                // Asking again with what the server has forgotten leads nowhere.
                self.0.store.update(|all| {
                    if let Some(entry) = all.get_mut(name) {
                        entry.token = None;
                    }
                })?;
                Err(error)
            }
            Err(Failure::Passing(error)) => {
                let still = old.filter(|t| {
                    t.expires_at.is_some_and(|e| self.now() < e) && refused.is_none_or(|r| r.expose() != t.access_token)
                });
                let Some(token) = still else { return Err(error) };
                tracing::warn!("{error}; the token at hand is still valid");
                Ok(Secret::new(token.access_token))
            }
        }
    }

    async fn ask(&self, definition: &Definition, old: Option<&StoredToken>) -> Result<Secret, Failure> {
        let client = self.client(&definition.name)?;
        let issued = self.now();
        let (reply, subject) = match &definition.scheme {
            Scheme::ServiceAccount {
                scopes,
                audience,
                subject,
            } => {
                let secret = self.secret(definition)?;
                let key = ServiceKey::read(&secret).map_err(|why| AuthError::server(&definition.name, why))?;
                let audience = audience.as_deref().unwrap_or(&key.token_url);
                let claims = jwt::assertion(&key.email, audience, &scopes.join(" "), subject.as_deref(), issued);
                let assertion = jwt::sign(key.key_id.as_deref(), &key.private_key, &claims)
                    .map_err(|why| AuthError::server(&definition.name, why))?;
                let form = [
                    ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
                    ("assertion", assertion.expose()),
                ];
                let reply = wire::token(&client, &key.token_url, None, &form).await;
                (
                    reply.map_err(|e| AuthError::server(&definition.name, e.to_string()))?,
                    None,
                )
            }
            Scheme::OAuth(oauth) => self.ask_oauth(&client, definition, oauth, old).await?,
            _ => return Err(AuthError::server(&definition.name, "the scheme has no tokens").into()),
        };
        let token = reply.access_token.clone();
        self.keep(definition, &reply, issued, old, subject)?;
        Ok(token)
    }

    async fn ask_oauth(
        &self,
        client: &Client,
        definition: &Definition,
        oauth: &OAuth,
        old: Option<&StoredToken>,
    ) -> Result<(TokenReply, Option<String>), Failure> {
        let name = &definition.name;
        let login = |why: &str| AuthError::Login {
            name: name.clone(),
            why: why.to_owned(),
        };
        let refresh = old.and_then(|t| t.refresh_token.as_deref());
        if refresh.is_none() && oauth.grant != GrantType::ClientCredentials {
            return Err(login(match old {
                None => "nobody is logged in",
                Some(_) => "the token has expired and can't be renewed",
            })
            .into());
        }
        let secret = self.client_secret(definition)?;
        let party = oauth.party(secret.as_ref());
        let endpoints = self.endpoints(client, definition, oauth).await?;
        let url = needed(name, &endpoints.token, "token_endpoint")?;
        let scope = oauth.scopes.join(" ");
        let mut form = Vec::new();
        match refresh {
            Some(refresh) if oauth.grant != GrantType::ClientCredentials => {
                form.extend([("grant_type", "refresh_token"), ("refresh_token", refresh)]);
            }
            _ => {
                form.push(("grant_type", "client_credentials"));
                if !scope.is_empty() {
                    form.push(("scope", scope.as_str()));
                }
                if let Some(audience) = &oauth.audience {
                    form.push(("audience", audience.as_str()));
                }
            }
        }
        let reply = match wire::token(client, url, Some(&party), &form).await {
            Ok(reply) => reply,
            Err(e) if e.code() == "invalid_grant" && oauth.grant != GrantType::ClientCredentials => {
                return Err(Failure::Dead(login(&e.to_string())));
            }
            Err(e @ WireError::Refused { .. }) if e.code() == "invalid_client" => {
                let why = format!("{e}: the client id or its secret is wrong");
                return Err(AuthError::server(name, why).into());
            }
            Err(e) => return Err(AuthError::server(name, e.to_string()).into()),
        };
        let known = old.and_then(|t| t.subject.clone());
        if let (Some(_), Some(token), true) = (&oauth.issuer, &reply.id_token, refresh.is_some()) {
            let proof = self.prove(client, definition, oauth, &endpoints, token, None, known.as_deref());
            // The server has exchanged the refresh token, but this answer is not to be believed.
            proof.await.map_err(Failure::Dead)?;
        }
        Ok((reply, known))
    }

    pub(crate) async fn endpoints(
        &self,
        client: &Client,
        definition: &Definition,
        oauth: &OAuth,
    ) -> Result<Endpoints, AuthError> {
        self.0.discovery.endpoints(client, &definition.name, oauth).await
    }

    /// Verifies an ID token; with a newer list of keys if those at hand lack one. Gives the subject.
    #[allow(clippy::too_many_arguments)]
    pub(crate) async fn prove(
        &self,
        client: &Client,
        definition: &Definition,
        oauth: &OAuth,
        endpoints: &Endpoints,
        token: &Secret,
        nonce: Option<&str>,
        subject: Option<&str>,
    ) -> Result<String, AuthError> {
        let name = &definition.name;
        let url = needed(name, &endpoints.keys, "jwks_uri")?;
        let expected = Expected {
            issuer: oauth.issuer.as_deref().unwrap_or_default(),
            client_id: &oauth.client_id,
            nonce,
            subject,
        };
        for anew in [false, true] {
            let keys = self.0.discovery.keys(client, name, url, anew).await?;
            match jwt::verify(token, &keys, &expected) {
                Ok(subject) => return Ok(subject),
                Err(Doubt::UnknownKey) => {}
                Err(Doubt::No(why)) => return Err(AuthError::server(name, why)),
            }
        }
        Err(AuthError::server(
            name,
            "the ID token is not accepted: none of the issuer's keys has signed it",
        ))
    }

    /// Stores what a token server gave. A refresh token that is not replaced stays.
    pub(crate) fn keep(
        &self,
        definition: &Definition,
        reply: &TokenReply,
        issued: i64,
        old: Option<&StoredToken>,
        subject: Option<String>,
    ) -> Result<TokenState, AuthError> {
        let refresh = reply.refresh_token.as_ref().map(|t| t.expose().to_owned());
        let token = StoredToken {
            fingerprint: definition.fingerprint(),
            access_token: reply.access_token.expose().to_owned(),
            refresh_token: refresh.or_else(|| old.and_then(|t| t.refresh_token.clone())),
            issued_at: issued,
            expires_at: reply.expires_in.map(|e| issued + e),
            scope: reply.scope.clone().or_else(|| old.and_then(|t| t.scope.clone())),
            subject,
        };
        let state = TokenState::of(&token);
        let path = self.path(&definition.name);
        self.0.store.update(|all| {
            // A credential that was removed meanwhile stays removed.
            if path.exists() {
                all.entry(definition.name.clone()).or_default().token = Some(token);
            }
        })?;
        Ok(state)
    }

    /// Tells a server that a token is not used any more (RFC 7009).
    pub(crate) async fn revoke(
        &self,
        definition: &Definition,
        secret: Option<Secret>,
        token: &StoredToken,
    ) -> Revocation {
        let Some(oauth) = definition.oauth() else {
            return Revocation::None;
        };
        let told = async {
            let client = self.client(&definition.name)?;
            let endpoints = self.endpoints(&client, definition, oauth).await?;
            let Some(url) = &endpoints.revocation else {
                return Ok::<bool, AuthError>(false);
            };
            let (kind, value) = match &token.refresh_token {
                Some(refresh) => ("refresh_token", refresh),
                None => ("access_token", &token.access_token),
            };
            let form = [("token", value.as_str()), ("token_type_hint", kind)];
            wire::post_form(&client, url, Some(&oauth.party(secret.as_ref())), &form)
                .await
                .map_err(|e| AuthError::server(&definition.name, e.to_string()))?;
            Ok(true)
        };
        match told.await {
            Ok(true) => Revocation::Done,
            Ok(false) => Revocation::None,
            Err(e) => Revocation::Failed(e),
        }
    }
}

/// Why a renewal failed: for good, or perhaps only now.
enum Failure {
    Dead(AuthError),
    Passing(AuthError),
}

impl From<AuthError> for Failure {
    fn from(error: AuthError) -> Self {
        Self::Passing(error)
    }
}
