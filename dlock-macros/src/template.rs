//! Key templates: text with placeholders that name the function's arguments, as in `"room_<id>"`.
//!
//! ```text
//! literal --pieces--> text and placeholders --to_key--> format_args!("room_{}", id)
//! ```
//!
//! `pieces` refuses what is no template: an empty, unclosed or misspelt placeholder, two without text between them,
//! more than 512 bytes of text, a NUL. `to_key` refuses the name of no argument. All of these are errors of the
//! compiler; the finished key is checked at run time, by `Key::new` of dlock-core.

use crate::error::Mistakes;
use crate::function::Function;
use crate::suggest::{list, nearest};
use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{quote, quote_spanned};
use std::iter::Peekable;
use std::str::CharIndices;
use syn::LitStr;
use syn::ext::IdentExt;
use syn::parse::Parser;

/// A key as it was written in the attribute, `"room_<id>"`, with the pieces that it consists of.
pub(crate) struct Template {
    literal: LitStr,
    pieces: Vec<Piece>,
}

#[derive(Debug, PartialEq)]
enum Piece {
    Text(String),
    /// `<order.lines.0>`: the name of an argument, then fields.
    Placeholder(Vec<String>),
}

impl Template {
    pub(crate) fn parse(literal: LitStr) -> syn::Result<Self> {
        match pieces(&literal.value()) {
            Ok(pieces) => Ok(Self { literal, pieces }),
            Err(message) => Err(syn::Error::new(literal.span(), message)),
        }
    }

    /// Returns the label under which all keys of this template are counted.
    pub(crate) fn label(&self) -> String {
        self.literal.value()
    }

    /// Returns an expression for the key as a `String`, or `None` if a placeholder names no argument.
    pub(crate) fn to_key(&self, function: &Function, mistakes: &mut Mistakes) -> Option<TokenStream> {
        let here = Span::mixed_site();
        let mut format = String::new();
        let mut values = Vec::new();
        let mut complete = true;
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => format.push_str(&text.replace('{', "{{").replace('}', "}}")),
                Piece::Placeholder(path) => {
                    format.push_str("{}");
                    match self.value(path, function) {
                        Ok(value) => values.push(value),
                        Err(mistake) => {
                            mistakes.push(mistake);
                            complete = false;
                        }
                    }
                }
            }
        }
        let mut format = Literal::string(&format);
        format.set_span(here);
        complete.then(|| quote_spanned!(here=> ::core::format_args!(#format #(, #values)*)))
    }

    /// Returns `order.lines.0`, with the identifier of the function's own argument: a new identifier would not be the
    /// same name when the attribute comes out of a `macro_rules!` macro.
    fn value(&self, path: &[String], function: &Function) -> syn::Result<TokenStream> {
        let at = self.literal.span();
        let (root, fields) = path.split_first().expect("a placeholder has a name");
        let Some(argument) = function.names().find(|name| name.unraw() == unraw(root)) else {
            return Err(syn::Error::new(at, unknown(path, function)));
        };
        let mut root = argument.clone();
        root.set_span(argument.span().located_at(at));
        let fields = fields.iter().map(|field| match field.parse::<u32>() {
            Ok(index) => {
                let mut index = Literal::u32_unsuffixed(index);
                index.set_span(at);
                quote!(#index)
            }
            Err(_) => {
                let field = field_name(field, at);
                quote!(#field)
            }
        });
        Ok(quote_spanned!(at=> #root #(. #fields)*))
    }
}

fn unknown(path: &[String], function: &Function) -> String {
    let (root, fields) = path.split_first().expect("a placeholder has a name");
    let name = &function.name;
    let names: Vec<String> = function.names().map(|name| name.unraw().to_string()).collect();
    // `#[async_trait]` gives such a name to an argument that is a pattern.
    let (patterns, names): (Vec<_>, Vec<_>) =
        names.iter().partition(|name| function.is_boxed() && name.starts_with("__arg"));
    let names = || names.iter().map(|name| name.as_str());
    let in_scope = match list(names()) {
        none if none.is_empty() => "no arguments are in scope".to_owned(),
        names => format!("in scope: {names}"),
    };
    let mut message = if root == "self" {
        format!("`<{}>`: `{name}` has no `self`; {in_scope}", path.join("."))
    } else if let Some(near) = nearest(root, names()) {
        let path = fields.iter().fold(near.to_owned(), |path, field| path + "." + field);
        format!("`<{root}>` does not name an argument of `{name}`, did you mean `<{path}>`? {in_scope}")
    } else {
        format!("`<{root}>` does not name an argument of `{name}`; {in_scope}")
    };
    if !patterns.is_empty() {
        message.push_str("; `#[async_trait]` hides the parts of a pattern: give that argument one name");
    } else if root.starts_with(char::is_uppercase) {
        // The attribute does not see the `impl` around the function.
        message.push_str("; for a constant, or a const parameter of the `impl`, write `key = { format!(\"…{");
        message.push_str(root);
        message.push_str("}\") }`");
    }
    message
}

fn unraw(name: &str) -> &str {
    name.strip_prefix("r#").unwrap_or(name)
}

/// Returns the name of a field. A keyword can be one as well: `<order.type>` is `order.r#type`.
fn field_name(name: &str, span: Span) -> Ident {
    let name = unraw(name);
    match syn::parse_str::<Ident>(name) {
        Ok(_) => Ident::new(name, span),
        Err(_) => Ident::new_raw(name, span),
    }
}

/// The longest key that the runtime accepts, in bytes.
const MAX_LEN: usize = 512;

fn pieces(template: &str) -> Result<Vec<Piece>, String> {
    if template.is_empty() {
        return Err(
            "an empty key; write the name of what is locked, such as `key = \"room_<id>\"`".to_owned()
        );
    }
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut chars = template.char_indices().peekable();
    while let Some((start, c)) = chars.next() {
        let close = match c {
            '<' => '>',
            '{' => '}',
            '>' | '}' => {
                if !follows(&mut chars, c) {
                    return Err(format!(
                        "`{c}` closes no placeholder; write `{c}{c}` for one `{c}` in the key"
                    ));
                }
                text.push(c);
                continue;
            }
            _ => {
                text.push(c);
                continue;
            }
        };
        if follows(&mut chars, c) {
            text.push(c);
            continue;
        }
        let inside = &template[start + 1..];
        let Some(length) = inside.find(close) else {
            return Err(format!(
                "`{}` is not closed; write `{c}name{close}` for an argument, or `{c}{c}` for one `{c}` in the key",
                &template[start..]
            ));
        };
        let placeholder = placeholder(&inside[..length], c, close)?;
        while chars.next_if(|&(at, _)| at <= start + 1 + length).is_some() {}
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        } else if let Some(Piece::Placeholder(before)) = pieces.last() {
            let (before, this) = (before.join("."), placeholder.join("."));
            return Err(format!(
                "`<{before}>` and `<{this}>` touch, so that different arguments can give the same key (1 and 23, \
                 12 and 3); write something between them, such as `<{before}>:<{this}>`"
            ));
        }
        pieces.push(Piece::Placeholder(placeholder));
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    let fixed =
        pieces.iter().map(|piece| if let Piece::Text(text) = piece { text.len() } else { 0 }).sum::<usize>();
    if fixed > MAX_LEN {
        return Err(format!(
            "the text of this key has {fixed} bytes, and a key has at most {MAX_LEN}; shorten it"
        ));
    }
    if template.contains('\0') {
        return Err("a key cannot contain a NUL character; remove it".to_owned());
    }
    Ok(pieces)
}

fn follows(chars: &mut Peekable<CharIndices<'_>>, expected: char) -> bool {
    chars.next_if(|&(_, c)| c == expected).is_some()
}

fn placeholder(inside: &str, open: char, close: char) -> Result<Vec<String>, String> {
    let path: Vec<String> = inside.split('.').map(str::to_owned).collect();
    if inside.is_empty() {
        return Err(format!("`{open}{close}` names no argument; write `{open}name{close}`"));
    }
    let valid = path.iter().enumerate().all(|(i, part)| match (i, unraw(part)) {
        (0, "self") => true,
        (_, "self" | "Self" | "super" | "crate" | "_") => false,
        (i, part) => is_name(part) || (i > 0 && is_index(part)),
    });
    if valid {
        return Ok(path.into_iter().map(|part| name(&part).unwrap_or(part)).collect());
    }
    let trimmed = inside.trim();
    if trimmed != inside && is_name(trimmed) {
        return Err(format!("`{open}{inside}{close}` has spaces in it; write `{open}{trimmed}{close}`"));
    }
    Err(format!(
        "`{open}{inside}{close}` is not an argument or a field of one, such as `<id>`, `<self.tenant>` or \
         `<order.lines.0>`; for anything else write `key = {{ format!(\"…\") }}`"
    ))
}

fn is_name(part: &str) -> bool {
    name(part).is_some()
}

/// Returns the name as the compiler spells it, which is NFC for every spelling, so that the placeholder finds the
/// argument.
fn name(part: &str) -> Option<String> {
    // The parser would skip comments and blanks.
    if part.contains(|c: char| c.is_whitespace() || c == '/') {
        return None;
    }
    Ident::parse_any.parse_str(part).ok().map(|name| name.to_string())
}

fn is_index(part: &str) -> bool {
    part.parse::<u32>().is_ok_and(|index| index.to_string() == part)
}

#[cfg(test)]
mod tests {
    use super::{Piece, pieces};

    fn text(text: &str) -> Piece {
        Piece::Text(text.to_owned())
    }

    fn placeholder(path: &[&str]) -> Piece {
        Piece::Placeholder(path.iter().map(|part| (*part).to_owned()).collect())
    }

    #[test]
    fn a_template_is_text_and_placeholders() {
        assert_eq!(pieces("room"), Ok(vec![text("room")]));
        assert_eq!(pieces("<id>"), Ok(vec![placeholder(&["id"])]));
        assert_eq!(
            pieces("a<self.tenant>:{order.lines.0.sku}é"),
            Ok(vec![
                text("a"),
                placeholder(&["self", "tenant"]),
                text(":"),
                placeholder(&["order", "lines", "0", "sku"]),
                text("é"),
            ])
        );
        assert_eq!(pieces("<r#type>"), Ok(vec![placeholder(&["r#type"])]));
    }

    #[test]
    fn a_doubled_bracket_is_one_bracket_of_the_key() {
        assert_eq!(pieces("<<id>>{{id}}"), Ok(vec![text("<id>{id}")]));
        assert_eq!(pieces("<<<id>>>"), Ok(vec![text("<"), placeholder(&["id"]), text(">")]));
        assert_eq!(pieces("{{{id}}}"), Ok(vec![text("{"), placeholder(&["id"]), text("}")]));
    }

    #[test]
    fn every_malformed_template_says_what_to_write() {
        for (template, remedy) in [
            ("", "write the name of what is locked"),
            ("a<id", "`<id` is not closed; write `<name>`"),
            ("a{id", "`{id` is not closed; write `{name}`"),
            ("a<id}", "is not closed"),
            ("a>", "write `>>`"),
            ("a}", "write `}}`"),
            ("<>", "write `<name>`"),
            ("{}", "write `{name}`"),
            ("< id >", "write `<id>`"),
            ("<id:?>", "key = { format!"),
            ("{id:04}", "key = { format!"),
            ("<id()>", "key = { format!"),
            ("<id/**/>", "key = { format!"),
            ("<a..b>", "key = { format!"),
            ("<.a>", "key = { format!"),
            ("<0>", "key = { format!"),
            ("<a.01>", "key = { format!"),
            ("<a.self>", "key = { format!"),
            ("<_>", "key = { format!"),
            ("<a><b.c>", "such as `<a>:<b.c>`"),
            ("<a>{b}", "such as `<a>:<b>`"),
        ] {
            let message = pieces(template).expect_err(template);
            assert!(message.contains(remedy), "{template}: {message}");
        }
    }
}
