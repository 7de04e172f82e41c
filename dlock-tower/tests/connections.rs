//! Connections of clients that misbehave, to a server of axum on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::routing::{any, get, post};
use dlock_core::{Locks, Memory, Wait};
use dlock_tower::LockLayer;
use http::Method;
use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// A lock for each path, which is asked for once, except of the one that is waited for.
async fn serve(locks: &Locks, app: Router) -> SocketAddr {
    let of = locks.clone();
    let layer = LockLayer::new(move |request: &Request| {
        let path = request.uri().path();
        assert_ne!(path, "/panics", "the function that names the lock panics");
        let wait = if path == "/queue" { Wait::Forever } else { Wait::No };
        let key = match request.headers().get("key") {
            Some(key) => String::from_utf8_lossy(key.as_bytes()).into_owned(),
            None => path.replace('/', "_"),
        };
        (request.method() != Method::OPTIONS).then(|| of.lock(key).with_wait(wait))
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app.layer(layer)).await });
    address
}

/// A request that is sent by hand, so that its connection can be closed at any time.
async fn send(to: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Waits until nobody has the lock of this key.
async fn is_free(locks: &Locks, key: &str) {
    locks
        .lock(key)
        .with_wait(Wait::For(Duration::from_secs(20)))
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_client_that_disconnects_or_is_slow_leaves_no_lock() {
    let (memory, begun) = (Memory::new(), Arc::new(Notify::new()));
    let locks = Locks::new(memory.clone());
    let (hangs, reads) = (Arc::clone(&begun), Arc::clone(&begun));
    let app = Router::new()
        .route(
            "/hangs",
            get(async move || {
                hangs.notify_one();
                std::future::pending::<()>().await;
            }),
        )
        .route(
            "/reads",
            post(async move |request: Request| {
                reads.notify_one();
                to_bytes(request.into_body(), 9).await.map(|body| body.len().to_string()).unwrap_or_default()
            }),
        );
    let server = serve(&locks, app).await;

    let stream = send(server, "GET /hangs HTTP/1.1\r\nHost: x\r\n\r\n").await;
    begun.notified().await;
    assert!(locks.inspect("_hangs").await.unwrap().is_some());
    drop(stream);
    is_free(&locks, "_hangs").await;

    // The handler waits for a body that comes in part.
    let half = "POST /reads HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab";
    let mut stream = send(server, half).await;
    let client = reqwest::Client::new();
    let reads = format!("http://{server}/reads");
    begun.notified().await;
    assert_eq!(client.post(&reads).send().await.unwrap().status(), 423);
    stream.write_all(b"cd").await.unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    is_free(&locks, "_reads").await;
    let stream = send(server, half).await;
    begun.notified().await;
    drop(stream);
    is_free(&locks, "_reads").await;
    locks.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(memory.held(), 0);
}

/// A handler that runs: it leaves also when it is dropped, because its client disconnected.
struct Inside(Arc<AtomicU32>);

impl Inside {
    fn enter(inside: &Arc<AtomicU32>) -> Self {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
        Self(Arc::clone(inside))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_requests_of_one_key_are_served_one_after_the_other() {
    let locks = Locks::new(Memory::new());
    let (inside, served) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&served);
    let app = Router::new().route(
        "/queue",
        any(async move || {
            let _inside = Inside::enter(&inside);
            tokio::task::yield_now().await;
            counted.fetch_add(1, Ordering::SeqCst);
        }),
    );
    let server = serve(&locks, app).await;
    // Every tenth one gives up at once: its request may or may not be served.
    let mut requests = JoinSet::new();
    for number in 0..1_000 {
        requests.spawn(async move {
            let mut stream =
                send(server, "GET /queue HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
            if number % 10 == 0 {
                return true;
            }
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer.starts_with(b"HTTP/1.1 200 OK")
        });
    }
    let answers = requests.join_all().await;
    assert!(answers.iter().all(|ok| *ok));
    assert!((900..=1_000).contains(&served.load(Ordering::SeqCst)));
    is_free(&locks, "_queue").await;
}

#[tokio::test]
async fn each_method_is_answered_as_it_should_be_and_no_key_ends_the_server() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let app = Router::new().fallback(any(async || "done")).route("/panics", get(async || ""));
    let server = serve(&locks, app).await;
    let client = reqwest::Client::new();
    let at = |path: &str| format!("http://{server}{path}");

    let held = locks.lock("_room").acquire().await.unwrap();
    let head = client.head(at("/room")).send().await.unwrap();
    assert_eq!(head.status(), 423);
    assert!((1..=3_600).contains(&head.headers()[RETRY_AFTER].to_str().unwrap().parse::<u32>().unwrap()));
    assert!(head.headers().get(CONTENT_LENGTH).is_none_or(|length| length == "0"));
    let preflight = client.request(Method::OPTIONS, at("/room")).send().await.unwrap();
    assert_eq!(preflight.status(), 200, "it needs no lock");
    held.release().await.unwrap();
    assert_eq!(client.head(at("/room")).send().await.unwrap().status(), 200);

    assert!(client.get(at("/panics")).send().await.is_err(), "the connection is closed");
    let long = "k".repeat(20_000);
    for (key, status) in
        [("", 400), (&*long, 400), ("%00%zz/../*?", 200), ("{slot}", 200), ("\u{e9}\u{1f512}", 200)]
    {
        let request = client.get(at("/key")).header("key", key.as_bytes());
        assert_eq!(request.send().await.unwrap().status(), status, "{key:.20}");
    }
    let invalid = client.get(at("/key")).header("key", &b"\xff\xfe"[..]).send().await.unwrap();
    assert_eq!(invalid.status(), 200, "the function that names the lock decides what becomes of it");
    assert_eq!(memory.held(), 0);
}
