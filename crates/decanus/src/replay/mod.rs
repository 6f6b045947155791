//! Making the calls of a chat again, without a model, and comparing their outputs with those in the chat.

mod find;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use decanus_base::ErrorKind;
use decanus_chat::plan::Severity;
use decanus_chat::{ChatFile, Effect, FunctionCallOutput, plan};
use decanus_prov::replay::{Difference, DifferenceKind, Moved, Outcome, Replayed, Report, compare};
use decanus_prov::replay::{is_refused, not_repeatable};
use decanus_prov::{Kind, Problem, ToolPair, Tracer, tool_pairs};
use decanus_tool::registry::Entry;
use decanus_tool::run::Limits;
use decanus_tool::{ApprovalPolicy, Dispatcher, EventSink, Interaction, Run, ToolRegistry, ToolSource};
use decanus_workflow::{Job, JobStore, PathPolicy, WorkflowSource};
use tokio_util::sync::CancellationToken;

use crate::Decanus;
use crate::ask::{declared_by, permissions};
use crate::error::Error;
use crate::options::Options;

/// How long a job may take when nothing else bounds it: it was not a model that waited for it.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// How to make the calls of a chat again.
#[derive(Clone, Default)]
pub struct ReplayOptions {
    /// Run nothing: jobs answer only from the store, and of other tools only those are called that look at what is here.
    pub check: bool,
    /// Run jobs anew, with all they depend on, in a store of their own that is removed at the end.
    pub fresh: bool,
    /// Also make calls that may change or send something, and those whose output is another one each time.
    pub all: bool,
    /// Tools that the chat was asked with and does not declare itself.
    pub tools: Vec<String>,
    /// How long a job may take; without it only its own limit holds.
    pub job_time: Option<Duration>,
    /// Which calls somebody is asked for; without it what the project says.
    pub approval: Option<ApprovalPolicy>,
    /// Who is asked.
    pub interaction: Option<Arc<dyn Interaction>>,
    /// Who is told of jobs that are run.
    pub events: Option<EventSink>,
    /// Ends it.
    pub cancel: CancellationToken,
}

/// What the calls of one chat are made with.
struct Replayer<'a> {
    decanus: &'a Decanus,
    options: &'a ReplayOptions,
    /// Where tools come from: with `fresh`, workflows come with a store of their own.
    sources: Vec<Arc<dyn ToolSource>>,
    /// The folder of that store.
    scratch: Option<PathBuf>,
    registry: Arc<ToolRegistry>,
    /// Jobs have all the time they need, other tools have what they always have.
    jobs_run: Run,
    run: Run,
    /// Declarations of tools that could not be found: the name of the one tool that each is of, if it is of one, and what is
    /// wrong.
    undeclared: Vec<(Option<String>, String)>,
}

impl Decanus {
    /// Makes the recorded calls of a chat again, and of the chats of agents that were asked in it, and compares the
    /// outputs. Calls that only look, that may be made twice or that stored jobs answer are made; [`ReplayOptions`] says
    /// more. No model is asked, and no chat is changed.
    ///
    /// # Errors
    /// When the chat can't be read, a tool of the options is not found, or the replay was cancelled. What differs is in
    /// the report.
    pub async fn replay(&self, chat: &Path, options: &ReplayOptions) -> Result<Report, Error> {
        // Where the chats of agents are is what provenance finds out.
        let tracer = Tracer::new(self.jobs.clone(), &self.project.root).with_workflows(self.workflows.clone());
        let path = chat.to_owned();
        let graph = tokio::task::spawn_blocking(move || tracer.chat(&path))
            .await
            .map_err(|e| Error::new(ErrorKind::Internal, format!("a thread ended: {e}")))??;
        let chats = graph
            .nodes
            .iter()
            .filter(|n| n.kind == Kind::Chat && n.status.is_none());
        let chats: Vec<PathBuf> = chats.map(|n| n.path.clone()).collect();
        let mut report = Report {
            problems: graph.problems.into_iter().filter(|p| chats.contains(&p.file)).collect(),
            ..Report::default()
        };
        let scratch = match options.fresh {
            true => Some(scratch_folder(&self.project.data())?),
            false => None,
        };
        for (n, path) in chats.into_iter().enumerate() {
            self.replay_chat(&path, n == 0, options, scratch.as_ref().map(|s| s.path()), &mut report)
                .await?;
            report.chats.push(path);
        }
        if let Some(scratch) = scratch {
            let parent = scratch.path().parent().map(Path::to_owned);
            // It is a folder of ours, and what can't be removed does no harm.
            let _ = scratch.close();
            let _ = parent.map(std::fs::remove_dir);
        }
        Ok(report)
    }

    async fn replay_chat(
        &self,
        path: &Path,
        is_root: bool,
        options: &ReplayOptions,
        scratch: Option<&Path>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let parsed = ChatFile::read(path)?.parsed;
        let (pairs, _) = tool_pairs(&parsed.messages);
        let lines: Vec<usize> = pairs
            .iter()
            .map(|p| parsed.messages[p.index].line.unwrap_or(0))
            .collect();
        let lookup = decanus_chat::Lookup {
            // What an agent wrote grants nothing.
            named_by_user: is_root,
            ..self.lookup(Some(path), false)
        };
        let plan = plan(parsed, Some(path), &lookup);
        for finding in plan.findings.iter().filter(|f| f.severity == Severity::Error) {
            report.problems.push(Problem {
                file: finding.file.clone().unwrap_or_else(|| path.to_owned()),
                line: Some(finding.line).filter(|l| *l > 0),
                message: finding.message.clone(),
            });
        }
        let sources = self.sources_over(scratch);
        let mut offers = Vec::new();
        let mut undeclared = Vec::new();
        for tool in &plan.tools {
            match declared_by(&sources, tool).await {
                Ok(found) => offers.extend(found),
                Err((_, error)) => undeclared.push((tool.task.clone(), format!("{}: {error}", tool.place))),
            }
        }
        for spec in options.tools.iter().filter(|_| is_root) {
            offers.extend(ToolRegistry::find(&sources, spec).await?);
        }
        self.offer_check(&mut offers).await?;
        let mut chosen = Options::default();
        chosen.take(&plan.options);
        let mut limits = Limits::from_settings(&self.settings.limits);
        // A limit that is wrong was reported with the chat's options already.
        let _ = chosen.apply_limits(&mut limits);
        // Records of long outputs have their fingerprint: nothing is cut here, and no file is written for it.
        limits.result_chars = usize::MAX;
        let build = |limits: Limits| {
            let mut run = self
                .run()
                .limits(limits)
                .permissions(permissions(&plan))
                .cancel(options.cancel.clone());
            if let Some(policy) = &options.approval {
                run = run.approval(policy.clone());
            }
            if let Some(interaction) = &options.interaction {
                run = run.interaction(interaction.clone());
            }
            if let Some(events) = &options.events {
                run = run.events(events.clone());
            }
            run
        };
        let state = Arc::new(decanus_tool::MemoryState::default());
        let jobs_limits = Limits {
            tool_time: options.job_time.unwrap_or(NO_LIMIT),
            ..limits.clone()
        };
        let replayer = Replayer {
            decanus: self,
            options,
            sources,
            scratch: scratch.map(Path::to_owned),
            registry: Arc::new(ToolRegistry::new(offers)),
            jobs_run: build(jobs_limits).state(state.clone()).build(),
            run: build(limits).state(state).build(),
            undeclared,
        };
        for (pair, line) in pairs.iter().zip(lines) {
            let replayed = replayer.replay(path, line, pair).await?;
            report.calls.push(replayed);
        }
        Ok(())
    }

    /// The project's sources of tools; with a folder, jobs are kept in it.
    fn sources_over(&self, scratch: Option<&Path>) -> Vec<Arc<dyn ToolSource>> {
        let Some(scratch) = scratch else {
            return self.sources().to_vec();
        };
        let paths = PathPolicy::of(&self.project, self.settings.allowed_paths(&self.project.root));
        let fresh = WorkflowSource::new(self.workflows.clone(), JobStore::new(scratch), paths);
        let fresh: Arc<dyn ToolSource> = Arc::new(fresh);
        let sources = self.sources().iter();
        sources
            .map(|source| match source.scheme() == fresh.scheme() {
                true => fresh.clone(),
                false => source.clone(),
            })
            .collect()
    }
}

/// A folder that is gone when it is dropped, beside the project's jobs, so that what may be read there may be read here.
fn scratch_folder(data: &Path) -> Result<tempfile::TempDir, Error> {
    let parent = data.join("replay");
    std::fs::create_dir_all(&parent)
        .and_then(|()| tempfile::Builder::new().prefix("jobs-").tempdir_in(&parent))
        .map_err(|e| Error::new(ErrorKind::Internal, format!("{}: {e}", parent.display())))
}

impl Replayer<'_> {
    async fn replay(&self, file: &Path, line: usize, pair: &ToolPair) -> Result<Replayed, Error> {
        let recorded_job = pair.output.as_ref().and_then(|o| o.job.clone());
        let mut replayed = Replayed {
            file: file.to_owned(),
            line,
            id: pair.call.id.clone(),
            tool: pair.call.name.clone(),
            outcome: Outcome::Same,
            recorded_job,
            job: None,
            note: None,
        };
        let Some(recorded) = pair.output.as_ref().filter(|_| not_repeatable(pair).is_none()) else {
            let why = not_repeatable(pair).unwrap_or_default();
            replayed.outcome = Outcome::RecordedOnly(why.into());
            return Ok(replayed);
        };
        let registry = match self.registry_with(pair, recorded).await {
            Ok(Some(registry)) => registry,
            // It was no tool then, and is none now.
            Ok(None) => return Ok(replayed),
            Err(difference) => {
                replayed.outcome = Outcome::Differs(difference);
                return Ok(replayed);
            }
        };
        let Some(entry) = registry.get(&pair.call.name) else {
            replayed.outcome = Outcome::Differs(Difference::new(
                DifferenceKind::MissingTool,
                format!("there is no tool `{}`", pair.call.name),
            ));
            return Ok(replayed);
        };
        if let Some(outcome) = self.not_made(entry, pair, recorded).await {
            replayed.outcome = outcome;
        } else {
            self.make(&registry, entry, pair, recorded, &mut replayed).await?;
        }
        // The calls behind it were made in the state that it left then.
        if !recorded.state.is_empty()
            && let Err(why) = self.run.state().apply(&recorded.state)
        {
            replayed.note = Some(format!("the recorded state was not set: {why}"));
        }
        Ok(replayed)
    }

    /// Why a call is not made again; `None` when it is to be made.
    async fn not_made(&self, entry: &Entry, pair: &ToolPair, recorded: &FunctionCallOutput) -> Option<Outcome> {
        let definition = &entry.definition;
        let only = |why: &str| Some(Outcome::RecordedOnly(why.into()));
        if self.options.all {
            return None;
        }
        if definition.volatile {
            return only("its output is another one each time");
        }
        match definition.effect {
            Effect::Unknown => only("it may change something; --all makes it again"),
            Effect::Job if self.options.check => self.unless_stored(entry, pair, recorded).await,
            Effect::Idempotent if self.options.check => only("--check runs nothing"),
            Effect::ReadOnly if self.options.check && definition.open_world => {
                only("it asks the network; --check does not")
            }
            _ => None,
        }
    }

    /// Nothing when a stored job answers a call, or when it can't even be a job; otherwise what can be said of it.
    async fn unless_stored(&self, entry: &Entry, pair: &ToolPair, recorded: &FunctionCallOutput) -> Option<Outcome> {
        if !self.decanus.workflows.has(&entry.group) {
            let why = "what it has stored is known to its tool alone; --check runs nothing";
            return Some(Outcome::RecordedOnly(why.into()));
        }
        let job = self.job(entry, pair).await.ok()?;
        if self.decanus.jobs.done(&job).is_some() {
            return None;
        }
        let now = job.relative_path();
        let then = recorded.job.as_deref().and_then(last_three);
        Some(match then {
            Some(then) if then != now => Outcome::Differs(Difference::new(
                DifferenceKind::Job,
                format!(
                    "it stands for another job now, which is not stored ({}, was {}): the task, its inputs or what it \
                     depends on have changed",
                    now.display(),
                    then.display()
                ),
            )),
            _ => Outcome::RecordedOnly("its job has no stored result that holds; --check runs nothing".into()),
        })
    }

    /// The job that a call of a task stands for.
    async fn job(&self, entry: &Entry, pair: &ToolPair) -> Result<Arc<Job>, Error> {
        let prepared = entry
            .prepare(&pair.call.arguments)
            .map_err(|e| Error::usage(e.to_string()))?;
        let mut args = prepared.args.into_owned();
        let workflow = self.decanus.workflows.load(&entry.group)?;
        let task = entry.tool.definition().name.clone();
        // What says how the call is made is no input of the job.
        let definition = workflow.tool_definition(workflow.task(&task)?);
        let name = args
            .get("jobname")
            .and_then(serde_json::Value::as_str)
            .map(str::to_owned);
        let name = name.filter(|_| !definition.properties().any(|(n, _)| n == "jobname"));
        args.retain(|name, _| definition.properties().any(|(n, _)| n == name));
        let (project, settings) = (&self.decanus.project, &self.decanus.settings);
        let policy = PathPolicy::of(project, settings.allowed_paths(&project.root));
        let rules = policy.rules(true, self.run.permissions());
        let made = tokio::task::spawn_blocking(move || workflow.job(&task, &args, &rules, name.as_deref())).await;
        let made = made.map_err(|e| Error::new(ErrorKind::Internal, format!("a thread ended: {e}")))?;
        Ok(made?)
    }

    async fn make(
        &self,
        registry: &Arc<ToolRegistry>,
        entry: &Entry,
        pair: &ToolPair,
        recorded: &FunctionCallOutput,
        replayed: &mut Replayed,
    ) -> Result<(), Error> {
        let run = match entry.definition.effect {
            Effect::Job => &self.jobs_run,
            _ => &self.run,
        };
        let finished = Dispatcher::new(registry.clone()).call(&pair.call, run).await;
        if run.cancel().is_cancelled() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        let now = finished.output;
        if let Some(class) = &now.error
            && is_refused(class, &now.content)
        {
            replayed.outcome = Outcome::RecordedOnly("it was not approved".into());
            return Ok(());
        }
        let mut moved = Moved::default();
        if let Some(scratch) = &self.scratch {
            moved.now(scratch.to_string_lossy(), self.decanus.jobs.dir().to_string_lossy());
        }
        if let Some(job) = &now.job {
            let job = match self.scratch.as_ref().and_then(|s| Path::new(job).strip_prefix(s).ok()) {
                Some(within) => self.decanus.jobs.dir().join(within),
                None => PathBuf::from(job),
            };
            if let Some(then) = recorded.job.as_deref() {
                project_moved(then, &job, &mut moved);
                replayed.note = another_job(then, &job);
            }
            replayed.job = Some(job);
        }
        replayed.outcome = match compare(recorded, &now, &moved) {
            // Only that it fails says something then.
            Some(difference) if entry.definition.volatile && difference.kind != DifferenceKind::Error => Outcome::Same,
            Some(difference) => Outcome::Differs(difference),
            None => Outcome::Same,
        };
        Ok(())
    }
}

/// `WORKFLOW/TASK/FILE` at the end of a job's path.
fn last_three(path: &str) -> Option<PathBuf> {
    let parts: Vec<_> = Path::new(path).components().collect();
    let last = parts.get(parts.len().checked_sub(3)?..)?;
    let plain = last.iter().all(|c| matches!(c, std::path::Component::Normal(_)));
    plain.then(|| last.iter().collect())
}

/// When jobs are in another folder now, so is what else is recorded of the project: what both folders have at their ends is
/// the way within it.
fn project_moved(then: &str, now: &Path, moved: &mut Moved) {
    let folder = |path: &Path| path.ancestors().nth(3).map(Path::to_owned).unwrap_or_default();
    let (mut old, mut new) = (folder(Path::new(then)), folder(now));
    if old == new || !old.is_absolute() {
        return;
    }
    while old.file_name().is_some() && old.file_name() == new.file_name() {
        old.pop();
        new.pop();
    }
    if old.file_name().is_some() {
        moved.recorded(format!("{}/", old.display()), format!("{}/", new.display()));
    }
}

/// What to say when the same call stands for another job than it did.
fn another_job(then: &str, now: &Path) -> Option<String> {
    let (then, now) = (last_three(then)?, last_three(&now.to_string_lossy())?);
    (then != now).then(|| format!("by another job: {}, was {}", now.display(), then.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(content: &str) -> FunctionCallOutput {
        FunctionCallOutput {
            content: content.into(),
            ..FunctionCallOutput::default()
        }
    }

    #[test]
    fn a_project_that_was_moved_is_known_by_its_jobs() {
        let mut moved = Moved::default();
        let now = Path::new("/home/ada/copy/.decanus/jobs/W/t/Default_1.txt");
        project_moved("/data/lab/.decanus/jobs/W/t/Default_0.txt", now, &mut moved);
        let then = output("/data/lab/plot.svg and /data/laboratory");
        assert_eq!(
            compare(&then, &output("/home/ada/copy/plot.svg and /data/laboratory"), &moved),
            None
        );
        let mut none = Moved::default();
        project_moved("W/t/Default_0.txt", now, &mut none);
        project_moved(&now.to_string_lossy(), now, &mut none);
        assert_eq!(none, Moved::default());
    }
}
