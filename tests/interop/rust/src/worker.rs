//! The worker in Rust: the same commands as the workers in Java and Go.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dlock_core::{ErrorKind, Guard, Lock, Locks, Wait};
use dlock_testkit::history::{Event, Op, Outcome, Recorder};
use dlock_testkit::now_ns;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

use crate::service::{Counters, elections, locks, with_readers};

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
/// holds KIND NAME HOLD-MICROS PAUSE-MICROS MILLIS              how often it was held
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
        readers: with_readers(url, lease).await?,
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
    worker.readers.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// For how long a lock of the kind `left` stays taken after its grant.
const LEFT: Duration = Duration::from_secs(2);

struct Worker {
    locks: Locks,
    /// With Redisson's fences.
    fenced: Locks,
    /// With the nodes of Curator's leader latches, or the keys of the elections of etcd's Go client.
    elections: Option<Locks>,
    /// With the forms of Redisson's and Curator's locks that have readers.
    readers: Locks,
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
            ["try", kind, name, wait] => {
                let wait = Duration::from_millis(wait.parse()?);
                let acquired = match kind.strip_prefix("permits-") {
                    Some(permits) => {
                        self.locks.semaphore(name, permits.parse()?).with_wait(wait).acquire().await
                    }
                    None => self.lock(kind, name)?.with_wait(wait).acquire().await,
                };
                match acquired {
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
                let locks = self.elections.as_ref().context("not on Redis")?;
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
            ["holds", kind, name, hold, pause, length] => {
                let micros = |text: &str| anyhow::Ok(Duration::from_micros(text.parse()?));
                let (hold, pause) = (micros(hold)?, micros(pause)?);
                let end = Instant::now() + Duration::from_millis(length.parse()?);
                let mut count = 0;
                while Instant::now() < end {
                    self.acquire(kind, name).await?;
                    tokio::time::sleep(hold).await;
                    self.release(kind, name).await?;
                    tokio::time::sleep(pause).await;
                    count += 1;
                }
                Ok(count.to_string())
            }
            _ => bail!("no command: {}", words.join(" ")),
        }
    }

    async fn acquire(&mut self, kind: &str, name: &str) -> Result<String> {
        self.hold += 1;
        let event = match kind {
            "none" => self.event(name, Op::Acquire, now_ns()),
            _ => {
                let (process, hold) = (self.process, self.hold);
                let (event, guard) = match kind.strip_prefix("permits-") {
                    Some(permits) => {
                        let semaphore = self.locks.semaphore(name, permits.parse()?);
                        Event::acquire(process, hold, name, semaphore.acquire()).await
                    }
                    None => {
                        let lock = self.lock(kind, name)?;
                        Event::acquire(process, hold, name, lock.acquire()).await
                    }
                };
                self.guards.insert(name.to_owned(), guard?);
                event
            }
        };
        self.history.record(&event)?;
        let fence = event.fence.map_or_else(|| "null".to_owned(), |fence| fence.to_string());
        Ok(format!("{} {} {fence}", event.invoked, event.returned))
    }

    fn lock(&self, kind: &str, name: &str) -> Result<Lock> {
        Ok(match kind {
            "fenced" => self.fenced.lock(name),
            "left" => self.locks.lock(name).with_hold_at_least(LEFT),
            "read" => self.readers.lock(name).read(),
            "write" => self.readers.lock(name),
            "fair" => self.locks.lock(name).with_fairness(true),
            // A term of office is a lock that is held alone.
            "latch" => self.elections.as_ref().context("not on Redis")?.lock(name),
            _ => self.locks.lock(name),
        })
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
        Event::without_fence(self.process, self.hold, name, op, invoked)
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
