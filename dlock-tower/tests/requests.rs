//! Requests that share locks.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock_core::{Batch, Held, Locks, Memory, Wait};
use dlock_tower::{LockLayer, Rejections, RequestLock};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use tokio::sync::{Notify, oneshot};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

const LEASE: Duration = Duration::from_secs(3);

type Replica = BoxCloneSyncService<Request<()>, Response<String>, Infallible>;

/// What the handlers of a test wait for.
#[derive(Clone, Debug, Default)]
struct Work {
    begun: Arc<Notify>,
    goes_on: Arc<Notify>,
}

/// A service that works under the lock that the path names, and answers with its fence.
fn replica(memory: &Memory, work: &Work, rejections: Rejections) -> (Locks, Replica) {
    let locks = Locks::builder(memory.clone()).with_lease(LEASE).build().unwrap();
    let (of, work) = (locks.clone(), work.clone());
    let lock_of = move |request: &Request<()>| -> Option<RequestLock> {
        let path = request.uri().path().strip_prefix('/')?;
        Some(match path.split_once('/')? {
            ("one", key) => of.lock(key).with_wait(Wait::No).into(),
            ("later", key) => of.lock(key).with_wait(Wait::Forever).into(),
            ("read", key) => of.lock(key).read().with_wait(Wait::No).into(),
            ("two", key) => of.semaphore(key, 2).with_wait(Wait::No).into(),
            ("both", key) => Batch::of([of.lock(key), of.lock("b")]).with_wait(Wait::No).into(),
            _ => return None,
        })
    };
    let handler = service_fn(move |request: Request<()>| {
        let work = work.clone();
        async move {
            work.begun.notify_one();
            if !request.uri().path().ends_with("fast") {
                work.goes_on.notified().await;
            }
            let fence = request.extensions().get::<Held>().and_then(Held::fence);
            Ok(Response::new(fence.map_or_else(String::new, |fence| fence.to_string())))
        }
    });
    let layer = LockLayer::new(lock_of).with_rejections(rejections);
    (locks, BoxCloneSyncService::new(layer.layer(handler)))
}

fn to(path: &str) -> Request<()> {
    Request::builder().uri(path).body(()).unwrap()
}

async fn ask(replica: &Replica, request: Request<()>) -> Response<String> {
    replica.clone().oneshot(request).await.unwrap()
}

/// Sends a request whose handler has begun when this returns.
async fn begin(replica: &Replica, work: &Work, path: &str) -> tokio::task::JoinHandle<Response<String>> {
    let (replica, request) = (replica.clone(), to(path));
    let working = tokio::spawn(async move { ask(&replica, request).await });
    work.begun.notified().await;
    working
}

#[tokio::test]
async fn a_busy_lock_is_answered_with_423_and_the_rest_of_the_holders_lease() {
    let (memory, work) = (Memory::new(), Work::default());
    let (_, here) = replica(&memory, &work, Rejections::default());
    let (_, there) = replica(&memory, &work, Rejections::default());
    let working = begin(&here, &work, "/one/room").await;
    let late = ask(&there, to("/one/room")).await;
    assert_eq!(late.status(), StatusCode::LOCKED);
    let seconds: u64 = late.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((1..=LEASE.as_secs()).contains(&seconds), "{seconds}");
    // In the same process too, where the two requests are no nested sections of one another.
    assert_eq!(ask(&here, to("/one/room")).await.status(), StatusCode::LOCKED);
    let other = begin(&there, &work, "/one/other").await;
    work.goes_on.notify_waiters();
    assert_eq!(other.await.unwrap().status(), StatusCode::OK);
    let done = working.await.unwrap();
    assert_eq!((done.status(), done.body().is_empty()), (StatusCode::OK, false));
    let next = ask(&there, to("/one/room/fast")).await;
    assert_eq!(next.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_status_of_a_busy_lock_can_be_another_one() {
    let (memory, work) = (Memory::new(), Work::default());
    let rejections = Rejections::default().with_busy_status(StatusCode::CONFLICT);
    let (_, here) = replica(&memory, &work, rejections);
    let working = begin(&here, &work, "/one/room").await;
    assert_eq!(ask(&here, to("/one/room")).await.status(), StatusCode::CONFLICT);
    working.abort();
}

#[tokio::test]
async fn the_lock_is_released_before_the_response_goes_out() {
    let (memory, work) = (Memory::new(), Work::default());
    let (_, here) = replica(&memory, &work, Rejections::default());
    for _ in 0..100 {
        assert_eq!(ask(&here, to("/one/fast")).await.status(), StatusCode::OK);
        assert_eq!(memory.held(), 0);
    }
}

#[tokio::test]
async fn readers_share_and_a_semaphore_lets_in_as_many_as_it_has_permits() {
    let (memory, work) = (Memory::new(), Work::default());
    let (_, here) = replica(&memory, &work, Rejections::default());
    let mut working = Vec::new();
    for path in ["/read/page", "/read/page", "/two/gpu", "/two/gpu"] {
        working.push(begin(&here, &work, path).await);
    }
    for path in ["/one/page", "/two/gpu"] {
        assert_eq!(ask(&here, to(path)).await.status(), StatusCode::LOCKED, "{path}");
    }
    work.goes_on.notify_waiters();
    for response in working {
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_batch_covers_all_of_its_keys() {
    let (memory, work) = (Memory::new(), Work::default());
    let (_, here) = replica(&memory, &work, Rejections::default());
    let working = begin(&here, &work, "/both/a").await;
    for path in ["/one/a", "/one/b"] {
        assert_eq!(ask(&here, to(path)).await.status(), StatusCode::LOCKED, "{path}");
    }
    work.goes_on.notify_waiters();
    assert_eq!(working.await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_whose_lock_is_lost_ends_with_503() {
    let (memory, work) = (Memory::new(), Work::default());
    let (locks, here) = replica(&memory, &work, Rejections::default());
    // The handler never goes on by itself.
    let working = begin(&here, &work, "/one/room").await;
    assert!(locks.force_release("room").await.unwrap());
    let response = working.await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()[RETRY_AFTER], "1");
}

#[tokio::test]
async fn a_request_that_is_dropped_leaves_nothing() {
    let (memory, work) = (Memory::new(), Work::default());
    let (locks, here) = replica(&memory, &work, Rejections::default());
    let working = begin(&here, &work, "/one/room").await;
    let mut waiting = Box::pin(ask(&here, to("/later/room")));
    let pending = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await;
    assert!(pending, "the lock is held");
    drop(waiting);
    working.abort();
    assert!(working.await.unwrap_err().is_cancelled());
    locks.shutdown(LEASE).await.unwrap();
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_key_that_is_none_is_the_clients_fault_and_an_outage_is_not() {
    let (memory, work) = (Memory::new(), Work::default());
    let (locks, here) = replica(&memory, &work, Rejections::default());
    let long = format!("/one/{}", "k".repeat(5_000));
    for path in ["/one/", &long] {
        let refused = ask(&here, to(path)).await;
        assert_eq!((refused.status(), refused.headers().get(RETRY_AFTER)), (StatusCode::BAD_REQUEST, None));
    }
    locks.shutdown(LEASE).await.unwrap();
    let refused = ask(&here, to("/one/fast")).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key(RETRY_AFTER));
    let free = ask(&here, to("/fast")).await;
    assert_eq!((free.status(), free.body().as_str()), (StatusCode::OK, ""), "it needs no lock");
}

#[tokio::test]
async fn a_mode_that_the_backend_lacks_is_a_defect_of_the_service() {
    let work = Work::default();
    let (locks, _) = replica(&Memory::new(), &work, Rejections::default());
    let layer = LockLayer::new(move |_: &Request<()>| Some(locks.semaphore("gpu", 0)));
    let handler = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
    let response = layer.layer(handler).oneshot(to("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_grpc_client_reads_the_rejection_as_a_status() {
    let (memory, work) = (Memory::new(), Work::default());
    let (locks, here) = replica(&memory, &work, Rejections::default());
    let call = |path: &str| {
        Request::builder().uri(path).header(CONTENT_TYPE, "application/grpc+proto").body(()).unwrap()
    };
    let working = begin(&here, &work, "/one/room").await;
    let busy = ask(&here, call("/one/room")).await;
    assert_eq!(busy.status(), StatusCode::OK);
    let status = tonic::Status::from_header_map(busy.headers()).unwrap();
    assert_eq!((status.code(), status.message()), (tonic::Code::Aborted, "the lock is busy"));
    let pause: u64 = busy.headers()["grpc-retry-pushback-ms"].to_str().unwrap().parse().unwrap();
    assert!((1..=3_000).contains(&pause), "{pause}");
    for (sent, is_grpc) in [
        ("application/grpc-web+proto", true),
        ("application/grpc-web-text", true),
        ("application/grpcs", false),
    ] {
        let request = Request::builder().uri("/one/room").header(CONTENT_TYPE, sent).body(()).unwrap();
        let busy = ask(&here, request).await;
        let status = busy.headers().contains_key("grpc-status");
        assert_eq!((status, busy.status() == StatusCode::OK), (is_grpc, is_grpc), "{sent}");
        assert_eq!(busy.headers().get(CONTENT_TYPE).is_some_and(|value| value == sent), is_grpc, "{sent}");
    }
    working.abort();
    let bad = ask(&here, call("/one/")).await;
    assert_eq!(tonic::Status::from_header_map(bad.headers()).unwrap().code(), tonic::Code::InvalidArgument);
    locks.shutdown(LEASE).await.unwrap();
    let closed = ask(&here, call("/one/room")).await;
    let status = tonic::Status::from_header_map(closed.headers()).unwrap();
    assert_eq!(status.code(), tonic::Code::Unavailable);
}

#[tokio::test]
async fn a_handler_that_panics_releases_its_lock() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let of = locks.clone();
    let layer = LockLayer::new(move |_: &Request<()>| Some(of.lock("room")));
    let handler = service_fn(async |request: Request<()>| -> Result<Response<String>, Infallible> {
        panic!("no {}", request.uri())
    });
    let service = BoxCloneSyncService::new(layer.layer(handler));
    let panicked = tokio::spawn(service.oneshot(to("/"))).await.unwrap_err();
    assert!(panicked.is_panic());
    locks.shutdown(LEASE).await.unwrap();
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_nested_acquire_in_the_handler_has_the_same_hold() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let (of, inside) = (locks.clone(), locks.clone());
    let layer = LockLayer::new(move |_: &Request<()>| Some(of.lock("room")));
    let (sent, fences) = oneshot::channel();
    let sent = Arc::new(std::sync::Mutex::new(Some(sent)));
    let handler = service_fn(move |request: Request<()>| {
        let (inside, sent) = (inside.clone(), Arc::clone(&sent));
        async move {
            let nested = inside.lock("room").acquire().await.unwrap();
            let outer = request.extensions().get::<Held>().and_then(Held::fence);
            let sent = sent.lock().unwrap().take().unwrap();
            sent.send((outer, nested.fence())).unwrap();
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let response = layer.layer(handler).oneshot(to("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let (outer, nested) = fences.await.unwrap();
    assert!(outer.is_some() && outer == nested);
    assert_eq!(memory.held(), 0);
}
