//! Who waits is told of releases: one connection for all waiters of a client.
//!
//! The connection lives on dlock's own thread, is opened when somebody waits for the first time, and is opened again when
//! it breaks. Waiters are told of each message, and of whatever may have hidden one: when their channel was subscribed
//! (the lock may have been released just before), and when the connection broke.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{Failure, keeper};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::error::{Fault, refusal};
use crate::servers::{Opened, Servers};

/// A channel is left this long after its last waiter went: on a lock that is wanted all the time the next comes soon.
const LINGER: Duration = Duration::from_millis(50);
/// The pauses between two tries to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How often the connection is tested while somebody waits, and how long any answer on it may take.
const TEST: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// How many channels are subscribed in one command at the most.
const MOST_AT_ONCE: usize = 500;

/// All channels that somebody of this client listens to.
pub(crate) struct Hub {
    channels: Arc<Channels>,
    orders: mpsc::UnboundedSender<Order>,
    start: Mutex<Option<Session>>,
}

#[derive(Default)]
struct Channels {
    by_name: Mutex<HashMap<Arc<str>, watch::Sender<News>>>,
    /// Whether there are any, for those who only want to join one.
    any: AtomicBool,
}

/// What happened on a channel, as far as waiters care.
#[derive(Clone, Debug, Default)]
struct News {
    count: u64,
    /// The server does not let us listen, with its text.
    denied: Option<Arc<str>>,
}

enum Order {
    Subscribe(Arc<str>),
    /// One who listened has gone.
    Left(Arc<str>),
    Close,
}

/// One waiter's ear on a channel.
pub(crate) struct Listener {
    channel: Arc<str>,
    news: watch::Receiver<News>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Hub {
    /// A hub that is not connected yet.
    pub(crate) fn new(servers: &Arc<Servers>) -> Self {
        let channels = Arc::new(Channels::default());
        let (orders, inbox) = mpsc::unbounded_channel();
        let session = Session {
            servers: Arc::clone(servers),
            channels: Arc::clone(&channels),
            orders: inbox,
            said: false,
        };
        Self { channels, orders, start: Mutex::new(Some(session)) }
    }

    /// Listens to a channel. The first news is that it was subscribed, unless it was before.
    pub(crate) fn listen(&self, channel: &str) -> Result<Listener, Failure> {
        if let Some(session) = lock(&self.start).take() {
            keeper::runtime()?.spawn(session.run());
        }
        let mut by_name = lock(&self.channels.by_name);
        let (channel, news) = match by_name.get_key_value(channel) {
            Some((name, news)) => (Arc::clone(name), news.subscribe()),
            None => {
                let name: Arc<str> = channel.into();
                let (sender, news) = watch::channel(News::default());
                by_name.insert(Arc::clone(&name), sender);
                self.channels.any.store(true, Ordering::Release);
                let _ = self.orders.send(Order::Subscribe(Arc::clone(&name)));
                (name, news)
            }
        };
        drop(by_name);
        Ok(Listener { channel, news, orders: self.orders.clone() })
    }

    /// Listens to a channel that is listened to already. Who does so before it asks for the lock misses no release.
    pub(crate) fn join<'a>(&self, channel: impl FnOnce() -> Cow<'a, str>) -> Option<Listener> {
        if !self.channels.any.load(Ordering::Acquire) {
            return None;
        }
        let by_name = lock(&self.channels.by_name);
        let (name, news) = by_name.get_key_value(&*channel())?;
        Some(Listener { channel: Arc::clone(name), news: news.subscribe(), orders: self.orders.clone() })
    }

    /// Closes the connection, for good.
    pub(crate) fn close(&self) {
        lock(&self.start).take();
        let _ = self.orders.send(Order::Close);
    }
}

impl Listener {
    /// What has happened until now does not count.
    pub(crate) fn forget(&mut self) {
        self.news.mark_unchanged();
    }

    /// Resolves with the next news.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    pub(crate) async fn changed(&mut self) -> Result<(), Failure> {
        let denied = self.news.borrow().denied.is_some();
        if !denied && self.news.changed().await.is_err() {
            // The hub is gone.
            std::future::pending::<()>().await;
        }
        match &self.news.borrow().denied {
            // Whoever may not listen asks from time to time.
            Some(text) => Err(Failure::unavailable(refusal(text).message().to_owned())),
            None => Ok(()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Left(Arc::clone(&self.channel)));
    }
}

impl Channels {
    fn tell(&self, channel: &str) {
        if let Some(news) = lock(&self.by_name).get(channel) {
            news.send_modify(|news| news.count += 1);
        }
    }

    fn tell_all(&self) {
        for news in lock(&self.by_name).values() {
            news.send_modify(|news| news.count += 1);
        }
    }

    fn deny(&self, names: &[Arc<str>], text: &str) {
        let by_name = lock(&self.by_name);
        for news in names.iter().filter_map(|name| by_name.get(name)) {
            news.send_modify(|news| news.denied = Some(text.into()));
        }
    }

    /// Drops a channel if nobody listens to it; whether nobody does. One that is not known any more was dropped while the
    /// connection was being opened, and the order to subscribe to it was still carried out.
    fn drop_unheard(&self, name: &str) -> bool {
        let mut by_name = lock(&self.by_name);
        let unheard = by_name.get(name).is_none_or(|news| news.receiver_count() == 0);
        if unheard {
            by_name.remove(name);
            self.any.store(!by_name.is_empty(), Ordering::Release);
        }
        unheard
    }

    /// All that are listened to.
    fn heard(&self) -> Vec<Arc<str>> {
        let mut by_name = lock(&self.by_name);
        by_name.retain(|_, news| news.receiver_count() > 0);
        self.any.store(!by_name.is_empty(), Ordering::Release);
        by_name.keys().cloned().collect()
    }
}

/// What keeps the connection.
struct Session {
    servers: Arc<Servers>,
    channels: Arc<Channels>,
    orders: mpsc::UnboundedReceiver<Order>,
    /// Whether it was said that the user may not listen.
    said: bool,
}

/// What a command on the connection was for.
enum Done {
    Subscribed(Vec<Arc<str>>, Result<(), Fault>),
    Other(Result<(), Fault>),
}

impl Session {
    async fn run(mut self) {
        let mut pause = PAUSE.0;
        loop {
            while self.channels.heard().is_empty() {
                match self.orders.recv().await {
                    None | Some(Order::Close) => return,
                    Some(_) => {}
                }
            }
            let (pushes, inbox) = mpsc::unbounded_channel();
            let listen = move |push| drop(pushes.send(push));
            let opened = match self.servers.any().await {
                Ok(endpoint) => self.servers.opener().open(&endpoint, listen).await,
                Err(failure) => Err(failure),
            };
            match opened {
                Ok(opened) => {
                    pause = PAUSE.0;
                    if self.serve(opened, inbox).await.is_none() {
                        return;
                    }
                }
                Err(failure) => tracing::debug!(%failure, "no connection to listen for releases"),
            }
            self.servers.distrust();
            // A message may have been missed.
            self.channels.tell_all();
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Serves one connection until it breaks; `None` when the hub is gone.
    async fn serve(&mut self, opened: Opened, mut pushes: mpsc::UnboundedReceiver<PushInfo>) -> Option<()> {
        let connection = opened.connection;
        let mut subscribed = HashSet::new();
        let mut leaving: Vec<(Instant, Arc<str>)> = Vec::new();
        let mut commands = FuturesUnordered::new();
        let mut wanted = self.channels.heard();
        let mut test = tokio::time::interval_at(Instant::now() + TEST.0, TEST.0);
        loop {
            wanted.retain(|name| subscribed.insert(Arc::clone(name)));
            for names in wanted.chunks(MOST_AT_ONCE) {
                commands.push(command(connection.clone(), "SUBSCRIBE", names.to_vec()));
            }
            wanted.clear();
            let next_leave = leaving.first().map(|(at, _)| *at);
            tokio::select! {
                push = pushes.recv() => match push {
                    Some(push) if push.kind == PushKind::Disconnection => return Some(()),
                    Some(push) => self.hear(&push),
                    None => return Some(()),
                },
                order = self.orders.recv() => match order {
                    None | Some(Order::Close) => return None,
                    Some(Order::Subscribe(name)) => {
                        wanted.push(name);
                        while let Ok(order) = self.orders.try_recv() {
                            match order {
                                Order::Subscribe(name) => wanted.push(name),
                                Order::Left(name) => leaving.push((Instant::now() + LINGER, name)),
                                Order::Close => return None,
                            }
                        }
                    }
                    Some(Order::Left(name)) => leaving.push((Instant::now() + LINGER, name)),
                },
                () = until(next_leave) => {
                    let now = Instant::now();
                    let mut gone = Vec::new();
                    while leaving.first().is_some_and(|(at, _)| *at <= now) {
                        let (_, name) = leaving.remove(0);
                        if self.channels.drop_unheard(&name) && subscribed.remove(&name) {
                            gone.push(name);
                        }
                    }
                    if !gone.is_empty() {
                        commands.push(command(connection.clone(), "UNSUBSCRIBE", gone));
                    }
                }
                Some(done) = commands.next(), if !commands.is_empty() => match done {
                    Done::Subscribed(names, Err(fault)) => match fault {
                        Fault::Refused(text) if !refusal(&text).is_transient() => {
                            if !std::mem::replace(&mut self.said, true) {
                                let failure = refusal(&text);
                                tracing::warn!(%failure, "releases are not notified, and waiters have to ask for them");
                            }
                            self.channels.deny(&names, &text);
                        }
                        _ => return Some(()),
                    },
                    Done::Other(Err(Fault::Cut(_))) => return Some(()),
                    _ => {}
                },
                _ = test.tick(), if !subscribed.is_empty() => {
                    commands.push(command(connection.clone(), "PING", Vec::new()));
                }
            }
        }
    }

    fn hear(&self, push: &PushInfo) {
        if matches!(push.kind, PushKind::Message | PushKind::Subscribe)
            && let Some(Value::BulkString(channel)) = push.data.first()
            && let Ok(channel) = std::str::from_utf8(channel)
        {
            self.channels.tell(channel);
        }
    }
}

/// Sends a command with these channels, and waits for all that the server says to it.
async fn command(mut connection: MultiplexedConnection, what: &'static str, names: Vec<Arc<str>>) -> Done {
    let sent = async {
        match what {
            "SUBSCRIBE" => connection.subscribe(texts(&names)).await,
            "UNSUBSCRIBE" => connection.unsubscribe(texts(&names)).await,
            _ => connection.send_packed_command(&redis::cmd(what)).await.map(drop),
        }
    };
    let result = match tokio::time::timeout(TEST.1, sent).await {
        Ok(result) => result.map_err(Fault::of),
        Err(_) => Err(Fault::Cut("no answer".into())),
    };
    if what == "SUBSCRIBE" { Done::Subscribed(names, result) } else { Done::Other(result) }
}

fn texts(names: &[Arc<str>]) -> Vec<&str> {
    names.iter().map(|name| &**name).collect()
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
