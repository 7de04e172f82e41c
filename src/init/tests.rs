use std::time::Duration;

use dlock_core::{ErrorKind, Held, Memory, OnLost};

use super::*;
use crate::registered;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

fn of(variables: &[(&str, &str)]) -> Init {
    init().with_variables(variables.iter().copied())
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
async fn poll_once<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
    std::future::poll_fn(|context| std::task::Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

#[tokio::test]
async fn each_variable_makes_a_backend_with_the_options_of_all_and_its_own() {
    let backends = of(&[
        ("DLOCK_INIT_A_URL", "memory:"),
        ("DLOCK_INIT_B_URL", " memory:\n"),
        ("DLOCK_INIT_C_URL", ""),
        ("DLOCK_LEASE", "1h"),
        ("DLOCK_LABEL", "all"),
        ("DLOCK_INIT_B_LABEL", "one"),
    ])
    .await
    .unwrap();
    let names: Vec<&str> = backends.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["init_a", "init_b"]);
    for (name, label) in [("init_a", "all"), ("init-b", "one"), ("Init B", "one")] {
        let locks = registered(name).unwrap();
        let guard = locks.lock("room_7").acquire().await.unwrap();
        let holder = locks.inspect("room_7").await.unwrap().unwrap();
        assert_eq!(holder.label.as_deref(), Some(label), "{name}");
        assert!(guard.remaining() > Some(Duration::from_secs(1_800)), "{name}: {:?}", guard.remaining());
        guard.release().await.unwrap();
    }
    assert_eq!(registered("init_c").unwrap_err().kind(), ErrorKind::UnknownBackend);
}

#[tokio::test]
async fn one_that_fails_leaves_nothing_registered_and_every_failure_is_named_without_a_password() {
    let variables = [
        ("DLOCK_INIT_D_URL", "memory:"),
        ("DLOCK_INIT_E_URL", "http://u:hunter2@h"),
        ("DLOCK_INIT_F_URL", "hunter2"),
    ];
    let error = of(&variables).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let text = format!("{error} {error:?}");
    assert!(text.contains("DLOCK_INIT_E_URL: ") && text.contains("DLOCK_INIT_F_URL: "), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("DLOCK_INIT_D_URL"), "{text}");
    assert!(registered("init_d").is_err());
    // Nothing of it is in the way of another try.
    of(&variables[..1]).await.unwrap().shutdown(LONG).await.unwrap();
    assert!(!format!("{:?}", of(&variables)).contains("hunter2"));
}

#[tokio::test]
async fn a_wrong_option_names_its_variable_and_leaves_nothing_registered() {
    for (option, value) in
        [("DLOCK_LEASE", "10"), ("DLOCK_INIT_H_WAIT", "never"), ("DLOCK_INIT_H_LEASE", "1ms")]
    {
        let set = [("DLOCK_INIT_G_URL", "memory:"), ("DLOCK_INIT_H_URL", "memory:"), (option, value)];
        let error = of(&set).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(option), "{error}");
        assert!(registered("init_g").is_err() && registered("init_h").is_err());
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn all_wrong_options_are_named_at_once_before_anything_is_connected_to() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.db");
    let error = of(&[
        ("DLOCK_INIT_Y_URL", &format!("sqlite://{}", file.display())),
        ("DLOCK_INIT_Z_URL", "memory:"),
        ("DLOCK_LEASE", "10"),
        ("DLOCK_INIT_Y_RECHECKS", "many"),
        ("DLOCK_INIT_Z_WAIT", "never"),
        ("DLOCK_INIT_Z_REQUEST_TIMEOUT", "1s"),
    ])
    .await
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let text = error.to_string();
    for name in ["DLOCK_LEASE", "DLOCK_INIT_Y_RECHECKS", "DLOCK_INIT_Z_WAIT"] {
        assert_eq!(text.matches(name).count(), 1, "{name}: {text}");
    }
    assert!(!text.contains("REQUEST_TIMEOUT"), "{text}");
    assert!(!file.exists(), "it was connected to");
}

#[tokio::test]
async fn whoever_sets_nothing_is_answered_with_what_to_set() {
    for variables in [&[("DLOCK_LEASE", "10s"), ("DLOCK_URL", " ")][..], &[]] {
        let error = of(variables).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let text = error.to_string();
        for part in ["set DLOCK_URL", "DLOCK_<NAME>_URL", "sqlite:///", "memory:"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}

#[tokio::test]
async fn some_backends_are_taken_alone_and_each_of_them_has_to_be_set() {
    let set =
        [("DLOCK_INIT_I_URL", "memory:"), ("DLOCK_INIT_J_URL", "http://nowhere"), ("DLOCK_Init_URL", "x")];
    let error = of(&set).only(["init-i", "init-k"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("not set: DLOCK_INIT_K_URL"), "{error}");
    let backends = of(&set).only(["init-i"]).await.unwrap();
    assert_eq!(backends.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["init-i"]);
    assert!(registered("init_i").is_ok() && registered("init_j").is_err());
}

#[tokio::test]
async fn a_name_that_is_taken_is_refused_and_so_is_a_second_call_or_a_second_spelling() {
    crate::register("init_l", Locks::new(Memory::new())).unwrap();
    // The other URL would be an error, were it looked at.
    let variables = [("DLOCK_INIT_L_URL", "memory:"), ("DLOCK_INIT_M_URL", "http://nowhere")];
    let text = of(&variables).await.unwrap_err().to_string();
    assert!(text.contains("DLOCK_INIT_L_URL is set") && !text.contains("DLOCK_INIT_M_URL"), "{text}");

    let _ = of(&[("DLOCK_INIT_N_URL", "memory:")]).await.unwrap();
    let error = of(&[("DLOCK_INIT_N_URL", "memory:")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("dlock::init() is called once"), "{error}");
    let error = crate::register("init-n", Locks::new(Memory::new())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("by dlock::init(), from DLOCK_INIT_N_URL"), "{error}");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn two_calls_at_the_same_time_register_once() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("locks.db").display());
    // Both are connecting before either has registered.
    let call = || async { of(&[("DLOCK_INIT_O_URL", &url)]).await };
    let (one, other) = tokio::join!(call(), call());
    let (made, refused) = if one.is_ok() { (one, other) } else { (other, one) };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidConfig);
    made.unwrap().shutdown(LONG).await.unwrap();
    let error = registered("init_o").unwrap().lock("k").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "those of the call that succeeded are registered");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_call_that_is_dropped_registers_nothing_and_may_be_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("locks.db").display());
    let call = || of(&[("DLOCK_INIT_W_URL", &url), ("DLOCK_INIT_X_URL", "memory:")]).into_future();
    let mut first = call();
    assert!(poll_once(&mut first).await.is_pending(), "it is connecting");
    drop(first);
    // Were the first one still going on, it would be done before this one.
    call().await.unwrap().shutdown(LONG).await.unwrap();
}

#[tokio::test]
async fn a_shutdown_lets_bodies_come_to_their_end_and_refuses_what_comes_later() {
    let backends = of(&[("DLOCK_INIT_P_URL", "memory:"), ("DLOCK_INIT_Q_URL", "memory:")]).await.unwrap();
    let (p, q) = (registered("init_p").unwrap(), registered("init_q").unwrap());
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let body = tokio::spawn({
        let p = p.clone();
        async move { p.lock("body").run(async { (begun.send(()), ended.await).1.is_ok() }).await }
    });
    has_begun.await.unwrap();
    let is_refused = async |locks: &Locks| loop {
        match locks.lock("late").try_acquire().await {
            Err(error) => break error.kind(),
            Ok(guard) => drop(guard),
        }
        tokio::task::yield_now().await;
    };
    let watched = async {
        assert_eq!((is_refused(&p).await, is_refused(&q).await), (ErrorKind::Closed, ErrorKind::Closed));
        // Neither is closed while the body runs, which may look at the locks of both.
        assert!(q.inspect("late").await.unwrap().is_none());
        end.send(()).unwrap();
    };
    let (shut_down, ()) = tokio::join!(backends.shutdown(LONG), watched);
    shut_down.unwrap();
    assert!(body.await.unwrap().unwrap(), "the body was not stopped");
    // It may be called again, and leaves the names as they are.
    backends.shutdown(LONG).await.unwrap();
    assert!(registered("init_p").is_ok());
}

#[tokio::test]
async fn a_body_takes_locks_of_every_backend_while_they_are_shut_down_together() {
    let (one, other) = (Locks::new(Memory::new()), Locks::new(Memory::new()));
    let backends = Backends(vec![("one".to_owned(), one.clone()), ("other".to_owned(), other.clone())]);
    let (begun, goes_on) = (tokio::sync::Barrier::new(3), tokio::sync::Barrier::new(3));
    // In both directions, and with a guard that is kept for longer than the body.
    let body = async |first: &Locks, second: &Locks| {
        let nested = async {
            begun.wait().await;
            goes_on.wait().await;
            second.lock("nested").acquire().await
        };
        let guard = first.lock("outer").run(nested).await??;
        guard.check()?;
        guard.release().await
    };
    let watched = async {
        for locks in [&one, &other] {
            while locks.health().accepts {
                tokio::task::yield_now().await;
            }
            let error = locks.lock("late").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "nobody else is let in");
        }
        goes_on.wait().await;
    };
    let shut_down = async {
        begun.wait().await;
        backends.shutdown(LONG).await
    };
    let (shut_down, first, second, ()) =
        tokio::join!(shut_down, body(&one, &other), body(&other, &one), watched);
    first.unwrap();
    second.unwrap();
    shut_down.unwrap();
    assert_eq!(one.lock("late").try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_shutdown_reports_every_backend_that_failed_and_shuts_down_the_others() {
    let stores = [Memory::new(), Memory::new(), Memory::new()];
    let locks = stores.each_ref().map(|store| Locks::new(store.clone()));
    let mut held = Vec::new();
    for (store, locks) in stores.iter().zip(&locks).step_by(2) {
        held.push(locks.lock("k").acquire().await.unwrap());
        store.faults().set_unavailable(true);
    }
    let second = locks[1].clone();
    let names = ["first", "second", "third"].map(str::to_owned);
    let backends = Backends(names.into_iter().zip(locks).collect());
    let error = backends.shutdown(Duration::from_secs(6)).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::TimedOut, Operation::Shutdown));
    let text = error.to_string();
    assert!(text.contains("first: ") && text.contains("third: ") && !text.contains("second"), "{text}");
    assert_eq!(second.lock("k").try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_body_that_does_not_end_in_half_of_the_time_is_stopped_and_may_leave_in_the_rest() {
    let store = Memory::new();
    let locks = Locks::new(store.clone());
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let body = tokio::spawn({
        let lock = locks.lock("k").with_on_lost(OnLost::Continue);
        async move {
            let leave = async |held: Held| {
                begun.send(()).unwrap();
                held.lost().await;
                // What it has to do before it can leave.
                tokio::time::sleep(Duration::from_millis(300)).await;
            };
            lock.run_with(leave).await
        }
    });
    has_begun.await.unwrap();
    Backends(vec![("only".to_owned(), locks)]).shutdown(Duration::from_secs(12)).await.unwrap();
    assert_eq!(store.held(), 0);
    assert!(body.is_finished(), "it was not waited for");
}

#[cfg(feature = "redis")]
mod with_servers {
    use tokio::net::TcpListener;

    use super::*;

    /// A port that connections are taken on, and nothing is answered.
    async fn silent() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://:hunter2@{}", listener.local_addr().unwrap());
        (listener, url)
    }

    #[tokio::test]
    async fn what_may_pass_is_retryable_unless_another_failure_does_not_pass() {
        // Nothing listens on a port that was bound a moment ago.
        let (listener, away) = silent().await;
        drop(listener);
        let error = of(&[("DLOCK_INIT_R_URL", &away), ("DLOCK_INIT_S_URL", "memory:")]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("DLOCK_INIT_R_URL: ") && !text.contains("hunter2"), "{text}");
        let both = [("DLOCK_INIT_R_URL", &*away), ("DLOCK_INIT_S_URL", "http://nowhere")];
        let error = of(&both).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("DLOCK_INIT_R_URL: "), "{error}");
        let lazy = format!("{away}?connect=lazy");
        of(&[("DLOCK_INIT_R_URL", &lazy), ("DLOCK_INIT_S_URL", "memory:")])
            .await
            .unwrap()
            .shutdown(LONG)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn all_are_connected_to_at_the_same_time() {
        let ((one, first), (other, second)) = (silent().await, silent().await);
        let mut call = of(&[("DLOCK_INIT_T_URL", &*first), ("DLOCK_INIT_U_URL", &*second)]).into_future();
        assert!(poll_once(&mut call).await.is_pending(), "nothing answers");
        // It is not polled again: what begins after the end of another does not begin.
        let both = async { tokio::join!(one.accept(), other.accept()) };
        let (first, second) = tokio::time::timeout(LONG, both).await.expect("both are connected to");
        assert!(first.is_ok() && second.is_ok());
    }
}
