use std::cell::Cell;
use std::sync::OnceLock;

use dlock_core::{Clock, Locks, Memory};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::client::Client;
use crate::config::RedisBuilder;
use crate::servers::Servers;
use crate::tracking::tests::Source;

/// Answers as a server that speaks RESP3 and agrees to everything.
async fn agree(client: TcpStream) {
    let (from, mut to) = client.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(count)) = lines.next_line().await {
        let mut name = None;
        for _ in 0..count.trim_start_matches('*').parse::<usize>().unwrap() {
            // Its length comes before each word.
            let (_length, word) = (lines.next_line().await.unwrap(), lines.next_line().await.unwrap());
            name = name.or(word);
        }
        let reply = if name.as_deref() == Some("HELLO") { "%1\r\n+proto\r\n:3\r\n" } else { "+OK\r\n" };
        to.write_all(reply.as_bytes()).await.unwrap();
    }
}

thread_local! {
    /// `true` while this thread leaves a master.
    static LEAVING: Cell<bool> = const { Cell::new(false) };
}

#[tokio::test]
async fn the_holds_of_a_master_that_is_left_are_notified_with_nothing_locked() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(agree(client));
        }
    });
    let client = Client::new(RedisBuilder::new(&url).check().unwrap()).unwrap();
    let Servers::One(node) = &*client.servers else { panic!("one server") };
    let (endpoint, options) = (node.endpoint().await.unwrap(), node.target.options.clone());
    let opened = node.opener().open(&endpoint, |_| {}).await.unwrap();
    let tracking = ConnectionTracking::new(&options.tracking);
    tracking.begin(&opened.connection, opened.resp3).await;
    let connection = Arc::new(Connection::new(opened, options, tracking, false));
    let runtime = node.of_runtime(&Handle::current());
    runtime.state.lock().current = Some((endpoint, Arc::clone(&connection)));
    // The clock of the locks is code that the engine calls when a hold is notified.
    let left = Arc::<OnceLock<(Arc<Node>, Arc<RuntimeConnection>)>>::default();
    let unlocked = Arc::<Mutex<Vec<bool>>>::default();
    let clock = Clock::simulated({
        let (left, unlocked) = (Arc::clone(&left), Arc::clone(&unlocked));
        move || {
            if LEAVING.get()
                && let Some((node, runtime)) = left.get()
            {
                let is_unlocked = node.runtimes.try_lock().is_some() && runtime.state.try_lock().is_some();
                unlocked.lock().push(is_unlocked);
            }
            Clock::system().now().as_nanos()
        }
    });
    let source = Source { memory: Memory::with_clock(clock), ..Source::default() };
    let signals = Arc::clone(&source.signals);
    let locks = Locks::new(source);
    let _guard = locks.lock("room").acquire().await.unwrap();
    let signal = signals.lock().pop().unwrap();
    let _tracked = client.tracking.enter(&"room".into(), &signal, None).unwrap();
    assert!(left.set((Arc::clone(node), runtime)).is_ok());
    LEAVING.set(true);
    node.leave(&Endpoint::Tcp { host: "elsewhere".into(), port: 1, tls: false });
    LEAVING.set(false);
    assert!(connection.is_ended());
    let unlocked = unlocked.lock();
    assert!(!unlocked.is_empty() && unlocked.iter().all(|unlocked| *unlocked), "{unlocked:?}");
}
