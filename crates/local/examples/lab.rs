//! Experiments.
use decanus_chat::{Example, ToolDefinition};
use decanus_local::choose::{Allowed, choose};
use decanus_local::engine::Engine;
use decanus_local::engine::session::{ContextOptions, Session};
use decanus_local::template::ChatTemplate;
use serde_json::{Value, json};
use std::time::Instant;

fn tools(file: &str) -> Vec<ToolDefinition> {
    let v: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    v.as_array()
        .unwrap()
        .iter()
        .map(|t| ToolDefinition {
            name: t["name"].as_str().unwrap().into(),
            description: t["description"].as_str().unwrap().into(),
            parameters: t["parameters"].clone(),
            examples: t["examples"]
                .as_array()
                .unwrap()
                .iter()
                .map(|e| Example {
                    request: e["request"].as_str().unwrap().into(),
                    arguments: e["arguments"].as_object().unwrap().clone(),
                })
                .collect(),
            ..Default::default()
        })
        .collect()
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x.as_f64() == y.as_f64(),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k).is_some_and(|w| same(v, w)))
        }
        _ => a == b,
    }
}
fn run(session: &mut Session<'_>, tools: &[ToolDefinition], cases: &[Value]) {
    let t = session.model().meta_val_str("tokenizer.chat_template").unwrap();
    let template = ChatTemplate::new(&t, "", "").unwrap();
    let (mut right, mut whole) = (0, 0);
    for case in cases {
        let start = Instant::now();
        let c = choose(
            session,
            &template,
            tools,
            case["request"].as_str().unwrap(),
            Allowed::Any,
        )
        .unwrap();
        let (name, args) = match &c.call {
            Some((i, a)) => (tools[*i].name.as_str(), Value::Object(a.clone())),
            None => ("none", json!({})),
        };
        let r = name == case["name"];
        let w = r && same(&args, &case["arguments"]);
        right += r as i32;
        whole += w as i32;
        println!(
            "{} {} {:60} {name} {args} {:?}",
            if r { "ok" } else { "--" },
            if w { "ok" } else { "--" },
            case["request"].as_str().unwrap(),
            start.elapsed()
        );
        if !w || std::env::var_os("V").is_some() {
            if !r {
                for n in c.explain["tools"].as_array().unwrap() {
                    println!("      {n}");
                }
            }
            if r {
                for n in c.explain["arguments"].as_array().into_iter().flatten() {
                    println!("      {n}");
                }
            }
        }
    }
    println!("tools {right} calls {whole} of {}", cases.len());
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let tools = tools(&args[1]);
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&args[2]).unwrap()).unwrap();
    let engine = Engine::open(std::path::Path::new(&std::env::var("MODEL").unwrap()), "m").unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    engine
        .submit(engine.token(), move |s| {
            let s = s.unwrap();
            s.configure(ContextOptions {
                threads: std::env::var("T").ok().and_then(|t| t.parse().ok()),
                context: None,
            });
            run(s, &tools, &cases);
            tx.send(()).unwrap();
        })
        .unwrap();
    rx.recv().unwrap();
}
