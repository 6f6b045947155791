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
    arguments: PhantomData<fn(A)>,
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
        let definition = ToolDefinition {
            name: name.into(),
            description: description.into(),
            parameters: parameters::<A>(),
            ..ToolDefinition::default()
        };
        let function: Function<A> = Box::new(move |args, cx| Box::pin(function(args, cx)));
        Self {
            definition,
            function,
            is_destructive: None,
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

    /// Its output is another one each time, by its nature.
    pub fn volatile(mut self) -> Self {
        self.definition.volatile = true;
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
pub fn parameters<A: JsonSchema>() -> Value {
    let mut settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<A>().to_value();
    if let Some(map) = schema.as_object_mut() {
        map.remove("title");
        map.remove("description");
    }
    drop_formats(&mut schema);
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
        let args = serde_json::from_value(Value::Object(args))
            .map_err(|e| ToolError::argument(format!("arguments for tool '{}': {e}", self.definition.name)))?;
        (self.function)(args, cx.clone()).await
    }
}
