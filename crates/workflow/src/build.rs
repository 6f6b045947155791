//! Making a job of a task and its inputs, with all the jobs that it depends on.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::digest::{ValueHasher, sha256_hex};
use decanus_base::names;
use serde_json::{Map, Value, json};

use crate::definition::{Dependency, JobName, Setting, Task, Workflow};
use crate::error::{InputError, WorkflowError};
use crate::graph::MAX_DEPTH;
use crate::identity::{self, Parts};
use crate::input::show;
use crate::job::{DEFAULT_NAME, GivenResult, Job, JobOptions, Link, Override, as_name, check_arguments};
use crate::path_rules::PathRules;
use crate::record::{Found, JobRecord, Status};
use crate::store::Paths;

/// Bytes of a name; longer ones are cut.
const MAX_NAME: usize = 150;

impl Workflow {
    /// The job of a task for these inputs, which go to the task and to its dependencies by name. `name` is the part of
    /// the job's name that people choose.
    ///
    /// # Errors
    /// An unknown task or input, a value that does not fit, a required input without a value, a file that is not there.
    pub fn job(
        self: &Arc<Self>,
        task: &str,
        inputs: &Map<String, Value>,
        paths: &PathRules,
        name: Option<&str>,
    ) -> Result<Arc<Job>, WorkflowError> {
        let options = JobOptions {
            name: name.map(str::to_owned),
            ..JobOptions::default()
        };
        self.job_with(task, inputs, paths, &options)
    }

    /// The same, with more to choose.
    ///
    /// # Errors
    /// Those of [`job`](Self::job); an override that nothing depends on, or whose result is not there.
    pub fn job_with(
        self: &Arc<Self>,
        task: &str,
        inputs: &Map<String, Value>,
        paths: &PathRules,
        options: &JobOptions,
    ) -> Result<Arc<Job>, WorkflowError> {
        let task = self.task(task)?;
        let name = job_name(options.name.as_deref().unwrap_or(DEFAULT_NAME))?;
        let replaced = |workflow: &Self, task: &Task| options.overrides.get(&workflow.name, &task.name).is_some();
        let known = self.inputs_of(self, task, &replaced);
        let known: Vec<&str> = known.iter().map(|i| i.name.as_str()).collect();
        // What the task's dynamic dependencies take is not known before they are made.
        let may_be_unknown = task.dynamic.is_some() || self.below(task).iter().any(|(_, t)| t.dynamic.is_some());
        if let Some(unknown) = inputs.keys().find(|name| !known.contains(&name.as_str()))
            && !may_be_unknown
        {
            return Err(WorkflowError::Input(InputError::Unknown {
                task: format!("{}/{}", self.name, task.name),
                name: unknown.clone(),
                guess: names::did_you_mean(unknown, known.iter().copied()),
                known: known.join(", "),
            }));
        }
        let given = inputs.iter().map(|(n, v)| (n.clone(), Given::value(v.clone(), false)));
        let mut builder = Builder {
            root: self,
            paths,
            options,
            made: HashMap::new(),
            files: HashMap::new(),
            relevant: HashMap::new(),
            definitions: HashMap::new(),
            replaced: HashMap::new(),
            depth: 0,
        };
        let job = builder.job(self, task, given.collect(), &name)?;
        if let Some(unused) = options
            .overrides
            .tasks()
            .find(|key| !builder.replaced.contains_key(*key))
        {
            let below: Vec<String> = self
                .below(task)
                .iter()
                .map(|(w, t)| format!("{}#{}", w.name, t.name))
                .collect();
            return Err(WorkflowError::Input(InputError::Override {
                task: unused.to_owned(),
                reason: format!(
                    "{}/{} does not depend on it{}",
                    self.name,
                    task.name,
                    names::did_you_mean(unused, below.iter().map(String::as_str))
                ),
            }));
        }
        Ok(job)
    }
}

/// A name that can be part of a file's. A long one is cut, and ends then in its length and a part of its digest.
fn job_name(wanted: &str) -> Result<String, InputError> {
    let mut name = wanted.to_owned();
    if name.len() > MAX_NAME {
        let end = format!("--{}--{}", wanted.chars().count(), &sha256_hex(wanted.as_bytes())[..5]);
        let mut kept = MAX_NAME - end.len();
        while !wanted.is_char_boundary(kept) {
            kept -= 1;
        }
        name.truncate(kept);
        name.push_str(&end);
    }
    // What was cut off counts too.
    let is_bad = |c: char| c == '/' || c == '\\' || c.is_control();
    if !names::is_valid(&name) || wanted.contains(is_bad) || wanted.contains("..") {
        return Err(InputError::JobName(wanted.to_owned()));
    }
    Ok(name)
}

/// What a task or a dependency of it is given for an input.
struct Given {
    what: What,
    /// Whether the workflow's author set it: a file may then be anywhere.
    fixed: bool,
    /// Equal for equal ones.
    key: String,
}

enum What {
    Value(Value),
    /// Results of jobs: one, or a list.
    Jobs {
        jobs: Vec<Arc<Job>>,
        each: bool,
        can_fail: bool,
    },
}

impl Given {
    fn value(value: Value, fixed: bool) -> Arc<Self> {
        let mut hasher = ValueHasher::new();
        hasher.value(&value).value(&fixed.into());
        Arc::new(Self {
            key: hasher.hex(),
            what: What::Value(value),
            fixed,
        })
    }

    fn jobs(jobs: Vec<Arc<Job>>, each: bool, can_fail: bool) -> Arc<Self> {
        let mut hasher = ValueHasher::new();
        hasher.text("jobs").value(&json!([each, can_fail]));
        for job in &jobs {
            hasher.text(&job.relative_path().to_string_lossy());
        }
        Arc::new(Self {
            key: hasher.hex(),
            what: What::Jobs { jobs, each, can_fail },
            fixed: true,
        })
    }

    fn is_null(&self) -> bool {
        matches!(&self.what, What::Value(Value::Null))
    }
}

/// What is given, by the name of the input.
type AllGiven = HashMap<String, Arc<Given>>;

/// A task: its address is that of its one definition while jobs are made.
type TaskKey = *const Task;

/// What tells jobs of one making apart: task, name, and what is given that the task or what it depends on takes.
type JobKey = (TaskKey, String, Vec<(String, String)>);

/// A task of a workflow.
type Target = (Arc<Workflow>, Arc<Task>);

struct Builder<'a> {
    root: &'a Arc<Workflow>,
    paths: &'a PathRules,
    options: &'a JobOptions,
    /// Jobs made already: two ways to one job lead to the same one.
    made: HashMap<JobKey, Arc<Job>>,
    /// Digests of files looked at already.
    files: HashMap<PathBuf, String>,
    /// The inputs that a task and what it depends on take, sorted.
    relevant: HashMap<TaskKey, Arc<Vec<String>>>,
    /// The parts of the identity that all jobs of a task share.
    definitions: HashMap<TaskKey, Arc<Parts>>,
    /// What stands in for tasks, by `WORKFLOW#TASK`.
    replaced: HashMap<String, Arc<Job>>,
    depth: usize,
}

/// The dependencies of a job while they are made.
#[derive(Default)]
struct Uses {
    jobs: Vec<Arc<Job>>,
    places: HashMap<PathBuf, usize>,
    links: Vec<Link>,
    input_jobs: Vec<Link>,
}

impl Uses {
    fn link(&mut self, name: &str, each: bool, can_fail: bool, jobs: &[Arc<Job>]) -> Link {
        let mut place = |job: &Arc<Job>| {
            *self.places.entry(job.relative_path()).or_insert_with(|| {
                self.jobs.push(job.clone());
                self.jobs.len() - 1
            })
        };
        Link {
            name: name.to_owned(),
            each,
            can_fail,
            replaced: false,
            jobs: jobs.iter().map(&mut place).collect(),
        }
    }
}

impl Builder<'_> {
    fn job(
        &mut self,
        owner: &Arc<Workflow>,
        task: &Arc<Task>,
        given: AllGiven,
        name: &str,
    ) -> Result<Arc<Job>, InputError> {
        let key = self.key(owner, task, &given, name);
        if let Some(job) = self.made.get(&key) {
            return Ok(job.clone());
        }
        if self.depth > 2 * MAX_DEPTH {
            return Err(declared(
                owner,
                task,
                format!("more than {} tasks in a chain", 2 * MAX_DEPTH),
            ));
        }
        self.depth += 1;
        let job = self.make(owner, task, given, name)?;
        self.depth -= 1;
        self.made.insert(key, job.clone());
        Ok(job)
    }

    fn make(
        &mut self,
        owner: &Arc<Workflow>,
        task: &Arc<Task>,
        given: AllGiven,
        name: &str,
    ) -> Result<Arc<Job>, InputError> {
        let mut uses = Uses::default();
        let inputs = self.inputs(owner, task, &given, name, &mut uses)?;
        // Dependencies inherit the name.
        let of_input = name_of_input(task, &inputs).filter(|_| name == DEFAULT_NAME);
        let name = of_input.as_deref().unwrap_or(name);
        let dynamic = match &task.dynamic {
            Some(depends) => depends.0(&inputs).map_err(|e| declared(owner, task, e))?,
            None => Vec::new(),
        };
        let mut keys = HashSet::new();
        for dependency in task.depends.iter().chain(&dynamic) {
            let (jobs, replaced) = self.dependency(owner, task, dependency, &given, &inputs, &uses, name)?;
            if !keys.insert(dependency.key()) {
                let message = format!("two dependencies are called `{}`", dependency.key());
                return Err(declared(owner, task, message));
            }
            let mut link = uses.link(
                dependency.key(),
                dependency.for_each.is_some(),
                dependency.can_fail,
                &jobs,
            );
            link.replaced = replaced;
            uses.links.push(link);
        }
        let identity = self.identity(owner, task, &inputs, &uses)?;
        let job = Job {
            workflow: owner.clone(),
            task: task.clone(),
            name: name.to_owned(),
            digest: identity::digest(&owner.name, &task.name, &identity),
            identity,
            inputs,
            dependencies: uses.jobs,
            links: uses.links,
            input_jobs: uses.input_jobs,
            given: None,
        };
        let mut known = job.inputs.clone();
        // What a job will give is looked at when it has.
        for link in &job.input_jobs {
            known.insert(link.name.clone(), Value::Null);
        }
        check_arguments(&job, &known)?;
        Ok(Arc::new(job))
    }

    /// The jobs that a dependency stands for: one, or one for each item of a list; and whether a caller replaced them.
    #[expect(clippy::too_many_arguments, reason = "what is known of the job that depends on them")]
    fn dependency(
        &mut self,
        owner: &Arc<Workflow>,
        task: &Arc<Task>,
        dependency: &Dependency,
        given: &AllGiven,
        inputs: &Map<String, Value>,
        uses: &Uses,
        name: &str,
    ) -> Result<(Vec<Arc<Job>>, bool), InputError> {
        let (workflow, target) = self.target(owner, task, dependency)?;
        if let Some(over) = self.options.overrides.get(&workflow.name, &target.name).cloned() {
            return self.stand_in(&workflow, &target, &over).map(|job| (vec![job], true));
        }
        let name = match &dependency.jobname {
            JobName::Inherited => name.to_owned(),
            JobName::Chosen(name) => job_name(name)?,
            JobName::Own => DEFAULT_NAME.to_owned(),
        };
        let taken = self.relevant(&workflow, &target);
        let mut theirs: AllGiven = HashMap::new();
        for input in taken.iter() {
            if let Some(value) = given.get(input) {
                theirs.insert(input.clone(), value.clone());
            }
        }
        for (input, setting) in &dependency.fixed {
            match setting {
                Setting::Value(value) => {
                    theirs.insert(input.clone(), Given::value(value.clone(), true));
                }
                Setting::Input(own) => {
                    // Whatever the caller gave under that name is hidden all the same.
                    theirs.remove(input);
                    if let Some(value) = own_value(task, own, given, inputs) {
                        theirs.insert(input.clone(), value);
                    }
                }
                Setting::Result(earlier) => {
                    let Some(link) = uses.links.iter().find(|l| l.name == *earlier) else {
                        let message = format!("there is no dependency `{earlier}` before `{}`", dependency.key());
                        return Err(declared(owner, task, message));
                    };
                    let jobs = link.jobs.iter().map(|at| uses.jobs[*at].clone()).collect();
                    theirs.insert(input.clone(), Given::jobs(jobs, link.each, link.can_fail));
                }
            }
        }
        let Some(each) = &dependency.for_each else {
            return Ok((vec![self.job(&workflow, &target, theirs, &name)?], false));
        };
        let items = match inputs.get(&each.list) {
            Some(Value::Array(items)) => items.as_slice(),
            Some(Value::Null) | None => &[],
            Some(_) => {
                return Err(InputError::Value {
                    task: label(owner, task),
                    name: each.list.clone(),
                    reason: "it is no list, but there is a job for each of its items".into(),
                });
            }
        };
        let fixed = is_trusted(task, &each.list, given);
        let mut jobs = Vec::with_capacity(items.len());
        for item in items {
            let mut theirs = theirs.clone();
            theirs.insert(each.input.clone(), Given::value(item.clone(), fixed));
            jobs.push(self.job(&workflow, &target, theirs, &name)?);
        }
        Ok((jobs, false))
    }

    fn target(&self, owner: &Arc<Workflow>, task: &Task, dependency: &Dependency) -> Result<Target, InputError> {
        let workflow = match &dependency.workflow {
            None => Some(owner),
            Some(name) if *name == self.root.name => Some(self.root),
            Some(name) => self.root.reach.others.get(name),
        };
        let target = workflow.and_then(|w| Some((w.clone(), w.find(&dependency.task)?.clone())));
        target.ok_or_else(|| {
            let message = format!("it depends on {}, which is not in reach", dependency.label());
            declared(owner, task, message)
        })
    }

    /// The job in the place of a task that a caller has replaced.
    fn stand_in(
        &mut self,
        workflow: &Arc<Workflow>,
        task: &Arc<Task>,
        over: &Override,
    ) -> Result<Arc<Job>, InputError> {
        let key = format!("{}#{}", workflow.name, task.name);
        if let Some(job) = self.replaced.get(&key) {
            return Ok(job.clone());
        }
        let bad = |reason: String| InputError::Override {
            task: key.clone(),
            reason,
        };
        let path = match over {
            Override::Job(job) => {
                self.replaced.insert(key, job.clone());
                return Ok(job.clone());
            }
            Override::Path(path) => path,
        };
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let mut job = Job::stand_in(
            workflow,
            task,
            GivenResult {
                path: path.clone(),
                kind: task.result,
                is_job: false,
            },
        );
        match JobRecord::read(&Paths::new(path.clone()).info) {
            Found::Record(record) => {
                if record.effective_status() != Status::Done || !path.is_file() {
                    let status = record.effective_status().as_str();
                    return Err(bad(format!("the job {} has no result, it is {status}", path.display())));
                }
                job.digest = record.digest.clone();
                job.name = record.name.clone();
                job.inputs = record.inputs.clone();
                job.given = Some(GivenResult {
                    path,
                    kind: record.kind,
                    is_job: true,
                });
            }
            Found::Torn(reason) => {
                return Err(bad(format!(
                    "the record of the job {} can't be read: {reason}",
                    path.display()
                )));
            }
            Found::Nothing => job.digest = self.file(&path).map_err(|e| bad(e.to_string()))?,
        }
        let job = Arc::new(job);
        self.replaced.insert(key, job.clone());
        Ok(job)
    }

    /// The inputs that a task or what it depends on takes, without those that its declaration sets; sorted.
    fn relevant(&mut self, owner: &Arc<Workflow>, task: &Arc<Task>) -> Arc<Vec<String>> {
        if let Some(known) = self.relevant.get(&Arc::as_ptr(task)) {
            return known.clone();
        }
        let mut names: HashSet<String> = task.inputs.iter().map(|i| i.name.clone()).collect();
        for dependency in &task.depends {
            if let Ok((workflow, target)) = self.target(owner, task, dependency) {
                let theirs = self.relevant(&workflow, &target);
                names.extend(theirs.iter().filter(|n| !dependency.sets(n)).cloned());
            }
        }
        let mut names: Vec<String> = names.into_iter().collect();
        names.sort_unstable();
        let names = Arc::new(names);
        self.relevant.insert(Arc::as_ptr(task), names.clone());
        names
    }

    fn key(&mut self, owner: &Arc<Workflow>, task: &Arc<Task>, given: &AllGiven, name: &str) -> JobKey {
        let keys = |input: &String| Some((input.clone(), given.get(input)?.key.clone()));
        let taken: Vec<(String, String)> = match &task.dynamic {
            // What these dependencies take is not known yet.
            Some(_) => {
                let mut names: Vec<&String> = given.keys().collect();
                names.sort_unstable();
                names.into_iter().filter_map(keys).collect()
            }
            None => self.relevant(owner, task).iter().filter_map(keys).collect(),
        };
        (Arc::as_ptr(task), name.to_owned(), taken)
    }

    fn inputs(
        &self,
        owner: &Workflow,
        task: &Task,
        given: &AllGiven,
        name: &str,
        uses: &mut Uses,
    ) -> Result<Map<String, Value>, InputError> {
        let author = PathRules::trusted(&owner.dir);
        let mut inputs = Map::new();
        let mut missing = Vec::new();
        for input in &task.inputs {
            let given = given.get(&input.name);
            let by_author = |reason: String| declared(owner, task, format!("input `{}`: {reason}", input.name));
            // The name of a job and the input that names it feed each other.
            let names_it = input.is_jobname && name != DEFAULT_NAME && given.is_none_or(|g| !g.fixed && g.is_null());
            let value = match given.map(|g| (&g.what, g.fixed)) {
                _ if names_it => input.coerce(&name.into(), &author).map_err(by_author)?,
                Some((What::Jobs { jobs, each, can_fail }, _)) => {
                    let link = uses.link(&input.name, *each, *can_fail, jobs);
                    uses.input_jobs.push(link);
                    let path = |job: &Arc<Job>| job.relative_path().display().to_string();
                    match each {
                        true => json!({"jobs": jobs.iter().map(path).collect::<Vec<_>>()}),
                        false => json!({"job": jobs.first().map(path)}),
                    }
                }
                Some((What::Value(value), true)) => input.coerce(value, &author).map_err(by_author)?,
                Some((What::Value(value), false)) => {
                    input.coerce(value, self.paths).map_err(|reason| InputError::Value {
                        task: label(owner, task),
                        name: input.name.clone(),
                        reason,
                    })?
                }
                None => Value::Null,
            };
            let set_to_nothing = given.is_some_and(|g| g.fixed && g.is_null());
            let value = if value.is_null() && !input.required && !set_to_nothing {
                match &input.default {
                    default if input.kind.reads_content() => input.coerce(default, &author).map_err(by_author)?,
                    default => default.clone(),
                }
            } else {
                value
            };
            if value.is_null() && input.required {
                missing.push(input.name.clone());
            }
            inputs.insert(input.name.clone(), value);
        }
        if missing.is_empty() {
            Ok(inputs)
        } else {
            Err(InputError::Missing {
                task: label(owner, task),
                inputs: missing,
            })
        }
    }

    /// What the result depends on, in parts.
    fn identity(
        &mut self,
        owner: &Workflow,
        task: &Arc<Task>,
        inputs: &Map<String, Value>,
        uses: &Uses,
    ) -> Result<Parts, InputError> {
        let failed = |e: io::Error| declared(owner, task, e.to_string());
        let known = self.definitions.get(&Arc::as_ptr(task)).cloned();
        let shared = match known {
            Some(parts) => parts,
            None => {
                let parts = identity::of_task(owner, task, &mut |path| self.file(path)).map_err(failed)?;
                let parts = Arc::new(parts);
                self.definitions.insert(Arc::as_ptr(task), parts.clone());
                parts
            }
        };
        let mut parts = Parts::clone(&shared);
        for input in &task.inputs {
            let digest = match uses.input_jobs.iter().find(|l| l.name == input.name) {
                Some(link) => format!("job {}", of_link(link, uses)),
                None => identity::of_input(input, &inputs[&input.name], &mut |path| self.file(path)).map_err(failed)?,
            };
            parts.push((format!("input {}", input.name), digest));
        }
        for link in &uses.links {
            parts.push((format!("dependency {}", link.name), of_link(link, uses)));
        }
        Ok(parts)
    }

    fn file(&mut self, path: &Path) -> io::Result<String> {
        if let Some(digest) = self.files.get(path) {
            return Ok(digest.clone());
        }
        let digest = self.root.reach.digests.of(path)?;
        self.files.insert(path.to_owned(), digest.clone());
        Ok(digest)
    }
}

fn of_link(link: &Link, uses: &Uses) -> String {
    identity::of_jobs(link, &uses.jobs)
}

/// What the input that names the job says.
fn name_of_input(task: &Task, inputs: &Map<String, Value>) -> Option<String> {
    let input = task.inputs.iter().find(|i| i.is_jobname)?;
    let value = inputs
        .get(&input.name)
        .filter(|v| !v.is_null() && **v != input.default)?;
    Some(as_name(&show(value))).filter(|name| names::is_valid(name))
}

/// What an own input holds, for a dependency; nothing when it has no value.
fn own_value(task: &Task, own: &str, given: &AllGiven, inputs: &Map<String, Value>) -> Option<Arc<Given>> {
    if let Some(result) = given.get(own).filter(|g| matches!(g.what, What::Jobs { .. })) {
        return Some(result.clone());
    }
    let value = inputs.get(own).filter(|v| !v.is_null())?;
    Some(Given::value(value.clone(), is_trusted(task, own, given)))
}

/// Whether a path in an own input may lead anywhere: the author wrote it, or it was looked at when it came in. A text
/// of a caller's must not become a path of the author's by being handed on.
fn is_trusted(task: &Task, own: &str, given: &AllGiven) -> bool {
    let is_path = task.input(own).is_some_and(|i| i.kind.reads_content());
    is_path || given.get(own).is_none_or(|g| g.fixed || g.is_null())
}

fn label(workflow: &Workflow, task: &Task) -> String {
    format!("{}/{}", workflow.name, task.name)
}

/// Something that the workflow's author declared is wrong.
fn declared(workflow: &Workflow, task: &Task, reason: String) -> InputError {
    InputError::File {
        task: label(workflow, task),
        reason,
    }
}
