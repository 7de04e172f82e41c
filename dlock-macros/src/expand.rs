//! Puts the lock around the body.
//!
//! ```text
//! Input:   #[distributed_lock(key = "room_<id>", backend = "zk")]
//!          async fn book(id: u64, who: &str) -> Result<Booking, AppError> { BODY }
//!
//! Output:  async fn book(id: u64, who: &str) -> Result<Booking, AppError> {
//!              ::dlock::__private::require_zk! {}             // nothing, or an error when the feature is off
//!              let section = ::dlock::__private::Section::new(
//!                  …, "room_<id>",                            // the function and the template, for spans and metrics
//!                  ::dlock::__private::Source::Named("zk"),
//!                  ::core::format_args!("room_{}", id),       // the key is complete before the arguments move
//!              );
//!              // What this does is compiled once for all functions, but for the poll of the body. It owns section and
//!              // body, and drops the section last.
//!              return section.run::<Result<Booking, AppError>, _>(async move {
//!                  let _ = &who;                              // every argument moves in, used or not,
//!                  let _ = &id;                               // so that it is dropped before the release
//!                  if let Some(output) = None::<Result<Booking, AppError>> {
//!                      return output;                         // `?` and mismatches are as in the plain function
//!                  }
//!                  { BODY }
//!              }).await;
//!          }
//! ```
//!
//! No item is generated: inside a generic `impl` it could not use the type parameters.

use crate::args::{Args, DurationArg, KeyArg, KeysArg, ModeArg, OnLostArg, OnUnavailable, TakeArg, WaitArg};
use crate::dependency;
use crate::error::{Mistakes, report};
use crate::function::{Argument, Function};
use crate::template::Template;
use proc_macro2::{Group, Ident, Literal, Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::LitStr;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

/// The backends that are behind a cargo feature of the same name.
const FEATURES: [&str; 6] = ["etcd", "redis", "zk", "sqlite", "postgres", "mysql"];

pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut mistakes = Mistakes::default();
    // Kept as it was written: an argument that only an option names is used too.
    let written = args.clone();
    let args = Args::parse(args, &mut mistakes);
    let function = mistakes.take(Function::parse(item.clone()));
    // All mistakes are collected before anything is returned, so that one build shows them all.
    let expanded = function.and_then(|function| locked(&args, &written, &function, &mut mistakes));
    match (expanded, mistakes.into_error()) {
        (_, Some(mistakes)) => report(&mistakes, &item),
        (expanded, None) => expanded.unwrap_or(item),
    }
}

/// Returns the function with the lock around its body, or `None` if there were mistakes.
fn locked(
    args: &Args,
    written: &TokenStream,
    function: &Function,
    mistakes: &mut Mistakes,
) -> Option<TokenStream> {
    let here = Span::mixed_site();
    let (dlock, private) = paths(args);
    check_guard(args, function, mistakes);
    if args.segments.is_some() {
        mistakes.take(function.returns_no_mutable_borrow());
    }
    let keys = match &args.keys {
        Some(keys) => several(keys, function, &private, mistakes),
        None if args.gives("from") && !args.gives("key") => {
            Some(quote_spanned!(Span::mixed_site()=> ::std::string::ToString::to_string(baton.key())))
        }
        None => key(args, function, mistakes),
    };
    let output = mistakes.take(function.output());
    let (keys, output) = keys.zip(output)?;

    let site = site(args, function);
    let (backend, source) = source(args, &private);
    let new = match (&args.keys, &args.key) {
        (Some(_), _) => quote_spanned!(here=> all),
        (None, Some(KeyArg::Expr(_))) => quote_spanned!(here=> of),
        (None, None) if args.from.is_some() => quote_spanned!(here=> of),
        (None, _) => quote_spanned!(here=> new),
    };
    let mut options = options(args, &dlock);
    let baton = args.from.as_ref().map(|baton| {
        options.extend(quote_spanned!(here=> .from_baton(baton)));
        let given = quote_spanned!(here.located_at(baton.span())=> &#baton);
        quote_spanned!(here=> let baton = #private::baton(#given);)
    });
    if let Some(segments) = args.segments {
        // Segments may run the body several times, and have an expansion of their own.
        let run = in_segments(args, function, written, &private, &output);
        let segments = Literal::u32_suffixed(segments);
        return Some(function.with_body(&quote_spanned! {here=>
            #backend
            let mut section = #private::Section::#new(#site, #source, #keys) #options.segments(#segments);
            return { #run };
        }));
    }
    let captures = captures(function, written);
    let guard = args.guard.as_ref().map(|guard| quote_spanned!(here=> let #guard = #private::held();));
    let body = &function.body.block;
    let (options, body) = match on_busy(args) {
        None => (options, quote_spanned!(here=> #guard #body)),
        // The match stands first in the body: the expression then has the arguments without a second copy of them.
        Some(returned) => (
            quote_spanned!(here=> #options.has_on_busy()),
            quote_spanned! {here=>
                match #private::busy() {
                    ::core::option::Option::Some(error) => #returned,
                    ::core::option::Option::None => { #guard #body }
                }
            },
        ),
    };
    // `return` is for users who deny clippy's `implicit_return`; the opposite lint skips what a macro wrote.
    Some(function.with_body(&quote_spanned! {here=>
        #backend
        #baton
        let section = #private::Section::#new(#site, #source, #keys) #options;
        return section.run::<#output, _>(async move {
            #captures
            if let ::core::option::Option::Some(output) = ::core::option::Option::None::<#output> {
                return output;
            }
            #body
        }).await;
    }))
}

/// Returns the paths of dlock and of its module for generated code.
///
/// Everything generated has spans of the macro: no name collides with one of the user's, and none of the user's lints
/// applies to it.
pub(crate) fn paths(args: &Args) -> (TokenStream, TokenStream) {
    let here = Span::mixed_site();
    let dlock = match &args.krate {
        Some(path) => quote!(#path),
        None => {
            let name = Ident::new(&dependency::name(), here);
            quote_spanned!(here=> ::#name)
        }
    };
    let private = quote_spanned!(here=> #dlock::__private);
    (dlock, private)
}

/// Runs the body in one segment after the other, until one was not exhausted.
///
/// The body may run several times, so it borrows the arguments, each as a whole and by itself: a future that holds such
/// a borrow is `Send` where the argument is. The arguments are dropped before the last segment is released.
fn in_segments(
    args: &Args,
    function: &Function,
    written: &TokenStream,
    private: &TokenStream,
    output: &TokenStream,
) -> TokenStream {
    let here = Span::mixed_site();
    let body = &function.body.block;
    let segment = match &args.guard {
        Some(guard) => quote!(#guard),
        None => quote_spanned!(here=> _segment),
    };
    let busy = busy(args, private);
    let failed = failed(private, output);
    let captures = captures(function, written);
    let (rebound, borrowed) = borrows(function, written);
    quote_spanned! {here=>
        let outcome = {
            let section = &mut section;
            let attempts = ::core::pin::pin!(async move {
                #captures
                #rebound
                loop {
                    let entered = section.enter().await;
                    let #segment = match entered {
                        ::core::result::Result::Ok(segment) => segment,
                        #busy
                        #failed
                    };
                    let body = ::core::pin::pin!(async {
                        #borrowed
                        if let ::core::option::Option::Some(output) = ::core::option::Option::None::<#output> {
                            return output;
                        }
                        #body
                    });
                    let outcome = section.run(body).await;
                    match outcome {
                        ::core::result::Result::Ok(::core::option::Option::Some(output)) => break output,
                        ::core::result::Result::Ok(::core::option::Option::None) => {}
                        #failed
                    }
                }
            });
            attempts.await
        };
        // Outside of the block that owns the arguments: those are dropped before the segment is released.
        section.leave().await;
        outcome
    }
}

/// Returns the arm of a `match` that leaves a loop with the value of `on_busy` if the lock is busy.
fn busy(args: &Args, private: &TokenStream) -> Option<TokenStream> {
    let returned = on_busy(args)?;
    Some(quote_spanned! {Span::mixed_site()=>
        ::core::result::Result::Err(error) if #private::is_busy(&error) => break #returned,
    })
}

/// Returns the value of `on_busy`, in code where `error` is the error.
fn on_busy(args: &Args) -> Option<TokenStream> {
    Some(match args.on_busy.as_ref()? {
        // The closure's body is inlined, so that `?` and `.await` work in it.
        syn::Expr::Closure(closure) => {
            let (error, returned) = (closure.inputs.first(), &closure.body);
            quote_spanned!(Span::mixed_site()=> { let #error = error; #returned })
        }
        returned => quote!(#returned),
    })
}

/// Returns the arm of a `match` that leaves a loop with any failure of the lock.
pub(crate) fn failed(private: &TokenStream, output: &TokenStream) -> TokenStream {
    quote_spanned! {Span::mixed_site()=>
        ::core::result::Result::Err(error) => break #private::from_lock::<#output>(error),
    }
}

/// Makes the arguments mutable, and borrows each argument that the body names mutably: the future of the body is then
/// `Send` wherever the argument is, though the argument need not be `Sync`. The arguments are dropped in the order of a
/// plain function.
pub(crate) fn borrows(function: &Function, written: &TokenStream) -> (TokenStream, TokenStream) {
    let here = Span::mixed_site();
    let (mut rebound, mut borrowed) = (TokenStream::new(), TokenStream::new());
    for argument in function.arguments.iter().filter(|argument| argument.name != "self") {
        let Some((cfgs, name)) = captured(argument, function, written) else { continue };
        let mention = quote_spanned!(here=> #cfgs let _ = &mut #name;);
        // Without this mention, the parameter's own `mut` would be reported as unused.
        rebound.extend(argument.mutable.then(|| mention.clone()));
        // The span is that of the parameter, so that the compiler names it when the body moves it.
        let own = &argument.name;
        let own = quote_spanned!(own.span()=> mut #own);
        // The binding shadows the parameter on purpose.
        let allow = quote_spanned!(here=> #[allow(clippy::shadow_same, clippy::shadow_reuse, clippy::shadow_unrelated)]);
        rebound.extend(quote_spanned!(here=> #cfgs #allow let #own = #name; #mention));
        if mentions(&function.body.block.stream(), &name.to_string()) {
            borrowed.extend(mention);
        }
    }
    (rebound, borrowed)
}

pub(crate) fn key(args: &Args, function: &Function, mistakes: &mut Mistakes) -> Option<TokenStream> {
    match &args.key {
        Some(KeyArg::Template(template)) => template.to_key(function, mistakes),
        Some(KeyArg::Expr(block)) => {
            let at = Span::mixed_site().located_at(block.span());
            let expr = block.stream();
            Some(quote_spanned!(at=> ::std::string::ToString::to_string(&{ #expr })))
        }
        None => {
            if !args.gives("key") && !args.gives("keys") {
                let example = function.names().find(|name| *name != "self");
                let example = example.map_or_else(String::new, |name| format!("_<{}>", name.unraw()));
                let message = format!(
                    "a lock needs a key; write `#[distributed_lock(key = \"{}{example}\")]`",
                    function.name.unraw()
                );
                mistakes.at(Span::call_site(), message);
            }
            None
        }
    }
}

/// Returns the keys of a batch, as a `Vec<String>`.
fn several(
    keys: &KeysArg,
    function: &Function,
    private: &TokenStream,
    mistakes: &mut Mistakes,
) -> Option<TokenStream> {
    let here = Span::mixed_site();
    match keys {
        KeysArg::Templates(templates) => {
            let keys: Vec<_> = templates.iter().map(|template| template.to_key(function, mistakes)).collect();
            let keys = keys.into_iter().collect::<Option<Vec<_>>>()?;
            Some(quote_spanned!(here=> ::std::vec![#(::std::string::ToString::to_string(&#keys)),*]))
        }
        KeysArg::Expr(block) => {
            let at = here.located_at(block.span());
            let expr = block.stream();
            Some(quote_spanned!(at=> #private::keys_of({ #expr })))
        }
    }
}

/// Returns the labels of spans and metrics. The key is none of them, since there can be any number of keys.
pub(crate) fn site(args: &Args, function: &Function) -> TokenStream {
    let name = function.name.unraw().to_string();
    let template = match (&args.key, &args.keys) {
        (Some(KeyArg::Template(template)), _) => template.label(),
        (_, Some(KeysArg::Templates(templates))) => {
            templates.iter().map(Template::label).collect::<Vec<_>>().join(",")
        }
        _ => format!("{{{name}}}"),
    };
    quote_spanned!(Span::mixed_site()=> ::core::concat!(::core::module_path!(), "::", #name), #template)
}

/// Returns the statements that must come first, and the source of the locks.
pub(crate) fn source(args: &Args, private: &TokenStream) -> (TokenStream, TokenStream) {
    let here = Span::mixed_site();
    if let Some(locks) = &args.locks {
        // The section has a handle of the locks, so that the body can move the value that they were borrowed from.
        let at = here.located_at(locks.span());
        let given = quote_spanned!(at=> &#locks);
        return (TokenStream::new(), quote_spanned!(here=> #private::locks_of(#given)));
    }
    match &args.backend {
        Some(name) => (feature(name, private), quote_spanned!(here=> #private::Source::Named(#name))),
        None => (TokenStream::new(), quote_spanned!(here=> #private::Source::Default)),
    }
}

/// Returns the check that the backend's cargo feature is on, whose error is shown at the backend's name.
fn feature(name: &LitStr, private: &TokenStream) -> TokenStream {
    let value = name.value();
    if !FEATURES.contains(&value.as_str()) {
        return TokenStream::new();
    }
    let require = quote::format_ident!("require_{value}");
    located_at(name.span(), quote_spanned!(Span::mixed_site()=> #private::#require! {}))
}

/// Returns the tokens with another place in the source.
fn located_at(place: Span, tokens: TokenStream) -> TokenStream {
    let relocate = |mut token: TokenTree| {
        if let TokenTree::Group(group) = &token {
            token = Group::new(group.delimiter(), located_at(place, group.stream())).into();
        }
        token.set_span(token.span().located_at(place));
        token
    };
    tokens.into_iter().map(relocate).collect()
}

pub(crate) fn options(args: &Args, dlock: &TokenStream) -> TokenStream {
    let here = Span::mixed_site();
    let milliseconds = |time: u64| {
        let time = Literal::u64_unsuffixed(time);
        quote_spanned!(here=> ::core::time::Duration::from_millis(#time))
    };
    let mut overrides = TokenStream::new();
    if let Some(wait) = &args.wait {
        let wait = match wait {
            WaitArg::No => quote_spanned!(here=> #dlock::Wait::No),
            WaitArg::Forever => quote_spanned!(here=> #dlock::Wait::Forever),
            WaitArg::Milliseconds(wait) => milliseconds(*wait),
            WaitArg::Expr(wait) => expression(wait, &quote!(#dlock::Wait)),
        };
        overrides.extend(quote_spanned!(here=> .with_wait(#wait)));
    }
    let times =
        [("lease", &args.lease), ("max_hold", &args.max_hold), ("hold_at_least", &args.hold_at_least)];
    for (option, time) in times {
        let Some(time) = time else { continue };
        let setter = quote::format_ident!("with_{option}", span = here);
        let time = match time {
            DurationArg::Milliseconds(time) => milliseconds(*time),
            DurationArg::Expr(time) => expression(time, &quote!(::core::time::Duration)),
        };
        overrides.extend(quote_spanned!(here=> .#setter(#time)));
    }
    if args.mode == Some(ModeArg::Read) {
        overrides.extend(quote_spanned!(here=> .read()));
    }
    if let Some(on_lost) = args.on_lost {
        let on_lost = match on_lost {
            OnLostArg::Abort => quote_spanned!(here=> Abort),
            OnLostArg::Continue => quote_spanned!(here=> Continue),
        };
        overrides.extend(quote_spanned!(here=> .with_on_lost(#dlock::OnLost::#on_lost)));
    }
    overrides.extend(args.recheck.as_ref().map(|recheck| match recheck.value() {
        true => quote_spanned!(here=> .with_unbounded_rechecks()),
        false => quote_spanned!(here=> .with_rechecks(0)),
    }));
    overrides.extend(args.handoff.as_ref().map(|handoff| quote_spanned!(here=> .with_handoff(#handoff))));
    if args.requires.iter().any(|(name, _)| *name == "fair") {
        // This also asks for it, where the backend leaves the order to the lock.
        overrides.extend(quote_spanned!(here=> .with_fairness(true)));
    }
    let mut options = TokenStream::new();
    if !overrides.is_empty() {
        options
            .extend(quote_spanned!(here=> .with_overrides(#dlock::__private::Overrides::new() #overrides)));
    }
    if let Some(permits) = args.permits {
        let permits = Literal::u32_suffixed(permits);
        let take = match &args.take {
            None => quote_spanned!(here=> 1u32),
            Some(TakeArg::Permits(take)) => {
                let take = Literal::u32_suffixed(*take);
                quote_spanned!(here=> #take)
            }
            // The expression is not converted, so that a literal in it is a `u32`.
            Some(TakeArg::Expr(take)) => {
                let expression = take.stream();
                quote_spanned!(here.located_at(take.span())=> { #expression })
            }
        };
        options.extend(quote_spanned!(here=> .permits(#permits, #take)));
    }
    if !args.requires.is_empty() {
        let requires = args.requires.iter().map(|(_, variant)| Ident::new(variant, here));
        options.extend(quote_spanned!(here=> .requires(&[#(#dlock::Requirement::#requires),*])));
    }
    if args.on_unavailable == Some(OnUnavailable::Run) {
        options.extend(quote_spanned!(here=> .run_when_unavailable()));
    }
    options
}

/// Returns the user's expression, converted into `ty`.
fn expression(block: &Group, ty: &TokenStream) -> TokenStream {
    let at = Span::mixed_site().located_at(block.span());
    let expr = block.stream();
    quote_spanned!(at=> ::core::convert::Into::<#ty>::into({ #expr }))
}

/// Moves every argument into the body, the last one first: captures are dropped in the order of their mention, which is
/// that of a plain function. A parameter `_` has no name, and stays outside.
///
/// An argument that is not used anywhere stays outside too, so that the compiler reports it as unused.
pub(crate) fn captures(function: &Function, written: &TokenStream) -> TokenStream {
    let captures = function.arguments.iter().rev().filter_map(|argument| {
        let (cfgs, name) = captured(argument, function, written)?;
        Some(quote_spanned!(Span::mixed_site()=> #cfgs let _ = &#name;))
    });
    captures.collect()
}

/// Returns the attributes and the name by which generated code mentions an argument that belongs to the body.
fn captured(argument: &Argument, function: &Function, written: &TokenStream) -> Option<(TokenStream, Ident)> {
    let here = Span::mixed_site();
    let mut name = argument.name.clone();
    let text = name.to_string();
    let unused = text.starts_with('_');
    let used = text == "self" || mentions(written, &text) || mentions(&function.body.block.stream(), &text);
    if !unused && !used {
        return None;
    }
    // Resolved where the user wrote it, so that it is the user's name, and shown at the macro, so that no lint of the
    // user's applies.
    name.set_span(here.resolved_at(name.span()));
    let cfgs = &argument.cfgs;
    let allow = unused.then(|| quote_spanned!(here=> #[allow(clippy::used_underscore_binding)]));
    Some((quote_spanned!(here=> #(#cfgs)* #allow), name))
}

/// Is `true` if the name occurs, also if only in a format string.
fn mentions(tokens: &TokenStream, name: &str) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == name,
        TokenTree::Literal(literal) => is_placeholder(&literal.to_string(), name.trim_start_matches("r#")),
        TokenTree::Group(group) => mentions(&group.stream(), name),
        TokenTree::Punct(_) => false,
    })
}

/// Is `true` if the text of a literal has the name in braces or angle brackets, as a format string or a key has it.
fn is_placeholder(text: &str, name: &str) -> bool {
    let mut rest = text;
    while let Some(open) = rest.find(['{', '<']) {
        rest = &rest[open + 1..];
        let inside = &rest[..rest.find(['}', '>']).unwrap_or(rest.len())];
        if inside.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name) {
            return true;
        }
    }
    false
}

pub(crate) fn check_guard(args: &Args, function: &Function, mistakes: &mut Mistakes) {
    if let Some(guard) = &args.guard
        && function.names().any(|name| name == guard)
    {
        let message = format!(
            "`{guard}` is an argument of `{}`, which the guard would hide; write another name, such as `guard = held`",
            function.name
        );
        mistakes.at(guard.span(), message);
    }
}

#[cfg(test)]
mod tests;
