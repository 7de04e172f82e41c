//! A subscriber for the spans and events of the engine that panics now and then, as one on a closed pipe does.

use std::cell::{Cell, RefCell};

use fastrand::Rng;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Dispatch, Event, Metadata, Subscriber};

use crate::exec::throw;

thread_local! {
    static RATE: Cell<u32> = const { Cell::new(0) };
    static RNG: RefCell<Rng> = const { RefCell::new(Rng::with_seed(0)) };
    static DISPATCH: Dispatch = Dispatch::new(Panicking);
}

/// Makes the events of this thread panic at this rate, until the guard or [`leave`] ends it.
pub(crate) fn enter(seed: u64, rate: u32) -> Option<DefaultGuard> {
    RATE.set(rate);
    RNG.set(Rng::with_seed(seed ^ 0x6c6f_6773));
    (rate > 0).then(|| DISPATCH.with(tracing::dispatcher::set_default))
}

pub(crate) fn leave() {
    RATE.set(0);
}

/// Without panics of the log.
pub(crate) fn quietly(f: impl FnOnce()) {
    let rate = RATE.replace(0);
    f();
    RATE.set(rate);
}

struct Panicking;

impl Subscriber for Panicking {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        RATE.get() > 0
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        if RNG.with_borrow_mut(|rng| rng.u32(..1_000)) < RATE.get() * 3 {
            throw();
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
