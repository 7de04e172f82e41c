//! The one stream of watches for all waiters of a client.
//!
//! A channel is the key of an entry that is waited for, or, with a slash at its end, a directory together with the
//! number of its permits. A watch begins with what happens from then on, so that no compaction can end it; that it has
//! begun is news too, after which a claim asks once more. A server that loses its leader ends the stream.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dlock_core::Failure;
use dlock_core::backend::notify::{Connection, Event, Source};
use etcd_client::{EventType, KeyValue, WatchOptions, WatchResponse, WatchStream};

use crate::error::failure;
use crate::servers::{PATIENCE, Servers};

/// The age from which on a stream is begun anew when a watch is refused.
const TOKEN: Duration = Duration::from_secs(5);

/// The source of streams.
pub(crate) struct Watching(pub(crate) Weak<Servers>);

/// A stream of watches, each with an id that is chosen here.
pub(crate) struct Watches {
    stream: WatchStream,
    channels: HashMap<i64, Arc<str>>,
    last: i64,
    begun: Instant,
}

impl Source for Watching {
    type Connection = Watches;

    async fn open(&self) -> Result<Watches, Failure> {
        let closed = || Failure::unavailable("the backend was closed");
        let servers = self.0.upgrade().ok_or_else(closed)?;
        // The library opens a stream with its first watch: of a key that nothing has.
        let first = format!("{}/", servers.config.prefix);
        let opening = servers.ask(PATIENCE, |client| {
            let first = first.clone();
            async move { client.watch_client().watch(first, Some(WatchOptions::new().with_watch_id(1))).await }
        });
        Ok(Watches { stream: opening.await?, channels: HashMap::new(), last: 1, begun: Instant::now() })
    }
}

impl Connection for Watches {
    async fn subscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        for channel in channels {
            self.last += 1;
            let options = WatchOptions::new().with_watch_id(self.last);
            let (key, options) = match channel.strip_suffix('/') {
                // `0` is the character after the slash.
                Some(number) => (number, options.with_range(format!("{number}0"))),
                None => (&**channel, options),
            };
            self.stream.watch(key, Some(options)).await.map_err(failure)?;
            self.channels.insert(self.last, Arc::clone(channel));
        }
        Ok(())
    }

    async fn unsubscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        let ended: Vec<i64> =
            self.channels.iter().filter(|(_, name)| channels.contains(name)).map(|(id, _)| *id).collect();
        for id in ended {
            self.channels.remove(&id);
            self.stream.cancel(id).await.map_err(failure)?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        loop {
            let answer = self.stream.message().await.map_err(failure)?;
            let answer = answer.ok_or_else(|| Failure::unavailable("the servers ended the watches"))?;
            if let Some(event) = self.event(&answer)? {
                return Ok(event);
            }
        }
    }

    /// The connection is tested by pings of its own, which end the stream when they are not answered.
    async fn ping(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Watches {
    fn event(&mut self, answer: &WatchResponse) -> Result<Option<Event>, Failure> {
        let is_refused = answer.canceled() && answer.created();
        // A stream has the token with which it was begun, and that may be an old one by now.
        if is_refused && self.begun.elapsed() > TOKEN {
            return Err(Failure::unavailable(format!("a watch was refused: {}", answer.cancel_reason())));
        }
        // Older servers do not say which one they refused.
        let Some(channel) = self.channels.get(&answer.watch_id()).cloned() else { return Ok(None) };
        if answer.canceled() {
            let reason = answer.cancel_reason();
            if !is_refused {
                return Err(Failure::unavailable(format!("a watch was ended: {reason}")));
            }
            self.channels.remove(&answer.watch_id());
            // A claim that cannot be notified asks again from time to time.
            return Ok(Some(Event::Denied(vec![channel], Failure::unavailable(reason.to_owned()))));
        }
        if answer.created() {
            return Ok(Some(Event::Subscribed(vec![channel])));
        }
        // A key that is added to a directory stands behind those that wait. Between the number of permits and the
        // directory there are keys of other locks.
        let matters = |event: &etcd_client::Event| {
            let key = event.kv().map_or(&[][..], KeyValue::key);
            match key.strip_prefix(channel.trim_end_matches('/').as_bytes()) {
                Some([]) => true,
                Some([b'/', ..]) => event.event_type() == EventType::Delete,
                _ => false,
            }
        };
        let is_news = !channel.ends_with('/') || answer.events().iter().any(matters);
        Ok(is_news.then(|| Event::Message(channel.to_string())))
    }
}
