//! `#[async_trait]` methods, and functions that return their future in a box.
#![deny(warnings, clippy::pedantic)]

use crate::support::{is_held, on_memory};
use async_trait::async_trait;
use dlock::{Error, Locks, distributed_lock};
use std::pin::Pin;
use std::sync::Arc;

#[async_trait]
trait Desk: Send + Sync {
    async fn book(&self, id: u64, who: &str) -> Result<String, Error>;

    async fn rename(&mut self, name: String) -> Result<&mut String, Error>;

    async fn close(self: Arc<Self>, _: u8, mut steps: Vec<u8>) -> Result<Vec<u8>, Error>;

    async fn generic<T: ToString + Send + 'static>(
        &self,
        value: T,
        (a, b): (u8, u8),
    ) -> Result<String, Error>
    where
        Self: Sized;

    #[distributed_lock(key = "default_<n>", backend = "memory", on_busy = Ok(n))]
    async fn default_method(&self, n: u8) -> Result<u8, Error> {
        Ok(self.locks().backend().len().try_into().unwrap_or(n))
    }

    fn locks(&self) -> &Locks;
}

struct Front {
    name: String,
    locks: Locks,
}

#[async_trait]
impl Desk for Front {
    #[distributed_lock(key = "book_<self.name>_<id>", backend = "memory", guard = held)]
    async fn book(&self, id: u64, who: &str) -> Result<String, Error> {
        held.check()?;
        if who.is_empty() {
            return Ok("nobody".to_owned());
        }
        assert!(is_held(&self.locks, &format!("book_{}_{id}", self.name)).await);
        Ok(format!("{who}@{}", self.name))
    }

    #[distributed_lock(key = "rename_<self.name>", locks = self.locks)]
    async fn rename(&mut self, name: String) -> Result<&mut String, Error> {
        let key = format!("rename_{}", self.name);
        assert!(is_held(&self.locks, &key).await);
        self.name = name;
        Ok(&mut self.name)
    }

    #[distributed_lock(key = "close", backend = "memory")]
    async fn close(self: Arc<Self>, _: u8, mut steps: Vec<u8>) -> Result<Vec<u8>, Error> {
        assert!(is_held(&self.locks, "close").await);
        steps.push(1);
        Ok(steps)
    }

    #[distributed_lock(key = { format!("generic {}", value.to_string()) }, backend = "memory")]
    async fn generic<T: ToString + Send + 'static>(
        &self,
        value: T,
        (a, b): (u8, u8),
    ) -> Result<String, Error> {
        assert!(is_held(&self.locks, "generic 9").await);
        Ok(format!("{}{a}{b}", value.to_string()))
    }

    fn locks(&self) -> &Locks {
        &self.locks
    }
}

#[async_trait(?Send)]
trait Local {
    async fn single_threaded(&self) -> Result<u8, Error>;
}

#[async_trait(?Send)]
impl Local for Front {
    #[distributed_lock(key = "local", backend = "memory")]
    async fn single_threaded(&self) -> Result<u8, Error> {
        let not_send = std::rc::Rc::new(4);
        tokio::task::yield_now().await;
        Ok(*not_send)
    }
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A fresh key for each level, so that each takes a lock of its own.
#[distributed_lock(key = "factorial_<n>", backend = "memory")]
fn factorial(n: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>> {
    Box::pin(async move { if n == 0 { Ok(1) } else { Ok(n * factorial(n - 1).await?) } })
}

#[distributed_lock(key = "boxed_<name>", backend = "memory")]
fn boxed<'a>(name: &'a str, locks: &'a Locks) -> BoxFuture<'a, Result<&'a str, Error>> {
    ::std::boxed::Box::pin(async move {
        assert!(is_held(locks, &format!("boxed_{name}")).await);
        Ok(name)
    })
}

#[tokio::test]
async fn async_trait_methods_run_locked() -> Result<(), Error> {
    on_memory(async |locks| {
        let mut desk = Front { name: "a".to_owned(), locks: locks.clone() };
        assert_eq!(desk.book(7, "ann").await?, "ann@a");
        assert_eq!(desk.book(7, "").await?, "nobody");
        assert_eq!(desk.rename("b".to_owned()).await?, "b");
        assert_eq!(desk.generic(9, (1, 2)).await?, "912");
        assert_eq!(desk.default_method(1).await?, 6);
        assert_eq!(desk.single_threaded().await?, 4);
        assert_eq!(Arc::new(desk).close(0, vec![0]).await?, [0, 1]);

        let desk: Box<dyn DeskObject> = Box::new(Front { name: "c".to_owned(), locks });
        assert_eq!(desk.by_object().await?, 1);
        Ok(())
    })
    .await
}

#[async_trait]
trait DeskObject: Send + Sync {
    async fn by_object(&self) -> Result<u8, Error>;
}

#[async_trait]
impl DeskObject for Front {
    #[distributed_lock(key = "object", locks = self.locks, wait = "no")]
    async fn by_object(&self) -> Result<u8, Error> {
        Ok(u8::from(is_held(&self.locks, "object").await))
    }
}

#[tokio::test]
async fn a_function_that_boxes_its_future_can_be_locked_and_call_itself() -> Result<(), Error> {
    on_memory(async |locks| {
        assert_eq!(tokio::task::unconstrained(factorial(5)).await?, 120);
        assert_eq!(boxed("x", &locks).await?, "x");
        Ok(())
    })
    .await
}
