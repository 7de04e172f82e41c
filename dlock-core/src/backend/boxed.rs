//! Futures whose type is erased where they are made.

use std::pin::Pin;

/// A future on the heap, whose type does not show its parts.
pub type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Puts a future on the heap, which hides its type.
///
/// The compiler gives up on types that are nested more than 128 deep, mostly in release builds and with an error that
/// names the outermost function of a program. The futures of drivers are deep by themselves. So a future that a program
/// awaits once, such as that of opening a connection, is boxed where it leaves a backend's crate.
///
/// # Cancel safety
///
/// Dropping it drops the future.
pub fn boxed<'a, T>(future: impl Future<Output = T> + Send + 'a) -> BoxedFuture<'a, T> {
    Box::pin(future)
}
