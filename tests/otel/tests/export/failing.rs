//! A collector that is dead, slow or wrongly configured changes no lock's outcome.

use tokio::net::TcpListener;

use crate::receiver::Receiver;
use crate::worker::tour;

/// What came of every lock.
fn outcomes(said: &[String]) -> Vec<&String> {
    let about_export = ["shown", "token", "not exported"];
    said.iter().filter(|line| !about_export.iter().any(|start| line.starts_with(start))).collect()
}

const SOON: (&str, &str) = ("OTEL_EXPORTER_OTLP_TIMEOUT", "300");

#[tokio::test]
async fn a_dead_or_slow_collector_changes_no_outcome() {
    let (_receiver, url) = Receiver::start().await;
    let usual = tour("7", &url, &[SOON]).await;
    assert!(usual.contains(&"shown: true".to_owned()), "{usual:?}");
    assert!(outcomes(&usual).len() > 15, "{usual:?}");

    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    // Takes connections, and never answers.
    let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow_url = format!("http://{}", slow.local_addr().unwrap());
    for url in [&dead, &slow_url] {
        let said = tour("7", url, &[SOON]).await;
        assert!(said.contains(&"shown: false".to_owned()), "{said:?}");
        assert_eq!(outcomes(&said), outcomes(&usual));
    }
}

#[tokio::test]
async fn senseless_variables_change_no_outcome() {
    let (_receiver, url) = Receiver::start().await;
    let usual = tour("7", &url, &[]).await;
    let senseless = [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_TRACES_SAMPLER", "some"),
    ];
    assert_eq!(outcomes(&tour("7", &url, &senseless).await), outcomes(&usual));
}
