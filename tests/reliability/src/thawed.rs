//! Acquires that give up on a frozen server, which then thaws and carries out what it was sent.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::figure::{Report, progress};
use crate::store::{Server, Store, held};
use crate::{Failed, Volume};

/// Long: what is free soon was withdrawn and did not run out.
const LEASE: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 200;

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let rounds = volume.of(10, 2);
    let (ours, theirs) = (store.locks(LEASE).await?, store.locks(LEASE).await?);
    for dropped in [false, true] {
        let how = if dropped { "dropped" } else { "timed out" };
        let bar = progress(&format!("acquires {how} on a frozen server"), store.name(), rounds * AT_ONCE);
        let (mut gave_up, mut orphans) = (0, 0);
        for _ in 0..rounds {
            let keys: Vec<_> = (0..AT_ONCE).map(|_| store.key()).collect();
            // A connection that is there already: what is sent on it now is carried out later.
            ours.lock(store.key()).acquire().await?.release().await?;
            with_server(store, Server::pause)?;
            let mut acquires = JoinSet::new();
            for key in &keys {
                let lock = ours
                    .lock(key)
                    .with_wait(Duration::from_millis(100))
                    .with_request_timeout(Duration::from_millis(200));
                acquires.spawn(async move {
                    match dropped {
                        true => {
                            let acquire = tokio::time::timeout(Duration::from_millis(150), lock.acquire());
                            // Some learn a moment before that there is no connection for them.
                            !matches!(acquire.await, Ok(Ok(_)))
                        }
                        false => lock.acquire().await.is_err(),
                    }
                });
            }
            gave_up += acquires.join_all().await.into_iter().filter(|gave_up| *gave_up).count();
            with_server(store, Server::resume)?;
            while ours.stats().background > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            orphans += held(&theirs, &keys).await?;
            bar.inc(u64::try_from(AT_ONCE)?);
        }
        bar.finish_and_clear();
        report.add(
            store.name(),
            format!("acquires {how} on a frozen server: locks left when it had thawed"),
            format!("{orphans} of {gave_up}"),
            "0",
            // One or the other is answered before the last thread of a server stands still.
            orphans == 0 && gave_up * 10 >= rounds * AT_ONCE * 9,
        );
    }
    Ok(())
}

fn with_server(store: &Store, act: impl FnOnce(&Server)) -> Result<(), Failed> {
    act(&*store.server().ok_or("there is no server to freeze")?);
    Ok(())
}
