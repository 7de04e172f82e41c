//! Books rooms: one request at a time for each room, over all replicas.

use std::fmt;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{App, HttpServer, ResponseError, post, web};
use dlock::{Error, distributed_lock};

#[derive(Debug)]
struct AppError(Error);

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for AppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_busy() { "another request is booking this room" } else { "try again later" })
    }
}

impl ResponseError for AppError {
    fn status_code(&self) -> StatusCode {
        match &self.0 {
            busy if busy.is_busy() => StatusCode::CONFLICT,
            away if away.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

#[post("/rooms/{id}")]
async fn book(id: web::Path<u64>) -> Result<String, AppError> {
    reserve(*id).await
}

#[distributed_lock(key = "room_<id>", wait = "2s", guard = held)]
async fn reserve(id: u64) -> Result<String, AppError> {
    // Write with the fence: `... WHERE fence <= ?`.
    Ok(format!("room {id} is booked under fence {:?}\n", held.fence()))
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backends = dlock::init().await?; // connects to what DLOCK_URL names
    // Returns at INT or TERM, when the requests under way have ended.
    HttpServer::new(|| App::new().service(book)).bind("127.0.0.1:8080")?.run().await?;
    if let Err(late) = backends.shutdown(Duration::from_secs(5)).await {
        eprintln!("{late}"); // an outage: what is left ends with its lease
    }
    Ok(())
}
