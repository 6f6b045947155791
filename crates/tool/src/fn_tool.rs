//! A Rust closure as a tool.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;

use async_trait::async_trait;
use decanus_chat::{Effect, Example, ToolDefinition};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::coerce::brief;
use crate::tool::{Args, Tool, ToolContext, ToolError, ToolOutput};

type Function<A> =
    Box<dyn Fn(A, ToolContext) -> Pin<Box<dyn Future<Output = Result<ToolOutput, ToolError>> + Send>> + Send + Sync>;

/// Whether a call with these arguments may destroy something.
type Judgement = Box<dyn Fn(&Args) -> bool + Send + Sync>;

/// A tool made of a function. Its argument type gives the schema: field names, types, `Option` for what may be left
/// out, and doc comments as descriptions.
pub struct FnTool<A> {
    definition: ToolDefinition,
    function: Function<A>,
    is_destructive: Option<Judgement>,
    /// The whole numbers among the parameters.
    ranges: Vec<Range>,
    arguments: PhantomData<fn(A)>,
}

/// What a parameter of a whole number can hold.
struct Range {
    name: String,
    min: i128,
    max: i128,
}

impl Range {
    /// Those of a type's schema, whose formats name Rust's types.
    fn all(schema: &Value) -> Vec<Self> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let range = |(name, schema): (&String, &Value)| {
            let format = |s: &Value| Some(s.get("format")?.as_str()?.to_owned());
            let format = format(schema).or_else(|| format(schema.get("items")?))?;
            let (min, max) = match format.as_str() {
                "int64" | "int" => (i64::MIN.into(), i64::MAX.into()),
                "uint64" | "uint" => (0, u64::MAX.into()),
                "int32" => (i32::MIN.into(), i32::MAX.into()),
                "uint32" => (0, u32::MAX.into()),
                "int16" => (i16::MIN.into(), i16::MAX.into()),
                "uint16" => (0, u16::MAX.into()),
                "int8" => (i8::MIN.into(), i8::MAX.into()),
                "uint8" => (0, u8::MAX.into()),
                _ => return None,
            };
            // What the schema says beside is the tighter bound.
            let said = |key: &str| schema.get(key).and_then(Value::as_i64).map(i128::from);
            Some(Self {
                name: name.clone(),
                min: said("minimum").unwrap_or(min).max(min),
                max: said("maximum").unwrap_or(max).min(max),
            })
        };
        properties.into_iter().flatten().filter_map(range).collect()
    }

    /// The value, when it is out of the range.
    fn breach<'a>(&self, args: &'a Args) -> Option<&'a Value> {
        let is_out = |value: &Value| match value {
            // More digits than fit here are out of any range.
            Value::Number(number) => number
                .to_string()
                .parse::<i128>()
                .map_or_else(|e| is_overflow(&e), |n| n < self.min || n > self.max),
            _ => false,
        };
        match args.get(&self.name)? {
            Value::Array(items) => items.iter().find(|v| is_out(v)),
            one => Some(one).filter(|v| is_out(v)),
        }
    }
}

fn is_overflow(error: &std::num::ParseIntError) -> bool {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    matches!(error.kind(), PosOverflow | NegOverflow)
}

impl<A> FnTool<A>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
{
    /// A tool of this name. The function gets the arguments and the facts of the call; what it returns is given to the
    /// model, text as it is and anything else as JSON.
    pub fn new<R, F, Fut>(name: impl Into<String>, description: impl Into<String>, function: F) -> Self
    where
        R: Serialize,
        F: Fn(A, ToolContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        Self::with_output(name, description, move |args, cx| {
            let future = function(args, cx);
            async move {
                let value = serde_json::to_value(future.await?);
                let value = value.map_err(|e| ToolError::Fatal(format!("a result that is not JSON: {e}")))?;
                Ok(ToolOutput::new(value))
            }
        })
    }

    /// The same for a function that has more to give than a value: pictures, notes, a failure that is a result.
    pub fn with_output<F, Fut>(name: impl Into<String>, description: impl Into<String>, function: F) -> Self
    where
        F: Fn(A, ToolContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        let mut schema = parameters::<A>();
        let ranges = Range::all(&schema);
        drop_formats(&mut schema);
        let definition = ToolDefinition {
            name: name.into(),
            description: description.into(),
            parameters: schema,
            ..ToolDefinition::default()
        };
        let function: Function<A> = Box::new(move |args, cx| Box::pin(function(args, cx)));
        Self {
            definition,
            function,
            is_destructive: None,
            ranges,
            arguments: PhantomData,
        }
    }

    /// What calling it does to the world.
    pub fn effect(mut self, effect: Effect) -> Self {
        self.definition.effect = effect;
        self
    }

    /// Every call may destroy or send something, so that the user is asked for it.
    pub fn destructive(mut self) -> Self {
        self.definition.destructive = true;
        self
    }

    /// Calls that fulfil this may destroy or send something, others do not.
    pub fn destructive_if(mut self, is: impl Fn(&Args) -> bool + Send + Sync + 'static) -> Self {
        self.is_destructive = Some(Box::new(is));
        self
    }

    /// It reaches out to the network.
    pub fn open_world(mut self) -> Self {
        self.definition.open_world = true;
        self
    }

    /// A request in words and the arguments it should lead to, for small models.
    ///
    /// Arguments that are not an object are left out.
    pub fn example(mut self, request: impl Into<String>, arguments: Value) -> Self {
        if let Value::Object(arguments) = arguments {
            self.definition.examples.push(Example {
                request: request.into(),
                arguments,
            });
        }
        self
    }
}

/// The JSON Schema of a type, without what providers have no use for.
fn parameters<A: JsonSchema>() -> Value {
    let mut settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<A>().to_value();
    if let Some(map) = schema.as_object_mut() {
        map.remove("title");
        map.remove("description");
    }
    schema
}

/// Removes the names of Rust's number types (`double`, `uint64`), which are no formats of JSON Schema and which strict
/// providers refuse.
fn drop_formats(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            let of_number = |t: &Value| {
                t == "number"
                    || t == "integer"
                    || t.as_array()
                        .is_some_and(|l| l.iter().any(|t| t == "number" || t == "integer"))
            };
            if map.get("type").is_some_and(of_number) && map.get("format").is_some_and(Value::is_string) {
                map.remove("format");
            }
            map.values_mut().for_each(drop_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_formats),
        _ => {}
    }
}

#[async_trait]
impl<A> Tool for FnTool<A>
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
{
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn is_destructive(&self, args: &Args) -> bool {
        self.is_destructive
            .as_ref()
            .map_or(self.definition.destructive, |is| is(args))
    }

    async fn call(&self, args: Args, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
        for range in &self.ranges {
            if let Some(value) = range.breach(&args) {
                let Range { name, min, max } = range;
                let (tool, value) = (&self.definition.name, brief(value));
                return Err(ToolError::argument(format!(
                    "Parameter '{name}' for tool '{tool}': expected Integer from {min} to {max}, got {value}"
                )));
            }
        }
        let args = serde_json::from_value(Value::Object(args))
            .map_err(|e| ToolError::argument(format!("arguments for tool '{}': {e}", self.definition.name)))?;
        (self.function)(args, cx.clone()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;
    use schemars::JsonSchema;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Deserialize, JsonSchema)]
    struct Numbers {
        /// A comment.
        a: Option<i64>,
        b: Option<u32>,
        c: Option<Vec<u8>>,
    }

    #[tokio::test]
    async fn a_number_beyond_the_range_is_named_with_its_limits() {
        let tool = FnTool::new("t", "", |n: Numbers, _| async move { Ok(json!([n.a, n.b, n.c])) });
        let call = async |text: &str| {
            let cx = ToolContext::new("c", &Run::builder("/nowhere").build());
            let outcome = tool.call(serde_json::from_str(text).unwrap(), &cx).await;
            outcome.map(|o| o.value.to_string()).unwrap_or_else(|e| e.to_string())
        };
        let most = r#"{"a":9223372036854775807,"b":4294967295,"c":[255]}"#;
        assert_eq!(call(most).await, "[9223372036854775807,4294967295,[255]]");
        for (text, says) in [
            (
                r#"{"a":9223372036854775808}"#,
                "Parameter 'a' for tool 't': expected Integer from -9223372036854775808 to 9223372036854775807, got \
                 9223372036854775808",
            ),
            (
                r#"{"a":-99999999999999999999}"#,
                "Parameter 'a' for tool 't': expected Integer from",
            ),
            (
                r#"{"a":9999999999999999999999999999999999999999999999}"#,
                "Parameter 'a' for tool 't': expected Integer from",
            ),
            (
                r#"{"b":4294967296}"#,
                "Parameter 'b' for tool 't': expected Integer from 0 to 4294967295",
            ),
            (
                r#"{"c":[1,256]}"#,
                "Parameter 'c' for tool 't': expected Integer from 0 to 255, got 256",
            ),
        ] {
            let said = call(text).await;
            assert!(said.starts_with(says), "{text}: {said}");
        }
        assert!(!tool.definition().parameters.to_string().contains("format"));
    }
}
