//! Prompt strategies: what the model sees of a conversation's tool traffic. What is stored never changes.
//!
//! A [`Strategy`] turns the messages of a conversation into a view of them, before every request. [`fit`] does the same
//! for a number of tokens, after the strategies. Both are pure: the same messages always give the same view.
//!
//! What holds for all that is here: a call and its output (a pair) share one fate; records that can't be read, calls
//! without an output and outputs without a call stay as they are; system, user and assistant texts are never touched.
//!
//! ```
//! use decanus_chat::Message;
//! use decanus_chat::strategy::{Settings, Strategies, fit};
//!
//! let messages = [Message::user("How are you?")];
//! let chain = Strategies::default().resolve(Strategies::DEFAULT)?;
//! let view = chain.apply(&messages, &Settings::default());
//! let fit = fit(&view, 8192, 300)?;
//! assert_eq!(fit.messages, messages.as_slice());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
mod edits;
mod epoch;
mod pairs;
mod settings;
mod shorten;
mod tools;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod testing;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use decanus_base::names::did_you_mean;
use decanus_base::{Diagnostic, ErrorKind};

pub use budget::{Fit, TooLong, estimate_tokens, fit};
pub use epoch::ShortenToolsEpoch;
pub use settings::Settings;
pub use shorten::{ARGUMENT_CHARS, OUTPUT_CHARS, shorten};
pub use tools::ShortenTools;

use crate::message::Message;

/// A way to look at a conversation. It runs before every request.
pub trait Strategy: Send + Sync {
    /// The name it is chosen by: no comma, no blank at either end.
    fn name(&self) -> &str;

    /// What the model sees of some messages: these themselves when nothing is to be changed.
    ///
    /// Providers want every call with its output and nothing between them, and charge less for a request that begins
    /// like the one before; a strategy should see to both.
    fn apply<'a>(&self, messages: &'a [Message], settings: &Settings) -> Cow<'a, [Message]>;
}

/// `none`: the model sees everything.
struct Everything;

impl Strategy for Everything {
    fn name(&self) -> &str {
        "none"
    }

    fn apply<'a>(&self, messages: &'a [Message], _settings: &Settings) -> Cow<'a, [Message]> {
        Cow::Borrowed(messages)
    }
}

/// The strategies that can be chosen, by their names. The default has the built-in ones: `shorten_tools`,
/// `shorten_tools_epoch` and `none`.
#[derive(Clone)]
pub struct Strategies(BTreeMap<String, Arc<dyn Strategy>>);

impl Strategies {
    /// What is used when nothing is chosen.
    pub const DEFAULT: &str = "shorten_tools_epoch";

    /// Adds a strategy; one that has the same name is replaced.
    pub fn register(&mut self, strategy: Arc<dyn Strategy>) {
        self.0.insert(strategy.name().to_owned(), strategy);
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The strategies that a text names, separated by commas; blanks around the names, and empty names, are passed over.
    ///
    /// # Errors
    /// The first name that nothing is registered under.
    pub fn resolve(&self, names: &str) -> Result<Chain, UnknownStrategy> {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let found = names.map(|name| {
            self.0.get(name).cloned().ok_or_else(|| UnknownStrategy {
                name: name.to_owned(),
                known: self.names().map(str::to_owned).collect(),
            })
        });
        found.collect::<Result<_, _>>().map(Chain)
    }
}

impl Default for Strategies {
    fn default() -> Self {
        let mut strategies = Self(BTreeMap::new());
        strategies.register(Arc::new(ShortenTools));
        strategies.register(Arc::new(ShortenToolsEpoch));
        strategies.register(Arc::new(Everything));
        strategies
    }
}

impl fmt::Debug for Strategies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Strategies that are applied one after the other, each to what the one before has left.
#[derive(Clone)]
pub struct Chain(Vec<Arc<dyn Strategy>>);

impl Chain {
    /// What the model sees of some messages: these themselves when no strategy changes anything.
    pub fn apply<'a>(&self, messages: &'a [Message], settings: &Settings) -> Cow<'a, [Message]> {
        self.0
            .iter()
            .fold(Cow::Borrowed(messages), |view, strategy| match view {
                Cow::Borrowed(messages) => strategy.apply(messages, settings),
                Cow::Owned(messages) => {
                    let changed = match strategy.apply(&messages, settings) {
                        Cow::Owned(next) => Some(next),
                        // A strategy may lend a part of what it was given.
                        Cow::Borrowed(part) => (!std::ptr::eq(part, messages.as_slice())).then(|| part.to_vec()),
                    };
                    Cow::Owned(changed.unwrap_or(messages))
                }
            })
    }
}

/// How the messages of one conversation are looked at before each of its requests.
#[derive(Clone, Debug)]
pub struct Window {
    /// The strategies.
    pub chain: Chain,
    /// Their settings.
    pub settings: Settings,
}

impl Default for Window {
    /// [`Strategies::DEFAULT`] with its default settings.
    fn default() -> Self {
        Self {
            chain: Chain(vec![Arc::new(ShortenToolsEpoch)]),
            settings: Settings::default(),
        }
    }
}

impl Window {
    /// What the model sees of some messages: strategies first, then, with a `budget` in tokens, what fits in it beside
    /// the `overhead` (see [`fit`]).
    ///
    /// # Errors
    /// When the budget can't be kept.
    pub fn view<'a>(
        &self,
        messages: &'a [Message],
        budget: Option<u64>,
        overhead: u64,
    ) -> Result<Cow<'a, [Message]>, TooLong> {
        let view = self.chain.apply(messages, &self.settings);
        let Some(budget) = budget else {
            return Ok(view);
        };
        let fitted = match fit(&view, budget, overhead)?.messages {
            Cow::Owned(fitted) => Some(fitted),
            Cow::Borrowed(_) => None,
        };
        Ok(fitted.map_or(view, Cow::Owned))
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|s| s.name())).finish()
    }
}

/// A strategy was chosen that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no prompt strategy is named `{name}`{}", did_you_mean(name, known.iter().map(String::as_str)))]
pub struct UnknownStrategy {
    /// The name.
    pub name: String,
    /// The names that exist, sorted.
    pub known: Vec<String>,
}

impl Diagnostic for UnknownStrategy {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Usage
    }

    fn hints(&self) -> Vec<String> {
        vec![format!("prompt strategies are {}", self.known.join(", "))]
    }
}

#[cfg(test)]
mod tests {
    use super::testing::rounds;
    use super::*;

    /// Shows the last messages only, with a remark.
    struct Last(&'static str, usize);

    impl Strategy for Last {
        fn name(&self) -> &str {
            self.0
        }

        fn apply<'a>(&self, messages: &'a [Message], _settings: &Settings) -> Cow<'a, [Message]> {
            Cow::Borrowed(&messages[messages.len().saturating_sub(self.1)..])
        }
    }

    #[test]
    fn strategies_of_ones_own_are_applied_in_order() {
        let mut strategies = Strategies::default();
        strategies.register(Arc::new(Last("last", 4)));
        let messages = rounds(60, 500);
        let settings = Settings::default();
        let apply = |names: &str| {
            strategies
                .resolve(names)
                .unwrap()
                .apply(&messages, &settings)
                .into_owned()
        };
        assert_eq!(apply("last"), messages[messages.len() - 4..]);
        let epoch = apply(Strategies::DEFAULT);
        assert_ne!(epoch, messages);
        assert_eq!(apply(" shorten_tools_epoch , none,, "), epoch);
        assert_eq!(apply("shorten_tools_epoch,last"), messages[messages.len() - 4..]);
        assert_eq!(
            format!("{:?}", strategies.resolve("none, last").unwrap()),
            r#"["none", "last"]"#
        );
    }

    #[test]
    fn nothing_to_do_costs_no_copy() {
        let messages = rounds(5, 500);
        for names in ["", "none", "shorten_tools,shorten_tools_epoch,none"] {
            let chain = Strategies::default().resolve(names).unwrap();
            assert!(matches!(
                chain.apply(&messages, &Settings::default()),
                Cow::Borrowed(same) if std::ptr::eq(same, &raw const messages[..])
            ));
        }
    }

    #[test]
    fn what_is_shortened_once_is_not_shortened_again() {
        let messages = rounds(60, 5000);
        let settings = Settings::default();
        let strategies = Strategies::default();
        let once = strategies.resolve("shorten_tools").unwrap().apply(&messages, &settings);
        let twice = strategies.resolve("shorten_tools,shorten_tools").unwrap();
        assert_eq!(twice.apply(&messages, &settings), once);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_names_the_known_ones() {
        let error = Strategies::default().resolve("none, shorten_tool").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no prompt strategy is named `shorten_tool`; did you mean shorten_tools"),
            "{error}"
        );
        assert_eq!(
            error.hints(),
            ["prompt strategies are none, shorten_tools, shorten_tools_epoch"]
        );
    }
}
