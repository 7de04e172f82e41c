//! Other clients that do what they please with the nodes of locks, and proxies that repeat what servers answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dlock_core::Locks;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use tokio::task::JoinSet;
use zookeeper::{Acls, Client, CreateMode};

use crate::support::{LONG, Proxied, lock_nodes, locks, soon, until};

const ROOMS: usize = 2;

/// Goes through critical sections on all rooms, by several tasks of each client. An acquire may fail in between.
async fn sections(clients: &[Locks], each: usize) {
    let inside: Arc<[AtomicU32; ROOMS]> = Arc::default();
    let mut tasks = JoinSet::new();
    for (number, locks) in clients.iter().cycle().take(clients.len() * 4).enumerate() {
        let (locks, inside) = (locks.clone(), Arc::clone(&inside));
        tasks.spawn(async move {
            let mut done = 0;
            while done < each {
                let room = (number + done) % ROOMS;
                let lock = locks.lock(format!("room_{room}")).with_wait(LONG);
                let Ok(guard) = lock.acquire().await else { continue };
                assert_eq!(inside[room].fetch_add(1, Ordering::SeqCst), 0, "two holders");
                tokio::task::yield_now().await;
                inside[room].fetch_sub(1, Ordering::SeqCst);
                // Where a connection was lost the outcome may be unknown.
                drop(guard.release().await);
                done += 1;
            }
        });
    }
    soon("all sections", async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await;
}

/// Writes to the nodes of locks, makes children of its own and deletes them, until `stop` is set.
async fn meddle(client: Client, stop: Arc<AtomicBool>) -> u32 {
    const CHILDREN: [&str; 6] = ["lock", "-lock-", "x-lock-1", "notes", "a-lock-99999999999", "ünï__lock__"];
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let (mut turn, mut done) = (0, 0);
    while !stop.load(Ordering::SeqCst) {
        turn += 1;
        let room = format!("/dlock/room_{}", turn % ROOMS);
        let Ok(children) = client.list_children(&room).await else { continue };
        let path = |child: &str| format!("{room}/{child}");
        let (mut line, others): (Vec<_>, Vec<_>) =
            children.iter().partition(|child| child.starts_with("_c_"));
        line.sort_by_key(|child| child.rsplit('-').next());
        let mut count = |succeeded: bool| done += u32::from(succeeded);
        match turn / ROOMS % 3 {
            0 => {
                for child in line {
                    count(client.set_data(&path(child), &[b'x'; 5_000], None).await.is_ok());
                }
            }
            1 => {
                for child in CHILDREN {
                    count(client.create(&path(child), b"", &persistent).await.is_ok());
                }
            }
            _ => {
                for child in others {
                    count(client.delete(&path(child), None).await.is_ok());
                }
            }
        }
    }
    done
}

#[tokio::test]
async fn what_other_clients_do_to_the_nodes_of_locks_lets_nobody_in_twice() {
    let server = ZooKeeperServer::start().unwrap();
    let clients = [locks(&server, LONG).await, locks(&server, LONG).await];
    let meddler = Client::connect(&server.address().to_string()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let meddling = tokio::spawn(meddle(meddler, Arc::clone(&stop)));
    sections(&clients, 50).await;
    stop.store(true, Ordering::SeqCst);
    assert!(meddling.await.unwrap() > 0, "nobody meddled");
    assert!(clients.iter().all(|locks| locks.stats().lost == 0));
    until("the nodes to go", || lock_nodes(server.admin()) == 0).await;
}

#[tokio::test]
async fn a_reply_that_arrives_twice_costs_a_connection_and_lets_nobody_in_twice() {
    let on = Proxied::start();
    let clients = [on.locks(LONG).await, on.locks(LONG).await];
    sections(&clients, 2).await;
    for name in ["CREATE", "GETCHILDREN", "GETDATA", "EXISTS", "DELETE"] {
        let connections = on.proxy.traffic().connections;
        on.proxy.repeat_reply(3, name);
        sections(&clients, 10).await;
        // What is looked at by those who wait only may not be asked for so often.
        let again = on.proxy.traffic().connections > connections;
        assert!(again || !matches!(name, "CREATE" | "DELETE"), "the reply to {name} was not repeated");
    }
    until("the nodes to go", || lock_nodes(on.server.admin()) == 0).await;
}
