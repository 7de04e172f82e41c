//! What a row keeps for those who pass the lock on inside their process, and for those who wait elsewhere.

use crate::handed_off;
use crate::support::{Db, on_both};

on_both! {
    async fn the_next_fence_is_higher_than_all_that_were_reserved_with_a_lock<D: Db>(db: D) {
        handed_off::the_next_fence_is_higher_than_all_that_were_reserved_with_a_lock(db.backend().await).await;
    }

    async fn who_does_not_know_what_an_earlier_attempt_reserved_has_one_fence_of_it<D: Db>(db: D) {
        let backend = db.backend().await;
        handed_off::who_does_not_know_what_an_earlier_attempt_reserved_has_one_fence_of_it(backend).await;
    }

    async fn a_release_tells_that_somebody_waits_elsewhere<D: Db>(db: D) {
        let backends = (db.backend().await, db.backend().await);
        let mark = db.mark_of_waiters();
        let is_marked = async || db.query(&mark) == "1";
        handed_off::a_release_tells_that_somebody_waits_elsewhere(backends, is_marked).await;
    }
}
