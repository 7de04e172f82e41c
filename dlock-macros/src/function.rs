//! The annotated function: its signature is read, its body is only moved.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{
    Attribute, FnArg, GenericArgument, Lifetime, Pat, Path, PathArguments, Receiver, ReceiverKind,
    ReturnType, Signature, Token, Type, TypeInfer, TypeParamBound, Visibility,
};

const PLACE: &str = "`#[distributed_lock]` goes on an `async fn` with a body; put it there";

pub(crate) struct Function {
    /// Attributes, visibility and signature, token by token as they were written.
    pub header: TokenStream,
    pub name: Ident,
    pub arguments: Vec<Argument>,
    /// The const parameters of the function, which a key can name as well.
    constants: Vec<Ident>,
    pub body: Body,
    output: Output,
    wrapping: Option<Wrapping>,
    /// The lifetimes of the `&mut` arguments that a return type can name; `None` for an elided one.
    mutable: Vec<Option<Lifetime>>,
}

/// A name that the parameters bind.
pub(crate) struct Argument {
    pub name: Ident,
    /// Is `true` for a `mut` binding.
    pub mutable: bool,
    /// The `#[cfg]`s of the parameter.
    pub cfgs: Vec<Attribute>,
}

pub(crate) struct Body {
    /// The `#![…]` at the start of the body, which are attributes of the function.
    inner_attributes: TokenStream,
    /// The statements in braces of their own.
    pub block: Group,
    /// The place of the function's braces.
    span: Span,
}

enum Output {
    Unit(Span),
    Type(Box<Type>),
}

/// The code around the body in a function that returns its future: `async move { … }`, or in a box, as `#[async_trait]`
/// writes it, `Box::pin(async move { … })`.
struct Wrapping {
    /// `Box::pin`, if the future is in a box.
    pin: Option<TokenStream>,
    r#async: TokenStream,
}

impl Function {
    pub(crate) fn parse(item: TokenStream) -> syn::Result<Self> {
        let mut tokens: Vec<TokenTree> = ungrouped(item).into_iter().collect();
        let last = tokens.pop();
        let header: TokenStream = tokens.into_iter().collect();
        let signature = match syn::parse2::<Header>(header.clone()) {
            Ok(Header { signature, .. }) => signature,
            Err(error) if starts_as_function(&header) => return Err(error),
            Err(_) => {
                let span = header.into_iter().next().map_or_else(Span::call_site, |token| token.span());
                return Err(syn::Error::new(span, PLACE));
            }
        };
        let Some(block) = last.as_ref().and_then(braces) else {
            return Err(syn::Error::new(
                signature.ident.span(),
                format!(
                    "`{}` has no body to lock; put `#[distributed_lock]` on the function in the `impl`, \
                     or give this one a body",
                    signature.ident
                ),
            ));
        };
        Self::new(header, signature, block)
    }

    fn new(header: TokenStream, signature: Signature, block: Group) -> syn::Result<Self> {
        let name = signature.ident.clone();
        if let Some(constness) = signature.constness {
            let message = "a `const fn` cannot wait for a lock; write `async fn`";
            return Err(syn::Error::new(constness.span, message));
        }
        let mut body = Body::new(&block);
        let mut wrapping = None;
        if signature.asyncness.is_none() {
            let Some((around, inner)) = Wrapping::find(&body.block) else {
                let returns_future = match &signature.output {
                    ReturnType::Type(_, ty) => future_output(ty).is_some(),
                    ReturnType::Default => false,
                };
                let message = if returns_future {
                    format!(
                        "the whole body of `{name}` has to be one block that the lock can go around; write \
                         `async move {{ … }}` or `Box::pin(async move {{ … }})` with all statements inside, or \
                         `async fn {name}`"
                    )
                } else {
                    format!(
                        "`{name}` is not `async`; write `async fn {name}`, and put `#[distributed_lock]` above \
                         an attribute that takes the `async` away, such as `#[tokio::main]` or `#[tokio::test]`"
                    )
                };
                return Err(syn::Error::new(signature.fn_token.span, message));
            };
            wrapping = Some(around);
            body.block = generated_block(inner.stream(), inner.span());
        }
        let mut arguments = Vec::new();
        for input in &signature.inputs {
            match input {
                FnArg::Receiver(receiver) => {
                    let (name, cfgs) = (receiver.self_token.into(), cfgs(&receiver.attrs));
                    arguments.push(Argument { name, mutable: receiver.mutability.is_some(), cfgs });
                }
                FnArg::Typed(argument) => bindings(&argument.pat, &cfgs(&argument.attrs), &mut arguments),
            }
        }
        let constants = signature.generics.const_params().map(|constant| constant.ident.clone()).collect();
        let mutable = mutable_borrows(&signature);
        let output = match signature.output {
            ReturnType::Default => Output::Unit(signature.ident.span()),
            ReturnType::Type(_, ty) => Output::Type(ty),
        };
        Ok(Self { header, name, arguments, constants, body, output, wrapping, mutable })
    }

    /// Returns the names that a placeholder can use.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Ident> {
        self.arguments.iter().map(|argument| &argument.name).chain(&self.constants)
    }

    /// Is `true` if the function returns `Box::pin(async move { … })` instead of being `async`.
    pub(crate) fn is_boxed(&self) -> bool {
        self.wrapping.as_ref().is_some_and(|wrapping| wrapping.pin.is_some())
    }

    /// Returns the type that the future resolves to, in a form that can stand in a `let`.
    pub(crate) fn output(&self) -> syn::Result<TokenStream> {
        let mut output = match &self.output {
            Output::Type(ty) if self.wrapping.is_some() => match future_output(ty) {
                Some(output) => output.clone(),
                None => return Ok(quote!(_)),
            },
            Output::Type(ty) => Type::clone(ty),
            Output::Unit(span) => {
                return Err(syn::Error::new(
                    *span,
                    format!(
                        "`{name}` returns nothing, so that it cannot say that the lock failed; \
                         write `async fn {name}(…) -> Result<(), dlock::Error>`",
                        name = self.name
                    ),
                ));
            }
        };
        erase_impl_trait(&mut output);
        Ok(output.into_token_stream())
    }

    /// Refuses a function that returns a `&mut` of an argument. A body that may run again borrows the arguments for
    /// each run, and could give the borrow away only once.
    pub(crate) fn returns_no_mutable_borrow(&self) -> syn::Result<()> {
        let returned = match &self.output {
            Output::Type(ty) => ty.to_token_stream(),
            Output::Unit(_) => return Ok(()),
        };
        match self.mutable.iter().find(|borrow| gives_away(&returned, borrow.as_ref())) {
            None => Ok(()),
            Some(_) => Err(syn::Error::new_spanned(
                &returned,
                format!(
                    "the body of `{}` may run again in another segment, so that it cannot return a `&mut` of an \
                     argument; return a value, such as an index, and borrow after the call",
                    self.name
                ),
            )),
        }
    }

    /// Returns the function with `statements` as its whole body.
    pub(crate) fn with_body(&self, statements: &TokenStream) -> TokenStream {
        self.with_header_and_body(&self.header, statements)
    }

    /// Returns the header of the function with another return type: what `change` makes of the written one.
    pub(crate) fn header_with(&self, change: impl FnOnce(&Type) -> TokenStream) -> syn::Result<TokenStream> {
        let Output::Type(written) = &self.output else { return Ok(self.header.clone()) };
        if self.wrapping.is_some() {
            let message = format!(
                "the attribute changes what `{name}` returns, which is not seen in a future that it returns; write \
                 `async fn {name}`",
                name = self.name
            );
            return Err(syn::Error::new(self.name.span(), message));
        }
        let mut written = written.clone();
        erase_impl_trait(&mut written);
        let Header { attributes, visibility, mut signature } = syn::parse2(self.header.clone())?;
        let output = change(&written);
        signature.output = syn::parse2(quote!(-> #output))?;
        Ok(quote!(#(#attributes)* #visibility #signature))
    }

    pub(crate) fn with_header_and_body(&self, header: &TokenStream, statements: &TokenStream) -> TokenStream {
        let mut inside = self.body.inner_attributes.clone();
        match &self.wrapping {
            Some(Wrapping { pin: Some(pin), r#async }) => {
                inside.extend(quote!(#pin(#r#async { #statements })));
            }
            Some(Wrapping { pin: None, r#async }) => inside.extend(quote!(#r#async { #statements })),
            None => inside.extend(quote!(#statements)),
        }
        let mut block = Group::new(Delimiter::Brace, inside);
        block.set_span(self.body.span);
        quote!(#header #block)
    }
}

/// The part of a function before its body.
struct Header {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
}

impl Parse for Header {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature = input.parse()?;
        if input.is_empty() {
            Ok(Self { attributes, visibility, signature })
        } else {
            Err(input.error("expected the body of the function"))
        }
    }
}

impl Body {
    fn new(block: &Group) -> Self {
        let mut tokens = block.stream().into_iter().peekable();
        let mut inner_attributes = TokenStream::new();
        while matches!(tokens.peek(), Some(TokenTree::Punct(hash)) if hash.as_char() == '#') {
            let mut ahead = tokens.clone();
            let attribute: TokenStream = ahead.by_ref().take(3).collect();
            if syn::parse::Parser::parse2(Attribute::parse_inner, attribute.clone()).is_err() {
                break;
            }
            inner_attributes.extend(attribute);
            tokens = ahead;
        }
        let span = block.span();
        Self { inner_attributes, block: generated_block(tokens.collect(), span), span }
    }
}

/// Puts the statements into generated braces, since the user's would be reported as unused in the place where the block
/// goes. The place of the user's braces is kept, so that a mismatch is shown at the body.
fn generated_block(statements: TokenStream, braces: Span) -> Group {
    let mut block = Group::new(Delimiter::Brace, statements);
    block.set_span(Span::mixed_site().located_at(braces));
    block
}

impl Wrapping {
    /// Splits `async move { … }` or `Box::pin(async move { … })`, if that is all there is.
    fn find(block: &Group) -> Option<(Self, Group)> {
        let mut tokens: Vec<TokenTree> = block.stream().into_iter().collect();
        if let Some((r#async, body)) = async_block(&tokens) {
            return Some((Self { pin: None, r#async }, body));
        }
        let arguments = match tokens.pop()? {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => group.stream(),
            _ => return None,
        };
        let pin: TokenStream = tokens.into_iter().collect();
        let path = syn::parse2::<Path>(pin.clone()).ok()?;
        let names: Vec<String> =
            path.segments.iter().rev().map(|segment| segment.ident.to_string()).collect();
        if !matches!(names.as_slice(), [pin, r#box, ..] if pin == "pin" && r#box == "Box") {
            return None;
        }
        let (r#async, body) = async_block(&arguments.into_iter().collect::<Vec<_>>())?;
        Some((Self { pin: Some(pin), r#async }, body))
    }
}

/// Splits `async move` from the braces after it.
fn async_block(tokens: &[TokenTree]) -> Option<(TokenStream, Group)> {
    match tokens {
        [TokenTree::Ident(r#async), TokenTree::Ident(r#move), TokenTree::Group(body)]
            if r#async == "async" && r#move == "move" && body.delimiter() == Delimiter::Brace =>
        {
            Some((quote!(#r#async #r#move), body.clone()))
        }
        _ => None,
    }
}

/// Returns the lifetimes of the `&mut` arguments that the return type can borrow from: all that are named, and the
/// elided one that an elided lifetime of the return type stands for.
fn mutable_borrows(signature: &Signature) -> Vec<Option<Lifetime>> {
    let is_borrow = |receiver: &Receiver| matches!(receiver.kind, ReceiverKind::Reference(..));
    let has_self_borrow = signature.receiver().is_some_and(is_borrow);
    let borrows = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Receiver(receiver) => match &receiver.kind {
            ReceiverKind::Reference(_, lifetime, Some(_)) => Some(lifetime.clone()),
            _ => None,
        },
        FnArg::Typed(argument) => match &*argument.ty {
            Type::Reference(borrow) if borrow.mutability.is_some() => {
                (borrow.lifetime.is_some() || !has_self_borrow).then(|| borrow.lifetime.clone())
            }
            _ => None,
        },
    });
    borrows.collect()
}

/// Is `true` if `&mut`, or `&'a mut` for a lifetime, occurs in the tokens.
fn gives_away(tokens: &TokenStream, lifetime: Option<&Lifetime>) -> bool {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let is = |token: &TokenTree, text: &str| token.to_string() == text;
    let here = match lifetime {
        None => tokens.windows(2).any(|pair| is(&pair[0], "&") && is(&pair[1], "mut")),
        Some(lifetime) => tokens.windows(4).any(|four| {
            is(&four[0], "&")
                && is(&four[1], "'")
                && lifetime.ident == four[2].to_string()
                && is(&four[3], "mut")
        }),
    };
    let inside = |token: &TokenTree| match token {
        TokenTree::Group(group) => gives_away(&group.stream(), lifetime),
        _ => false,
    };
    here || tokens.iter().any(inside)
}

/// Removes the invisible groups that `macro_rules!` puts around its captures.
fn ungrouped(tokens: TokenStream) -> TokenStream {
    let mut inside = tokens.clone().into_iter();
    match (inside.next(), inside.next()) {
        (Some(TokenTree::Group(group)), None) if group.delimiter() == Delimiter::None => {
            ungrouped(group.stream())
        }
        _ => tokens,
    }
}

fn braces(token: &TokenTree) -> Option<Group> {
    match ungrouped(token.clone().into()).into_iter().next()? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
        _ => None,
    }
}

/// Is `true` if there is an `fn` outside of every bracket: then the parser's own error is to the point.
fn starts_as_function(header: &TokenStream) -> bool {
    header.clone().into_iter().any(|token| matches!(token, TokenTree::Ident(word) if word == "fn"))
}

fn cfgs(attributes: &[Attribute]) -> Vec<Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).cloned().collect()
}

/// Collects the names that a pattern binds. A pattern that is not known here is left out: the compiler's error about
/// the missing name is better than any from here.
fn bindings(pattern: &Pat, cfgs: &[Attribute], found: &mut Vec<Argument>) {
    let mut all = |patterns: &mut dyn Iterator<Item = &Pat>| {
        for pattern in patterns {
            bindings(pattern, cfgs, found);
        }
    };
    match pattern {
        Pat::Tuple(tuple) => all(&mut tuple.elems.iter()),
        Pat::TupleStruct(tuple) => all(&mut tuple.elems.iter()),
        Pat::Slice(slice) => all(&mut slice.elems.iter()),
        Pat::Struct(fields) => all(&mut fields.fields.iter().map(|field| &*field.pat)),
        Pat::Reference(reference) => bindings(&reference.pat, cfgs, found),
        Pat::Paren(paren) => bindings(&paren.pat, cfgs, found),
        // Every case of an or-pattern binds the same names.
        Pat::Or(or) => all(&mut or.cases.first().into_iter()),
        Pat::Ident(binding) => {
            let mutable = binding.by_ref.is_none() && binding.mutability.is_some();
            found.push(Argument { name: binding.ident.clone(), mutable, cfgs: cfgs.to_vec() });
            if let Some((_, part)) = &binding.subpat {
                bindings(part, cfgs, found);
            }
        }
        _ => {}
    }
}

/// Returns `T` of `Pin<Box<dyn Future<Output = T> + …>>` or `impl Future<Output = T> + …`.
fn future_output(ty: &Type) -> Option<&Type> {
    match ty {
        Type::Path(path)
            if path.path.segments.last().is_some_and(|last| last.ident == "Pin" || last.ident == "Box") =>
        {
            arguments(&path.path)?.iter().find_map(|argument| match argument {
                GenericArgument::Type(ty) => future_output(ty),
                _ => None,
            })
        }
        Type::TraitObject(object) => object.bounds.iter().find_map(output_of),
        Type::ImplTrait(opaque) => opaque.bounds.iter().find_map(output_of),
        Type::Group(group) => future_output(&group.elem),
        Type::Paren(paren) => future_output(&paren.elem),
        _ => None,
    }
}

/// Returns `T` of `Future<Output = T>`.
fn output_of(bound: &TypeParamBound) -> Option<&Type> {
    let TypeParamBound::Trait(bound) = bound else { return None };
    arguments(&bound.path)?.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(output) if output.ident == "Output" => Some(&output.ty),
        _ => None,
    })
}

fn arguments(path: &Path) -> Option<&syn::punctuated::Punctuated<GenericArgument, Token![,]>> {
    match &path.segments.last()?.arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    }
}

/// Replaces `impl Trait`, which cannot be written in a `let`, by `_`, which stands for the same type there.
fn erase_impl_trait(ty: &mut Type) {
    match ty {
        Type::ImplTrait(opaque) => {
            let underscore_token = Token![_](opaque.span());
            *ty = Type::Infer(TypeInfer { attrs: Vec::new(), underscore_token });
        }
        Type::Path(path) => erase_in_path(&mut path.path),
        Type::TraitObject(object) => {
            for bound in &mut object.bounds {
                if let TypeParamBound::Trait(bound) = bound {
                    erase_in_path(&mut bound.path);
                }
            }
        }
        Type::Tuple(tuple) => tuple.elems.iter_mut().for_each(erase_impl_trait),
        Type::Reference(reference) => erase_impl_trait(&mut reference.elem),
        Type::Array(array) => erase_impl_trait(&mut array.elem),
        Type::Slice(slice) => erase_impl_trait(&mut slice.elem),
        Type::Paren(paren) => erase_impl_trait(&mut paren.elem),
        Type::Group(group) => erase_impl_trait(&mut group.elem),
        _ => {}
    }
}

fn erase_in_path(path: &mut Path) {
    for segment in &mut path.segments {
        if let PathArguments::AngleBracketed(arguments) = &mut segment.arguments {
            for argument in &mut arguments.args {
                match argument {
                    GenericArgument::Type(ty) => erase_impl_trait(ty),
                    GenericArgument::AssocType(assoc) => erase_impl_trait(&mut assoc.ty),
                    _ => {}
                }
            }
        }
    }
}
