//! `read_file`, `list_files`, `search_files`.

use serde_json::json;

use crate::place::Lab;

#[tokio::test]
async fn a_file_is_read_in_windows() {
    let lab = Lab::new();
    let text: String = (1..=5000).map(|i| format!("line {i}\n")).collect();
    lab.write("long.txt", &text);
    let read = |args| lab.call("read_file", args);
    let first = read(json!({"path": "long.txt"})).await.unwrap();
    assert!(first.starts_with("line 1\nline 2\n") && first.contains("\nline 2000\n"));
    assert!(
        !first.contains("line 2001") && first.contains("there is more: go on with offset=2001"),
        "{first}"
    );
    let middle = read(json!({"path": "long.txt", "offset": 2001, "limit": 2}))
        .await
        .unwrap();
    assert_eq!(
        middle,
        "line 2001\nline 2002\n\n[note: lines 2001 to 2002; there is more: go on with offset=2003]"
    );
    let end = read(json!({"path": "long.txt", "offset": 4999})).await.unwrap();
    assert_eq!(end, "line 4999\nline 5000\n\n[note: lines 4999 to 5000, the last one]");
    let last = read(json!({"path": "long.txt", "offset": 4999, "limit": 2}))
        .await
        .unwrap();
    assert_eq!(last, end, "the end is seen when the window ends there");
    let said = lab
        .refused("read_file", json!({"path": "long.txt", "offset": 5001}))
        .await;
    assert!(said.contains("has 5000 lines; there is no line 5001"), "{said}");
    // All windows together are the file.
    let mut whole = String::new();
    let mut offset = Some(1);
    while let Some(at) = offset {
        let text = read(json!({"path": "long.txt", "offset": at, "limit": 700}))
            .await
            .unwrap();
        let (part, note) = text.split_once("\n[note: ").unwrap();
        whole.push_str(part);
        offset = note
            .rsplit_once("offset=")
            .map(|(_, n)| n.trim_end_matches(']').parse().unwrap());
    }
    assert_eq!(whole, text);
    for bad in [
        json!({"path": "long.txt", "offset": 0}),
        json!({"path": "long.txt", "limit": 0}),
        json!({}),
    ] {
        lab.refused("read_file", bad).await;
    }
}

#[tokio::test]
async fn wide_lines_and_odd_text() {
    let lab = Lab::new();
    let read = |name: &'static str, offset: u64| lab.call("read_file", json!({"path": name, "offset": offset}));
    lab.write(
        "wide.txt",
        format!("{}\nshort\n{}\nend", "a".repeat(50_000), "é".repeat(100_000)),
    );
    let first = read("wide.txt", 1).await.unwrap();
    assert!(first.contains("\nshort\n") && !first.contains('é') && first.contains("go on with offset=3"));
    let wide = read("wide.txt", 3).await.unwrap();
    assert!(
        wide.contains("line 3 has 195.3 KiB; only its beginning is shown"),
        "{}",
        &wide[wide.len() - 200..]
    );
    assert!(wide.contains("go on with offset=4") && !wide.contains('\u{fffd}'));
    assert_eq!(
        read("wide.txt", 4).await.unwrap(),
        "end\n[note: lines 4 to 4, the last one]"
    );
    lab.write("empty.txt", "");
    assert_eq!(read("empty.txt", 1).await.unwrap(), "\n[note: the file is empty]");
    lab.write("latin.txt", b"caf\xe9\n");
    let latin = read("latin.txt", 1).await.unwrap();
    assert!(
        latin.starts_with("caf\u{fffd}\n") && latin.contains("not UTF-8"),
        "{latin}"
    );
    lab.write("bom.txt", "\u{feff}x");
    assert_eq!(read("bom.txt", 1).await.unwrap(), "x");
    for (name, bytes, says) in [
        (
            "x.png",
            &b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..],
            "is not text: a PNG picture, 16 B",
        ),
        ("x.bin", b"ab\0cd", "is not text: binary data, 5 B"),
        ("x.db", b"SQLite format 3\0", "sql_query"),
    ] {
        lab.write(name, bytes);
        let said = lab.refused("read_file", json!({"path": name})).await;
        assert!(said.contains(says), "{said}");
    }
}

fn tree() -> Lab {
    let lab = Lab::new();
    for (name, text) in [
        (".gitignore", "target/\n*.log\n"),
        ("src/main.rs", "fn main() {\n    todo(\"Say\");\n}\n"),
        ("src/deep/util.rs", "fn util() {}\n"),
        ("src/.hidden.rs", "fn hidden() {}\n"),
        ("notes.md", "Call main.\n"),
        ("x.log", "main\n"),
        ("target/out.rs", "fn main() {}\n"),
    ] {
        lab.write(name, text);
    }
    lab
}

#[tokio::test]
async fn files_are_listed() {
    let lab = tree();
    let list = |args| lab.call("list_files", args);
    let all = "decanus.toml\nnotes.md\nsrc/\nsrc/deep/\nsrc/deep/util.rs\nsrc/main.rs";
    assert_eq!(list(json!({})).await.unwrap(), all);
    assert_eq!(list(json!({"depth": 1})).await.unwrap(), "decanus.toml\nnotes.md\nsrc/");
    assert_eq!(
        list(json!({"glob": "*.rs"})).await.unwrap(),
        "src/deep/util.rs\nsrc/main.rs"
    );
    assert_eq!(list(json!({"glob": "src/*.rs"})).await.unwrap(), "src/main.rs");
    assert_eq!(
        list(json!({"glob": "*.{md,toml}"})).await.unwrap(),
        "decanus.toml\nnotes.md"
    );
    assert_eq!(
        list(json!({"path": "src"})).await.unwrap(),
        "src/deep/\nsrc/deep/util.rs\nsrc/main.rs"
    );
    assert_eq!(
        list(json!({"path": "src", "depth": 1})).await.unwrap(),
        "src/deep/\nsrc/main.rs"
    );
    assert_eq!(
        list(json!({"path": "src", "glob": "deep/*"})).await.unwrap(),
        "src/deep/util.rs"
    );
    // What is left out is still there when it is named.
    assert_eq!(list(json!({"path": "target"})).await.unwrap(), "target/out.rs");
    let hidden = list(json!({"hidden": true})).await.unwrap();
    for name in [".gitignore", "src/.hidden.rs", "target/out.rs", "x.log"] {
        assert!(hidden.lines().any(|l| l == name), "{name}: {hidden}");
    }
    assert_eq!(list(json!({"glob": "*.c"})).await.unwrap(), "\n[note: nothing found]");
    let two = list(json!({"limit": 2})).await.unwrap();
    assert!(
        two.starts_with("decanus.toml\nnotes.md\n[note: only the first 2"),
        "{two}"
    );
    for (bad, says) in [
        (json!({"path": "notes.md"}), "is not a folder"),
        (json!({"path": "nowhere"}), "does not exist"),
        (json!({"glob": "a{"}), "the glob `a{` is wrong"),
        (json!({"glob": ""}), "the glob `` is wrong"),
        (json!({"depth": 0}), "depth"),
        (json!({"limit": 5001}), "limit"),
    ] {
        let said = lab.refused("list_files", bad).await;
        assert!(said.contains(says), "{says}: {said}");
    }
    // Links are shown as such and not followed.
    lab.link("../outside", "away");
    lab.link("src", "again");
    let linked = list(json!({})).await.unwrap();
    assert!(
        linked.contains("again@\naway@\n") && !linked.contains("secret"),
        "{linked}"
    );
}

#[tokio::test]
async fn files_are_searched() {
    let lab = tree();
    lab.write("data.bin", b"\0\0main\0");
    let search = |args| lab.call("search_files", args);
    assert_eq!(
        search(json!({"pattern": "main"})).await.unwrap(),
        "notes.md:1:Call main.\nsrc/main.rs:1:fn main() {"
    );
    assert_eq!(
        search(json!({"pattern": "MAIN\\(", "ignore_case": true, "glob": "*.rs"}))
            .await
            .unwrap(),
        "src/main.rs:1:fn main() {"
    );
    assert_eq!(
        search(json!({"pattern": "^    t"})).await.unwrap(),
        "src/main.rs:2:    todo(\"Say\");"
    );
    assert_eq!(
        search(json!({"pattern": "main", "path": "x.log"})).await.unwrap(),
        "x.log:1:main"
    );
    assert_eq!(
        search(json!({"pattern": "main", "path": "target"})).await.unwrap(),
        "target/out.rs:1:fn main() {}"
    );
    let none = search(json!({"pattern": "nothing"})).await.unwrap();
    assert_eq!(none, "\n[note: no line fits; searched 5 files]");
    let hidden = search(json!({"pattern": "main", "hidden": true})).await.unwrap();
    assert!(
        hidden.contains("x.log:1:main") && hidden.contains("target/out.rs"),
        "{hidden}"
    );
    // Long lines are cut, many lines are counted out.
    lab.write("many.txt", format!("needle {}\n", "x".repeat(9000)).repeat(150));
    let many = search(json!({"pattern": "needle"})).await.unwrap();
    assert_eq!(many.lines().count(), 101);
    assert!(many.lines().all(|l| l.chars().count() < 330), "{many}");
    assert!(many.contains("[note: only the first 100; there is more"), "{many}");
    let one = search(json!({"pattern": "needle", "limit": 1})).await.unwrap();
    assert!(one.starts_with("many.txt:1:needle x"), "{one}");
    for (bad, says) in [
        (json!({"pattern": "("}), "is not a regular expression"),
        (json!({"pattern": ""}), "it is empty"),
        (json!({"pattern": "a\\nb"}), "is not a regular expression for lines"),
        (
            json!({"pattern": "(((((a{1,100}){1,100}){1,100}){1,100}))"}),
            "is not a regular expression",
        ),
        (json!({"pattern": "a", "path": "nowhere"}), "does not exist"),
        (json!({}), "pattern"),
    ] {
        let said = lab.refused("search_files", bad).await;
        assert!(said.contains(says), "{says}: {said}");
    }
    // A pattern that is slow elsewhere.
    lab.write("slow.txt", "a".repeat(100_000));
    let said = search(json!({"pattern": "(a*)*b$", "path": "slow.txt"})).await.unwrap();
    assert!(said.contains("no line fits"), "{said}");
}
