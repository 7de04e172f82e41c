use std::sync::mpsc;
use std::thread;

use dlock_core::backend::{Attempt, Backend, Capabilities, Claim, ClaimRequest, LockId, Renewed, Withdrawal};
use dlock_core::{Clock, Failure, Holder, Key, Locks, Memory};
use futures_util::FutureExt;
use tokio::runtime::Builder;

use super::*;
use crate::request::Probe;

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_is_asked_for_again_and_what_the_server_lacks_is_not() {
    let tracking = Tracking::new(1);
    tracking.refuse("the user has no permissions", Some(REFUSED_FOR));
    assert!(!tracking.has_room());
    tokio::time::sleep(REFUSED_FOR).await;
    assert!(tracking.has_room());
    tracking.refuse("the user has no permissions", Some(REFUSED_FOR));
    assert!(!tracking.has_room(), "it has not been given");
    tokio::time::sleep(REFUSED_FOR).await;
    tracking.refuse("it is spoken to in RESP2", None);
    tokio::time::sleep(REFUSED_FOR * 10).await;
    assert!(!tracking.has_room());
}

/// What signals are taken from.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) memory: Memory,
    pub(crate) signals: Arc<Mutex<Vec<Signal>>>,
}

pub(crate) struct SourceClaim(<Memory as Backend>::Claim, Arc<Mutex<Vec<Signal>>>);

impl Backend for Source {
    type Claim = SourceClaim;

    fn name(&self) -> &'static str {
        "source"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic()
    }

    fn clock(&self) -> Clock {
        self.memory.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.memory.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> SourceClaim {
        SourceClaim(self.memory.claim(request), Arc::clone(&self.signals))
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.memory.inspect(key).await
    }
}

impl Claim for SourceClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.0.attempt().await
    }

    fn granted(&mut self, signal: Signal) {
        self.1.lock().push(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.0.renew().await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.0.withdraw().await
    }
}

#[test]
fn what_others_change_is_looked_at_where_it_is_renewed_whoever_hears_of_the_change() {
    let (renewing, hearing) =
        (Builder::new_multi_thread().enable_all().build(), Builder::new_current_thread().build());
    let (renewing, hearing) = (renewing.unwrap(), hearing.unwrap());
    let source = Source::default();
    let signals = Arc::clone(&source.signals);
    let locks = Locks::new(source);
    let _guard = renewing.block_on(locks.lock("k").acquire()).unwrap();
    let signal = signals.lock().pop().unwrap();
    let (looked, looks) = mpsc::channel();
    let name: Arc<str> = "k".into();
    let ask = move |_, _| {
        looked.send(Handle::current().id()).unwrap();
        async { Some(vec![true]) }.boxed()
    };
    let list = vec![Probe::new("PTTL", &name, "")];
    let (runtime, lease) = (Some(renewing.handle().clone()), Duration::from_secs(60));
    let probes = Probes { runtime, lease, list, ask: Box::new(ask) };
    let tracking = Tracking::new(1);
    let _tracked = tracking.enter(&name, &signal, Some(probes)).unwrap();
    let next = || looks.recv_timeout(Duration::from_secs(120)).expect("it is looked at");
    // A runtime that goes on no more, and a thread without any.
    hearing.block_on(async { tracking.changed("k") });
    assert_eq!(next(), renewing.handle().id());
    thread::scope(|threads| threads.spawn(|| tracking.changed("k")).join().unwrap());
    assert_eq!(next(), renewing.handle().id());
}
