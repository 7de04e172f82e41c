//! `#[leader]`: the body is a term of office.
//!
//! ```text
//! Input:   #[leader(key = "billing", term = term)]
//!          async fn lead(db: Db) -> Result<(), AppError> { BODY }
//!
//! Output:  async fn lead(db: Db) -> Result<(), AppError> {
//!              let candidate = ::dlock::__private::Section::new(…).elect();
//!              return ::core::pin::pin!(async move {
//!                  let mut candidate = candidate;
//!                  loop {
//!                      let won = match candidate.win().await { Ok(won) => won, Err(error) => break … };
//!                      // Borrows the arguments, since it may run again.
//!                      let body = async { let term = &won; { BODY } };
//!                      if let Some(output) = won.run(body).await {
//!                          won.resign();
//!                          break output;
//!                      }
//!                  }
//!              }).await;
//!          }
//! ```

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::quote_spanned;
use syn::{Expr, LitInt};

use crate::args::Args;
use crate::error::{Mistakes, report};
use crate::expand::{borrows, captures, failed, key, options, paths, site, source};
use crate::function::Function;
use crate::own::{renamed, split, value_of};

/// The options that only elections have.
#[derive(Default)]
struct Own {
    term: Option<Ident>,
    priority: Option<u8>,
    eligibility: Option<Expr>,
}

/// The options of a lock that a term of office does not have, each with the reason.
const NOT_HERE: [(&str, &str); 16] = [
    ("keys", "an election has one key"),
    ("segments", "an election has one leader"),
    ("mode", "a leader is alone"),
    ("permits", "an election has one leader"),
    ("take", "an election has one leader"),
    ("wait", "a candidate waits until it leads"),
    ("max_hold", "give the `Election` a `with_max_term`"),
    ("from", "a term is not handed over"),
    ("hold_at_least", "a term that ends makes room for the next one"),
    ("on_lost", "the body is dropped when its term is lost"),
    ("on_busy", "a candidate waits until it leads"),
    ("on_unavailable", "nobody leads without the backend"),
    ("guard", "write `term = term`"),
    ("recheck", "a candidate asks until it leads"),
    ("handoff", "a term is not passed on"),
    ("requires", "say it where the locks are built"),
];

pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut mistakes = Mistakes::default();
    let written = args.clone();
    let (own, rest) = Own::split(args, &mut mistakes);
    let args = Args::parse(rest, &mut mistakes);
    for (option, why) in NOT_HERE {
        if let Some(span) = args.given_at(option) {
            mistakes.at(span, format!("`{option}` does not go with `#[leader]`: {why}"));
        }
    }
    let function = mistakes.take(Function::parse(item.clone()));
    let expanded = function.and_then(|function| elected(&args, &own, &written, &function, &mut mistakes));
    match (expanded, mistakes.into_error()) {
        (_, Some(mistakes)) => renamed(report(&mistakes, &item), "#[leader"),
        (expanded, None) => expanded.unwrap_or(item),
    }
}

fn elected(
    args: &Args,
    own: &Own,
    written: &TokenStream,
    function: &Function,
    mistakes: &mut Mistakes,
) -> Option<TokenStream> {
    let here = Span::mixed_site();
    let (dlock, private) = paths(args);
    if let Some(term) = &own.term
        && function.names().any(|name| name == term)
    {
        let message = format!("`{term}` is an argument, which the term would hide; write another name");
        mistakes.at(term.span(), message);
    }
    mistakes.take(function.returns_no_mutable_borrow());
    let key = key(args, function, mistakes);
    let output = mistakes.take(function.output());
    let (key, output) = key.zip(output)?;
    let site = site(args, function);
    let (backend, source) = source(args, &private);
    let options = options(args, &dlock);
    let failed = failed(&private, &output);
    let captures = captures(function, written);
    let (rebound, borrowed) = borrows(function, written);
    let body = &function.body.block;
    let term = own.term.as_ref().map(|term| quote_spanned!(here=> let #term = &won;));
    let priority = own.priority.map(|priority| {
        let priority = Literal::u8_suffixed(priority);
        quote_spanned!(here=> .with_priority(#priority))
    });
    let eligibility =
        own.eligibility.as_ref().map(|eligibility| quote_spanned!(here=> .with_eligibility(&#eligibility)));
    Some(function.with_body(&quote_spanned! {here=>
        #backend
        let candidate = #private::Section::of(#site, #source, ::std::string::ToString::to_string(&#key)) #options
            .elect() #priority #eligibility;
        return ::core::pin::pin!(async move {
            let mut candidate = candidate;
            #captures
            #rebound
            loop {
                let next = candidate.win().await;
                let won = match next {
                    ::core::result::Result::Ok(won) => won,
                    #failed
                };
                let body = async {
                    #borrowed
                    #term
                    if let ::core::option::Option::Some(output) = ::core::option::Option::None::<#output> {
                        return output;
                    }
                    #body
                };
                let led = won.run(body).await;
                if let ::core::option::Option::Some(output) = led {
                    #private::resign(won).await;
                    break output;
                }
            }
        }).await;
    }))
}

impl Own {
    /// Takes the options of elections out of `args`, and returns the rest.
    fn split(args: TokenStream, mistakes: &mut Mistakes) -> (Self, TokenStream) {
        let mut own = Self::default();
        let rest = split(args, |name, value| {
            match name.to_string().as_str() {
                "term" => {
                    let what = "`term` takes a name for the body; write `term = term`";
                    own.term = mistakes.take(value_of(name, value, what));
                }
                "priority" => {
                    let what = "`priority` is a number from 0 (the first to try) to 60; write `priority = 1`";
                    let number = mistakes.take(value_of::<LitInt>(name, value, what));
                    own.priority = number.and_then(|number| match number.base10_parse() {
                        Ok(priority @ 0..=60) => Some(priority),
                        _ => {
                            mistakes.at(number.span(), what);
                            None
                        }
                    });
                }
                "eligibility" => {
                    let what = "`eligibility` is an expression; write `eligibility = self.eligibility`";
                    own.eligibility = mistakes.take(value_of(name, value, what));
                }
                _ => return false,
            }
            true
        });
        (own, rest)
    }
}
