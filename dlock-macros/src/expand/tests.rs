use super::expand;
use proc_macro2::TokenStream;
use quote::quote;

#[test]
fn the_lock_is_put_around_the_body_as_written_at_the_top() {
    let args = quote!(key = "room_<id>", backend = "zk");
    let item = quote! {
        #[doc = "Books."]
        pub async fn book(id: u64, who: &str) -> Result<Booking, AppError> { who.book().await }
    };
    let expected = quote! {
        #[doc = "Books."]
        pub async fn book(id: u64, who: &str) -> Result<Booking, AppError> {
            ::dlock::__private::require_zk! {}
            let section = ::dlock::__private::Section::new(
                ::core::concat!(::core::module_path!(), "::", "book"),
                "room_<id>",
                ::dlock::__private::Source::Named("zk"),
                ::core::format_args!("room_{}", id)
            );
            return section.run::<Result<Booking, AppError>, _>(async move {
                let _ = &who;
                let _ = &id;
                if let ::core::option::Option::Some(output) =
                    ::core::option::Option::None::<Result<Booking, AppError> >
                {
                    return output;
                }
                { who.book().await }
            }).await;
        }
    };
    assert_eq!(expand(args, item).to_string(), expected.to_string());
}

#[test]
fn whatever_the_input_the_item_stays_beside_the_error() {
    let function = quote!(
        async fn f(id: u8) -> Result<u8, Error> {
            Ok(id)
        }
    );
    let arguments = [
        "",
        ",",
        "key",
        "key =",
        "key = ,",
        "= \"a\"",
        "key == \"a\"",
        "key = \"a\" \"b\"",
        "(key = \"a\")",
        "key = 1",
        "key = b\"a\"",
        "key = 'a'",
        "key = -1",
        "key::<u8> = \"a\"",
        "key.a = \"a\"",
        "\"a\", \"b\"",
        "key = \"<\"",
        "key = \"{\"",
        "key = \"<<<\"",
        "key = \"\\0\"",
        "key = \"<crate>\"",
        "key = \"<id.>\"",
        "key = \"<é>\"",
        "key = \"<🔒>\"",
        "key = \"a\", wait = \"\"",
        "key = \"a\", wait = 'x'",
        "key = \"a\", lease = 1.5",
        "key = \"a\", crate = ",
        "key = \"a\", crate = ::",
        "key = \"a\", crate = self",
        "key = \"a\", crate = super::a",
        "key = \"a\", guard = _",
        "key = \"a\", guard = self",
        "key = \"a\", guard = a.b",
        "key = \"a\", locks = let",
        "key = \"a\", on_busy = fn",
        "key = \"a\", recheck = 1",
        "key = \"a\", #[cfg(x)] wait = \"1s\"",
        "key = \"a\",, ",
    ];
    for arguments in arguments {
        let args: TokenStream = arguments.parse().expect(arguments);
        refused(args, function.clone());
    }
    let items = [
        "",
        ";",
        "fn",
        "async",
        "async fn",
        "async fn f",
        "async fn f()",
        "async fn f() -> u8;",
        "fn f() {}",
        "fn f() { Box::pin(async { 1 }) }",
        "fn f() { Box::pin(g()) }",
        "fn f() { pin(async move { 1 }) }",
        "const X: u8 = { 1 };",
        "mod a {}",
        "trait T { async fn f(); }",
        "enum E {}",
        "let a = { 1 };",
        "{ }",
        "macro_rules! f { () => {} }",
        "extern \"C\" { fn f(); }",
        "async fn f() -> {}",
        "async fn f(a) {}",
        "async fn f() where {} {}",
        "const async fn f() -> u8 { 1 }",
    ];
    for item in items {
        refused(quote!(key = "a"), item.parse().expect(item));
    }
}

fn refused(args: TokenStream, item: TokenStream) {
    let (written, start) = (format!("[{args}] {item}"), item.to_string());
    let expanded = expand(args, item).to_string();
    assert!(expanded.starts_with(&start), "{written}: {expanded}");
    assert!(expanded.contains("compile_error"), "{written}: {expanded}");
}
