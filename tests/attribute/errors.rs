//! The error that a locked function returns is the function's own.
#![deny(warnings, clippy::pedantic)]

use crate::support::on_memory;
use dlock::{Error, ErrorKind, distributed_lock};
use std::error::Error as StdError;
use std::fmt;

#[derive(Debug)]
enum AppError {
    Lock(ErrorKind),
    Parse,
}

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self::Lock(error.kind())
    }
}

impl From<std::num::ParseIntError> for AppError {
    fn from(_: std::num::ParseIntError) -> Self {
        Self::Parse
    }
}

impl fmt::Display for AppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl StdError for AppError {}

type AppResult<T> = Result<T, AppError>;

#[distributed_lock(key = "own", backend = "nobody registered this")]
async fn own_error(text: &str) -> AppResult<u8> {
    Ok(text.parse()?)
}

#[distributed_lock(key = "parse", backend = "memory")]
async fn parse(text: &str) -> AppResult<u8> {
    if text == "early" {
        return Err(AppError::Parse);
    }
    let number = text.parse()?;
    Ok(number)
}

#[distributed_lock(key = "boxed", backend = "nobody registered this")]
async fn boxed() -> Result<u8, Box<dyn StdError + Send + Sync>> {
    Err("from the body".into())
}

#[distributed_lock(key = "anyhow", backend = "nobody registered this")]
async fn anyhow() -> anyhow::Result<u8> {
    anyhow::bail!("from the body")
}

#[distributed_lock(key = "io", backend = "nobody registered this")]
async fn io() -> std::io::Result<u8> {
    Err(std::io::Error::other("from the body"))
}

#[tokio::test]
async fn the_error_of_the_lock_is_converted_into_that_of_the_function() {
    assert!(matches!(own_error("1").await, Err(AppError::Lock(ErrorKind::UnknownBackend))));

    let boxed = boxed().await.unwrap_err();
    let kind = boxed.downcast_ref::<Error>().map(Error::kind);
    assert_eq!(kind, Some(ErrorKind::UnknownBackend));

    let anyhow = anyhow().await.unwrap_err();
    assert_eq!(anyhow.downcast_ref::<Error>().map(Error::kind), Some(ErrorKind::UnknownBackend));

    assert!(io().await.unwrap_err().to_string().contains("nobody registered this"));
}

#[tokio::test]
async fn the_errors_of_the_body_come_out_as_they_are() {
    on_memory(async |_| {
        assert!(matches!(parse("x").await, Err(AppError::Parse)));
        assert!(matches!(parse("early").await, Err(AppError::Parse)));
        assert!(matches!(parse("7").await, Ok(7)));
    })
    .await;
}
