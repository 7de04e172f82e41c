//! Who of this process waits for which release, and what he is told.
//!
//! What the server says is a hint: it may be missed, and the engine asks now and then in any case.

// Only PostgreSQL tells of releases; claims are the same on all servers.
#![cfg_attr(not(feature = "postgres"), allow(dead_code))]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::Failure;
use tokio::sync::{mpsc, watch};

/// All channels that somebody of this process listens to.
#[derive(Debug)]
pub(crate) struct Channels {
    by_name: Mutex<HashMap<Arc<str>, watch::Sender<News>>>,
    /// Whether there are any, for those who only want to join one.
    any: AtomicBool,
    orders: mpsc::UnboundedSender<Order>,
}

/// What happened on a channel, as far as waiters care.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    count: u64,
    /// The server tells of what happens on it.
    heard: bool,
}

/// What the connection that listens has to do.
#[derive(Debug)]
pub(crate) enum Order {
    Listen(Arc<str>),
    /// One who listened has gone.
    Left(Arc<str>),
    Close,
}

/// One waiter's ear on a channel.
#[derive(Debug)]
pub struct Listener {
    channel: Arc<str>,
    news: watch::Receiver<News>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Channels {
    /// With the orders for the connection that listens.
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Order>) {
        let (orders, inbox) = mpsc::unbounded_channel();
        (Arc::new(Self { by_name: Mutex::default(), any: AtomicBool::new(false), orders }), inbox)
    }

    fn by_name(&self) -> MutexGuard<'_, HashMap<Arc<str>, watch::Sender<News>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a channel. The first news is that it is heard, unless it was before.
    pub(crate) fn listen(&self, channel: &str) -> Listener {
        let mut by_name = self.by_name();
        let (channel, news) = match by_name.get_key_value(channel) {
            Some((name, news)) => (Arc::clone(name), news.subscribe()),
            None => {
                let name: Arc<str> = channel.into();
                let (sender, news) = watch::channel(News::default());
                by_name.insert(Arc::clone(&name), sender);
                self.any.store(true, Ordering::Release);
                let _ = self.orders.send(Order::Listen(Arc::clone(&name)));
                (name, news)
            }
        };
        Listener { channel, news, orders: self.orders.clone() }
    }

    /// Listens to a channel that is listened to already.
    pub(crate) fn join(&self, channel: &str) -> Option<Listener> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let by_name = self.by_name();
        let (name, news) = by_name.get_key_value(channel)?;
        Some(Listener { channel: Arc::clone(name), news: news.subscribe(), orders: self.orders.clone() })
    }

    /// Something happened on the channel.
    pub(crate) fn tell(&self, channel: &str) {
        if let Some(news) = self.by_name().get(channel) {
            news.send_modify(|news| news.count += 1);
        }
    }

    /// The server tells of what happens on these from now on. What happened before may have been missed.
    pub(crate) fn heard(&self, names: &[Arc<str>]) {
        let by_name = self.by_name();
        for news in names.iter().filter_map(|name| by_name.get(name)) {
            news.send_modify(|news| *news = News { count: news.count + 1, heard: true });
        }
    }

    /// The server tells of nothing any more.
    pub(crate) fn deaf(&self) {
        for news in self.by_name().values() {
            news.send_modify(|news| *news = News { count: news.count + 1, heard: false });
        }
    }

    /// Drops a channel if nobody listens to it; whether nobody does. One that is not known any more was dropped while the
    /// connection was being opened, and the order to listen to it was still carried out.
    pub(crate) fn drop_unheard(&self, name: &str) -> bool {
        let mut by_name = self.by_name();
        let unheard = by_name.get(name).is_none_or(|news| news.receiver_count() == 0);
        if unheard {
            by_name.remove(name);
            self.any.store(!by_name.is_empty(), Ordering::Release);
        }
        unheard
    }

    /// All that are listened to.
    pub(crate) fn wanted(&self) -> Vec<Arc<str>> {
        let mut by_name = self.by_name();
        by_name.retain(|_, news| news.receiver_count() > 0);
        self.any.store(!by_name.is_empty(), Ordering::Release);
        by_name.keys().cloned().collect()
    }

    pub(crate) fn close(&self) {
        let _ = self.orders.send(Order::Close);
    }
}

impl Listener {
    /// What has happened until now does not count.
    pub(crate) fn forget(&mut self) {
        self.news.mark_unchanged();
    }

    /// Whether the server tells of releases and has told of none since.
    pub(crate) fn is_quiet(&self) -> bool {
        self.news.borrow().heard && matches!(self.news.has_changed(), Ok(false))
    }

    /// Resolves with the next news.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    pub(crate) async fn changed(&mut self) -> Result<(), Failure> {
        if self.news.changed().await.is_err() {
            // The backend was closed.
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Left(Arc::clone(&self.channel)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_waiter_is_told_what_happened_since_it_last_asked() {
        let (channels, mut orders) = Channels::new();
        assert!(channels.join("a").is_none(), "nobody listens yet");
        let mut one = channels.listen("a");
        let mut two = channels.join("a").unwrap();
        assert!(matches!(orders.try_recv(), Ok(Order::Listen(name)) if &*name == "a"));
        assert!(orders.try_recv().is_err(), "once is enough");
        assert!(!one.is_quiet(), "the server does not tell yet");
        channels.heard(&channels.wanted());
        one.changed().await.unwrap();
        assert!(one.is_quiet());
        two.forget();
        channels.tell("a");
        channels.tell("b");
        assert!(!one.is_quiet() && !two.is_quiet());
        two.changed().await.unwrap();
        channels.deaf();
        assert!(!two.is_quiet());
        drop(one);
        assert!(!channels.drop_unheard("a"), "there is another waiter");
        drop(two);
        assert!(channels.drop_unheard("a"));
        assert!(channels.join("a").is_none());
    }
}
