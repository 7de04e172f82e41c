//! Parameters that are patterns, `#[cfg]`'d or named like keywords, and templates that name them.
#![deny(warnings, clippy::pedantic)]

use crate::support::{is_held, on_memory};
use dlock::{Error, Locks, distributed_lock};

struct Order {
    id: u64,
    lines: Vec<u8>,
    r#type: &'static str,
    parts: ((u8, u8), Sku),
}

struct Sku(&'static str);

fn order() -> Order {
    Order { id: 3, lines: vec![1], r#type: "express", parts: ((4, 5), Sku("s")) }
}

#[distributed_lock(key = "<a>:<c>", backend = "memory")]
async fn tuple((a, (_, c)): (u8, (u8, u8)), locks: &Locks) -> Result<bool, Error> {
    let _ = a;
    Ok(is_held(locks, "1:3").await)
}

#[distributed_lock(key = "order <id> <kind>", backend = "memory")]
async fn structure(Order { id, lines, r#type: kind, .. }: Order, locks: &Locks) -> Result<Vec<u8>, Error> {
    let key = format!("order {id} {kind}");
    assert!(is_held(locks, &key).await);
    Ok(lines)
}

#[distributed_lock(key = "<head>", backend = "memory")]
async fn slice([head, .., tail]: [u8; 4], &borrowed: &u8, locks: &Locks) -> Result<u8, Error> {
    assert!(is_held(locks, "1").await);
    Ok(head + tail + borrowed)
}

#[distributed_lock(key = "<whole>", backend = "memory")]
async fn bound_twice(whole @ 0..=u8::MAX: u8, locks: &Locks) -> Result<bool, Error> {
    let _ = whole;
    Ok(is_held(locks, "9").await)
}

#[distributed_lock(key = "<n>", backend = "memory")]
#[allow(clippy::toplevel_ref_arg, reason = "it is a pattern like others")]
async fn wild(_: u8, mut n: u8, _unused: String, ref by_reference: u8) -> Result<u8, Error> {
    n += 1;
    Ok(n + by_reference)
}

#[distributed_lock(key = "<type>", backend = "memory")]
async fn r#match(r#type: u8, locks: &Locks) -> Result<u8, Error> {
    assert!(is_held(locks, "6").await);
    Ok(r#type)
}

#[distributed_lock(key = "<order.type>/{order.parts.0.1}/<order.parts.1.0>", backend = "memory")]
async fn fields(order: &Order, locks: &Locks) -> Result<bool, Error> {
    let _ = order;
    Ok(is_held(locks, "express/5/s").await)
}

#[distributed_lock(key = "<present>", backend = "memory")]
async fn conditional(
    #[cfg(any())] absent: Missing,
    #[cfg(not(any()))] present: u8,
    #[allow(unused_variables)] unused: u8,
) -> Result<u8, Error> {
    #[cfg(any())]
    drop(absent);
    Ok(present)
}

#[distributed_lock(key = "<<{{<id>}}>> \"quoted\" \u{e9} %s {{}}", backend = "memory")]
async fn escaped(id: u8, locks: &Locks) -> Result<bool, Error> {
    Ok(is_held(locks, &format!("<{{{id}}}> \"quoted\" é %s {{}}")).await)
}

#[distributed_lock(key = r#"raw "<id>""#, backend = r"memory")]
async fn raw_strings(id: u8, locks: &Locks) -> Result<bool, Error> {
    Ok(is_held(locks, &format!("raw \"{id}\"")).await)
}

#[distributed_lock(key = { let sum = left + right; sum.to_string() + "!" }, backend = "memory")]
async fn computed(left: u8, right: u8, locks: &Locks) -> Result<bool, Error> {
    let key = format!("{}!", left + right);
    Ok(is_held(locks, &key).await)
}

#[distributed_lock(key = { look_up(name).await? }, backend = "memory")]
async fn looked_up(name: &str, locks: &Locks) -> Result<bool, Error> {
    Ok(is_held(locks, &name.to_uppercase()).await)
}

async fn look_up(name: &str) -> Result<String, Error> {
    tokio::task::yield_now().await;
    Ok(name.to_uppercase())
}

#[distributed_lock(key = "moved_<name>", backend = "memory")]
async fn moved(name: String) -> Result<Vec<u8>, Error> {
    Ok(name.into_bytes())
}

/// Documented, and with attributes of its own.
#[must_use = "to be seen"]
#[distributed_lock(key = "attributes", backend = "memory")]
#[allow(clippy::unused_async)]
#[allow(clippy::mixed_attributes_style, reason = "both styles are tested")]
async fn attributes() -> Result<u8, Error> {
    #![allow(unused_variables)]
    //! Also from the inside.
    let unused = 1;
    Ok(2)
}

#[tokio::test]
async fn a_placeholder_names_what_a_pattern_binds() -> Result<(), Error> {
    on_memory(async |locks| {
        assert!(tuple((1, (2, 3)), &locks).await?);
        assert_eq!(structure(order(), &locks).await?, [1]);
        assert_eq!(slice([1, 2, 3, 4], &5, &locks).await?, 10);
        assert!(bound_twice(9, &locks).await?);
        assert_eq!(wild(0, 1, String::new(), 1).await?, 3);
        assert_eq!(r#match(6, &locks).await?, 6);
        assert_eq!(conditional(8, 0).await?, 8);
        assert_eq!(moved("a".to_owned()).await?, b"a");
        assert_eq!(attributes().await?, 2);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_key_is_exactly_the_text_of_the_template() -> Result<(), Error> {
    on_memory(async |locks| {
        assert!(fields(&order(), &locks).await?);
        assert!(escaped(7, &locks).await?);
        assert!(raw_strings(7, &locks).await?);
        assert!(computed(3, 4, &locks).await?);
        assert!(looked_up("ann", &locks).await?);
        Ok(())
    })
    .await
}

// The key has the name in its decomposed spelling, the function in the composed one.
#[distributed_lock(key = "floor_<étage>", backend = "memory")]
async fn composed(étage: u8, locks: &Locks) -> Result<bool, Error> {
    Ok(is_held(locks, &format!("floor_{étage}")).await)
}

#[tokio::test]
async fn both_unicode_spellings_of_a_name_are_that_name() -> Result<(), Error> {
    on_memory(async |locks| {
        assert!(composed(7, &locks).await?);
        Ok(())
    })
    .await
}
