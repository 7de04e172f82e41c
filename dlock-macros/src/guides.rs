//! The pages below `docs/` as modules of the documentation, with links that resolve there.

use std::path::{Path, PathBuf};
use std::{env, fs};

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Ident, LitStr};

/// The pages that document attributes: those are documented where the facade re-exports them.
const ATTRIBUTES: [(&str, &str); 3] =
    [("src/macro.md", "distributed_lock"), ("src/leader.md", "leader"), ("src/once.md", "once")];

/// Makes a module of each page of the package that is compiled. The pages of `docs/backends` stand beside the others.
pub(crate) fn expand() -> TokenStream {
    modules().unwrap_or_else(|error| {
        let error = format!("the guides cannot be read: {error}");
        quote!(::core::compile_error!(#error);)
    })
}

fn modules() -> std::io::Result<TokenStream> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let repository = env::var("CARGO_PKG_REPOSITORY").unwrap_or_default();
    let mut modules = TokenStream::new();
    for directory in ["docs", "docs/backends"] {
        let mut pages: Vec<PathBuf> = fs::read_dir(root.join(directory))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
            .collect();
        pages.sort();
        for page in &pages {
            let text = with_links_of_rustdoc(&fs::read_to_string(page)?, directory, &repository);
            let name = Ident::new(&module_of(page), Span::call_site());
            let path = LitStr::new(&page.display().to_string(), Span::call_site());
            modules.extend(quote! {
                #[doc = #text]
                pub mod #name {
                    // The compiler learns that the documentation depends on the page.
                    const _: &[u8] = include_bytes!(#path);
                }
            });
        }
    }
    Ok(modules)
}

/// Returns the name of a page's module: `which_lock` for `docs/which-lock.md`.
fn module_of(page: &Path) -> String {
    page.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_")
}

/// Returns a page of `directory` in which each link to a file of the repository is one that rustdoc resolves, or leads
/// to the repository. Code stays as it is.
fn with_links_of_rustdoc(page: &str, directory: &str, repository: &str) -> String {
    let (mut text, mut is_block, mut is_code) = (String::with_capacity(page.len()), false, false);
    for line in page.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        if is_fence || is_block {
            is_block ^= is_fence;
            text.push_str(line);
            continue;
        }
        // Inline code ends with its paragraph.
        is_code &= !line.trim().is_empty();
        for (at, part) in line.split('`').enumerate() {
            if at > 0 {
                text.push('`');
                is_code = !is_code;
            }
            if is_code { text.push_str(part) } else { with_links(part, directory, repository, &mut text) }
        }
    }
    text
}

fn with_links(prose: &str, directory: &str, repository: &str, text: &mut String) {
    let mut parts = prose.split("](");
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        text.push_str("](");
        match part.split_once(')') {
            Some((link, rest)) => {
                text.push_str(&of_rustdoc(link, directory, repository));
                text.push(')');
                text.push_str(rest);
            }
            None => text.push_str(part),
        }
    }
}

/// Returns the target of a link in the form of rustdoc.
fn of_rustdoc(link: &str, directory: &str, repository: &str) -> String {
    let (file, heading) = link.find('#').map_or((link, ""), |at| link.split_at(at));
    if file.is_empty() || file.contains(':') {
        return link.to_owned();
    }
    let (mut above, mut rest) = (directory, file);
    while let Some(further) = rest.strip_prefix("../") {
        (above, rest) = (above.rsplit_once('/').map_or("", |(above, _)| above), further);
    }
    let path = format!("{above}{}{rest}", if above.is_empty() { "" } else { "/" });
    if let Some((_, attribute)) = ATTRIBUTES.iter().find(|(page, _)| *page == path) {
        format!("macro@crate::{attribute}")
    } else if path.starts_with("docs/") && path.ends_with(".md") {
        format!("crate::guides::{}{heading}", module_of(Path::new(&path)))
    } else if path.ends_with(".svg") {
        format!("{repository}/raw/HEAD/{path}")
    } else {
        format!("{repository}/blob/HEAD/{path}{heading}")
    }
}

#[cfg(test)]
mod tests {
    use super::with_links_of_rustdoc;

    fn page(text: &str) -> String {
        with_links_of_rustdoc(text, "docs/backends", "https://host/dlock")
    }

    #[test]
    fn a_link_to_a_page_leads_to_its_module_and_one_to_another_file_to_the_repository() {
        for (link, expected) in [
            ("../which-lock.md#in-order", "crate::guides::which_lock#in-order"),
            ("sqlite.md", "crate::guides::sqlite"),
            ("../../src/once.md", "macro@crate::once"),
            ("../../src/macro.md#keys", "macro@crate::distributed_lock"),
            ("../../README.md#try-it", "https://host/dlock/blob/HEAD/README.md#try-it"),
            ("../pictures/trace.svg", "https://host/dlock/raw/HEAD/docs/pictures/trace.svg"),
            ("#in-order", "#in-order"),
            ("https://example.org/x.md", "https://example.org/x.md"),
        ] {
            assert_eq!(page(&format!("see [it]({link}).")), format!("see [it]({expected})."));
        }
    }

    #[test]
    fn code_stays_as_it_is_and_links_behind_it_do_not() {
        let code = "```text\n[a](sqlite.md)\n```\n`[b](sqlite.md)`, `broken\nover [c](sqlite.md)` lines";
        assert_eq!(page(code), code);
        assert_eq!(
            page("`a`, [`b`](sqlite.md) `c`\n`open\n\n[d](redis.md)"),
            "`a`, [`b`](crate::guides::sqlite) `c`\n`open\n\n[d](crate::guides::redis)"
        );
    }
}
