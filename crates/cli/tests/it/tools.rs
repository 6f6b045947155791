//! `decanus tool`.

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
