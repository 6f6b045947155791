//! The library as its users see it.
#![allow(clippy::unwrap_used)]

mod replay;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use decanus::chat::strategy::{Settings, Strategy};
use decanus::chat::{Message, Role};
use decanus::{Ask, Decanus};
use decanus_testkit::{Reply, ScriptedServer};

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn endpoint(folder: &Path, server: &ScriptedServer) {
    let text = format!("backend: openai\nurl: {}\nmodel: m\nkey: k\n", server.url());
    std::fs::create_dir_all(folder.join("endpoints")).unwrap();
    std::fs::write(folder.join("endpoints/e.yaml"), text).unwrap();
}

/// Shows the model the last message alone.
struct LastOnly;

impl Strategy for LastOnly {
    fn name(&self) -> &str {
        "last_only"
    }

    fn apply<'a>(&self, messages: &'a [Message], _settings: &Settings) -> Cow<'a, [Message]> {
        Cow::Borrowed(&messages[messages.len().saturating_sub(1)..])
    }
}

#[tokio::test]
async fn a_strategy_of_ones_own_decides_what_the_model_sees() {
    let folder = project(&[(
        "a.chat",
        "option: prompt_strategies last_only\nuser: one\nassistant: two\noption: prompt_strategies last_only\n",
    )]);
    let server = ScriptedServer::start([Reply::chat_text("ok")]);
    endpoint(folder.path(), &server);
    let decanus = Decanus::open(folder.path()).unwrap().with_strategy(Arc::new(LastOnly));
    let chat = decanus.project.root.join("a.chat");
    let ask = Ask {
        chat: Some(chat.clone()),
        endpoint: Some("e".into()),
        ..Ask::question("three")
    };
    let mut session = decanus.prepare(ask).await.unwrap();
    let outcome = session.run(&decanus.run().build()).await;
    assert_eq!(outcome.answer, "ok");
    let sent = server.requests()[0].json()["messages"].clone();
    assert_eq!(sent, serde_json::json!([{"role": "user", "content": "three"}]));
    // What is stored is the whole.
    let text = std::fs::read_to_string(chat).unwrap();
    assert!(
        text.contains("one") && text.contains("two") && text.contains("three"),
        "{text}"
    );
}

#[tokio::test]
async fn a_chat_is_checked_without_doing_anything() {
    let folder = project(&[
        (
            "a.chat",
            "import: b.chat\ntool: calculator\noption: temperature 0.5\nuser: q\nusr: r\n",
        ),
        ("b.chat", "system: s\n"),
    ]);
    let decanus = Decanus::open(folder.path()).unwrap();
    let checked = decanus
        .check(&decanus.project.root.join("a.chat"), false)
        .await
        .unwrap();
    let roles: Vec<Role> = checked.messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::User]);
    assert_eq!(checked.tools, ["calculator"]);
    assert_eq!(checked.options["temperature"], 0.5);
    assert_eq!(checked.errors().count(), 0);
    assert_eq!(checked.warnings().map(|f| f.line).collect::<Vec<_>>(), [5]);
    assert!(decanus.check(Path::new("/nowhere/a.chat"), false).await.is_err());
}

#[tokio::test]
async fn a_program_of_ones_own_runs_background_calls_within_itself() {
    use decanus::tool::{Background, BackgroundTool, Dispatcher, FnTool, JobState, ToolError, ToolRegistry};

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Count {
        to: u32,
    }

    let folder = project(&[]);
    let decanus = Decanus::open(folder.path()).unwrap();
    let count = FnTool::new("count", "Adds up.", |args: Count, _| async move {
        tokio::task::yield_now().await;
        Ok::<_, ToolError>((1..=args.to).sum::<u32>())
    });
    let jobs = Arc::new(decanus.tool_jobs.clone());
    let tool = BackgroundTool::new(Arc::new(count), jobs.clone());
    let registry = ToolRegistry::new([("mine".to_owned(), Arc::new(tool) as Arc<dyn decanus::tool::Tool>)]);
    let call = decanus::chat::FunctionCall {
        id: "c".into(),
        name: "count".into(),
        arguments: decanus::chat::Arguments::from_text(r#"{"to": 4}"#),
    };
    let finished = Dispatcher::new(Arc::new(registry))
        .call(&call, &decanus.run().build())
        .await;
    let job = finished.pending.unwrap();
    assert_eq!(finished.output.error, None);
    assert_eq!(finished.output.job.as_deref(), job.path.to_str());
    let state = loop {
        match jobs.check(&job.id).await.unwrap() {
            JobState::Pending => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            state => break state,
        }
    };
    assert_eq!(state, JobState::Completed(10.into()));
}
