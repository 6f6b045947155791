//! Carrying out what a chat asks for before its question: tasks, jobs, steps, introductions, commands.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_agent::AgentError;
use decanus_agent::media::{MAX_MEDIA, data_url_of, media_type};
use decanus_base::ErrorKind;
use decanus_base::process::{self, Ended, Spec};
use decanus_chat::plan::{Action, ActionKind, Insert, Item, Pair, Place, element, real_of};
use decanus_chat::{Arguments, FunctionCall, FunctionCallOutput, Message, Role};
use decanus_tool::dispatch::bound;
use decanus_tool::schema::prepare;
use decanus_tool::{Run, ToolOutput};
use decanus_workflow::{Job, JobStore, PathRules, RunOptions, StoredJob, Workflow, Workflows};
use futures::StreamExt;
use serde_json::{Map, Value};

use crate::error::Error;

/// Bytes that a command may write.
const MAX_COMMAND_OUTPUT: u64 = 10 << 20;
/// Characters of a command's standard error that an error shows.
const SHOWN: usize = 500;
/// Characters of a job's id in a call.
const ID_CHARS: usize = 40;

/// What carries out the actions of a chat.
#[derive(Clone)]
pub(crate) struct Actions {
    pub workflows: Workflows,
    pub jobs: JobStore,
    /// The folders and files that a chat's inputs may lead to.
    pub readable: Vec<PathBuf>,
}

/// What came of a chat's items.
pub(crate) struct Carried {
    /// The messages; where an action was left undone, the message that asks for it.
    pub messages: Vec<Message>,
    /// The actions that were left undone.
    pub undone: Vec<Action>,
    /// The actions that can never be carried out, and why.
    pub failed: Vec<(Place, Error)>,
}

impl Actions {
    /// The messages of a chat, its actions carried out: tasks side by side, as many as the run allows.
    ///
    /// # Errors
    /// The first action, in the order of the chat, that failed.
    pub async fn carry_out(&self, items: Vec<Item>, run: &Run) -> Result<Vec<Message>, AgentError> {
        let each = items.into_iter().map(|item| async {
            match item {
                Item::Message(message) => Ok(vec![message]),
                Item::Action(action) => self.one(&action, run).await.map_err(|e| at(&action.place, e)),
            }
        });
        let done: Vec<_> = futures::stream::iter(each)
            .buffered(run.limits().parallel_calls)
            .collect()
            .await;
        let mut messages = Vec::new();
        for result in done {
            messages.extend(result?);
        }
        Ok(messages)
    }

    /// The same as far as it is possible without running anything: results that are stored are taken.
    pub fn look_up(&self, items: Vec<Item>, run: &Run) -> Carried {
        let mut carried = Carried {
            messages: Vec::new(),
            undone: Vec::new(),
            failed: Vec::new(),
        };
        for item in items {
            let action = match item {
                Item::Message(message) => {
                    carried.messages.push(message);
                    continue;
                }
                Item::Action(action) => action,
            };
            let found = match &action.kind {
                ActionKind::Command { .. } => Ok(None),
                ActionKind::Task {
                    workflow,
                    task,
                    inputs,
                    insert,
                } => self
                    .job(workflow, task, inputs, &action.place)
                    .and_then(|(job, given)| {
                        let stored = self.jobs.done(&job);
                        stored.map(|s| result(&s, &given, *insert, run)).transpose()
                    }),
                _ => self.stored(&action, run).map(Some),
            };
            match found {
                Ok(Some(messages)) => carried.messages.extend(messages),
                Ok(None) => {
                    carried.messages.push(action.message.clone());
                    carried.undone.push(action);
                }
                Err(e) => carried.failed.push((action.place, e)),
            }
        }
        carried
    }

    async fn one(&self, action: &Action, run: &Run) -> Result<Vec<Message>, Error> {
        match &action.kind {
            ActionKind::Task {
                workflow,
                task,
                inputs,
                insert,
            } => self.task(workflow, task, inputs, *insert, &action.place, run).await,
            ActionKind::Command { argv } => {
                let (argv, dir, run) = (argv.clone(), action.place.source.dir.clone(), run.clone());
                let command = action.message.content.trim().to_owned();
                blocking(move || run_command(&argv, &command, &dir, &run)).await
            }
            _ => {
                let (actions, action, run) = (self.clone(), action.clone(), run.clone());
                blocking(move || actions.stored(&action, &run)).await
            }
        }
    }

    /// What is there already and has only to be read.
    fn stored(&self, action: &Action, run: &Run) -> Result<Vec<Message>, Error> {
        match &action.kind {
            ActionKind::Job { job, insert } => {
                let job = self.find(job, &action.place)?;
                let given = job.record.inputs.clone();
                result(&job, &given, *insert, run)
            }
            ActionKind::Media { from } => Ok(vec![media(action.message.role, from)?]),
            ActionKind::Step { task, job } => self.step(task, job, run),
            ActionKind::Introduce { workflow } => {
                let workflow = self.workflows.load(workflow)?;
                let text = format!("{}\n\n{}", workflow.title.trim(), workflow.description.trim());
                Ok(vec![Message::user(text.trim())])
            }
            ActionKind::Task { .. } | ActionKind::Command { .. } => Ok(Vec::new()),
        }
    }

    /// The job that a line stands for, and the inputs that it gives.
    fn job(
        &self,
        workflow: &str,
        task: &str,
        inputs: &[Pair],
        place: &Place,
    ) -> Result<(Arc<Job>, Map<String, Value>), Error> {
        let workflow: Arc<Workflow> = self.workflows.load(workflow)?;
        let definition = workflow.tool_definition(workflow.task(task)?);
        let mut given = Map::new();
        for pair in inputs {
            let Some((_, schema)) = definition.properties().find(|(name, _)| **name == pair.key) else {
                let known: Vec<&str> = definition.properties().map(|(name, _)| name.as_str()).collect();
                let guess = decanus_base::names::did_you_mean(&pair.key, known.iter().copied());
                return Err(Error::usage(format!("{task} has no input `{}`{guess}", pair.key)));
            };
            given.insert(pair.key.clone(), pair.value(schema));
        }
        let prepared = prepare(&Arguments::Object(given), &definition).map_err(|e| Error::usage(e.to_string()))?;
        let rules = PathRules::within(&place.source.dir, self.readable.clone());
        let job = workflow.job(task, &prepared.args, &rules, None)?;
        Ok((job, prepared.args.into_owned()))
    }

    async fn task(
        &self,
        workflow: &str,
        task: &str,
        inputs: &[Pair],
        insert: Insert,
        place: &Place,
        run: &Run,
    ) -> Result<Vec<Message>, Error> {
        let (this, place) = (self.clone(), place.clone());
        let (workflow, task, inputs) = (workflow.to_owned(), task.to_owned(), inputs.to_vec());
        let (job, given) = blocking(move || this.job(&workflow, &task, &inputs, &place)).await?;
        let watcher = run.clone();
        let options = RunOptions {
            cancel: run.cancel().clone(),
            events: Some(Arc::new(move |event| watcher.emit(event.clone()))),
            ..RunOptions::default()
        };
        let done = self.jobs.run(job, options).await?;
        let run = run.clone();
        blocking(move || result(&done.job, &given, insert, &run)).await
    }

    /// A job by the ways in which jobs are named; paths are relative to the chat.
    fn find(&self, job: &str, place: &Place) -> Result<StoredJob, Error> {
        let found = self.jobs.find(job, &place.source.dir)?;
        let real = real_of(&found.path);
        let mut places = self.readable.iter().map(PathBuf::as_path).chain([self.jobs.dir()]);
        if !places.any(|dir| real.starts_with(real_of(dir))) {
            return Err(Error::usage(format!(
                "the job `{job}` is outside the project and the allowed paths"
            )));
        }
        Ok(found)
    }

    /// The answer of a step: the job of that task among a job and all that it depends on.
    fn step(&self, task: &str, job: &str, run: &Run) -> Result<Vec<Message>, Error> {
        let mut open: VecDeque<PathBuf> = VecDeque::from([self.reference(job)]);
        let mut seen = Vec::new();
        while let Some(path) = open.pop_front() {
            if seen.contains(&path) {
                continue;
            }
            let Some(found) = self.jobs.read(path.clone()) else {
                if seen.is_empty() {
                    return Err(Error::usage(format!("the job `{job}` is not in the store")));
                }
                continue;
            };
            if found.record.task == task {
                let text = answer(&found, run)?;
                return Ok(vec![Message::assistant(text)]);
            }
            open.extend(found.record.dependencies.iter().map(|d| self.jobs.dir().join(d)));
            seen.push(path);
        }
        Err(Error::usage(format!("no step `{task}` belongs to the job `{job}`")))
    }

    /// The path of a job as a `meta` names it: absolute, or its last three parts.
    fn reference(&self, job: &str) -> PathBuf {
        let path = Path::new(job);
        let inside = path.is_absolute() && real_of(path).starts_with(real_of(self.jobs.dir()));
        if inside && path.exists() {
            return path.to_owned();
        }
        let parts: Vec<_> = path
            .components()
            .filter(|c| matches!(c, std::path::Component::Normal(_)))
            .collect();
        let last: PathBuf = parts[parts.len().saturating_sub(3)..].iter().collect();
        self.jobs.dir().join(last)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::new(ErrorKind::Internal, format!("a thread ended: {e}")))?
}

pub(crate) fn at(place: &Place, error: Error) -> AgentError {
    AgentError::Action {
        kind: error.kind,
        message: format!("{place}: {}", error.message),
        hints: error.hints,
    }
}

/// The messages that a result stands for.
fn result(job: &StoredJob, given: &Map<String, Value>, insert: Insert, run: &Run) -> Result<Vec<Message>, Error> {
    let value = job.value()?;
    let (text, truncated) = bound(ToolOutput::new(value).text(), &job.record.task, run);
    Ok(match insert {
        Insert::Text => vec![Message::user(text)],
        Insert::File => vec![Message::user(element::file(&job.path.display().to_string(), &text))],
        Insert::Pair => {
            let id = call_id(job);
            let call = FunctionCall {
                id: id.clone(),
                name: job.record.task.clone(),
                arguments: Arguments::Object(given.clone()),
            };
            let output = FunctionCallOutput {
                id,
                name: job.record.task.clone(),
                content: text,
                job: Some(job.path.display().to_string()),
                truncated,
                ..FunctionCallOutput::default()
            };
            vec![call.to_message(), output.to_message()]
        }
    })
}

/// Workflow, task and name, the first `Default_` left out, `/` as `-`, at most forty characters: the middle goes.
fn call_id(job: &StoredJob) -> String {
    let record = &job.record;
    let name = format!("{}_{}", record.name, record.digest);
    let name = name.strip_prefix("Default_").unwrap_or(&name);
    let id = format!("{}-{}-{name}", record.workflow, record.task).replace('/', "-");
    let characters: Vec<char> = id.chars().collect();
    if characters.len() <= ID_CHARS {
        return id;
    }
    let half = (ID_CHARS - 1) / 2;
    let (head, tail) = (
        &characters[..half],
        &characters[characters.len() - (ID_CHARS - 1 - half)..],
    );
    head.iter().chain(['_'].iter()).chain(tail).collect()
}

/// The last answer of a chat, or the text of any other result.
fn answer(job: &StoredJob, run: &Run) -> Result<String, Error> {
    let is_chat = job.path.extension().is_some_and(|e| e == "chat");
    if is_chat {
        let loaded = decanus_chat::ChatFile::read(&job.path)?;
        let answer = loaded.parsed.messages.into_iter().rfind(|m| m.role == Role::Assistant);
        return answer
            .map(|m| m.content)
            .ok_or_else(|| Error::usage(format!("{}: there is no answer in it", job.path.display())));
    }
    Ok(bound(ToolOutput::new(job.value()?).text(), &job.record.task, run).0)
}

/// A picture or document as a message that holds it, by what its first bytes say that it is.
fn media(role: Role, from: &str) -> Result<Message, Error> {
    if from.contains("://") {
        return Ok(Message::new(role, from));
    }
    let fail = |why: String| Error::new(ErrorKind::Config, format!("{from}: {why}"));
    let size = std::fs::metadata(from).map_err(|e| fail(e.to_string()))?.len();
    if size > MAX_MEDIA {
        let (size, most) = (
            decanus_base::units::show_size(size),
            decanus_base::units::show_size(MAX_MEDIA),
        );
        return Err(fail(format!("it is too large: {size}, and the limit is {most}")));
    }
    let bytes = std::fs::read(from).map_err(|e| fail(e.to_string()))?;
    let kind = media_type(&bytes).ok_or_else(|| fail("it is no PNG, JPEG, GIF, WebP or PDF file".into()))?;
    if (role == Role::Pdf) != (kind == "application/pdf") {
        return Err(fail(format!("it is {kind}, which `{role}` does not take")));
    }
    Ok(Message::new(role, data_url_of(from, kind, &bytes)))
}

/// Runs a command without a shell, in the chat's folder, within the time for tools, and shows what it wrote.
fn run_command(argv: &[String], command: &str, dir: &Path, run: &Run) -> Result<Vec<Message>, Error> {
    let internal = |e: std::io::Error| Error::new(ErrorKind::Internal, format!("cmd `{command}`: {e}"));
    let fail = |text: String| Error::new(ErrorKind::Tool, format!("cmd `{command}` {text}"));
    let (mut stdout, mut stderr) = (
        tempfile::tempfile().map_err(internal)?,
        tempfile::tempfile().map_err(internal)?,
    );
    let size = |file: &File| file.metadata().map_or(0, |m| m.len());
    let (out, err) = (
        stdout.try_clone().map_err(internal)?,
        stderr.try_clone().map_err(internal)?,
    );
    let too_much = || size(&out) + size(&err) > MAX_COMMAND_OUTPUT;
    // A program beside the chat is meant by `./program`, wherever decanus was started.
    let program = match argv.first() {
        Some(program) if program.contains('/') => dir.join(program).into_os_string(),
        other => other.cloned().unwrap_or_default().into(),
    };
    let spec = Spec {
        argv: std::iter::once(program)
            .chain(argv.iter().skip(1).map(Into::into))
            .collect(),
        dir: dir.to_owned(),
        env: Vec::new(),
        stdin: None,
        stdout: stdout.try_clone().map_err(internal)?,
        stderr: stderr.try_clone().map_err(internal)?,
        timeout: Some(run.limits().tool_time),
    };
    let ended = process::run(spec, &|| run.cancel().is_cancelled() || too_much(), &mut |_| {})
        .map_err(|e| fail(format!("can't be started: {e}")))?;
    let why = match ended {
        Ended::Cancelled if run.cancel().is_cancelled() => {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        _ if too_much() => {
            let most = decanus_base::units::show_size(MAX_COMMAND_OUTPUT);
            return Err(fail(format!("wrote more than {most}")));
        }
        Ended::Exit(0) => None,
        Ended::Exit(code) => Some(format!("ended with exit code {code}")),
        Ended::Signal(signal) => Some(format!("was ended by signal {signal}")),
        Ended::TimedOut | Ended::Cancelled => {
            let limit = decanus_base::units::show_duration(run.limits().tool_time);
            return Err(fail(format!("took longer than {limit}")));
        }
    };
    if let Some(why) = why {
        let said = text_of(&mut stderr).map_err(internal)?;
        let said = decanus_base::text::brief(said.trim(), SHOWN);
        return Err(fail(if said.is_empty() { why } else { format!("{why}: {said}") }));
    }
    let text = text_of(&mut stdout).map_err(internal)?;
    if text.contains('\0') {
        return Err(fail("wrote binary data".into()));
    }
    let text = text.strip_suffix('\n').unwrap_or(&text).to_owned();
    let (text, _) = bound(text, "cmd", run);
    Ok(vec![Message::user(element::command_output(command, &text))])
}

fn text_of(file: &mut File) -> std::io::Result<String> {
    use std::io::Seek;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
