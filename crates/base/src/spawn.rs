//! Starting a process without copying this one.
//!
//! `fork` copies the page tables of its caller, which takes milliseconds when that holds much memory, and a run of ten
//! thousand jobs forks as often. The standard library goes the quick way only when nothing has to be done between fork and
//! exec, but the parent-death signal has to be set there. So here the child shares the memory until it has become the new
//! program (`CLONE_VM | CLONE_VFORK`, as `posix_spawn` of glibc does it); the calling thread sleeps meanwhile.

use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use libc::{c_char, c_int, c_void, pid_t};

/// What the child's first steps may need of the stack.
const STACK: usize = 64 << 10;

/// A program that is to be started: in a process group of its own, ended by the system when this process ends.
pub(crate) struct Program {
    pub argv: Vec<OsString>,
    pub dir: PathBuf,
    /// All of its environment.
    pub env: HashMap<OsString, OsString>,
    pub stdin: File,
    pub stdout: File,
    pub stderr: File,
}

/// A process that was started here.
#[derive(Debug)]
pub(crate) struct Started {
    pid: pid_t,
    /// Is readable when it has ended; old kernels have none.
    handle: Option<OwnedFd>,
}

/// What the child is told. Everything that it needs was made before it: it may neither allocate nor lock.
struct Setup {
    program: *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    dir: *const c_char,
    streams: [RawFd; 3],
    parent: pid_t,
    /// The number of the error that kept it from becoming the program.
    error: c_int,
}

impl Program {
    /// Starts it. The parent-death signal follows the thread that calls this.
    ///
    /// # Errors
    /// Those of finding and starting a program; a NUL in what it is given.
    pub fn start(&self) -> io::Result<Started> {
        let name = self.argv.first().map(OsString::as_os_str).unwrap_or_default();
        let program = text(
            find(
                name,
                self.env.get(OsStr::new("PATH")).map(OsString::as_os_str),
                &self.dir,
            )?
            .into_os_string(),
        )?;
        let argv = self.argv.iter().cloned().map(text).collect::<io::Result<Vec<_>>>()?;
        let variable = |(name, value): (&OsString, &OsString)| text([name.as_bytes(), b"=", value.as_bytes()].concat());
        let env = self.env.iter().map(variable).collect::<io::Result<Vec<_>>>()?;
        let dir = text(self.dir.as_os_str())?;
        let mut kept = Vec::new();
        let mut stream = |file: &File| -> io::Result<RawFd> {
            // One of the first three would be overwritten before it is used; a clone never is one of them.
            if file.as_raw_fd() > 2 {
                return Ok(file.as_raw_fd());
            }
            kept.push(file.try_clone()?);
            Ok(kept.last().map_or(-1, AsRawFd::as_raw_fd))
        };
        let (argv, env) = (pointers(&argv), pointers(&env));
        let mut setup = Setup {
            program: program.as_ptr(),
            argv: argv.as_ptr(),
            env: env.as_ptr(),
            dir: dir.as_ptr(),
            streams: [stream(&self.stdin)?, stream(&self.stdout)?, stream(&self.stderr)?],
            parent: pid_t::try_from(std::process::id()).unwrap_or_default(),
            error: 0,
        };
        let pid = begin(&mut setup)?;
        if setup.error != 0 {
            // It has ended itself.
            let _ = wait(pid, 0);
            return Err(io::Error::from_raw_os_error(setup.error));
        }
        Ok(Started {
            pid,
            handle: handle(pid),
        })
    }
}

/// Where a program is: as `execvp` finds it.
fn find(name: &OsStr, path: Option<&OsStr>, dir: &Path) -> io::Result<PathBuf> {
    if name.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let mut error = io::ErrorKind::NotFound;
    for folder in std::env::split_paths(path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"))) {
        // Relative ones are relative to where the program runs.
        let place = dir.join(folder).join(name);
        let Ok(c_place) = text(place.as_os_str()) else { continue };
        if place.is_dir() {
            continue;
        }
        // SAFETY: the text ends with NUL and lives until the call returns.
        #[allow(unsafe_code)]
        let can_run = unsafe { libc::access(c_place.as_ptr(), libc::X_OK) } == 0;
        match can_run {
            true => return Ok(place),
            false if place.exists() => error = io::ErrorKind::PermissionDenied,
            false => {}
        }
    }
    Err(error.into())
}

fn text(bytes: impl Into<OsStringOrBytes>) -> io::Result<CString> {
    CString::new(bytes.into().0).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "a NUL character can't be passed to a process",
        )
    })
}

/// Bytes of either.
struct OsStringOrBytes(Vec<u8>);

impl From<OsString> for OsStringOrBytes {
    fn from(text: OsString) -> Self {
        Self(text.into_vec())
    }
}

impl From<&OsStr> for OsStringOrBytes {
    fn from(text: &OsStr) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for OsStringOrBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// A list as C has it, with a null at its end.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts
        .iter()
        .map(|t| t.as_ptr())
        .chain(std::iter::once(std::ptr::null()))
        .collect()
}

#[allow(unsafe_code)]
fn begin(setup: &mut Setup) -> io::Result<pid_t> {
    let mut stack = vec![0u128; STACK / size_of::<u128>()];
    let mut all = std::mem::MaybeUninit::uninit();
    let mut before = std::mem::MaybeUninit::uninit();
    // SAFETY: the child runs `become_program` on a stack of its own, which lives until it has become another program or has
    // ended: this thread sleeps until then (CLONE_VFORK). What `setup` points to lives as long. All signals are blocked, so
    // that no handler of ours runs in the child.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let top = stack.as_mut_ptr().add(stack.len());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let pid = libc::clone(become_program, top.cast(), flags, std::ptr::from_mut(setup).cast());
        let failed = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        if pid < 0 { Err(failed) } else { Ok(pid) }
    }
}

/// The child's way from the clone to the program.
#[allow(unsafe_code)]
extern "C" fn become_program(setup: *mut c_void) -> c_int {
    // SAFETY: `setup` is the caller's, which sleeps; only async-signal-safe calls are made. Signal handlers, the group and
    // open files are the child's own, only memory is shared.
    unsafe {
        let setup = &mut *setup.cast::<Setup>();
        if !prepare(setup) {
            setup.error = *libc::__errno_location();
        } else if libc::getppid() != setup.parent {
            // The parent has died.
            setup.error = libc::ESRCH;
        } else {
            libc::execve(setup.program, setup.argv, setup.env);
            setup.error = *libc::__errno_location();
        }
        libc::_exit(127)
    }
}

#[allow(unsafe_code)]
unsafe fn prepare(setup: &Setup) -> bool {
    // SAFETY: as for `become_program`.
    unsafe {
        if libc::setpgid(0, 0) != 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return false;
        }
        for (to, from) in (0..).zip(setup.streams) {
            if libc::dup2(from, to) < 0 {
                return false;
            }
        }
        if libc::chdir(setup.dir) != 0 {
            return false;
        }
        // Handlers of ours would run in memory that is not the child's; what is ignored stays so, but for SIGPIPE, which
        // Rust ignores in its own programs only.
        for signal in 1..=64 {
            let mut now = std::mem::zeroed::<libc::sigaction>();
            if libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0
                && (now.sa_sigaction != libc::SIG_IGN || signal == libc::SIGPIPE)
                && now.sa_sigaction != libc::SIG_DFL
            {
                now.sa_sigaction = libc::SIG_DFL;
                now.sa_flags = 0;
                libc::sigaction(signal, &raw const now, std::ptr::null_mut());
            }
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) == 0
    }
}

#[allow(unsafe_code)]
fn handle(pid: pid_t) -> Option<OwnedFd> {
    // SAFETY: a system call without pointers; what it gives is a new descriptor of ours.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        c_int::try_from(fd)
            .ok()
            .filter(|fd| *fd >= 0)
            .map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// How a process ended, if it has.
#[allow(unsafe_code)]
fn wait(pid: pid_t, options: c_int) -> io::Result<Option<ExitStatus>> {
    let mut status = 0;
    loop {
        // SAFETY: the number is written to a variable that lives until the call returns.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, options) };
        match ended {
            0 => return Ok(None),
            pid if pid > 0 => return Ok(Some(ExitStatus::from_raw(status))),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

impl Started {
    /// Its process id, and its group's.
    pub fn id(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// How it ended, if it has. To be called no more when it has.
    ///
    /// # Errors
    /// Those of waiting for a child.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        wait(self.pid, libc::WNOHANG)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// Those of waiting for a child.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = wait(self.pid, 0)? {
                return Ok(status);
            }
        }
    }

    /// Sleeps so long, or until it has ended where the system can tell.
    #[allow(unsafe_code)]
    pub fn pause(&self, time: Duration) {
        let Some(handle) = &self.handle else {
            std::thread::sleep(time);
            return;
        };
        let mut wanted = libc::pollfd {
            fd: handle.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let millis = c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX).max(1);
        // SAFETY: one descriptor, which lives until the call returns.
        unsafe {
            libc::poll(&raw mut wanted, 1, millis);
        }
    }
}
