//! Return types, constants and attributes above each other.
#![deny(warnings)]
#![allow(dead_code)]
use dlock::{Error, distributed_lock};
use std::fmt::{Debug, Display};
type Res<T, E = Error> = Result<T, E>;
macro_rules! ty {
    () => {
        u8
    };
}
#[distributed_lock(key = "a")]
async fn a1() -> Result<Vec<impl Display>, Error> {
    Ok(vec![1])
}
#[distributed_lock(key = "a")]
async fn a2() -> Result<(impl Display, [impl Debug; 1]), Error> {
    Ok((1, ["x"]))
}
#[distributed_lock(key = "a")]
async fn a3() -> Res<impl Display> {
    Ok(1)
}
#[distributed_lock(key = "a")]
async fn a4() -> Result<ty!(), Error> {
    Ok(1)
}
#[distributed_lock(key = "a")]
async fn a5<const N: usize>() -> Result<[u8; N], Error> {
    Ok([1; N])
}
#[distributed_lock(key = "a")]
async fn a6() -> Result<fn(u8) -> u8, Error> {
    fn x(a: u8) -> u8 {
        a
    }
    Ok(x)
}
#[distributed_lock(key = "a")]
async fn a7() -> Result<impl AsRef<[Box<dyn Fn(u8) -> u8>]>, Error> {
    let v: Vec<Box<dyn Fn(u8) -> u8>> = vec![Box::new(|x| x)];
    Ok(v)
}
#[distributed_lock(key = "a")]
async fn a8() -> std::io::Result<u8> {
    Err(std::io::Error::other("x"))
}
#[distributed_lock(key = "a")]
async fn a9() -> Result<u8, Box<dyn std::error::Error + Send + Sync + 'static>> {
    Err("x")?
}
#[distributed_lock(key = "a")]
async fn b1() -> Result<&'static str, Error> {
    Ok("x")
}
#[distributed_lock(key = "a")]
async fn b2() -> Result<Option<Box<dyn Debug>>, Error> {
    Ok(Some(Box::new(1)))
}
#[distributed_lock(key = "a")]
async fn b3(x: u8) -> Result<&'static dyn Debug, Error> {
    match x {
        0 => return Ok(&1),
        1 => return Ok(&"a"),
        _ => {}
    }
    Ok(&2.0)
}
#[distributed_lock(key = "a")]
async fn b4() -> Result<(), Error> {
    loop {
        tokio::task::yield_now().await;
    }
}
#[distributed_lock(key = "a")]
async fn b5() -> Result<u8, Error> {
    panic!("x")
}
#[distributed_lock(key = "a")]
async fn b6() -> Result<u8, Error> {
    return Ok(1);
}
#[distributed_lock(key = "a", on_busy = loop {})]
async fn b7() -> Result<u8, Error> {
    Ok(1)
}
#[distributed_lock(key = "a", on_busy = return Ok(1))]
async fn b8() -> Result<u8, Error> {
    Ok(1)
}
#[distributed_lock(key = "a", on_busy = todo!())]
async fn b9() -> Result<u8, Error> {
    unreachable!()
}
#[distributed_lock(key = "<f>")]
async fn c1(
    f: f64,
    _s: impl Sized,
    c: char,
    b: bool,
    s: std::sync::Arc<str>,
) -> Result<(f64, char, bool, std::sync::Arc<str>), Error> {
    Ok((f, c, b, s))
}
#[distributed_lock(key = "<x>")]
async fn c2<T>(x: T) -> Result<T, Error>
where
    for<'a> &'a T: Display,
    T: Display,
{
    Ok(x)
}
#[distributed_lock(key = "<a.b.0>")]
async fn c3(a: A) -> Result<u8, Error> {
    let A { b: (x, _) } = a;
    Ok(x)
}
struct A {
    b: (u8, String),
}
struct G<'a, T: ?Sized + 'a, const N: usize>(&'a T, [u8; N]);
impl<'a, T: ?Sized + Display + Sync, const N: usize> G<'a, T, N> {
    const K: &'static str = "k";
    #[distributed_lock(key = { format!("{}{}{N}", Self::K, self.0) })]
    async fn d1(self) -> Result<&'a T, Error> {
        Ok(self.0)
    }
    #[distributed_lock(key = { format!("x_{}_{N}", self.0) })]
    async fn d2<'b, U: 'b + Clone>(&'b self, u: &'b U) -> Result<(&'b Self, U), Error>
    where
        'a: 'b,
    {
        Ok((self, u.clone()))
    }
    #[distributed_lock(key = { format!("x_{n}_{N}") })]
    async fn d3(n: u8) -> Result<Self, Error>
    where
        Self: Default,
    {
        let _ = n;
        Ok(Default::default())
    }
}
#[distributed_lock(key = "c_<x>", segments = 2)]
#[distributed_lock(key = "a")]
#[distributed_lock(key = "b_<x>", on_busy = Ok(x))]
async fn three(x: String) -> Result<String, Error> {
    Ok(x.clone())
}
fn main() {
    fn s<T: Send>(_: T) {}
    s(three(String::new()));
    s(b4());
    s(a9());
}
