//! Keeping credentials out of messages.

use decanus_base::Secret;
use reqwest::Url;

use crate::profile::Profile;

/// Secrets shorter than this are not looked for: `k` stands in every word.
const SHORTEST: usize = 4;

/// Takes the credentials of an endpoint out of texts that others wrote: providers repeat keys in their errors.
#[derive(Debug, Clone, Default)]
pub struct Redactor(Vec<Secret>);

impl Redactor {
    /// For the key, the headers and the URL of an endpoint.
    pub fn new(profile: &Profile) -> Self {
        let mut secrets: Vec<Secret> = profile.key.iter().cloned().collect();
        secrets.extend(profile.headers.iter().map(|(_, value)| value.clone()));
        for (_, value) in &profile.headers {
            // `Bearer KEY`: the key alone is as secret.
            secrets.extend(value.expose().split_whitespace().skip(1).map(Secret::new));
        }
        if let Some(aws) = &profile.aws {
            secrets.extend([&aws.secret_key, &aws.session_token].into_iter().flatten().cloned());
        }
        if let Ok(url) = Url::parse(&profile.url) {
            secrets.extend(url.password().map(Secret::new));
            secrets.extend(url.query_pairs().map(|(_, value)| Secret::new(value)));
        }
        secrets.retain(|s| s.expose().len() >= SHORTEST);
        // A secret that contains another one goes first.
        secrets.sort_by_key(|s| std::cmp::Reverse(s.expose().len()));
        Self(secrets)
    }

    /// The text without credentials.
    pub fn clean(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| {
            if text.contains(secret.expose()) {
                text.replace(secret.expose(), "…")
            } else {
                text
            }
        })
    }
}

/// A URL as it may be shown: without user, password, query and fragment.
pub fn show_url(url: &Url) -> String {
    let mut shown = url.clone();
    // Both fail only for URLs that have no host, and so no credentials.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_query(None);
    shown.set_fragment(None);
    shown.into()
}

/// [`show_url`] for a text that may be no URL; then nothing of it is shown but its length.
pub fn show_url_text(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) => show_url(&url),
        Err(_) => format!("(not a URL, {} characters)", text.chars().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_shown() {
        let url = Url::parse("https://me:pw12@host:8443/v1?key=sk-SENTINEL#x").unwrap();
        assert_eq!(show_url(&url), "https://host:8443/v1");
        let mut profile = Profile::new("e", "openai", "m");
        profile.url = url.to_string();
        profile.key = Some(Secret::new("sk-1234"));
        profile.headers = vec![
            ("x-api-key".into(), Secret::new("Token abcdef")),
            ("a".into(), Secret::new("b")),
        ];
        let text = Redactor::new(&profile).clean("sk-1234 sk-SENTINEL abcdef Token abcdef pw12 abc");
        assert_eq!(text, "… … … … … abc");
    }
}
