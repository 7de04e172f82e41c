//! The options of the attribute. Parsing is strict: an option that is not understood is an error that says what to
//! write.

use std::ops::RangeInclusive;

use crate::backend::backend;
use crate::duration;
use crate::error::Mistakes;
use crate::suggest::{list, nearest};
use crate::template::Template;
use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Expr, LitBool, LitInt, LitStr, Path, Token, token};

/// Every option, with an example of it.
const OPTIONS: [(&str, &str); 21] = [
    ("key", "key = \"room_<id>\""),
    ("keys", "keys = [\"room_<a>\", \"room_<b>\"]"),
    ("from", "from = baton"),
    ("segments", "segments = 20"),
    ("mode", "mode = \"read\""),
    ("permits", "permits = 4"),
    ("take", "take = 2"),
    ("requires", "requires = \"fencing\""),
    ("backend", "backend = \"redis\""),
    ("locks", "locks = self.locks"),
    ("wait", "wait = \"5s\""),
    ("lease", "lease = \"30s\""),
    ("max_hold", "max_hold = \"10m\""),
    ("hold_at_least", "hold_at_least = \"1m\""),
    ("on_lost", "on_lost = \"abort\""),
    ("on_busy", "on_busy = Ok(None)"),
    ("on_unavailable", "on_unavailable = \"error\""),
    ("guard", "guard = held"),
    ("recheck", "recheck = false"),
    ("handoff", "handoff = false"),
    ("crate", "crate = ::dlock"),
];

/// The names that other libraries have for these options.
const OTHER_NAMES: [(&str, &str); 9] = [
    ("lock_at_least_for", "hold_at_least"),
    ("lock_at_most_for", "max_hold"),
    ("ttl", "lease"),
    ("expire", "lease"),
    ("timeout", "wait"),
    ("wait_time", "wait"),
    ("name", "key"),
    ("held", "guard"),
    ("baton", "from"),
];

#[derive(Default)]
pub(crate) struct Args {
    pub key: Option<KeyArg>,
    pub keys: Option<KeysArg>,
    /// The baton to take over.
    pub from: Option<Expr>,
    pub segments: Option<u32>,
    pub mode: Option<ModeArg>,
    pub permits: Option<u32>,
    pub take: Option<TakeArg>,
    pub requires: Vec<RequirementName>,
    pub backend: Option<LitStr>,
    pub locks: Option<Expr>,
    pub wait: Option<WaitArg>,
    pub lease: Option<DurationArg>,
    pub max_hold: Option<DurationArg>,
    pub hold_at_least: Option<DurationArg>,
    pub on_lost: Option<OnLostArg>,
    pub on_busy: Option<Expr>,
    pub on_unavailable: Option<OnUnavailable>,
    pub guard: Option<Ident>,
    pub recheck: Option<LitBool>,
    pub handoff: Option<LitBool>,
    pub krate: Option<Path>,
    /// The names of the options that were given, whether their values are right or wrong.
    given: Vec<Ident>,
}

pub(crate) enum KeyArg {
    Template(Template),
    /// The expression in its braces.
    Expr(Group),
}

pub(crate) enum KeysArg {
    Templates(Vec<Template>),
    /// The expression in its braces.
    Expr(Group),
}

/// A guarantee: its name in the attribute and in `dlock::Requirement`.
pub(crate) type RequirementName = (&'static str, &'static str);

const REQUIREMENTS: [RequirementName; 10] = [
    ("fencing", "Fencing"),
    ("fair", "Fair"),
    ("session_kept", "SessionKept"),
    ("notified", "Notified"),
    ("durable", "Durable"),
    ("shared", "Shared"),
    ("downgrade", "Downgrade"),
    ("permits", "Permits"),
    ("hold_at_least", "HoldAtLeast"),
    ("hand_over", "HandOver"),
];

/// The bounds of the runtime. A number out of them is an error at compile time already.
pub(crate) const SEGMENTS: RangeInclusive<u32> = 1..=10_000;
pub(crate) const PERMITS: RangeInclusive<u32> = 1..=1_000_000;

pub(crate) enum WaitArg {
    No,
    Milliseconds(u64),
    Forever,
    /// The expression in its braces.
    Expr(Group),
}

pub(crate) enum DurationArg {
    Milliseconds(u64),
    /// The expression in its braces.
    Expr(Group),
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ModeArg {
    Read,
    Write,
}

pub(crate) enum TakeArg {
    Permits(u32),
    /// The expression in its brackets or braces.
    Expr(Group),
}

#[derive(Clone, Copy)]
pub(crate) enum OnLostArg {
    Abort,
    Continue,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum OnUnavailable {
    Error,
    Run,
}

impl Args {
    pub(crate) fn parse(tokens: TokenStream, mistakes: &mut Mistakes) -> Self {
        let mut args = Self::default();
        let parser = |input: ParseStream<'_>| {
            while !input.is_empty() {
                match args.option(input, mistakes) {
                    Err(mistake) => mistakes.push(mistake),
                    Ok(()) if input.is_empty() || input.peek(Token![,]) => {}
                    Ok(()) => mistakes.at(input.span(), "expected a `,` between two options"),
                }
                // The rest of a wrong option is skipped, so that the options after it are checked as well.
                while !input.is_empty() && !input.peek(Token![,]) {
                    input.parse::<TokenTree>()?;
                }
                input.parse::<Option<Token![,]>>()?;
            }
            Ok(())
        };
        let result = parser.parse2(tokens);
        mistakes.take(result);
        args.check(mistakes);
        args
    }

    /// Is `true` if the option was given, whether its value is right or wrong.
    pub(crate) fn gives(&self, option: &str) -> bool {
        self.given.iter().any(|given| given == option)
    }

    /// Returns the place at which the option was given, if it was.
    pub(crate) fn given_at(&self, option: &str) -> Option<proc_macro2::Span> {
        self.given.iter().find(|given| *given == option).map(Ident::span)
    }

    /// Reads one `name = value`. After a mistake it stops anywhere.
    fn option(&mut self, input: ParseStream<'_>, mistakes: &mut Mistakes) -> syn::Result<()> {
        if input.peek(LitStr) {
            let text: LitStr = input.parse()?;
            self.given.push(Ident::new("key", text.span()));
            let message = format!("an option needs its name; write `key = \"{}\"`", text.value());
            return Err(syn::Error::new(text.span(), message));
        }
        let name = input.call(Ident::parse_any)?;
        let option = name.to_string();
        let Some((_, example)) = OPTIONS.iter().find(|(known, _)| *known == option) else {
            return Err(syn::Error::new(name.span(), unknown(&option)));
        };
        let repeated = self.gives(&option);
        if repeated {
            mistakes.at(name.span(), format!("`{option}` is given twice; keep one of them"));
        }
        let missing = syn::Error::new(name.span(), format!("`{option}` needs a value; write `{example}`"));
        self.given.push(name);
        if !input.peek(Token![=]) || input.peek(Token![==]) {
            return Err(missing);
        }
        input.parse::<Token![=]>()?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(missing);
        }
        // A repeated option is read all the same, so that mistakes in its value show in this build.
        let mut ignored = Self::default();
        let args = if repeated { &mut ignored } else { self };
        args.value(&option, example, input)
    }

    fn value(&mut self, option: &str, example: &str, input: ParseStream<'_>) -> syn::Result<()> {
        let text = |input: ParseStream<'_>| text(option, example, input);
        match option {
            "key" => self.key = Some(key(input)?),
            "keys" => self.keys = Some(keys(input)?),
            "from" => self.from = Some(input.parse()?),
            "segments" => self.segments = Some(segments(input)?),
            "mode" => {
                let choices = [("read", ModeArg::Read), ("write", ModeArg::Write)];
                self.mode = Some(choice(option, &text(input)?, choices)?);
            }
            "permits" => self.permits = Some(permits(input)?),
            "take" => self.take = Some(take(input)?),
            "requires" => self.requires = requires(input)?,
            "backend" => self.backend = Some(backend(&text(input)?)?),
            "locks" => self.locks = Some(input.parse()?),
            "wait" if input.peek(token::Brace) => self.wait = Some(WaitArg::Expr(block(option, input)?)),
            "wait" => self.wait = Some(wait(&text(input)?)?),
            "lease" => self.lease = Some(span_of_time(option, example, input, &duration::LEASE)?),
            "max_hold" => self.max_hold = Some(span_of_time(option, example, input, &duration::MAX_HOLD)?),
            "hold_at_least" => {
                let least = span_of_time(option, example, input, &duration::HOLD_AT_LEAST)?;
                self.hold_at_least = Some(least);
            }
            "on_lost" => {
                let choices = [("abort", OnLostArg::Abort), ("continue", OnLostArg::Continue)];
                self.on_lost = Some(choice(option, &text(input)?, choices)?);
            }
            "on_busy" => self.on_busy = Some(on_busy(input)?),
            "on_unavailable" => {
                let choices = [("run", OnUnavailable::Run), ("error", OnUnavailable::Error)];
                self.on_unavailable = Some(choice(option, &text(input)?, choices)?);
            }
            "guard" => self.guard = Some(parse_or(input, "`guard` takes a name for the body", example)?),
            "handoff" => self.handoff = Some(parse_or(input, "`handoff` is `true` or `false`", example)?),
            "recheck" => self.recheck = Some(parse_or(input, "`recheck` is `true` or `false`", example)?),
            _ => self.krate = Some(crate_path(input)?),
        }
        Ok(())
    }

    /// Reports options that do not go together, at the later one.
    fn check(&self, mistakes: &mut Mistakes) {
        let later = |a: &str, b: &str| {
            let at = |option| self.given.iter().position(|given| given == option);
            at(a).zip(at(b)).map(|(a, b)| self.given[a.max(b)].span())
        };
        if let Some(span) = later("backend", "locks") {
            mistakes.at(span, "`backend` and `locks` both say where to lock; keep one of them");
        }
        if let Some(span) = later("key", "keys") {
            mistakes.at(
                span,
                "`key` and `keys` both say what to lock; keep one of them, with all keys in `keys`",
            );
        }
        if let Some(span) = later("keys", "segments") {
            mistakes.at(span, "`segments` splits one key, and `keys` are several; keep one of them");
        }
        for other in ["keys", "segments", "permits", "mode"] {
            let reads = self.mode == Some(ModeArg::Read);
            if let Some(span) = later("from", other).filter(|_| other != "mode" || reads) {
                let message = format!(
                    "`from` takes over one lock that is held alone, which has no `{other}`; remove one of them"
                );
                mistakes.at(span, message);
            }
        }
        let is_fair = self.requires.iter().any(|(name, _)| *name == "fair");
        for (other, why) in
            [("on_busy", "is never busy; remove `on_busy`"), ("requires", "has no turn; remove `\"fair\"`")]
        {
            if let Some(span) = later("from", other).filter(|_| other != "requires" || is_fair) {
                mistakes.at(span, format!("a take-over waits for nobody, and {why} or `from`"));
            }
        }
        for other in ["keys", "segments", "mode"] {
            if let Some(span) = later("permits", other) {
                let message = format!(
                    "`permits` is a semaphore of one key, which has no `{other}`; remove one of them"
                );
                mistakes.at(span, message);
            }
        }
        if let Some(span) = later("segments", "mode") {
            mistakes.at(span, "a segment is held alone; remove `mode` or `segments`");
        }
        let shares = if self.mode == Some(ModeArg::Read) { "mode" } else { "permits" };
        if let Some(span) = later("hold_at_least", shares) {
            mistakes.at(
                span,
                format!("only a lock that is held alone has `hold_at_least`; remove it or `{shares}`"),
            );
        }
        if let (false, Some(take)) = (self.gives("permits"), self.given.iter().find(|given| *given == "take"))
        {
            mistakes
                .at(take.span(), "`take` is how many of the `permits` a call needs; write `permits = 4` too");
        }
        if let (Some(TakeArg::Permits(take)), Some(permits), Some(span)) =
            (&self.take, self.permits, later("permits", "take"))
            && *take > permits
        {
            mistakes.at(span, format!("a call cannot have {take} of {permits} permits; take 1 to {permits}"));
        }
        if let Some(span) = later("segments", "on_unavailable") {
            let message = "without the lock a body has no segment; remove `on_unavailable` or `segments`";
            mistakes.at(span, message);
        }
        if let (Some(WaitArg::Forever), Some(span)) = (&self.wait, later("wait", "on_busy")) {
            let message = "an acquire that waits forever is never busy, so that `on_busy` is never used; \
                           remove it, or write `wait = \"no\"` or a duration";
            mistakes.at(span, message);
        }
    }
}

fn unknown(option: &str) -> String {
    let names = || OPTIONS.iter().map(|(name, _)| *name);
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == option).map(|(_, name)| *name);
    let meant = other.or_else(|| nearest(option, names()));
    let meant = meant.map_or_else(String::new, |name| format!("did you mean `{name}`? "));
    format!("unknown option `{option}`; {meant}expected one of {}", list(names()))
}

/// Reads a duration as an expression in braces.
fn block(option: &str, input: ParseStream<'_>) -> syn::Result<Group> {
    let block: Group = input.parse()?;
    if block.stream().is_empty() {
        let message = format!(
            "the block gives no duration; write an expression in it, such as `{option} = {{ TIMEOUT }}`"
        );
        return Err(syn::Error::new(block.span(), message));
    }
    Ok(block)
}

/// Reads a duration as a string literal with a unit, or as an expression in braces.
fn span_of_time(
    option: &str,
    example: &str,
    input: ParseStream<'_>,
    bounds: &RangeInclusive<u64>,
) -> syn::Result<DurationArg> {
    if input.peek(token::Brace) {
        return block(option, input).map(DurationArg::Expr);
    }
    let text = text(option, example, input)?;
    duration::parse(option, &text, bounds).map(DurationArg::Milliseconds)
}

/// Reads a string literal without a suffix.
fn text(option: &str, example: &str, input: ParseStream<'_>) -> syn::Result<LitStr> {
    let what = format!("`{option}` takes a string literal");
    match input.fork().parse()? {
        TokenTree::Ident(word) if takes_a_duration(option) && word != "no" && word != "forever" => {
            let message = format!(
                "`{option}` takes a duration: a string literal with a unit, or an expression in braces; write \
                 `{example}`, or put `{{ … }}` around this"
            );
            Err(syn::Error::new(word.span(), message))
        }
        TokenTree::Ident(word) => parse_or(input, &what, &format!("{option} = \"{word}\"")),
        TokenTree::Literal(number) if takes_a_duration(option) => {
            let whole = number.to_string().bytes().all(|b| b.is_ascii_digit());
            let example = if whole { &format!("{option} = \"{number}s\"") } else { example };
            parse_or(input, "a duration is a string literal with a unit", example)
        }
        _ => parse_or(input, &what, example),
    }
}

fn takes_a_duration(option: &str) -> bool {
    ["wait", "lease", "max_hold", "hold_at_least"].contains(&option)
}

fn parse_or<T: Parse>(input: ParseStream<'_>, what: &str, remedy: &str) -> syn::Result<T> {
    let at = input.span();
    input.parse().map_err(|_| syn::Error::new(at, format!("{what}; write `{remedy}`")))
}

fn key(input: ParseStream<'_>) -> syn::Result<KeyArg> {
    if input.peek(token::Brace) {
        let block: Group = input.parse()?;
        if block.stream().is_empty() {
            let message =
                "the block gives no key; write an expression in it, such as `key = { id.to_string() }`";
            return Err(syn::Error::new(block.span(), message));
        }
        return Ok(KeyArg::Expr(block));
    }
    if input.peek(LitStr) {
        return Template::parse(input.parse()?).map(KeyArg::Template);
    }
    let at = input.span();
    let token: TokenTree = input.parse()?;
    let remedy = match token {
        TokenTree::Ident(name) if input.is_empty() || input.peek(Token![,]) => {
            format!("`key = \"<{name}>\"`, or `key = {{ &{name} }}`")
        }
        _ => "`key = \"room_<id>\"`, or `key = { … }` around this".to_owned(),
    };
    let message = format!("the key is a string literal, or an expression in braces; write {remedy}");
    Err(syn::Error::new(at, message))
}

fn keys(input: ParseStream<'_>) -> syn::Result<KeysArg> {
    if input.peek(token::Brace) {
        let block: Group = input.parse()?;
        if block.stream().is_empty() {
            let message = "the block gives no keys; write an expression in it that can be iterated over, such as \
                           `keys = { ids.iter() }`";
            return Err(syn::Error::new(block.span(), message));
        }
        return Ok(KeysArg::Expr(block));
    }
    let at = input.span();
    if !input.peek(token::Bracket) {
        let message = "the keys are a list of string literals, or an expression in braces that can be iterated over; \
                       write `keys = [\"room_<a>\", \"room_<b>\"]`, or `keys = { … }` around this";
        return Err(syn::Error::new(at, message));
    }
    let list: Group = input.parse()?;
    let parser = |input: ParseStream<'_>| {
        let mut templates = Vec::new();
        while !input.is_empty() {
            if input.peek(syn::Ident) && input.peek2(token::Paren) {
                let called: Ident = input.fork().parse()?;
                if called == "read" || called == "write" {
                    let message = "all keys of the attribute are held in one mode, which `mode = \"read\"` sets; lock \
                                   some to read and others to write by hand, with `locks.lock_all([read(\"a\"), \
                                   write(\"b\")])`";
                    return Err(syn::Error::new(called.span(), message));
                }
            }
            let text = parse_or(
                input,
                "each key is a string literal",
                "keys = { [ … ] }` around expressions, or `keys = [\"room_<a>\", \"room_<b>\"]",
            )?;
            templates.push(Template::parse(text)?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(templates)
    };
    let templates = parser.parse2(list.stream())?;
    if templates.is_empty() {
        let message = "an empty list locks nothing; write the keys in it, such as `keys = [\"room_<a>\", \"room_<b>\"]`";
        return Err(syn::Error::new(list.span(), message));
    }
    Ok(KeysArg::Templates(templates))
}

fn segments(input: ParseStream<'_>) -> syn::Result<u32> {
    let number: LitInt = parse_or(input, "`segments` is a whole number", "segments = 20")?;
    match number.base10_parse() {
        Ok(segments) if SEGMENTS.contains(&segments) => Ok(segments),
        _ => {
            let message =
                format!("write a number of segments from {} to {}", SEGMENTS.start(), SEGMENTS.end());
            Err(syn::Error::new(number.span(), message))
        }
    }
}

fn permits(input: ParseStream<'_>) -> syn::Result<u32> {
    let number: LitInt = parse_or(input, "`permits` is a whole number", "permits = 4")?;
    match number.base10_parse() {
        Ok(permits) if PERMITS.contains(&permits) => Ok(permits),
        _ => {
            let message = format!("write a number of permits from {} to {}", PERMITS.start(), PERMITS.end());
            Err(syn::Error::new(number.span(), message))
        }
    }
}

/// Reads a number, an expression in braces, or an expression that names an argument, in angle brackets as in a key.
fn take(input: ParseStream<'_>) -> syn::Result<TakeArg> {
    const WHAT: &str = "`take` is a whole number, an argument, or an expression in braces";
    const EXAMPLE: &str = "take = 2`, `take = <n>` or `take = { n + 1 }";
    if input.peek(token::Brace) {
        let block: Group = input.parse()?;
        if block.stream().is_empty() {
            let message = "the block gives no number; write an expression in it, such as `take = { n }`";
            return Err(syn::Error::new(block.span(), message));
        }
        return Ok(TakeArg::Expr(block));
    }
    if input.peek(Token![<]) {
        let open: Token![<] = input.parse()?;
        let mut expression = TokenStream::new();
        while !input.is_empty() && !input.peek(Token![>]) && !input.peek(Token![,]) {
            expression.extend([input.parse::<TokenTree>()?]);
        }
        if expression.is_empty() || input.parse::<Token![>]>().is_err() {
            return Err(syn::Error::new_spanned(open, format!("{WHAT}; write `{EXAMPLE}`")));
        }
        return Ok(TakeArg::Expr(Group::new(proc_macro2::Delimiter::Brace, expression)));
    }
    let number: LitInt = parse_or(input, WHAT, EXAMPLE)?;
    match number.base10_parse() {
        Ok(permits) if PERMITS.contains(&permits) => Ok(TakeArg::Permits(permits)),
        _ => {
            let message = format!("take {} to {} permits", PERMITS.start(), PERMITS.end());
            Err(syn::Error::new(number.span(), message))
        }
    }
}

/// Reads one name or a list of names.
fn requires(input: ParseStream<'_>) -> syn::Result<Vec<RequirementName>> {
    const EXAMPLE: &str = "requires = \"fencing\"` or `requires = [\"fencing\", \"durable\"]";
    let requirement = |input: ParseStream<'_>| {
        let text: LitStr =
            parse_or(input, "`requires` takes names of guarantees as string literals", EXAMPLE)?;
        let name = text.value();
        REQUIREMENTS.into_iter().find(|(known, _)| *known == name).ok_or_else(|| {
            let names = || REQUIREMENTS.iter().map(|(name, _)| *name);
            let meant = nearest(&name, names());
            let meant = meant.map_or_else(String::new, |name| format!("did you mean `{name}`? "));
            let message = format!("unknown guarantee `{name}`; {meant}expected one of {}", list(names()));
            syn::Error::new(text.span(), message)
        })
    };
    if !input.peek(token::Bracket) {
        return Ok(vec![requirement(input)?]);
    }
    let names: Group = input.parse()?;
    let parser = |input: ParseStream<'_>| {
        let mut found = Vec::new();
        while !input.is_empty() {
            found.push(requirement(input)?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(found)
    };
    parser.parse2(names.stream())
}

fn wait(text: &LitStr) -> syn::Result<WaitArg> {
    match text.value().as_str() {
        "no" => Ok(WaitArg::No),
        "forever" => Ok(WaitArg::Forever),
        _ => duration::parse("wait", text, &duration::WAIT).map(WaitArg::Milliseconds),
    }
}

fn choice<T>(option: &str, text: &LitStr, choices: [(&str, T); 2]) -> syn::Result<T> {
    let value = text.value();
    let [(first, _), (second, _)] = &choices;
    let message = format!("`{option}` is `\"{first}\"` or `\"{second}\"`, not `\"{value}\"`");
    let chosen = choices.into_iter().find(|(name, _)| *name == value);
    chosen.map(|(_, chosen)| chosen).ok_or_else(|| syn::Error::new(text.span(), message))
}

fn crate_path(input: ParseStream<'_>) -> syn::Result<Path> {
    const ABSOLUTE: &str = "the path of the crate is absolute; write `crate = ::name`, or `crate = crate::path` for \
                            a re-export in this crate";
    let at = input.span();
    let path = Path::parse_mod_style(input).map_err(|_| syn::Error::new(at, ABSOLUTE))?;
    let root = path.segments.first().map(|segment| segment.ident.to_string());
    // `$crate` is what a `macro_rules!` macro of the re-exporting crate writes.
    let absolute = path.leading_colon.is_some() || matches!(root.as_deref(), Some("crate" | "$crate"));
    if absolute { Ok(path) } else { Err(syn::Error::new(at, ABSOLUTE)) }
}

/// Reads an expression, or a closure that gets the error: `|error| expression`.
fn on_busy(input: ParseStream<'_>) -> syn::Result<Expr> {
    let expr: Expr = input.parse()?;
    if let Expr::Closure(closure) = &expr {
        let plain = closure.capture.is_none() && closure.asyncness.is_none() && closure.lifetimes.is_none();
        if !plain || closure.inputs.len() != 1 {
            let message = "`on_busy` is shown one error, and may await and use `?` as it is; write \
                           `on_busy = |error| ...`";
            return Err(syn::Error::new_spanned(&expr, message));
        }
    }
    Ok(expr)
}
