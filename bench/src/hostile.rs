//! Texts that make a careless reader or writer of chats slow: each as long as is asked for.

/// A name, and what makes a text of about so many bytes.
pub type Maker = (&'static str, fn(usize) -> String);

/// All of them.
pub const ALL: &[Maker] = &[
    ("empty lines in front", |size| "\n".repeat(size) + "x"),
    ("short lines", |size| repeat("a\n", size)),
    ("one long line", |size| repeat("abc ", size)),
    ("one long word", |size| repeat("abc", size) + ": x"),
    ("lines with a colon", |size| repeat("name: x\n", size)),
    ("many words with a colon", |size| {
        numbered(size, |n| format!("name{n}: x\n"))
    }),
    ("words near a role", |size| repeat("usr: x\n", size)),
    ("escapes", |size| repeat("\\user: x\n", size)),
    ("returns before the line feeds", |size| repeat("a line\r\n", size)),
    ("one unclosed element", |size| repeat("<b>\n", size)),
    ("many unclosed elements", |size| numbered(size, |n| format!("<t{n}>\n"))),
    ("many elements, closed at the end", |size| {
        let opened = numbered(size / 2, |n| format!("<t{n}>\n"));
        let closed = opened.replace('<', "</");
        opened + &closed
    }),
    ("tags without an end in one line", |size| {
        format!("<b>\n{}\n</b>", repeat("<b ", size))
    }),
    ("tags in an element", |size| {
        format!("<b>\n{}</b>", repeat("<b></b>\n", size))
    }),
    ("fences that open and close", |size| repeat("```\nx\n```\n", size)),
    ("backticks", |size| "`".repeat(size)),
    ("a fence that never closes", |size| {
        "```\n".to_owned() + &repeat("``\n", size)
    }),
    ("squares", |size| repeat("[[ x ]]\n", size)),
    ("an open square", |size| "[[\n".to_owned() + &repeat("x]] y\n", size)),
    ("outputs of commands", |size| repeat("x:-- ls {{{\nx:-- ls }}}\n", size)),
    ("one-line messages", |size| repeat("user: x\n", size)),
];

fn repeat(part: &str, size: usize) -> String {
    part.repeat(size / part.len())
}

fn numbered(size: usize, part: fn(usize) -> String) -> String {
    let mut text = String::new();
    let mut n = 0;
    while text.len() < size {
        text.push_str(&part(n));
        n += 1;
    }
    text
}
