//! `dlock`: shows who holds which lock, and runs commands under a lock.
//!
//! ```text
//! dlock --locks redis://127.0.0.1/ ls
//! dlock inspect room_7
//! dlock run --no-wait nightly-report -- ./report.sh
//! ```

#![forbid(unsafe_code)]

mod audit;
mod baton;
mod doctor;
mod group;
mod guardian;
mod leader;
mod list;
mod members;
mod once;
mod pages;
mod quorum;
mod release;
mod report;
mod run;
mod schema;
mod semaphore;
mod show;
mod signals;
mod store;
mod sweep;
mod trouble;
mod usage;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::trouble::{CODES, Trouble};
use crate::usage::{KeyOf, Waiting, duration, grace, lease, pause, prefix};

#[derive(Debug, Parser)]
#[command(
    name = "dlock",
    version,
    about = "Show who holds which lock, or run a command under one",
    after_help = CODES,
    max_term_width = 100
)]
struct Cli {
    /// The URL of the store that keeps the locks
    ///
    /// redis://, redis+sentinel://, redis+cluster://, zk://, etcd://, postgres://, mysql://, sqlite:///PATH, or
    /// 'quorum:URL|URL|URL'. Other users of this host can see a password on the command line: give it in DLOCK_URL or
    /// --url-file. The value of DLOCK_PREFIX stands before every key, as in services.
    #[arg(long, value_name = "URL", env = "DLOCK_URL", hide_env_values = true, global = true, help_heading = GLOBAL)]
    locks: Option<String>,
    /// A file with the URL in its first line, in place of --locks and DLOCK_URL
    #[arg(long, value_name = "PATH", global = true, help_heading = GLOBAL)]
    url_file: Option<PathBuf>,
    /// Report in JSON: one document, or one a line where a command follows changes
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,
    #[command(subcommand)]
    task: Task,
}

/// The help heading of the options that every command has.
const GLOBAL: &str = "Options of all commands";

#[derive(Debug, Subcommand)]
enum Task {
    /// List the locks that are held
    Ls {
        /// List only keys that begin with this
        #[arg(value_parser = prefix)]
        prefix: Option<String>,
    },
    /// Show who holds a lock, and who waits for it if the store knows
    Inspect {
        #[command(flatten)]
        key: KeyOf,
        /// The key is the hash that log lines and spans show in place of it: find the key among those that are held
        #[arg(long)]
        hash: bool,
    },
    /// Show the locks that are held, and update the list until interrupted
    Watch(Watch),
    /// Run a command while holding a lock
    ///
    /// Input, output, signals and the exit code of the command pass through dlock; the exit code is 128 and the number
    /// of the signal that ended the command. The command finds the key in DLOCK_KEY and the fence of this grant in
    /// DLOCK_FENCE: let the resource that it changes refuse lower fences.
    ///
    /// When the lock is lost or cannot be renewed, dlock stops the command and all that it started: by TERM, and by
    /// KILL before the lease ends. The exit code is then 79. On Linux, dlock finds what the command started by the
    /// variable DLOCK_RUN and by parent processes; on other systems by the process group, and at a terminal there it
    /// stops the command alone. When dlock itself is killed, a second process of dlock stops the command in the same
    /// way. When all processes of dlock are killed at once, or are stopped by STOP, the command goes on, and the lock
    /// is granted to others after the lease: then only the fence protects.
    ///
    /// With --once the command is a job: after it has ended with 0, the key stays taken until the window is over.
    /// Until then every dlock that asks for the key, on any host, skips its command, says who ran it and when, and
    /// exits with 80. One that asks while the command runs waits for its end, and runs its own if that run failed or
    /// its host died.
    #[command(
        override_usage = "dlock run [OPTIONS] KEY -- COMMAND...\n       dlock run [OPTIONS] --key KEY -- COMMAND..."
    )]
    Run(Run),
    /// Carry a lock from one step of a script to the next, in a file
    #[command(subcommand)]
    Baton(baton::BatonTask),
    /// Take a lock away from its holder
    ///
    /// The holder is not stopped: it notices the loss at its next renewal, up to a third of its lease later. All
    /// holders of a shared lock lose it. The next grant has a higher fence. dlock shows the holders and removes only
    /// these: the store compares in the step that frees the key, and when others hold it by then, nothing is released
    /// (exit code 75). Where a session keeps the lock, dlock compares directly before it ends the session. A quorum
    /// compares on each of its nodes.
    Release(Release),
    /// Show who leads elections, or end a term of office
    #[command(subcommand)]
    Leader(Leader),
    /// Change the number of permits of a semaphore
    Semaphore {
        #[command(subcommand)]
        task: SemaphoreTask,
    },
    /// Ask the store for an answer, and measure how long it takes
    Ping,
    /// Check the settings of the store and the rights of the user
    ///
    /// Each finding that needs it comes with what to do. The exit code is 78 if locks may be lost or granted twice, or
    /// if none can be granted.
    Doctor,
    /// Make the lock table of a database if it is missing
    ///
    /// The store is that of --locks. The user needs the right to create tables; `dlock schema` prints the statements
    /// for an administrator. Redis, ZooKeeper and etcd need no table.
    Migrate,
    /// Print the statements that `migrate` runs, with the rights of a service as comments
    Schema(schema::Schema),
    /// Show or change the members of a quorum, whose URL begins with `quorum:`
    #[command(subcommand)]
    Quorum(QuorumTask),
    /// Show that no two holders overlapped, from the files that processes have written
    ///
    /// Give the files of all processes that use the locks: `dlock_audit::FileSink` writes them. Overlaps are named with
    /// both holders and what probably led to them (exit code 78). Where records are missing, since a process was
    /// killed, runs still or lost some, the outcome is unknown, with what is missing (exit code 69).
    Audit(audit::AuditTask),
    /// Print a script that completes commands and options in a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the page of the manual
    Man {
        /// Write the pages of all commands into this directory instead
        #[arg(long, value_name = "DIRECTORY")]
        to: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum QuorumTask {
    /// Show which nodes vote, and why others do not
    ///
    /// The exit code is 78 if no majority votes.
    Show,
    /// Vouch that no lock is held, so that all nodes vote at once
    ///
    /// For new servers, while no service runs: it undoes the protection against nodes that have forgotten their locks.
    /// It is refused while a lock stands on a node, and names the node and the holder (exit code 75); while a node
    /// does not answer, or most nodes have forgotten what they granted (69); and if nodes belong to another quorum
    /// with members that are not among these (64). Use `change` to move a quorum to servers that are all new:
    /// `bootstrap` knows nothing of the old ones.
    Bootstrap {
        /// Required: confirms that no lock is held
        #[arg(long, required = true)]
        yes: bool,
        /// Do it where it is refused, and report why it was: a lock that is held may be granted a second time
        #[arg(long)]
        force: bool,
    },
    /// Give the quorum other members, or another longest lease, while services run
    ///
    /// First dlock takes all votes away: new locks are refused, locks that are held go on. After the longest lease, and
    /// when the last lock is released, the nodes of the new URL vote for clients with that URL and for no others, so
    /// services can be restarted with it at any time meanwhile. A minority of the old nodes may be gone for ever. After
    /// an interruption run it again, or run `bootstrap` with the old URL. Nodes of a third quorum are refused (exit
    /// code 64). Durable nodes have no marks: stop all services to change them.
    Change {
        /// The new URL, which begins with `quorum:`
        #[arg(long, value_name = "URL", required_unless_present = "to_file", conflicts_with = "to_file")]
        to: Option<String>,
        /// A file with the new URL in its first line
        #[arg(long, value_name = "PATH")]
        to_file: Option<PathBuf>,
        /// Take nodes of a third quorum too, and do not wait for its locks
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Subcommand)]
enum SemaphoreTask {
    /// Change the number of permits
    ///
    /// From then on a program that says another number is refused, unless it makes the semaphore `resizable`: so change
    /// the number before or while programs with the new number replace those with the old one. Permits that are taken
    /// stay taken.
    Resize(Resize),
}

#[derive(Debug, Args)]
struct Resize {
    /// The key of the semaphore
    key: String,
    /// The new number of permits, 1 to 1000000
    permits: u32,
}

#[derive(Debug, Subcommand)]
enum Leader {
    /// List the elections that have a leader
    Ls {
        /// List only keys that begin with this
        #[arg(value_parser = prefix)]
        prefix: Option<String>,
    },
    /// Print a line for each change of the leader, until interrupted
    Watch {
        #[command(flatten)]
        key: KeyOf,
        /// How often to look: 50ms to 1h
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
        every: Duration,
        /// End after so many lines
        #[arg(long, value_name = "COUNT")]
        times: Option<u64>,
    },
    /// End the term of the leader, so that the next candidate leads
    ///
    /// The leader is not stopped: it notices at its next renewal, up to a third of its lease later, and until then it
    /// and the next leader may both act. The next term has a higher number; the same candidate may win again. Only the
    /// term that was shown is ended: when another term has begun by then, nothing is changed (exit code 75).
    Resign {
        #[command(flatten)]
        key: KeyOf,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct Watch {
    /// Show only keys that begin with this
    #[arg(value_parser = prefix)]
    prefix: Option<String>,
    /// How long to pause between two looks: 10ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    every: Duration,
    /// End after so many looks
    #[arg(long, value_name = "COUNT")]
    times: Option<u64>,
}

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    key: KeyOf,
    #[command(flatten)]
    waiting: Waiting,
    /// Share the lock with other readers; writers wait until all readers have ended
    #[arg(long, conflicts_with_all = ["permits", "fair"])]
    read: bool,
    /// Run up to so many commands at a time: the key is a semaphore with so many permits
    #[arg(long, value_name = "COUNT", conflicts_with = "fair")]
    permits: Option<u32>,
    /// How many of the permits the command takes
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "permits")]
    take: u32,
    /// Wait in order of arrival, over all hosts, if the store can do that
    #[arg(long)]
    fair: bool,
    #[command(flatten)]
    window: once::Window,
    /// The exit code if the command does not run since another one runs or ran [default: 75; with --once 80]
    #[arg(short = 'E', long, value_name = "CODE")]
    skip_code: Option<u8>,
    /// Print nothing if the command does not run since another one runs or ran; errors are still printed
    #[arg(short, long)]
    quiet: bool,
    /// How long the lock stays taken if this process dies; dlock renews it after a third of that
    ///
    /// On ZooKeeper the parameter session_timeout of the URL decides.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = lease)]
    lease: Duration,
    #[command(flatten)]
    program: Program,
}

#[derive(Debug, Args)]
struct Program {
    /// How long the command may take to end after the loss of the lock, before it is killed: up to 24h
    ///
    /// It is at most a third of the time for which the lock is valid without an answer of the store (the lease; on
    /// ZooKeeper two thirds of the session timeout), unless the lock was taken away already.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = grace)]
    grace: Duration,
    /// Leave DLOCK_URL and DLOCK_<NAME>_URL in the environment of the command; they may hold passwords
    #[arg(long)]
    keep_env: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Release {
    #[command(flatten)]
    key: KeyOf,
    /// Required: confirms that you take the lock from its holder
    #[arg(long, required = true)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Refuse (exit code 75) if a holder has another fence: for scripts that look first and release later
    ///
    /// Not for a lock with several holders.
    #[arg(long, value_name = "FENCE")]
    fence: Option<u64>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // The guardian is no command for users: clap does not know it, so it is in no help and no completion.
    if std::env::args_os().nth(1).is_some_and(|word| word == guardian::NAME) {
        let code = guardian::be().map_or_else(|error| Trouble::from(error).print(), |()| 0);
        trouble::said();
        return ExitCode::from(code);
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            let code = if error.use_stderr() { trouble::USAGE } else { 0 };
            usage::advise(&mut error);
            // The error repeats a misplaced URL, which may hold a password.
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
    let code = carry_out(cli).await.unwrap_or_else(Trouble::print);
    trouble::said();
    ExitCode::from(code)
}

/// Reads the command line.
///
/// A conflict declared to clap would refuse `--url-file` beside the variable as well, which an option overrides, and
/// would not see an option before the command together with one behind it.
fn parse() -> Result<Cli, clap::Error> {
    let cli = Cli::try_parse()?;
    let names_a_store = |argument: &OsString| {
        let text = argument.to_string_lossy();
        matches!(text.split('=').next(), Some("--locks" | "--url-file"))
    };
    let ours = std::env::args_os().take_while(|argument| argument != "--");
    if ours.filter(names_a_store).count() > 1 {
        let what = "each of --locks and --url-file names a store; give one of them, once";
        return Err(Cli::command().error(ErrorKind::ArgumentConflict, what));
    }
    Ok(cli)
}

async fn carry_out(cli: Cli) -> Result<u8, Trouble> {
    let Cli { locks, url_file, json, task } = cli;
    // These commands need no store.
    let task = match task {
        Task::Schema(schema) => return schema::schema(&schema),
        Task::Audit(task) => return audit::audit(&task, json),
        Task::Completions { shell } => return pages::completions(Cli::command(), shell),
        Task::Man { to } => return pages::manual(Cli::command(), to.as_deref()),
        Task::Baton(baton::BatonTask::Show { file }) => return baton::show(file, json),
        task => task,
    };
    let url = match url_file {
        Some(path) => store::read_url(&path)?,
        None => locks.unwrap_or_default(),
    };
    if url.is_empty() {
        return Err(Trouble::usage(
            "where are the locks? give --locks URL or --url-file PATH, or set DLOCK_URL",
        ));
    }
    let look = || store::look_into(&url);
    match task {
        Task::Ls { prefix } => list::ls(&look().await?, prefix.as_deref(), json).await,
        Task::Inspect { key, hash } => {
            let (key, locks) = (key.get()?, look().await?);
            let found = if hash { Some(list::with_hash(&locks, key).await?) } else { None };
            list::inspect(&locks, found.as_deref().unwrap_or(key), json).await
        }
        Task::Ping => doctor::ping(&look().await?, json).await,
        Task::Doctor => doctor::doctor(&look().await?, json).await,
        Task::Migrate => schema::migrate(&url, json).await,
        Task::Leader(task) => leader::leader(&look().await?, &task, json).await,
        Task::Watch(watch) => watch::watch(&look().await?, &watch, json).await,
        Task::Run(run) => {
            let key = run.key.get()?;
            let locks = store::open(&url).await?;
            match run.window.once {
                Some(window) => once::once(&locks, key, &run, window).await,
                None => run::run(&locks, key, &run).await,
            }
        }
        Task::Baton(task) => baton::baton(&url, task, json).await,
        Task::Quorum(task) => quorum::quorum(&url, task, json).await,
        Task::Semaphore { task: SemaphoreTask::Resize(resize) } => {
            semaphore::resize(&look().await?, &resize, json).await
        }
        Task::Release(release) => {
            let key = release.key.get()?;
            release::release(&look().await?, key, &release, json).await
        }
        Task::Schema(_) | Task::Audit(_) | Task::Completions { .. } | Task::Man { .. } => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_does_not_show_a_password_from_the_environment() {
        let command = Cli::command();
        let locks = command.get_arguments().find(|argument| argument.get_id() == "locks").unwrap();
        assert!(locks.is_hide_env_values_set());
    }
}
