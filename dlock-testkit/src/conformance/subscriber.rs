//! A subscriber of `tracing` that panics at whatever dlock and its backends tell it, while a case wants it to.

use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Metadata, Subscriber};

/// How many cases want it to.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// The subscriber panics until this is dropped, on all threads. Other cases meet it too, and bear it as they have to.
pub(super) struct Striking(());

impl Striking {
    /// Begins. The subscriber is that of the whole process, since many events come from threads of dlock's own.
    pub(super) fn begin() -> Self {
        static ONLY: OnceLock<bool> = OnceLock::new();
        let is_set = *ONLY.get_or_init(|| set_global_default(Panicking).is_ok());
        assert!(is_set, "the process has a subscriber of its own, beside which this case cannot run");
        WANTED.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Striking {
    fn drop(&mut self) {
        WANTED.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Panicking;

impl Panicking {
    /// Panics without a word on the standard error.
    fn strike() -> ! {
        resume_unwind(Box::new("the subscriber panics, as it was asked to"))
    }

    fn strike_if_wanted() {
        if WANTED.load(Ordering::SeqCst) > 0 {
            Self::strike();
        }
    }
}

impl Subscriber for Panicking {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Those of drivers are not asked about again.
        if metadata.target().starts_with("dlock") { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("dlock") && WANTED.load(Ordering::SeqCst) > 0
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        // Half of them are made, so that what is done with them panics too.
        if span.metadata().name() == "dlock.release" {
            Self::strike_if_wanted();
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        Self::strike_if_wanted();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        Self::strike_if_wanted();
    }

    fn enter(&self, _: &Id) {
        Self::strike_if_wanted();
    }

    fn exit(&self, _: &Id) {
        Self::strike_if_wanted();
    }

    fn try_close(&self, _: Id) -> bool {
        Self::strike_if_wanted();
        true
    }
}
