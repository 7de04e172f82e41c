//! A collection of mistakes, so that one build shows all of them.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use std::fmt::Display;

#[derive(Default)]
pub(crate) struct Mistakes(Option<syn::Error>);

impl Mistakes {
    pub(crate) fn push(&mut self, mistake: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(mistake),
            none => *none = Some(mistake),
        }
    }

    pub(crate) fn at(&mut self, span: Span, message: impl Display) {
        self.push(syn::Error::new(span, message));
    }

    /// Keeps the value, or records the mistake.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|mistake| self.push(mistake)).ok()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn into_error(self) -> Option<syn::Error> {
        self.0
    }
}

/// Returns the item as it was written, with the mistakes beside it. The callers of the item still find it, so that the
/// mistakes are the only errors, and editors keep completing in it.
pub(crate) fn report(mistakes: &syn::Error, item: &TokenStream) -> TokenStream {
    let errors = mistakes.to_compile_error();
    quote!(#item #errors)
}
