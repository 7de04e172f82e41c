//! The one connection that listens for releases.
//!
//! ```text
//!               `open`                `subscribe`
//!     nothing ---------> connected ----------------> listening, and `Subscribed` waits in `subscribed`
//!       ^                   |                            |  ^
//!       |                   |                     `next` |  | `Subscribed` first, then each notification
//!       |                   |                            +--+
//!       +-------------------+--- broken, closed, no answer to `ping` (the caller opens another)
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::notify::{Connection, Event, Source};
use dlock_core::backend::within;
use sqlx::Postgres;
use sqlx::postgres::PgListener;

use crate::connector::Connector;
use crate::driver::Driver;

/// The text of the failure where it cannot be used.
const DEAF: &str = "nothing listens for releases";

/// The opening of the connection.
pub(super) struct Listening<S: Driver>(pub(super) Arc<Connector<S>>);

/// A connection that listens, and the subscriptions that it has not reported yet.
pub(super) struct ListeningConnection {
    listener: PgListener,
    subscribed: VecDeque<Event>,
}

impl<S: Driver<Database = Postgres>> Source for Listening<S> {
    type Connection = ListeningConnection;

    /// Leaving a channel and coming back to it costs a statement each.
    const LINGER: Duration = Duration::from_millis(200);

    async fn open(&self) -> Result<ListeningConnection, Failure> {
        let opening = async {
            let one = self.0.pool_of_one().await?;
            let opened = PgListener::connect_with(&one).await;
            let mut listener = opened.map_err(|error| self.0.failure(error))?;
            // The library would connect again by itself, past the bounds and the checks of `open`.
            listener.eager_reconnect(false);
            Ok(ListeningConnection { listener, subscribed: VecDeque::new() })
        };
        let limit = self.0.limit;
        // A waiter is not refused for that: it asks now and then.
        let deaf = |failure| Failure::unavailable(DEAF).with_source(failure);
        // A log-in as any other: it is not tried while the server refuses them, and its outcome counts for the rest.
        self.0.may_log_in().map_err(deaf)?;
        let late = || Err(Failure::unavailable(format!("no connection within {limit:?}")));
        let opened = within(limit, opening).await.unwrap_or_else(late);
        self.0.logged_in(opened).map_err(deaf)
    }
}

impl Connection for ListeningConnection {
    async fn subscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        self.listener.listen_all(channels.iter().map(|name| &**name)).await.map_err(broken)?;
        // Only after the answer of the server: from here on it sends notifications, and the waiter asks once more for
        // what happened before.
        self.subscribed.push_back(Event::Subscribed(channels.to_vec()));
        Ok(())
    }

    async fn unsubscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        for channel in channels {
            self.listener.unlisten(channel).await.map_err(broken)?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        // Subscriptions before notifications: a notification without its subscription would not be waited for.
        if let Some(subscribed) = self.subscribed.pop_front() {
            return Ok(subscribed);
        }
        // Notifications that came with the answer to a statement are in the buffer, and are older than what is read
        // next.
        let said = match self.listener.next_buffered() {
            Some(said) => Some(said),
            None => self.listener.try_recv().await.map_err(broken)?,
        };
        match said {
            Some(said) => Ok(Event::Message(said.channel().to_owned())),
            None => Err(Failure::unavailable("the connection that listens for releases was closed")),
        }
    }

    async fn ping(&mut self) -> Result<(), Failure> {
        // A statement, since the protocol has no ping; the bound on its answer is that of the caller.
        sqlx::query("SELECT 1").execute(&mut self.listener).await.map(drop).map_err(broken)
    }
}

fn broken(error: sqlx::Error) -> Failure {
    Failure::unavailable(DEAF).with_source(error)
}
