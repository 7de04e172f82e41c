//! A server of hyper alone, without a router.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use dlock_core::{Held, Locks, Memory, Wait};
use dlock_tower::LockLayer;
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tower::{Layer, service_fn};

/// Serves each path under its lock. A handler notes that it has begun, and goes on when it may.
async fn serve(locks: &Locks, begun: Arc<Notify>, goes_on: Arc<Notify>) -> SocketAddr {
    let of = locks.clone();
    let layer = LockLayer::new(move |request: &Request<Incoming>| {
        Some(of.lock(request.uri().path().replace('/', "_")).with_wait(Wait::No))
    });
    let handler = service_fn(move |request: Request<Incoming>| {
        let (begun, goes_on) = (Arc::clone(&begun), Arc::clone(&goes_on));
        async move {
            begun.notify_one();
            goes_on.notified().await;
            let fence = request.extensions().get::<Held>().and_then(Held::fence).expect("it is locked");
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(fence.to_string())))
        }
    });
    let service = layer.layer(handler);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

#[tokio::test]
async fn a_server_of_hyper_alone_serves_one_at_a_time_and_says_when_to_come_again() {
    let (memory, begun, goes_on) = (Memory::new(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let locks = Locks::new(memory.clone());
    let server = serve(&locks, Arc::clone(&begun), Arc::clone(&goes_on)).await;
    let at = |path: &str| reqwest::Client::new().get(format!("http://{server}{path}")).send();

    let first = tokio::spawn(at("/a"));
    begun.notified().await;
    let busy = at("/a").await.unwrap();
    assert_eq!(busy.status(), StatusCode::LOCKED);
    assert!(busy.headers().contains_key(RETRY_AFTER), "{busy:?}");
    let other = tokio::spawn(at("/b"));
    begun.notified().await;

    goes_on.notify_waiters();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let fence: u64 = first.text().await.unwrap().parse().expect("the fence");
    assert_eq!(other.await.unwrap().unwrap().status(), StatusCode::OK);

    goes_on.notify_one();
    let next: u64 = at("/a").await.unwrap().text().await.unwrap().parse().expect("a fence");
    assert!(next > fence, "{next} after {fence}");

    // A client that disconnects leaves no lock.
    begun.notified().await;
    let gone = tokio::spawn(at("/a"));
    begun.notified().await;
    gone.abort();
    locks.lock("_a").with_wait(Wait::Forever).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(memory.held(), 0);
}
