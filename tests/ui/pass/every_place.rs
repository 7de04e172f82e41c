#![deny(warnings)]

use dlock::{Error, Locks, Memory, distributed_lock};
use std::future::Future;
use std::pin::Pin;

/// Visible anywhere.
#[distributed_lock(key = "public")]
#[must_use = "it says how many"]
#[inline]
pub async fn public(n: u64) -> Result<u64, Error> {
    Ok(n)
}

/// # Safety
///
/// Only for odd numbers.
#[distributed_lock(key = "unsafe_<n>")]
pub async unsafe fn only_for_odd(n: u64) -> Result<u64, Error> {
    #![allow(unused_variables)]
    let unused = 1;
    // SAFETY: the caller promised it.
    unsafe { still_odd(n) }
}

unsafe fn still_odd(n: u64) -> Result<u64, Error> {
    Ok(n)
}

mod inner {
    use super::*;

    #[distributed_lock(key = "restricted")]
    pub(in crate::inner) async fn restricted() -> Result<u64, Error> {
        Ok(1)
    }

    #[distributed_lock(key = "crate")]
    pub(crate) async fn in_the_crate() -> Result<u64, Error> {
        restricted().await
    }
}

#[cfg_attr(all(), distributed_lock(key = "conditional"))]
async fn conditional() -> Result<u64, Error> {
    Ok(1)
}

#[distributed_lock(key = "boxed_<n>")]
fn boxed(n: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>> {
    Box::pin(async move { if n == 0 { Ok(0) } else { Ok(1 + boxed(n - 1).await?) } })
}

#[distributed_lock(key = "local")]
async fn with_functions_inside() -> Result<u64, Error> {
    #[distributed_lock(key = "local_<n>")]
    async fn local(n: u64) -> Result<u64, Error> {
        #[distributed_lock(key = "deeper_<n>")]
        async fn deeper(n: u64) -> Result<u64, Error> {
            Ok(n)
        }
        struct Local;
        impl Local {
            #[distributed_lock(key = "method")]
            async fn method(self) -> Result<u64, Error> {
                Ok(1)
            }
        }
        Ok(deeper(n).await? + Local.method().await?)
    }
    local(1).await
}

#[distributed_lock(key = "main", locks = Locks::new(Memory::new()))]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    dlock::register("memory", Locks::new(Memory::new()))?;
    assert_eq!(with_functions_inside().await?, 2);
    assert_eq!(public(3).await? + inner::in_the_crate().await? + conditional().await?, 5);
    assert_eq!(boxed(4).await?, 4);
    // SAFETY: it is odd.
    assert_eq!(unsafe { only_for_odd(5) }.await?, 5);
    Ok(())
}
