//! The schema of a tool's arguments, compiled.

use std::sync::{Arc, OnceLock};

use decanus_chat::ToolDefinition;
use jsonschema::Validator;
use serde_json::Value;

use crate::coerce::{coerced, types};
use crate::tool::{Args, ToolError};

/// Keywords of a schema of an object that say something of its properties one by one, or nothing that is checked.
const SAID_OF_PROPERTIES: &[&str] = &[
    "type",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "examples",
    "default",
];

/// What checks the arguments of one tool. The schema is compiled at the first call, which takes longer than all the
/// rest of a call, and kept; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Checker(Arc<OnceLock<Result<Compiled, String>>>);

/// A schema, and what is asked of it in every call.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) schema: Value,
    pub(crate) validator: Validator,
    pub(crate) properties: Vec<Property>,
    /// Whether names beside these are let through.
    pub(crate) open: bool,
    /// Whether a name is required that is not among the properties.
    pub(crate) requires_others: bool,
    /// Whether the schema says no more of the whole than of its properties, so that these can be checked one by one.
    plain: bool,
}

/// A parameter.
#[derive(Debug)]
pub(crate) struct Property {
    pub(crate) name: String,
    pub(crate) schema: Value,
    pub(crate) nullable: bool,
    pub(crate) required: bool,
    /// Whether a value that is valid may still be written in another way: 5.0 for 5.
    rewrites: bool,
    /// None when its schema has no meaning without the whole.
    validator: Option<Validator>,
}

impl Compiled {
    fn new(schema: Value) -> Result<Self, String> {
        let validator = jsonschema::validator_for(&schema).map_err(|e| e.to_string())?;
        let required: Vec<&str> = required(&schema).collect();
        let declared = schema.get("properties").and_then(Value::as_object);
        let properties: Vec<Property> = declared
            .into_iter()
            .flatten()
            .map(|(name, schema)| Property {
                name: name.clone(),
                schema: schema.clone(),
                nullable: types(schema).any(|t| t == "null"),
                required: required.contains(&name.as_str()),
                rewrites: rewrites(schema),
                validator: stands_alone(schema)
                    .then(|| jsonschema::validator_for(schema).ok())
                    .flatten(),
            })
            .collect();
        let is_declared = |name: &&str| properties.iter().any(|p| p.name == **name);
        let requires_others = !required.iter().all(is_declared);
        let open = schema
            .get("additionalProperties")
            .is_some_and(|a| *a != Value::Bool(false));
        let said_of_whole = |keyword: &String| !SAID_OF_PROPERTIES.contains(&keyword.as_str());
        let plain = !requires_others
            && properties.iter().all(|p| p.validator.is_some())
            && !schema.as_object().is_some_and(|s| s.keys().any(said_of_whole));
        Ok(Self {
            validator,
            properties,
            open,
            requires_others,
            plain,
            schema,
        })
    }

    /// Whether arguments can go to the tool as they are: all are declared, in their order, and fit. Most do. When this
    /// says no, they may still fit.
    pub(crate) fn fits(&self, sent: &Args) -> bool {
        if !self.plain {
            return false;
        }
        let mut declared = self.properties.iter();
        for (name, value) in sent {
            // Those that stand before it were left out.
            let Some(property) = declared.by_ref().find(|p| p.required || p.name == *name) else {
                return false;
            };
            let fits = property.name == *name
                && !value.is_null()
                && property.validator.as_ref().is_some_and(|v| v.is_valid(value))
                && (!property.rewrites || coerced(value, &property.schema) == Ok(None));
            if !fits {
                return false;
            }
        }
        declared.all(|p| !p.required)
    }

    pub(crate) fn property(&self, name: &str) -> Option<&Property> {
        self.properties.iter().find(|p| p.name == name)
    }
}

impl Checker {
    pub(crate) fn of(&self, definition: &ToolDefinition) -> Result<&Compiled, ToolError> {
        self.0
            .get_or_init(|| Compiled::new(definition.wire_parameters()))
            .as_ref()
            .map_err(|e| ToolError::Fatal(format!("the schema of tool '{}' is not valid: {e}", definition.name)))
    }
}

/// Whether coercion may write a value anew that is valid by a schema: integers that have a fraction of zero, and items
/// whose places have schemas of their own.
fn rewrites(schema: &Value) -> bool {
    let of_items = |items: &Value| schema.get("prefixItems").is_some() || rewrites(items);
    types(schema).any(|t| t == "integer") || schema.get("items").is_some_and(of_items)
}

/// Whether a schema means the same outside of the one that it is part of: nothing in it refers, or is referred to.
fn stands_alone(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map
            .iter()
            .all(|(name, part)| !name.starts_with('$') && stands_alone(part)),
        Value::Array(parts) => parts.iter().all(stands_alone),
        _ => true,
    }
}

/// The names that a schema requires.
pub(crate) fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}
