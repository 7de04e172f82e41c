//! The same in segments, and every form of `on_busy`.
#![deny(warnings)]
#![allow(dead_code)]
use dlock::{Error, Locks, distributed_lock};
use std::cell::Cell;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

struct S<T> {
    locks: Locks,
    value: T,
    id: u64,
}
impl<T: Display + Send + Sync> S<T> {
    #[distributed_lock(key = "s_<self.id>_<self.value>", locks = self.locks, segments = 3)]
    async fn arc(self: Arc<Self>) -> Result<u64, Error> {
        Ok(self.id)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks, segments = 3)]
    async fn pin(self: Pin<&mut Self>) -> Result<u64, Error> {
        Ok(self.id)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks, segments = 3)]
    async fn boxed(self: Box<Self>) -> Result<u64, Error> {
        Ok(self.id)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks, segments = 3)]
    async fn by_ref(&self, by: &str) -> Result<&T, Error> {
        let _ = by;
        Ok(&self.value)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks, segments = 3)]
    async fn by_mut(&mut self, by: u64) -> Result<u64, Error> {
        self.id += by;
        Ok(self.id)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks, segments = 3)]
    async fn by_value(mut self) -> Result<u64, Error> {
        self.id += 1;
        Ok(self.id)
    }
    #[distributed_lock(key = "s_<self.id>_{N}", locks = self.locks, segments = 2)]
    async fn consts<const N: usize, U>(&self, _of: [U; N]) -> Result<usize, Error>
    where
        U: Debug + Send,
    {
        Ok(N)
    }
}
#[distributed_lock(key = "a_<a>_<b>_<c>_<d>_<e>", segments = 3)]
async fn patterns_in_segments(
    (a, (b, _)): (u8, (u8, u8)),
    [c, .., d]: [u8; 5],
    P { x: e, .. }: P,
    &f: &u8,
    W(ref g, mut h): W,
    (): (),
    _: u8,
    _unused: String,
) -> Result<u8, Error> {
    h += 1;
    Ok(a + b + c + d + e + f + *g + h)
}
#[distributed_lock(key = "a_<a>_<b>_<c>_<d>_<e>")]
async fn patterns(
    (a, (b, _)): (u8, (u8, u8)),
    [c, .., d]: [u8; 5],
    P { x: e, .. }: P,
    &f: &u8,
    W(ref g, mut h): W,
    (): (),
    _: u8,
    _unused: String,
) -> Result<u8, Error> {
    h += 1;
    Ok(a + b + c + d + e + f + *g + h)
}
struct W(u8, u8);
#[derive(Clone, Copy)]
struct P {
    x: u8,
    y: u8,
}
#[distributed_lock(key = "impl_<x>", segments = 2, guard = g2)]
async fn impls(
    x: impl Display + Send,
    f: impl Fn(u8) -> u8 + Send,
    mut g: impl FnMut() -> String,
) -> Result<(u8, String), Error> {
    if g2.number() == 1 {
        return Err(g2.exhausted());
    }
    Ok((f(x.to_string().len() as u8), g()))
}
#[distributed_lock(key = "un_<x>", segments = 2)]
async fn unsized_<T: ?Sized + Display>(
    x: &T,
    d: &dyn Display,
    b: Box<dyn Debug + '_>,
    m: &mut dyn Iterator<Item = u8>,
) -> Result<String, Error> {
    let _ = m.next();
    Ok(format!("{x}{d}{b:?}"))
}
#[distributed_lock(key = "lt_<x>", segments = 2)]
async fn lifetimes<'a, 'b: 'a>(
    x: &'a str,
    y: &'b str,
    f: for<'c> fn(&'c str) -> &'c str,
) -> Result<&'a str, Error> {
    Ok(f(if x.is_empty() { y } else { x }))
}
#[distributed_lock(key = "ret_<n>", segments = 2)]
async fn returns_impl(n: u8) -> Result<impl Iterator<Item = impl Display> + use<>, Error> {
    Ok((0..n).map(|x| x.to_string()))
}
#[distributed_lock(key = "dyn", segments = 2)]
async fn coerces(b: bool) -> Result<Box<dyn Debug + Send>, Box<dyn std::error::Error + Send + Sync>> {
    if b {
        return Ok(Box::new(1));
    }
    let _: u8 = "x".parse()?;
    Ok(Box::new("x"))
}
#[distributed_lock(key = "cfg_<a>", segments = 2)]
async fn cfgs(
    a: u8,
    #[cfg(any())] b: Missing,
    #[cfg(all())] c: u8,
    #[allow(unused)] d: u8,
) -> Result<u8, Error> {
    Ok(a + c)
}
#[distributed_lock(key = "cell", segments = 2)]
async fn cell(c: Cell<u8>, v: Vec<u8>) -> Result<u8, Error> {
    tokio::task::yield_now().await;
    Ok(c.get() + v[0])
}
#[distributed_lock(
    keys = { ids.iter().map(|i| format!("a{i}")).collect::<Vec<_>>() },
    wait = { std::time::Duration::from_secs(u64::from(ids[0])) },
    lease = { LEASE },
    on_busy = Ok(ids.len()),
    on_lost = "continue",
    on_unavailable = "run",
    recheck = false,
    guard = held,
    requires = ["fencing", "durable"]
)]
async fn everything(ids: Vec<u8>) -> Result<usize, Error> {
    held.check()?;
    drop(ids);
    Ok(1)
}
const LEASE: std::time::Duration = std::time::Duration::from_secs(9);
#[distributed_lock(
    key = { tokio::task::yield_now().await; name()? },
    on_busy = |error| { drop(v); return Err(error) }
)]
async fn awaits_in_key(v: Vec<u8>) -> Result<Vec<u8>, Error> {
    Ok(v)
}
fn name() -> Result<String, Error> {
    Ok("x".into())
}
#[distributed_lock(key = "busy_moves", wait = "no", on_busy = Ok(v))]
async fn busy_moves(v: Vec<u8>, mut w: Vec<u8>) -> Result<Vec<u8>, Error> {
    w.extend(v);
    Ok(w)
}
#[distributed_lock(key = "busy_borrow", wait = "no", on_busy = Ok(v.first()))]
async fn busy_borrows(v: &mut Vec<u8>) -> Result<Option<&u8>, Error> {
    v.push(1);
    Ok(v.first())
}
#[distributed_lock(key = "busy_mut", wait = "no", on_busy = Ok(&mut v[0]))]
async fn busy_mut(v: &mut Vec<u8>) -> Result<&mut u8, Error> {
    v.push(1);
    Ok(&mut v[0])
}
#[distributed_lock(key = "busy_impl", wait = "no", on_busy = Err(Error::from(e)))]
async fn busy_impl(e: dlock::Error) -> Result<impl Display, Error> {
    Err::<u8, _>(e)
}
#[distributed_lock(
    key = "busy_question",
    wait = "no",
    on_busy = { let x: u8 = "1".parse()?; if x > 1 { return Ok(3); } async { Ok(x) }.await }
)]
async fn busy_question() -> Result<u8, Box<dyn std::error::Error>> {
    Ok(1)
}
#[distributed_lock(
    key = "busy_closure",
    wait = "no",
    on_busy = |_error| match _error.kind() { dlock::ErrorKind::Busy => Ok(0), _ => Err(_error) }
)]
async fn busy_closure() -> Result<u8, Error> {
    Ok(1)
}
#[distributed_lock(key = "busy_tuple", wait = "no", on_busy = |_| Ok((1, "a")))]
async fn busy_tuple() -> Result<(u8, &'static str), Error> {
    Ok((1, "b"))
}
mod priv_ {
    pub(super) struct Pvt;
    #[dlock::distributed_lock(key = "p")]
    pub(super) async fn pvt() -> Result<Pvt, dlock::Error> {
        Ok(Pvt)
    }
}
#[distributed_lock(key = "fut")]
fn future(x: &u8) -> impl Future<Output = Result<u8, Error>> + Send {
    async move { Ok(*x) }
}
#[distributed_lock(key = "fut")]
fn future_box<'a>(x: &'a u8) -> Pin<Box<dyn Future<Output = Result<u8, Error>> + Send + 'a>> {
    Box::pin(async move { Ok(*x) })
}
#[distributed_lock(key = "fut_<x>")]
fn future_static(x: u8) -> Pin<Box<dyn Future<Output = Result<u8, Error>> + Send>> {
    ::std::boxed::Box::pin(async move { Ok(x) })
}
#[allow(async_fn_in_trait)]
trait T {
    async fn a(&self) -> Result<u8, Error>;
    #[distributed_lock(key = "d")]
    async fn d(&self) -> Result<u8, Error> {
        self.a().await
    }
    #[distributed_lock(key = "st_<x>")]
    async fn st(x: u8) -> Result<Self, Error>
    where
        Self: Sized + Default,
    {
        let _ = x;
        Ok(Self::default())
    }
}
impl T for u8 {
    #[distributed_lock(key = "d_<self>")]
    async fn a(&self) -> Result<u8, Error> {
        Ok(*self)
    }
}
impl<X: Send + Sync> T for [X] {
    #[distributed_lock(key = "d", locks = L.with(|l| l.clone()))]
    async fn a(&self) -> Result<u8, Error> {
        Ok(1)
    }
}
thread_local! { static L: Locks = panic!() }
fn main() {}
