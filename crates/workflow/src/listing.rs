//! The list of stored jobs: of each record only what a line of the list shows is read, and nothing else is looked at.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use decanus_base::files::named;
use decanus_base::units::parse_duration;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::background::KEPT;
use crate::error::FindError;
use crate::record::{Found, Sketch, Status};
use crate::store::{JobStore, StoredJob, folders, name_and_digest};

/// Which jobs are meant; by default all.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Those of this workflow.
    pub workflow: Option<String>,
    /// Those of this task.
    pub task: Option<String>,
    /// Those in one of these states; of none when it is empty.
    pub statuses: Vec<Status>,
    /// Those whose name, with or without the digest and the extension, is like this: `*` is any text, `?` any character.
    pub name: Option<String>,
    /// Those that ended then or later, or were asked for if they have not ended.
    pub since: Option<Timestamp>,
    /// Those that ended earlier, or were asked for if they have not ended.
    pub before: Option<Timestamp>,
    /// The last so many.
    pub limit: Option<usize>,
}

/// What the list shows of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSummary {
    /// Absolute path of its result.
    pub path: PathBuf,
    /// The workflow.
    pub workflow: String,
    /// The task.
    pub task: String,
    /// The part of its name that people choose.
    pub name: String,
    /// Its identity.
    pub digest: String,
    /// The status as it is: `aborted` when the owner is gone, `error` when a result that was stored is missing.
    pub status: Status,
    /// The id of a pending tool call.
    pub id: Option<String>,
    /// When it was asked for, as its record says; empty when the record can't be read.
    pub created: String,
    /// When its own process began.
    pub started: Option<String>,
    /// When it was done, or failed.
    pub ended: Option<String>,
}

impl JobSummary {
    fn file_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// `WORKFLOW/TASK/NAME_DIGEST.EXT`.
    pub fn short_path(&self) -> String {
        format!("{}/{}/{}", self.workflow, self.task, self.file_name())
    }

    /// Seconds from the start of its process to its end, of one that has ended.
    pub fn seconds(&self) -> Option<f64> {
        let at = |text: &Option<String>| text.as_ref()?.parse::<Timestamp>().ok();
        Some(at(&self.ended)?.duration_since(at(&self.started)?).as_secs_f64())
    }

    /// Bytes of its result; `None` when there is none.
    pub fn size(&self) -> Option<u64> {
        fs::metadata(&self.path).ok().map(|m| m.len())
    }

    /// When it ended, or was asked for.
    fn time(&self) -> Timestamp {
        let text = self.ended.as_ref().unwrap_or(&self.created);
        text.parse().unwrap_or(Timestamp::MIN)
    }

    fn is_expired(&self, now: Timestamp) -> bool {
        let is_over = self.id.is_some() && !self.status.is_active() && self.ended.is_some();
        is_over && now.duration_since(self.time()) >= KEPT
    }
}

impl JobFilter {
    fn takes(&self, job: &JobSummary) -> bool {
        let named = |pattern: &String| {
            let file = job.file_name();
            let stem = format!("{}_{}", job.name, job.digest);
            [job.name.as_str(), &stem, &file]
                .iter()
                .any(|text| is_like(text, pattern))
        };
        (self.statuses.is_empty() || self.statuses.contains(&job.status))
            && self.name.as_ref().is_none_or(named)
            && self.since.is_none_or(|at| job.time() >= at)
            && self.before.is_none_or(|at| job.time() < at)
    }
}

/// Whether a text is like a pattern in which `*` stands for any text and `?` for any character.
fn is_like(text: &str, pattern: &str) -> bool {
    let (text, pattern): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    let (mut t, mut p) = (0, 0);
    // Where the last `*` is, and how far it reached when it was tried last.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                t += 1;
                p += 1;
            }
            _ => match star {
                Some((at, reached)) => {
                    star = Some((at, reached + 1));
                    p = at + 1;
                    t = reached + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// A time as people say it: how long ago (30s, 10m, 2h, 3d, 4w), a date or a date with a time of day where we are
/// (2026-01-31, 2026-01-31T12:00), or one with its offset (2026-01-31T12:00Z).
///
/// # Errors
/// A text that names what was written and what can be.
pub fn parse_when(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let bad = || format!("`{text}` is not a time; write 10m, 2h, 3d, 2026-01-31 or 2026-01-31T12:00");
    let trimmed = text.trim();
    let long = [('d', 24), ('w', 7 * 24)].into_iter().find_map(|(unit, hours)| {
        let number: f64 = trimmed.strip_suffix(unit)?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * 3600.0 * f64::from(hours)).ok()
    });
    if let Some(ago) = long.or_else(|| parse_duration(trimmed).ok()) {
        return now.checked_sub(ago).map_err(|_| bad());
    }
    if let Ok(at) = trimmed.parse::<Timestamp>() {
        return Ok(at);
    }
    let date_time: DateTime = trimmed.parse().map_err(|_| bad())?;
    TimeZone::system().to_timestamp(date_time).map_err(|_| bad())
}

impl JobStore {
    /// The jobs that a filter takes, oldest first.
    ///
    /// # Errors
    /// When the folder can't be read; one that does not exist has no jobs.
    pub fn summaries(&self, filter: &JobFilter) -> Result<Vec<JobSummary>, FindError> {
        let unreadable = |e: io::Error| FindError::Unreadable(e.to_string());
        let now = Timestamp::now();
        let mut found: Vec<(Timestamp, JobSummary)> = Vec::new();
        for workflow in folders(self.dir(), filter.workflow.as_deref()).map_err(unreadable)? {
            for task in folders(&workflow, filter.task.as_deref()).map_err(unreadable)? {
                let names = names(&task).map_err(unreadable)?;
                for info in names.iter().filter(|n| !n.starts_with('.')) {
                    let Some(result) = info.strip_suffix(".info") else {
                        continue;
                    };
                    let Some(job) = summary(&task, result, names.contains(result)) else {
                        continue;
                    };
                    if filter.takes(&job) && !job.is_expired(now) {
                        found.push((job.created.parse().unwrap_or(Timestamp::MIN), job));
                    }
                }
            }
        }
        found.sort_unstable_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.path.cmp(&other.path)));
        let first = filter.limit.map_or(0, |limit| found.len().saturating_sub(limit));
        Ok(found.drain(first..).map(|(_, job)| job).collect())
    }

    /// Why a stored result no longer holds: a job that it depends on has a newer result, failed, or does not hold itself.
    /// `None` when it holds, or there is none. One that was cleaned away changes nothing.
    pub fn staleness(&self, job: &StoredJob) -> Option<String> {
        if job.status() != Status::Done {
            return None;
        }
        let mut seen: HashSet<PathBuf> = HashSet::new();
        let mut open = vec![job.clone()];
        while let Some(next) = open.pop() {
            let started = crate::record::time(next.record.started.as_ref());
            let of = match next.path == job.path {
                true => String::new(),
                false => format!("{}, which it depends on, is stale: ", next.short_path()),
            };
            for dependency in &next.record.dependencies {
                let path = self.dir().join(dependency);
                let Some(dependency) = self.read(path) else { continue };
                let ended = crate::record::time(dependency.record.ended.as_ref());
                let name = dependency.short_path();
                match dependency.status() {
                    Status::Done | Status::Error if ended > started => {
                        return Some(format!("{of}{name} is newer"));
                    }
                    Status::Done => {
                        if seen.insert(dependency.path.clone()) {
                            open.push(dependency);
                        }
                    }
                    // It went on although that one had failed.
                    Status::Error if dependency.record.status == Status::Error => {}
                    Status::Error => return Some(format!("{of}the result of {name} is missing")),
                    status => return Some(format!("{of}{name} is {}", status.as_str())),
                }
            }
        }
        None
    }
}

/// The names in a folder.
fn names(dir: &Path) -> io::Result<HashSet<String>> {
    let list = match fs::read_dir(dir) {
        Ok(list) => list,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(HashSet::new()),
        Err(e) => return Err(named(e, dir)),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|e| e.file_name().to_string_lossy().into_owned());
    list.map(name).collect::<io::Result<_>>().map_err(|e| named(e, dir))
}

fn summary(task: &Path, result: &str, has_result: bool) -> Option<JobSummary> {
    let path = task.join(result);
    let info = task.join(format!("{result}.info"));
    let sketch = match Sketch::read(&info) {
        // Its owner may have ended just after the record was read: with a last word in it.
        Found::Record(sketch) if sketch.is_orphaned() => match Sketch::read(&info) {
            Found::Record(again) => Some(*again),
            _ => Some(*sketch),
        },
        Found::Record(sketch) => Some(*sketch),
        Found::Nothing => return None,
        Found::Torn(_) => None,
    };
    let part = |path: Option<&Path>| {
        let name = path.and_then(Path::file_name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let Some(sketch) = sketch else {
        let (name, digest) = name_and_digest(&path);
        return Some(JobSummary {
            workflow: part(task.parent()),
            task: part(Some(task)),
            name,
            digest,
            status: Status::Error,
            id: None,
            created: String::new(),
            started: None,
            ended: None,
            path,
        });
    };
    let status = match sketch.effective_status() {
        Status::Done if !has_result => Status::Error,
        status => status,
    };
    Some(JobSummary {
        path,
        workflow: sketch.workflow,
        task: sketch.task,
        name: sketch.name,
        digest: sketch.digest,
        status,
        id: sketch.id,
        created: sketch.created,
        started: sketch.started,
        ended: sketch.ended,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_people_say_them() {
        let now: Timestamp = "2026-03-10T12:00:00Z".parse().unwrap();
        let parse = |text: &str| parse_when(text, now).map(|t| t.to_string());
        for (text, at) in [
            ("90s", "2026-03-10T11:58:30Z"),
            ("2h", "2026-03-10T10:00:00Z"),
            ("3d", "2026-03-07T12:00:00Z"),
            ("1w", "2026-03-03T12:00:00Z"),
            ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(at), "{text}");
        }
        let day: DateTime = "2026-01-31".parse().unwrap();
        assert_eq!(
            parse("2026-01-31"),
            Ok(TimeZone::system().to_timestamp(day).unwrap().to_string())
        );
        for bad in ["", "yesterday", "3x", "-1d", "2026-02-31"] {
            assert!(parse(bad).unwrap_err().contains("is not a time"), "{bad}");
        }
    }

    #[test]
    fn patterns() {
        for (text, pattern, like) in [
            ("Default", "Default", true),
            ("Default", "D*t", true),
            ("Default", "*", true),
            ("Default", "D?fault", true),
            ("Default", "D?t", false),
            ("Default", "", false),
            ("", "*", true),
            ("aXbXc", "a*X*c", true),
            ("aXbXc", "a*X", false),
            ("[a]", "[a]", true),
        ] {
            assert_eq!(is_like(text, pattern), like, "{text} {pattern}");
        }
    }
}
