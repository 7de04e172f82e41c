//! The programs of docs/recipes.md are those that are compiled here.

const PAGE: &str = include_str!("../../../docs/recipes.md");

#[test]
fn the_page_shows_the_programs_as_they_are() {
    let shown: Vec<&str> =
        PAGE.split("```rs\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    let compiled = [
        include_str!("../src/bin/axum_service.rs"),
        include_str!("../src/bin/actix_web_service.rs"),
        include_str!("../src/bin/tonic_service.rs"),
        include_str!("../src/bin/tokio_cron_scheduler_job.rs"),
        include_str!("../src/bin/apalis_job.rs"),
    ];
    assert_eq!(shown, compiled);
}

#[test]
fn the_page_names_the_versions_that_are_compiled() {
    let manifest = include_str!("../Cargo.toml");
    let toml = PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let lines: Vec<&str> = toml.flat_map(str::lines).filter(|line| line.contains('"')).collect();
    assert!(lines.len() > 5, "{lines:?}");
    for line in lines.iter().filter(|line| !line.starts_with("dlock") && !line.starts_with("tokio = ")) {
        assert!(manifest.contains(line), "{line}");
    }
}
