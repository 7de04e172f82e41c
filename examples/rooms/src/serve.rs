//! One replica: the HTTP service, the nightly job, and a graceful end.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use dlock_tower::{LockLayer, Locked};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{Instrument, info, info_span, warn};

use crate::Serve;
use crate::bookings::Bookings;
use crate::desk::{Desk, Refusal, Settlement};
use crate::telemetry::Telemetry;

/// How long requests under way, and then what they hold, may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Booking {
    pub(crate) day: u32,
    pub(crate) guest: String,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Move {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) day: u32,
}

#[derive(Debug, Serialize)]
struct HeldLock {
    key: String,
    holder: String,
}

/// Serves until SIGTERM or SIGINT, then lets requests end, releases every lock, and sends what telemetry is left.
pub(crate) async fn serve(options: &Serve) -> Result<()> {
    // First, since instruments are made when the locks are.
    let telemetry = Telemetry::start(&options.name);
    let served = run(options).await;
    telemetry.stop().await;
    served
}

async fn run(options: &Serve) -> Result<()> {
    let builder = dlock::from_url(&options.locks).await?.with_label(&options.name).from_env()?;
    let locks = builder.build()?;
    let bookings = Bookings::open(&options.data).await.context("opening the bookings")?;
    let desk = Desk { replica: options.name.clone(), locks: locks.clone(), bookings };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind(options.listen).await.context("listening")?;
    // The line that whoever started this waits for.
    say(&format!("listening on {}", listener.local_addr()?));

    let (stop, stopped) = watch::channel(false);
    let nights =
        tokio::spawn(settle_nights(desk.clone(), Duration::from_millis(options.night), stopped.clone()));
    let server = tokio::spawn({
        let mut stopped = stopped;
        let mut router = router(desk);
        if options.faults {
            router = router.route("/block/{millis}", post(block));
        }
        let service = axum::serve(listener, router);
        async move {
            service.with_graceful_shutdown(async move { drop(stopped.wait_for(|stop| *stop).await) }).await
        }
    });
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    say("stopping");
    stop.send_replace(true);
    let ended = async {
        let _ = nights.await;
        server.await
    };
    if tokio::time::timeout(PATIENCE, ended).await.is_err() {
        warn!("requests were still under way after {PATIENCE:?}");
    }
    // Whatever is held all the same is released now, and not left to its lease.
    if let Err(late) = locks.shutdown(PATIENCE).await {
        warn!("{late}");
    }
    say("stopped");
    Ok(())
}

fn router(desk: Desk) -> Router {
    // A booking is cancelled under the room's lock too, which the request is given before the handler runs.
    let locks = desk.locks.clone();
    let of_its_room = LockLayer::new(move |request: &Request| {
        // As the handlers see it: encoded in another way it is the same room.
        let room = percent_decode_str(request.uri().path().split('/').nth(2)?).decode_utf8_lossy();
        Some(locks.lock_named("room_<room>", format!("room_{room}")).with_wait(Duration::from_secs(5)))
    });
    Router::new()
        .route("/rooms/{room}/bookings/{day}", delete(cancel).layer(of_its_room))
        .route("/rooms/{room}/bookings", post(book))
        .route("/bookings/move", post(relocate))
        .route("/settlements/{night}", post(settle))
        .route("/locks", get(held))
        .route("/ready", get(ready))
        .layer(middleware::from_fn(traced))
        .with_state(desk)
}

/// For whoever sends requests here: whether locks can be had.
async fn ready(State(desk): State<Desk>) -> (StatusCode, String) {
    match desk.locks.ping().await {
        Ok(()) => (StatusCode::OK, "ready".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// Blocks all threads of the runtime, as code does that computes in async functions.
async fn block(Path(millis): Path<u64>) -> StatusCode {
    for _ in 0..Handle::current().metrics().num_workers() {
        tokio::spawn(async move { std::thread::sleep(Duration::from_millis(millis)) });
    }
    StatusCode::ACCEPTED
}

async fn book(
    State(desk): State<Desk>,
    Path(room): Path<String>,
    Json(booking): Json<Booking>,
) -> Result<StatusCode, Refusal> {
    desk.book(&room, booking.day, &booking.guest).await?;
    Ok(StatusCode::CREATED)
}

async fn cancel(
    State(desk): State<Desk>,
    Path((room, day)): Path<(String, u32)>,
    Locked(held): Locked,
) -> Result<StatusCode, Refusal> {
    desk.cancel(&room, day, &held).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn relocate(State(desk): State<Desk>, Json(way): Json<Move>) -> Result<StatusCode, Refusal> {
    desk.relocate(&way.from, &way.to, way.day).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn settle(State(desk): State<Desk>, Path(night): Path<u64>) -> Result<Json<Settlement>, Refusal> {
    desk.settle(night).await.map(Json)
}

/// Who holds what, over all replicas.
async fn held(State(desk): State<Desk>) -> Result<Json<Vec<HeldLock>>, Refusal> {
    let held = desk.locks.holders().await?.into_iter();
    let shown = |(key, holder): (dlock::Key, dlock::Holder)| HeldLock {
        key: key.to_string(),
        holder: holder.to_string(),
    };
    Ok(Json(held.map(shown).collect()))
}

/// A span for each request, which the spans of its locks are in.
async fn traced(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let method = request.method();
    let span = info_span!(
        target: "rooms",
        "http.request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        http.request.method = %method,
        http.route = route,
        http.response.status_code = tracing::field::Empty,
    );
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    response
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Booked => StatusCode::CONFLICT,
            Self::NoBooking => StatusCode::NOT_FOUND,
            Self::SameRoom => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Overtaken => StatusCode::SERVICE_UNAVAILABLE,
            Self::Lock(error) if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Lock(_) | Self::Data(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            warn!(target: "rooms", error = %self, "a request failed");
        }
        (status, self.to_string()).into_response()
    }
}

/// Settles each night once it has begun. All replicas try at the same time, and one does it.
async fn settle_nights(desk: Desk, night: Duration, mut stopped: watch::Receiver<bool>) {
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let length = night.as_millis();
        let (number, left) = (now / length, length - now % length);
        let number = u64::try_from(number).unwrap_or(u64::MAX);
        let pause = Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX));
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(pause) => {}
        }
        match desk.settle(number).await {
            Ok(Settlement::Done(count)) => say(&format!("settled {count} bookings in night {number}")),
            Ok(Settlement::Skipped) => info!(target: "rooms", number, "another replica settles this night"),
            Err(error) => warn!(target: "rooms", number, %error, "a night was not settled"),
        }
    }
}

/// One line for whoever started this; if nobody reads any more, it is not needed.
fn say(what: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{what}");
}
