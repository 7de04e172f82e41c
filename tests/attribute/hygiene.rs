//! Names: nothing that surrounds the function changes what the attribute means, and the other way round.
#![deny(warnings, clippy::pedantic)]

use crate::support::{is_held, on_memory};

/// Everything that generated code could name by accident means something else here.
mod shadowed {
    #![allow(dead_code, unreachable_pub, unused_macros, unused_imports)]

    pub struct Ok;
    pub struct Err;
    pub struct Some;
    pub struct None;
    pub struct Result;
    pub struct Option;
    pub struct String;
    pub struct Box;
    pub struct Section;
    pub struct Site;
    pub struct Source;
    pub struct Wait;
    pub struct Locks;
    pub trait ToString {}
    pub trait Clone {}
    pub trait Future {}
    pub mod core {}
    pub mod std {}
    pub mod alloc {}
    pub mod dlock {}
    macro_rules! format {
        () => {};
    }
    macro_rules! concat {
        () => {};
    }
    macro_rules! module_path {
        () => {};
    }
    macro_rules! pin {
        () => {};
    }
    pub(super) use {concat, format, module_path, pin};

    #[::dlock::distributed_lock(
        key = "shadowed_<key>", backend = "memory", wait = "1s", lease = "1s", on_lost = "continue",
        recheck = false, on_busy = ::core::result::Result::Ok(0), guard = held
    )]
    pub async fn template(
        key: u8,
        body: u8,
        section: u8,
        outcome: u8,
        output: u8,
        error: u8,
    ) -> ::core::result::Result<u8, ::dlock::Error> {
        held.check()?;
        ::core::result::Result::Ok(key + body + section + outcome + output + error)
    }

    #[::dlock::distributed_lock(key = { key }, locks = locks)]
    pub async fn expression(key: u8, locks: &::dlock::Locks) -> ::core::result::Result<bool, ::dlock::Error> {
        let _ = key;
        ::core::result::Result::Ok(super::is_held(locks, "4").await)
    }
}

/// The names of the generated locals are no names for the body.
#[dlock::distributed_lock(key = "outside", backend = "memory")]
async fn outside() -> Result<&'static str, dlock::Error> {
    const SECTION: &str = "section";
    fn body() -> &'static str {
        SECTION
    }
    Ok(body())
}

mod reexport {
    pub(crate) use ::dlock as locking;

    /// What a crate does that offers the attribute under its own name.
    macro_rules! locked {
        ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($parameter:ident: $type:ty),*) on $key:literal $body:block) => {
            $(#[$attribute])*
            #[$crate::hygiene::reexport::locking::distributed_lock(
                key = $key, backend = "memory", crate = $crate::hygiene::reexport::locking
            )]
            $visibility async fn $name($($parameter: $type),*) -> Result<u8, $crate::hygiene::reexport::locking::Error> $body
        };
    }
    pub(crate) use locked;
}

#[reexport::locking::distributed_lock(key = "path", backend = "memory", wait = "no", crate = crate::hygiene::reexport::locking)]
async fn through_a_path() -> Result<u8, dlock::Error> {
    Ok(1)
}

#[dlock::distributed_lock(key = "absolute", backend = "memory", crate = ::dlock)]
async fn through_the_crate() -> Result<u8, dlock::Error> {
    Ok(2)
}

reexport::locked! {
    /// Made by a macro.
    fn made(id: u8) on "made_<id>" {
        let next = id + 1;
        Ok(next)
    }
}

/// The template's literal comes from one macro, the parameter from the other.
macro_rules! outer {
    ($name:ident, $key:literal, $guard:ident => $body:expr) => {
        inner! { $name, $key, id, $guard => $body }
    };
}
macro_rules! inner {
    ($name:ident, $key:expr, $id:ident, $guard:ident => $body:expr) => {
        #[dlock::distributed_lock(key = $key, backend = "memory", guard = $guard)]
        async fn $name($id: u8) -> Result<u8, dlock::Error> {
            $guard.check()?;
            let shown: u8 = $id;
            Ok(shown + $body)
        }
    };
}
outer!(from_two_macros, "two_<id>", held => u8::from(held.check().is_ok()));

macro_rules! whole_item {
    ($item:item) => {
        #[dlock::distributed_lock(key = "item_<id>", backend = "memory")]
        $item
    };
}
whole_item! {
    async fn captured_item(id: u8) -> Result<u8, dlock::Error> {
        Ok(id)
    }
}

#[tokio::test]
async fn shadowed_names_do_not_matter() -> Result<(), dlock::Error> {
    on_memory(async |locks| {
        assert_eq!(shadowed::template(1, 2, 3, 4, 5, 6).await?, 21);
        assert!(shadowed::expression(4, &locks).await?);
        assert_eq!(outside().await?, "section");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_attribute_works_through_re_exports_and_in_macros() -> Result<(), dlock::Error> {
    on_memory(async |_| {
        assert_eq!(through_a_path().await? + through_the_crate().await?, 3);
        assert_eq!(made(1).await?, 2);
        assert_eq!(from_two_macros(3).await?, 4);
        assert_eq!(captured_item(5).await?, 5);
        Ok(())
    })
    .await
}
