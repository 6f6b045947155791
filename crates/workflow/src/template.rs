//! The elements of `run:`: text with places for inputs, results of dependencies and the workflow's folder.
//!
//! `{name}` is an input, `{name...}` alone in an element a list that becomes several arguments, `{task.path}` the path
//! of a dependency's result, `{workflow_dir}` the workflow's folder. Braces around anything else are plain text;
//! `{{name}}` is the text `{name}`.

/// One element of `run:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// Becomes exactly one argument.
    One(Vec<Piece>),
    /// Becomes as many arguments as the input has items.
    Spread(String),
}

/// A part of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text that stays.
    Literal(String),
    /// The value of an input.
    Input(String),
    /// The path of a dependency's result.
    Dependency(String),
    /// The workflow's folder.
    WorkflowDir,
}

enum Place {
    Piece(Piece),
    Spread(String),
}

impl Element {
    /// Reads an element.
    ///
    /// # Errors
    /// When `{name...}` is not alone.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            let doubled = rest[1..].starts_with('{').then(|| place(&rest[1..])).flatten();
            if let Some((_, length)) = doubled.filter(|(_, length)| rest[1 + length..].starts_with('}')) {
                literal.push_str(&rest[1..=length]);
                rest = &rest[length + 2..];
                continue;
            }
            match place(rest) {
                Some((Place::Spread(name), length)) => {
                    if length != text.len() {
                        return Err(format!("`{{{name}...}}` must be alone in its element"));
                    }
                    return Ok(Self::Spread(name));
                }
                Some((Place::Piece(piece), length)) => {
                    if !literal.is_empty() {
                        pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                    }
                    pieces.push(piece);
                    rest = &rest[length..];
                }
                None => {
                    literal.push('{');
                    rest = &rest[1..];
                }
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Self::One(pieces))
    }

    /// The text, when no place is in it.
    pub fn literal(&self) -> Option<&str> {
        match self {
            Self::One(pieces) => match pieces.as_slice() {
                [Piece::Literal(text)] => Some(text),
                _ => None,
            },
            Self::Spread(_) => None,
        }
    }

    /// Whether what a caller gives can come into it.
    pub fn takes_input(&self) -> bool {
        match self {
            Self::Spread(_) => true,
            Self::One(pieces) => pieces.iter().any(|p| matches!(p, Piece::Input(_))),
        }
    }

    /// Whether its first character may come from an input. Such an element must not turn into an option.
    pub fn begins_with_input(&self) -> bool {
        match self {
            Self::Spread(_) => true,
            Self::One(pieces) => matches!(pieces.first(), Some(Piece::Input(_))),
        }
    }
}

/// The place that `text` begins with, and its length.
fn place(text: &str) -> Option<(Place, usize)> {
    let end = text.find('}')?;
    let inner = &text[1..end];
    let found = if let Some(name) = inner.strip_suffix("...").filter(|n| is_word(n)) {
        Place::Spread(name.to_owned())
    } else if let Some(name) = inner.strip_suffix(".path").filter(|n| is_word(n)) {
        Place::Piece(Piece::Dependency(name.to_owned()))
    } else if inner == "workflow_dir" {
        Place::Piece(Piece::WorkflowDir)
    } else if is_word(inner) {
        Place::Piece(Piece::Input(inner.to_owned()))
    } else {
        return None;
    };
    Some((found, end + 1))
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_and_other_braces_stay() {
        let one = |text: &str| match Element::parse(text).unwrap() {
            Element::One(pieces) => pieces,
            Element::Spread(name) => panic!("{name}"),
        };
        let literal = |t: &str| Piece::Literal(t.into());
        assert_eq!(one("{build}.fa"), [Piece::Input("build".into()), literal(".fa")]);
        assert_eq!(
            one("a{x}{y}"),
            [literal("a"), Piece::Input("x".into()), Piece::Input("y".into())]
        );
        assert_eq!(one("{base.path}"), [Piece::Dependency("base".into())]);
        assert_eq!(one("{workflow_dir}/x"), [Piece::WorkflowDir, literal("/x")]);
        for plain in ["", "{print $1}", "{\"a\": {\"b\": 1}}", "{", "}{", "{}", "${x y}"] {
            assert_eq!(one(plain), [literal(plain)], "{plain}");
        }
        assert_eq!(one("{{print}} {{"), [literal("{print} {{")]);
        assert_eq!(Element::parse("{tags...}"), Ok(Element::Spread("tags".into())));
        assert!(Element::parse("--tags={tags...}").is_err());
    }
}
