//! The `#[distributed_lock]` attribute of `dlock`.
//!
//! Use it through `dlock`, which re-exports and documents it. The code it generates calls a private
//! module of the same version of `dlock`, so this crate is of no use alone.

mod args;
mod backend;
mod dependency;
mod duration;
mod error;
mod expand;
mod function;
mod guides;
mod leader;
mod once;
mod own;
mod suggest;
mod template;

use proc_macro::TokenStream;

// Documented where it is re-exported, so that links and examples use the paths of `dlock`.
#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), item.into()).into()
}

#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn leader(args: TokenStream, item: TokenStream) -> TokenStream {
    leader::expand(args.into(), item.into()).into()
}

#[allow(missing_docs)]
#[proc_macro_attribute]
pub fn once(args: TokenStream, item: TokenStream) -> TokenStream {
    once::expand(args.into(), item.into()).into()
}

// Expanded in the documentation of `dlock` alone.
#[allow(missing_docs)]
#[doc(hidden)]
#[proc_macro]
pub fn guides(_nothing: TokenStream) -> TokenStream {
    guides::expand().into()
}
