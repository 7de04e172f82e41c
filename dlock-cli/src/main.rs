//! `dlock`: who holds which lock, and commands that run under one.
//!
//! ```text
//! dlock --locks redis://127.0.0.1/ ls
//! dlock inspect room_7
//! dlock run --key nightly-report --wait 0 -- ./report.sh
//! ```

#![forbid(unsafe_code)]

mod baton;
mod doctor;
mod group;
mod guardian;
mod leader;
mod list;
mod members;
mod once;
mod quorum;
mod release;
mod run;
mod semaphore;
mod show;
mod signals;
mod store;
mod sweep;
mod trouble;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use dlock::Wait;

use crate::trouble::{CODES, Trouble};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Parser)]
#[command(name = "dlock", version, about = "Who holds which lock, and commands that run under one", after_help = CODES)]
struct Cli {
    /// Where the locks are: redis://, redis+sentinel://, redis+cluster://, zk://, postgres://, mysql://, sqlite:///,
    /// 'quorum:URL|URL|URL'
    /// (better not a password on the command line, which others on this host can see). DLOCK_PREFIX stands before
    /// every key, as in services
    #[arg(long, value_name = "URL", env = "DLOCK_URL", hide_env_values = true, global = true)]
    locks: Option<String>,
    /// A file whose first line is the URL, instead of --locks: it shows no password to others
    #[arg(long, value_name = "PATH", global = true)]
    url_file: Option<std::path::PathBuf>,
    /// Print JSON: one document, or with `watch` one in each line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// List all locks that are held
    Ls,
    /// Say who holds a lock, and who waits for it where the backend knows
    Inspect {
        /// The lock's key
        key: String,
        /// KEY is the hash that log lines and spans show in place of a key: look for the key among those that are held
        #[arg(long)]
        hash: bool,
    },
    /// Ask whether the backend answers, and how fast
    Ping,
    /// Look for settings and rights that endanger locks, and say what to do; the exit code is 78 when there is danger
    Doctor,
    /// Show the locks that are held again and again, until interrupted
    Watch(Watch),
    /// Run a command while holding a lock
    ///
    /// The command's exit code is passed through, or 128 and the number of the signal that ended it. Signals are passed
    /// on to it. It finds the key in DLOCK_KEY and the fence in DLOCK_FENCE: have the resource that it works on refuse
    /// lower ones. When the lock is lost, or cannot be renewed, it is stopped with all that it started: TERM, so early
    /// that KILL comes before the lease ends, and the exit code is 79. What it started is found by DLOCK_RUN in its
    /// environment and by its parents, on Linux; elsewhere by its process group, and at a terminal only the command
    /// itself is stopped. When dlock itself is killed, by KILL too, a second process of it stops the command likewise;
    /// TSTP stops both. When all of dlock's processes are killed at once, or stopped by STOP, the command goes on, and
    /// others get the lock after the lease: then only the fence protects.
    ///
    /// With --once the command is a job: when it has ended with 0, the key stays taken until the window is over, and
    /// whoever asks meanwhile, on whichever host, skips it, with a line that says who ran it and when, and exit code
    /// 80. Who asks while it runs waits for its end, and runs it when it fails or its host dies.
    Run(Run),
    /// Locks that a script carries from step to step, in a file: taken here, released elsewhere
    #[command(subcommand)]
    Baton(baton::BatonTask),
    /// Who leads: elections, which are locks that candidates hold as terms of office
    #[command(subcommand)]
    Leader(Leader),
    /// The members of a quorum, by its quorum: URL
    #[command(subcommand)]
    Quorum(QuorumTask),
    #[command(name = guardian::NAME, hide = true)]
    Guardian,
    /// How many permits a semaphore has
    Semaphore {
        #[command(subcommand)]
        task: SemaphoreTask,
    },
    /// Take a lock away from whoever holds it
    ///
    /// The holder is not stopped: it learns of the loss at its next renewal, up to a third of its lease later. The next
    /// grant has a higher fence. All who share the lock lose it. Only what was shown is released: the server compares
    /// in the step that frees the key, and where another one has come to hold it meanwhile, nothing is released (exit
    /// code 75). Where a session keeps the lock, it is compared directly before the session is ended. A quorum
    /// compares on each of its nodes.
    Release(Release),
}

#[derive(Debug, Subcommand)]
enum QuorumTask {
    /// Say which nodes vote, and why others do not
    Show,
    /// Vouch that no lock is held on any node, so that all of them vote at once in the quorum of the URL
    ///
    /// For servers that are new, while no service runs. It undoes the protection against nodes that have forgotten
    /// their locks. It is refused while a lock stands on a node, which is then named with its holder (exit code 75),
    /// while a node does not answer or most of them have forgotten what they granted (69), and where nodes belong to
    /// another quorum whose other members are not among these (64): `change` looks at both. Of servers that are all
    /// others than those of before it knows nothing: use `change`.
    Bootstrap {
        /// Yes, no lock is held
        #[arg(long, required = true)]
        yes: bool,
        /// Do it also where it is refused, and say why that was: a lock that is held may be granted a second time while
        /// its holder goes on
        #[arg(long)]
        force: bool,
    },
    /// Give the quorum other members, or another longest lease, while services run
    ///
    /// First no node votes any more: acquires are refused, and what is held goes on. When the longest lease has passed
    /// and the last lock is released, the nodes of the new URL vote for clients with that URL, and for no others. So
    /// services can be restarted with it at any time meanwhile. A minority of the old nodes may be away for ever.
    /// Durable nodes have no marks: stop all services instead. When interrupted: run it again, or `bootstrap` the URL
    /// of before. Nodes that belong to a third quorum are refused (exit code 64).
    Change {
        /// The new quorum: URL
        #[arg(long, value_name = "URL", required_unless_present = "to_file", conflicts_with = "to_file")]
        to: Option<String>,
        /// A file whose first line is the new URL
        #[arg(long, value_name = "PATH")]
        to_file: Option<std::path::PathBuf>,
        /// Take nodes of a third quorum too, whose locks are not waited for
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Subcommand)]
enum SemaphoreTask {
    /// Change the number of permits
    ///
    /// Whoever asks for permits with another number is refused from then on, unless its program has the semaphore
    /// `resizable`: so do it before or while programs that say the new number replace those that say the old one.
    /// Permits that are taken stay so.
    Resize(Resize),
}

#[derive(Debug, Args)]
struct Resize {
    /// The semaphore's key
    key: String,
    /// How many permits it shall have, 1 to 1 000 000
    permits: u32,
}

#[derive(Debug, Subcommand)]
enum Leader {
    /// List all elections that have a leader
    Ls,
    /// Follow who leads an election: a line for each change, until interrupted
    Watch {
        /// The election's key
        key: String,
        /// How often to look: 50ms to 1h
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
        every: Duration,
        /// Say so many lines, then end
        #[arg(long, value_name = "COUNT")]
        times: Option<u64>,
    },
    /// Take a leader's term away, so that the next candidate leads
    ///
    /// The leader is not stopped: it learns of it at its next renewal, up to a third of its lease later, and until then
    /// it and the next one may both act. The next term has a higher number. It may win again. Only the term that was
    /// shown is taken away, as by `dlock release`: nothing is changed when another one leads by then (exit code 75).
    Resign {
        /// The election's key
        key: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct Watch {
    /// How long to pause between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    every: Duration,
    /// Look so many times, then end
    #[arg(long, value_name = "COUNT")]
    times: Option<u64>,
}

#[derive(Debug, Args)]
struct Run {
    /// The lock's key
    #[arg(long)]
    key: String,
    /// Share the lock with others who read; who runs without this waits until all have ended
    #[arg(long, conflicts_with_all = ["permits", "fair"])]
    read: bool,
    /// Run at most so many at a time, instead of one: the key is a semaphore of so many permits
    #[arg(long, value_name = "COUNT", conflicts_with = "fair")]
    permits: Option<u32>,
    /// How many of the permits the command needs
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "permits")]
    take: u32,
    /// Wait in the order in which all came, those of other hosts too, where the backend can
    #[arg(long)]
    fair: bool,
    #[command(flatten)]
    window: once::Window,
    /// How long to wait for the lock: a time, 0 to try once, or `forever` [default: 30s; with --once until a run that
    /// is under way has ended]
    #[arg(long, value_name = "TIME", value_parser = wait)]
    wait: Option<Wait>,
    /// How long the lock outlives this process when it dies; it is renewed at a third of that. On ZooKeeper the URL's
    /// session_timeout says it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    lease: Duration,
    #[command(flatten)]
    program: Program,
}

#[derive(Debug, Args)]
struct Program {
    /// How long the command may take to end before it is killed, up to 24h; at most a third of the time for which the
    /// lock is trusted without an answer of the backend (the lease; on ZooKeeper two thirds of the session timeout),
    /// unless the lock was taken away already
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = grace)]
    grace: Duration,
    /// Pass DLOCK_URL and DLOCK_<NAME>_URL on to the command, although they may hold passwords
    #[arg(long)]
    keep_env: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
struct Release {
    /// Yes, by force: a lock is released by its holder otherwise
    #[arg(long, required = true)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Refuse (75) unless this is the fence of all who hold it. For scripts, which look first and release later. Not
    /// for a lock that several share
    #[arg(long, value_name = "FENCE")]
    fence: Option<u64>,
    /// The lock's key
    key: String,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "write a number with a unit, such as 500ms, 5s or 2m".to_owned())
}

fn grace(text: &str) -> Result<Duration, String> {
    let grace = duration(text)?;
    if grace > DAY { Err("use up to 24 h".to_owned()) } else { Ok(grace) }
}

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "0" => Ok(Wait::No),
        "forever" => Ok(Wait::Forever),
        text => match duration(text) {
            Ok(Duration::ZERO) => Ok(Wait::No),
            Ok(limit) => Ok(Wait::For(limit)),
            Err(_) => Err("write 0, forever, or a number with a unit, such as 500ms, 5s or 2m".to_owned()),
        },
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { trouble::USAGE } else { 0 };
            // A URL in the wrong place is repeated by the error, and may hold a password.
            let arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
            let text = error.to_string();
            match trouble::without_urls(&text, arguments) {
                shown if code != 0 && shown != text => trouble::say(&shown),
                _ => drop(error.print()),
            }
            trouble::said();
            return ExitCode::from(code);
        }
    };
    let code = carry_out(cli).await.unwrap_or_else(Trouble::tell);
    trouble::said();
    ExitCode::from(code)
}

async fn carry_out(cli: Cli) -> Result<u8, Trouble> {
    if matches!(cli.task, Task::Guardian) {
        guardian::be()?;
        return Ok(0);
    }
    if let Task::Baton(baton::BatonTask::Show { file }) = cli.task {
        return baton::show(file, cli.json);
    }
    let url = match cli.url_file {
        Some(path) => store::read_url(&path)?,
        None => cli.locks.unwrap_or_default(),
    };
    if url.is_empty() {
        return Err(Trouble::usage(
            "where are the locks? give --locks URL or --url-file PATH, or set DLOCK_URL",
        ));
    }
    match cli.task {
        Task::Ls => list::ls(&store::look_into(&url).await?, cli.json).await,
        Task::Inspect { key, hash } => {
            let locks = store::look_into(&url).await?;
            let key = if hash { list::with_hash(&locks, &key).await? } else { key };
            list::inspect(&locks, &key, cli.json).await
        }
        Task::Ping => doctor::ping(&store::look_into(&url).await?, cli.json).await,
        Task::Doctor => doctor::doctor(&store::look_into(&url).await?, cli.json).await,
        Task::Leader(task) => leader::leader(&store::look_into(&url).await?, &task, cli.json).await,
        Task::Watch(watch) => watch::watch(&store::look_into(&url).await?, &watch, cli.json).await,
        Task::Run(run) => {
            let locks = store::open(&url).await?;
            match run.window.once {
                Some(window) => once::once(&locks, &run, window).await,
                None => run::run(&locks, &run).await,
            }
        }
        Task::Guardian => Ok(0),
        Task::Baton(task) => baton::baton(&url, task, cli.json).await,
        Task::Quorum(task) => quorum::quorum(&url, task, cli.json).await,
        Task::Semaphore { task: SemaphoreTask::Resize(resize) } => {
            semaphore::resize(&store::look_into(&url).await?, &resize, cli.json).await
        }
        Task::Release(release) => release::release(&store::look_into(&url).await?, &release, cli.json).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wait_is_none_endless_or_a_time_with_a_unit() {
        assert_eq!(wait("0"), Ok(Wait::No));
        assert_eq!(wait("0s"), Ok(Wait::No));
        assert_eq!(wait("forever"), Ok(Wait::Forever));
        assert_eq!(wait("500ms"), Ok(Wait::For(Duration::from_millis(500))));
        for wrong in ["", "5", "five", "-1s", "never"] {
            assert!(wait(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn help_does_not_show_a_password_from_the_environment() {
        use clap::CommandFactory;
        let command = Cli::command();
        let locks = command.get_arguments().find(|argument| argument.get_id() == "locks").unwrap();
        assert!(locks.is_hide_env_values_set());
    }
}
