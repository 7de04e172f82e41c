//! The pages name everything that there is.

const TROUBLESHOOTING: &str = include_str!("../docs/troubleshooting.md");
const ATTRIBUTE: &str = include_str!("../src/macro.md");
const KINDS: &str = include_str!("../dlock-core/src/failure.rs");
const OPTIONS: &str = include_str!("../dlock-macros/src/args.rs");

/// What begins the rows of the page's tables.
fn rows(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

#[test]
fn every_kind_of_error_has_a_row_in_troubleshooting_md() {
    let (_, kinds) = KINDS.split_once("pub enum ErrorKind {\n").expect("the kinds are there");
    let (kinds, _) = kinds.split_once("\n}").expect("they end");
    let mut kinds: Vec<&str> = kinds
        .lines()
        .filter_map(|line| line.trim().strip_suffix(',').filter(|name| name.chars().all(char::is_alphabetic)))
        .collect();
    let mut rows = rows(TROUBLESHOOTING);
    assert!(kinds.len() > 10, "{kinds:?}");
    kinds.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, kinds);
}

#[test]
fn every_option_of_the_attribute_has_a_row_in_its_reference() {
    let (_, options) = OPTIONS.split_once("const OPTIONS: ").expect("the options are there");
    let (options, _) = options.split_once("];").expect("they end");
    let mut options: Vec<&str> =
        options.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next()).collect();
    let mut rows = rows(ATTRIBUTE);
    assert!(options.len() > 10, "{options:?}");
    options.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, options);
}
