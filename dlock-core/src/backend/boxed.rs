//! Futures whose type ends where they are made.

use std::pin::Pin;

/// A future on the heap, of a type that does not tell what is in it.
pub type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Puts a future on the heap, and what it is made of out of sight.
///
/// The compiler gives up on types that are nested more than 128 deep, mostly in release builds and with an error that
/// names the outermost function of a program. The futures of drivers are deep by themselves. So what a program awaits
/// once, such as a connection being made, is boxed where it leaves a backend's crate.
///
/// # Cancel safety
///
/// Dropping it drops the future.
pub fn boxed<'a, T>(future: impl Future<Output = T> + Send + 'a) -> BoxedFuture<'a, T> {
    Box::pin(future)
}
