//! What a row keeps for those who pass the lock on inside their process, and for those who wait elsewhere.

use crate::handed_off;
use crate::support::{MARK_OF_WAITERS, Site};

#[tokio::test]
async fn the_next_fence_is_higher_than_all_that_were_reserved_with_a_lock() {
    let site = Site::new();
    handed_off::the_next_fence_is_higher_than_all_that_were_reserved_with_a_lock(site.backend().await).await;
}

#[tokio::test]
async fn who_does_not_know_what_an_earlier_attempt_reserved_has_one_fence_of_it() {
    let site = Site::new();
    let backend = site.backend().await;
    handed_off::who_does_not_know_what_an_earlier_attempt_reserved_has_one_fence_of_it(backend).await;
}

#[tokio::test]
async fn a_release_tells_that_somebody_waits_elsewhere() {
    let site = Site::new();
    let backends = (site.backend().await, site.backend().await);
    let is_marked = async || site.number(MARK_OF_WAITERS).await == 1;
    handed_off::a_release_tells_that_somebody_waits_elsewhere(backends, is_marked).await;
}
