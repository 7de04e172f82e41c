//! The attribute over several keys, in segments, and with requirements.

use std::cell::Cell;
use std::sync::Mutex;

use dlock::{Error, ErrorKind, Held, Locks, Memory, distributed_lock};

#[distributed_lock(keys = ["account_<from>", "account_<to>"], wait = "no", guard = held)]
async fn transfer(from: u32, to: u32, seen: &mut Vec<Held>) -> Result<u32, Error> {
    seen.push(held);
    Ok(from + to)
}

#[distributed_lock(keys = { ids.iter().map(|id| format!("room_{id}")) }, guard = held)]
async fn book(ids: &[u32]) -> Result<Vec<String>, Error> {
    Ok(held.fences().map(|(key, _)| key.to_owned()).collect())
}

fn memory() -> (Memory, Locks) {
    let memory = Memory::new();
    (memory.clone(), Locks::new(memory))
}

#[tokio::test]
async fn all_keys_are_held_while_the_body_runs() {
    let (memory, locks) = memory();
    let mut seen = Vec::new();
    let sum = dlock::with_backend("m", locks.clone(), transfer(9, 4, &mut seen)).await.unwrap();
    assert_eq!((sum, memory.held()), (13, 0));
    assert_eq!(seen[0].fences().map(|(key, _)| key).collect::<Vec<_>>(), ["account_4", "account_9"]);
    let other = locks.lock("account_4").acquire().await.unwrap();
    let error = dlock::with_backend("m", locks.clone(), transfer(9, 4, &mut seen)).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("account_4")));
    assert_eq!(seen.len(), 1, "the body did not run");
    other.release().await.unwrap();
}

#[tokio::test]
async fn the_same_key_twice_is_one() {
    let (_, locks) = memory();
    let mut seen = Vec::new();
    dlock::with_backend("m", locks, transfer(4, 4, &mut seen)).await.unwrap();
    assert_eq!(seen[0].fences().count(), 1);
    assert!(seen[0].fence().is_some(), "there is only one");
}

#[tokio::test]
async fn an_expression_gives_any_number_of_keys_but_none() {
    let (_, locks) = memory();
    let keys = dlock::with_backend("m", locks.clone(), book(&[3, 1, 2])).await.unwrap();
    assert_eq!(keys, ["room_1", "room_2", "room_3"]);
    let error = dlock::with_backend("m", locks, book(&[])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

struct Shop {
    locks: Locks,
    stock: [Mutex<u32>; 4],
}

impl Shop {
    #[distributed_lock(key = "stock_<sku>", segments = 4, locks = self.locks, guard = segment)]
    async fn sell(&self, sku: &str, names: &mut Vec<String>, name: String) -> Result<u32, Error> {
        let left = &self.stock[segment.number() as usize];
        let seen = *left.lock().unwrap();
        tokio::task::yield_now().await;
        *left.lock().unwrap() = seen.checked_sub(1).ok_or_else(|| segment.exhausted())?;
        names.push(name.clone());
        assert!(segment.held().key().is_some_and(|key| key.starts_with(&format!("stock_{sku}#"))));
        Ok(segment.number())
    }
}

#[tokio::test]
async fn a_body_in_segments_runs_until_one_has_something_left() {
    let (memory, locks) = memory();
    let shop = Shop { locks, stock: [3, 0, 0, 1].map(Mutex::new) };
    let mut names = Vec::new();
    let mut numbers = Vec::new();
    for name in ["a", "b", "c", "d"] {
        numbers.push(shop.sell("x", &mut names, name.to_owned()).await.unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 0, 0, 3]);
    assert_eq!(names, ["a", "b", "c", "d"], "nothing of the bodies that found nothing");
    let error = shop.sell("x", &mut names, "e".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert_eq!(memory.held(), 0);
}

#[distributed_lock(key = "job", segments = 2, wait = "no", on_busy = Ok(text))]
async fn limited(text: String) -> Result<String, Error> {
    Ok(format!("{text} done"))
}

#[tokio::test]
async fn when_all_segments_are_busy_on_busy_is_returned() {
    let (_, locks) = memory();
    let all = locks.lock_all(["job#0", "job#1"]).acquire().await.unwrap();
    let busy = dlock::with_backend("m", locks.clone(), limited("a".to_owned())).await.unwrap();
    all.release().await.unwrap();
    let free = dlock::with_backend("m", locks, limited("b".to_owned())).await.unwrap();
    assert_eq!((busy.as_str(), free.as_str()), ("a", "b done"));
}

#[distributed_lock(key = "job", wait = "no", on_busy = |error| Ok(format!("{text}: {:?}", error.kind())))]
async fn told(text: &str) -> Result<String, Error> {
    Ok(format!("{text} done"))
}

#[distributed_lock(key = "job", segments = 1, wait = "no", on_busy = |error: Error| Err(error))]
async fn told_of_a_segment() -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
async fn on_busy_is_shown_the_error() {
    let (_, locks) = memory();
    let held = locks.lock_all(["job", "job#0"]).acquire().await.unwrap();
    dlock::with_backend("m", locks.clone(), async {
        assert_eq!(told("a").await.unwrap(), format!("a: {:?}", ErrorKind::Busy));
        assert_eq!(told_of_a_segment().await.unwrap_err().kind(), ErrorKind::Busy);
        held.release().await.unwrap();
        assert_eq!(told("b").await.unwrap(), "b done");
        told_of_a_segment().await.unwrap();
    })
    .await;
}

#[distributed_lock(key = "job", requires = "durable")]
async fn durable() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "job", requires = ["fencing", "notified"])]
async fn fenced() -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
async fn a_backend_that_lacks_a_guarantee_is_refused_before_anything_is_asked() {
    let (memory, locks) = memory();
    dlock::with_backend("m", locks.clone(), fenced()).await.unwrap();
    memory.faults().set_unavailable(true);
    let error = dlock::with_backend("m", locks, durable()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("`durable`"), "{error}");
}

fn is_send<T: Send>(_: &T) {}

#[distributed_lock(key = "cell", segments = 2)]
async fn count(cell: Cell<u32>, (left, mut right): (Cell<u32>, u32)) -> Result<u32, Error> {
    cell.set(cell.get() + 1);
    tokio::task::yield_now().await;
    right += left.get();
    Ok(cell.get() + right)
}

#[tokio::test]
async fn an_argument_of_a_segmented_function_need_not_be_sync() {
    let (_, locks) = memory();
    let counted = tokio::spawn(dlock::with_backend("m", locks, count(Cell::new(1), (Cell::new(2), 3))));
    assert_eq!(counted.await.unwrap().unwrap(), 7);
}

#[tokio::test]
async fn the_futures_can_be_sent() {
    let (_, locks) = memory();
    let shop = Shop { locks, stock: [1, 1, 1, 1].map(Mutex::new) };
    let mut names = Vec::new();
    is_send(&shop.sell("x", &mut names, String::new()));
    is_send(&book(&[1]));
}
