//! What can go wrong with credentials. No message holds a secret.

use std::path::PathBuf;

use decanus_base::yaml::YamlError;
use decanus_base::{Diagnostic, ErrorKind};

/// Why a credential can't be used or changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthError {
    /// A credential's file is wrong.
    #[error("{0}")]
    File(#[from] YamlError),
    /// What was given for a credential is wrong.
    #[error("credential '{name}': {field}: {why}")]
    Field {
        /// The credential.
        name: String,
        /// The field, as files write it.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// There is no such credential.
    #[error("there is no credential '{name}'{guess}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        guess: String,
    },
    /// A file can't be read or written, or its content is not what was written.
    #[error("{}: {why}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// No secret is stored.
    #[error("credential '{0}' has no secret stored")]
    NoSecret(String),
    /// A secret has characters in it that can't be sent.
    #[error("credential '{name}': the {what} contains invalid characters")]
    Characters {
        /// The credential.
        name: String,
        /// What has them.
        what: &'static str,
    },
    /// The variable that should hold the secret does not.
    #[error("credential '{name}': the environment variable {variable} is not set or empty")]
    NoVariable {
        /// The credential.
        name: String,
        /// The variable.
        variable: String,
    },
    /// Two credentials belong to one URL.
    #[error("the credentials {} belong to {url} alike", names.join(" and "))]
    Ambiguous {
        /// The URL.
        url: String,
        /// The credentials.
        names: Vec<String>,
    },
    /// Only the user can go on.
    #[error("credential '{name}': {why}: log in again")]
    Login {
        /// The credential.
        name: String,
        /// Why.
        why: String,
    },
    /// A server said no, or nothing that can be used.
    #[error("credential '{name}': {why}")]
    Server {
        /// The credential.
        name: String,
        /// What it said.
        why: String,
    },
    /// Logging in was begun and not finished.
    #[error("credential '{name}': logging in failed: {why}")]
    Interrupted {
        /// The credential.
        name: String,
        /// What happened.
        why: String,
    },
}

impl AuthError {
    pub(crate) fn server(name: &str, why: impl Into<String>) -> Self {
        Self::Server {
            name: name.to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn interrupted(name: &str, why: impl Into<String>) -> Self {
        Self::Interrupted {
            name: name.to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn store(path: &std::path::Path, why: impl ToString) -> Self {
        // Errors of files name them already.
        let why = why.to_string();
        let prefix = format!("{}: ", path.display());
        Self::Store {
            path: path.to_owned(),
            why: why.strip_prefix(&prefix).unwrap_or(&why).to_owned(),
        }
    }
}

impl Diagnostic for AuthError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } | Self::Field { .. } => ErrorKind::Usage,
            Self::Server { .. } | Self::Interrupted { .. } => ErrorKind::Provider,
            _ => ErrorKind::Config,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { .. } => vec!["`decanus auth list` shows all".to_owned()],
            Self::NoSecret(name) => vec![format!("`decanus auth set {name}` asks for it")],
            Self::Login { name, .. } => vec![format!("`decanus auth login {name}`")],
            _ => Vec::new(),
        }
    }
}
