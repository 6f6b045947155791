//! Calls of tools: checking one against checking by jsonschema alone, and calls of a tool that does nothing against those of
//! other libraries. All begin with the arguments as text, as a provider sends them.

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus::chat::{Arguments, FunctionCall};
use decanus::tool::{Dispatcher, FnTool, Run, Tool, ToolRegistry};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::table::{Measure, Row, Target, median};
use crate::{Failed, Options};

/// Calls of the tool that does nothing.
const CALLS: usize = 1000;
/// How often they are measured, in each turn.
const TIMES: usize = 20;
const TURNS: usize = 3;
/// Calls that are checked at a time, since one takes less than a clock can tell.
const CHECKS: usize = 200;

/// What the tool that does nothing is called with.
const SENT: &str = r#"{"text":"some words","count":3}"#;

/// Both parts.
pub fn measure(options: &Options) -> Result<Vec<Row>, Failed> {
    let mut rows = vec![check()?];
    rows.extend(calls(options)?);
    Ok(rows)
}

/// What a tool that searches may take.
#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "nothing is searched")]
struct Search {
    /// Words to look for.
    query: String,
    /// Where.
    scope: Scope,
    /// Rows at most.
    #[schemars(range(min = 1, max = 100))]
    limit: i64,
    /// Columns that are wanted.
    columns: Vec<String>,
    /// Whether capitals matter.
    exact: Option<bool>,
    /// The least score.
    threshold: Option<f64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Scope {
    Title,
    Text,
    All,
}

/// What a tool that does nothing takes.
#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "nothing is done")]
struct Nothing {
    /// Some words.
    text: String,
    /// A number.
    count: Option<i64>,
}

fn registry() -> ToolRegistry {
    // Among others, as in a conversation.
    let mut tools: Vec<(String, Arc<dyn Tool>)> = Vec::new();
    for n in 0..20 {
        let tool = FnTool::new(format!("tool_{n}"), "Does nothing.", async |_: Nothing, _| Ok("done"));
        tools.push(("bench".into(), Arc::new(tool)));
    }
    let noop = FnTool::new("noop", "Does nothing.", async |_: Nothing, _| Ok("done"));
    tools.push(("bench".into(), Arc::new(noop)));
    let search = FnTool::new("search", "Searches.", async |_: Search, _| Ok("nothing found"));
    tools.push(("bench".into(), Arc::new(search)));
    ToolRegistry::new(tools)
}

/// Looking a tool up and checking a call's arguments: they come out of it as they go to the tool. The floor says whether
/// they are valid.
fn check() -> Result<Row, Failed> {
    let registry = registry();
    let sent = json!({"query": "mean wind speed", "scope": "text", "limit": 20, "columns": ["date", "wind"], "exact": false, "threshold": 0.5});
    let arguments = Arguments::from_value(Some(&sent));
    let entry = registry.get("search").ok_or("no tool")?;
    let schema = entry.definition.wire_parameters();
    let validator = jsonschema::validator_for(&schema).map_err(|e| e.to_string())?;
    let wrong = json!({"query": "mean wind speed", "scope": "text", "limit": 0, "columns": ["date", "wind"]});
    if validator.is_valid(&wrong) || entry.prepare(&Arguments::from_value(Some(&wrong))).is_ok() {
        return Err("wrong arguments were accepted".into());
    }
    let (mut ours, mut reference) = (Vec::new(), Vec::new());
    for n in 0..5000 {
        let start = Instant::now();
        for _ in 0..CHECKS {
            let entry = registry.get(black_box("search")).ok_or("no tool")?;
            black_box(entry.prepare(black_box(&arguments))?);
        }
        let taken = start.elapsed();
        let start = Instant::now();
        for _ in 0..CHECKS {
            black_box(validator.validate(black_box(&sent))).map_err(|e| e.to_string())?;
        }
        if n >= 500 {
            ours.push(taken);
            reference.push(start.elapsed());
        }
    }
    Ok(Row::new(
        format!("look up and check {CHECKS} calls : jsonschema checks them"),
        Target::RatioAtMost(2.0),
        Measure::Time(median(&mut ours)),
        Measure::Time(median(&mut reference)),
    ))
}

/// Those who call a tool that does nothing: a name, and the command that prints how long it took; ours has none.
struct Caller {
    name: &'static str,
    command: Vec<String>,
    missing: Option<&'static str>,
    times: Vec<Duration>,
}

impl Caller {
    fn new(name: &'static str, program: &Path, arguments: &[&str], missing: &'static str) -> Self {
        let words = arguments.iter().map(|a| (*a).to_owned());
        Self {
            name,
            command: std::iter::once(program.display().to_string()).chain(words).collect(),
            missing: (!program.is_file()).then_some(missing),
            times: Vec::new(),
        }
    }

    fn turn(&mut self) -> Result<(), Failed> {
        if self.missing.is_some() {
            return Ok(());
        }
        let mut program = Command::new(&self.command[0]);
        program
            .args(&self.command[1..])
            .args([CALLS, TIMES].map(|n| n.to_string()));
        let output = program.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("{} ended with {}", self.name, output.status).into());
        }
        let times: Vec<u64> = serde_json::from_slice(&output.stdout)?;
        self.times.extend(times.into_iter().map(Duration::from_nanos));
        Ok(())
    }
}

fn calls(options: &Options) -> Result<Vec<Row>, Failed> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/tools.py");
    let script = script.display().to_string();
    let rust = |name, arguments: &[&str]| Caller::new(name, &options.peers, arguments, "bench/peers is not built");
    let mut callers = [
        rust("rmcp, client to server", &["tools", "rmcp"]),
        rust("rmcp, the router alone", &["tools", "rmcp-router"]),
        rust("rig-core, a typed tool", &["tools", "rig"]),
        rust("rig-core, a dynamic tool", &["tools", "rig-dynamic"]),
        Caller::new(
            "pydantic-ai (Python)",
            &options.peers_python,
            &[&script],
            "there is no Python with it",
        ),
    ];
    let mut ours = Vec::new();
    for _ in 0..TURNS {
        ours.extend(own_calls()?);
        for caller in &mut callers {
            caller.turn()?;
        }
    }
    let ours = Measure::Time(median(&mut ours));
    let rows = callers.into_iter().map(|mut caller| {
        let name = format!("{CALLS} calls of a tool : {}", caller.name);
        match caller.missing {
            Some(missing) => Row::not_measured(name, Target::AtMost, missing),
            None => Row::new(name, Target::AtMost, ours, Measure::Time(median(&mut caller.times))),
        }
    });
    Ok(rows.collect())
}

/// As the loop calls them: parsed, looked up, checked, run within their time, bounded, recorded.
fn own_calls() -> Result<Vec<Duration>, Failed> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let folder = tempfile::tempdir()?;
    let dispatcher = Dispatcher::new(Arc::new(registry()));
    let run = Run::builder(folder.path().join("spill")).build();
    let mut times = Vec::new();
    for turn in 0..=TIMES {
        let start = Instant::now();
        let done = runtime.block_on(async {
            let mut done = 0;
            for n in 0..CALLS {
                let call = FunctionCall {
                    id: format!("call_{n}"),
                    name: "noop".into(),
                    arguments: Arguments::from_text(SENT),
                };
                let mut sink = |f: decanus::tool::Finished| {
                    done += usize::from(f.value == Some(Value::from("done")) && f.output.content == "done");
                };
                dispatcher.dispatch(std::slice::from_ref(&call), &run, &mut sink).await;
            }
            done
        });
        if done != CALLS {
            return Err(format!("{done} of {CALLS} calls were answered").into());
        }
        if turn > 0 {
            times.push(start.elapsed());
        }
    }
    Ok(times)
}
