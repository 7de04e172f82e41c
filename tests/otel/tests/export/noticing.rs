//! What is not exported is known, and what cannot be meant is a warning.

use crate::worker::Worker;

#[tokio::test]
async fn what_is_not_exported_is_known_and_one_warning_tells_of_a_mistake() {
    const ALL: &str = "Some((true, None)) Some((true, Some(true)))";
    const TRACES: &str = "Some((false, None)) Some((false, Some(true)))";
    const NOTHING: &str = "Some((false, None)) Some((false, Some(false)))";
    let endpoint = "http://127.0.0.1:1";
    for (set_up, variable, exported, warning) in [
        ("all", ("", ""), ALL, None),
        ("late", ("", ""), TRACES, Some("a meter provider was set after")),
        ("traces", ("", ""), TRACES, None),
        ("other", ("", ""), NOTHING, Some("OTEL_EXPORTER_OTLP_ENDPOINT is set")),
        // Meant to have none.
        ("other", ("OTEL_SDK_DISABLED", "true"), NOTHING, None),
        ("other", ("OTEL_EXPORTER_OTLP_ENDPOINT", ""), NOTHING, None),
    ] {
        let variables: Vec<_> = [variable].into_iter().filter(|(name, _)| !name.is_empty()).collect();
        let said = Worker::start(&["notice", set_up], endpoint, &variables).ends_well().await;
        let known: Vec<_> = said.iter().filter_map(|line| line.strip_prefix("exported: ")).collect();
        assert_eq!(known, [exported; 2], "{set_up} {variable:?}");
        let warned: Vec<_> = said.iter().filter_map(|line| line.strip_prefix("warned: ")).collect();
        assert_eq!(warned.len(), usize::from(warning.is_some()), "{set_up} {variable:?}: {warned:?}");
        assert!(warned.iter().zip(warning).all(|(line, start)| line.starts_with(start)), "{warned:?}");
    }
}
