//! Locks that are to be handed over.

use dlock_core::{Baton, ErrorKind};
use dlock_zk::Recipe;

use crate::support::{LONG, Proxied, builder, error_of, over, places};

/// Fences that grow in the order of the queue leave no room for that of a taker.
#[tokio::test]
async fn what_is_to_be_handed_over_or_taken_over_is_refused_before_any_request_and_the_lock_stays_held() {
    let on = Proxied::start();
    let url = format!("zk://{}", on.proxy.address());
    for (recipe, key) in [(Recipe::Mutex, "a"), (Recipe::ReadWriteLock, "b"), (Recipe::LeaderLatch, "c")] {
        let locks = over(builder(&url, LONG).with_recipe(recipe).connect().await.unwrap());
        let guard = locks.lock(key).acquire().await.unwrap();
        let text = format!("dlock-baton:1:zk:0:7:{}:{key}", "0123456789abcdef".repeat(2));
        let baton: Baton = text.parse().unwrap();
        let (line, asked) = (places(on.server.admin(), key), on.proxy.requests());
        for error in [
            error_of(guard.hand_over().await, ErrorKind::Unsupported),
            error_of(locks.take_over(&baton).await, ErrorKind::Unsupported),
        ] {
            assert!(error.to_string().contains("handed over"), "{error}");
        }
        assert_eq!(places(on.server.admin(), key), line);
        // The session proves now and then that it lives, and looks at what it keeps.
        for name in ["MULTI", "CREATE", "DELETE", "GETCHILDREN"] {
            assert_eq!(on.proxy.requests().get(name), asked.get(name), "{name}");
        }
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}
