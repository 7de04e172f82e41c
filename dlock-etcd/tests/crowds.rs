//! Many waiters on one key, and how long they take.

use std::time::{Duration, Instant};

use dlock_core::backend::{Attempt, Backend, Claim, Mode, Renewed};
use dlock_etcd::{Etcd, EtcdClaim};
use dlock_rig::servers::etcd::{EtcdAdministrator, EtcdServer};
use dlock_testkit::claim_request;

const LONG: Duration = Duration::from_secs(600);

async fn claim_as(etcd: &Etcd, key: &str, lease: Duration, waits: bool, mode: Mode) -> EtcdClaim {
    let mut request = claim_request(key, lease, waits).await.unwrap();
    request.mode = mode;
    etcd.claim(request)
}

async fn is_granted(claim: &mut EtcdClaim) -> bool {
    matches!(claim.attempt().await.unwrap(), Attempt::Granted(_))
}

fn places(admin: &EtcdAdministrator, key: &str) -> usize {
    admin.entries(&format!("dlock/{key}/")).len()
}

const fn permits(of: u32, take: u32) -> Mode {
    Mode::Permits { of, take }
}

/// Has so many waiters stand on one key, of so many clients.
async fn crowd(count: usize, clients: usize, mode: Mode) {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let whole = mode.permits().map_or(mode, |of| permits(of, of));
    let mut holder = claim_as(&etcd, "room", LONG, true, whole).await;
    assert!(is_granted(&mut holder).await);
    assert_eq!(holder.renew().await.unwrap(), Renewed::Extended);
    let mut each = Vec::new();
    for _ in 0..clients {
        each.push(Etcd::connect(&server.url()).await.unwrap());
    }
    let begun = Instant::now();
    let waiters: Vec<_> = (0..count)
        .map(|number| {
            let etcd = each[number % clients].clone();
            tokio::spawn(async move {
                let mut claim = claim_as(&etcd, "room", Duration::from_secs(30), true, mode).await;
                let (mut requeued, mut attempts) = (0_u32, 0_u32);
                loop {
                    attempts += 1;
                    match claim.attempt().await {
                        Ok(Attempt::Granted(_)) => break,
                        Ok(Attempt::Busy(busy)) => {
                            requeued += u32::from(busy.requeued);
                            let _ = tokio::time::timeout(Duration::from_secs(5), claim.changed()).await;
                        }
                        Err(failure) => {
                            println!("{failure}");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    }
                }
                let _ = claim.withdraw().await;
                (requeued, attempts)
            })
        })
        .collect();
    let mut last = 0;
    while places(&server.admin(), "room") <= count {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = places(&server.admin(), "room");
        println!("{:?}: {now} stand", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(600), "{now} stand");
        last = last.max(now);
    }
    let stand = begun.elapsed();
    let released = Instant::now();
    let _ = holder.withdraw().await.unwrap();
    let (mut requeued, mut attempts) = (0, 0);
    for waiter in waiters {
        let (lost, made) = waiter.await.unwrap();
        requeued += lost;
        attempts += made;
    }
    println!(
        "{count} {mode:?} of {clients} clients: stand after {stand:?}, served in {:?}, {requeued} requeued, {attempts} attempts",
        released.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_permits() {
    crowd(500, 1, permits(4, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_exclusive() {
    crowd(2_000, 1, Mode::Exclusive).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_permits_of_many_clients() {
    crowd(500, 50, permits(4, 1)).await;
}
