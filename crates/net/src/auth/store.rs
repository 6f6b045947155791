//! Secrets and tokens on disk: one file, encrypted with age, and its key in a file of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use decanus_base::Secret;
use decanus_base::files::OwnerLock;
use serde::{Deserialize, Serialize};

use super::error::AuthError;
use super::private;

/// The variable that names another file for the key, on another disk for instance.
const KEY_FILE: &str = "DECANUS_AUTH_KEY_FILE";
/// How long one writer waits for another.
const PATIENCE: Duration = Duration::from_secs(10);

/// A token as it is kept.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredToken {
    /// What it was got for.
    pub fingerprint: String,
    pub access_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<String>,
    /// Seconds since 1970, by this machine's clock.
    pub issued_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Who logged in, when that was proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

/// What is kept of one credential.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<StoredToken>,
}

impl Entry {
    pub fn secret(&self) -> Option<Secret> {
        self.secret.as_deref().map(Secret::new)
    }
}

/// All of it. It has no `Debug`: nothing of it is for anybody's eyes.
pub(crate) type Contents = BTreeMap<String, Entry>;

/// The two files.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    file: PathBuf,
    key: PathBuf,
}

impl Store {
    /// The store in a folder.
    pub fn new(dir: &Path) -> Self {
        let elsewhere = std::env::var_os(KEY_FILE).filter(|v| !v.is_empty());
        Self {
            file: dir.join("store.age"),
            key: elsewhere.map_or_else(|| dir.join("key.txt"), PathBuf::from),
        }
    }

    /// What is stored; nothing when there is no file.
    pub fn read(&self) -> Result<Contents, AuthError> {
        let sealed = match std::fs::read(&self.file) {
            Ok(sealed) => sealed,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Contents::new()),
            Err(e) => return Err(AuthError::store(&self.file, e)),
        };
        let Some(identity) = self.identity()? else {
            return Err(AuthError::store(
                &self.file,
                format!(
                    "its key {} is missing: put it back, or remove the file and set the credentials again",
                    self.key.display()
                ),
            ));
        };
        let opened = age::decrypt(&identity, &sealed).map_err(|e| {
            let why = match e {
                age::DecryptError::NoMatchingKeys => {
                    format!("it was encrypted for another key than {}", self.key.display())
                }
                _ => "it is damaged".to_owned(),
            };
            AuthError::store(
                &self.file,
                format!("{why}; remove it and set the credentials again, or bring back a copy"),
            )
        })?;
        // The message of the JSON parser could hold a piece of what it read.
        serde_json::from_slice(&opened).map_err(|e| {
            AuthError::store(
                &self.file,
                format!("its content is of another version (line {})", e.line()),
            )
        })
    }

    /// Changes what is stored, one writer at a time.
    pub fn update<T>(&self, change: impl FnOnce(&mut Contents) -> T) -> Result<T, AuthError> {
        if let Some(dir) = self.file.parent() {
            private::folder(dir)?;
        }
        let _lock = OwnerLock::acquire(&self.file.with_extension("lock"), PATIENCE, &|| false)
            .map_err(|e| AuthError::store(&self.file, e))?;
        let mut contents = self.read()?;
        let before = contents.clone();
        let outcome = change(&mut contents);
        if contents != before {
            self.write(&contents)?;
        }
        Ok(outcome)
    }

    fn write(&self, contents: &Contents) -> Result<(), AuthError> {
        let recipient = match self.identity()? {
            Some(identity) => identity.to_public(),
            None => self.make_key()?.to_public(),
        };
        let fail = |e: &dyn std::fmt::Display| AuthError::store(&self.file, format!("it can't be written: {e}"));
        let plain = serde_json::to_vec(contents).map_err(|e| fail(&e))?;
        let sealed = age::encrypt(&recipient, &plain).map_err(|e| fail(&e))?;
        private::write(&self.file, &sealed)
    }

    fn identity(&self) -> Result<Option<age::x25519::Identity>, AuthError> {
        use std::os::unix::fs::PermissionsExt;
        let fail = |why: &str| AuthError::store(&self.key, why);
        let mode = match std::fs::metadata(&self.key) {
            Ok(meta) => meta.permissions().mode() & 0o777,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(AuthError::store(&self.key, e)),
        };
        if mode & 0o077 != 0 {
            return Err(fail(&format!("others may read it (mode {mode:03o}): chmod 600 it")));
        }
        let text = decanus_base::files::read_text(&self.key).map_err(|e| AuthError::store(&self.key, e))?;
        let mut keys = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let key = keys.next().and_then(|line| age::x25519::Identity::from_str(line).ok());
        match (key, keys.next()) {
            (Some(key), None) => Ok(Some(key)),
            _ => Err(fail("it is no key: one line AGE-SECRET-KEY-1… is expected")),
        }
    }

    fn make_key(&self) -> Result<age::x25519::Identity, AuthError> {
        use age::secrecy::ExposeSecret;
        let identity = age::x25519::Identity::generate();
        let text = format!(
            "# opens store.age; made by decanus\n# public key: {}\n{}\n",
            identity.to_public(),
            identity.to_string().expose_secret()
        );
        private::write(&self.key, text.as_bytes())?;
        Ok(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn set(store: &Store, name: &str, secret: &str) -> Result<(), AuthError> {
        store.update(|all| all.entry(name.to_owned()).or_default().secret = Some(secret.to_owned()))
    }

    #[test]
    fn what_is_stored_is_encrypted_and_the_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(&dir.path().join("auth"));
        assert!(store.read().unwrap().is_empty());
        set(&store, "a", "SENTINEL-1").unwrap();
        set(&store, "b", "SENTINEL-2").unwrap();
        assert_eq!(store.read().unwrap()["a"].secret.as_deref(), Some("SENTINEL-1"));
        for file in ["auth/store.age", "auth/key.txt"] {
            let path = dir.path().join(file);
            assert_eq!(
                std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600,
                "{file}"
            );
            let bytes = std::fs::read(&path).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains("SENTINEL"), "{file}");
        }
        assert!(
            std::fs::read(&store.file)
                .unwrap()
                .starts_with(b"age-encryption.org/v1")
        );
        let mode = std::fs::metadata(dir.path().join("auth")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn damage_is_named_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        set(&store, "a", "SENTINEL").unwrap();
        let sealed = std::fs::read(&store.file).unwrap();
        let key = std::fs::read(&store.key).unwrap();
        let error = |words: &str| {
            let error = store.read().err().unwrap().to_string();
            assert!(
                error.contains(words) && error.contains(dir.path().to_str().unwrap()),
                "{error}"
            );
            // Nothing is overwritten that could still be mended.
            assert!(set(&store, "b", "x").is_err());
        };
        for bad in [
            &sealed[..sealed.len() - 3],
            b"",
            b"hello",
            &[&sealed[..sealed.len() - 1], b"x"].concat(),
        ] {
            std::fs::write(&store.file, bad).unwrap();
            error("store.age: it is damaged");
            assert_eq!(std::fs::read(&store.file).unwrap(), bad);
        }
        std::fs::write(&store.file, &sealed).unwrap();
        std::fs::remove_file(&store.key).unwrap();
        error("is missing");
        assert!(!store.key.exists());
        let other = Store::new(&dir.path().join("other"));
        set(&other, "a", "x").unwrap();
        std::fs::copy(&other.key, &store.key).unwrap();
        error("another key");
        std::fs::write(&store.key, "AGE-SECRET-KEY-1NONE\n").unwrap();
        error("it is no key");
        std::fs::write(&store.key, &key).unwrap();
        std::fs::set_permissions(&store.key, std::fs::Permissions::from_mode(0o640)).unwrap();
        error("chmod 600");
        std::fs::set_permissions(&store.key, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(store.read().unwrap().len(), 1);
    }

    #[test]
    fn writers_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        std::thread::scope(|scope| {
            for n in 0..8 {
                let store = &store;
                scope.spawn(move || set(store, &format!("c{n}"), "x").unwrap());
            }
        });
        assert_eq!(store.read().unwrap().len(), 8);
    }
}
