//! Who keeps newcomers out, and for whom.

use std::sync::OnceLock;

use dlock_core::backend::PREFERENCE_ALIVE;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::cases;
use super::permits::{quiet, semaphore, take};
use super::sharing::{read, reader};
use crate::conformance::Stage;
use crate::conformance::expect::{give_back, soon, until};

cases! {
    one_behind_others_of_its_process_keeps_nobody_out: Permits, Easy;
    a_writer_behind_readers_of_its_process_keeps_none_of_them_out: Shared, Easy;
}

/// Both ask before any of them stands in line. The one behind asks no more, and what its question left on the server
/// would keep out the one before it, which asks for all of them.
async fn one_behind_others_of_its_process_keeps_nobody_out(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    for _ in 0..3 {
        let (one, others) = (take(&theirs, &key, (4, 1)).await, take(&theirs, &key, (4, 3)).await);
        let (few, many) = (semaphore(&ours, &key, 4), semaphore(&ours, &key, 4).take(3));
        ours.wire.keep_answers();
        // In this order, in which they get their answers.
        let both = futures_util::future::join(few.acquire(), many.acquire());
        let released = async {
            until("the answers to both", || ours.wire.kept_answers() == 2).await;
            ours.wire.mend();
            until("both answers", || ours.wire.unanswered_attempts() == 0).await;
            quiet(&ours).await;
            // From here on nothing of ours arrives.
            ours.wire.cut();
            until("the last answer", || ours.wire.unanswered_attempts() == 0).await;
            give_back(one).await;
            if !ours.locks.capabilities().fair {
                give_back(take(&theirs, &key, (4, 1)).await).await;
            }
            ours.wire.mend();
            give_back(others).await;
            Instant::now()
        };
        let ((few, many), began) = soon("the permits", async { tokio::join!(both, released) }).await;
        assert!(!stage.is_virtual() || began.elapsed() < PREFERENCE_ALIVE / 2, "{:?}", began.elapsed());
        give_back(few.expect("there is one")).await;
        give_back(many.expect("there are three")).await;
    }
}

/// The reader is kept out by the writer when it asks, and has its answer before that one has its own. So the writer
/// stands behind it, and asks no more until the reader is in.
async fn a_writer_behind_readers_of_its_process_keeps_none_of_them_out(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (one_reads, one_writes) = (reader(&ours, &key), ours.locks.lock(&key));
    for _ in 0..3 {
        let before = read(&theirs, &key).await;
        let ((ask, asked), (tell, told)) = (oneshot::channel(), oneshot::channel());
        let answered = OnceLock::new();
        ours.wire.keep_answers();
        let reading = async {
            asked.await.expect("it is said when");
            let guard = one_reads.acquire().await.expect("it reads");
            let waited = answered.get().map(Instant::elapsed).unwrap_or_default();
            assert!(!stage.is_virtual() || waited < PREFERENCE_ALIVE / 2, "{waited:?}");
            // Where all are served in order, nobody waits for it.
            let _ = tell.send(());
            give_back(guard).await;
        };
        let writing = async { give_back(one_writes.acquire().await.expect("it writes")).await };
        let others = async {
            while let Some(guard) = reader(&theirs, &key).try_acquire().await.expect("it can be asked for") {
                give_back(guard).await;
                tokio::task::yield_now().await;
            }
            ask.send(()).expect("it waits for that");
            until("the answers to both", || ours.wire.kept_answers() == 2).await;
            answered.set(Instant::now()).expect("it is set once");
            ours.wire.mend();
            if !ours.locks.capabilities().fair {
                told.await.expect("it reads");
            }
            give_back(before).await;
        };
        // In this order, in which they get their answers.
        let both = futures_util::future::join(reading, writing);
        soon("the turns of both", async { tokio::join!(both, others) }).await;
    }
}
