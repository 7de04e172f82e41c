use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use tokio::runtime::Builder;

use super::*;

/// The time that a wake-up may take that is certain to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// The waker of a thread, of which a test hears.
struct Bell(mpsc::Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // The test may be over.
        let _ = self.0.send(());
    }
}

#[test]
fn a_look_follows_at_waiters_that_are_left_to_their_runtime_when_a_look_was_due_just_then() {
    let driver = Driver::new();
    // Two waiters of a runtime that stands still once they wait.
    let runtime = Builder::new_current_thread().build().unwrap();
    let waiting = Arc::new(AtomicUsize::new(0));
    let mut answers = Vec::new();
    for _ in 0..2 {
        let (answer, answered) = oneshot::channel::<()>();
        answers.push(answer);
        let waiting = Arc::clone(&waiting);
        let mut answered = together(Box::pin(answered));
        runtime.spawn(std::future::poll_fn(move |context| {
            waiting.fetch_add(1, Ordering::SeqCst);
            answered.as_mut().poll(context).map(drop)
        }));
    }
    runtime.block_on(async {
        while waiting.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    });
    // A session that answers both at once, when it is asked to.
    let (ask, asked) = oneshot::channel::<()>();
    driver.spawned.lock().push(Box::pin(async move {
        let _ = asked.await;
        answers.into_iter().for_each(|answer| assert!(answer.send(()).is_ok()));
        std::future::pending::<()>().await;
    }));
    let (bell, rings) = mpsc::channel();
    let waker = Waker::from(Arc::new(Bell(bell)));
    let mut thread = pin!(driver.run());
    let mut poll = || assert!(thread.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    poll();
    rings.recv_timeout(PATIENCE).expect("a look is due");
    ask.send(()).unwrap();
    while rings.try_recv().is_ok() {}
    poll();
    assert!(!driver.looks.load(Ordering::SeqCst), "the look was due in that poll");
    assert_eq!(driver.handed.lock().len(), 1, "the waiters are left to their runtime");
    rings.recv_timeout(PATIENCE).expect("another look is due");
    poll();
    assert!(driver.handed.lock().is_empty(), "they are woken");
}
