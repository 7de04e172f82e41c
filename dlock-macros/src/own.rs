//! The options that an attribute other than `#[distributed_lock]` has besides those of a lock.

use proc_macro2::{Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};
use syn::parse::{Parse, ParseStream, Parser};

/// Offers each option to `take`, with its name and its value, and returns the options that `take` refused.
pub(crate) fn split(args: TokenStream, mut take: impl FnMut(&Ident, TokenStream) -> bool) -> TokenStream {
    let mut rest = TokenStream::new();
    let tokens: Vec<TokenTree> = args.into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
    for option in tokens.split(is_comma).filter(|option| !option.is_empty()) {
        let name = match option.first() {
            Some(TokenTree::Ident(name)) => name.clone(),
            _ => Ident::new("other", Span::call_site()),
        };
        if !take(&name, option.iter().skip(2).cloned().collect()) {
            rest.extend(option.iter().cloned());
            rest.extend([TokenTree::Punct(Punct::new(',', Spacing::Alone))]);
        }
    }
    rest
}

/// Parses the value of the option `name`. The error is `what`.
pub(crate) fn value_of<T: Parse>(name: &Ident, value: TokenStream, what: &str) -> syn::Result<T> {
    let parser = |input: ParseStream<'_>| input.parse::<T>();
    parser.parse2(value).map_err(|_| syn::Error::new(name.span(), what))
}

/// Makes the texts of mistakes name the attribute that was written, such as `#[leader`.
pub(crate) fn renamed(tokens: TokenStream, attribute: &str) -> TokenStream {
    let rename = |token: TokenTree| match token {
        TokenTree::Group(group) => {
            let mut renamed = Group::new(group.delimiter(), renamed(group.stream(), attribute));
            renamed.set_span(group.span());
            renamed.into()
        }
        TokenTree::Literal(literal) if literal.to_string().contains("#[distributed_lock") => {
            let text = literal.to_string().replace("#[distributed_lock", attribute);
            match text.parse::<Literal>() {
                Ok(mut renamed) => {
                    renamed.set_span(literal.span());
                    renamed.into()
                }
                Err(_) => literal.into(),
            }
        }
        other => other,
    };
    tokens.into_iter().map(rename).collect()
}
