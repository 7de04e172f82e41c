//! The worker in Rust: the same commands as the worker in Java.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dlock_core::{ErrorKind, Guard, Locks, Wait};
use dlock_testkit::history::{Event, Op, Outcome, Recorder};
use dlock_testkit::now_ns;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

use crate::service::{Counters, elections, locks};

/// Does what standard input says, until it ends.
///
/// ```text
/// clock                                                        now
/// acquire KIND NAME                                            invoked returned fence
/// try KIND NAME WAIT-MILLIS                                    true|false
/// busy NAME                                                    free|busy WHY
/// lost NAME                                                    now, once the lock is lost
/// leader NAME                                                  who leads
/// release KIND NAME                                            invoked returned
/// query NAME                                                   locked ttl-millis hold-count held-by-us
/// sections KIND NAME COUNTER COUNT HOLD-MICROS PAUSE-MICROS    count
/// ```
///
/// # Errors
///
/// When standard input or the history fails.
pub async fn serve(url: &str, lease: Duration, process: u32, history: &Path) -> Result<()> {
    let (locks, fenced) = locks(url, lease).await?;
    let mut worker = Worker {
        locks,
        fenced,
        elections: elections(url, lease).await?,
        counters: Counters::open(url).await?,
        process,
        history: Recorder::append(history)?,
        hold: 0,
        guards: HashMap::new(),
    };
    println!("ready");
    let mut commands = BufReader::new(stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        let words: Vec<&str> = command.split(' ').collect();
        let answer = match worker.answer(&words).await {
            Ok(answer) => answer,
            Err(error) => format!("error {error:#}").replace('\n', " "),
        };
        println!("{answer}");
    }
    worker.guards.clear();
    worker.locks.shutdown(Duration::from_secs(5)).await?;
    worker.fenced.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// For how long a lock of the kind `left` stays taken after its grant.
const LEFT: Duration = Duration::from_secs(2);

struct Worker {
    locks: Locks,
    /// With Redisson's fences.
    fenced: Locks,
    /// With the nodes of Curator's leader latches.
    elections: Option<Locks>,
    counters: Counters,
    process: u32,
    history: Recorder,
    hold: u64,
    guards: HashMap<String, Guard>,
}

impl Worker {
    async fn answer(&mut self, words: &[&str]) -> Result<String> {
        match words {
            ["clock"] => Ok(now_ns().to_string()),
            ["acquire", kind, name] => self.acquire(kind, name).await,
            ["try", _, name, wait] => {
                let lock = self.locks.lock(name).with_wait(Duration::from_millis(wait.parse()?));
                match lock.acquire().await {
                    Ok(guard) => {
                        self.guards.insert((*name).to_owned(), guard);
                        Ok("true".to_owned())
                    }
                    Err(error) if error.kind() == ErrorKind::TimedOut => Ok("false".to_owned()),
                    Err(error) => Err(error.into()),
                }
            }
            ["busy", name] => match self.locks.lock(name).with_wait(Wait::No).acquire().await {
                Ok(_) => Ok("free".to_owned()),
                Err(error) if error.kind() == ErrorKind::Busy => Ok(format!("busy {error}")),
                Err(error) => Err(error.into()),
            },
            ["lost", name] => {
                self.guards.get(*name).context("not held")?.lost().await;
                Ok(now_ns().to_string())
            }
            ["leader", name] => {
                let locks = self.elections.as_ref().context("only on ZooKeeper")?;
                let leader = locks.election(name).leader().await?.context("nobody leads")?;
                Ok(leader.to_string())
            }
            ["release", kind, name] => self.release(kind, name).await,
            ["query", name] => self.query(name).await,
            ["sections", kind, name, counter, count, hold, pause] => {
                let (hold, pause) = (Duration::from_micros(hold.parse()?), pause.parse()?);
                for _ in 0..count.parse()? {
                    self.section(kind, name, counter, hold).await?;
                    tokio::time::sleep(Duration::from_micros(pause)).await;
                }
                Ok((*count).to_owned())
            }
            _ => bail!("no command: {}", words.join(" ")),
        }
    }

    async fn acquire(&mut self, kind: &str, name: &str) -> Result<String> {
        self.hold += 1;
        let event = match kind {
            "none" => self.event(name, Op::Acquire, now_ns()),
            _ => {
                let locks = match kind {
                    "fenced" => &self.fenced,
                    // A term of office is a lock that is held alone.
                    "latch" => self.elections.as_ref().context("only on ZooKeeper")?,
                    _ => &self.locks,
                };
                let lock = locks.lock(name);
                let lock = if kind == "left" { lock.with_hold_at_least(LEFT) } else { lock };
                let (event, guard) = Event::acquire(self.process, self.hold, name, lock.acquire()).await;
                self.guards.insert(name.to_owned(), guard?);
                event
            }
        };
        self.history.record(&event)?;
        let fence = event.fence.map_or_else(|| "null".to_owned(), |fence| fence.to_string());
        Ok(format!("{} {} {fence}", event.invoked, event.returned))
    }

    async fn release(&mut self, kind: &str, name: &str) -> Result<String> {
        let (check, event) = match kind {
            "none" => {
                let invoked = now_ns();
                (self.event(name, Op::Check, invoked), self.event(name, Op::Release, invoked))
            }
            _ => {
                let guard = self.guards.remove(name).context("not held")?;
                let check = Event::check(self.process, self.hold, &guard);
                (check, Event::release(self.process, self.hold, guard).await)
            }
        };
        self.history.record(&check)?;
        self.history.record(&event)?;
        ensure!(event.outcome == Outcome::Ok, "the release came out as {:?}", event.outcome);
        Ok(format!("{} {}", event.invoked, event.returned))
    }

    /// What was done without a lock.
    fn event(&self, name: &str, op: Op, invoked: u64) -> Event {
        let (process, hold, key, outcome) = (self.process, self.hold, name.to_owned(), Outcome::Ok);
        Event { process, hold, key, op, invoked, returned: now_ns(), outcome, fence: None, valid_until: None }
    }

    async fn query(&self, name: &str) -> Result<String> {
        let holder = self.locks.inspect(name).await?;
        let left = holder.as_ref().and_then(|holder| holder.expires_in);
        let left = left.map_or_else(|| "-2".to_owned(), |left| left.as_millis().to_string());
        let ours = self.guards.get(name).is_some_and(|guard| guard.check().is_ok());
        Ok(format!("{} {left} {} {ours}", holder.is_some(), u8::from(ours)))
    }

    /// Adds one to a counter by reading and writing it, which only the lock makes safe.
    async fn section(&mut self, kind: &str, name: &str, counter: &str, hold: Duration) -> Result<()> {
        self.acquire(kind, name).await?;
        let before = self.counters.read(counter).await?;
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        self.counters.write(counter, before + 1).await?;
        self.release(kind, name).await?;
        Ok(())
    }
}
