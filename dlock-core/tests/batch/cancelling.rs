//! A batch that is dropped at any await leaves nothing behind.

use dlock_core::Memory;
use dlock_testkit::cancel::every_await_point;

use super::Process;

#[tokio::test]
async fn wherever_an_acquire_is_dropped_nothing_is_left() {
    for in_one_step in [true, false] {
        let memory = Memory::new();
        let process = Process::over(&memory, in_one_step);
        memory.faults().set_stepping(true);
        let batch = process.locks.lock_all(["a", "b", "c"]);
        let cuts = every_await_point(
            || batch.acquire(),
            async |_, output| {
                drop(output);
                process.settled().await;
            },
        )
        .await;
        assert!(cuts > 4, "{cuts}");
    }
}

#[tokio::test]
async fn wherever_a_waiting_acquire_is_dropped_only_the_other_holder_is_left() {
    for in_one_step in [true, false] {
        let memory = Memory::new();
        let process = Process::over(&memory, in_one_step);
        let other = process.rival().lock("b").acquire().await.unwrap();
        let batch = process.locks.lock_all(["a", "b", "c"]).with_wait(std::time::Duration::from_millis(30));
        every_await_point(
            || batch.acquire(),
            async |_, output| {
                assert!(output.is_none_or(|result| result.is_err()));
                let settled = async {
                    while memory.held() != 1 || process.locks.stats().background > 0 {
                        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    }
                };
                tokio::time::timeout(std::time::Duration::from_secs(20), settled)
                    .await
                    .expect("more is left");
            },
        )
        .await;
        other.release().await.unwrap();
        process.settled().await;
    }
}

#[tokio::test]
async fn wherever_a_release_is_dropped_everything_is_given_back() {
    for in_one_step in [true, false] {
        let memory = Memory::new();
        let process = Process::over(&memory, in_one_step);
        memory.faults().set_stepping(true);
        let batch = process.locks.lock_all(["a", "b", "c"]);
        let cycle = || async {
            let guard = batch.acquire().await.unwrap();
            guard.release().await
        };
        every_await_point(cycle, async |_, _| process.settled().await).await;
    }
}
