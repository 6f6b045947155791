//! `decanus tool`.

use decanus_testkit::{Reply, ScriptedServer};
use serde_json::json;

use crate::support::*;

#[test]
fn list_shows_builtins_and_tasks() {
    let s = lab();
    let plain = run(&s, &["tool", "list"]).exits(0);
    insta::assert_snapshot!("tool_list", both(&s, &plain));
    let list = run(&s, &["tool", "list", "--json"]).exits(0).json();
    let names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "big",
            "calculator",
            "cat_facts",
            "check_job_status",
            "current_time",
            "echo",
            "fails",
            "greet",
            "hangs",
            "http_request",
            "read_webpage",
            "shout",
            "start_sleepy_job",
            "webhook_tool"
        ]
    );
    for tool in list.as_array().unwrap() {
        assert_eq!(keys(tool), ["name", "description", "source", "parameters"]);
    }
    assert_eq!(list[7]["source"], "Lab");
    assert_eq!(
        list[7]["parameters"]["properties"]["tone"]["enum"],
        json!(["warm", "cold"])
    );
}

#[test]
fn info_shows_parameters() {
    let s = lab();
    for (name, tool) in [("tool_info_calculator", "calculator"), ("tool_info_greet", "Lab/greet")] {
        insta::assert_snapshot!(name, both(&s, &run(&s, &["tool", "info", tool])));
    }
    let info = run(&s, &["tool", "info", "greet", "--json"]).exits(0).json();
    assert_eq!(info["name"], "greet");
    assert_eq!(info["parameters"]["required"], json!(["who"]));
}

#[test]
fn call_takes_json_and_pairs() {
    let s = lab();
    let args = r#"{"operand1":"10","operand2":5,"operation":"multiply"}"#;
    let plain = run(&s, &["tool", "call", "calculator", "--args", args]).exits(0);
    assert_eq!((plain.stdout.as_str(), plain.stderr.as_str()), ("50\n", ""));
    let json = run(&s, &["tool", "call", "calculator", "--args", args, "--json"]).exits(0);
    assert_eq!(json.stdout, "{\"status\":\"success\",\"result\":50}\n");
    let pairs = [
        "tool",
        "call",
        "calculator",
        "operand1=0.1",
        "operand2=0.2",
        "operation=add",
    ];
    assert_eq!(run(&s, &pairs).exits(0).stdout, "0.3\n");
    // The value may hold anything, `=` too; a file stands for its text.
    assert_eq!(
        run(&s, &["tool", "call", "echo", "message=a=b"]).exits(0).stdout,
        "a=b\n"
    );
    s.write("note.txt", "from a file");
    assert_eq!(
        run(&s, &["tool", "call", "echo", "message=@note.txt"]).exits(0).stdout,
        "from a file\n"
    );
    // In --args it is data.
    assert_eq!(
        run(&s, &["tool", "call", "echo", "--args", r#"{"message":"@note.txt"}"#])
            .exits(0)
            .stdout,
        "@note.txt\n"
    );
}

#[test]
fn call_of_a_task_is_a_job() {
    let s = lab();
    let first = run(&s, &["tool", "call", "greet", "who=Ada"]).exits(0);
    assert_eq!(first.stdout, "hello Ada\n");
    assert!(first.stderr.contains("Lab/greet/Default_"), "{first}");
    let again = run(&s, &["tool", "call", "Lab/greet", "--args", r#"{"who":"Ada"}"#]).exits(0);
    assert!(again.stderr.contains("(stored result)"), "{again}");
    assert_eq!(greeted(&s), 1);
}

#[test]
fn what_the_schema_refuses_is_usage() {
    let s = lab();
    for (args, says) in [
        (
            &[
                "tool",
                "call",
                "calculator",
                "operand1=ten",
                "operand2=1",
                "operation=add",
            ][..],
            "operand1",
        ),
        (&["tool", "call", "calculator", "operand1=1"], "operand2"),
        (&["tool", "call", "calculator", "oprand1=1"], "did you mean operand1 or"),
        (&["tool", "call", "calculator", "--args", "{\"x\":1}"], "`x`"),
        (
            &["tool", "call", "calculator", "--args", "[1]"],
            "must be a JSON object",
        ),
        (&["tool", "call", "calculator", "--args", "{oops"], "not valid JSON"),
        (&["tool", "call", "greet", "who=A", "times=4"], "times"),
        (&["tool", "call", "greet", "who=A", "tone=loud"], "warm"),
        (&["tool", "call", "echo", "message=@missing.txt"], "missing.txt"),
        (&["tool", "call", "calculatr"], "did you mean calculator?"),
        (&["tool", "info", "calculatr"], "did you mean calculator?"),
        (&["tool", "call", "Lab/gret"], "did you mean greet?"),
        (&["tool", "call", "Lab"], "several tools"),
    ] {
        let plain = run(&s, args).exits(2);
        assert!(plain.stderr.contains(says), "{says}: {plain}");
        assert!(plain.stdout.is_empty(), "{plain}");
        let json = run(&s, &[args, &["--json"]].concat()).exits(2).json();
        assert_eq!(json["error"]["kind"], "usage", "{args:?}: {json}");
    }
    assert_eq!(greeted(&s), 0);
}

#[test]
fn what_the_tool_itself_says_is_its_failure() {
    let s = lab();
    let divide = [
        "tool",
        "call",
        "calculator",
        "operand1=1",
        "operand2=0",
        "operation=divide",
    ];
    let plain = run(&s, &divide).exits(4);
    assert!(plain.stderr.contains("Division by zero"), "{plain}");
    let json = run(&s, &[&divide[..], &["--json"]].concat()).exits(4).json();
    assert_eq!(json["status"], "error");
    assert_eq!(json["error_class"], "ToolArgumentError");
    assert!(json["error_message"].as_str().unwrap().contains("Division by zero"));
    assert_eq!(json["error"]["kind"], "tool");
    let json = run(&s, &["tool", "call", "fails", "--json"]).exits(4).json();
    assert_eq!(json["error_class"], "JobError");
    assert!(json["error_message"].as_str().unwrap().contains("the disk is on fire"));
}

#[test]
fn network_tools_are_guarded() {
    let s = lab();
    for url in [
        "http://169.254.169.254/",
        "http://127.1:8080/",
        "http://[::ffff:7f00:1]/",
    ] {
        let outcome = run(&s, &["tool", "call", "http_request", &format!("url={url}"), "--json"]).exits(4);
        let json = outcome.json();
        assert_eq!(
            (&json["status"], &json["error_class"]),
            (&json!("error"), &json!("ToolArgumentError")),
            "{url}"
        );
        assert!(
            json["error_message"]
                .as_str()
                .unwrap()
                .contains("restricted network address"),
            "{url}"
        );
    }
}

#[test]
fn the_time_and_a_product_as_typed() {
    let s = lab();
    let product = [
        "tool",
        "call",
        "calculator",
        "operand1=10",
        "operand2=5",
        "operation=multiply",
    ];
    assert_eq!(run(&s, &product).exits(0).stdout, "50\n");
    let time = run(&s, &["tool", "call", "current_time", "timezone=+05:30", "--json"])
        .exits(0)
        .json();
    assert_eq!(time["status"], "success");
    assert!(
        time["result"]["iso8601"].as_str().unwrap().ends_with("+05:30"),
        "{time}"
    );
    run(&s, &["tool", "call", "current_time", "timezone=Europe/Oslo"]).exits(0);
    let wrong = run(&s, &["tool", "info", "ecko"]).exits(2);
    assert!(wrong.stderr.contains("did you mean echo?"), "{wrong}");
    let wrong = run(&s, &["tool", "call", "read_fil", "path=x"]).exits(2);
    assert!(wrong.stderr.contains("did you mean read_file?"), "{wrong}");
}

#[test]
fn tools_of_files_as_typed() {
    let s = lab();
    s.write("notes/a.txt", "one\ntwo\n");
    let call = |tool: &str, pairs: &[&str]| run(&s, &[&["tool", "call", tool][..], pairs].concat());
    assert_eq!(call("read_file", &["path=notes/a.txt"]).exits(0).stdout, "one\ntwo\n\n");
    assert_eq!(
        call("read_file", &["path=notes/a.txt", "offset=2", "--json"])
            .exits(0)
            .json()["result"],
        "two\n"
    );
    assert_eq!(
        call("search_files", &["pattern=tw."]).exits(0).stdout,
        "notes/a.txt:2:two\n"
    );
    assert_eq!(call("list_files", &["path=notes"]).exits(0).stdout, "notes/a.txt\n");
    // What was typed is relative to where it was typed.
    let inner = s.path("notes").display().to_string();
    s.write("decanus.toml", "");
    let there = run(&s, &["-C", &inner, "tool", "call", "read_file", "path=a.txt"]).exits(0);
    assert_eq!(there.stdout, "one\ntwo\n\n");
    let outside = call("read_file", &["path=../../etc/passwd", "--json"]).exits(4).json();
    assert_eq!(outside["error_class"], "ToolArgumentError");
    assert!(
        outside["error_message"]
            .as_str()
            .unwrap()
            .contains("is not inside the project")
    );
    call("write_file", &["path=out/b.txt", "content=new"]).exits(0);
    let again = call("write_file", &["path=out/b.txt", "content=other"]).exits(4);
    assert!(again.stderr.contains("overwrite"), "{again}");
    assert_eq!(std::fs::read_to_string(s.path("out/b.txt")).unwrap(), "new");
    let refused = call("run_command", &["argv=ls"]).exits(4);
    assert!(
        refused.stderr.contains("[tools.run_command] allow = [\"ls\"]"),
        "{refused}"
    );
    s.write("decanus.toml", "[tools.run_command]\nallow = ['ls']\n");
    let ran = call("run_command", &["argv=ls", "argv=notes", "--json"])
        .exits(0)
        .json();
    assert_eq!(
        ran["result"],
        json!({"exit_code": 0, "stdout": "a.txt\n", "stderr": ""})
    );
    let refused = call("python", &["script=print(1)"]).exits(4);
    assert!(refused.stderr.contains("[tools.python] enabled = true"), "{refused}");
    s.write("decanus.toml", "[tools.run_command]\nallow = 'ls'\n");
    let wrong = call("run_command", &["argv=ls"]).exits(2);
    assert!(
        wrong.stderr.contains("decanus.toml") && wrong.stderr.contains("line 2"),
        "{wrong}"
    );
}

/// A model is offered such a tool only where it was named, and its paths start at the project.
#[test]
fn a_model_uses_tools_that_were_named() {
    let s = lab();
    s.write("notes/a.txt", "one\n");
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("c1", "read_file", json!({"path": "notes/a.txt"}))]),
        Reply::chat_stream(&["done"]),
    ]);
    ask(&s, &server, &["-t", "read_file", "What is in the note?"]).exits(0);
    let requests = server.requests();
    assert!(requests[0].text().contains("\"read_file\"") && !requests[0].text().contains("write_file"));
    assert!(requests[1].text().contains("one\\n"), "{}", requests[1].text());
}
