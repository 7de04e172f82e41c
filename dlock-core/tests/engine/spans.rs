//! What is traced, and what never appears in it.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::backend::Validity;
use dlock_core::{Batch, Lock, Locks, ManualClock, Memory, Wait};
use tracing::Instrument;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::lifecycle::On;
use crate::script::{Answer, Scripted};

/// Collects spans and events as lines: `name < parent field=value ...`.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let mut fields = Fields(String::new());
        attributes.record(&mut fields);
        let parent = span.parent().map_or("nothing", |parent| parent.name());
        let line = format!("{} < {parent}{}", span.name(), fields.0);
        span.extensions_mut().insert(line);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let mut fields = Fields(String::new());
        values.record(&mut fields);
        if let Some(line) = context.span(id).unwrap().extensions_mut().get_mut::<String>() {
            line.push_str(&fields.0);
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(format!("event{}", fields.0));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let line = context.span(&id).unwrap().extensions_mut().remove::<String>();
        self.0.lock().unwrap().extend(line);
    }
}

impl Lines {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn of(&self, name: &str) -> String {
        let start = format!("{name} <");
        self.all().into_iter().find(|line| line.starts_with(&start)).unwrap_or_default()
    }
}

pub(crate) async fn traced(body: impl Future<Output = ()>) -> Lines {
    // With a subscriber that is always there, no call site is cached as one that nobody wants while tests begin side by
    // side.
    static ALWAYS: std::sync::Once = std::sync::Once::new();
    ALWAYS.call_once(|| {
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    });
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let _default = tracing::subscriber::set_default(subscriber);
    body.await;
    lines
}

#[tokio::test]
async fn acquiring_holding_and_releasing_each_have_a_span_and_the_body_is_below_the_hold() {
    let locks = Locks::new(Memory::new());
    let lines = traced(async {
        let lock = locks.lock("room_7").with_template("room_<id>").with_function("shop::book");
        let request = tracing::info_span!("request");
        let body = async { tracing::info_span!("body").in_scope(|| {}) };
        lock.run(body).instrument(request).await.unwrap();
    })
    .await;
    let acquire = lines.of("dlock.acquire");
    for part in [
        "< request",
        "otel.name=\"acquire room_<id>\" otel.kind=\"client\"",
        "dlock.backend=\"memory\"",
        "dlock.template=\"room_<id>\"",
        "code.function.name=\"shop::book\"",
        "dlock.outcome=\"acquired\"",
        "dlock.waited_ms=",
        "dlock.attempts=1",
        "dlock.fence=1",
    ] {
        assert!(acquire.contains(part), "{part} is missing in {acquire}");
    }
    let hold = lines.of("dlock.hold");
    assert!(hold.contains("< request") && hold.contains("otel.kind=\"internal\""), "{hold}");
    assert!(lines.of("body").contains("< dlock.hold"), "{:?}", lines.all());
    let release = lines.of("dlock.release");
    assert!(
        release.contains("dlock.outcome=\"released\"") && release.contains("dlock.background=false"),
        "{release}"
    );
}

#[tokio::test]
async fn the_one_server_of_a_backend_is_on_every_span() {
    let locks = Locks::builder(Scripted::new([Answer::Grant(Validity::Lease(Duration::from_secs(30)))]));
    let locks = locks.with_prefix("shop:").build().unwrap();
    let lines = traced(async { locks.lock("k").run(async {}).await.unwrap() }).await;
    for span in ["dlock.acquire", "dlock.hold", "dlock.release"] {
        let line = lines.of(span);
        assert!(line.contains("server.address=\"locks.example\" server.port=7000"), "{line}");
    }
    let lines = traced(async { Locks::new(Memory::new()).lock("k").run(async {}).await.unwrap() }).await;
    assert!(!lines.all().iter().any(|line| line.contains("server.")), "{:?}", lines.all());
}

#[tokio::test]
async fn a_busy_lock_has_its_outcome_in_the_span() {
    let locks = Locks::new(Memory::new());
    let lines = traced(async {
        let _held = locks.lock("k").acquire().await.unwrap();
        let _ = locks.lock("k").with_wait(Wait::No).acquire().await;
    })
    .await;
    assert!(lines.all().iter().any(|line| line.contains("dlock.outcome=\"busy\"")), "{:?}", lines.all());
}

#[tokio::test]
async fn the_key_is_hashed_unless_it_is_asked_for() {
    for shown in [false, true] {
        let memory = Memory::new();
        let mut builder = Locks::builder(memory.clone());
        if shown {
            builder = builder.with_keys_shown();
        }
        let locks = builder.build().unwrap();
        let lines = traced(async {
            let lock = locks.lock("patient_4711");
            lock.run(async {}).await.unwrap();
            let guard = lock.acquire().await.unwrap();
            let _ = lock.try_acquire().await;
            memory.lose("patient_4711");
            let _ = guard.release().await;
        })
        .await;
        assert!(lines.all().len() >= 6, "{:?}", lines.all());
        for line in lines.all() {
            assert_eq!(line.contains("patient_4711"), shown && line.contains("dlock.key="), "{line}");
        }
    }
}

#[tokio::test]
async fn keys_passed_as_templates_are_warned_about_once_and_counted_together() {
    let locks = Locks::new(Memory::new());
    let lines = traced(async {
        for n in 0..1_000 {
            let key = format!("room_{n}");
            locks.lock_named(&key, &key).acquire().await.unwrap().release().await.unwrap();
        }
    })
    .await;
    let warnings = lines.all().iter().filter(|line| line.contains("is a key passed instead?")).count();
    assert_eq!(warnings, 1);
    let others = lines.all().iter().filter(|line| line.contains("dlock.template=\"other\"")).count();
    assert!(others >= 800, "{others}");
}

#[tokio::test]
async fn a_nested_acquire_that_asks_for_another_lease_or_an_earlier_end_says_that_it_keeps_those_of_the_outer_one()
 {
    const MINUTE: Duration = Duration::from_secs(60);
    let locks = Locks::builder(Memory::new()).with_lease(MINUTE).build().unwrap();
    let lock = locks.lock("k").with_max_hold(MINUTE * 5);
    let told = async |nested: Lock| {
        let lines =
            traced(async { lock.run(async { nested.run(async {}).await.unwrap() }).await.unwrap() }).await;
        lines.all().iter().filter(|line| line.contains("keeps the lease and the `max_hold`")).count()
    };
    assert_eq!(told(lock.clone()).await, 0);
    // It is over before the outer one has to be.
    assert_eq!(told(lock.clone().with_max_hold(MINUTE * 10)).await, 0);
    assert_eq!(told(lock.clone().with_lease(MINUTE * 2)).await, 1);
    assert_eq!(told(lock.clone().with_max_hold(MINUTE * 2)).await, 1);
    let lines = traced(async {
        let batch = Batch::of([lock.clone().with_lease(MINUTE / 2), locks.lock("other")]);
        lock.run(async { batch.run(async {}).await.unwrap() }).await.unwrap();
    })
    .await;
    let events: Vec<_> = lines.all().into_iter().filter(|line| line.contains("keeps the lease")).collect();
    assert!(events.len() == 1 && events[0].contains("dlock.lease=60s dlock.asked=30s"), "{events:?}");
}

#[tokio::test]
async fn the_end_of_the_keeper_is_an_event_that_says_how_much_is_lost_by_it() {
    // Its tasks end where it is dropped.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let on = Arc::new(On(runtime.handle().clone()));
    let locks = Locks::builder(Memory::new()).with_keeper_on(on).build().unwrap();
    let guards = [locks.lock("a").acquire().await.unwrap(), locks.lock("b").acquire().await.unwrap()];
    let lines = traced(async { runtime.shutdown_background() }).await;
    assert!(guards.iter().all(|guard| guard.check().is_err()));
    let ends: Vec<_> = lines.all().into_iter().filter(|line| line.contains("the keeper has ended")).collect();
    assert!(ends.len() == 1 && ends[0].contains("dlock.locks=2"), "{ends:?}");
}

/// Loses a thousand locks at once, and then runs `end`; the lines about losses.
async fn a_thousand_losses<F: Future>(end: impl FnOnce(Locks) -> F) -> Vec<String> {
    let lines = traced(async {
        let clock = ManualClock::stopped();
        let on = Arc::new(On(tokio::runtime::Handle::current()));
        let locks = Locks::builder(Memory::with_clock(clock.clock())).with_keeper_on(on).build().unwrap();
        let mut guards = Vec::new();
        for n in 0..1_000 {
            guards.push(locks.lock_named("room_<id>", format!("room_{n}")).acquire().await.unwrap());
        }
        clock.advance(Duration::from_secs(60));
        assert!(guards.iter().all(|guard| guard.check().is_err()));
        end(locks).await;
    });
    lines.await.all().into_iter().filter(|line| line.contains("lost")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_locks_that_are_lost_at_once_are_counted_in_a_second_line_though_nothing_follows() {
    let lines = a_thousand_losses(async |_locks| tokio::time::sleep(Duration::from_secs(60)).await).await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("a lock was lost"), "{lines:?}");
    assert!(lines[1].contains("more locks were lost") && lines[1].contains("room_<id> lease_expired: 999"));
}

#[tokio::test(start_paused = true)]
async fn what_was_only_counted_is_told_of_before_a_shutdown_has_ended() {
    let lines = a_thousand_losses(async |locks| locks.shutdown(Duration::from_secs(5)).await.unwrap()).await;
    assert!(lines.iter().any(|line| line.contains("room_<id> lease_expired: 999")), "{lines:?}");
}

#[cfg(feature = "otel")]
#[tokio::test]
async fn a_meter_that_panics_when_it_is_asked_for_instruments_is_logged_once() {
    struct Panicking;
    impl opentelemetry::metrics::InstrumentProvider for Panicking {
        fn f64_histogram(
            &self,
            _: opentelemetry::metrics::HistogramBuilder<'_, opentelemetry::metrics::Histogram<f64>>,
        ) -> opentelemetry::metrics::Histogram<f64> {
            panic!("no instruments")
        }
    }
    let lines = traced(async {
        let meter = opentelemetry::metrics::Meter::new(Arc::new(Panicking));
        let locks = Locks::builder(Memory::new()).with_meter(meter).build().unwrap();
        locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    });
    let lines = lines.await.all();
    let told: Vec<_> = lines.iter().filter(|line| line.contains("the meter panicked")).collect();
    assert!(matches!(told[..], [line] if line.contains("no instruments")), "{lines:?}");
}
