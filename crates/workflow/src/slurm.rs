//! The executor `slurm`: jobs as elements of job arrays, by Slurm's own programs.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use decanus_base::files::write_atomic;
use decanus_base::process;
use decanus_base::settings::SlurmSettings;
use uuid::Uuid;

use crate::executor::{Batch, Executor, ExecutorError, JobSpec, Outcome, Progress, Setup};
use crate::slurm_wire as wire;

const NAME: &str = "slurm";
/// How long one of Slurm's programs may take. They try for a while by themselves when the controller is away.
const PATIENCE: Duration = Duration::from_secs(60);
/// Ids in one command line.
const MOST_IDS: usize = 500;
/// What a job takes at least, with what happens around it.
const SHORTEST: Duration = Duration::from_millis(50);
/// Elements that many jobs make at least, so that they run side by side, however short they are.
const SIDE_BY_SIDE: usize = 8;
/// Jobs in one element, however short they are.
const MOST_IN_ELEMENT: u64 = 1000;

/// Hands jobs to Slurm.
#[derive(Debug)]
pub(crate) struct Slurm {
    project: PathBuf,
    program: PathBuf,
    settings: SlurmSettings,
}

/// What one of Slurm's programs said.
struct Said {
    ok: bool,
    stdout: String,
    stderr: String,
}

impl Slurm {
    pub fn new(setup: &Setup) -> Self {
        Self {
            project: setup.project.clone(),
            program: setup.program.clone(),
            settings: setup.slurm.clone(),
        }
    }

    /// One of Slurm's programs.
    fn program(&self, name: &str) -> Option<PathBuf> {
        if let Some(bin) = &self.settings.bin {
            return Some(self.project.join(bin).join(name)).filter(|p| p.is_file());
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|p| p.is_file())
    }

    fn batch_time(&self) -> Duration {
        self.settings.batch_time.unwrap_or(Duration::from_secs(30))
    }

    fn missing(name: &str) -> ExecutorError {
        ExecutorError::Missing {
            executor: NAME,
            reason: format!("there is no program `{name}` in PATH; `bin` of [slurm] in decanus.toml names its folder"),
        }
    }

    fn ask(&self, name: &str, args: impl IntoIterator<Item = OsString>) -> Result<Said, ExecutorError> {
        let program = self.program(name).ok_or_else(|| Self::missing(name))?;
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.project).env("LC_ALL", "C");
        // What a user set for people to read changes the output.
        for variable in [
            "SQUEUE_FORMAT",
            "SQUEUE_FORMAT2",
            "SQUEUE_STATES",
            "SACCT_FORMAT",
            "SBATCH_ARRAY_INX",
        ] {
            command.env_remove(variable);
        }
        let unreachable = |reason: String| ExecutorError::Unreachable { executor: NAME, reason };
        let said = talk(command, PATIENCE).map_err(|e| unreachable(format!("{name}: {e}")))?;
        let Some(said) = said else {
            return Err(unreachable(format!("{name} gave no answer within {PATIENCE:?}")));
        };
        if !said.ok && wire::is_unreachable(&said.stderr) {
            return Err(unreachable(said.stderr.trim().to_owned()));
        }
        Ok(said)
    }

    /// States of arrays from one of the sources, by the ids of their elements.
    fn look(
        &self,
        name: &str,
        arrays: &[&str],
        args: impl Fn(&str) -> Vec<String>,
        read: fn(&str) -> HashMap<String, Progress>,
    ) -> Result<HashMap<String, Progress>, ExecutorError> {
        let mut found = HashMap::new();
        for arrays in arrays.chunks(MOST_IDS) {
            let said = self.ask(name, args(&arrays.join(",")).into_iter().map(OsString::from))?;
            if !said.ok && !wire::is_unknown_job(&said.stderr) {
                let reason = format!("{name}: {}", said.stderr.trim());
                return Err(ExecutorError::Unreachable { executor: NAME, reason });
            }
            found.extend(read(&said.stdout));
        }
        Ok(found)
    }
}

fn strings<const N: usize>(args: [&str; N]) -> Vec<String> {
    args.map(str::to_owned).into()
}

/// Runs a program to its end and takes what it says; nothing when it took too long.
fn talk(mut command: Command, patience: Duration) -> io::Result<Option<Said>> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = process::spawn(command)?;
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = reader(child.stdout.take().map(|p| Box::new(p) as _));
    let stderr = reader(child.stderr.take().map(|p| Box::new(p) as _));
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begun.elapsed() > patience {
            process::stop(&mut child)?;
            break None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    Ok(status.map(|status| Said {
        ok: status.success(),
        stdout: text(stdout),
        stderr: text(stderr),
    }))
}

impl Executor for Slurm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn available(&self) -> Result<(), ExecutorError> {
        for name in ["sbatch", "squeue", "scontrol", "scancel"] {
            self.program(name).ok_or_else(|| Self::missing(name))?;
        }
        Ok(())
    }

    fn plan(&self, jobs: &[JobSpec]) -> Vec<Batch> {
        type Key = (Option<usize>, Option<u64>, Option<Duration>, u64);
        let most = self.settings.max_array.unwrap_or(1000).max(1) as usize;
        let aim = self.batch_time();
        let fitting = |job: &JobSpec| match (self.settings.batch_size, job.typical) {
            (Some(size), _) => u64::from(size.max(1)),
            (None, Some(typical)) => {
                let typical = typical.max(SHORTEST).as_millis();
                u64::try_from(aim.as_millis() / typical)
                    .unwrap_or(1)
                    .clamp(1, MOST_IN_ELEMENT)
            }
            (None, None) => 1,
        };
        let mut alike: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (place, job) in jobs.iter().enumerate() {
            let key = (job.resources.cpus, job.resources.memory, job.limit, fitting(job));
            alike.entry(key).or_default().push(place);
        }
        let mut batches = Vec::new();
        for ((_, _, limit, size), places) in alike {
            let spread = match self.settings.batch_size {
                Some(_) => usize::MAX,
                None => places.len().div_ceil(SIDE_BY_SIDE),
            };
            let size = usize::try_from(size).unwrap_or(1).min(spread);
            let elements: Vec<Vec<usize>> = places.chunks(size).map(<[usize]>::to_vec).collect();
            for elements in elements.chunks(most) {
                let longest = elements.iter().map(Vec::len).max().unwrap_or(1);
                let Some(first) = elements.first().and_then(|e| e.first()).and_then(|at| jobs.get(*at)) else {
                    continue;
                };
                batches.push(Batch {
                    name: format!("decanus-{}", Uuid::new_v4().simple()),
                    resources: first.resources,
                    limit: limit.map(|l| l.saturating_mul(u32::try_from(longest).unwrap_or(u32::MAX))),
                    elements: elements.to_vec(),
                });
            }
        }
        batches
    }

    fn submit(&self, batch: &Batch, dir: &Path) -> Result<Vec<String>, ExecutorError> {
        let refused = |reason: String| ExecutorError::Refused { executor: NAME, reason };
        let word = |path: &Path| {
            let text = path.to_str().filter(|t| !t.contains(['\n', '\0', '%', '\\']));
            text.map(str::to_owned)
                .ok_or_else(|| refused(format!("the path {} can't be handed to it", path.display())))
        };
        let (program, project, folder) = (word(&self.program)?, word(&self.project)?, word(dir)?);
        let script = dir.join("script.sh");
        write_atomic(&script, wire::script(&program, &project, &folder).as_bytes())
            .map_err(|e| refused(e.to_string()))?;
        let log = format!("{folder}/log.%a");
        let mut args: Vec<OsString> = wire::sbatch(batch, &self.settings, &log, &project)
            .into_iter()
            .map(OsString::from)
            .collect();
        args.push(script.into_os_string());
        let said = self.ask("sbatch", args)?;
        match wire::submitted(&said.stdout) {
            Some(id) if said.ok => Ok((0..batch.elements.len()).map(|at| wire::element(&id, at)).collect()),
            _ => Err(refused(said.stderr.trim().to_owned())),
        }
    }

    fn find(&self, name: &str) -> Result<HashMap<usize, String>, ExecutorError> {
        let args = ["-h", "-r", "-t", "all", "-o", wire::SQUEUE_FORMAT, "-n", name];
        let said = self.ask("squeue", args.map(OsString::from))?;
        if !said.ok {
            let reason = format!("squeue: {}", said.stderr.trim());
            return Err(ExecutorError::Unreachable { executor: NAME, reason });
        }
        let place = |id: String| Some((id.split_once('_')?.1.parse().ok()?, id));
        Ok(wire::squeue(&said.stdout).into_keys().filter_map(place).collect())
    }

    fn observe(&self, ids: &[String]) -> Result<Vec<Progress>, ExecutorError> {
        let mut arrays: Vec<&str> = ids.iter().map(|id| wire::array(id)).collect();
        arrays.sort_unstable();
        arrays.dedup();
        let queue = |arrays: &str| strings(["-h", "-r", "-t", "all", "-o", wire::SQUEUE_FORMAT, "-j", arrays]);
        let mut found = self.look("squeue", &arrays, queue, wire::squeue)?;
        let mut rest = |found: &HashMap<String, Progress>| {
            let missing = ids.iter().filter(|id| !found.contains_key(*id));
            arrays = missing.map(|id| wire::array(id)).collect();
            arrays.dedup();
            arrays.clone()
        };
        // scontrol takes one id at a time.
        for array in rest(&found) {
            let show = |array: &str| strings(["-o", "show", "job", array]);
            for (id, progress) in self.look("scontrol", &[array], show, wire::scontrol)? {
                found.entry(id).or_insert(progress);
            }
        }
        let missing = rest(&found);
        if !missing.is_empty() && self.program("sacct").is_some() {
            let accounts = |arrays: &str| strings(["-n", "-P", "-o", "JobID,State", "-j", arrays]);
            // Where no accounts are kept it is there but says nothing.
            if let Ok(more) = self.look("sacct", &missing, accounts, wire::sacct) {
                for (id, progress) in more {
                    found.entry(id).or_insert(progress);
                }
            }
        }
        let progress = |id: &String| found.get(id).cloned().unwrap_or(Progress::Unknown);
        Ok(ids.iter().map(progress).collect())
    }

    fn cancel(&self, ids: &[String]) -> Result<(), ExecutorError> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        for ids in ids.chunks(MOST_IDS) {
            // It fails for jobs that have ended; nothing is left to be done for these.
            self.ask("scancel", ids.iter().map(OsString::from))?;
        }
        Ok(())
    }

    fn poll(&self) -> Duration {
        self.settings.poll.unwrap_or(Duration::from_secs(5))
    }

    fn settle(&self) -> Duration {
        self.settings.settle.unwrap_or(Duration::from_secs(15))
    }

    fn probe(&self) -> Option<Duration> {
        // What takes longer would be alone in its element anyway.
        self.settings.batch_size.is_none().then(|| self.batch_time())
    }

    fn most(&self) -> usize {
        self.settings.max_jobs.unwrap_or(500).max(1) as usize
    }
}

impl Outcome {
    /// In words.
    pub(crate) fn as_text(&self) -> &str {
        match self {
            Self::Completed => "COMPLETED",
            Self::TimedOut => "TIMEOUT",
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::Lost(word) => word,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Resources;

    fn plan(settings: SlurmSettings, jobs: &[JobSpec]) -> Vec<Vec<usize>> {
        let setup = Setup {
            project: "/p".into(),
            program: "/decanus".into(),
            slurm: settings,
        };
        let batches = Slurm::new(&setup).plan(jobs);
        let mut seen: Vec<usize> = batches.iter().flat_map(|b| b.elements.concat()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..jobs.len()).collect::<Vec<_>>(), "each job is in one element");
        batches
            .iter()
            .map(|b| b.elements.iter().map(Vec::len).collect())
            .collect()
    }

    #[test]
    fn short_jobs_share_an_element_and_arrays_are_bounded() {
        let job = |cpus, typical| JobSpec {
            path: "/r".into(),
            resources: Resources {
                cpus,
                ..Resources::default()
            },
            limit: None,
            typical,
        };
        let settings = SlurmSettings {
            max_array: Some(3),
            ..SlurmSettings::default()
        };
        let unknown = vec![job(None, None); 5];
        assert_eq!(plan(settings.clone(), &unknown), [vec![1, 1, 1], vec![1, 1]]);
        // 30 s of them in an element.
        let short = vec![job(None, Some(Duration::from_secs(10))); 25];
        assert_eq!(plan(settings.clone(), &short), [vec![3; 3], vec![3; 3], vec![3, 3, 1]]);
        // But not all in one.
        let shortest = vec![job(None, Some(Duration::from_millis(1))); 16];
        assert_eq!(plan(settings.clone(), &shortest).concat(), [2; 8]);
        let long = vec![job(None, Some(Duration::from_secs(300))); 2];
        assert_eq!(plan(settings.clone(), &long), [vec![1, 1]]);
        // What needs other resources is in another batch.
        let mixed = [job(Some(1), None), job(Some(4), None), job(Some(1), None)];
        assert_eq!(plan(settings.clone(), &mixed), [vec![1, 1], vec![1]]);
        let chosen = SlurmSettings {
            batch_size: Some(4),
            ..settings
        };
        assert_eq!(plan(chosen, &long), [vec![2]]);
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 60"]);
        let begun = Instant::now();
        assert!(talk(command, Duration::from_millis(200)).unwrap().is_none());
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
