//! `write_file`.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::place::Lab;

#[tokio::test]
async fn a_file_is_written_whole() {
    let lab = Lab::new();
    let made = lab
        .json("write_file", json!({"path": "new/deep/a.txt", "content": "héllo\n"}))
        .await;
    assert_eq!(made, json!({"path": "new/deep/a.txt", "bytes": 7, "replaced": false}));
    assert_eq!(lab.read("new/deep/a.txt"), "héllo\n");
    let mode = |name: &str| lab.path(name).metadata().unwrap().permissions().mode() & 0o777;
    lab.write("plain.txt", "");
    assert_eq!(
        mode("new/deep/a.txt"),
        mode("plain.txt"),
        "an ordinary file under the umask"
    );
    assert_eq!(mode("new/deep"), mode("."));
    // Not over one that is there, unless it is said.
    let again = json!({"path": "new/deep/a.txt", "content": "other"});
    let said = lab.refused("write_file", again).await;
    assert!(
        said.contains("exists already; it is replaced only with overwrite: true"),
        "{said}"
    );
    assert_eq!(lab.read("new/deep/a.txt"), "héllo\n");
    std::fs::set_permissions(lab.path("new/deep/a.txt"), std::fs::Permissions::from_mode(0o750)).unwrap();
    let args = json!({"path": "new/deep/a.txt", "content": "other", "overwrite": true});
    let made = lab.json("write_file", args).await;
    assert_eq!(made["replaced"], true);
    assert_eq!(
        (lab.read("new/deep/a.txt").as_str(), mode("new/deep/a.txt")),
        ("other", 0o750)
    );
    let left: Vec<_> = std::fs::read_dir(lab.path("new/deep")).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file is left");
    lab.call("write_file", json!({"path": "empty.txt", "content": ""}))
        .await
        .unwrap();
    assert_eq!(lab.read("empty.txt"), "");
}

#[tokio::test]
async fn nothing_is_written_elsewhere() {
    let lab = Lab::new();
    let outside = lab.path("../outside").canonicalize().unwrap();
    lab.link(&outside, "linked");
    lab.link(outside.join("fresh.txt"), "dangling");
    lab.link(outside.join("secret.txt"), "link.txt");
    lab.write("file.txt", "f");
    for (path, says) in [
        ("../evil.txt", "is not inside the project"),
        ("../outside/secret.txt", "is not inside the project"),
        ("linked/evil.txt", "is not inside the project"),
        ("linked/new/evil.txt", "is not inside the project"),
        ("link.txt", "is not inside the project"),
        ("dangling", "leads nowhere"),
        ("new/../../evil.txt", ""),
        ("new/../evil.txt", "is no path of a file"),
        ("/tmp/nothing-here/evil.txt", "is not inside the project"),
        ("file.txt/evil.txt", "not a folder"),
        ("new/", "is no path of a file"),
        (".", "is not a regular file"),
        ("", "the path is empty"),
        ("a\0b", "NUL"),
    ] {
        let args = json!({"path": path, "content": "evil", "overwrite": true});
        let said = lab.refused("write_file", args).await;
        assert!(said.contains(says), "{path}: {said}");
    }
    assert_eq!(
        std::fs::read_to_string(outside.join("secret.txt")).unwrap(),
        "the secret"
    );
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert!(!lab.path("../evil.txt").exists() && !lab.path("evil.txt").exists() && !lab.path("new").exists());
    let said = lab
        .refused(
            "write_file",
            json!({"path": "big.txt", "content": "x".repeat((10 << 20) + 1)}),
        )
        .await;
    assert!(said.contains("has more than 10.0 MiB"), "{said}");
    lab.refused("write_file", json!({"path": "x.txt"})).await;
    // A link inside the project leads to its file.
    lab.link("file.txt", "inner");
    let made = lab
        .json(
            "write_file",
            json!({"path": "inner", "content": "g", "overwrite": true}),
        )
        .await;
    assert_eq!(
        (made["path"].as_str(), lab.read("file.txt").as_str()),
        (Some("file.txt"), "g")
    );
    assert!(lab.path("inner").is_symlink());
}
