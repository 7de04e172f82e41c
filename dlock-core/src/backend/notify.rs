//! Notifications of releases, by one connection for all waiters of a client.
//!
//! ```text
//!       a waiter listens             opened
//! idle -----------------> opening ---------> serving --no channel left, at the next test--> idle
//!                          ^   |                |
//!                          |   | fails          | breaks
//!                          |   v                v
//!                         pause <-- all waiters are notified
//! ```
//!
//! The connection lives on dlock's own thread, and [`Channels::close`] ends it in any state. Waiters are notified of
//! each message, and of whatever may have hidden one: their channel was subscribed just now, or the connection broke. A
//! notification is a hint: the engine asks the backend now and then in any case.
//!
//! A backend implements [`Source`] and [`Connection`]; [`Channels`] does the rest.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::backend::Backoff;
use crate::error::{ErrorKind, Failure};
use crate::guarded::tell;
use crate::keeper;
use crate::sync::plain::Mutex;

/// The pauses between two tries to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The time between two tests of the connection while there are waiters. A connection without channels is closed then.
const TEST: Duration = Duration::from_secs(10);
/// The time that any answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// The most channels that are subscribed in one command.
const MOST_AT_ONCE: usize = 500;

/// A source of connections on which a server sends notifications.
pub trait Source: Send + Sync + 'static {
    /// The type of its connections.
    type Connection: Connection;

    /// The time for which a channel is kept after its last waiter has gone: on a lock that is wanted all the time, the
    /// next waiter comes soon.
    const LINGER: Duration = Duration::from_millis(50);

    /// Opens a connection, within a bound of its own.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when there is none at the moment; it is tried again after a pause.
    fn open(&self) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Takes note that a connection broke or could not be opened, before the next is opened.
    fn broken(&self) {}
}

/// A connection on which a server sends notifications. Its commands are not waited for longer than 5 s, and an error of
/// any of them ends it.
pub trait Connection: Send {
    /// Asks for the messages of these channels. May return before the server has confirmed that, which is
    /// [`Event::Subscribed`].
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the connection is of no more use.
    fn subscribe(&mut self, channels: &[Arc<str>]) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Asks for no more messages of these channels.
    ///
    /// # Errors
    ///
    /// As [`subscribe`](Self::subscribe).
    fn unsubscribe(&mut self, channels: &[Arc<str>]) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// As [`subscribe`](Self::subscribe).
    ///
    /// # Cancel safety
    ///
    /// Must be cancel-safe: nothing may be lost when it is dropped.
    fn next(&mut self) -> impl Future<Output = Result<Event, Failure>> + Send;

    /// Proves that the server still answers on this connection.
    ///
    /// # Errors
    ///
    /// As [`subscribe`](Self::subscribe).
    fn ping(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// An event on a connection.
#[derive(Debug)]
pub enum Event {
    /// A message came on this channel.
    Message(String),
    /// A message with this text came on this channel.
    Text(String, String),
    /// From now on the server sends the messages of these channels.
    Subscribed(Vec<Arc<str>>),
    /// The server will not send the messages of these channels, for this reason.
    Denied(Vec<Arc<str>>, Failure),
}

/// All channels on which waiters of one client listen.
#[derive(Debug)]
pub struct Channels {
    shared: Arc<HubState>,
    orders: mpsc::UnboundedSender<ConnectionOrder>,
    /// The task that keeps the connection, until it is started.
    session: Mutex<Option<KeeperTask>>,
}

struct KeeperTask(Pin<Box<dyn Future<Output = ()> + Send>>);

#[derive(Debug, Default)]
struct HubState {
    by_name: Mutex<HashMap<Arc<str>, watch::Sender<ChannelState>>>,
    /// Is `true` if there are any channels, for callers that only want to join one.
    any: AtomicBool,
}

/// The state of a channel, as far as it matters to waiters.
#[derive(Clone, Debug, Default)]
struct ChannelState {
    /// Is `true` if the server sends the messages of the channel.
    subscribed: bool,
    /// The reason of the server, if it refuses the subscription.
    denied: Option<(ErrorKind, Arc<str>)>,
    /// The text of the last message.
    text: Option<Arc<str>>,
}

#[derive(Debug)]
enum ConnectionOrder {
    Subscribe(Arc<str>),
    /// A listener has gone.
    Left(Arc<str>),
    Close,
}

/// The subscription of one waiter to a channel. Dropping the last one ends the subscription at the server.
#[derive(Debug)]
pub struct Listener {
    channel: Arc<str>,
    news: watch::Receiver<ChannelState>,
    orders: mpsc::UnboundedSender<ConnectionOrder>,
}

impl Channels {
    /// Creates channels whose connection is opened with the first listener.
    pub fn new(source: impl Source) -> Self {
        let shared = Arc::new(HubState::default());
        let (orders, inbox) = mpsc::unbounded_channel();
        let keeper = ConnectionKeeper { source, shared: Arc::clone(&shared), orders: inbox };
        Self { shared, orders, session: Mutex::new(Some(KeeperTask(Box::pin(keeper.run())))) }
    }

    /// Listens to a channel. The first news is that it is subscribed, also where it was before: what the caller looked
    /// at may have changed before it listened.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when the operating system gives no thread for dlock's own runtime.
    pub fn listen(&self, channel: &str) -> Result<Listener, Failure> {
        let mut session = self.session.lock();
        // Started by the first listener and not by `new`: a client that never waits needs no connection.
        if session.is_some() {
            let runtime = keeper::runtime()?;
            runtime.spawn(session.take().map_or_else(|| unreachable!("it is some"), |session| session.0));
        }
        drop(session);
        let mut by_name = self.shared.by_name.lock();
        let (channel, news) = match by_name.get_key_value(channel) {
            Some((name, sender)) => {
                let mut news = sender.subscribe();
                if sender.borrow().subscribed {
                    news.mark_changed();
                }
                (Arc::clone(name), news)
            }
            None => {
                let name: Arc<str> = channel.into();
                let (sender, news) = watch::channel(ChannelState::default());
                by_name.insert(Arc::clone(&name), sender);
                self.shared.any.store(true, Ordering::Release);
                let _ = self.orders.send(ConnectionOrder::Subscribe(Arc::clone(&name)));
                (name, news)
            }
        };
        Ok(Listener { channel, news, orders: self.orders.clone() })
    }

    /// Listens to a channel only if it has a listener already. A waiter that does so before it asks for the lock misses
    /// no release.
    #[must_use]
    pub fn join(&self, channel: &str) -> Option<Listener> {
        // Most attempts find no waiters: they cost one load.
        if !self.shared.any.load(Ordering::Acquire) {
            return None;
        }
        let by_name = self.shared.by_name.lock();
        let (name, news) = by_name.get_key_value(channel)?;
        Some(Listener { channel: Arc::clone(name), news: news.subscribe(), orders: self.orders.clone() })
    }

    /// Closes the connection, for good. Listeners are notified no more.
    pub fn close(&self) {
        self.session.lock().take();
        let _ = self.orders.send(ConnectionOrder::Close);
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for KeeperTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeeperTask").finish_non_exhaustive()
    }
}

impl Listener {
    /// Forgets all news until now.
    pub fn forget(&mut self) {
        self.news.mark_unchanged();
    }

    /// Returns whether the server sends the messages of the channel, and none came since the last news.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.news.borrow().subscribed && matches!(self.news.has_changed(), Ok(false))
    }

    /// Returns the text of the last message on the channel, if there was one since it was subscribed. The message may
    /// be old: its text has to show whether it still counts.
    #[must_use]
    pub fn text(&self) -> Option<Arc<str>> {
        self.news.borrow().text.clone()
    }

    /// Waits for news; never resolves once the channels were closed.
    ///
    /// # Errors
    ///
    /// The reason of the server, when it refuses the subscription.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: nothing is lost when it is dropped.
    pub async fn changed(&mut self) -> Result<(), Failure> {
        // A refusal lasts, so it is reported to each wait at once and not only to the one that saw it come.
        let denied = self.news.borrow().denied.is_some();
        if !denied && self.news.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        match &self.news.borrow().denied {
            Some((kind, reason)) => Err(Failure::new(*kind, reason.to_string())),
            None => Ok(()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.orders.send(ConnectionOrder::Left(Arc::clone(&self.channel)));
    }
}

impl HubState {
    fn notify(&self, channel: &str, text: Option<&str>) {
        if let Some(news) = self.by_name.lock().get(channel) {
            // `send_modify` wakes the waiters also if the state stays equal.
            news.send_modify(|news| {
                if let Some(text) = text {
                    news.text = Some(text.into());
                }
            });
        }
    }

    /// Passes the server's answer about a subscription on to the waiters of these channels.
    fn answer(&self, names: &[Arc<str>], subscribed: bool, denied: Option<&(ErrorKind, Arc<str>)>) {
        let by_name = self.by_name.lock();
        for news in names.iter().filter_map(|name| by_name.get(name)) {
            news.send_modify(|news| *news = ChannelState { subscribed, denied: denied.cloned(), text: None });
        }
    }

    /// Resets all channels, which wakes their waiters: the server sends nothing any more, and a message may have been
    /// missed.
    fn reset(&self) {
        for news in self.by_name.lock().values() {
            news.send_modify(|news| *news = ChannelState::default());
        }
    }

    /// Drops a channel if it has no listener, and returns whether it has none. A channel that is not known any more was
    /// dropped while the connection was being opened, and the order to subscribe to it was still carried out.
    fn drop_unused(&self, name: &str) -> bool {
        let mut by_name = self.by_name.lock();
        let is_unused = by_name.get(name).is_none_or(|news| news.receiver_count() == 0);
        if is_unused {
            by_name.remove(name);
            self.any.store(!by_name.is_empty(), Ordering::Release);
        }
        is_unused
    }

    /// Returns all channels with listeners, and drops the others.
    fn wanted(&self) -> Vec<Arc<str>> {
        let mut by_name = self.by_name.lock();
        by_name.retain(|_, news| news.receiver_count() > 0);
        self.any.store(!by_name.is_empty(), Ordering::Release);
        by_name.keys().cloned().collect()
    }
}

/// The task that keeps the connection.
struct ConnectionKeeper<S> {
    source: S,
    shared: Arc<HubState>,
    orders: mpsc::UnboundedReceiver<ConnectionOrder>,
}

/// The reason for which a connection is not served any more.
enum Disconnection {
    Broken,
    /// There was no listener for a while.
    Idle,
    Closed,
}

impl<S: Source> ConnectionKeeper<S> {
    async fn run(mut self) {
        let mut pauses = Backoff::new(PAUSE.0, PAUSE.1);
        loop {
            while self.shared.wanted().is_empty() {
                match self.orders.recv().await {
                    None | Some(ConnectionOrder::Close) => return,
                    Some(_) => {}
                }
            }
            // A panic of the backend counts as a broken connection.
            let served = AssertUnwindSafe(self.open_and_serve(&mut pauses)).catch_unwind().await;
            match served.unwrap_or(Disconnection::Broken) {
                Disconnection::Closed => return,
                Disconnection::Idle => {}
                Disconnection::Broken => {
                    // Before the pause: waiters are to ask the backend at once, and not when the next connection is
                    // open.
                    self.shared.reset();
                    self.source.broken();
                    tokio::time::sleep(pauses.next_pause()).await;
                }
            }
        }
    }

    async fn open_and_serve(&mut self, pauses: &mut Backoff) -> Disconnection {
        match self.source.open().await {
            Ok(mut connection) => {
                // A connection that opens proves that the server is back, so the next failure begins with short pauses
                // again.
                *pauses = Backoff::new(PAUSE.0, PAUSE.1);
                self.serve(&mut connection).await
            }
            Err(failure) => {
                let what = "no connection to listen for releases";
                tell(|| tracing::debug!(target: "dlock", { dlock.failure = %failure }, "{what}"));
                Disconnection::Broken
            }
        }
    }

    async fn serve(&mut self, connection: &mut S::Connection) -> Disconnection {
        let mut subscribed = HashSet::new();
        let mut leaving = Leaving::default();
        let mut wanted = self.shared.wanted();
        let mut test = tokio::time::interval_at(Instant::now() + TEST, TEST);
        loop {
            // A channel is subscribed once: a listener may have come, gone and come again before its orders were read.
            wanted.retain(|name| subscribed.insert(Arc::clone(name)));
            for names in wanted.chunks(MOST_AT_ONCE) {
                if !answered(connection.subscribe(names)).await {
                    return Disconnection::Broken;
                }
            }
            wanted.clear();
            tokio::select! {
                event = connection.next() => match event {
                    Ok(event) => self.handle(event),
                    Err(_) => return Disconnection::Broken,
                },
                order = self.orders.recv() => {
                    // All orders that have come are read before any is carried out, so that many channels go into one
                    // command.
                    let mut next = Some(order);
                    while let Some(order) = next {
                        match order {
                            None | Some(ConnectionOrder::Close) => return Disconnection::Closed,
                            Some(ConnectionOrder::Subscribe(name)) => wanted.push(name),
                            Some(ConnectionOrder::Left(name)) => leaving.note(name, Instant::now() + S::LINGER),
                        }
                        next = self.orders.try_recv().ok().map(Some);
                    }
                }
                () = until(leaving.next()) => {
                    let mut gone = leaving.due(Instant::now());
                    // The count of listeners decides, and not the order: another listener may have come since.
                    gone.retain(|name| self.shared.drop_unused(name) && subscribed.remove(name));
                    if !gone.is_empty() && !answered(connection.unsubscribe(&gone)).await {
                        return Disconnection::Broken;
                    }
                }
                _ = test.tick() => {
                    // Closed only at a test, so that a lock with few waiters does not open a connection for each of
                    // them.
                    if subscribed.is_empty() {
                        return Disconnection::Idle;
                    }
                    if !answered(connection.ping()).await {
                        return Disconnection::Broken;
                    }
                }
            }
        }
    }

    fn handle(&self, event: Event) {
        match event {
            Event::Message(channel) => self.shared.notify(&channel, None),
            Event::Text(channel, text) => self.shared.notify(&channel, Some(&text)),
            Event::Subscribed(names) => self.shared.answer(&names, true, None),
            Event::Denied(names, failure) => {
                let denied = (failure.kind(), failure.message().into());
                self.shared.answer(&names, false, Some(&denied));
            }
        }
    }
}

/// Channels that a listener has left, with the time at which to look for other listeners. A later departure puts that
/// off.
#[derive(Default)]
struct Leaving {
    last: HashMap<Arc<str>, Instant>,
    /// Each channel once, at its time or before it.
    order: VecDeque<(Instant, Arc<str>)>,
}

impl Leaving {
    fn note(&mut self, name: Arc<str>, at: Instant) {
        // A name that is in `order` already only gets a later time, so that `order` cannot grow beyond the channels.
        if self.last.insert(Arc::clone(&name), at).is_none() {
            self.order.push_back((at, name));
        }
    }

    fn next(&self) -> Option<Instant> {
        self.order.front().map(|(at, _)| *at)
    }

    fn due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut due = Vec::new();
        while self.next().is_some_and(|at| at <= now)
            && let Some((_, name)) = self.order.pop_front()
        {
            match self.last.get(&name) {
                // The channel was left again since it was queued: it is looked at once for nothing, which is cheaper
                // than to move it in the queue each time.
                Some(&last) if last > now => self.order.push_back((last, name)),
                _ => {
                    self.last.remove(&name);
                    due.push(name);
                }
            }
        }
        due
    }
}

async fn answered(command: impl Future<Output = Result<(), Failure>>) -> bool {
    matches!(tokio::time::timeout(ANSWER, command).await, Ok(Ok(())))
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that confirms each subscription, and sends no message.
    struct Confirming;

    struct Confirmed(VecDeque<Arc<str>>);

    impl Source for Confirming {
        type Connection = Confirmed;

        async fn open(&self) -> Result<Confirmed, Failure> {
            Ok(Confirmed(VecDeque::new()))
        }
    }

    impl Connection for Confirmed {
        async fn subscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
            self.0.extend(channels.iter().cloned());
            Ok(())
        }

        async fn unsubscribe(&mut self, _: &[Arc<str>]) -> Result<(), Failure> {
            Ok(())
        }

        async fn next(&mut self) -> Result<Event, Failure> {
            match self.0.pop_front() {
                Some(channel) => Ok(Event::Subscribed(vec![channel])),
                None => std::future::pending().await,
            }
        }

        async fn ping(&mut self) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn who_listens_to_a_channel_that_others_have_looks_once_more() {
        let channels = Channels::new(Confirming);
        let mut first = channels.listen("room").unwrap();
        first.changed().await.unwrap();
        assert!(first.is_quiet());
        let mut second = channels.listen("room").unwrap();
        assert!(!second.is_quiet(), "a message may have come between its look and this");
        second.changed().await.unwrap();
        assert!(second.is_quiet());
        let joined = channels.join("room").unwrap();
        assert!(joined.is_quiet(), "who joins looks after it");
    }

    #[test]
    fn who_leaves_a_channel_later_puts_off_its_end() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut leaving = Leaving::default();
        for (name, due) in [(&a, 20), (&b, 25), (&a, 30), (&a, 60)] {
            leaving.note(Arc::clone(name), at(due));
        }
        assert_eq!(leaving.next(), Some(at(20)));
        assert!(leaving.due(at(20)).is_empty(), "it was left again");
        assert_eq!(leaving.due(at(29)), [Arc::clone(&b)]);
        assert_eq!(leaving.due(at(60)), [a]);
        assert!(leaving.next().is_none() && leaving.last.is_empty());
        leaving.note(Arc::clone(&b), at(70));
        assert_eq!(leaving.due(at(70)), [b], "and noted again");
    }
}
