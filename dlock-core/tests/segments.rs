//! One hot key split into segments.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Batch, Error, ErrorKind, Locks, Memory, Segmented, Wait};

fn locks() -> (Memory, Locks) {
    let memory = Memory::new();
    (memory.clone(), Locks::new(memory))
}

#[tokio::test]
async fn callers_side_by_side_have_different_segments_and_each_is_a_lock_of_its_own() {
    let (memory, locks) = locks();
    let (all_inside, inside) = (tokio::sync::Barrier::new(5), RefCell::new(Vec::new()));
    let segments = locks.segmented("stock", 5);
    let caller = || {
        segments.run(|segment| {
            let (all_inside, inside, memory) = (&all_inside, &inside, &memory);
            async move {
                inside.borrow_mut().push(segment.number());
                segment.held().check().unwrap();
                assert_eq!(segment.held().key(), Some(&*format!("stock#{}", segment.number())));
                all_inside.wait().await;
                assert_eq!(memory.held(), 5);
                // Nobody leaves before all have looked.
                all_inside.wait().await;
            }
        })
    };
    let all = tokio::join!(caller(), caller(), caller(), caller(), caller());
    all.0.and(all.1).and(all.2).and(all.3).and(all.4).unwrap();
    assert_eq!(inside.borrow().iter().collect::<BTreeSet<_>>().len(), 5);
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_free_segment_is_taken_at_once_while_others_are_busy() {
    let (_, locks) = locks();
    let segments = locks.lock("stock").with_wait(Wait::No).segmented(8);
    for free in 0..8 {
        let others = Batch::of((0..8).filter(|number| *number != free).map(|number| segments.lock(number)));
        let others = others.acquire().await.unwrap();
        let number = segments.run(|segment| async move { segment.number() }).await.unwrap();
        assert_eq!(number, free);
        others.release().await.unwrap();
    }
}

#[tokio::test]
async fn callers_begin_at_different_segments() {
    let (_, locks) = locks();
    let segments = locks.segmented("stock", 20);
    let mut begun = BTreeSet::new();
    for _ in 0..200 {
        begun.insert(segments.run(|segment| async move { segment.number() }).await.unwrap());
    }
    assert!(begun.len() > 10, "{begun:?}");
}

#[tokio::test]
async fn when_none_is_free_one_that_becomes_so_is_taken() {
    let (_, locks) = locks();
    let segments = locks.lock("stock").with_wait(Duration::from_secs(20)).segmented(3);
    let all = segments.clone();
    let mut guards = Vec::new();
    for number in 0..3 {
        guards.push(all.lock(number).acquire().await.unwrap());
    }
    let waiting = tokio::spawn(async move { segments.run(|segment| async move { segment.number() }).await });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    guards.remove(1).release().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn when_all_stay_busy_it_is_busy_or_timed_out_after_the_wait() {
    let (_, locks) = locks();
    let lock = |wait: Wait| locks.lock("stock").with_wait(wait).segmented(3);
    let all = Batch::of((0..3).map(|number| lock(Wait::No).lock(number))).acquire().await.unwrap();
    let error = lock(Wait::No).run(|_| async {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let started = tokio::time::Instant::now();
    let error = lock(Wait::For(Duration::from_secs(3))).run(|_| async {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_millis(3_100), "{waited:?}");
    assert!(error.waited().unwrap() >= Duration::from_secs(3), "{error}");
    all.release().await.unwrap();
}

#[tokio::test]
async fn an_exhausted_segment_sends_the_caller_to_the_next_until_all_have_said_so() {
    let (memory, locks) = locks();
    let segments = locks.segmented("stock", 6);
    let (asked, memory) = (RefCell::new(Vec::new()), &memory);
    let result = segments
        .run(|segment| {
            let asked = &asked;
            async move {
                assert_eq!(memory.held(), 1, "the last one was given back");
                asked.borrow_mut().push(segment.number());
                Err::<(), Error>(segment.exhausted())
            }
        })
        .await;
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Exhausted, Some("stock")));
    assert!(!error.is_retryable() && !error.is_busy());
    let mut asked = asked.into_inner();
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 2, 3, 4, 5], "each once");
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_busy_segment_that_may_have_something_left_is_waited_for() {
    let (_, locks) = locks();
    let segments = locks.lock("stock").with_wait(Duration::from_secs(20)).segmented(3);
    let other = segments.lock(2).acquire().await.unwrap();
    let found = tokio::spawn(async move {
        segments
            .run(|segment| async move {
                match segment.number() {
                    2 => Ok(7),
                    _ => Err(segment.exhausted()),
                }
            })
            .await
    });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    other.release().await.unwrap();
    assert_eq!(found.await.unwrap().unwrap().unwrap(), 7);
}

#[tokio::test]
async fn a_nested_call_enters_the_segment_of_its_caller_again() {
    let (memory, locks) = locks();
    let segments = locks.segmented("stock", 16);
    let (segments, memory) = (&segments, &memory);
    for _ in 0..10 {
        segments
            .run(|outer| async move {
                let inner =
                    segments.run(|inner| async move { (inner.number(), memory.held()) }).await.unwrap();
                assert_eq!(inner, (outer.number(), 1));
            })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_segment_that_is_lost_ends_the_body_and_no_other_is_tried() {
    let (memory, locks) = locks();
    let (bodies, segments) = (Cell::new(0), locks.segmented("stock", 4));
    let error = segments
        .run(|segment| {
            bodies.set(bodies.get() + 1);
            let memory = memory.clone();
            async move {
                memory.lose(segment.held().key().unwrap());
                std::future::pending::<()>().await;
            }
        })
        .await
        .unwrap_err();
    assert_eq!((error.kind(), bodies.get()), (ErrorKind::Lost, 1));
}

#[tokio::test]
async fn numbers_of_segments_that_cannot_be_are_refused() {
    let (memory, locks) = locks();
    memory.faults().set_unavailable(true);
    for wrong in [0, Segmented::MAX + 1] {
        let error = locks.segmented("stock", wrong).run(|_| async {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    let error = locks.segmented("", 3).run(|_| async {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
}

#[tokio::test]
async fn wherever_a_call_is_dropped_nothing_is_left() {
    let (memory, locks) = locks();
    memory.faults().set_stepping(true);
    let segments = locks.segmented("stock", 3);
    let call = || segments.run(|segment| async move { Err::<(), _>(segment.exhausted()) });
    let cuts = dlock_testkit::cancel::every_await_point(call, async |_, _| {
        while memory.held() > 0 || locks.stats().background > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(cuts > 8, "{cuts}");
}

/// Each segment has its part of the stock; what is sold is the stock, exactly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_in_segments_is_sold_exactly_to_more_callers_than_there_is_stock() {
    const SEGMENTS: usize = 5;
    let (memory, _) = locks();
    let stock: Arc<[Mutex<u32>; SEGMENTS]> = Arc::new(std::array::from_fn(|n| Mutex::new(10 + n as u32)));
    let sold = Arc::new(AtomicU32::new(0));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let locks = Locks::new(memory.clone());
            let (stock, sold) = (Arc::clone(&stock), Arc::clone(&sold));
            tokio::spawn(async move {
                let segments = locks.segmented("stock", SEGMENTS as u32);
                for _ in 0..30 {
                    let result = segments.run(|segment| {
                        let stock = Arc::clone(&stock);
                        async move {
                            let left = &stock[segment.number() as usize];
                            let seen = *left.lock().unwrap();
                            tokio::task::yield_now().await;
                            *left.lock().unwrap() = seen.checked_sub(1).ok_or_else(|| segment.exhausted())?;
                            Ok::<_, Error>(())
                        }
                    });
                    match result.await {
                        Ok(sale) => {
                            sale.unwrap();
                            sold.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}"),
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(sold.load(Ordering::SeqCst), (0..SEGMENTS as u32).map(|n| 10 + n).sum::<u32>());
    assert!(stock.iter().all(|left| *left.lock().unwrap() == 0));
}

/// As many callers as there are segments, each of which finds one, and then one more that finds none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_find_a_segment_each() {
    const SEGMENTS: u32 = 1_000;
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let segments = locks.segmented("stock", SEGMENTS);
    let all_inside = Arc::new(tokio::sync::Barrier::new(SEGMENTS as usize + 1));
    let tasks: Vec<_> = (0..SEGMENTS)
        .map(|_| {
            let (segments, all_inside) = (segments.clone(), Arc::clone(&all_inside));
            tokio::spawn(async move {
                let body = |segment: dlock_core::Segment| {
                    let all_inside = Arc::clone(&all_inside);
                    async move {
                        all_inside.wait().await;
                        segment.number()
                    }
                };
                segments.run(body).await.unwrap()
            })
        })
        .collect();
    all_inside.wait().await;
    let mut found = BTreeSet::new();
    for task in tasks {
        found.insert(task.await.unwrap());
    }
    assert_eq!(found.len(), SEGMENTS as usize);
    assert_eq!(memory.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_wait_bounds_the_tries_of_all_segments_together() {
    let (memory, locks) = locks();
    let theirs = Locks::new(memory.clone());
    let _held = theirs.lock_all((0..100).map(|n| format!("stock#{n}"))).acquire().await.unwrap();
    memory.faults().set_delay(Duration::from_millis(10));
    let wait = Duration::from_millis(200);
    let segments = locks.lock("stock").with_wait(wait).segmented(100);
    let started = tokio::time::Instant::now();
    let error = segments.run(async |_| ()).await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    assert!(started.elapsed() <= wait, "{:?}", started.elapsed());
    let started = tokio::time::Instant::now();
    memory.faults().set_hanging(true);
    let error = segments.run(async |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(started.elapsed() <= wait + Duration::from_millis(2), "{:?}", started.elapsed());
    memory.faults().set_hanging(false);
}
