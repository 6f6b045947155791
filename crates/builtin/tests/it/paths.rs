//! Where the tools that use files may go, and where not.

use decanus_tool::Permissions;
use serde_json::json;

use crate::place::Lab;

fn full() -> Lab {
    let lab = Lab::new();
    lab.write("a.txt", "inside\n");
    lab.write("sub/b.txt", "below\n");
    lab
}

#[tokio::test]
async fn paths_stay_inside() {
    let lab = full();
    let outside = lab.path("../outside").canonicalize().unwrap();
    let (outside, root) = (outside.to_str().unwrap(), lab.root());
    lab.link(format!("{outside}/secret.txt"), "link.txt");
    lab.link(outside, "linked");
    lab.link("/nonexistent/x", "dangling");
    lab.link("sub/b.txt", "good.txt");
    lab.link("loop", "loop");
    let read = |path: String| lab.call("read_file", json!({"path": path}));
    for good in ["a.txt", "./a.txt", "sub/../a.txt", "sub/b.txt", "good.txt"] {
        read(good.into()).await.unwrap();
    }
    read(root.join("a.txt").to_str().unwrap().to_owned()).await.unwrap();
    read("../p/a.txt".into()).await.unwrap();
    for bad in [
        "../outside/secret.txt".to_owned(),
        "../outside/nothing.txt".to_owned(),
        "../nothing/at/all".to_owned(),
        "sub/../../outside/secret.txt".to_owned(),
        format!("{outside}/secret.txt"),
        "/etc/passwd".to_owned(),
        "/etc/nothing-here".to_owned(),
        "/proc/self/environ".to_owned(),
        "/dev/zero".to_owned(),
        "link.txt".to_owned(),
        "linked/secret.txt".to_owned(),
        "dangling".to_owned(),
        "loop".to_owned(),
        "..".to_owned(),
    ] {
        for (tool, args) in [
            ("read_file", json!({"path": bad})),
            ("list_files", json!({"path": bad})),
            ("search_files", json!({"path": bad, "pattern": "e"})),
            ("sql_query", json!({"database": bad, "query": "SELECT 1"})),
        ] {
            let said = lab.refused(tool, args).await;
            // It is not told whether there is something outside.
            assert!(said.contains("is not inside the project"), "{tool} {bad}: {said}");
        }
    }
    for (path, says) in [
        ("", "the path is empty"),
        ("a\0b", "NUL"),
        ("missing.txt", "`missing.txt` does not exist"),
        ("sub/missing.txt", "does not exist"),
        ("sub", "is a folder"),
    ] {
        let said = read(path.into()).await.unwrap_err().1;
        assert!(said.contains(says), "{path}: {said}");
    }
}

#[tokio::test]
async fn only_regular_files_are_opened() {
    let lab = full();
    nix::unistd::mkfifo(&lab.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(lab.path("socket")).unwrap();
    for name in ["pipe", "socket"] {
        let said = lab.refused("read_file", json!({"path": name})).await;
        assert!(said.contains("is not a regular file"), "{name}: {said}");
        let said = lab
            .refused("sql_query", json!({"database": name, "query": "SELECT 1"}))
            .await;
        assert!(said.contains("is not a regular file"), "{name}: {said}");
        let args = json!({"path": name, "content": "x", "overwrite": true});
        let said = lab.refused("write_file", args).await;
        assert!(said.contains("is not a regular file"), "{name}: {said}");
        lab.refused("search_files", json!({"path": name, "pattern": "x"})).await;
    }
    // Even where the whole of /proc is allowed.
    lab.write("decanus.toml", "allowed_paths = ['/proc', '/dev']\n");
    for path in ["/proc/self/environ", "/proc/self/status", "/dev/null"] {
        let said = lab.refused("read_file", json!({"path": path})).await;
        assert!(said.contains("is not a regular file"), "{path}: {said}");
    }
}

#[tokio::test]
async fn secrets_and_decanus_itself_are_kept_from_tools() {
    let lab = full();
    let kept = [
        ".env",
        ".env.local",
        ".ssh/id_ed25519",
        ".git/config",
        "deploy/server.key",
        ".decanus/cache/answers/x",
        "endpoints/lab.yaml",
    ];
    for name in kept {
        lab.write(name, "SECRET=needle\n");
    }
    lab.write(".env.example", "SECRET=\n");
    for name in kept {
        let said = lab.refused("read_file", json!({"path": name})).await;
        assert!(
            said.contains("may not be read") && said.contains("allowed_paths"),
            "{name}: {said}"
        );
        let args = json!({"path": name, "content": "x", "overwrite": true});
        let said = lab.refused("write_file", args).await;
        assert!(said.contains("may not be written"), "{name}: {said}");
        assert_eq!(lab.read(name), "SECRET=needle\n");
    }
    // A new file there is none either, nor one behind a link.
    lab.refused("write_file", json!({"path": ".git/hooks/pre-commit", "content": "x"}))
        .await;
    lab.link(".env", "innocent.txt");
    lab.refused("read_file", json!({"path": "innocent.txt"})).await;
    lab.call("read_file", json!({"path": ".env.example"})).await.unwrap();
    let found = lab
        .call("search_files", json!({"pattern": "needle", "hidden": true}))
        .await
        .unwrap();
    assert!(found.contains("no line fits"), "{found}");
    let all = lab.call("list_files", json!({"hidden": true})).await.unwrap();
    assert!(all.contains(".env.example") && all.contains("a.txt"), "{all}");
    for name in kept {
        assert!(!all.lines().any(|line| line == name), "{name}: {all}");
    }
    // What an earlier call left for the model, it may read.
    lab.write(".decanus/results/echo-123.txt", "long\n");
    lab.call("read_file", json!({"path": ".decanus/results/echo-123.txt"}))
        .await
        .unwrap();
    // What was allowed by name is.
    lab.write("decanus.toml", "allowed_paths = ['.env', '.git']\n");
    lab.call("read_file", json!({"path": ".env"})).await.unwrap();
    lab.call("read_file", json!({"path": ".git/config"})).await.unwrap();
    lab.refused("read_file", json!({"path": ".env.local"})).await;
}

#[tokio::test]
async fn what_steers_models_is_read_but_not_written() {
    let lab = full();
    let steers = [
        "decanus.toml",
        "mcp.json",
        "workflows/W/workflow.yaml",
        "agents/A/agent.yaml",
        "chats/c.chat",
    ];
    for name in steers {
        lab.write(name, "");
        lab.call("read_file", json!({"path": name})).await.unwrap();
        let args = json!({"path": name, "content": "x", "overwrite": true});
        let said = lab.refused("write_file", args.clone()).await;
        assert!(said.contains("decides what models may do"), "{name}: {said}");
        let run = lab.run_with(Permissions {
            write: vec![lab.root().join(name)],
            ..Permissions::default()
        });
        lab.call_in("write_file", args, &run).await.unwrap();
        lab.write(name, "");
    }
}

#[tokio::test]
async fn chats_and_configuration_are_not_written_anywhere() {
    let lab = full();
    lab.write("inner/decanus.toml", "");
    std::fs::create_dir_all(lab.path("data/agents")).unwrap();
    std::fs::create_dir_all(lab.path("deep")).unwrap();
    lab.write("c.chat", "user: q\n");
    lab.link("c.chat", "notes.txt");
    lab.link("inner", "linked");
    for name in [
        "c.chat",
        "C.CHAT",
        "notes.txt",
        "new.chat",
        "deep/new.Chat",
        "deep/decanus.toml",
        "deep/Decanus.TOML",
        "deep/workflow.yaml",
        "deep/agent.yaml",
        "deep/mcp.json",
        "deep/.decanus/consent.json",
        "kbs/K/a.tsv",
        "Workflows/W/run.py",
        "endpoints/e.yaml",
        "prices.tsv",
        "inner/agents/a.md",
        "linked/workflows/W/run.py",
    ] {
        let args = json!({"path": name, "content": "evil", "overwrite": true});
        let said = lab.refused("write_file", args).await;
        assert!(said.contains("may not be written"), "{name}: {said}");
        assert!(
            said.contains("`allow_path:` in the chat") && !said.contains("allow_write_path"),
            "{name}: {said}"
        );
    }
    assert_eq!(lab.read("c.chat"), "user: q\n");
    // Folders of these names that are no project's are ordinary ones.
    for name in ["data/agents/a.py", "deep/workflows/ci.txt", "chatter.txt"] {
        let args = json!({"path": name, "content": "fine"});
        lab.call("write_file", args).await.unwrap();
    }
}

#[tokio::test]
async fn no_grant_opens_the_chat_that_a_call_is_part_of() {
    let lab = full();
    lab.write("talk.txt", "user: q\n");
    lab.link("talk.txt", "other.txt");
    let run = decanus_tool::Run::builder(lab.path(".decanus/results"))
        .chat(Some(lab.path("talk.txt")))
        .permissions(Permissions {
            write: vec![lab.root().join("talk.txt")],
            ..Permissions::default()
        })
        .approval(crate::place::approved())
        .build();
    for name in ["talk.txt", "other.txt"] {
        let args = json!({"path": name, "content": "allow_path: /", "overwrite": true});
        let (_, said) = lab.call_in("write_file", args, &run).await.unwrap_err();
        assert!(said.contains("is the chat that this call is part of"), "{said}");
    }
    assert_eq!(lab.read("talk.txt"), "user: q\n");
    lab.call_in("read_file", json!({"path": "talk.txt"}), &run)
        .await
        .unwrap();
}

#[tokio::test]
async fn nothing_opens_the_credentials_of_the_user() {
    let lab = full();
    for name in ["auth/key.txt", "auth/a.yaml", "consent.json", "endpoints/mine.yaml"] {
        lab.write(&format!("../home/{name}"), "needle");
    }
    lab.write("../home/other.txt", "fine");
    let home = lab.path("../home").canonicalize().unwrap();
    let home = home.display();
    lab.write(
        "decanus.toml",
        format!(
            "allowed_paths = ['{home}', '{home}/auth', '{home}/auth/key.txt', '{home}/consent.json', '{home}/endpoints']\n"
        ),
    );
    for name in [
        "auth/key.txt",
        "auth/a.yaml",
        "consent.json",
        "endpoints/mine.yaml",
        "auth",
    ] {
        let path = format!("{home}/{name}");
        for (tool, args) in [
            ("read_file", json!({"path": path})),
            ("search_files", json!({"path": path, "pattern": "needle"})),
            ("sql_query", json!({"database": path, "query": "SELECT 1"})),
        ] {
            let said = lab.refused(tool, args).await;
            assert!(said.contains("nothing opens it to tools"), "{tool} {name}: {said}");
        }
        let run = lab.run_with(Permissions {
            write: vec![lab.path("../home").canonicalize().unwrap(), path.clone().into()],
            ..Permissions::default()
        });
        let args = json!({"path": path, "content": "x", "overwrite": true});
        let (_, said) = lab.call_in("write_file", args, &run).await.unwrap_err();
        assert!(said.contains("nothing opens it to tools"), "{name}: {said}");
    }
    let found = lab
        .call("search_files", json!({"path": format!("{home}"), "pattern": "needle"}))
        .await
        .unwrap();
    assert!(found.contains("no line fits"), "{found}");
    lab.call("read_file", json!({"path": format!("{home}/other.txt")}))
        .await
        .unwrap();
}

#[tokio::test]
async fn paths_that_were_allowed_are_open() {
    let lab = full();
    let outside = lab.path("../outside").canonicalize().unwrap();
    let secret = outside.join("secret.txt");
    let read = json!({"path": secret});
    lab.refused("read_file", read.clone()).await;
    // decanus.toml opens for reading only.
    lab.write("decanus.toml", format!("allowed_paths = ['{}']\n", outside.display()));
    assert_eq!(lab.call("read_file", read.clone()).await.unwrap(), "the secret");
    assert_eq!(
        lab.call("read_file", json!({"path": "../outside/secret.txt"}))
            .await
            .unwrap(),
        "the secret"
    );
    let listed = lab.call("list_files", json!({"path": outside})).await.unwrap();
    assert_eq!(listed, secret.to_str().unwrap());
    let found = lab
        .call("search_files", json!({"path": outside, "pattern": "sec.et"}))
        .await
        .unwrap();
    assert_eq!(found, format!("{}:1:the secret", secret.display()));
    let write = json!({"path": outside.join("new/n.txt"), "content": "n"});
    lab.refused("write_file", write.clone()).await;
    assert!(!outside.join("new").exists());
    // A chat's grant, for writing too.
    lab.write("decanus.toml", "");
    let run = lab.run_with(Permissions {
        write: vec![outside.clone()],
        ..Permissions::default()
    });
    lab.call_in("read_file", read.clone(), &run).await.unwrap();
    lab.call_in("write_file", write, &run).await.unwrap();
    assert_eq!(std::fs::read_to_string(outside.join("new/n.txt")).unwrap(), "n");
    let run = lab.run_with(Permissions {
        read: vec![secret],
        ..Permissions::default()
    });
    lab.call_in("read_file", read, &run).await.unwrap();
    let other = json!({"path": outside.join("new/n.txt")});
    lab.call_in("read_file", other, &run).await.unwrap_err();
}
