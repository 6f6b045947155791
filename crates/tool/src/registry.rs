//! The tools of one conversation, by the names that the model sees.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use decanus_base::names::did_you_mean;
use decanus_chat::{Arguments, ToolDefinition};

use crate::approval::ApprovalPolicy;
use crate::offer::Offer;
use crate::schema::{Checker, Prepared, prepare_with};
use crate::source::{SourceError, ToolSource};
use crate::tool::{Args, Tool, ToolError};

/// A tool of the registry.
#[derive(Clone)]
pub struct Entry {
    /// Where it comes from: `builtin`, or the workflow's name.
    pub group: String,
    /// What the model is told; its name is the registry's.
    pub definition: ToolDefinition,
    /// The tool itself.
    pub tool: Arc<dyn Tool>,
    /// Its schema, compiled when it is first called.
    pub(crate) checker: Checker,
}

impl Entry {
    /// The names by which a person may know the tool: that of the registry, its own, and its own with its group, as a
    /// prefix and as `GROUP/NAME`.
    pub fn names(&self) -> [String; 4] {
        let (group, own) = (&self.group, &self.tool.definition().name);
        [
            self.definition.name.clone(),
            own.clone(),
            format!("{group}_{own}"),
            format!("{group}/{own}"),
        ]
    }

    /// Whether the user has to be asked for a call of it.
    pub(crate) fn must_be_asked_for(&self, policy: &ApprovalPolicy, args: &Args) -> bool {
        let is_destructive = self.tool.is_destructive(args);
        if policy.tools.is_empty() {
            return policy.asks([], is_destructive);
        }
        policy.asks(self.names().iter().map(String::as_str), is_destructive)
    }

    /// A call's arguments as the tool gets them: what is unmistakable is repaired, and all of it fits the schema. The
    /// schema is compiled at the first call.
    ///
    /// # Errors
    /// Those of [`prepare_with`].
    pub fn prepare<'a>(&self, arguments: &'a Arguments) -> Result<Prepared<'a>, ToolError> {
        let hidden = self.tool.hidden_options();
        let Arguments::Object(sent) = arguments else {
            return prepare_with(arguments, &self.definition, &self.checker);
        };
        if !hidden.iter().any(|name| sent.contains_key(*name)) {
            return prepare_with(arguments, &self.definition, &self.checker);
        }
        let (apart, inputs): (Args, Args) = sent
            .clone()
            .into_iter()
            .partition(|(name, _)| hidden.contains(&name.as_str()));
        let inputs = Arguments::Object(inputs);
        let Prepared { args, notes } = prepare_with(&inputs, &self.definition, &self.checker)?;
        let mut args = args.into_owned();
        // What the caller of the tool has set holds.
        for (name, value) in apart {
            args.entry(name).or_insert(value);
        }
        Ok(Prepared {
            args: Cow::Owned(args),
            notes,
        })
    }
}

/// Tools by name. The order of [`ToolRegistry::definitions`] is that of the names, so that the same tools always give
/// the same request.
#[derive(Clone, Default)]
pub struct ToolRegistry {
    tools: BTreeMap<String, Entry>,
    warnings: Vec<String>,
}

/// Why a registry could not be made: the errors of sources.
pub type RegistryError = SourceError;

impl ToolRegistry {
    /// A registry of these tools, each with its group. Tools of different groups with the same name all get their
    /// group as a prefix, with a warning; the same tool given twice counts once.
    pub fn new(tools: impl IntoIterator<Item = impl Into<Offer>>) -> Self {
        let mut by_name: BTreeMap<String, Vec<Offer>> = BTreeMap::new();
        for offer in tools.into_iter().map(Into::into) {
            let same = by_name.entry(offer.definition.name.clone()).or_default();
            match same.iter_mut().find(|o| o.group == offer.group) {
                Some(earlier) => *earlier = offer,
                None => same.push(offer),
            }
        }
        let mut registry = Self::default();
        for (name, same) in by_name {
            let collide = same.len() > 1;
            for Offer {
                group,
                tool,
                mut definition,
            } in same
            {
                if collide {
                    definition.name = format!("{group}_{name}");
                    let text = format!(
                        "several tools are called {name}; that of {group} is now {}",
                        definition.name
                    );
                    registry.warnings.push(text);
                }
                registry.tools.insert(
                    definition.name.clone(),
                    Entry {
                        group,
                        definition,
                        tool,
                        checker: Checker::default(),
                    },
                );
            }
        }
        registry
    }

    /// The tools that a spec stands for.
    ///
    /// # Errors
    /// For a spec that no source knows, with names that may have been meant; and those of the sources.
    pub async fn find(sources: &[Arc<dyn ToolSource>], spec: &str) -> Result<Vec<Offer>, RegistryError> {
        for source in sources {
            if let Some(found) = source.resolve(spec).await? {
                return Ok(found.into_iter().map(Offer::from).collect());
            }
        }
        let mut known = Vec::new();
        for source in sources {
            known.extend(source.names().await);
        }
        let guess = did_you_mean(spec, known.iter().map(String::as_str));
        Err(SourceError::Unknown(format!(
            "there is no tool or workflow `{spec}`{guess}"
        )))
    }

    /// A registry of the tools that some specs stand for.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub async fn resolve(
        sources: &[Arc<dyn ToolSource>],
        specs: impl IntoIterator<Item = &str>,
    ) -> Result<Self, RegistryError> {
        let mut tools = Vec::new();
        for spec in specs {
            tools.extend(Self::find(sources, spec).await?);
        }
        Ok(Self::new(tools))
    }

    /// The tool of a name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.tools.get(name)
    }

    /// All tools, by name.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.tools.values()
    }

    /// What the model is told, by name.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        self.tools.values().map(|e| e.definition.clone()).collect()
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    /// What the user should know: renamed tools.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether there is no tool.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fn_tool::FnTool;
    use schemars::JsonSchema;
    use serde::Deserialize;

    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}

    fn tool(name: &str) -> Arc<dyn Tool> {
        Arc::new(FnTool::new(name, "", |_: Nothing, _| async { Ok(()) }))
    }

    #[test]
    fn a_rule_holds_by_any_name_of_a_tool() {
        use decanus_base::settings::Approve;
        let registry = ToolRegistry::new([("builtin", "echo"), ("W", "echo")].map(|(g, n)| (g.to_owned(), tool(n))));
        let asked = |rule: &str| {
            let mut policy = ApprovalPolicy::default();
            policy.tools.insert(rule.into(), Approve::Always);
            let asked = registry
                .entries()
                .filter(|e| e.must_be_asked_for(&policy, &Args::new()));
            asked.map(|e| e.definition.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(asked("echo"), ["W_echo", "builtin_echo"]);
        assert_eq!(asked("builtin_echo"), ["builtin_echo"]);
        assert_eq!(asked("W_echo"), ["W_echo"]);
        assert_eq!(asked("W/echo"), ["W_echo"]);
        assert!(asked("other").is_empty());
    }

    #[test]
    fn colliding_names_get_their_group_as_prefix() {
        let tools = [("A", "x"), ("B", "x"), ("B", "y"), ("B", "y")];
        let registry = ToolRegistry::new(tools.map(|(g, n)| (g.to_owned(), tool(n))));
        assert_eq!(registry.names().collect::<Vec<_>>(), ["A_x", "B_x", "y"]);
        assert_eq!(registry.get("A_x").unwrap().definition.name, "A_x");
        assert_eq!(registry.warnings().len(), 2);
    }
}
