//! The process that uses a library in Rust: dlock, `rslock`, or the advisory lock of sqlx. [`Contender`] has the
//! orders.
//!
//! [`Contender`]: crate::contender::Contender

mod advisory;
mod client;
mod using;

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io::Write as _;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::task::{AbortHandle, JoinSet, LocalSet, spawn_local};

use client::{Client, Taken};

/// What an acquire has come to.
enum Slot {
    Waiting(AbortHandle),
    Taken(Taken),
}

#[derive(Clone)]
struct Worker {
    client: Rc<Client>,
    slots: Rc<RefCell<HashMap<u64, Slot>>>,
}

/// Takes orders until the input ends.
pub(crate) fn serve(library: &str, url: &str, lease: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let client = Rc::new(Client::open(library, url, lease).await?);
        let worker = Worker { client, slots: Rc::default() };
        tell(0, "ready");
        let mut orders = BufReader::new(stdin()).lines();
        while let Some(order) = orders.next_line().await? {
            let (id, order) = order.split_once(' ').context("an order without a number")?;
            worker.begin(id.parse()?, order.to_owned())?;
        }
        Ok(())
    })
}

impl Worker {
    fn begin(&self, id: u64, order: String) -> Result<()> {
        if let Some(of) = order.strip_prefix("cancel ") {
            let of: u64 = of.parse()?;
            let mut slots = self.slots.borrow_mut();
            if let Some(Slot::Waiting(acquire)) = slots.get(&of) {
                acquire.abort();
                slots.remove(&of);
                tell(of, "cancelled");
            }
            return Ok(());
        }
        let acquires = order.starts_with("acquire ");
        let worker = self.clone();
        let task = spawn_local(async move {
            if let Err(error) = worker.carry_out(id, &order).await {
                tell(id, &format!("error {error:#}"));
            }
        });
        if acquires {
            self.slots.borrow_mut().insert(id, Slot::Waiting(task.abort_handle()));
        }
        Ok(())
    }

    async fn carry_out(&self, id: u64, order: &str) -> Result<()> {
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["acquire", key, wait, _] => {
                let wait = Some(Duration::from_millis(wait.parse()?)).filter(|wait| !wait.is_zero());
                match self.client.acquire(key, wait).await? {
                    Some(taken) => {
                        let fence = taken.fence().map_or_else(|| "-".to_owned(), |fence| fence.to_string());
                        self.slots.borrow_mut().insert(id, Slot::Taken(taken));
                        tell(id, &format!("acquired {fence}"));
                    }
                    None => tell(id, "timeout"),
                }
            }
            ["release", of] => {
                let Some(Slot::Taken(taken)) = self.slots.borrow_mut().remove(&of.parse()?) else {
                    bail!("it is not held")
                };
                taken.release().await?;
                tell(id, "released");
            }
            ["check", of] => {
                let held = self.with(of, Taken::asks)?.await;
                tell(id, if held { "held" } else { "gone" });
            }
            ["watch", of] => {
                let Some((warned, lost)) = self.with(of, Taken::listens)? else {
                    tell(id, "deaf");
                    return Ok(());
                };
                tell(id, "watching");
                let warning = spawn_local(async move {
                    warned.await;
                    tell(id, "warned");
                });
                lost.await;
                warning.abort();
                tell(id, "lost");
            }
            ["turns", key, count] => {
                let mut waiters = JoinSet::new();
                for _ in 0..count.parse()? {
                    let (client, key) = (Rc::clone(&self.client), key.to_owned());
                    waiters.spawn_local(async move {
                        let taken = client.acquire(&key, None).await?;
                        taken.context("a wait without end ended")?.release().await
                    });
                }
                let mut errors = 0;
                while let Some(turn) = waiters.join_next().await {
                    errors += u32::from(!matches!(turn, Ok(Ok(()))));
                }
                tell(id, &format!("turned {errors}"));
            }
            _ => bail!("no order: {order}"),
        }
        Ok(())
    }

    /// Something about a lock that is held.
    fn with<T>(&self, of: &str, ask: impl FnOnce(&Taken) -> T) -> Result<T> {
        match self.slots.borrow().get(&of.parse()?) {
            Some(Slot::Taken(taken)) => Ok(ask(taken)),
            _ => bail!("it is not held"),
        }
    }
}

/// What waits for an event.
type Event = std::pin::Pin<Box<dyn Future<Output = ()>>>;

fn tell(id: u64, words: &str) {
    let line = format!("{id} {}\n", words.replace('\n', " "));
    let mut out = std::io::stdout().lock();
    // Without somebody who reads there is nothing to do any more, and the input has ended too.
    drop(out.write_all(line.as_bytes()).and_then(|()| out.flush()));
}
