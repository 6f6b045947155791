//! Approval, hooks, the caller's fallback, state, pictures: what a dispatcher does around a call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use decanus_base::settings::Approve;
use decanus_chat::{Arguments, FunctionCall, FunctionCallOutput};
use decanus_tool::{
    Answer, ApprovalPolicy, Args, Decision, Dispatcher, Event, Fallback, FnTool, Interaction, MemoryState, OutputPart,
    Question, Run, RunBuilder, Tool, ToolContext, ToolError, ToolErrorClass, ToolHook, ToolOutput, ToolRegistry,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
struct Number {
    n: i64,
}

/// Tools that count what they did.
struct Bench {
    ran: Arc<AtomicUsize>,
    registry: Arc<ToolRegistry>,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let ran = Arc::new(AtomicUsize::new(0));
        let count = ran.clone();
        let delete = FnTool::new("delete", "Deletes.", move |args: Number, _| {
            count.fetch_add(1, Ordering::SeqCst);
            async move { Ok(args.n) }
        });
        let counter = FnTool::with_output("counter", "Counts.", |args: Number, cx: ToolContext| async move {
            let before = cx.state.get("counter").and_then(|v| v.as_i64()).unwrap_or(0);
            cx.state.set("counter", before + 1)?;
            cx.progress("half", Some(0.5));
            match args.n {
                0 => Ok(ToolOutput::new(before + 1)),
                1 => Ok(ToolOutput::failed(ToolErrorClass::Tool, "no luck")),
                _ => Err(ToolError::respond(ToolErrorClass::Tool, "broken")),
            }
        });
        let picture = FnTool::with_output("picture", "Draws.", |_: Number, _| async {
            let part = |media_type: &str, bytes: &[u8]| OutputPart {
                media_type: media_type.into(),
                bytes: bytes.into(),
            };
            Ok(ToolOutput {
                parts: vec![part("image/png", b"\x89PNG"), part("audio/wav", b"RIFF")],
                ..ToolOutput::new("done")
            })
        });
        let tools: [Arc<dyn Tool>; 3] = [Arc::new(delete.destructive()), Arc::new(counter), Arc::new(picture)];
        Self {
            ran,
            registry: Arc::new(ToolRegistry::new(tools.map(|t| ("g".to_owned(), t)))),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn run(&self) -> RunBuilder {
        Run::builder(self.folder.path())
    }

    async fn call(&self, name: &str, n: i64, run: &Run) -> FunctionCallOutput {
        let call = FunctionCall {
            id: "c".into(),
            name: name.into(),
            arguments: Arguments::from_value(Some(&json!({"n": n}))),
        };
        Dispatcher::new(self.registry.clone()).call(&call, run).await.output
    }

    fn ran(&self) -> usize {
        self.ran.load(Ordering::SeqCst)
    }
}

/// Says what it was made to say, and remembers what it was asked.
struct Person(Answer, Mutex<Vec<Question>>);

#[async_trait]
impl Interaction for Person {
    async fn ask(&self, question: &Question) -> Answer {
        self.1.lock().unwrap().push(question.clone());
        self.0.clone()
    }
}

fn person(answer: Answer) -> Arc<Person> {
    Arc::new(Person(answer, Mutex::default()))
}

#[tokio::test]
async fn what_may_destroy_something_runs_only_when_the_user_says_so() {
    let bench = Bench::new();
    // Nobody can be asked.
    let output = bench.call("delete", 1, &bench.run().build()).await;
    assert_eq!(output.error.as_deref(), Some("ToolError"));
    assert!(output.content.contains("needs the user's approval") && output.content.contains("did not run"));
    let no = person(Answer::No("that is my thesis".into()));
    let output = bench.call("delete", 1, &bench.run().interaction(no).build()).await;
    assert!(output.content.contains("that is my thesis"), "{}", output.content);
    assert_eq!(bench.ran(), 0);

    let yes = person(Answer::Yes);
    let run = bench.run().interaction(yes.clone()).build();
    assert_eq!(bench.call("delete", 7, &run).await.content, "7");
    assert_eq!(bench.call("counter", 0, &run).await.content, "1");
    let asked = yes.1.lock().unwrap().clone();
    assert!(
        matches!(&asked[..], [Question::Call(call)] if call.arguments.to_text() == r#"{"n":7}"#),
        "{asked:?}"
    );
    // Wrong arguments are answered before anybody is bothered.
    let call = FunctionCall {
        id: "c".into(),
        name: "delete".into(),
        arguments: Arguments::from_value(Some(&json!({"n": "many"}))),
    };
    Dispatcher::new(bench.registry.clone()).call(&call, &run).await;
    assert_eq!(yes.1.lock().unwrap().len(), 1);

    let never = bench.run().approval(ApprovalPolicy::all(Approve::Never)).build();
    bench.call("delete", 1, &never).await;
    assert_eq!(bench.ran(), 2);
    let always = bench.run().approval(ApprovalPolicy::all(Approve::Always)).build();
    assert!(bench.call("counter", 0, &always).await.content.contains("approval"));
    // What the user typed is approved by that.
    let call = FunctionCall {
        arguments: Arguments::from_value(Some(&json!({"n": 3}))),
        ..call
    };
    let (typed, run) = (Dispatcher::for_user(bench.registry.clone()), bench.run().build());
    assert_eq!(typed.call(&call, &run).await.output.content, "3");
}

#[tokio::test]
async fn waiting_for_the_user_ends_with_the_run() {
    struct Silent;
    #[async_trait]
    impl Interaction for Silent {
        async fn ask(&self, _: &Question) -> Answer {
            std::future::pending().await
        }
    }
    let bench = Bench::new();
    let run = bench.run().interaction(Arc::new(Silent)).build();
    let cancel = run.cancel().clone();
    let (output, ()) = tokio::join!(bench.call("delete", 1, &run), async move {
        tokio::task::yield_now().await;
        cancel.cancel();
    });
    assert_eq!(output.error.as_deref(), Some("Interrupted"));
    assert_eq!(bench.ran(), 0);
}

/// Decides by the number, and marks results.
struct Guard;

#[async_trait]
impl ToolHook for Guard {
    async fn before(&self, _: &FunctionCall, args: &Args, _: &ToolContext) -> Decision {
        match args["n"].as_i64() {
            Some(1) => Decision::Change(json!({"n": 10}).as_object().cloned().unwrap()),
            Some(2) => Decision::Refuse("Not twice.".into()),
            Some(3) => Decision::Answer(Box::new(ToolOutput::new("three"))),
            Some(4) => Decision::Change(json!({"n": "x"}).as_object().cloned().unwrap()),
            _ => Decision::Allow,
        }
    }

    async fn after(
        &self,
        call: &FunctionCall,
        result: Result<ToolOutput, ToolError>,
        _: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        result.map(|mut output| {
            output.notes.push(format!("seen: {}", call.name));
            output
        })
    }
}

#[tokio::test]
async fn hooks_allow_change_refuse_and_answer() {
    let bench = Bench::new();
    let never = ApprovalPolicy::all(Approve::Never);
    let run = bench.run().hook(Arc::new(Guard)).approval(never).build();
    let said = async |n| bench.call("delete", n, &run).await;
    assert_eq!(said(5).await.content, "5\n[note: seen: delete]");
    assert_eq!(said(1).await.content, "10\n[note: seen: delete]");
    assert_eq!(bench.ran(), 2);
    let refused = said(2).await;
    assert!(refused.error.is_some() && refused.content.contains("Not twice."));
    assert!(said(3).await.content.starts_with("three"));
    // Changed arguments are checked as any others.
    assert_eq!(said(4).await.error.as_deref(), Some("ToolArgumentError"));
    assert_eq!(bench.ran(), 2);
}

#[tokio::test]
async fn a_hook_s_change_is_what_the_user_is_asked_for() {
    let bench = Bench::new();
    let yes = person(Answer::Yes);
    let run = bench.run().hook(Arc::new(Guard)).interaction(yes.clone()).build();
    bench.call("delete", 1, &run).await;
    let asked = yes.1.lock().unwrap().clone();
    assert!(matches!(&asked[..], [Question::Call(call)] if call.arguments.to_text() == r#"{"n":10}"#));
}

struct Own;

#[async_trait]
impl Fallback for Own {
    async fn call(&self, call: &FunctionCall, _: &ToolContext) -> Option<Result<ToolOutput, ToolError>> {
        match call.name.as_str() {
            "mine" => Some(Ok(ToolOutput::new("from the caller"))),
            "panics" => panic!("oh"),
            _ => None,
        }
    }
}

#[tokio::test]
async fn the_caller_is_asked_for_tools_that_nobody_offered() {
    let bench = Bench::new();
    let run = bench.run().fallback(Arc::new(Own)).build();
    assert_eq!(bench.call("mine", 0, &run).await.content, "from the caller");
    assert!(
        bench
            .call("panics", 0, &run)
            .await
            .content
            .contains("it broke down: oh")
    );
    let unknown = bench.call("delet", 0, &run).await;
    assert!(unknown.content.contains("did you mean delete?"), "{}", unknown.content);
}

#[tokio::test]
async fn state_is_committed_when_a_tool_returns_and_dropped_when_it_fails() {
    let bench = Bench::new();
    let state = Arc::new(MemoryState::default());
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let run = bench
        .run()
        .state(state.clone())
        .events(Arc::new(move |e: &Event| sink.lock().unwrap().push(e.clone())))
        .build();
    let output = bench.call("counter", 0, &run).await;
    assert_eq!(Value::Object(output.state), json!({"counter": 1}));
    // A failure that is a result: what was written holds.
    let failed = bench.call("counter", 1, &run).await;
    assert_eq!(failed.error.as_deref(), Some("ToolError"));
    assert_eq!(state.values()["counter"], 2);
    let broken = bench.call("counter", 2, &run).await;
    assert!(broken.error.is_some() && broken.state.is_empty());
    assert_eq!(state.values()["counter"], 2);
    let events = events.lock().unwrap();
    let progress = |e: &Event| matches!(e, Event::Progress { id, part: Some(p), .. } if id == "c" && *p == 0.5);
    assert_eq!(events.iter().filter(|e| progress(e)).count(), 3);
}

#[tokio::test]
async fn pictures_are_kept_in_files_that_the_result_names() {
    let bench = Bench::new();
    let output = bench.call("picture", 0, &bench.run().build()).await;
    let [path] = &output.media[..] else {
        panic!("{:?}", output.media)
    };
    assert_eq!(std::fs::read(path).unwrap(), b"\x89PNG");
    assert!(
        output.content.starts_with("done\n[note: image/png, 4 bytes: "),
        "{}",
        output.content
    );
    assert!(output.content.contains("audio/wav, 4 bytes: "), "{}", output.content);
}
