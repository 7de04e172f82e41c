//! Serves one call at a time for each tenant, over all replicas.

use std::time::Duration;

use dlock::Wait;
use dlock_tower::LockLayer;
use tonic::transport::Server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backends = dlock::init().await?; // connects to what DLOCK_URL names
    let locks = dlock::registered("default")?;
    let one_at_a_time = LockLayer::new(move |call: &http::Request<_>| {
        let tenant = call.headers().get("tenant")?.to_str().ok()?; // `None`: the call needs no lock
        Some(locks.lock(format!("tenant_{tenant}")).with_wait(Wait::No))
    });
    // In place of the health checks stands your own service, as tonic generates it.
    let (_reporter, service) = tonic_health::server::health_reporter();
    let stopped = async { _ = tokio::signal::ctrl_c().await };
    Server::builder()
        .layer(one_at_a_time)
        .add_service(service)
        .serve_with_shutdown("127.0.0.1:50051".parse()?, stopped)
        .await?;
    if let Err(late) = backends.shutdown(Duration::from_secs(5)).await {
        eprintln!("{late}"); // an outage: what is left ends with its lease
    }
    Ok(())
}
