//! What a chat asks for before its question: tasks, jobs, files, commands.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

/// What the server was sent: role and content, calls as `name(arguments)`.
fn sent(server: &ScriptedServer, request: usize) -> Vec<(String, String)> {
    let body: Value = server.requests()[request].json();
    let messages = body["messages"].as_array().unwrap().clone();
    let one = |m: &Value| match m["tool_calls"].as_array() {
        Some(calls) => {
            let calls: Vec<String> = calls
                .iter()
                .map(|c| {
                    let f = &c["function"];
                    format!("{}({})", f["name"].as_str().unwrap(), f["arguments"].as_str().unwrap())
                })
                .collect();
            calls.join(" ")
        }
        None => m["content"].as_str().unwrap_or_default().to_owned(),
    };
    messages
        .iter()
        .map(|m| (m["role"].as_str().unwrap().to_owned(), one(m)))
        .collect()
}

fn answered() -> ScriptedServer {
    ScriptedServer::start([Reply::chat_stream(&["ok"])])
}

#[test]
fn tasks_run_as_jobs_and_their_results_are_seen() {
    let s = lab();
    s.write(
        "chats/a.chat",
        "introduce: Lab\ntask: Lab greet who='Ada L'\ninline_task: Lab/greet who=Bob\nexec_task: Lab shout who=Eve\nuser: Well?\n",
    );
    let server = answered();
    let asked = ask(&s, &server, &["-c", "a", "--json"]).exits(0).json();
    assert_eq!(asked["answer"], "ok");
    let sent = sent(&server, 0);
    assert_eq!(sent[0], ("user".into(), "Lab\n\nSmall tasks for tests.".into()));
    assert_eq!(sent[1].1, "greet({\"who\":\"Ada L\"})");
    assert_eq!(sent[2], ("tool".into(), "hello Ada L".into()));
    let path = sent[3]
        .1
        .strip_prefix("<file name=\"")
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    assert!(path.contains("/jobs/Lab/greet/Default_"), "{path}");
    assert!(sent[3].1.ends_with("\">\nhello Bob\n</file>"), "{sent:?}");
    assert_eq!(
        &sent[4..],
        [("user".into(), "HELLO EVE".into()), ("user".into(), "Well?".to_owned())]
    );
    // `introduce` brings the tools, too.
    let tools = server.requests()[0].json()["tools"].as_array().unwrap().len();
    assert_eq!(tools, 5);
    assert_eq!(greeted(&s), 3);
    // What ran is not stored in the chat, which was written by hand; asked again, the jobs answer.
    let server = answered();
    ask(&s, &server, &["-c", "a", "Again?"]).exits(0);
    assert_eq!(greeted(&s), 3);
    let text = std::fs::read_to_string(s.path("chats/a.chat")).unwrap();
    assert!(text.starts_with("introduce: Lab\ntask: Lab greet"), "{text}");
}

#[test]
fn stored_jobs_and_steps() {
    let s = lab();
    run(&s, &["workflow", "run", "Lab", "shout", "who=Eve"]).exits(0);
    let job = run(&s, &["job", "list", "Lab", "shout", "--json"]).exits(0).json()[0]["path"].clone();
    let job = job.as_str().unwrap().to_owned();
    let short: String = job
        .rsplit('/')
        .take(3)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect::<Vec<_>>()
        .join("/");
    s.write(
        "chats/a.chat",
        format!("meta: job={short}\nstep: greet\nuser: and\njob: {short}\ninline_job: {job}\nuser: Well?\n"),
    );
    let server = answered();
    ask(&s, &server, &["-c", "a"]).exits(0);
    let sent = sent(&server, 0);
    assert_eq!(sent[0], ("assistant".into(), "hello Eve".into()));
    assert_eq!((sent[2].1.as_str(), sent[3].1.as_str()), ("shout({})", "HELLO EVE"));
    assert!(sent[4].1.contains("HELLO EVE\n</file>"), "{sent:?}");
}

#[test]
fn what_fails_is_named_with_its_line_and_nothing_is_asked() {
    for (line, code, text) in [
        ("task: Lab fails", 4, "the disk is on fire"),
        ("task: Lab greet", 2, "who"),
        ("task: Lab greet who=x tone=blue", 2, "blue"),
        ("task: Lab grete who=x", 2, "did you mean greet?"),
        ("task: Nowhere t", 2, "Nowhere"),
        ("job: Lab/greet/none", 2, "Lab/greet/none"),
        ("job: /etc/hostname", 2, "/etc/hostname"),
        ("step: t", 2, "no `meta` above"),
        ("file: ../../secret", 2, "secret"),
        ("import: b", 2, "Import not found: b"),
        ("kb: genes", 2, "kb is not available in this build"),
        ("cmd: ls", 2, "--allow-cmd"),
        ("option: limits.rounds many", 2, "limits.rounds"),
        ("tool: nope", 2, "there is no tool"),
    ] {
        let s = lab();
        s.write("chats/a.chat", format!("system: x\n{line}\nuser: Well?\n"));
        let server = answered();
        let failed = ask(&s, &server, &["-c", "a"]).exits(code);
        assert!(failed.stderr.contains("chats/a.chat:2: "), "{line}: {failed}");
        assert!(failed.stderr.contains(text), "{line}: {failed}");
        assert_eq!(server.requests().len(), 0, "{line}");
    }
}

#[test]
fn tools_with_hidden_inputs() {
    let s = lab();
    s.write("chats/a.chat", "tool: Lab greet who times=2\nuser: Greet Ada\n");
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("c1", "greet", json!({"who": "Ada", "times": 3, "tone": "cold"}))]),
        Reply::chat_stream(&["done"]),
    ]);
    let asked = ask(&s, &server, &["-c", "a", "--json"]).exits(0).json();
    let tool = server.requests()[0].json()["tools"][0]["function"].clone();
    let shown: Vec<_> = tool["parameters"]["properties"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(shown, ["who", "return_path"]);
    let job = asked["jobs"][0].as_str().unwrap();
    let inputs = run(&s, &["job", "show", job, "--json"]).exits(0).json()["inputs"].clone();
    assert_eq!((&inputs["times"], &inputs["tone"]), (&json!(2), &json!("warm")));
}

#[test]
fn dry_runs_run_nothing() {
    let s = lab();
    s.write(
        "chats/a.chat",
        "task: Lab greet who=Ada\ncmd: touch made\nuser: Well?\n",
    );
    let server = ScriptedServer::start::<Reply>([]);
    let dry = ask(&s, &server, &["-c", "a", "--dry-run", "--allow-cmd"]).exits(0);
    assert!(dry.stderr.contains("chats/a.chat:1: task was not run"), "{dry}");
    assert!(dry.stderr.contains("chats/a.chat:2: cmd was not run"), "{dry}");
    assert_eq!(greeted(&s), 0);
    run(&s, &["workflow", "run", "Lab", "greet", "who=Ada"]).exits(0);
    let dry = ask(&s, &server, &["-c", "a", "--dry-run", "--allow-cmd"]).exits(0);
    assert!(dry.stdout.contains("hello Ada"), "{dry}");
    assert!(!s.path("chats/made").exists() && !s.path("made").exists());
    // The real request is the same, but for what was not run.
    let server = answered();
    s.write("chats/a.chat", "task: Lab greet who=Ada\nuser: Well?\n");
    let dry = ask(&s, &server, &["-c", "a", "--dry-run"]).exits(0).stdout;
    ask(&s, &server, &["-c", "a"]).exits(0);
    assert_eq!(dry.trim_end(), server.requests()[0].text());
}

#[test]
fn commands_run_only_where_the_user_said_so() {
    let s = Sandbox::new();
    s.write("p/data.txt", "one\ntwo $HOME\n");
    s.write("p/a.chat", "cmd: cat data.txt '$(touch made)'\nuser: Well?\n");
    s.write("p/b.chat", "cmd: cat data.txt\nuser: Well?\n");
    s.write("p/c.chat", "import: b.chat\n");
    let server = ScriptedServer::start([Reply::chat_stream(&["ok"]), Reply::chat_stream(&["ok"])]);
    // No shell reads the words.
    let failed = ask(&s, &server, &["-c", "p/a.chat", "--allow-cmd"]).exits(4);
    assert!(
        failed.stderr.contains("p/a.chat:1: cmd `cat data.txt") && failed.stderr.contains("exit code 1"),
        "{failed}"
    );
    assert!(!s.path("p/made").exists());
    ask(&s, &server, &["-c", "p/b.chat", "--allow-cmd"]).exits(0);
    let shown = "<cmd_output cmd=\"cat data.txt\">\none\ntwo $HOME\n</cmd_output>";
    assert_eq!(sent(&server, 0)[0], ("user".into(), shown.into()));
    let refused = ask(&s, &server, &["-c", "p/c.chat", "--allow-cmd"]).exits(2);
    assert!(refused.stderr.contains("never in an imported one"), "{refused}");
    s.write("decanus.toml", "allow = ['cmd']\n");
    ask(&s, &server, &["-c", "p/b.chat"]).exits(0);
    s.write("decanus.toml", "allow = ['cmds']\n");
    let wrong = ask(&s, &server, &["-c", "p/b.chat"]).exits(2);
    assert!(wrong.stderr.contains("cmds"), "{wrong}");
}

#[test]
fn commands_have_limits() {
    let s = Sandbox::new();
    s.write("decanus.toml", "allow = ['cmd']\n[limits]\ntool_time = '300ms'\n");
    let server = ScriptedServer::start::<Reply>([]);
    for (command, text) in [
        ("sleep 60", "took longer than 0.3s"),
        ("yes", "wrote more than 10"),
        ("head -c 10 /dev/zero", "binary"),
        ("no-such-program", "can't be started"),
        ("sh -c 'echo lost >&2; exit 7'", "exit code 7: lost"),
    ] {
        s.write("a.chat", format!("cmd: {command}\nuser: x\n"));
        if command == "yes" {
            s.write("decanus.toml", "allow = ['cmd']\n");
        }
        let failed = ask(&s, &server, &["-c", "a.chat"]).exits(4);
        assert!(failed.stderr.contains(text), "{command}: {failed}");
        assert!(failed.time.as_secs() < 20, "{failed}");
    }
}

#[test]
fn allowed_paths_open_files_for_chats_and_models() {
    let s = lab();
    let outside = Sandbox::new();
    outside.write("d/f.txt", "far");
    let far = outside.path("d/f.txt").display().to_string();
    s.write("chats/a.chat", format!("file: {far}\nuser: q\n"));
    let server = ScriptedServer::start([Reply::chat_stream(&["ok"]), Reply::chat_stream(&["ok"])]);
    let refused = ask(&s, &server, &["-c", "a"]).exits(2);
    assert!(
        refused.stderr.contains("outside the project and the allowed paths"),
        "{refused}"
    );
    let folder = outside.path("d").display().to_string();
    s.write("decanus.toml", format!("allowed_paths = ['{folder}']\n"));
    ask(&s, &server, &["-c", "a"]).exits(0);
    assert_eq!(sent(&server, 0)[0].1, format!("<file name=\"{far}\">\nfar\n</file>"));
    s.write("decanus.toml", "");
    s.write(
        "chats/a.chat",
        format!("allow_read_path: {folder}\nfile: {far}\nuser: q\n"),
    );
    ask(&s, &server, &["-c", "a"]).exits(0);
}

#[test]
fn a_grant_holds_for_the_paths_that_a_model_names() {
    let s = lab();
    s.write(
        "workflows/Read/workflow.yaml",
        "title: R\ntasks:\n  read:\n    description: Reads.\n    inputs: {table: {type: file, required: true}}\n    run: [cat, \"{table}\"]\n",
    );
    let outside = Sandbox::new();
    outside.write("f.txt", "far");
    let far = outside.path("f.txt").display().to_string();
    let script = || {
        ScriptedServer::start([
            Reply::chat_call_stream(&[("c1", "read", json!({"table": far}))]),
            Reply::chat_stream(&["done"]),
        ])
    };
    let result = |grant: &str| {
        s.write("chats/a.chat", format!("{grant}tool: Read\nuser: q\n"));
        let server = script();
        ask(&s, &server, &["-c", "a"]).exits(0);
        sent(&server, 1)[2].1.clone()
    };
    assert!(result("").contains("not a file inside the project"));
    assert_eq!(result(&format!("allow_read_path: {far}\n")), "far");
}

/// A long tool loop keeps its requests within the budget, and says so when it can't.
#[test]
fn a_token_budget_is_kept() {
    let s = lab();
    let call = |i: usize| {
        let who = format!("{i} {}", "word ".repeat(100));
        Reply::chat_call_stream(&[("c", "greet", json!({"who": who}))])
    };
    let replies: Vec<Reply> = (0..12).map(call).chain([Reply::chat_stream(&["done"])]).collect();
    let server = ScriptedServer::start(replies);
    ask(
        &s,
        &server,
        &["-c", "a", "-t", "Lab/greet", "-o", "limits.context_tokens=2500", "Go"],
    )
    .exits(0);
    let sizes: Vec<usize> = server.requests().iter().map(|r| r.text().len()).collect();
    assert!(sizes.iter().all(|size| *size < 2500 * 4), "{sizes:?}");
    assert!(server.requests()[12].text().contains("word word"));
    let server = ScriptedServer::start::<Reply>([]);
    let failed = ask(
        &s,
        &server,
        &["-o", "limits.context_tokens=100", "--json", &"word ".repeat(200)],
    )
    .exits(5);
    assert_eq!(failed.json()["limit"], "context");
    assert_eq!(failed.json()["error"]["kind"], "limit");
}

#[test]
fn nil_removes_an_option_whoever_set_it() {
    let s = Sandbox::new();
    s.write(
        "chats/a.chat",
        "option: temperature 0.1\noption: top_p 0.5\noption: seed nil\nuser: q\n",
    );
    let server = answered();
    ask(&s, &server, &["-c", "a", "-o", "temperature=nil", "-o", "seed=nil"]).exits(0);
    let body = server.requests()[0].json();
    assert_eq!((body.get("temperature"), body.get("seed")), (None, None));
    assert_eq!(body["top_p"], 0.5);
}
