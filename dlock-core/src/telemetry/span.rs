//! A span whose subscriber may panic.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::guarded::{drop_guarded, guard};

/// A span of `tracing`. Panics of its subscriber are caught: a subscriber that panics shows less, and nothing else
/// changes.
pub(crate) struct Span(Option<tracing::Span>);

/// A span whose clone panics has none in the clone.
impl Clone for Span {
    fn clone(&self) -> Self {
        Self(guard(|| self.0.clone()).unwrap_or_default())
    }
}

impl Span {
    /// Makes a span by `make`.
    pub(super) fn new(make: impl FnOnce() -> tracing::Span) -> Self {
        Self(guard(|| Some(make()).filter(|span| !span.is_disabled())).unwrap_or_default())
    }

    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Returns the span that the calling code is in.
    pub(super) fn current() -> Self {
        Self::new(tracing::Span::current)
    }

    /// Notes something in the span; `note` is not called without a subscriber.
    pub(super) fn note(&self, note: impl FnOnce(&tracing::Span)) {
        if let Some(span) = &self.0 {
            let _ = guard(|| note(span));
        }
    }

    /// Runs `code` inside the span. Panics of `code` itself are not caught.
    pub(crate) fn in_scope<T>(&self, code: impl FnOnce() -> T) -> T {
        let Some(span) = &self.0 else { return code() };
        let entered = guard(|| span.enter());
        // Caught and resumed, so that the guard of the span is dropped outside of the unwinding: a subscriber that
        // panics in between would abort the process.
        let result = catch_unwind(AssertUnwindSafe(code));
        drop_guarded(entered);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            drop_guarded(span);
        }
    }
}

pin_project! {
    /// A future that runs, and is dropped, inside a span.
    pub(crate) struct InSpan<F> {
        #[pin]
        future: Option<F>,
        span: Span,
    }

    impl<F> PinnedDrop for InSpan<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let future = &mut this.future;
            this.span.in_scope(|| future.set(None));
        }
    }
}

impl<F: Future> Future for InSpan<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        match this.future.as_pin_mut() {
            Some(future) => this.span.in_scope(|| future.poll(context)),
            None => Poll::Pending,
        }
    }
}

pub(crate) trait Spanned: Future + Sized {
    /// Runs the future inside `span`.
    fn in_span(self, span: Span) -> InSpan<Self> {
        InSpan { future: Some(self), span }
    }
}

impl<F: Future> Spanned for F {}
