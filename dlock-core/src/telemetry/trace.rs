//! The traces of holders: a holder's context is stored with the lock, and a waiter's span links to it.

use std::collections::HashMap;
use std::sync::Arc;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::{Span, Waiters};
use crate::key::Key;
use crate::sync::plain::Mutex;

/// The OpenTelemetry context of a span, if it has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Trace(Option<Arc<SpanContext>>);

impl Trace {
    /// Returns the context of the current span. None if the program has no bridge from `tracing` to OpenTelemetry.
    pub(crate) fn current() -> Self {
        // Without any subscriber, this check is all that it costs.
        if LevelFilter::current() == LevelFilter::OFF {
            return Self(None);
        }
        let mut trace = Self(None);
        Span::current().note(|span| {
            let context = span.context();
            let context = context.span().span_context().clone();
            trace = Self(context.is_valid().then(|| Arc::new(context)));
        });
        trace
    }

    pub(super) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Parses a `traceparent` of W3C Trace Context. The text is foreign: an invalid one gives none.
    pub(super) fn parse(text: &str) -> Self {
        Self(parse(text).map(Arc::new))
    }

    /// Is `true` if both are views of one span. Its remote and its local view differ in everything but these ids.
    pub(super) fn is_same_span(&self, other: &Self) -> bool {
        let span = |trace: &Self| trace.0.as_ref().map(|context| (context.trace_id(), context.span_id()));
        span(self) == span(other)
    }

    /// Returns the context as a `traceparent`.
    pub(crate) fn to_text(&self) -> Option<String> {
        let context = self.0.as_ref()?;
        let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags());
        Some(format!("00-{trace}-{span}-{flags:02x}"))
    }

    /// Links the current span to this one.
    pub(super) fn link(&self) {
        if let Some(context) = &self.0 {
            Span::current().note(|span| span.add_link(SpanContext::clone(context)));
        }
    }

    /// Makes `span`, which must be new, a child of this one.
    pub(super) fn adopt(&self, span: &Span) {
        if let Some(context) = &self.0 {
            // This fails only if OpenTelemetry does not record the span.
            span.note(|span| {
                let parent = Context::new().with_remote_span_context(SpanContext::clone(context));
                let _ = span.set_parent(parent);
            });
        }
    }
}

fn parse(text: &str) -> Option<SpanContext> {
    let mut fields = text.split('-');
    let mut field = |len: usize| {
        let is_hex = |text: &&str| {
            text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        fields.next().filter(is_hex)
    };
    let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    // Later versions may add fields. Version 00 may not, and ff is invalid.
    if version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    );
    context.is_valid().then_some(context)
}

/// The traces of the holders in this process. The backend never names such a holder to a waiter that stands behind it
/// in the queue of this process.
#[derive(Default)]
pub(super) struct Holders(Mutex<HashMap<Key, TracedHolder>>);

struct TracedHolder {
    trace: Trace,
    /// Is `true` if the lock was released, and not all waiters in the queue have read the trace yet.
    gone: bool,
}

impl Holders {
    pub(super) fn begins(&self, key: &Key, trace: &Trace) {
        if trace.is_some() {
            self.0.lock().insert(key.clone(), TracedHolder { trace: trace.clone(), gone: false });
        }
    }

    /// Ends a hold. A waiter in the queue links to its trace only afterwards, so the trace is kept for as long as there
    /// is a queue.
    pub(super) fn ends(&self, key: &Key, trace: &Trace, waiters: &dyn Waiters) {
        if trace.is_some() {
            let mut traces = self.0.lock();
            // A lock that was lost may have a new holder by now.
            if let Some(holder) = traces.get_mut(key).filter(|holder| holder.trace == *trace) {
                holder.gone = true;
                forget(&mut traces, key, waiters);
            }
        }
    }

    /// Notes that a waiter for `key` has gone.
    pub(super) fn waiter_left(&self, key: &Key, waiters: &dyn Waiters) {
        forget(&mut self.0.lock(), key, waiters);
    }

    pub(super) fn of(&self, key: &Key) -> Trace {
        self.0.lock().get(key).map(|holder| holder.trace.clone()).unwrap_or_default()
    }
}

fn forget(traces: &mut HashMap<Key, TracedHolder>, key: &Key, waiters: &dyn Waiters) {
    if traces.get(key).is_some_and(|holder| holder.gone) && !waiters.has(key) {
        traces.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::wait_queue::WaitQueue;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_read_back_as_it_was_written() {
        let trace = Trace::parse(TEXT);
        assert_eq!(trace.to_text().as_deref(), Some(TEXT));
        assert!(trace.0.is_some_and(|context| context.is_remote() && context.is_sampled()));
    }

    #[test]
    fn what_is_no_context_is_none() {
        let wrong = [
            "",
            "00",
            "locked",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319é-b7ad6b7169203331-01",
        ];
        for text in wrong {
            assert_eq!(Trace::parse(text), Trace::default(), "{text:?}");
        }
        assert!(Trace::parse(&TEXT.replacen("00", "cc", 1)).is_some(), "a later version");
    }

    #[test]
    fn a_holder_that_was_followed_takes_its_successor_not_along() {
        let (holders, key) = (Holders::default(), Key::new("k").unwrap());
        let (old, new) = (Trace::parse(TEXT), Trace::parse(&TEXT.replace("b7ad", "c7ad")));
        holders.begins(&key, &old);
        holders.begins(&key, &new);
        let line = WaitQueue::default();
        holders.ends(&key, &old, &line);
        assert_eq!(holders.of(&key), new);
        holders.ends(&key, &new, &line);
        assert!(!holders.of(&key).is_some() && holders.0.lock().is_empty());
    }

    #[test]
    fn a_holder_is_remembered_until_its_line_is_gone() {
        let (holders, line, key) = (Holders::default(), WaitQueue::default(), Key::new("k").unwrap());
        let trace = Trace::parse(TEXT);
        holders.begins(&key, &trace);
        let (first, second) = (line.join(&key, None), line.join(&key, None));
        holders.ends(&key, &trace, &line);
        drop(first);
        holders.waiter_left(&key, &line);
        assert_eq!(holders.of(&key), trace);
        drop(second);
        holders.waiter_left(&key, &line);
        assert!(holders.0.lock().is_empty());
    }
}
