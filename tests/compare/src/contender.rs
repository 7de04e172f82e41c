//! A process that uses one library, and carries out orders.
//!
//! One order a line on its input: a number, a verb, arguments. One answer a line on its output: the number of the
//! order, and what there is to say. Orders are carried out at the same time, and some have several answers.
//!
//! | order | answers |
//! |---|---|
//! | (the start) | `0 ready` |
//! | `acquire KEY WAIT-MS FENCED`; waits for ever with 0, asks for a fence with 1 | `acquired FENCE`, `acquired -`, `timeout`, `cancelled`, `unsupported`, `error TEXT` |
//! | `cancel ACQUIRE`, which then answers `cancelled`, if that is still possible | |
//! | `release ACQUIRE` | `released`, `error TEXT` |
//! | `check ACQUIRE`, as a user of the library would who wants to know whether the lock is still held | `held`, `gone` |
//! | `watch ACQUIRE` | `watching`, or `deaf` where the library has nothing to listen to; then `warned`, `lost` |
//! | `turns KEY COUNT`: so many waiters, each of which acquires and releases once | `turned ERRORS` |

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How long a process may take to start, and to answer an order that waits for nobody.
const PATIENCE: Duration = Duration::from_secs(180);

/// An answer, and when it came.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) at: Instant,
    pub(crate) words: String,
}

impl Said {
    /// Whether the lock was acquired.
    pub(crate) fn is_acquired(&self) -> bool {
        self.words.starts_with("acquired")
    }

    /// The fence that an acquire came with.
    pub(crate) fn fence(&self) -> Option<u64> {
        self.words.strip_prefix("acquired ")?.parse().ok()
    }
}

/// An order that was given.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) given: Instant,
    answers: UnboundedReceiver<Said>,
}

impl Call {
    /// The next answer; none when it does not come within `limit`, or the process is gone.
    pub(crate) async fn answer(&mut self, limit: Duration) -> Option<Said> {
        tokio::time::timeout(limit, self.answers.recv()).await.ok().flatten()
    }
}

type Waiting = Arc<Mutex<HashMap<u64, UnboundedSender<Said>>>>;

/// The process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Contender {
    child: Child,
    pid: Pid,
    orders: ChildStdin,
    waiting: Waiting,
    last: u64,
}

impl Contender {
    pub(crate) async fn start(mut command: Command) -> Result<Self> {
        let name = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let raw = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = raw.and_then(Pid::from_raw).context("it ended at once")?;
        let orders = child.stdin.take().context("no standard input")?;
        let mut lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let (ready, answers) = unbounded_channel();
        let waiting: Waiting = Arc::new(Mutex::new(HashMap::from([(0, ready)])));
        let told = Arc::clone(&waiting);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let at = Instant::now();
                let Some((id, words)) = line.split_once(' ') else { continue };
                let Ok(id) = id.parse::<u64>() else { continue };
                let calls = told.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(call) = calls.get(&id) {
                    // Nobody has to listen.
                    drop(call.send(Said { at, words: words.to_owned() }));
                }
            }
            // Nobody waits for answers that cannot come.
            told.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        let mut start = Call { id: 0, given: Instant::now(), answers };
        let said = start.answer(PATIENCE).await.with_context(|| format!("{name} did not get ready"))?;
        ensure!(said.words == "ready", "{name} says: {}", said.words);
        Ok(Self { child, pid, orders, waiting, last: 0 })
    }

    /// Gives an order.
    pub(crate) async fn order(&mut self, order: &str) -> Result<Call> {
        self.last += 1;
        let id = self.last;
        let (send, answers) = unbounded_channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, send);
        let given = Instant::now();
        self.orders.write_all(format!("{id} {order}\n").as_bytes()).await?;
        Ok(Call { id, given, answers })
    }

    /// Gives an order that waits for nobody, and returns its answer.
    pub(crate) async fn ask(&mut self, order: &str) -> Result<Said> {
        let said = self.order(order).await?.answer(PATIENCE).await;
        said.with_context(|| format!("no answer to {order}"))
    }

    /// Begins to acquire; for ever with a `wait` of 0.
    pub(crate) async fn acquire(&mut self, key: &str, wait: Duration, fenced: bool) -> Result<Call> {
        self.order(&format!("acquire {key} {} {}", wait.as_millis(), u8::from(fenced))).await
    }

    /// Acquires free keys, all at once, with their fences where they have any.
    pub(crate) async fn take(&mut self, keys: &[String], fenced: bool) -> Result<Vec<(u64, Option<u64>)>> {
        let mut calls = Vec::new();
        for key in keys {
            calls.push(self.acquire(key, Duration::ZERO, fenced).await?);
        }
        let mut taken = Vec::new();
        for mut call in calls {
            match call.answer(PATIENCE).await {
                Some(said) if said.is_acquired() => taken.push((call.id, said.fence())),
                other => bail!("a free lock was not acquired: {other:?}"),
            }
        }
        Ok(taken)
    }

    /// Releases what was acquired, all at once.
    pub(crate) async fn release(&mut self, acquires: impl IntoIterator<Item = u64>) -> Result<()> {
        let mut calls = Vec::new();
        for id in acquires {
            calls.push(self.order(&format!("release {id}")).await?);
        }
        for mut call in calls {
            let said = call.answer(PATIENCE).await.context("no answer to a release")?;
            ensure!(said.words == "released", "a release failed: {}", said.words);
        }
        Ok(())
    }

    /// `SIGSTOP`.
    pub(crate) fn freeze(&self) -> Result<()> {
        Ok(kill_process(self.pid, Signal::STOP)?)
    }

    /// `SIGCONT`.
    pub(crate) fn thaw(&self) -> Result<()> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    /// `SIGKILL`.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}
