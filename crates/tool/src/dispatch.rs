//! Calling tools: every call gets exactly one output, whatever happens.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use decanus_base::digest::sha256_hex;
use decanus_base::names::did_you_mean;
use decanus_base::text::brief;
use decanus_base::units::show_duration;
use decanus_chat::{Arguments, FunctionCall, FunctionCallOutput};
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::approval::approve;
use crate::background::PendingJob;
use crate::event::Event;
use crate::hook::Decision;
use crate::registry::{Entry, ToolRegistry};
use crate::run::Run;
use crate::tool::{ToolContext, ToolError, ToolErrorClass, ToolOutput};

/// Characters of a long result that stay at its beginning.
pub const KEPT_HEAD: usize = 6_000;
/// Characters of a long result that stay at its end.
pub const KEPT_TAIL: usize = 2_000;
/// Time that a cancelled tool has to clean up (end its processes) before it is dropped.
const CLEAN_UP: Duration = Duration::from_secs(4);

/// A call that has its output.
#[derive(Clone, Debug)]
pub struct Finished {
    /// What the model reads, and the record of the chat file.
    pub output: FunctionCallOutput,
    /// The result as a value, when the call succeeded.
    pub value: Option<Value>,
    /// The job that goes on after the call, when the output says no more than that.
    pub pending: Option<PendingJob>,
    /// What the machine-readable form shows beside the result.
    pub beside: Map<String, Value>,
    /// Set when the tool said that the run can't go on.
    pub fatal: Option<String>,
}

/// Calls the tools of a registry.
#[derive(Clone)]
pub struct Dispatcher {
    registry: Arc<ToolRegistry>,
    from_model: bool,
}

impl Dispatcher {
    /// A dispatcher for calls that a model makes.
    pub fn new(registry: Arc<ToolRegistry>) -> Self {
        Self {
            registry,
            from_model: true,
        }
    }

    /// A dispatcher for calls that the user typed: paths are the user's own.
    pub fn for_user(registry: Arc<ToolRegistry>) -> Self {
        Self {
            registry,
            from_model: false,
        }
    }

    /// Runs the calls of one answer, side by side as far as the run allows, and hands each output to `sink` as soon as
    /// it is there. Equal calls count as one when calling twice is the same as once. Cancelling the run ends all calls;
    /// each still gets its output.
    pub async fn dispatch(&self, calls: &[FunctionCall], run: &Run, sink: &mut (dyn FnMut(Finished) + Send)) {
        // Most answers hold one call, which needs no grouping and waits for no other.
        if let [call] = calls {
            sink(self.call(call, run).await);
            return;
        }
        let mut groups: Vec<Vec<&FunctionCall>> = Vec::new();
        let mut seen: HashMap<(String, String), usize> = HashMap::new();
        for call in calls {
            let repeatable = self
                .registry
                .get(&call.name)
                .is_some_and(|e| e.definition.effect.is_repeatable());
            let key = (call.name.clone(), call.arguments.to_text());
            match seen.get(&key) {
                Some(&at) if repeatable => groups[at].push(call),
                _ => {
                    seen.insert(key, groups.len());
                    groups.push(vec![call]);
                }
            }
        }
        let (alone, together): (Vec<_>, Vec<_>) = groups.into_iter().partition(|g| self.is_sequential(&g[0].name));
        let permits = Semaphore::new(run.limits().parallel_calls);
        let mut running: FuturesUnordered<_> = together
            .into_iter()
            .map(|group| {
                let permits = &permits;
                async move {
                    // The semaphore is never closed, so this only waits.
                    let _permit = permits.acquire().await;
                    (self.call(group[0], run).await, group)
                }
            })
            .collect();
        while let Some((finished, group)) = running.next().await {
            hand_out(finished, &group, run, sink);
        }
        for group in alone {
            let finished = self.call(group[0], run).await;
            hand_out(finished, &group, run, sink);
        }
    }

    fn is_sequential(&self, name: &str) -> bool {
        self.registry.get(name).is_some_and(|e| e.definition.sequential)
    }

    /// Runs one call.
    pub async fn call(&self, call: &FunctionCall, run: &Run) -> Finished {
        let start = now();
        run.emit_with(|| Event::Call(call.clone()));
        let result = self.attempt(call, run).await;
        let mut output = FunctionCallOutput {
            id: call.id.clone(),
            name: call.name.clone(),
            start_timestamp: Some(start),
            timestamp: Some(now()),
            ..FunctionCallOutput::default()
        };
        let mut fatal = None;
        let mut value = None;
        let mut pending = None;
        let mut beside = Map::new();
        match result {
            Ok((mut result, state)) => {
                output.media = keep(&mut result, &call.name, run);
                let (text, truncated) = bound(result.text(), &call.name, run);
                output.content = text;
                output.truncated = truncated;
                output.state = state;
                output.error = result.error.map(|class| class.as_str().to_owned());
                output.job = result.job.map(|j| j.path.to_string_lossy().into_owned());
                value = Some(result.value).filter(|_| result.error.is_none());
                pending = result.pending;
                beside = result.beside;
            }
            Err(ToolError::Respond { class, message, job }) => {
                output.content = bound(message, &call.name, run).0;
                output.error = Some(class.as_str().to_owned());
                output.job = job.map(|p| p.to_string_lossy().into_owned());
            }
            Err(ToolError::Fatal(message)) => {
                output.content.clone_from(&message);
                output.error = Some(ToolErrorClass::Tool.as_str().to_owned());
                fatal = Some(message);
            }
        }
        run.emit_with(|| Event::Output(output.clone()));
        Finished {
            output,
            value,
            pending,
            beside,
            fatal,
        }
    }

    /// The output of a call, and what it changed in the state.
    async fn attempt(&self, call: &FunctionCall, run: &Run) -> Result<(ToolOutput, Map<String, Value>), ToolError> {
        let cx = ToolContext {
            from_model: self.from_model,
            ..ToolContext::new(&call.id, run)
        };
        let mut result = self.decide(call, run, &cx).await;
        for hook in run.hooks() {
            result = hook.after(call, result, &cx).await;
        }
        let output = result?;
        // What is in the state now has been told to the model, or nothing is.
        Ok((output, cx.state.commit()?))
    }

    async fn decide(&self, call: &FunctionCall, run: &Run, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Some(entry) = self.registry.get(&call.name) else {
            if let Some(fallback) = run.fallback()
                && !run.cancel().is_cancelled()
                && let Some(result) = bounded_fallback(fallback.call(call, cx), call, run).await
            {
                return result;
            }
            let shown = brief(&call.name, 80);
            let guess = did_you_mean(&call.name, self.registry.names());
            let all: Vec<_> = self.registry.names().collect();
            let known = if all.is_empty() {
                "there are no tools here".into()
            } else {
                format!("tools: {}", all.join(", "))
            };
            return Err(ToolError::argument(format!("Unknown tool '{shown}'{guess} ({known})")));
        };
        if run.cancel().is_cancelled() {
            return Err(interrupted("it was not started"));
        }
        let prepared = entry.prepare(&call.arguments)?;
        let (mut args, mut notes) = (prepared.args, prepared.notes);
        for hook in run.hooks() {
            match hook.before(call, &args, cx).await {
                Decision::Allow => {}
                Decision::Change(other) => {
                    let other = Arguments::Object(other);
                    let changed = entry.prepare(&other)?;
                    args = Cow::Owned(changed.args.into_owned());
                    notes.extend(changed.notes);
                }
                Decision::Refuse(why) => {
                    let why = format!("This call was refused; it did not run. {why}");
                    return Err(ToolError::respond(ToolErrorClass::Tool, why.trim_end()));
                }
                Decision::Answer(output) => return Ok(*output),
            }
        }
        if self.from_model && entry.must_be_asked_for(run.approval(), &args) {
            let shown = FunctionCall {
                arguments: Arguments::Object(args.clone().into_owned()),
                ..call.clone()
            };
            tokio::select! {
                approved = approve(run.interaction(), &shown) => approved?,
                () = run.cancel().cancelled() => return Err(interrupted("it was not started")),
            }
        }
        let mut output = bounded(entry, args.into_owned(), cx, run).await?;
        output.notes.splice(0..0, notes);
        Ok(output)
    }
}

/// Runs a tool until it is done, its time is up or the run ends; then it may clean up for a moment.
async fn bounded(entry: &Entry, args: crate::Args, cx: &ToolContext, run: &Run) -> Result<ToolOutput, ToolError> {
    let limit = entry.definition.timeout.unwrap_or(run.limits().tool_time);
    let work = AssertUnwindSafe(entry.tool.call(args, cx)).catch_unwind();
    tokio::pin!(work);
    // The tool first: most are done at once, and then neither the clock nor the run has been asked to wake anybody.
    let stopped = tokio::select! {
        biased;
        result = &mut work => return unwound(result, &entry.definition.name),
        () = tokio::time::sleep(limit) => {
            let text = format!("the tool took longer than {} and was stopped", show_duration(limit));
            ToolError::respond(ToolErrorClass::Timeout, text)
        }
        () = run.cancel().cancelled() => interrupted("it was stopped before it was done"),
    };
    cx.cancel.cancel();
    match tokio::time::timeout(CLEAN_UP, &mut work).await {
        // It got done at the last moment: then that is the truth.
        Ok(Ok(Ok(output))) => Ok(output),
        Ok(Ok(Err(ToolError::Respond { job, .. }))) => match stopped {
            ToolError::Respond { class, message, .. } => Err(ToolError::Respond { class, message, job }),
            fatal => Err(fatal),
        },
        _ => Err(stopped),
    }
}

/// The caller's own way to answer a call, within the time of any tool; a panic in it is an error as anywhere.
async fn bounded_fallback(
    work: impl Future<Output = Option<Result<ToolOutput, ToolError>>>,
    call: &FunctionCall,
    run: &Run,
) -> Option<Result<ToolOutput, ToolError>> {
    let limit = run.limits().tool_time;
    tokio::select! {
        result = AssertUnwindSafe(work).catch_unwind() => match result {
            Ok(None) => None,
            Ok(Some(result)) => Some(unwound(Ok(result), &call.name)),
            Err(panic) => Some(unwound(Err(panic), &call.name)),
        },
        () = tokio::time::sleep(limit) => {
            let text = format!("the tool took longer than {} and was stopped", show_duration(limit));
            Some(Err(ToolError::respond(ToolErrorClass::Timeout, text)))
        }
        () = run.cancel().cancelled() => Some(Err(interrupted("it was stopped before it was done"))),
    }
}

fn unwound(
    result: Result<Result<ToolOutput, ToolError>, Box<dyn std::any::Any + Send>>,
    name: &str,
) -> Result<ToolOutput, ToolError> {
    let named = |message: String| format!("Tool '{name}' execution error: {message}");
    let raised = |e: ToolError| match e {
        ToolError::Respond { class, message, job } => ToolError::Respond {
            class,
            message: named(message),
            job,
        },
        fatal => fatal,
    };
    result.map(|returned| returned.map_err(raised)).unwrap_or_else(|panic| {
        let words = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".into());
        Err(ToolError::respond(
            ToolErrorClass::Tool,
            named(format!("it broke down: {words}")),
        ))
    })
}

/// The error of a call that the end of the run cut short.
pub fn interrupted(what: &str) -> ToolError {
    ToolError::respond(ToolErrorClass::Interrupted, format!("interrupted; {what}"))
}

/// Gives the result of the first call of a group to all of them.
fn hand_out(finished: Finished, group: &[&FunctionCall], run: &Run, sink: &mut (dyn FnMut(Finished) + Send)) {
    for (i, call) in group.iter().enumerate() {
        let mut copy = finished.clone();
        copy.output.id.clone_from(&call.id);
        if i > 0 {
            run.emit_with(|| Event::Call((*call).clone()));
            run.emit_with(|| Event::Output(copy.output.clone()));
        }
        sink(copy);
    }
}

/// Writes the pictures and documents of a result to files, which the result's notes name. The files.
fn keep(output: &mut ToolOutput, name: &str, run: &Run) -> Vec<String> {
    let mut paths = Vec::new();
    for part in std::mem::take(&mut output.parts) {
        let ending = match part.media_type.split(';').next().unwrap_or_default().trim() {
            "image/png" => "png",
            "image/jpeg" => "jpg",
            "image/gif" => "gif",
            "image/webp" => "webp",
            "application/pdf" => "pdf",
            _ => "bin",
        };
        let digest = &sha256_hex(&part.bytes)[..12];
        let path = run.spill_dir().join(format!("{}-{digest}.{ending}", file_name(name)));
        let (kind, size) = (&part.media_type, part.bytes.len());
        match decanus_base::files::write_atomic(&path, &part.bytes) {
            Ok(()) => {
                let path = path.to_string_lossy().into_owned();
                output.notes.push(format!("{kind}, {size} bytes: {path}"));
                if ending != "bin" {
                    paths.push(path);
                }
            }
            Err(e) => output
                .notes
                .push(format!("{kind}, {size} bytes, could not be kept: {e}")),
        }
    }
    paths
}

/// A tool's name as the beginning of a file's.
fn file_name(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
        .take(40)
        .collect()
}

/// A text that is within the limit for results, or its ends with what stands between them in a file; and whether it was
/// cut. `name` begins the file's name.
pub fn bound(text: String, name: &str, run: &Run) -> (String, bool) {
    let limit = run.limits().result_chars;
    // Bytes are never fewer than characters, so most texts need no counting.
    if text.len() <= limit {
        return (text, false);
    }
    let count = text.chars().count();
    if count <= limit {
        return (text, false);
    }
    let digest = &sha256_hex(text.as_bytes())[..12];
    let path = run.spill_dir().join(format!("{}-{digest}.txt", file_name(name)));
    let place = match decanus_base::files::write_atomic(&path, text.as_bytes()) {
        Ok(()) => format!("the whole is in {}", path.display()),
        Err(e) => format!("the whole could not be kept: {e}"),
    };
    let (head, tail) = if KEPT_HEAD + KEPT_TAIL < limit {
        (KEPT_HEAD, KEPT_TAIL)
    } else {
        (limit * 3 / 4, limit / 4)
    };
    let head: String = text.chars().take(head).collect();
    let tail: String = text.chars().skip(count - tail).collect();
    (
        format!("{head}\n[… the result has {count} characters, SHA-256 {digest}; {place} …]\n{tail}"),
        true,
    )
}

/// The time of a record: UTC, RFC 3339 with milliseconds.
fn now() -> String {
    decanus_chat::timestamp()
}

/// Notices when a model makes the same calls again and again.
#[derive(Debug, Default)]
pub struct Repetition {
    last: Vec<(String, Arguments)>,
    count: u32,
}

impl Repetition {
    /// Counts the calls of one answer; gives how often in a row exactly these calls were made, this time included.
    /// Equal calls within the answer count as one, and their order does not matter.
    pub fn count(&mut self, calls: &[FunctionCall]) -> u32 {
        let mut batch: Vec<(String, Arguments)> = Vec::new();
        for call in calls {
            let key = (call.name.clone(), call.arguments.clone());
            if !batch.contains(&key) {
                batch.push(key);
            }
        }
        let same = batch.len() == self.last.len() && batch.iter().all(|c| self.last.contains(c));
        self.count = if same && !batch.is_empty() { self.count + 1 } else { 1 };
        self.last = batch;
        self.count
    }

    /// The output of a call that is not made once more.
    pub fn notice(call: &FunctionCall, count: u32) -> FunctionCallOutput {
        FunctionCallOutput {
            id: call.id.clone(),
            name: call.name.clone(),
            content: format!(
                "This call was not run: it is the same as the last {} calls. Use the results above, or do something else.",
                count - 1
            ),
            error: Some("RepeatedCall".into()),
            timestamp: Some(now()),
            ..FunctionCallOutput::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fn_tool::FnTool;
    use crate::run::Limits;
    use crate::tool::Tool;
    use decanus_chat::Effect;
    use schemars::JsonSchema;
    use serde::Deserialize;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    #[derive(Deserialize, JsonSchema)]
    struct Work {
        ms: Option<u64>,
        size: Option<usize>,
    }

    struct Bench {
        dispatcher: Dispatcher,
        running: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
        total: Arc<AtomicUsize>,
    }

    fn bench(effect: Effect) -> Bench {
        let [running, most, total] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let (r, m, t) = (running.clone(), most.clone(), total.clone());
        let work = FnTool::new("work", "", move |args: Work, _| {
            let (r, m, t) = (r.clone(), m.clone(), t.clone());
            async move {
                t.fetch_add(1, Ordering::SeqCst);
                m.fetch_max(r.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(args.ms.unwrap_or(0))).await;
                r.fetch_sub(1, Ordering::SeqCst);
                Ok("x".repeat(args.size.unwrap_or(1)))
            }
        });
        let explode = FnTool::new("explode", "", |_: Work, _| async {
            #[allow(unreachable_code)]
            Ok::<(), ToolError>(panic!("no such luck"))
        });
        let fatal = FnTool::new("fatal", "", |_: Work, _| async {
            Err::<(), _>(ToolError::Fatal("over".into()))
        });
        let tools: [Arc<dyn Tool>; 3] = [Arc::new(work.effect(effect)), Arc::new(explode), Arc::new(fatal)];
        let registry = ToolRegistry::new(tools.map(|t| ("g".to_owned(), t)));
        Bench {
            dispatcher: Dispatcher::new(Arc::new(registry)),
            running,
            most,
            total,
        }
    }

    fn call(id: &str, name: &str, args: Value) -> FunctionCall {
        FunctionCall {
            id: id.into(),
            name: name.into(),
            arguments: Arguments::from_value(Some(&args)),
        }
    }

    async fn outputs(bench: &Bench, calls: &[FunctionCall], run: &Run) -> Vec<Finished> {
        let mut all = Vec::new();
        bench.dispatcher.dispatch(calls, run, &mut |f| all.push(f)).await;
        all
    }

    fn run(limits: Limits) -> (Run, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        (Run::builder(dir.path().join("spill")).limits(limits).build(), dir)
    }

    #[tokio::test]
    async fn every_call_gets_one_output_whatever_happens() {
        let bench = bench(Effect::ReadOnly);
        let (run, _dir) = run(Limits {
            tool_time: Duration::from_millis(80),
            ..Limits::default()
        });
        let calls = [
            call("ok", "work", json!({})),
            call("unknown", "wrok", json!({})),
            call("json", "work", json!("{\"ms\": ")),
            call("panic", "explode", json!({})),
            call("slow", "work", json!({"ms": 60_000})),
            call("fatal", "fatal", json!({})),
        ];
        let all = outputs(&bench, &calls, &run).await;
        let get = |id: &str| all.iter().find(|f| f.output.id == id).unwrap();
        assert_eq!(all.len(), calls.len());
        assert_eq!(get("ok").output.content, "x");
        assert!(get("unknown").output.content.contains("did you mean work?"));
        assert_eq!(get("unknown").output.error.as_deref(), Some("ToolArgumentError"));
        assert!(get("json").output.content.contains("not valid JSON"));
        assert!(get("panic").output.content.contains("no such luck"));
        assert_eq!(get("slow").output.error.as_deref(), Some("ToolTimeoutError"));
        assert_eq!(get("fatal").fatal.as_deref(), Some("over"));
    }

    #[tokio::test]
    async fn equal_calls_run_once_when_that_is_the_same() {
        for (effect, runs) in [(Effect::ReadOnly, 1), (Effect::Job, 1), (Effect::Unknown, 3)] {
            let bench = bench(effect);
            let (run, _dir) = run(Limits::default());
            let calls = ["a", "b", "c"].map(|id| call(id, "work", json!({"ms": 1})));
            assert_eq!(outputs(&bench, &calls, &run).await.len(), 3);
            assert_eq!(bench.total.load(Ordering::SeqCst), runs, "{effect:?}");
        }
    }

    #[tokio::test]
    async fn calls_run_side_by_side_but_not_more_than_allowed() {
        let bench = bench(Effect::Unknown);
        let (run, _dir) = run(Limits {
            parallel_calls: 3,
            ..Limits::default()
        });
        let calls: Vec<_> = (0..9)
            .map(|i| call(&i.to_string(), "work", json!({"ms": 40})))
            .collect();
        outputs(&bench, &calls, &run).await;
        assert_eq!(bench.most.load(Ordering::SeqCst), 3);
        assert_eq!(bench.running.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn cancelling_the_run_answers_all_calls_at_once() {
        let bench = bench(Effect::Unknown);
        let (run, _dir) = run(Limits {
            parallel_calls: 1,
            ..Limits::default()
        });
        let calls: Vec<_> = (0..3)
            .map(|i| call(&i.to_string(), "work", json!({"ms": 60_000})))
            .collect();
        let token = run.cancel().clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(30)).await;
            token.cancel();
        });
        let start = Instant::now();
        let all = outputs(&bench, &calls, &run).await;
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|f| f.output.error.as_deref() == Some("Interrupted")));
        assert!(all.iter().any(|f| f.output.content.contains("not started")));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn a_long_result_goes_to_a_file() {
        let bench = bench(Effect::ReadOnly);
        let (run, _dir) = run(Limits::default());
        let exact = outputs(&bench, &[call("a", "work", json!({"size": 100_000}))], &run).await;
        assert!(!exact[0].output.truncated);
        let long = &outputs(&bench, &[call("a", "work", json!({"size": 100_001}))], &run).await[0].output;
        assert!(long.truncated && long.error.is_none());
        assert!(long.content.len() < 9_000 && long.content.contains("100001 characters"));
        let file = std::fs::read_dir(run.spill_dir())
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        assert!(long.content.contains(&*file.to_string_lossy()));
        assert_eq!(std::fs::read(file).unwrap().len(), 100_001);
    }

    #[test]
    fn repetition_looks_at_whole_answers() {
        let mut repetition = Repetition::default();
        let a = call("1", "f", json!({"x": 1}));
        let b = call("2", "g", json!({}));
        assert_eq!(repetition.count(std::slice::from_ref(&a)), 1);
        assert_eq!(repetition.count(&[a.clone(), a.clone()]), 2);
        assert_eq!(repetition.count(&[a.clone(), b.clone()]), 1);
        assert_eq!(repetition.count(&[b, a]), 2);
    }
}
