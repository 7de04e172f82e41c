//! `#[once]`: the body is a job that one of all processes runs.
//!
//! ```text
//! Input:   #[once(key = "report", every = "1h")]
//!          async fn report(db: Db) -> Result<(), AppError> { BODY }
//!
//! Output:  async fn report(db: Db) -> Result<Outcome<()>, AppError> {
//!              let job = ::dlock::__private::Section::of(…).once_in(3_600_000);
//!              return job.run(async move { BODY }).await;
//!          }
//! ```

use proc_macro2::{Delimiter, Group, Ident, Literal, Span, TokenStream};
use quote::quote_spanned;
use syn::LitStr;

use crate::args::{Args, KeyArg};
use crate::duration;
use crate::error::{Mistakes, report};
use crate::expand::{captures, check_guard, key, options, paths, site, source};
use crate::function::Function;
use crate::own::{renamed, split, value_of};

/// The options that only jobs have.
#[derive(Default)]
struct Own {
    /// The window, with the name of the option that set it.
    window: Option<(Ident, Window)>,
    on_error: Option<bool>,
    on_crash: Option<(Span, bool)>,
}

enum Window {
    Milliseconds(u64),
    Expr(Group),
}

/// The options of a lock that a job does not have, each with the reason.
const NOT_HERE: [(&str, &str); 13] = [
    ("keys", "a job has one key"),
    ("segments", "a job has one key"),
    ("mode", "a job runs alone"),
    ("permits", "a job runs once"),
    ("take", "a job runs once"),
    ("from", "a job is not handed over"),
    ("hold_at_least", "`every` or `keep` says for how long it is not run again"),
    ("on_lost", "the body is dropped when its lock is lost"),
    ("on_busy", "a job that somebody else runs is `Outcome::Skipped`"),
    ("on_unavailable", "a job does not run without the backend"),
    ("recheck", "a job asks until it knows"),
    ("handoff", "a job is not passed on"),
    ("requires", "say it where the locks are built"),
];

pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut mistakes = Mistakes::default();
    let written = args.clone();
    let (own, rest) = Own::split(args, &mut mistakes);
    let args = Args::parse(rest, &mut mistakes);
    for (option, why) in NOT_HERE {
        if let Some(span) = args.given_at(option) {
            mistakes.at(span, format!("`{option}` does not go with `#[once]`: {why}"));
        }
    }
    own.check(&args, &mut mistakes);
    let function = mistakes.take(Function::parse(item.clone()));
    let expanded = function.and_then(|function| job(&args, &own, &written, &function, &mut mistakes));
    match (expanded, mistakes.into_error()) {
        (_, Some(mistakes)) => renamed(report(&mistakes, &item), "#[once"),
        (expanded, None) => expanded.unwrap_or(item),
    }
}

fn job(
    args: &Args,
    own: &Own,
    written: &TokenStream,
    function: &Function,
    mistakes: &mut Mistakes,
) -> Option<TokenStream> {
    let here = Span::mixed_site();
    let (dlock, private) = paths(args);
    check_guard(args, function, mistakes);
    let key = key(args, function, mistakes);
    let output = mistakes.take(function.output());
    let header = mistakes.take(
        function.header_with(|output| quote_spanned!(here=> <#output as #private::JobOutput>::Outcome)),
    );
    let ((key, output), header) = key.zip(output).zip(header)?;
    let (_, window) = own.window.as_ref()?;
    let once = match window {
        Window::Milliseconds(window) => {
            let window = Literal::u64_unsuffixed(*window);
            quote_spanned!(here=> .once_in_milliseconds(#window))
        }
        Window::Expr(window) => {
            let at = here.located_at(window.span());
            let window = window.stream();
            quote_spanned!(at=> .once_in({ #window }))
        }
    };
    let on_error = (own.on_error == Some(true)).then(|| quote_spanned!(here=> .skip_after_error()));
    let on_crash =
        matches!(own.on_crash, Some((_, true))).then(|| quote_spanned!(here=> .skip_after_crash()));
    let site = site(args, function);
    let (backend, source) = source(args, &private);
    let options = options(args, &dlock);
    let captures = captures(function, written);
    let guard = args.guard.as_ref().map(|guard| quote_spanned!(here=> let #guard = #private::held();));
    let body = &function.body.block;
    Some(function.with_header_and_body(&header, &quote_spanned! {here=>
        #backend
        let job = #private::Section::of(#site, #source, ::std::string::ToString::to_string(&#key)) #options
            #once #on_error #on_crash;
        return job.run::<#output, _>(async move {
            #captures
            if let ::core::option::Option::Some(output) = ::core::option::Option::None::<#output> {
                return output;
            }
            #guard
            #body
        }).await;
    }))
}

impl Own {
    /// Takes the options of jobs out of `args`, and returns the rest.
    fn split(args: TokenStream, mistakes: &mut Mistakes) -> (Self, TokenStream) {
        let mut own = Self::default();
        let rest = split(args, |name, value| {
            let option = name.to_string();
            match option.as_str() {
                "every" | "keep" => match &own.window {
                    None => {
                        own.window = mistakes.take(window(name, value)).map(|window| (name.clone(), window));
                    }
                    Some((before, _)) => {
                        let message = format!(
                            "`{before}` says already for how long it is not run again; write `every` for a job with one \
                             key, or `keep` for a key that names the firing"
                        );
                        mistakes.at(name.span(), message);
                    }
                },
                "on_error" => own.on_error = mistakes.take(skips(name, value)),
                "on_crash" => {
                    own.on_crash = mistakes.take(skips(name, value)).map(|skips| (name.span(), skips));
                }
                _ => return false,
            }
            true
        });
        (own, rest)
    }

    /// Reports options that contradict each other.
    fn check(&self, args: &Args, mistakes: &mut Mistakes) {
        let Some((option, window)) = &self.window else {
            if mistakes.is_empty() {
                let message = "for how long is it not run again? write `every = \"1h\"` for a job with one key, or \
                               `keep = \"25h\"` for a key that names the firing, as in `key = \"invoice:<fire_at>\"`";
                mistakes.at(Span::call_site(), message);
            }
            return;
        };
        if let (true, Some(KeyArg::Template(template))) = (option == "keep", &args.key)
            && !template.label().contains('<')
        {
            let message = "`keep` is for a key of each firing, and this one is the same each time; name the firing in \
                           the key, as in `key = \"invoice:<fire_at>\"`, or write `every` for the time between two runs";
            mistakes.at(option.span(), message);
        }
        let Some((at, true)) = self.on_crash else { return };
        if let Window::Milliseconds(window) = window
            && !duration::LEASE.contains(window)
        {
            let message = format!(
                "a window that a crash closes is 50ms to 24h long; write another `{option}`, or \
                                   `on_crash = \"rerun\"`"
            );
            mistakes.at(at, message);
        }
        if let Some(lease) = args.given_at("lease") {
            let message =
                format!("with `on_crash = \"skip\"` the lease is as long as `{option}`; remove one of them");
            mistakes.at(lease, message);
        }
    }
}

fn window(name: &Ident, value: TokenStream) -> syn::Result<Window> {
    let option = name.to_string();
    let what = format!("`{option}` takes a duration: `{option} = \"1h\"`, or an expression in braces");
    if let Ok(group) = syn::parse2::<Group>(value.clone())
        && group.delimiter() == Delimiter::Brace
    {
        return Ok(Window::Expr(group));
    }
    let text = value_of::<LitStr>(name, value, &what)?;
    duration::parse(&option, &text, &duration::HOLD_AT_LEAST).map(Window::Milliseconds)
}

/// Parses `"rerun"` or `"skip"`. Returns `true` if the job is skipped after the failure in question.
fn skips(name: &Ident, value: TokenStream) -> syn::Result<bool> {
    let what = format!("`{name}` is \"rerun\" or \"skip\"; write `{name} = \"skip\"`");
    let text = value_of::<LitStr>(name, value, &what)?;
    match text.value().as_str() {
        "rerun" => Ok(false),
        "skip" => Ok(true),
        _ => Err(syn::Error::new(text.span(), what)),
    }
}
