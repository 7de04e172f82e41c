//! One of two processes that hand one lock to and fro.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use dlock_testkit::history::{Event, Op, Recorder};
use dlock_testkit::now_ns;

use crate::clients::{self, LEASE, Rslock, SetNx};

/// How often the bare client asks again.
const POLL: Duration = Duration::from_millis(10);

/// What the process does.
#[derive(Debug, Args)]
pub(crate) struct Part {
    /// Which client: dlock, dlock in order (fair), polling or rslock
    pub(crate) client: String,
    /// The server
    pub(crate) url: String,
    /// The lock
    pub(crate) key: String,
    /// The number of the process
    pub(crate) process: u32,
    /// How often it is taken
    pub(crate) count: u64,
    /// For how many microseconds it is held
    pub(crate) hold: u64,
    /// For how many microseconds it is then left to the other
    pub(crate) pause: u64,
    /// Where to write what happened
    pub(crate) history: PathBuf,
}

impl Part {
    pub(crate) fn arguments(&self) -> Vec<String> {
        let Self { client, url, key, process, count, hold, pause, history } = self;
        let mut arguments = vec![client.clone(), url.clone(), key.clone(), process.to_string()];
        arguments.extend([count.to_string(), hold.to_string(), pause.to_string()]);
        arguments.push(history.display().to_string());
        arguments
    }

    pub(crate) async fn play(&self) -> Result<()> {
        let recorder = Recorder::append(&self.history)?;
        match self.client.as_str() {
            "dlock" | "fair" => {
                let locks = clients::dlock(&self.url).await?;
                for hold in 0..self.count {
                    let asked = now_ns();
                    let lock = locks.lock(&self.key).with_fairness(self.client == "fair");
                    let guard = lock.acquire().await?;
                    let released = self.hold(&recorder, hold, asked).await?;
                    guard.release().await?;
                    self.pause(&recorder, hold, released).await?;
                }
                locks.shutdown(Duration::from_secs(5)).await?;
            }
            "polling" => {
                let set_nx = SetNx::new(clients::connection(&self.url).await?);
                for hold in 0..self.count {
                    let (asked, token) = (now_ns(), clients::token());
                    while !set_nx.try_acquire(&self.key, &token).await? {
                        tokio::time::sleep(POLL).await;
                    }
                    let released = self.hold(&recorder, hold, asked).await?;
                    set_nx.release(&self.key, &token).await?;
                    self.pause(&recorder, hold, released).await?;
                }
            }
            "rslock" => {
                let Rslock(manager) = Rslock::new(&self.url);
                for hold in 0..self.count {
                    let asked = now_ns();
                    let lock = manager.lock(self.key.as_str(), LEASE).await?;
                    let released = self.hold(&recorder, hold, asked).await?;
                    manager.unlock(&lock).await;
                    self.pause(&recorder, hold, released).await?;
                }
            }
            other => bail!("no client {other}"),
        }
        Ok(())
    }

    /// After an acquire: writes it down and holds the lock. Returns when it begins to release it.
    async fn hold(&self, recorder: &Recorder, hold: u64, asked: u64) -> Result<u64> {
        recorder.record(&self.event(hold, Op::Acquire, asked))?;
        tokio::time::sleep(Duration::from_micros(self.hold)).await;
        recorder.record(&self.event(hold, Op::Check, now_ns()))?;
        Ok(now_ns())
    }

    async fn pause(&self, recorder: &Recorder, hold: u64, released: u64) -> Result<()> {
        recorder.record(&self.event(hold, Op::Release, released))?;
        tokio::time::sleep(Duration::from_micros(self.pause)).await;
        Ok(())
    }

    /// What returns now.
    fn event(&self, hold: u64, op: Op, invoked: u64) -> Event {
        Event::without_fence(self.process, hold, &self.key, op, invoked)
    }
}
