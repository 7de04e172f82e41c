//! Jobs that wait for a run elsewhere, over connections that lose what they carry.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::{Error, Locks};
use dlock_rig::proxy::Loss;
use tokio::task::JoinSet;

use crate::support::{HOUR, LONG, Proxied, held, locks, soon, until};

async fn waits_while_replies_are_lost(fails: bool) {
    let on = Proxied::start();
    let runner = locks(&on.server.url(), LONG).await;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(on.locks(LONG).await);
    }
    let job = |locks: &Locks| locks.once("job").with_window(HOUR);
    let ran = Arc::new(AtomicUsize::new(0));
    let run = tokio::spawn(job(&runner).run(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        if fails { Err(Box::<dyn std::error::Error + Send + Sync>::from("no luck")) } else { Ok(()) }
    }));
    until("the run", || held(&on.server).len() == 1).await;
    let mut waiting = JoinSet::new();
    for n in 0..60 {
        let ran = Arc::clone(&ran);
        waiting.spawn(job(&processes[n % 3]).run(async move {
            ran.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Error>(())
        }));
    }
    for n in 1.. {
        if run.is_finished() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(170)).await;
        match n % 5 {
            0 => on.proxy.cut(),
            1 => on.proxy.lose_reply(1, "EVALSHA", Loss::Silence),
            2 => on.proxy.lose_reply(2, "EVALSHA", Loss::Cut),
            3 => on.proxy.lose_request(1, "EVALSHA"),
            _ => on.proxy.lose_reply(3, "EVALSHA", Loss::Cut),
        }
    }
    for outcome in soon("all", waiting.join_all()).await {
        outcome.unwrap();
    }
    assert_eq!(ran.load(Ordering::SeqCst), usize::from(fails));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_wait_while_replies_are_lost_and_connections_cut_are_skipped_or_run_once() {
    tokio::join!(waits_while_replies_are_lost(false), waits_while_replies_are_lost(true));
}
