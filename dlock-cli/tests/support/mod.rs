//! Programs that are started, and what they say.

// Each test target uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A lock store, and a directory for whatever else a test needs.
pub struct Store {
    directory: tempfile::TempDir,
    url: String,
}

/// A program to be started.
pub struct Program {
    command: Command,
    input: Option<String>,
    errors: Option<Stdio>,
}

/// A program that runs. Dropping it kills it.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: Box<dyn BufRead + Send>,
    said: String,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Done {
    pub code: u8,
    pub out: String,
    pub err: String,
}

impl Store {
    /// An empty database.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", directory.path().join("locks.db").display());
        let store = Self { directory, url };
        // Looking makes no database.
        assert_eq!(store.run("makes-the-database", &[], "true").done().code, 0);
        store
    }

    /// A store that is there already.
    pub fn at(url: &str) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), url: url.to_owned() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the system says of a process; `X` when there is none.
    pub fn state(&self, pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('X')
    }

    pub fn is_alive(&self, pid: u32) -> bool {
        !matches!(self.state(pid), 'X' | 'Z')
    }

    /// Waits until the process has ended whose id is in a file.
    pub fn outlives(&self, file: &Path) {
        let pid = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        until("what it started to be dead", || !self.is_alive(pid));
    }

    /// The program without a store.
    pub fn plain(&self, arguments: &[&str]) -> Program {
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_dlock")));
        command.args(arguments).env_remove("DLOCK_URL").current_dir(self.directory.path());
        Program { command, input: None, errors: None }
    }

    pub fn dlock<'a>(&'a self, arguments: impl IntoIterator<Item = &'a str>) -> Program {
        let arguments: Vec<&str> = ["--locks", &self.url].into_iter().chain(arguments).collect();
        self.plain(&arguments)
    }

    /// A shell script under the lock of `key`.
    pub fn run<'a>(&'a self, key: &'a str, options: &[&'a str], script: &'a str) -> Program {
        let front = ["run", "--key", key].into_iter().chain(options.iter().copied());
        self.dlock(front.chain(["--", "/bin/sh", "-c", script]))
    }

    /// Somebody who holds `key` until told to finish.
    pub fn holding(&self, key: &str) -> Running {
        let mut running = self.run(key, &[], "echo ready; read end; true").start();
        running.says("ready");
        running
    }
}

impl Program {
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Where its standard error goes, instead of to [`Done::err`].
    pub fn errors(mut self, to: impl Into<Stdio>) -> Self {
        self.errors = Some(to.into());
        self
    }

    pub fn say(mut self, text: &str) -> Self {
        self.input = Some(text.to_owned());
        self
    }

    /// Has a shell run it, where the script says `"$@"`.
    pub fn by_shell(mut self, script: &str) -> Self {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script, "sh"]);
        self.command = within(shell, &self.command);
        self
    }

    pub fn start(mut self) -> Running {
        // Never at the terminal at which the tests were started. It keeps its id, since it leads no group yet.
        let mut detached = within(Command::new("setsid"), &self.command);
        detached.stdin(Stdio::piped()).stdout(Stdio::piped());
        detached.stderr(self.errors.take().unwrap_or_else(Stdio::piped));
        let mut child = detached.spawn().unwrap();
        let mut input = child.stdin.take();
        let output = Box::new(BufReader::new(child.stdout.take().unwrap()));
        if let Some(text) = &self.input {
            // It may have ended without reading.
            let _ = input.take().unwrap().write_all(text.as_bytes());
        }
        Running { child, input, output, said: String::new() }
    }

    /// Runs to its end with its output on a terminal.
    pub fn on(mut self, terminal: &std::fs::File) -> std::process::ExitStatus {
        self.command.stdin(Stdio::null()).stdout(terminal.try_clone().unwrap()).status().unwrap()
    }

    #[track_caller]
    pub fn done(self) -> Done {
        let has_input = self.input.is_some();
        let mut running = self.start();
        if !has_input {
            running.finish();
        }
        running.wait()
    }
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it ended without a word");
        self.said.push_str(&line);
        line
    }

    /// Waits until it says this.
    pub fn says(&mut self, word: &str) {
        while self.line().trim() != word {}
    }

    /// Waits for the line before a question.
    pub fn asks(&mut self) -> String {
        let mut line = Vec::new();
        let asking = self.child.stderr.as_mut().unwrap();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            asking.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    pub fn answer(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Ends its input.
    pub fn finish(&mut self) {
        self.input = None;
    }

    pub fn signal(&self, number: i32) {
        let status =
            Command::new("kill").args([format!("-{number}"), self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until the program itself has its signals in hand and waits for the lock: it then has its threads.
    pub fn waits_in_the_program(&self) {
        until("it to mind signals", || minds_signals(self.pid()));
    }

    #[track_caller]
    pub fn wait(mut self) -> Done {
        let rest = to_the_end(std::mem::replace(&mut self.output, Box::new(std::io::empty())));
        let err = match self.child.stderr.take() {
            Some(err) => to_the_end(err),
            None => String::new(),
        };
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let code = code.unwrap_or_else(|| panic!("it ended with {status}: {err}"));
        Done { code, out: std::mem::take(&mut self.said) + &rest, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Done {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

/// What is still to be read, which ends when nobody has it open to write.
#[track_caller]
fn to_the_end(mut output: impl Read + Send + 'static) -> String {
    let (done, text) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        let _ = done.send(text);
    });
    text.recv_timeout(LIMIT).expect("something that it started still runs")
}

/// What has another program run a command: with its arguments, its environment and its directory.
fn within(mut runner: Command, command: &Command) -> Command {
    runner.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => runner.env(name, value),
            None => runner.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        runner.current_dir(directory);
    }
    runner
}

/// Whether a process catches TSTP: the last of the signals that the program catches.
pub fn minds_signals(pid: impl std::fmt::Display) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << 19) != 0
}

/// The lines of a text.
pub fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

/// Asks again and again until `test` holds.
pub fn until(what: &str, mut test: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !test() {
        assert!(Instant::now() < end, "{what} took longer than {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
