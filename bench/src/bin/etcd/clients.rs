//! The clients that are measured beside each other.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use dlock_bench::measure::Pairs;
use dlock_core::{Locks, Wait};
use dlock_etcd::Etcd;
use etcd_client::{
    Client, Compare, CompareOp, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp,
};
use tokio::sync::Mutex;

/// The lease of every client: so long that nothing is renewed that is not part of a pair.
pub(crate) const LEASE: Duration = Duration::from_secs(3_600);

/// As long as what dlock writes into its keys.
const CONTENT: [u8; 96] = [b'x'; 96];

/// As long as the name of a claim.
const OWN: &str = "dlock-0123456789abcdef0123456789abcdef";

/// The age of a proof from which on a lease is kept alive with the next acquire: as with dlock.
const OLD: Duration = Duration::from_millis(1_875);

/// How many keys the bare client has leases for.
const TASKS: usize = 64;

/// What is measured.
pub(crate) async fn dlock(url: &str) -> Result<Locks> {
    let backend = Etcd::connect(url).await?;
    Ok(Locks::builder(backend).with_lease(LEASE).with_wait(Wait::Forever).build()?)
}

/// The bare client: no waiting, no clean-up, no local validity.
pub(crate) struct Bare {
    client: Client,
    /// A lease for each key.
    leases: HashMap<String, Mutex<Lease>>,
}

struct Lease {
    id: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    proven_at: Instant,
}

impl Bare {
    /// Connects, with a lease for each key.
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let mut client = Client::connect([url.trim_start_matches("etcd://")], None).await?;
        let mut leases = HashMap::new();
        for task in 0..TASKS {
            let id = client.lease_grant(i64::try_from(LEASE.as_secs())?, None).await?.id();
            let (keeper, answers) = client.lease_keep_alive(id).await?;
            leases.insert(
                format!("room_{task}"),
                Mutex::new(Lease { id, keeper, answers, proven_at: Instant::now() }),
            );
        }
        Ok(Self { client, leases })
    }

    /// Takes the lock: puts a key if its directory is empty. Otherwise it would be put behind the others.
    async fn acquire(&self, own: &str, directory: &str, lease: &mut Lease) -> Result<()> {
        let created = |key: &str| Compare::create_revision(key, CompareOp::Equal, 0);
        let all = || GetOptions::new().with_prefix();
        let first = all().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
        let last = all().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(2);
        let number = directory.trim_end_matches('/');
        let reads = [
            TxnOp::get(number, None),
            TxnOp::get(own, None),
            TxnOp::get(directory, Some(first)),
            TxnOp::get(directory, Some(last)),
        ];
        let put = || TxnOp::put(own, CONTENT, Some(PutOptions::new().with_lease(lease.id)));
        let behind = Txn::new().when([created(own), created(number)]).and_then([put()]);
        let txn = Txn::new()
            .when([created(directory).with_prefix(), created(number)])
            .and_then([put()])
            .or_else(std::iter::once(TxnOp::txn(behind)).chain(reads).collect::<Vec<_>>());
        let mut client = self.client.clone();
        let taken = if lease.proven_at.elapsed() > OLD {
            lease.proven_at = Instant::now();
            let (taken, ttl) = tokio::join!(client.txn(txn), async {
                lease.keeper.keep_alive().await?;
                Ok::<_, etcd_client::Error>(lease.answers.message().await?.map_or(0, |answer| answer.ttl()))
            });
            ensure!(ttl? > 0, "the lease has ended");
            taken?
        } else {
            client.txn(txn).await?
        };
        ensure!(taken.succeeded(), "the lock was taken");
        Ok(())
    }

    async fn release(&self, own: &str) -> Result<()> {
        let mut client = self.client.clone();
        client.txn(Txn::new().and_then([TxnOp::delete(own, None)])).await?;
        Ok(())
    }
}

impl Pairs for Bare {
    async fn pair(&self, key: &str) -> Result<()> {
        let mut lease = self.leases.get(key).context("no lease for this key")?.lock().await;
        let directory = format!("bare/{key}/");
        let own = format!("{directory}{OWN}");
        self.acquire(&own, &directory, &mut lease).await?;
        self.release(&own).await
    }
}
