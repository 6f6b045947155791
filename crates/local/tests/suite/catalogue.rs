//! The catalogue and the files of models.

use decanus_base::{Diagnostic, ErrorKind};
use decanus_local::models::{self, ModelError};
use tokio_util::sync::CancellationToken;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn nothing_is_there_before_it_was_pulled() {
    let home = tempfile::tempdir().unwrap();
    assert!(!models::any_pulled(home.path()));
    let list = models::list(home.path()).unwrap();
    assert_eq!(
        (list[0].name.as_str(), list[0].pulled, list[0].default),
        ("smollm2-135m", false, true)
    );
    let error = models::resolve(home.path(), "").unwrap_err();
    assert!(
        error.hints()[0].contains("decanus model pull smollm2-135m"),
        "{:?}",
        error.hints()
    );
    assert_eq!(
        models::resolve(home.path(), "nonsense").unwrap_err().kind(),
        ErrorKind::Usage
    );
    assert_eq!(
        std::fs::read_dir(home.path()).unwrap().count(),
        0,
        "looking makes no files"
    );
}

#[test]
fn a_file_that_is_no_model_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("notes.gguf");
    for content in ["hello world", "GG", ""] {
        std::fs::write(&file, content).unwrap();
        let error = models::resolve(home.path(), &format!("path:{}", file.display())).unwrap_err();
        assert!(matches!(error, ModelError::NotAModel(_)));
        assert!(
            error.to_string().contains("notes.gguf: not a GGUF model file"),
            "{error}"
        );
    }
    std::fs::write(&file, "GGUF....").unwrap();
    let entry = models::resolve(home.path(), &format!("path:{}", file.display())).unwrap();
    assert_eq!((entry.file, entry.trusted), (file, false));
    assert!(models::path(home.path(), "path:/nowhere/x.gguf").is_err());
}

#[test]
fn a_pull_that_was_cancelled_leaves_no_model() {
    let home = tempfile::tempdir().unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let pulled = runtime().block_on(models::pull(home.path(), "smollm2-135m", &|_| {}, &cancel));
    assert!(matches!(pulled, Err(ModelError::Cancelled)), "{pulled:?}");
    assert!(!models::any_pulled(home.path()));
}
