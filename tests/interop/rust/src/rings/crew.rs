//! The workers, each of which carries out one command after the other, and is killed and started anew.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use dlock_rig::proxy::{Loss, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::clock;
use super::stores::{Language, Store};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of so many commands over a wire that loses answers, one loses one.
const LOSSES: u32 = 12;

/// A command for one worker.
struct Job {
    command: String,
    /// It is killed after this share of the time that its last hop took.
    kill: Option<f64>,
    reply: oneshot::Sender<Reply>,
}

/// What came of a command.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) answer: Answer,
    pub(super) took: Duration,
    /// How many requests it made, where that can be counted and none was lost.
    pub(super) requests: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Answer {
    Passed(Hop),
    Refused,
    Written,
    Stale,
    Failed(String),
    /// It was killed at this time, before it answered.
    Killed(u64),
}

/// A lock that was taken, written under, and handed over.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) fence: u64,
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) written: bool,
    pub(super) baton: String,
}

fn parsed(answer: &str) -> Result<Answer> {
    Ok(match answer.split(' ').collect::<Vec<_>>()[..] {
        ["passed", fence, begun, ended, written, baton] => Answer::Passed(Hop {
            fence: fence.parse()?,
            begun: begun.parse()?,
            ended: ended.parse()?,
            written: written == "written",
            baton: baton.to_owned(),
        }),
        ["refused"] => Answer::Refused,
        ["written"] => Answer::Written,
        ["stale"] => Answer::Stale,
        ["failed", ..] => Answer::Failed(answer.to_owned()),
        _ => bail!("no answer of a worker: {answer}"),
    })
}

/// What the workers have been through.
#[derive(Debug, Default)]
pub(super) struct Fates {
    pub(super) kills: AtomicUsize,
    /// How many processes there were, each of which has a journal.
    pub(super) processes: AtomicUsize,
    /// Which processes were killed, and when.
    pub(super) killed: Mutex<Vec<(usize, u64)>>,
    pub(super) lost: AtomicUsize,
}

/// All workers of a store. They end with this value.
pub(super) struct Crew {
    workers: Vec<(Language, mpsc::Sender<Job>)>,
    tasks: JoinSet<Result<()>>,
    pub(super) fates: Arc<Fates>,
}

impl Crew {
    pub(super) fn start(store: &Arc<Store>, seed: u64) -> Result<Self> {
        let (mut workers, mut tasks, fates) = (Vec::new(), JoinSet::new(), Arc::new(Fates::default()));
        for (number, (language, lossy)) in (0..).zip(store.hands()) {
            let (sender, jobs) = mpsc::channel(64);
            workers.push((*language, sender));
            let worker = Worker {
                store: Arc::clone(store),
                language: *language,
                proxy: if *lossy { store.proxy()? } else { None },
                fates: Arc::clone(&fates),
                random: fastrand::Rng::with_seed(seed ^ (number + 1) << 32),
                last: Duration::from_millis(2),
            };
            tasks.spawn(worker.work(jobs));
        }
        Ok(Self { workers, tasks, fates })
    }

    pub(super) fn count(&self) -> usize {
        self.workers.len()
    }

    pub(super) fn language(&self, worker: usize) -> Language {
        self.workers[worker].0
    }

    /// Has a worker carry out a command.
    pub(super) async fn ask(&self, worker: usize, command: String, kill: Option<f64>) -> Result<Reply> {
        let (reply, answered) = oneshot::channel();
        let job = Job { command, kill, reply };
        self.workers[worker].1.send(job).await.ok().context("a worker has ended")?;
        answered.await.context("a worker has ended")
    }

    /// Ends all workers.
    pub(super) async fn end(mut self) -> Result<Arc<Fates>> {
        self.workers.clear();
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(self.fates)
    }
}

struct Worker {
    store: Arc<Store>,
    language: Language,
    proxy: Option<(Proxy, &'static str)>,
    fates: Arc<Fates>,
    random: fastrand::Rng,
    /// How long the last hop took.
    last: Duration,
}

impl Worker {
    async fn work(mut self, mut jobs: mpsc::Receiver<Job>) -> Result<()> {
        let mut process = self.process().await?;
        while let Some(job) = jobs.recv().await {
            let lossy = job.kill.is_none() && self.random.u32(..LOSSES) == 0;
            if let Some((proxy, name)) = self.proxy.as_ref().filter(|_| lossy) {
                // The take-over's, or the hand-over's.
                proxy.lose_reply(self.random.u64(1..=2), name, Loss::Cut);
            }
            let (requests, lost) = (self.requests(), self.lost());
            let (begun, after) = (Instant::now(), job.kill.map(|share| self.last.mul_f64(share)));
            let answer = process.carry_out(&job.command, after).await?;
            let took = begun.elapsed();
            let made = self.requests().zip(requests).map(|(now, before)| now - before);
            let requests = made.filter(|_| self.lost() == lost);
            if job.kill.is_some() {
                self.killed(&process, &answer);
                process.child.wait().await?;
                drop(job.reply.send(Reply { answer, took, requests: None }));
                process = self.process().await?;
            } else {
                if let Answer::Passed(_) = answer {
                    self.last = took;
                }
                drop(job.reply.send(Reply { answer, took, requests }));
            }
        }
        self.fates.lost.fetch_add(usize::try_from(self.lost())?, Ordering::SeqCst);
        Ok(())
    }

    fn killed(&self, process: &Process, answer: &Answer) {
        let when = if let Answer::Killed(when) = answer { *when } else { clock() };
        self.fates.kills.fetch_add(1, Ordering::SeqCst);
        self.fates.killed.lock().unwrap_or_else(PoisonError::into_inner).push((process.number, when));
    }

    fn requests(&self) -> Option<u64> {
        self.proxy.as_ref().map(|(proxy, _)| proxy.requests().values().sum())
    }

    fn lost(&self) -> u64 {
        self.proxy.as_ref().map_or(0, |(proxy, _)| proxy.lost())
    }

    async fn process(&self) -> Result<Process> {
        let number = self.fates.processes.fetch_add(1, Ordering::SeqCst);
        if let Some((proxy, _)) = &self.proxy {
            // A loss that is still due was not meant for what a process begins with.
            proxy.mend();
        }
        let through = self.proxy.as_ref().map(|(proxy, _)| proxy.address());
        let mut child = self
            .store
            .command(self.language, through, number)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start a worker in {:?}", self.language))?;
        let commands = child.stdin.take().context("no standard input")?;
        let answers = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let mut process = Process { number, child, commands, answers };
        ensure!(process.line().await? == "ready", "a worker in {:?} did not get ready", self.language);
        Ok(process)
    }
}

struct Process {
    number: usize,
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.answers.next_line()).await.context("no answer")??;
        line.context("a worker has ended by itself")
    }

    /// Returns the answer to a command, unless the process is killed before it comes.
    async fn carry_out(&mut self, command: &str, kill_after: Option<Duration>) -> Result<Answer> {
        self.commands.write_all(format!("{command}\n").as_bytes()).await?;
        self.commands.flush().await?;
        let Some(after) = kill_after else { return parsed(&self.line().await?) };
        let pid =
            self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).context("no process")?;
        // On a thread of its own: timers of the runtime are too coarse for what takes a millisecond.
        let killer = tokio::task::spawn_blocking(move || {
            std::thread::sleep(after);
            let when = clock();
            kill_process(pid, Signal::KILL).map(|()| when)
        });
        let line = tokio::time::timeout(PATIENCE, self.answers.next_line()).await.context("no answer")??;
        let when = killer.await??;
        line.map_or(Ok(Answer::Killed(when)), |line| parsed(&line))
    }
}
