//! Books rooms: one request at a time for each room, over all replicas.

use std::time::Duration;

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, serve};
use dlock::{Error, distributed_lock};

struct AppError(Error);

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            busy if busy.is_busy() => StatusCode::CONFLICT,
            away if away.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        status.into_response()
    }
}

#[distributed_lock(key = "room_<id>", wait = "2s", guard = held)]
async fn book(Path(id): Path<u64>) -> Result<String, AppError> {
    // Write with the fence: `... WHERE fence <= ?`.
    Ok(format!("room {id} is booked under fence {:?}\n", held.fence()))
}

async fn ready() -> Result<(), AppError> {
    Ok(dlock::registered("default")?.ping().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backends = dlock::init().await?; // connects to what DLOCK_URL names
    let app = Router::new().route("/rooms/{id}", post(book)).route("/ready", get(ready));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    let stopped = async { _ = tokio::signal::ctrl_c().await };
    serve(listener, app).with_graceful_shutdown(stopped).await?;
    if let Err(late) = backends.shutdown(Duration::from_secs(5)).await {
        eprintln!("{late}"); // an outage: what is left ends with its lease
    }
    Ok(())
}
