//! `decanus auth list|set|test|remove|login`.

use std::io::{IsTerminal, Read};

use decanus::base::Secret;
use decanus::net::auth::{Definition, Fields, Listed, Prompt, Revocation, SecretState, TokenState};
use decanus::{Decanus, Error};
use serde_json::{Value, json};

use crate::args::{Auth, AuthSet};
use crate::out::{Out, table};
use crate::{Context, Ended};

/// More than any secret: a key file of a service account has 3 kB.
const LONGEST: u64 = 64 * 1024;

pub async fn run(auth: Auth, cx: &Context) -> Ended {
    let decanus = cx.open()?;
    let out = cx.out;
    match auth {
        Auth::List => list(&decanus, out),
        Auth::Set(set) => keep(&decanus, *set, out),
        Auth::Test { name } => {
            let (sent, token) = decanus.auth.try_out(&name).await?;
            let urls = decanus.auth.get(&name)?.urls;
            let urls: Vec<String> = urls.iter().map(ToString::to_string).collect();
            if out.json {
                let sent: Vec<Value> = sent
                    .iter()
                    .map(|s| json!({"in": s.place, "name": s.name, "value": s.masked}))
                    .collect();
                out.value(&json!({"name": name, "urls": urls, "sends": sent, "token": token.as_ref().map(of_token)}));
            } else {
                for s in sent {
                    out.line(&format!("{} {}: {}", s.place, s.name, s.masked));
                }
                if let Some(token) = token {
                    out.line(&format!("token {}", about(&token)));
                }
                out.line(&format!("to {}", urls.join(", ")));
            }
            Ok(0)
        }
        Auth::Remove { name } => {
            match decanus.auth.remove(&name).await? {
                Revocation::None => {}
                Revocation::Done => out.dim("the server has revoked the token"),
                Revocation::Failed(e) => out.warn(&format!("the token could not be revoked: {e}")),
            }
            if out.json {
                out.value(&json!({"removed": name}));
            } else {
                out.note(&format!("removed {name}"));
            }
            Ok(0)
        }
        Auth::Login { name, timeout } => {
            // What is wrong with the name or the scheme is said first.
            if !decanus.auth.get(&name)?.wants_login() {
                return Err(Error::usage(format!(
                    "credential '{name}' needs no login: `decanus auth test {name}` shows what is sent"
                ))
                .into());
            }
            if !std::io::stderr().is_terminal() || !std::io::stdin().is_terminal() {
                return Err(Error::usage(format!(
                    "`decanus auth login {name}` needs a terminal: somebody has to open a browser"
                ))
                .into());
            }
            let show = move |prompt: Prompt| match prompt {
                Prompt::Browser { url } => out.note(&format!("Open this in a browser on this machine:\n\n  {url}\n")),
                Prompt::Device { url, complete, code } => {
                    out.note(&format!("Open {url} in any browser and type the code\n\n  {code}\n"));
                    if let Some(complete) = complete {
                        out.note(&format!("or open {complete}"));
                    }
                }
            };
            let token = decanus.auth.login(&name, timeout, &show).await?;
            if out.json {
                out.value(&json!({"name": name, "token": of_token(&token)}));
            } else {
                out.note(&format!("logged in; token {}", about(&token)));
            }
            Ok(0)
        }
    }
}

fn list(decanus: &Decanus, out: Out) -> Ended {
    let all = decanus.auth.list()?;
    if out.json {
        out.value(&all.iter().map(describe).collect());
        return Ok(0);
    }
    let mut rows = Vec::new();
    for listed in &all {
        let definition = match &listed.definition {
            Ok(definition) => definition,
            Err(e) => {
                out.warn(&e.to_string());
                continue;
            }
        };
        let secret = match &listed.secret {
            SecretState::NotNeeded => "no secret".to_owned(),
            SecretState::Missing => "secret missing".to_owned(),
            SecretState::Stored { masked } => masked.clone(),
            SecretState::Variable { name, set: true } => format!("${name}"),
            SecretState::Variable { name, set: false } => format!("${name} (not set)"),
        };
        let token = match &listed.token {
            Some(token) => format!("token {}", about(token)),
            None if definition.wants_login() => "not logged in".to_owned(),
            None => String::new(),
        };
        rows.push(vec![
            listed.name.clone(),
            definition.scheme_name().to_owned(),
            urls(definition).join(" "),
            secret,
            token,
        ]);
    }
    out.print(&table(&rows));
    Ok(0)
}

fn urls(definition: &Definition) -> Vec<String> {
    definition.urls.iter().map(ToString::to_string).collect()
}

fn describe(listed: &Listed) -> Value {
    let mut value = json!({"name": listed.name});
    match &listed.definition {
        Ok(definition) => {
            value["scheme"] = definition.scheme_name().into();
            value["urls"] = urls(definition).into();
        }
        Err(e) => value["error"] = e.to_string().into(),
    }
    value["secret"] = match &listed.secret {
        SecretState::NotNeeded => Value::Null,
        SecretState::Missing => json!({"stored": false}),
        SecretState::Stored { masked } => json!({"stored": true, "masked": masked}),
        SecretState::Variable { name, set } => json!({"env": name, "set": set}),
    };
    value["token"] = listed.token.as_ref().map(of_token).into();
    value
}

fn of_token(token: &TokenState) -> Value {
    json!({
        "expires_in": token.expires_at.map(|e| e - now()),
        "refreshable": token.refreshable,
        "scope": token.scope,
        "subject": token.subject,
    })
}

/// A token in words.
fn about(token: &TokenState) -> String {
    let mut words = match token.expires_at.map(|e| e - now()) {
        None => "without an end".to_owned(),
        Some(left) if left <= 0 => "expired".to_owned(),
        Some(left) if left < 120 => format!("valid for {left} s"),
        Some(left) if left < 7200 => format!("valid for {} min", left / 60),
        Some(left) => format!("valid for {} h", left / 3600),
    };
    if token.refreshable {
        words.push_str(", renewed by itself");
    }
    if let Some(subject) = &token.subject {
        words.push_str(&format!(", of {subject}"));
    }
    words
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}

fn keep(decanus: &Decanus, set: AuthSet, out: Out) -> Ended {
    let name = set.name.clone();
    let file = set.file.clone();
    let definition = match fields(set) {
        Some(fields) => Definition::new(&name, &fields)?,
        None => {
            let definition = decanus.auth.get(&name)?;
            if let Some(variable) = &definition.env {
                return Err(Error::usage(format!(
                    "credential '{name}' takes its secret from ${variable}: to store one, set it anew with --scheme and --url"
                ))
                .into());
            }
            definition
        }
    };
    let secret = if definition.env.is_some() || !definition.wants_secret() {
        if file.is_some() {
            return Err(Error::usage(format!("credential '{name}' has no secret to store: leave out --file")).into());
        }
        None
    } else {
        Some(secret(&definition, file.as_deref(), decanus)?)
    };
    decanus.auth.set(&definition, secret)?;
    let next = if definition.wants_login() {
        format!("; next: decanus auth login {name}")
    } else {
        String::new()
    };
    if out.json {
        out.value(&json!({"name": name, "scheme": definition.scheme_name(), "urls": urls(&definition)}));
    } else {
        out.note(&format!("kept {name}{next}"));
    }
    Ok(0)
}

/// What was given of a definition; nothing when only the secret is to change.
fn fields(set: AuthSet) -> Option<Fields> {
    Some(Fields {
        scheme: set.scheme?,
        urls: set.urls,
        env: set.env,
        place: set.place,
        name: set.key_name,
        prefix: set.prefix,
        username: set.username,
        grant: set.grant,
        client_id: set.client_id,
        client_auth: set.client_auth,
        scopes: set.scopes,
        audience: set.audience,
        subject: set.subject,
        issuer: set.issuer,
        token_url: set.token_url,
        authorization_url: set.authorization_url,
        device_url: set.device_url,
        revocation_url: set.revocation_url,
        port: set.port.map(|p| p.to_string()),
    })
}

/// The secret: from a file, from a person without showing it, or from what is piped in.
fn secret(definition: &Definition, file: Option<&std::path::Path>, decanus: &Decanus) -> Result<Secret, Error> {
    let what = definition.secret_name();
    let text = match file {
        Some(file) => {
            let path = decanus.project.user_path(file);
            decanus::base::files::read_text(&path).map_err(|e| Error::usage(e.to_string()))?
        }
        None if std::io::stdin().is_terminal() => rpassword::prompt_password(format!("The {what}: "))
            .map_err(|e| Error::usage(format!("the {what} can't be read: {e}")))?,
        None => {
            let mut text = String::new();
            std::io::stdin()
                .take(LONGEST)
                .read_to_string(&mut text)
                .map_err(|e| Error::usage(format!("the {what} can't be read from standard input: {e}")))?;
            text
        }
    };
    if text.len() as u64 >= LONGEST {
        return Err(Error::usage(format!("the {what} is longer than {LONGEST} bytes")));
    }
    // What `echo` and editors add at the end is not part of it.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(Error::usage(format!(
            "no {what} was given: pipe it in, or use --env VARIABLE or --file FILE"
        )));
    }
    Ok(Secret::new(text))
}
