//! Child processes: started by one thread that lives as long as decanus does, in a process group of their own, ended
//! with everything they started.
//!
//! The parent-death signal of Linux follows the *thread* that forked, so a pool thread that ends would take its
//! children with it. All children are therefore forked by one supervisor thread.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

#[cfg(target_os = "linux")]
use crate::spawn::{Program, Started};

/// Time between the polite signal and the one that cannot be refused.
pub const GRACE: Duration = Duration::from_secs(2);

/// How soon it is seen that somebody wants a process to end, or that its time is up.
#[cfg(target_os = "linux")]
const NOTICE: Duration = Duration::from_millis(15);

/// What to start.
#[derive(Debug)]
pub struct Spec {
    /// Program and arguments, as they are given to the system; no shell is involved.
    pub argv: Vec<OsString>,
    /// Working directory.
    pub dir: PathBuf,
    /// Variables set on top of those inherited.
    pub env: Vec<(String, OsString)>,
    /// Standard input; `None` is empty.
    pub stdin: Option<File>,
    /// Where standard output goes.
    pub stdout: File,
    /// Where standard error goes.
    pub stderr: File,
    /// Ended after this time.
    pub timeout: Option<Duration>,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this exit code.
    Exit(i32),
    /// By this signal, which did not come from us.
    Signal(i32),
    /// By us, since its time was up.
    TimedOut,
    /// By us, since nobody wanted it any more.
    Cancelled,
}

/// What the supervisor thread is asked for.
enum Order {
    Command(Box<Command>, Sender<io::Result<Child>>),
    #[cfg(target_os = "linux")]
    Program(Box<Program>, Sender<io::Result<Started>>),
}

fn supervisor() -> &'static Sender<Order> {
    static SUPERVISOR: OnceLock<Sender<Order>> = OnceLock::new();
    SUPERVISOR.get_or_init(|| {
        let (sender, receiver) = channel::<Order>();
        // A thread that can't be started leaves a channel without a receiver; `spawn` below reports that.
        let _ = std::thread::Builder::new().name("supervisor".into()).spawn(move || {
            for order in receiver {
                match order {
                    Order::Command(mut command, reply) => drop(reply.send(command.spawn())),
                    #[cfg(target_os = "linux")]
                    Order::Program(program, reply) => drop(reply.send(program.start())),
                }
            }
        });
        sender
    })
}

/// Starts a command in a process group of its own; it gets SIGKILL when decanus dies.
///
/// # Errors
/// Those of starting a process (the program does not exist, for instance).
pub fn spawn(mut command: Command) -> io::Result<Child> {
    command.process_group(0);
    die_with_parent(&mut command);
    order(|reply| Order::Command(Box::new(command), reply))
}

/// Has the supervisor thread start something.
fn order<T>(make: impl FnOnce(Sender<io::Result<T>>) -> Order) -> io::Result<T> {
    let (reply, answer) = channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    supervisor().send(make(reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// Starts a command that outlives decanus: in a session of its own, so that neither the end of its parent nor that of the
/// terminal ends it. Its process id is also that of its group. A thread waits for it, so that no zombie is left.
///
/// # Errors
/// Those of starting a process (the program does not exist, for instance).
pub fn spawn_detached(mut command: Command) -> io::Result<Detached> {
    new_session(&mut command);
    let mut child = command.spawn()?;
    let pid = child.id();
    let (sender, ended) = channel();
    std::thread::Builder::new()
        .name("reaper".into())
        .stack_size(64 << 10)
        .spawn(move || {
            if let Ok(status) = child.wait() {
                let _ = sender.send(status);
            }
        })?;
    Ok(Detached { pid, ended })
}

/// A process that outlives decanus.
#[derive(Debug)]
pub struct Detached {
    /// Its process id, and its group's.
    pub pid: u32,
    ended: Receiver<ExitStatus>,
}

impl Detached {
    /// How it ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.ended.try_recv().ok().map(ended)
    }
}

#[allow(unsafe_code)]
fn new_session(command: &mut Command) {
    // SAFETY: between fork and exec only setsid is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from));
    }
}

/// What a process and its children may use. The system enforces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimits {
    /// Processor time in seconds.
    pub cpu: u64,
    /// Address space in bytes.
    pub memory: u64,
    /// Size of a file that it writes, in bytes.
    pub file_size: u64,
    /// Open files.
    pub files: u64,
    /// Processes and threads that its user has, those that run already included; does not hold for root.
    pub processes: u64,
}

/// Has a command start under limits, without a core file, and unable to gain rights (by setuid programs, say).
#[allow(unsafe_code)]
pub fn limit(command: &mut Command, limits: Rlimits) {
    // SAFETY: between fork and exec only async-signal-safe calls are made: setrlimit, prctl and the construction of an
    // error from a number.
    unsafe {
        command.pre_exec(move || {
            for (resource, most) in [
                (libc::RLIMIT_CPU, limits.cpu),
                (libc::RLIMIT_AS, limits.memory),
                (libc::RLIMIT_FSIZE, limits.file_size),
                (libc::RLIMIT_NOFILE, limits.files),
                (libc::RLIMIT_NPROC, limits.processes),
                (libc::RLIMIT_CORE, 0),
            ] {
                let mut now = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                if libc::getrlimit(resource, &raw mut now) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // A limit that is lower already stays; one may not be raised either.
                let most = (most as libc::rlim_t).min(now.rlim_max);
                let wanted = libc::rlimit {
                    rlim_cur: most,
                    rlim_max: most,
                };
                if libc::setrlimit(resource, &raw const wanted) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            #[cfg(target_os = "linux")]
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Processes and threads of this user, for [`Rlimits::processes`]. 0 where that can't be told.
pub fn user_threads() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let (Ok(own), Ok(processes)) = (std::fs::metadata("/proc/self"), std::fs::read_dir("/proc")) else {
        return 0;
    };
    let user = own.uid();
    let of_user = |entry: &std::fs::DirEntry| {
        entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit)
            && entry.metadata().is_ok_and(|m| m.uid() == user)
    };
    let threads = |entry: std::fs::DirEntry| std::fs::read_dir(entry.path().join("task")).map_or(0, Iterator::count);
    processes.flatten().filter(of_user).map(|e| threads(e) as u64).sum()
}

#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid and the construction of an
    // error from a number.
    unsafe {
        command.pre_exec(move || {
            #[cfg(target_os = "linux")]
            {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before prctl was reached.
                if libc::getppid() as u32 != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
            Ok(())
        });
    }
}

/// Starts a process, waits for it, and ends its whole group when its time is up or `cancelled` says so. `started` is
/// told the process id (which is also the group's).
///
/// # Errors
/// Those of starting it. How it ended is the result.
#[cfg(target_os = "linux")]
pub fn run(spec: Spec, cancelled: &dyn Fn() -> bool, started: &mut dyn FnMut(u32)) -> io::Result<Ended> {
    if spec.argv.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program given"));
    }
    let own = spec.env.into_iter().map(|(name, value)| (name.into(), value));
    let program = Program {
        argv: spec.argv,
        dir: spec.dir,
        env: std::env::vars_os().chain(own).collect(),
        stdin: spec.stdin.map_or_else(|| File::open("/dev/null"), Ok)?,
        stdout: spec.stdout,
        stderr: spec.stderr,
    };
    let mut child = order(|reply| Order::Program(Box::new(program), reply))?;
    let id = child.id();
    started(id);
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            end_group(id, Signal::SIGKILL);
            return Ok(ended(status));
        }
        let why = if cancelled() {
            Ended::Cancelled
        } else if spec.timeout.is_some_and(|t| start.elapsed() >= t) {
            Ended::TimedOut
        } else {
            child.pause(NOTICE);
            continue;
        };
        end_group(id, Signal::SIGTERM);
        let asked = Instant::now();
        let mut has_ended = child.try_wait()?.is_some();
        while !has_ended && asked.elapsed() < GRACE {
            child.pause(NOTICE);
            has_ended = child.try_wait()?.is_some();
        }
        // Also when the leader is gone: what it started may still run.
        end_group(id, Signal::SIGKILL);
        if !has_ended {
            child.wait()?;
        }
        return Ok(why);
    }
}

/// Starts a process, waits for it, and ends its whole group when its time is up or `cancelled` says so. `started` is
/// told the process id (which is also the group's).
///
/// # Errors
/// Those of starting it. How it ended is the result.
#[cfg(not(target_os = "linux"))]
pub fn run(spec: Spec, cancelled: &dyn Fn() -> bool, started: &mut dyn FnMut(u32)) -> io::Result<Ended> {
    let Some((program, arguments)) = spec.argv.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program given"));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(&spec.dir)
        .envs(spec.env)
        .stdin(
            spec.stdin
                .map_or_else(std::process::Stdio::null, std::process::Stdio::from),
        )
        .stdout(spec.stdout)
        .stderr(spec.stderr);
    run_command(command, spec.timeout, cancelled, started)
}

/// [`run`] for a command that is made already, with whatever environment and streams it was given.
///
/// # Errors
/// Those of starting it. How it ended is the result.
pub fn run_command(
    command: Command,
    timeout: Option<Duration>,
    cancelled: &dyn Fn() -> bool,
    started: &mut dyn FnMut(u32),
) -> io::Result<Ended> {
    let mut child = spawn(command)?;
    started(child.id());
    let start = Instant::now();
    let mut pause = Duration::from_micros(300);
    loop {
        if let Some(status) = child.try_wait()? {
            end_group(child.id(), Signal::SIGKILL);
            return Ok(ended(status));
        }
        let why = if cancelled() {
            Ended::Cancelled
        } else if timeout.is_some_and(|t| start.elapsed() >= t) {
            Ended::TimedOut
        } else {
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(Duration::from_millis(15));
            continue;
        };
        stop(&mut child)?;
        return Ok(why);
    }
}

/// Ends a child and all of its group: TERM, then KILL after [`GRACE`].
///
/// # Errors
/// Those of waiting for the child.
pub fn stop(child: &mut Child) -> io::Result<()> {
    end_group(child.id(), Signal::SIGTERM);
    let start = Instant::now();
    while child.try_wait()?.is_none() && start.elapsed() < GRACE {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Also when the leader is gone: what it started may still run.
    end_group(child.id(), Signal::SIGKILL);
    child.wait()?;
    Ok(())
}

fn end_group(group: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(group) {
        let _ = killpg(Pid::from_raw(pid), signal);
    }
}

/// Ends the group of a process that is not our child, if its leader is still the one that started then: TERM, then KILL
/// when the leader is there after `patience`, or for whatever it left.
pub fn end_foreign(group: u32, started: u64, patience: Duration) {
    let is_there = || start_time(group) == Some(started);
    if !is_there() {
        return;
    }
    end_group(group, Signal::SIGTERM);
    let start = Instant::now();
    while is_there() && start.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    end_group(group, Signal::SIGKILL);
    let start = Instant::now();
    while is_there() && start.elapsed() < GRACE {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the group of a job whose owner died, if the group's leader is still the process that the record names.
pub fn end_orphan(group: u32, started: u64) {
    if start_time(group) == Some(started) {
        end_group(group, Signal::SIGKILL);
    }
}

/// Ends what is left of a group whose leader is gone already: every process of that group that has the variable `name`
/// with this value in its environment. The variable tells them from the processes of a later group of the same number.
pub fn end_marked(group: u32, name: &str, value: &std::ffi::OsStr) {
    use std::os::unix::ffi::OsStrExt;
    let marker = [name.as_bytes(), b"=", value.as_bytes()].concat();
    let is_left = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
        // After the command: state, parent, group.
        let in_group = rest.split_whitespace().nth(2) == Some(group.to_string().as_str());
        in_group && {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|b| *b == 0).any(|entry| entry == marker)
        }
    };
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return;
    };
    for pid in processes
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
    {
        if is_left(pid)
            && let Ok(pid) = i32::try_from(pid)
        {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    match status.code() {
        Some(code) => Ended::Exit(code),
        None => Ended::Signal(status.signal().unwrap_or(0)),
    }
}

/// When a process started, in clock ticks since boot (field 22 of `/proc/PID/stat`): with the pid it names a process
/// for good, although pids are used again. `None` when there is no such process.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command in parentheses and may hold anything; the fields after its last `)` are plain.
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether this process leads its group: then the group's number is its process id.
pub fn leads_its_group() -> bool {
    u32::try_from(nix::unistd::getpgrp().as_raw()).is_ok_and(|group| group == std::process::id())
}

/// The name of this machine.
pub fn host() -> String {
    nix::unistd::gethostname()
        .map(|h| h.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn sh(script: &str, timeout: Option<Duration>, cancelled: &dyn Fn() -> bool) -> (Ended, String) {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let spec = Spec {
            argv: ["sh", "-c", script].map(OsString::from).into(),
            dir: dir.path().to_owned(),
            env: vec![("GREETING".into(), "hello".into())],
            stdin: None,
            stdout: File::create(&out).unwrap(),
            stderr: File::create(dir.path().join("err")).unwrap(),
            timeout,
        };
        let ended = run(spec, cancelled, &mut |_| {}).unwrap();
        (ended, std::fs::read_to_string(out).unwrap())
    }

    #[test]
    fn exit_codes_output_and_environment() {
        assert_eq!(
            sh("echo $GREETING; exit 3", None, &|| false),
            (Ended::Exit(3), "hello\n".into())
        );
        assert_eq!(sh("kill -9 $$", None, &|| false).0, Ended::Signal(9));
    }

    #[test]
    fn a_program_is_found_and_started_as_a_shell_would() {
        let dir = tempfile::tempdir().unwrap();
        let start = |argv: &[&str], path: Option<&str>| {
            let file = || File::create(dir.path().join("out")).unwrap();
            let spec = Spec {
                argv: argv.iter().map(OsString::from).collect(),
                dir: dir.path().to_owned(),
                env: path.map(|p| ("PATH".into(), p.into())).into_iter().collect(),
                stdin: None,
                stdout: file(),
                stderr: file(),
                timeout: None,
            };
            run(spec, &|| false, &mut |_| {})
        };
        let kind = |result: io::Result<Ended>| result.unwrap_err().kind();
        let script = dir.path().join("own");
        std::fs::write(&script, "#!/bin/sh\nexit 7\n").unwrap();
        // One that may not be run is told from one that is not there.
        assert_eq!(kind(start(&["./own"], None)), io::ErrorKind::PermissionDenied);
        assert_eq!(kind(start(&["own"], Some("."))), io::ErrorKind::PermissionDenied);
        assert_eq!(kind(start(&["no-such-program"], None)), io::ErrorKind::NotFound);
        assert_eq!(kind(start(&[""], None)), io::ErrorKind::NotFound);
        assert_eq!(kind(start(&["true", "a\0b"], None)), io::ErrorKind::InvalidInput);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Relative places are relative to the folder that the program runs in.
        assert_eq!(start(&["./own"], None).unwrap(), Ended::Exit(7));
        assert_eq!(start(&["own"], Some("/no/such/folder:.")).unwrap(), Ended::Exit(7));
        // Signals are as a new program expects them: a writer whose reader is gone ends by SIGPIPE.
        let piped = "kill -PIPE $$; exit 3";
        assert_eq!(start(&["sh", "-c", piped], None).unwrap(), Ended::Signal(libc::SIGPIPE));
        let ignored = "grep -q '^SigBlk:[[:space:]]*0*$' /proc/self/status";
        assert_eq!(start(&["sh", "-c", ignored], None).unwrap(), Ended::Exit(0));
    }

    #[test]
    fn a_time_limit_ends_the_whole_group() {
        let start = Instant::now();
        let (ended, out) = sh("sleep 60 & echo $!; wait", Some(Duration::from_millis(200)), &|| false);
        assert_eq!(ended, Ended::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(10));
        let grandchild: u32 = out.trim().parse().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(start_time(grandchild), None, "the grandchild outlived its group");
    }

    #[test]
    fn one_that_ignores_term_is_killed() {
        let (ended, _) = sh(
            "trap '' TERM; while :; do sleep 0.1; done",
            Some(Duration::from_millis(100)),
            &|| false,
        );
        assert_eq!(ended, Ended::TimedOut);
    }

    #[test]
    fn limits_hold_for_a_command() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "ulimit -c; ulimit -f; ulimit -n; ulimit -t; ulimit -v; head -c 9999 /dev/zero > big",
            ])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(Stdio::null());
        let limits = Rlimits {
            cpu: 7,
            memory: 1 << 30,
            file_size: 4096,
            files: 20,
            processes: user_threads() + 50,
        };
        limit(&mut command, limits);
        let ended = run_command(command, Some(Duration::from_secs(20)), &|| false, &mut |_| {}).unwrap();
        assert!(!matches!(ended, Ended::Exit(0) | Ended::TimedOut), "{ended:?}");
        let shown = std::fs::read_to_string(out).unwrap();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            (lines[0], lines[2], lines[3], lines[4]),
            ("0", "20", "7", "1048576"),
            "{shown}"
        );
        assert_eq!(std::fs::metadata(dir.path().join("big")).unwrap().len(), 4096);
    }

    #[test]
    fn cancelling_ends_it() {
        let start = Instant::now();
        let (ended, _) = sh("sleep 60", None, &|| start.elapsed() > Duration::from_millis(100));
        assert_eq!(ended, Ended::Cancelled);
    }

    #[test]
    fn a_foreign_group_is_ended_with_what_ignores_term() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let mut command = Command::new("sh");
        let script = "trap '' TERM; sleep 300 & echo $! > \"$0.new\"; mv \"$0.new\" \"$0\"; wait; sleep 300";
        command.args(["-c", script]).arg(&file).stdin(Stdio::null());
        let detached = spawn_detached(command).unwrap();
        let child: u32 = loop {
            match std::fs::read_to_string(&file) {
                Ok(text) => break text.trim().parse().unwrap(),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let started = start_time(detached.pid).unwrap();
        // Another process of that number is left alone.
        end_foreign(detached.pid, started + 1, Duration::ZERO);
        assert!(start_time(child).is_some() && detached.ended().is_none());
        end_foreign(detached.pid, started, Duration::from_millis(50));
        assert_eq!(start_time(detached.pid), None);
        for _ in 0..200 {
            if start_time(child).is_none() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(start_time(child), None, "its child goes on");
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let mut command = Command::new("/nonexistent/program");
        command.stdin(Stdio::null());
        assert_eq!(spawn(command).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_process_is_known_by_its_start_time() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(u32::MAX - 7), None);
    }
}
