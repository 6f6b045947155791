//! What a chat shows the model, and what its outputs say of agents that were asked.

use super::*;

#[test]
fn files_and_pictures_of_a_chat_are_inputs() {
    let lab = Lab::new();
    lab.write("chats/notes.md", "n");
    lab.write("data/plot.png", "p");
    lab.write("docs/a.txt", "a");
    let chat = lab.write(
        "chats/a.chat",
        "file: notes.md\nimage: data/plot.png\ndirectory: docs\npdf: gone.pdf\nimage: https://example.org/x.png\nuser: q\n",
    );
    let graph = lab.tracer().chat(&chat).unwrap();
    assert_eq!(
        shape(&graph),
        [
            "chat chats/a.chat > input > file chats/notes.md",
            "chat chats/a.chat > input > file data/plot.png",
            "chat chats/a.chat > input > file docs",
            "chat chats/a.chat > input > file chats/gone.pdf",
        ]
    );
    let problems: Vec<_> = graph.problems.iter().map(|p| (p.line, p.message.as_str())).collect();
    assert_eq!(problems, [(Some(4), "pdf `gone.pdf` is not there")]);
    assert_eq!(graph.nodes[4].status.as_deref(), Some("missing"));
    assert!(
        graph.to_tree().contains("\n  input data/plot.png\n"),
        "{}",
        graph.to_tree()
    );
}

fn delegating(receipts: &Value) -> String {
    let output = json!({"id": "a1", "content": "done", "agent_meta": receipts});
    format!(
        "user: Run\nmeta: pt=60 ct=40 tt=100 inference_id=p1\nfunction_call: {{\"name\":\"ask\",\"id\":\"a1\"}}\n\
         function_call_output: {output}\n"
    )
}

fn meta(content: &str) -> Value {
    json!({"role": "meta", "content": content})
}

/// Worked example 15 of agents: each request counts once, whether the chat or a receipt speaks of it.
#[test]
fn receipts_count_what_no_chat_speaks_of() {
    let lab = Lab::new();
    let (w1, w2) = (
        "pt=100 ct=50 tt=150 inference_id=w1",
        "pt=20 ct=10 tt=30 inference_id=w2",
    );
    let receipts = json!([meta(w1), meta(w2), meta("job=Worker/ask/x.chat")]);
    let chat = lab.write("a.chat", &delegating(&receipts));
    let sums = |graph: &Graph| {
        let total = graph.ledger.total();
        let scopes = graph.ledger.scopes().map(|usage| usage.tt.unwrap_or(0));
        ([total.pt, total.ct, total.tt].map(|n| n.unwrap_or(0)), scopes)
    };
    let graph = lab.tracer().chat(&chat).unwrap();
    assert_eq!(sums(&graph), ([180, 100, 280], [100, 180, 180]));
    let call = graph.nodes.iter().find(|n| n.kind == Kind::Call).unwrap();
    assert_eq!(call.note.as_deref(), Some("delegated: 2 requests, total=180"));
    assert_eq!(graph.problems.len(), 1, "the job is not there: {:?}", graph.problems);
    // With the agent's log.
    lab.job("Worker/ask/x.chat", "user: r\n", &json!({}));
    let log = format!(
        "user: r\nmeta: {w1}\nassistant: a\nmeta: {w2}\nassistant: b\nmeta: pt=5 ct=5 tt=10 inference_id=w3\nassistant: c\n"
    );
    lab.write("jobs/Worker/ask/x.chat.files/log/agent.chat", &log);
    let graph = lab.tracer().chat(&chat).unwrap();
    assert_eq!(sums(&graph), ([185, 105, 290], [290, 180, 0]));
    assert!(graph.problems.is_empty(), "{:?}", graph.problems);
    assert!(
        shape(&graph).contains(&"call ask {} > delegate > job Worker/ask/x.chat".to_owned()),
        "{:?}",
        shape(&graph)
    );
    let tree = graph.to_tree();
    assert!(tree.contains("delegated job Worker/ask/x.chat"), "{tree}");
    assert_eq!(graph.to_json(false)["token_scopes"]["receipts_only"]["tt"], 0);
    let evidence = graph.evidence_lines().join("\n");
    assert!(evidence.contains("a receipt"), "{evidence}");
}

/// Worked example 16: what the chat says counts, whatever is found first.
#[test]
fn a_receipt_that_disagrees_with_the_chat_is_said_once() {
    let lab = Lab::new();
    let receipts = json!([meta("tt=15 inference_id=w1"), meta("job=Worker/ask/x.chat")]);
    let chat = lab.write("a.chat", &delegating(&receipts));
    lab.job(
        "Worker/ask/x.chat",
        "user: r\nmeta: tt=99 inference_id=w1\nassistant: a\n",
        &json!({}),
    );
    let graph = lab.tracer().chat(&chat).unwrap();
    assert_eq!(graph.ledger.total().tt, Some(199));
    assert_eq!(graph.problems.len(), 1, "{:?}", graph.problems);
    assert!(graph.problems[0].message.contains("another tt"));
}

/// Worked example 17.
#[test]
fn bad_receipts_are_warned_of_and_text_is_none() {
    let lab = Lab::new();
    let chat = lab.write("a.chat", &delegating(&json!("oops")));
    let graph = lab.tracer().chat(&chat).unwrap();
    assert_eq!((graph.problems.len(), graph.problems[0].line), (1, Some(4)));
    assert!(graph.problems[0].message.contains("not_an_array"));
    let text = "function_call: {\"name\":\"f\",\"id\":\"1\"}\nfunction_call_output: {\"id\":\"1\",\"content\":\"agent_meta: [1]\"}\n";
    let chat = lab.write("b.chat", text);
    assert!(lab.tracer().chat(&chat).unwrap().problems.is_empty());
}

/// Worked example 19, with chats that receipts name.
#[test]
fn agents_that_ask_each_other_are_met_once() {
    let lab = Lab::new();
    let ask = |chat: &str| delegating(&json!([meta(&format!("chat={chat}"))])).replace("p1", chat);
    let root = lab.write("a.chat", &ask("sessions/worker.chat"));
    lab.write("sessions/worker.chat", &ask("sessions/critic.chat"));
    lab.write("sessions/critic.chat", &ask("sessions/worker.chat"));
    let graph = lab.tracer().chat(&root).unwrap();
    let chats = graph.nodes.iter().filter(|n| n.kind == Kind::Chat).count();
    let delegated = graph.edges.iter().filter(|e| e.relation == Relation::Delegate).count();
    assert_eq!((chats, delegated), (3, 3));
    assert!(graph.problems.is_empty(), "{:?}", graph.problems);
    lab.write("sessions/critic.chat", &ask("sessions/nobody.chat"));
    let graph = lab.tracer().chat(&root).unwrap();
    assert!(
        graph.problems[0].message.contains("sessions/nobody.chat"),
        "{:?}",
        graph.problems
    );
}
