//! A server process that does not outlive the test.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::ServerError;

/// A program of the system that tests need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name, to be found in `PATH`.
    pub name: &'static str,
    /// The package of Debian that brings it.
    pub package: &'static str,
}

impl Program {
    /// Runs the program to its end and returns what it wrote to standard output.
    ///
    /// # Errors
    ///
    /// When it is missing, which names the command to install it, or ends with a failure.
    pub fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<String, ServerError> {
        let output = Command::new(self.name)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| self.cannot_run(&error))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(ServerError::new(format!("{} ended with {}: {said}", self.name, output.status)))
    }

    fn cannot_run(&self, error: &io::Error) -> ServerError {
        if error.kind() == ErrorKind::NotFound {
            return ServerError::new(format!(
                "{0} is missing; install it with `sudo apt-get install --yes {1}`, or run `cargo xtask test`, which does",
                self.name, self.package
            ));
        }
        ServerError::because(format_args!("{} cannot be run", self.name), error)
    }
}

/// A running server. Dropping it kills it and waits until it is gone.
///
/// When this process dies without dropping anything, a small helper process kills the server.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Child,
    watch: Option<Child>,
    log: PathBuf,
    gone: bool,
    frozen: AtomicBool,
}

impl Process {
    /// Starts `program` with `args` and `envs` in `directory`, and its output in the file `log` below it.
    ///
    /// # Errors
    ///
    /// When it is missing, which names the command to install it, or cannot be started.
    pub fn start(
        program: Program,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        envs: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
        directory: &Path,
    ) -> Result<Self, ServerError> {
        let log = directory.join("output.log");
        let output = |error| ServerError::because(log.display(), &error);
        let file = File::options().create(true).append(true).open(&log).map_err(output)?;
        let errors = file.try_clone().map_err(output)?;
        let child = Command::new(program.name)
            .args(args)
            .envs(envs)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(|error| program.cannot_run(&error))?;
        let mut process =
            Self { program, child, watch: None, log, gone: false, frozen: AtomicBool::new(false) };
        process.watch = Some(watch(process.child.id())?);
        Ok(process)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` says so, while the process runs.
    ///
    /// # Errors
    ///
    /// When it ends, or is not ready within `limit`: with the last reason and with what the server wrote.
    pub fn wait_until_ready(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut() -> Result<(), String>,
    ) -> Result<(), ServerError> {
        let end = Instant::now() + limit;
        loop {
            let why = match ready() {
                Ok(()) => return Ok(()),
                Err(why) => why,
            };
            if let Ok(Some(status)) = self.child.try_wait() {
                self.gone = true;
                self.dismiss_watch();
                return Err(self.failed(&format!("ended at once with {status}")));
            }
            if Instant::now() > end {
                return Err(self.failed(&format!("is not ready after {limit:?}: {why}")));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn failed(&self, how: &str) -> ServerError {
        ServerError::new(format!("{} {how}\n{}", self.program.name, self.output()))
    }

    /// What the server has written so far.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Whether it was neither killed nor frozen.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.gone && !self.frozen.load(Ordering::SeqCst)
    }

    /// Freezes it (`SIGSTOP`): its connections stay open, and nothing is answered.
    ///
    /// # Panics
    ///
    /// When it was killed before.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        self.frozen.store(true, Ordering::SeqCst);
        // Its threads stop one after the other, and one of them may still answer meanwhile.
        let limit = Instant::now() + Duration::from_secs(5);
        while !self.has_stopped() {
            assert!(Instant::now() < limit, "{} does not stop", self.pid());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether all of its threads stand still.
    fn has_stopped(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else { return true };
        threads.flatten().all(|thread| {
            let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { return true };
            // The state follows the name, which is in parentheses.
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
        })
    }

    /// Lets it go on after [`pause`](Self::pause) (`SIGCONT`).
    ///
    /// # Panics
    ///
    /// When it was killed before.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
        self.frozen.store(false, Ordering::SeqCst);
    }

    fn signal(&self, signal: Signal) {
        assert!(!self.gone, "{} was killed before", self.program.name);
        // The process was not waited for, so its id cannot have passed on to another one.
        kill_process(Pid::from_child(&self.child), signal).expect("our own process can be signalled");
    }

    /// Kills it (`SIGKILL`) and waits until it is gone. Does nothing the second time.
    pub fn kill(&mut self) {
        if !self.gone {
            drop(self.child.kill());
            drop(self.child.wait());
            self.gone = true;
        }
        self.dismiss_watch();
    }

    /// Asks it to end in an orderly way (`SIGTERM`) and waits for that; after `limit` it is killed.
    pub fn terminate(&mut self, limit: Duration) {
        self.end_by(Signal::TERM, limit);
    }

    /// Asks it to end at once (`SIGQUIT`) and waits for that; after `limit` it is killed.
    pub fn quit(&mut self, limit: Duration) {
        self.end_by(Signal::QUIT, limit);
    }

    fn end_by(&mut self, signal: Signal, limit: Duration) {
        if !self.gone {
            self.signal(signal);
            let end = Instant::now() + limit;
            while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(2));
            }
        }
        self.kill();
    }

    /// The server is gone and waited for: its id is no longer ours to signal.
    fn dismiss_watch(&mut self) {
        if let Some(mut watch) = self.watch.take() {
            if let Some(mut line) = watch.stdin.take() {
                drop(line.write_all(b"\n"));
            }
            drop(watch.wait());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A shell that waits for a line from us, and kills the server if we end without one.
fn watch(pid: u32) -> Result<Child, ServerError> {
    const SCRIPT: &str = "trap '' INT TERM HUP; read line || kill -KILL \"$1\"";
    Command::new("sh")
        .args(["-c", SCRIPT, "watch", &pid.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| ServerError::because("sh cannot be run", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ENV: [(&str, &str); 0] = [];
    const SLEEP: Program = Program { name: "sleep", package: "coreutils" };

    fn is_running(pid: u32) -> bool {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::test_kill_process(pid).is_ok()
    }

    #[test]
    fn a_missing_program_names_the_command_that_installs_it() {
        let missing = Program { name: "no-such-server", package: "the-package" };
        let directory = tempfile::tempdir().unwrap();
        let error = Process::start(missing, ["x"], NO_ENV, directory.path()).unwrap_err();
        assert!(error.to_string().contains("apt-get install --yes the-package"), "{error}");
        let error = missing.run(["x"]).unwrap_err();
        assert!(error.to_string().contains("apt-get install --yes the-package"), "{error}");
    }

    #[test]
    fn a_dropped_process_is_gone_also_after_a_panic_and_when_frozen() {
        let directory = tempfile::tempdir().unwrap();
        let process = Process::start(SLEEP, ["600"], NO_ENV, directory.path()).unwrap();
        let pid = process.pid();
        assert!(is_running(pid));
        process.pause();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _server = process;
            panic!("a test fails");
        }));
        assert!(panicked.is_err());
        assert!(!is_running(pid));
    }

    #[test]
    fn a_server_that_ends_at_once_is_reported_with_what_it_said() {
        let directory = tempfile::tempdir().unwrap();
        let shell = Program { name: "sh", package: "dash" };
        let mut process =
            Process::start(shell, ["-c", "echo no such option; exit 3"], NO_ENV, directory.path()).unwrap();
        let error = process
            .wait_until_ready(Duration::from_secs(10), || Err("no answer".to_owned()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such option"), "{error}");
    }

    #[test]
    fn a_server_dies_with_the_process_that_started_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = Process::start(SLEEP, ["600"], NO_ENV, directory.path()).unwrap();
        // What the system does to our end of the pipe when we are killed.
        drop(process.watch.as_mut().unwrap().stdin.take());
        let status = process.child.wait().unwrap();
        process.gone = true;
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}
