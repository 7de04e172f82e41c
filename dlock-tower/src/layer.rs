//! The layer, and the service that it makes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::rejection::{Rejections, grpc_type};
use crate::request_lock::RequestLock;

/// Takes a lock for each request, by a function of the request.
///
/// The function returns the lock that a request needs, with its options, or `None` for a request that needs none. It is
/// called once for each request, before the request is worked on. The lock may be a [`Lock`](dlock_core::Lock) in any
/// mode, a [`Semaphore`](dlock_core::Semaphore) or a [`Batch`](dlock_core::Batch); to return several of these types
/// from one function, make each a [`RequestLock`].
///
/// A request waits for as long as the lock's options say, 30 s by default. A service should rather use
/// [`Wait::No`](dlock_core::Wait::No), to answer at once, or a time that is shorter than what its clients wait.
///
/// # Cancel safety
///
/// A request that is dropped leaves nothing: a lock that it waited for is withdrawn, and one that it held is released
/// in the background.
#[derive(Clone, Copy, Debug)]
pub struct LockLayer<F> {
    lock_of: F,
    rejections: Rejections,
}

impl<F> LockLayer<F> {
    /// Makes a layer that takes the lock which `lock_of` returns for a request.
    pub fn new<B, L>(lock_of: F) -> Self
    where
        F: Fn(&Request<B>) -> Option<L>,
        L: Into<RequestLock>,
    {
        Self { lock_of, rejections: Rejections::default() }
    }

    /// Sets the responses to requests that do not get their lock, or lose it.
    #[must_use]
    pub fn with_rejections(self, rejections: Rejections) -> Self {
        Self { rejections, ..self }
    }
}

impl<S, F: Clone> Layer<S> for LockLayer<F> {
    type Service = LockService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService { inner, lock_of: self.lock_of.clone(), rejections: self.rejections }
    }
}

/// Runs each request of another service under a lock. Made by a [`LockLayer`].
#[derive(Clone, Copy, Debug)]
pub struct LockService<S, F> {
    inner: S,
    lock_of: F,
    rejections: Rejections,
}

type ResponseFuture<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

impl<S, F, L, RequestBody, ResponseBody> Service<Request<RequestBody>> for LockService<S, F>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    F: Fn(&Request<RequestBody>) -> Option<L>,
    L: Into<RequestLock>,
    RequestBody: Send + 'static,
    ResponseBody: Default + Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = ResponseFuture<ResponseBody, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<RequestBody>) -> Self::Future {
        let Some(lock) = (self.lock_of)(&request) else { return Box::pin(self.inner.call(request)) };
        let (lock, rejections, grpc) = (lock.into(), self.rejections, grpc_type(request.headers()));
        // `poll_ready` made this instance ready, and not a clone of it, so this one is called and the clone stays.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            let worked = lock
                .run_with(|held| {
                    request.extensions_mut().insert(held);
                    // The type is erased here: the service below may consist of other layers, each with such a future.
                    let working: ResponseFuture<ResponseBody, S::Error> = Box::pin(inner.call(request));
                    working
                })
                .await;
            worked.unwrap_or_else(|error| {
                // At debug only: an outage has one for each request, and the lock's span and warnings have the cause.
                dlock_core::backend::tell(
                    || tracing::debug!({ dlock.failure = %error }, "a request was not served"),
                );
                let mut response = rejections.response(&error, grpc.is_some());
                if let Some(grpc) = grpc {
                    // A client of gRPC-Web reads no content type but its own.
                    response.headers_mut().insert(CONTENT_TYPE, grpc);
                }
                Ok(response)
            })
        })
    }
}
