//! Signatures, patterns and names: whatever the plain function may have, the annotated one may.
#![deny(warnings)]
#![allow(dead_code, unused_macros)]
use dlock::{Error, Locks, distributed_lock};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

struct S<T> {
    locks: Locks,
    value: T,
    id: u64,
}

impl<T: Display + Send + Sync> S<T> {
    #[distributed_lock(key = "s_<self.id>_<self.value>", locks = self.locks)]
    async fn arc(self: Arc<Self>) -> Result<u64, Error> {
        Ok(self.id)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks)]
    async fn pin(self: Pin<&mut Self>) -> Result<u64, Error> {
        Ok(self.id)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks)]
    async fn boxed(self: Box<Self>) -> Result<T, Error> {
        Ok(self.value)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks.clone())]
    async fn by_value(self) -> Result<T, Error> {
        Ok(self.value)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks.clone())]
    async fn by_mut_value(mut self) -> Result<T, Error> {
        self.id += 1;
        Ok(self.value)
    }
    #[distributed_lock(key = "s_<self.id>", locks = self.locks)]
    async fn borrow_mut(&mut self) -> Result<&mut T, Error> {
        Ok(&mut self.value)
    }
    #[distributed_lock(key = "s_<self.id>_{N}", locks = self.locks)]
    async fn consts<const N: usize, U>(&self, _of: [U; N]) -> Result<usize, Error>
    where
        U: Debug + Send,
    {
        Ok(N)
    }
    #[distributed_lock(key = "s")]
    async fn rc(self: Rc<Self>) -> Result<u64, Error> {
        Ok(self.id)
    }
}

#[distributed_lock(key = "a_<a>_<b>_<c>_<d>_<e>")]
async fn patterns((a, (b, _)): (u8, (u8, u8)), [c, .., d]: [u8; 5], P { x: e, .. }: P) -> Result<u8, Error> {
    Ok(a + b + c + d + e)
}
#[derive(Clone, Copy)]
struct P {
    x: u8,
    y: u8,
}

#[distributed_lock(key = "a_<whole.0>")]
async fn at(ref whole @ (a, ref b): (u8, String)) -> Result<usize, Error> {
    Ok(usize::from(a) + b.len() + whole.1.len())
}

#[distributed_lock(key = "impl_<x>")]
async fn impls(
    x: impl Display + Send,
    f: impl Fn(u8) -> u8 + Send,
    mut g: impl FnMut() -> String,
) -> Result<(u8, String), Error> {
    Ok((f(x.to_string().len() as u8), g()))
}

#[distributed_lock(key = "un_<x>")]
async fn unsized_<T: ?Sized + Display>(
    x: &T,
    d: &dyn Display,
    b: Box<dyn Debug + '_>,
    m: &mut dyn Iterator<Item = u8>,
) -> Result<String, Error> {
    let _ = m.next();
    Ok(format!("{x}{d}{b:?}"))
}

#[distributed_lock(key = "lt_<x>")]
async fn lifetimes<'a, 'b: 'a>(
    x: &'a str,
    y: &'b str,
    z: Cow<'_, str>,
    f: for<'c> fn(&'c str) -> &'c str,
) -> Result<(&'a str, String), Error> {
    Ok((f(if x.is_empty() { y } else { x }), z.into_owned()))
}

#[distributed_lock(key = "ret_<n>")]
async fn returns_impl(n: u8) -> Result<impl Iterator<Item = impl Display> + use<>, Error> {
    Ok((0..n).map(|x| x.to_string()))
}
#[distributed_lock(key = "ret2_<n>")]
async fn returns_box(n: u8) -> Result<Box<dyn Iterator<Item = impl Display>>, Error> {
    Ok(Box::new((0..n).map(|x| x.to_string())))
}
#[distributed_lock(key = "clos")]
async fn returns_closure() -> Result<impl Fn(u8) -> u8 + Clone, Error> {
    let k = 2;
    Ok(move |x| x + k)
}
#[distributed_lock(key = "dyn")]
async fn coerces(b: bool) -> Result<Box<dyn Debug + Send>, Box<dyn std::error::Error + Send + Sync>> {
    if b {
        return Ok(Box::new(1));
    }
    let _: u8 = "x".parse()?;
    Ok(Box::new("x"))
}
#[distributed_lock(key = "never")]
async fn never() -> Result<std::convert::Infallible, Error> {
    std::future::pending().await
}
#[distributed_lock(key = "todo")]
async fn unimplemented_() -> Result<u8, Error> {
    unimplemented!()
}

async fn recur(n: u64) -> Result<u64, Error> {
    if n == 0 { Ok(0) } else { Box::pin(recursive(n - 1)).await }
}
#[distributed_lock(key = "rec")]
async fn recursive(n: u64) -> Result<u64, Error> {
    Box::pin(recur(n)).await
}

#[distributed_lock(key = "raw_<type>_<match>")]
async fn r#fn(r#type: u8, r#match: &str) -> Result<usize, Error> {
    Ok(usize::from(r#type) + r#match.len())
}

#[distributed_lock(key = "größe_<größe>_🔒")]
async fn unicode(größe: u8) -> Result<u8, Error> {
    Ok(größe)
}

#[distributed_lock(key = "cfg_<a>")]
async fn cfgs(
    a: u8,
    #[cfg(any())] b: Missing,
    #[cfg(all())] c: u8,
    #[allow(unused)] d: u8,
) -> Result<u8, Error> {
    Ok(a + c)
}

macro_rules! make { ($name:ident, $key:literal, $arg:ident : $ty:ty, $ret:ty, $body:block) => {
    #[distributed_lock(key = $key)]
    async fn $name($arg: $ty) -> $ret $body
} }
make!(made, "made_<x>", x: u64, Result<u64, Error>, { Ok(x) });
macro_rules! make2 {
    ($($vis:vis async fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty { $($body:tt)* })*) => { $(
    #[distributed_lock(key = "m2", wait = "1s")]
    $vis async fn $name($($arg: $ty),*) -> $ret { $($body)* } )* } }
make2! {
    pub(crate) async fn m2a(a: u8, b: String) -> Result<String, Error> { Ok(format!("{a}{b}")) }
    async fn m2b() -> Result<(), Error> { Ok(()) }
}

/// Hidden.
#[doc(hidden)]
#[must_use = "x"]
#[inline(never)]
#[distributed_lock(key = "doc")]
pub async unsafe fn hidden() -> Result<(), Error> {
    #![allow(unused_variables)]
    let x = 1;
    Ok(())
}

mod shadowed {
    #[allow(non_camel_case_types)]
    pub struct std;
    pub mod core {}
    pub mod alloc {}
    pub struct Option;
    pub enum Result<T> {
        Ok(T),
        Err,
    }
    #[allow(non_snake_case)]
    pub fn Some() {}
    pub struct Box;
    pub trait Future {}
    pub trait Into {}
    pub trait ToString {}
    pub struct String;
    pub struct Vec;
    macro_rules! format_args {
        ($($t:tt)*) => {
            compile_error!("mine")
        };
    }
    macro_rules! concat {
        ($($t:tt)*) => {
            compile_error!("mine")
        };
    }
    macro_rules! module_path {
        ($($t:tt)*) => {
            compile_error!("mine")
        };
    }
    macro_rules! vec {
        ($($t:tt)*) => {
            compile_error!("mine")
        };
    }
    macro_rules! pin {
        ($($t:tt)*) => {
            compile_error!("mine")
        };
    }
    use dlock::distributed_lock;
    #[distributed_lock(
        key = "sh_<section>",
        wait = "1s",
        lease = "5s",
        on_busy = ::core::result::Result::Ok(section),
        guard = held
    )]
    pub async fn f(section: u8, output: u8, error: u8, busy: u8) -> ::core::result::Result<u8, dlock::Error> {
        held.check()?;
        ::core::result::Result::Ok(section + output + error + busy)
    }
    #[distributed_lock(keys = ["sh_<section>", "b"], requires = ["fencing"])]
    pub async fn g(section: u8) -> ::core::result::Result<u8, dlock::Error> {
        ::core::result::Result::Ok(section)
    }
    #[distributed_lock(key = { section }, segments = 3, guard = segment)]
    pub async fn h(section: u8, outcome: u8, body: u8) -> ::core::result::Result<u8, dlock::Error> {
        if segment.number() > 1 {
            return ::core::result::Result::Err(segment.exhausted());
        }
        ::core::result::Result::Ok(section + outcome + body)
    }
}

mod no_prelude {
    #![no_implicit_prelude]
    #[::dlock::distributed_lock(key = "np_<x>", wait = "1s", on_busy = ::std::result::Result::Ok(1))]
    pub async fn f(x: u8) -> ::std::result::Result<u8, ::dlock::Error> {
        ::std::result::Result::Ok(x)
    }
    #[::dlock::distributed_lock(key = "np_<x>", segments = 2)]
    pub async fn g(x: u8) -> ::std::result::Result<u8, ::dlock::Error> {
        ::std::result::Result::Ok(x)
    }
    #[::dlock::distributed_lock(keys = ["np_<x>"])]
    pub async fn h(x: u8) -> ::std::result::Result<u8, ::dlock::Error> {
        ::std::result::Result::Ok(x)
    }
}

trait Shop {
    fn id(&self) -> u64;
    #[distributed_lock(key = "tr_<n>")]
    fn default_body(&self, n: u8) -> impl Future<Output = Result<u64, Error>> + Send
    where
        Self: Sync,
    {
        async move { Ok(self.id() + u64::from(n)) }
    }
    fn other(&self, n: u8) -> impl Future<Output = Result<u64, Error>> + Send;
}
impl Shop for u64 {
    fn id(&self) -> u64 {
        *self
    }
    #[distributed_lock(key = "tr_<n>")]
    async fn other(&self, n: u8) -> Result<u64, Error> {
        Ok(self.id() + u64::from(n))
    }
}

type Res<T, E = Error> = Result<T, E>;
#[distributed_lock(key = "alias")]
async fn alias<T: Default>() -> Res<T> {
    Ok(T::default())
}

#[distributed_lock(key = { format!("{}_{}", map.len(), keys.iter().copied().collect::<String>()) })]
async fn expr_key(map: HashMap<u8, u8>, keys: &[char]) -> Result<usize, Error> {
    Ok(map.len() + keys.len())
}

#[distributed_lock(key = "uses_<x>")]
async fn labels(x: u8) -> Result<u8, Error> {
    let r = 'a: {
        if x > 1 {
            break 'a 1;
        }
        2
    };
    for i in 0..x {
        if i == 3 {
            return Ok(i);
        }
    }
    Ok(r)
}

fn local() {
    #[distributed_lock(key = "in_<x>")]
    async fn inner(x: u8) -> Result<u8, Error> {
        #[distributed_lock(key = "deeper_<y>")]
        async fn deeper(y: u8) -> Result<u8, Error> {
            Ok(y)
        }
        deeper(x).await
    }
    drop(inner(1));
}
extern "C" fn _x() {}
#[distributed_lock(key = "abi")]
async fn tail_temp(m: &std::sync::Mutex<u8>) -> Result<u8, Error> {
    Ok(*m.lock().unwrap())
}
#[distributed_lock(key = "qself")]
async fn qself<I: IntoIterator>(i: I) -> Result<Vec<<I as IntoIterator>::Item>, Error>
where
    I::Item: Clone,
{
    Ok(i.into_iter().collect())
}
#[distributed_lock(key = "hrtb")]
async fn hrtb<F>(f: F) -> Result<u8, Error>
where
    F: for<'a> AsyncFn(&'a str) -> u8,
{
    Ok(f("x").await)
}
#[distributed_lock(key = "mutarg")]
async fn mutarg(mut v: Vec<u8>, mut _w: u8, (mut a, b): (u8, u8)) -> Result<Vec<u8>, Error> {
    v.push(a);
    a = b;
    v.push(a);
    Ok(v)
}
#[distributed_lock(key = "consts_<N>_<B>")]
async fn consts<const N: usize, const B: bool>() -> Result<[u8; N], Error> {
    Ok([u8::from(B); N])
}
fn is_send<T: Send>(_: &T) {}
fn main() {
    is_send(&made(1));
    is_send(&m2a(1, String::new()));
    is_send(&shadowed::f(1, 2, 3, 4));
    is_send(&shadowed::h(1, 2, 3));
    is_send(&no_prelude::f(1));
    local();
    is_send(&7_u64.default_body(1));
}
