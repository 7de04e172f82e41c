//! A service of axum, in two replicas on loopback.
#![cfg(feature = "axum")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::routing::{get, post};
use dlock_core::{Locks, Memory};
use dlock_tower::{LockLayer, Locked};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Starts one, and returns where it listens.
async fn replica(memory: &Memory, stock: &Arc<AtomicU32>) -> String {
    let locks = Locks::new(memory.clone());
    let layer = LockLayer::new(move |request: &Request| {
        let item = request.uri().path().strip_prefix("/sales/")?;
        Some(locks.lock(format!("item_{item}")))
    });
    let stock = Arc::clone(stock);
    let sell = async move |Locked(held): Locked| {
        let left = stock.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        stock.store(left + 1, Ordering::SeqCst);
        held.fence().unwrap().to_string()
    };
    let app = Router::new()
        .route("/sales/{item}", post(sell))
        .route("/unlocked", get(async |_: Locked| ""))
        .route("/health", get(async |locked: Option<Locked>| locked.is_none().to_string()))
        .layer(layer)
        .route("/bare", get(async |_: Locked| ""));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_sell_one_after_the_other_with_fences_that_grow() {
    let (memory, sold) = (Memory::new(), Arc::new(AtomicU32::new(0)));
    let replicas = [replica(&memory, &sold).await, replica(&memory, &sold).await];
    let client = reqwest::Client::new();
    let mut sales = JoinSet::new();
    for number in 0..60 {
        let request = client.post(format!("{}/sales/chair", replicas[number % 2]));
        sales.spawn(async move { request.send().await.unwrap().error_for_status().unwrap().text().await });
    }
    let mut fences: Vec<u64> =
        sales.join_all().await.into_iter().map(|fence| fence.unwrap().parse().unwrap()).collect();
    assert_eq!(sold.load(Ordering::SeqCst), 60, "no sale was lost");
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 60);
    let health = client.get(format!("{}/health", replicas[0])).send().await.unwrap();
    assert_eq!(health.text().await.unwrap(), "true", "it needs no lock");
    for path in ["bare", "unlocked"] {
        let response = client.get(format!("{}/{path}", replicas[0])).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 500);
        let why = response.text().await.unwrap();
        assert!(why.contains("no `LockLayer`, or the layer named no lock"), "{path}: {why}");
    }
}
