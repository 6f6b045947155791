//! The worked examples of the specification, called as a model calls them.

use std::sync::Arc;

use decanus_builtin::{Builtins, ON_REQUEST};
use decanus_tool::{ToolRegistry, ToolSource};
use serde_json::{Value, json};

use crate::place::{Lab, Said};

async fn calculator(args: Value) -> Said {
    Lab::new().call("calculator", args).await
}

#[tokio::test]
async fn calculator_results() {
    for (a, b, operation, result) in [
        (json!(10), json!(5), "add", "15"),
        (json!("5"), json!("3.5"), "add", "8.5"),
        (json!(2), json!(8), "MULTIPLY", "16"),
        (json!(0.1), json!(0.2), "+", "0.3"),
        (json!(10), json!(4), "/", "2.5"),
        (json!(10), json!(5), "multiply", "50"),
    ] {
        let args = json!({"operand1": a, "operand2": b, "operation": operation});
        assert_eq!(calculator(args.clone()).await, Ok(result.to_owned()), "{args}");
    }
}

#[tokio::test]
async fn calculator_errors() {
    for (args, words) in [
        (
            json!({"operand1": 10, "operand2": 0, "operation": "divide"}),
            &["Tool 'calculator' execution error: Division by zero"][..],
        ),
        (
            json!({"operand1": 10, "operand2": 5, "operation": "modulo"}),
            &["Unsupported operation: 'modulo'"],
        ),
        (
            json!({"operand1": "ten", "operand2": 5, "operation": "add"}),
            &["Parameter 'operand1' for tool 'calculator'", "expected Numeric/Float"],
        ),
        (
            json!({"operand1": 10, "operation": "add"}),
            &[
                "Missing required parameters for tool 'calculator': operand2",
                "operand1, operation",
            ],
        ),
        (json!({}), &["'calculator': operand1, operand2, operation", "None"]),
        (
            json!({"operand1": 10, "operand2": null, "operation": "add"}),
            &["Missing required parameters for tool 'calculator': operand2"],
        ),
        (
            json!({"operand1": 1e308, "operand2": 10, "operation": "*"}),
            &["out of range"],
        ),
    ] {
        let (class, message) = calculator(args.clone()).await.unwrap_err();
        assert_eq!(class, "ToolArgumentError", "{args}");
        assert!(words.iter().all(|w| message.contains(w)), "{args}: {message}");
    }
}

#[tokio::test]
async fn current_time_shapes() {
    let lab = Lab::new();
    let time = lab.json("current_time", json!({"timezone": "+05:30"})).await;
    assert!(time["iso8601"].as_str().unwrap().ends_with("+05:30"), "{time}");
    assert_eq!(time["iso8601"], time["formatted"]);
    assert_eq!(time["timezone"], "+05:30");
    assert!(time["epoch"].is_i64());
    let utc = lab.json("current_time", json!({})).await;
    assert!(utc["iso8601"].as_str().unwrap().ends_with('Z'));
    assert_eq!(utc["timezone"], "UTC");
    lab.json("current_time", json!({"timezone": "America/New_York"})).await;
    let wrong = lab.refused("current_time", json!({"timezone": "Narnia"})).await;
    assert!(
        wrong.contains("Unsupported timezone") && wrong.contains("fixed offset"),
        "{wrong}"
    );
    let wrong = lab.refused("current_time", json!({"timezone": "+5:30"})).await;
    assert!(wrong.contains("Unsupported timezone"), "{wrong}");
    lab.refused("current_time", json!({"timezone": "+25:00"})).await;
}

#[tokio::test]
async fn echo_and_random_number() {
    let lab = Lab::new();
    let call = |name, args| lab.call(name, args);
    assert_eq!(call("echo", json!({"message": "hi"})).await, Ok("hi".into()));
    assert_eq!(call("echo", json!({"message": 42})).await, Ok("42".into()));
    assert_eq!(call("echo", json!({"message": true})).await, Ok("true".into()));
    let said = lab.refused("echo", json!({"message": [1, 2]})).await;
    assert!(said.contains("expected String"), "{said}");
    lab.refused("echo", json!({"message": null})).await;
    assert_eq!(call("random_number", json!({"min": 5, "max": 5})).await, Ok("5".into()));
    let (class, said) = call("random_number", json!({"min": 9, "max": 3})).await.unwrap_err();
    assert!(
        class == "ToolArgumentError" && said.contains('9') && said.contains('3'),
        "{said}"
    );
    let said = lab.refused("random_number", json!({"min": 200})).await;
    assert!(said.contains("200") && said.contains("100"), "{said}");
    lab.refused("random_number", json!({"min": "many"})).await;
}

#[tokio::test]
async fn what_a_misspelt_name_may_mean() {
    let sources: [Arc<dyn ToolSource>; 1] = [Arc::new(Builtins::default())];
    for (typed, meant) in [
        ("calcualtor", "calculator"),
        ("ecko", "echo"),
        ("http_reqest", "http_request"),
        ("webhook", "webhook_tool"),
        ("webhook_tol", "webhook_tool"),
        ("read_web_page", "read_webpage"),
        ("catfacts", "cat_facts"),
        ("read_fil", "read_file"),
    ] {
        let error = ToolRegistry::resolve(&sources, [typed])
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(&format!("did you mean {meant}?")), "{typed}: {error}");
    }
    for typed in ["calc", "zzz"] {
        let error = ToolRegistry::resolve(&sources, [typed])
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(!error.contains("did you mean"), "{typed}: {error}");
    }
}

#[tokio::test]
async fn tools_on_request_are_in_no_list() {
    let builtins = Builtins::default();
    let listed = builtins.list().await.unwrap();
    let listed: Vec<&str> = listed.iter().map(|(_, t)| t.definition().name.as_str()).collect();
    assert_eq!(
        listed,
        [
            "calculator",
            "current_time",
            "echo",
            "cat_facts",
            "http_request",
            "read_webpage",
            "webhook_tool"
        ]
    );
    for name in ON_REQUEST {
        assert!(!listed.contains(&name));
        let found = builtins.resolve(name).await.unwrap().unwrap();
        let definition = found[0].1.definition();
        assert_eq!((found.len(), definition.name.as_str()), (1, name));
        assert!(!definition.examples.is_empty() && !definition.description.is_empty());
        let harmful = ["write_file", "run_command", "python"].contains(&name);
        assert_eq!(definition.destructive, harmful, "{name}");
        let repeatable = !harmful && name != "random_number";
        assert_eq!(definition.effect.is_repeatable(), repeatable, "{name}");
        assert_eq!(definition.volatile, name == "random_number", "{name}");
    }
    for (_, tool) in builtins.list().await.unwrap() {
        let definition = tool.definition();
        let volatile = ["current_time", "cat_facts"].contains(&definition.name.as_str());
        assert_eq!(definition.volatile, volatile, "{}", definition.name);
    }
    // Without a project there are no files.
    let lab = Lab::new();
    let found = builtins.resolve("read_file").await.unwrap().unwrap();
    let cx = decanus_tool::ToolContext {
        from_model: true,
        ..decanus_tool::ToolContext::new("c", &lab.run())
    };
    let args = json!({"path": "/etc/hostname"}).as_object().unwrap().clone();
    found[0].1.call(args, &cx).await.unwrap_err();
}
