//! Waiters are notified of releases over one connection, whatever happens to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::backend::notify::{Channels, Connection, Event, Listener, Source};
use dlock_core::{ErrorKind, Failure};
use tokio::sync::mpsc;

/// A server that says what the test wants, and reports what it was asked.
#[derive(Clone)]
struct Server(Arc<Mutex<Shared>>, mpsc::UnboundedSender<Asked>);

#[derive(Default)]
struct Shared {
    connection: Option<mpsc::UnboundedSender<Result<Event, Failure>>>,
    refuses: usize,
    panics: usize,
    silent: bool,
}

#[derive(Debug, PartialEq)]
enum Asked {
    Opened,
    Broken,
    Subscribe(Vec<String>),
    Unsubscribe(Vec<String>),
    Ping,
}

struct OneConnection(Server, mpsc::UnboundedReceiver<Result<Event, Failure>>);

fn server() -> (Server, mpsc::UnboundedReceiver<Asked>) {
    let (tell, asked) = mpsc::unbounded_channel();
    (Server(Arc::default(), tell), asked)
}

impl Server {
    fn say(&self, event: Result<Event, Failure>) {
        self.0.lock().unwrap().connection.as_ref().expect("it is connected").send(event).unwrap();
    }

    fn message(&self, channel: &str) {
        self.say(Ok(Event::Message(channel.to_owned())));
    }

    fn cut(&self) {
        self.say(Err(Failure::unavailable("cut")));
    }
}

impl Source for Server {
    type Connection = OneConnection;

    const LINGER: Duration = Duration::from_millis(20);

    async fn open(&self) -> Result<OneConnection, Failure> {
        let (tell, told) = mpsc::unbounded_channel();
        let mut shared = self.0.lock().unwrap();
        if let Some(left) = shared.refuses.checked_sub(1) {
            shared.refuses = left;
            return Err(Failure::unavailable("not now"));
        }
        if let Some(left) = shared.panics.checked_sub(1) {
            shared.panics = left;
            drop(shared);
            panic!("a backend panics");
        }
        shared.connection = Some(tell);
        let _ = self.1.send(Asked::Opened);
        Ok(OneConnection(self.clone(), told))
    }

    fn broken(&self) {
        let _ = self.1.send(Asked::Broken);
    }
}

impl Connection for OneConnection {
    async fn subscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        let mut names: Vec<_> = channels.iter().map(ToString::to_string).collect();
        names.sort();
        let _ = self.0.1.send(Asked::Subscribe(names));
        if !self.0.0.lock().unwrap().silent {
            self.0.say(Ok(Event::Subscribed(channels.to_vec())));
        }
        Ok(())
    }

    async fn unsubscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        let _ = self.0.1.send(Asked::Unsubscribe(channels.iter().map(ToString::to_string).collect()));
        Ok(())
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        self.1.recv().await.unwrap_or_else(|| Err(Failure::unavailable("gone")))
    }

    async fn ping(&mut self) -> Result<(), Failure> {
        let _ = self.0.1.send(Asked::Ping);
        Ok(())
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it happens soon")
}

async fn told(listener: &mut Listener) {
    soon(listener.changed()).await.unwrap();
}

async fn quiet(listener: &mut Listener) {
    while !listener.is_quiet() {
        told(listener).await;
    }
}

fn one(name: &str) -> Vec<String> {
    vec![name.to_owned()]
}

#[tokio::test]
async fn the_last_text_that_was_said_can_be_read_until_the_connection_breaks() {
    let (server, _asked) = server();
    let channels = Channels::new(server.clone());
    let mut listener = channels.listen("a").unwrap();
    told(&mut listener).await;
    assert_eq!(listener.text(), None);
    server.say(Ok(Event::Text("b".to_owned(), "of another".to_owned())));
    server.say(Ok(Event::Text("a".to_owned(), "one".to_owned())));
    told(&mut listener).await;
    assert_eq!(listener.text().as_deref(), Some("one"));
    server.message("a");
    told(&mut listener).await;
    assert_eq!(listener.text().as_deref(), Some("one"), "no text takes its place");
    server.cut();
    told(&mut listener).await;
    assert_eq!(listener.text(), None);
}

#[tokio::test]
async fn the_first_news_is_that_the_channel_was_subscribed_and_the_next_what_is_said_on_it() {
    let (server, mut asked) = server();
    let channels = Channels::new(server.clone());
    assert!(channels.join("a").is_none(), "nobody listens yet");
    assert!(asked.try_recv().is_err(), "nothing is opened before somebody waits");
    let mut first = channels.listen("a").unwrap();
    told(&mut first).await;
    assert!(first.is_quiet());
    assert_eq!(
        [soon(asked.recv()).await.unwrap(), soon(asked.recv()).await.unwrap()],
        [Asked::Opened, Asked::Subscribe(one("a"))]
    );
    let mut second = channels.join("a").unwrap();
    server.message("b");
    server.message("a");
    told(&mut first).await;
    told(&mut second).await;
    assert!(first.is_quiet() && second.is_quiet());
    server.message("a");
    while second.is_quiet() {
        tokio::task::yield_now().await;
    }
    second.forget();
    assert!(second.is_quiet() && !first.is_quiet());
    assert!(asked.try_recv().is_err(), "a connection is not tested when it was just opened");
}

#[tokio::test]
async fn a_channel_is_left_a_while_after_its_last_waiter_and_not_when_another_came() {
    let (server, mut asked) = server();
    let channels = Channels::new(server.clone());
    let mut first = channels.listen("a").unwrap();
    let mut other = channels.listen("b").unwrap();
    quiet(&mut first).await;
    quiet(&mut other).await;
    while asked.try_recv().is_ok() {}
    drop(first);
    let second = channels.join("a").unwrap();
    drop(other);
    assert_eq!(soon(asked.recv()).await, Some(Asked::Unsubscribe(one("b"))), "and `a` stays");
    assert!(channels.join("b").is_none());
    drop(second);
    assert_eq!(soon(asked.recv()).await, Some(Asked::Unsubscribe(one("a"))));
}

#[tokio::test]
async fn a_connection_that_breaks_tells_everybody_and_all_channels_are_subscribed_again() {
    let (server, mut asked) = server();
    let channels = Channels::new(server.clone());
    let mut waiters = [channels.listen("a").unwrap(), channels.listen("b").unwrap()];
    for waiter in &mut waiters {
        quiet(waiter).await;
    }
    while asked.try_recv().is_ok() {}
    server.0.lock().unwrap().refuses = 1;
    server.0.lock().unwrap().panics = 1;
    server.cut();
    for waiter in &mut waiters {
        // That it broke, and later that it is subscribed again.
        told(waiter).await;
        quiet(waiter).await;
    }
    for _ in 0..3 {
        assert_eq!(soon(asked.recv()).await, Some(Asked::Broken), "cut, refused, panicked");
    }
    assert_eq!(soon(asked.recv()).await, Some(Asked::Opened));
    let Some(Asked::Subscribe(names)) = soon(asked.recv()).await else { panic!("not subscribed") };
    assert_eq!(names, ["a", "b"]);
    server.message("b");
    told(&mut waiters[1]).await;
}

#[tokio::test]
async fn a_channel_that_is_not_confirmed_or_broken_is_not_quiet() {
    let (server, mut asked) = server();
    server.0.lock().unwrap().silent = true;
    let channels = Channels::new(server.clone());
    let mut waiter = channels.listen("a").unwrap();
    while soon(asked.recv()).await != Some(Asked::Subscribe(one("a"))) {}
    assert!(!waiter.is_quiet(), "the server has not said that it tells");
    server.say(Ok(Event::Subscribed(vec!["a".into()])));
    quiet(&mut waiter).await;
    server.0.lock().unwrap().refuses = usize::MAX;
    server.cut();
    told(&mut waiter).await;
    assert!(!waiter.is_quiet());
}

#[tokio::test]
async fn a_server_that_does_not_let_us_listen_is_an_error_of_that_channel_alone() {
    let (server, mut asked) = server();
    server.0.lock().unwrap().silent = true;
    let channels = Channels::new(server.clone());
    let mut denied = channels.listen("a").unwrap();
    let mut other = channels.listen("b").unwrap();
    let mut subscribed = 0;
    while subscribed < 2 {
        if let Some(Asked::Subscribe(names)) = soon(asked.recv()).await {
            subscribed += names.len();
        }
    }
    server.say(Ok(Event::Denied(vec!["a".into()], Failure::new(ErrorKind::Denied, "no right to listen"))));
    server.say(Ok(Event::Subscribed(vec!["b".into()])));
    for _ in 0..2 {
        let failure = soon(denied.changed()).await.unwrap_err();
        assert_eq!((failure.kind(), failure.message()), (ErrorKind::Denied, "no right to listen"));
    }
    quiet(&mut other).await;
    let failure = soon(channels.join("a").unwrap().changed()).await.unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::Denied, "who comes later is told too");
}

#[tokio::test]
async fn ten_thousand_channels_come_and_go_and_nothing_stays() {
    let (server, mut asked) = server();
    let channels = Channels::new(server.clone());
    let mut listeners: Vec<_> = (0..10_000).map(|n| channels.listen(&format!("c{n}")).unwrap()).collect();
    for listener in &mut listeners {
        quiet(listener).await;
    }
    drop(listeners);
    let (mut subscribed, mut left) = (0, 0);
    while left < 10_000 {
        match soon(asked.recv()).await.unwrap() {
            Asked::Subscribe(names) => {
                assert!(names.len() <= 500);
                subscribed += names.len();
            }
            Asked::Unsubscribe(names) => left += names.len(),
            Asked::Opened => {}
            Asked::Broken => panic!("it broke"),
            Asked::Ping => {}
        }
    }
    assert_eq!((subscribed, left), (10_000, 10_000));
    assert!(channels.join("c7").is_none());
}

#[tokio::test]
async fn channels_that_are_closed_or_dropped_end_their_connection() {
    for closed in [true, false] {
        let (server, _asked) = server();
        let channels = Channels::new(server.clone());
        let mut waiter = channels.listen("a").unwrap();
        quiet(&mut waiter).await;
        let connection = server.0.lock().unwrap().connection.clone().unwrap();
        if closed {
            channels.close();
        } else {
            drop(channels);
        }
        soon(connection.closed()).await;
    }
}
