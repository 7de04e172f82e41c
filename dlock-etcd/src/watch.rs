//! The one stream of watches for all waiters of a client.
//!
//! A channel is the key of an entry that is waited for, or, with a slash at its end, a directory together with the
//! number of its permits. A watch begins with what happens from then on, so that no compaction can end it; that it has
//! begun is news too, after which a claim asks once more. A server that loses its leader ends the stream.
//!
//! | a watch | is in `channels` | its next answer |
//! |---|---|---|
//! | asked for | yes | created: it has begun; created and canceled: it is refused, as denied, or as the end of an old stream |
//! | begun | yes | events: a message; canceled: the end of the stream |
//! | left | no | is skipped, whatever it says |

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dlock_core::Failure;
use dlock_core::backend::notify::{Connection, Event, Source};
use etcd_client::{ResponseHeader, WatchOptions, WatchResponse, WatchStream};

use crate::ends::Ends;
use crate::error::failure;
use crate::servers::{PATIENCE, Servers};

/// The age from which on a stream is begun anew when a watch is refused.
const TOKEN: Duration = Duration::from_secs(5);

/// The source of streams.
pub(crate) struct Watching(pub(crate) Weak<Servers>);

/// A stream of watches, each with an id that is chosen here.
pub(crate) struct Watches {
    stream: WatchStream,
    /// With the log of each directory.
    channels: HashMap<i64, (Arc<str>, Ends)>,
    /// What comes after the beginning of a watch.
    next: Option<Event>,
    last: i64,
    begun: Instant,
}

impl Source for Watching {
    type Connection = Watches;

    async fn open(&self) -> Result<Watches, Failure> {
        let closed = || Failure::unavailable("the backend was closed");
        // Weak, since the servers belong to the backend that has these channels, and are to end with it.
        let servers = self.0.upgrade().ok_or_else(closed)?;
        // The library opens a stream with its first watch: of a key that nothing has.
        let first = format!("{}/", servers.config.prefix);
        let opening = servers.ask(PATIENCE, |client| {
            let first = first.clone();
            async move { client.watch_client().watch(first, Some(WatchOptions::new().with_watch_id(1))).await }
        });
        // The watch with the id 1 stays, and is in no channel: its answers are skipped.
        Ok(Watches {
            stream: opening.await?,
            channels: HashMap::new(),
            next: None,
            last: 1,
            begun: Instant::now(),
        })
    }
}

impl Connection for Watches {
    async fn subscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        for channel in channels {
            // An id is never used twice on a stream: an answer to a watch that was left must not count for another.
            self.last += 1;
            let options = WatchOptions::new().with_watch_id(self.last);
            let (key, options) = match channel.strip_suffix('/') {
                // `0` is the character after the slash.
                Some(number) => (number, options.with_range(format!("{number}0")).with_prev_key()),
                None => (&**channel, options),
            };
            self.stream.watch(key, Some(options)).await.map_err(failure)?;
            // No answer is read between the two: `subscribe` and `next` both have this stream alone.
            self.channels.insert(self.last, (Arc::clone(channel), Ends::default()));
        }
        Ok(())
    }

    async fn unsubscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        let ended: Vec<i64> = self
            .channels
            .iter()
            .filter(|(_, (name, _))| channels.contains(name))
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            // Before the request, so that an event which is on its way is skipped also if this is dropped in the await.
            self.channels.remove(&id);
            self.stream.cancel(id).await.map_err(failure)?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        if let Some(event) = self.next.take() {
            return Ok(event);
        }
        loop {
            // Cancel-safe: the library reads whole messages, and keeps what has come of the next.
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
        let Some((channel, ends)) = self.channels.get_mut(&answer.watch_id()) else { return Ok(None) };
        let (channel, number_key) = (Arc::clone(channel), channel.strip_suffix('/'));
        if answer.canceled() {
            let reason = answer.cancel_reason();
            if !is_refused {
                // Such as by a server that lost its leader. The next stream is opened where requests are answered.
                return Err(Failure::unavailable(format!("a watch was ended: {reason}")));
            }
            self.channels.remove(&answer.watch_id());
            // A claim that cannot be notified asks again from time to time.
            return Ok(Some(Event::Denied(vec![channel], Failure::unavailable(reason.to_owned()))));
        }
        let text = |ends: &Ends| Event::Text(channel.to_string(), ends.to_string());
        if answer.created() {
            if number_key.is_some() {
                ends.begin(answer.header().map_or(i64::MAX, ResponseHeader::revision));
                self.next = Some(text(ends));
            }
            return Ok(Some(Event::Subscribed(vec![channel])));
        }
        let Some(number_key) = number_key else { return Ok(Some(Event::Message(channel.to_string()))) };
        let news = answer.events().iter().filter(|event| ends.hear(event, number_key)).count();
        Ok((news > 0).then(|| text(ends)))
    }
}
