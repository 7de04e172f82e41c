//! What holds only where each gets on in time: readers have 100 ms.

use super::*;

/// Before anybody who wants to write, whether it waited already or comes at that moment.
#[tokio::test]
async fn a_reader_that_waits_gets_in_at_the_next_release() {
    let server = RedisServer::start().unwrap();
    let clients = [locks(&server.url(), LONG).await, locks(&server.url(), LONG).await];
    for round in 0..20 {
        let guard = clients[0].lock("room").acquire().await.unwrap();
        let reader = clients[1].lock("room").read();
        let reader = tokio::spawn(async move { reader.acquire().await });
        until("the mark", || server.command::<String>(&["GET", "dlock:room"]).ends_with(" ?!")).await;
        let writers: Vec<_> = (0..4)
            .map(|number| {
                let lock = clients[(number + round) % 2].lock("room").with_handoff(false);
                tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
            })
            .collect();
        guard.release().await.unwrap();
        assert!(clients[0].lock("room").try_acquire().await.unwrap().is_none(), "readers have their chance");
        let reading = soon("its turn", reader).await.unwrap().unwrap();
        assert!(!writers.iter().any(JoinHandle::is_finished), "one wrote before it");
        reading.release().await.unwrap();
        for writer in writers {
            soon("their turns", writer).await.unwrap();
        }
    }
    until("the clean-up", || clients.iter().all(|locks| locks.stats().background == 0)).await;
    until("the end of the last chance", || held(&server).is_empty()).await;
}

/// So that the next reader need not wait until the hand-off time is over.
#[tokio::test]
async fn a_process_that_has_seen_a_reader_wait_hands_over_no_long_section_for_a_second() {
    let server = RedisServer::start().unwrap();
    let clients = [locks(&server.url(), LONG).await, locks(&server.url(), LONG).await];
    let handoffs = async || {
        let before = clients[0].stats().handoffs;
        let mut writers = JoinSet::new();
        for _ in 0..4 {
            let lock = clients[0].lock("room");
            writers.spawn(async move {
                for _ in 0..3 {
                    let guard = lock.clone().acquire().await.unwrap();
                    // Longer than the time for which a lock is handed over then, and shorter than it is otherwise.
                    tokio::time::sleep(Duration::from_millis(11)).await;
                    guard.release().await.unwrap();
                }
            });
        }
        soon("their turns", writers.join_all()).await;
        clients[0].stats().handoffs - before
    };
    assert!(handoffs().await > 2, "no reader was seen");
    let guard = clients[0].lock("room").acquire().await.unwrap();
    let reader = clients[1].lock("room").read();
    let reader = tokio::spawn(async move { reader.acquire().await });
    until("the mark", || server.command::<String>(&["GET", "dlock:room"]).ends_with(" ?!")).await;
    guard.release().await.unwrap();
    soon("its turn", reader).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(handoffs().await, 0);
}
