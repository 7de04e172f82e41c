//! The layer before a real server of gRPC, asked by a real client.

use std::time::Duration;

use dlock_core::{Locks, Memory, Wait};
use dlock_tower::LockLayer;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::codegen::tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;

const LEASE: Duration = Duration::from_secs(3);

/// Serves health checks, each under the lock that its metadata name. Ends when the sender is dropped.
async fn serve(locks: Locks) -> (HealthClient<Channel>, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let layer = LockLayer::new(move |request: &http::Request<_>| {
        let tenant = request.headers().get("tenant")?.to_str().ok()?;
        Some(locks.lock(tenant).with_wait(Wait::No))
    });
    let server = Server::builder().layer(layer).add_service(health_reporter().1);
    let stopped = async { drop(stopped.await) };
    tokio::spawn(server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    (HealthClient::new(channel), stop)
}

async fn check(client: &mut HealthClient<Channel>, tenant: &'static str) -> Result<(), Status> {
    let mut request = Request::new(HealthCheckRequest::default());
    request.metadata_mut().insert("tenant", tenant.parse().unwrap());
    client.check(request).await.map(drop)
}

#[tokio::test]
async fn a_call_is_aborted_while_its_lock_is_held_and_served_afterwards() {
    let memory = Memory::new();
    let elsewhere = Locks::builder(memory.clone()).with_lease(LEASE).build().unwrap();
    let (mut client, _server) = serve(Locks::new(memory)).await;
    let guard = elsewhere.lock("acme").acquire().await.unwrap();

    let refused = check(&mut client, "acme").await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    let pause: u128 =
        refused.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
    assert!((1..=LEASE.as_millis()).contains(&pause), "{pause} ms");
    check(&mut client, "another").await.expect("another lock is free");

    guard.release().await.unwrap();
    check(&mut client, "acme").await.expect("the lock is free again");
    drop(
        elsewhere
            .lock("acme")
            .with_wait(Wait::No)
            .acquire()
            .await
            .expect("a call that was served left its lock"),
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_call_and_what_will_pass_have_other_codes() {
    let locks = Locks::new(Memory::new());
    let (mut client, _server) = serve(locks.clone()).await;
    assert_eq!(check(&mut client, "").await.unwrap_err().code(), Code::InvalidArgument);
    locks.shutdown(LEASE).await.unwrap();
    assert_eq!(check(&mut client, "acme").await.unwrap_err().code(), Code::Unavailable);
}
