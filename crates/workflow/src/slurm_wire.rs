//! What Slurm's programs are told, and what they say.

use std::collections::HashMap;
use std::time::Duration;

use decanus_base::settings::SlurmSettings;

use crate::executor::{Batch, Outcome, Progress};

/// The arguments of sbatch before the script.
pub(crate) fn sbatch(batch: &Batch, settings: &SlurmSettings, log: &str, dir: &str) -> Vec<String> {
    let mut args = vec![
        "--parsable".to_owned(),
        // A job that was lost is handed over again by us, who know whether it was done after all.
        "--no-requeue".to_owned(),
        format!("--job-name={}", batch.name),
        format!("--array=0-{}", batch.elements.len().saturating_sub(1)),
        format!("--output={log}"),
        format!("--chdir={dir}"),
    ];
    if let Some(cpus) = batch.resources.cpus {
        args.push(format!("--cpus-per-task={cpus}"));
    }
    if let Some(memory) = batch.resources.memory {
        // In MiB; a part of one is a whole one.
        args.push(format!("--mem={}M", memory.div_ceil(1 << 20).max(1)));
    }
    if let Some(limit) = batch.limit {
        args.push(format!("--time={}", minutes(limit)));
    }
    let named = [
        ("partition", &settings.partition),
        ("account", &settings.account),
        ("qos", &settings.qos),
    ];
    for (name, value) in named {
        args.extend(value.iter().map(|value| format!("--{name}={value}")));
    }
    args.extend(settings.args.iter().cloned());
    args
}

/// Whole minutes, with one more for what happens around the jobs: our own limits come first.
fn minutes(limit: Duration) -> u64 {
    limit.as_secs().div_ceil(60) + 1
}

/// The id that `sbatch --parsable` prints: `ID`, or `ID;CLUSTER`.
pub(crate) fn submitted(stdout: &str) -> Option<String> {
    let id = stdout.trim().lines().last()?.split(';').next()?.trim();
    let is_id = !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit());
    is_id.then(|| id.to_owned())
}

/// The id of an element of an array.
pub(crate) fn element(id: &str, place: usize) -> String {
    format!("{id}_{place}")
}

/// The id of an array, of that of one of its elements.
pub(crate) fn array(id: &str) -> &str {
    id.split('_').next().unwrap_or(id)
}

/// The format of squeue whose lines [`squeue`] reads.
pub(crate) const SQUEUE_FORMAT: &str = "%i|%T|%r";

/// Ids and states of `squeue -h -r -o FORMAT`.
pub(crate) fn squeue(stdout: &str) -> HashMap<String, Progress> {
    let line = |line: &str| {
        let mut parts = line.splitn(3, '|').map(str::trim);
        let (id, state) = (parts.next()?, parts.next()?);
        Some((id.to_owned(), progress(state, parts.next().unwrap_or_default())))
    };
    stdout.lines().filter_map(line).collect()
}

/// Ids and states of the elements in `scontrol -o show job`.
pub(crate) fn scontrol(stdout: &str) -> HashMap<String, Progress> {
    let mut found = HashMap::new();
    for line in stdout.lines() {
        let value = |key: &str| {
            let mut words = line.split_whitespace();
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let (Some(array), Some(task), Some(state)) = (value("ArrayJobId"), value("ArrayTaskId"), value("JobState"))
        else {
            continue;
        };
        let progress = progress(state, value("Reason").unwrap_or_default());
        for place in places(task) {
            found.insert(element(array, place), progress.clone());
        }
    }
    found
}

/// The elements in `3`, `0-3`, `1,4-5` or `0-7%2`.
fn places(task: &str) -> Vec<usize> {
    let task = task.split('%').next().unwrap_or(task);
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    task.split(',').filter_map(range).flatten().take(1 << 20).collect()
}

/// Ids and states of `sacct -n -P -o JobID,State`; steps are passed over.
pub(crate) fn sacct(stdout: &str) -> HashMap<String, Progress> {
    let line = |line: &str| {
        let (id, state) = line.split_once('|')?;
        // `CANCELLED by 1000`
        let state = state.split_whitespace().next()?;
        (!id.contains('.')).then(|| (id.to_owned(), progress(state, "")))
    };
    stdout.lines().filter_map(line).collect()
}

fn progress(state: &str, reason: &str) -> Progress {
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT" => {
            Progress::Pending((!gets_on(reason)).then(|| reason.to_owned()))
        }
        "COMPLETED" => Progress::Ended(Outcome::Completed),
        "TIMEOUT" | "DEADLINE" => Progress::Ended(Outcome::TimedOut),
        "OUT_OF_MEMORY" => Progress::Ended(Outcome::OutOfMemory),
        "FAILED" | "CANCELLED" | "NODE_FAIL" | "BOOT_FAIL" | "PREEMPTED" | "REVOKED" | "LAUNCH_FAILED"
        | "RECONFIG_FAIL" => Progress::Ended(Outcome::Lost(state.to_owned())),
        // RUNNING, COMPLETING, CONFIGURING, SUSPENDED, STAGE_OUT, …; of a word that is not known here the safe meaning is
        // that the job is there.
        _ => Progress::Running,
    }
}

/// Whether a job that waits for this reason gets on by itself.
fn gets_on(reason: &str) -> bool {
    const STUCK: [&str; 9] = [
        "Held",
        "Invalid",
        "Constraint",
        "NeverSatisfied",
        "NodeLimit",
        "TimeLimit",
        "PartitionDown",
        "PartitionInactive",
        "ReqNodeNotAvail",
    ];
    !STUCK.iter().any(|word| reason.contains(word))
}

/// Whether what a program of Slurm says means that the scheduler was not reached, so that nothing is known.
pub(crate) fn is_unreachable(stderr: &str) -> bool {
    const SIGNS: [&str; 12] = [
        "Unable to contact slurm controller",
        "Unable to establish controller",
        "Unable to establish configuration source",
        "Connection refused",
        "connect failure",
        "Connection timed out",
        "Socket timed out",
        "Communication connection failure",
        "in standby mode",
        "temporarily unable to accept job",
        "Zero Bytes were transmitted",
        "Message receive failure",
    ];
    let stderr = stderr.to_lowercase();
    SIGNS.iter().any(|sign| stderr.contains(&sign.to_lowercase()))
}

/// Whether it means that no job of that id is known.
pub(crate) fn is_unknown_job(stderr: &str) -> bool {
    stderr.contains("Invalid job id")
}

/// The script of a batch. Nothing in it comes from a job: only the paths of the program, the project and the batch's folder.
pub(crate) fn script(program: &str, project: &str, dir: &str) -> String {
    format!(
        "#!/bin/sh\n\
         # Written by decanus; each element of the array runs the jobs of its list.\n\
         exec {} -C {} job exec --id \"${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}\" \
         \"@\"{}\"/list.${{SLURM_ARRAY_TASK_ID}}\"\n",
        quoted(program),
        quoted(project),
        quoted(dir),
    )
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Resources;

    #[test]
    fn sbatch_is_told_what_jobs_need() {
        let batch = Batch {
            name: "decanus-1".into(),
            resources: Resources {
                cpus: Some(4),
                memory: Some((1 << 30) + 1),
                time: None,
            },
            limit: Some(Duration::from_secs(61)),
            elements: vec![vec![0, 1], vec![2]],
        };
        let settings = SlurmSettings {
            partition: Some("long".into()),
            args: vec!["--gres=gpu:1".into()],
            ..SlurmSettings::default()
        };
        let args = sbatch(&batch, &settings, "/b/log.%a", "/p").join(" ");
        assert_eq!(
            args,
            "--parsable --no-requeue --job-name=decanus-1 --array=0-1 --output=/b/log.%a --chdir=/p --cpus-per-task=4 \
             --mem=1025M --time=3 --partition=long --gres=gpu:1"
        );
    }

    #[test]
    fn what_slurm_prints_is_understood() {
        assert_eq!(submitted("12\n").as_deref(), Some("12"));
        assert_eq!(submitted("sbatch: note\n12;c1\n").as_deref(), Some("12"));
        assert_eq!(submitted("sbatch: error"), None);
        let lost = |word: &str| Progress::Ended(Outcome::Lost(word.into()));
        let states = squeue("5_0|RUNNING|None\n5_1|PENDING|Resources\n5_2|NODE_FAIL|x|y\n5_3|COMPLETED|None\njunk\n");
        assert_eq!(states["5_0"], Progress::Running);
        assert_eq!(states["5_1"], Progress::Pending(None));
        assert_eq!(states["5_2"], lost("NODE_FAIL"));
        assert_eq!(
            (&states["5_3"], states.len()),
            (&Progress::Ended(Outcome::Completed), 4)
        );
        let states = scontrol(
            "JobId=9 ArrayJobId=7 ArrayTaskId=2 JobName=x JobState=TIMEOUT Reason=TimeLimit Dependency=(null)\n\
             JobId=7 ArrayJobId=7 ArrayTaskId=3-4,6%2 JobName=x JobState=PENDING Reason=Priority\n",
        );
        assert_eq!(states["7_2"], Progress::Ended(Outcome::TimedOut));
        assert_eq!(states["7_6"], Progress::Pending(None));
        assert_eq!(states.len(), 4);
        let states = sacct("7_2|CANCELLED by 0\n7_2.batch|CANCELLED\n7_3|OUT_OF_MEMORY\n");
        assert_eq!((&states["7_2"], states.len()), (&lost("CANCELLED"), 2));
        let held = squeue("5_0|PENDING|JobHeldUser\n");
        assert_eq!(held["5_0"], Progress::Pending(Some("JobHeldUser".into())));
    }

    #[test]
    fn a_script_is_the_same_whatever_the_jobs_are() {
        let script = script("/bin/de'canus", "/p q", "/b;rm");
        let line = script.lines().last().unwrap();
        assert_eq!(
            line,
            "exec '/bin/de'\\''canus' -C '/p q' job exec --id \"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}\" \
             \"@\"'/b;rm'\"/list.${SLURM_ARRAY_TASK_ID}\""
        );
    }
}
