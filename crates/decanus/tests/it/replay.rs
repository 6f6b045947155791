//! Replaying a chat with tools of one's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use decanus::chat::Effect;
use decanus::prov::replay::{DifferenceKind, Outcome, Report};
use decanus::tool::{FnTool, SourceError, Tool, ToolContext, ToolSource};
use decanus::{Decanus, ReplayOptions};
use schemars::JsonSchema;
use serde::Deserialize;

use super::project;

/// A place that one tool comes from.
struct Own(Arc<dyn Tool>);

#[async_trait]
impl ToolSource for Own {
    fn scheme(&self) -> &str {
        "own"
    }

    async fn list(&self) -> Result<Vec<(String, Arc<dyn Tool>)>, SourceError> {
        Ok(vec![("own".into(), self.0.clone())])
    }

    async fn resolve(&self, spec: &str) -> Result<Option<Vec<(String, Arc<dyn Tool>)>>, SourceError> {
        let is_it = self.0.definition().name == spec;
        Ok(is_it.then(|| vec![("own".into(), self.0.clone())]))
    }

    async fn names(&self) -> Vec<String> {
        vec![self.0.definition().name.clone()]
    }
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A tool that counts in the session's state; the second counter is that of its calls.
fn counter(effect: Effect, volatile: bool) -> (Own, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let tool = FnTool::new("count", "", move |_: Nothing, cx: ToolContext| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let n = cx.state.get("n").and_then(|n| n.as_i64()).unwrap_or(0) + 1;
            cx.state.set("n", n)?;
            Ok(n)
        }
    });
    let tool = tool.effect(effect);
    let tool = if volatile { tool.volatile() } else { tool };
    (Own(Arc::new(tool)), calls)
}

/// Makes the calls of `count` again that left these states behind.
async fn replay(source: Own, states: &[i64], options: ReplayOptions) -> Report {
    let mut text = "tool: count\nuser: q\n".to_owned();
    for (n, state) in states.iter().enumerate() {
        text += &format!("function_call: {{\"name\":\"count\",\"arguments\":{{}},\"id\":\"c{n}\"}}\n");
        text += &format!(
            "function_call_output: {{\"name\":\"count\",\"content\":\"{state}\",\"id\":\"c{n}\",\"state\":{{\"n\":{state}}}}}\n"
        );
    }
    let folder = project(&[("a.chat", &text)]);
    let decanus = Decanus::open(folder.path()).unwrap().with_source(Arc::new(source));
    let report = decanus.replay(&folder.path().join("a.chat"), &options).await.unwrap();
    assert_eq!(std::fs::read_to_string(folder.path().join("a.chat")).unwrap(), text);
    report
}

fn differing(report: &Report) -> Vec<(&str, DifferenceKind)> {
    report.differences().map(|(c, d)| (c.id.as_str(), d.kind)).collect()
}

#[tokio::test]
async fn each_call_finds_the_state_that_was_recorded_before_it() {
    let (source, calls) = counter(Effect::Idempotent, false);
    let report = replay(source, &[1, 2, 3], ReplayOptions::default()).await;
    assert_eq!((differing(&report), calls.load(Ordering::SeqCst)), (vec![], 3));
    // One was changed: it differs, and those behind it follow the record.
    let (source, _) = counter(Effect::Idempotent, false);
    let report = replay(source, &[1, 7, 8], ReplayOptions::default()).await;
    assert_eq!(differing(&report), [("c1", DifferenceKind::Output)]);
}

#[tokio::test]
async fn what_a_tool_says_of_itself_decides() {
    let check = || ReplayOptions {
        check: true,
        ..ReplayOptions::default()
    };
    let all = || ReplayOptions {
        all: true,
        ..ReplayOptions::default()
    };
    let none = ReplayOptions::default;
    for (effect, volatile, options, called) in [
        (Effect::ReadOnly, false, check(), 1),
        (Effect::Idempotent, false, check(), 0),
        // What its own store holds nobody knows.
        (Effect::Job, false, check(), 0),
        (Effect::Job, false, none(), 1),
        (Effect::Unknown, false, none(), 0),
        (Effect::Unknown, false, all(), 1),
        (Effect::ReadOnly, true, none(), 0),
    ] {
        let (source, calls) = counter(effect, volatile);
        let report = replay(source, &[1], options).await;
        assert_eq!(calls.load(Ordering::SeqCst), called, "{effect:?} {volatile}");
        let recorded_only = matches!(report.calls[0].outcome, Outcome::RecordedOnly(_));
        assert_eq!(recorded_only, called == 0, "{:?}", report.calls[0]);
    }
    // Of one whose output is another each time, only whether it fails is compared.
    let (source, calls) = counter(Effect::ReadOnly, true);
    let report = replay(source, &[5], all()).await;
    assert_eq!((differing(&report), calls.load(Ordering::SeqCst)), (vec![], 1));
}
