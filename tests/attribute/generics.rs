//! Generics, lifetimes, `impl Trait` and traits with `async fn`: the signature stays as it was written.
#![deny(warnings, clippy::pedantic)]

use crate::support::{is_held, on_memory};
use dlock::{Error, Locks, distributed_lock};
use std::fmt::{Debug, Display};

#[distributed_lock(key = "generic_<id>", backend = "memory")]
async fn generic<K, T, const N: usize>(id: K, values: [T; N], locks: &Locks) -> Result<([T; N], usize), Error>
where
    K: Display,
    T: Default + Debug,
{
    assert!(is_held(locks, &format!("generic_{id}")).await);
    Ok((values, N))
}

#[distributed_lock(key = "lifetime_<name>", backend = "memory")]
async fn longer<'a, 'b: 'a>(name: &'b str, other: &'a str) -> Result<&'a str, Error> {
    Ok(if name.len() >= other.len() { name } else { other })
}

#[distributed_lock(key = "elided", backend = "memory")]
async fn elided(names: &[String]) -> Result<std::slice::Iter<'_, String>, Error> {
    Ok(names.iter())
}

#[distributed_lock(key = "argument_<id>", backend = "memory")]
async fn impl_argument(
    id: impl Display + Clone,
    convert: impl Fn(u8) -> String,
    extra: &(dyn Fn(u8) -> u8 + Sync),
) -> Result<String, Error> {
    Ok(format!("{id}{}", convert(extra(1))))
}

#[distributed_lock(key = "return", backend = "memory")]
async fn impl_return(limit: u8) -> Result<impl Iterator<Item = u8> + Debug, Error> {
    if limit == 0 {
        return Ok(0..1);
    }
    Ok(0..limit)
}

#[distributed_lock(key = "nested", backend = "memory")]
async fn impl_return_nested(limit: u8) -> Result<(Option<impl Iterator<Item = u8>>, Box<impl Debug>), Error> {
    Ok((Some(0..limit), Box::new(limit)))
}

#[distributed_lock(key = "boxed", backend = "memory")]
async fn impl_return_in_a_bound(limit: u8) -> Result<Box<dyn Iterator<Item = impl Display> + Send>, Error> {
    Ok(Box::new(0..limit))
}

#[distributed_lock(key = "const_<N>", backend = "memory")]
async fn const_parameter<const N: usize>(locks: &Locks) -> Result<bool, Error> {
    Ok(is_held(locks, &format!("const_{N}")).await)
}

#[allow(clippy::manual_async_fn, reason = "it is what is tested")]
#[distributed_lock(key = "future_<id>", backend = "memory")]
fn returns_a_future(id: u8, locks: &Locks) -> impl Future<Output = Result<bool, Error>> + Send {
    async move {
        if id == 0 {
            return Ok(false);
        }
        Ok(is_held(locks, "future_7").await)
    }
}

#[distributed_lock(key = "opaque", backend = "memory", on_busy = Ok(1))]
async fn impl_return_on_busy() -> Result<impl Display, Error> {
    Ok(2)
}

type Answer<T> = Result<T, Error>;

#[distributed_lock(key = "alias", backend = "memory")]
async fn alias() -> Answer<u8> {
    Ok(1)
}

struct Store<'a, T, const N: usize> {
    items: &'a [T; N],
}

impl<'a, T: PartialEq + Sync, const N: usize> Store<'a, T, N> {
    #[distributed_lock(key = { format!("store_{N}") }, backend = "memory")]
    async fn find<N2: Fn(&T) -> bool>(&self, wanted: N2) -> Result<Option<&'a T>, Error> {
        const NONE: Option<&u8> = None;
        assert!(NONE.is_none());
        Ok(self.items.iter().find(|item| wanted(item)))
    }
}

trait Stock: Sync {
    const NAME: &'static str;

    fn taken(&self, n: u32) -> impl Future<Output = Result<u32, Error>> + Send;

    #[distributed_lock(key = { Self::NAME }, backend = "memory")]
    async fn put_back(&self, locks: &Locks) -> Result<bool, Error> {
        Ok(is_held(locks, Self::NAME).await)
    }

    #[allow(async_fn_in_trait, reason = "the default method is what is tested")]
    async fn count(&self) -> Result<u32, Error>;
}

struct Shelf(u32);

impl Stock for Shelf {
    const NAME: &'static str = "shelf";

    #[distributed_lock(key = "stock_<self.0>", backend = "memory")]
    async fn taken(&self, n: u32) -> Result<u32, Error> {
        Ok(self.0 - n)
    }

    #[distributed_lock(key = "stock_<self.0>", backend = "memory")]
    async fn count(&self) -> Result<u32, Error> {
        Ok(self.0)
    }
}

#[tokio::test]
async fn generic_functions_run_under_a_key_of_their_arguments() -> Result<(), Error> {
    on_memory(async |locks| {
        assert_eq!(generic("x", [1, 2, 3], &locks).await?, ([1, 2, 3], 3));
        assert_eq!(generic(4.5, [(); 0], &locks).await?, ([], 0));
        assert_eq!(longer("abc", "de").await?, "abc");
        assert_eq!(elided(&["a".to_owned()]).await?.len(), 1);
        assert_eq!(impl_argument(7, |n| n.to_string(), &|n| n + 1).await?, "72");
        assert_eq!(alias().await?, 1);
        assert_eq!(Store { items: &[1, 2, 3] }.find(|n| *n > 1).await?, Some(&2));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_opaque_return_type_stays_opaque() -> Result<(), Error> {
    on_memory(async |_| {
        assert_eq!(impl_return(3).await?.sum::<u8>(), 3);
        assert_eq!(impl_return(0).await?.count(), 1);
        let (numbers, shown) = impl_return_nested(3).await?;
        assert_eq!((numbers.map(Iterator::count), format!("{shown:?}")), (Some(3), "3".to_owned()));
        assert_eq!(impl_return_on_busy().await?.to_string(), "2");
        assert_eq!(impl_return_in_a_bound(3).await?.map(|n| n.to_string()).collect::<String>(), "012");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_const_parameter_is_part_of_the_key() -> Result<(), Error> {
    on_memory(async |locks| {
        assert!(const_parameter::<7>(&locks).await?);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_function_that_returns_a_future_of_one_async_block_is_locked() -> Result<(), Error> {
    on_memory(async |locks| {
        let call = returns_a_future(7, &locks);
        assert!(!is_held(&locks, "future_7").await, "nothing happens before it is polled");
        assert!(call.await?);
        assert!(!returns_a_future(0, &locks).await?);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn trait_methods_lock_in_the_impl_and_as_defaults() -> Result<(), Error> {
    on_memory(async |locks| {
        assert_eq!(Shelf(5).taken(2).await?, 3);
        assert_eq!(Shelf(5).count().await?, 5);
        assert!(Shelf(5).put_back(&locks).await?);
        Ok(())
    })
    .await
}
