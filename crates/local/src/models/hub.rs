//! Where the files of the Hugging Face hub are.

/// The address of a file. `HF_ENDPOINT` names another hub.
pub(super) fn url(organisation: &str, repository: &str, file: &str) -> String {
    let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|e| !e.trim().is_empty());
    let endpoint = endpoint
        .as_deref()
        .unwrap_or("https://huggingface.co")
        .trim()
        .trim_end_matches('/');
    format!("{endpoint}/{organisation}/{repository}/resolve/main/{file}")
}
