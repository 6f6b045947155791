//! Chat templates: the Jinja text that a model's file carries, rendered as Hugging Face's own library renders it.

use decanus_backend::BackendError;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::{Map, Value, json};

use crate::reasoning::Form;

/// Used for a model whose file has no template.
pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
    + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    source: String,
    tools: bool,
    system: bool,
    switch: bool,
    form: Form,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the model's tokens of these names.
    ///
    /// # Errors
    /// When it is not a template.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, BackendError> {
        let mut environment = Environment::new();
        // The settings of the library that the templates are written for.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| BackendError::Internal(e.to_string()))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| {
            jiff::ZonedDateTime::now().strftime(&format).to_string()
        });
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned("chat", source.to_owned())
            .map_err(|e| BackendError::Config(format!("the model's chat template can't be read: {}", Chain(&e))))?;
        let mut template = Self {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            source: source.to_owned(),
            tools: false,
            system: true,
            switch: false,
            form: Form::of(source),
        };
        template.tools = source.contains("tools") && template.shows_tools();
        template.system = template.shows_system();
        template.switch = source.contains("thinking") && template.switches_thoughts();
        Ok(template)
    }

    /// Whether the template shows tools to the model.
    pub fn has_tools(&self) -> bool {
        self.tools
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation up to where the model begins to write. Messages and tools have the form of the Chat
    /// Completions API. System text for a template that takes none goes before the first message of the user.
    ///
    /// # Errors
    /// The template's own refusals.
    pub fn render(&self, messages: &[Value], tools: &[Value]) -> Result<String, BackendError> {
        self.render_with(messages, tools, &Map::new())
    }

    /// [Renders](ChatTemplate::render) with variables of the template's own.
    ///
    /// # Errors
    /// The template's own refusals.
    pub fn render_with(
        &self,
        messages: &[Value],
        tools: &[Value],
        variables: &Map<String, Value>,
    ) -> Result<String, BackendError> {
        let rendered = if self.system {
            self.apply(messages, tools, variables)
        } else {
            self.apply(&fold_system(messages), tools, variables)
        };
        rendered.map_err(|e| BackendError::Config(format!("the model's chat template refuses: {}", Chain(&e))))
    }

    /// [Renders](ChatTemplate::render) so that the model answers at once, without thinking.
    ///
    /// # Errors
    /// The template's own refusals.
    pub fn render_without_thoughts(
        &self,
        messages: &[Value],
        tools: &[Value],
        variables: &Map<String, Value>,
    ) -> Result<String, BackendError> {
        let mut all = thinking(false);
        all.extend(variables.clone());
        let mut prompt = self.render_with(messages, tools, &all)?;
        prompt.push_str(&self.form.without(&prompt, !self.switch));
        Ok(prompt)
    }

    /// How the model marks its thoughts.
    pub fn reasoning(&self) -> Form {
        self.form
    }

    fn apply(&self, messages: &[Value], tools: &[Value], variables: &Map<String, Value>) -> Result<String, Error> {
        let template = self.environment.get_template("chat")?;
        let list = |values: &[Value]| values.iter().map(to_jinja).collect::<Vec<_>>();
        let tools = if tools.is_empty() {
            Jinja::from(())
        } else {
            Jinja::from(list(tools))
        };
        template.render(context! {
            messages => Jinja::from(list(messages)),
            tools => tools,
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            ..to_jinja(&Value::Object(variables.clone()))
        })
    }

    fn shows_tools(&self) -> bool {
        const NAME: &str = "probe_tool_name";
        let tool = json!({"type": "function", "function": {"name": NAME, "description": "d",
            "parameters": {"type": "object", "properties": {}, "required": []}}});
        let messages = [json!({"role": "user", "content": "x"})];
        self.render(&messages, &[tool]).is_ok_and(|text| text.contains(NAME))
    }

    fn shows_system(&self) -> bool {
        const TEXT: &str = "probe system text";
        let messages = [
            json!({"role": "system", "content": TEXT}),
            json!({"role": "user", "content": "x"}),
        ];
        self.apply(&messages, &[], &Map::new())
            .is_ok_and(|text| text.contains(TEXT))
    }

    fn switches_thoughts(&self) -> bool {
        let messages = [json!({"role": "user", "content": "x"})];
        let rendered = |on| self.render_with(&messages, &[], &thinking(on)).ok();
        rendered(true) != rendered(false)
    }
}

/// The variables by which templates switch thinking on and off.
pub fn thinking(on: bool) -> Map<String, Value> {
    ["enable_thinking", "thinking"]
        .map(|name| (name.to_owned(), on.into()))
        .into_iter()
        .collect()
}

fn fold_system(messages: &[Value]) -> Vec<Value> {
    let mut pending = String::new();
    let mut out = Vec::with_capacity(messages.len());
    for message in messages {
        let content = message["content"].as_str().unwrap_or_default();
        if message["role"] == "system" {
            pending.push_str(content);
            pending.push_str("\n\n");
        } else if message["role"] == "user" && !pending.is_empty() {
            out.push(json!({"role": "user", "content": format!("{pending}{content}")}));
            pending.clear();
        } else {
            out.push(message.clone());
        }
    }
    out
}

fn to_jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(i), ..) => Jinja::from(i),
            (_, Some(u), _) => Jinja::from(u),
            (_, _, Some(f)) if f.is_finite() => Jinja::from(f),
            _ => Jinja::from(n.to_string()),
        },
        Value::String(s) => Jinja::from(s.as_str()),
        Value::Array(items) => Jinja::from(items.iter().map(to_jinja).collect::<Vec<_>>()),
        Value::Object(map) => Jinja::from_pairs(map.iter().map(|(k, v)| (k.as_str(), to_jinja(v)))),
    }
}

fn from_jinja(value: &Jinja) -> Result<Value, Error> {
    Ok(match value.kind() {
        ValueKind::Undefined | ValueKind::None => Value::Null,
        ValueKind::Bool => Value::Bool(value.is_true()),
        ValueKind::Number => serde_json::from_str(&value.to_string()).unwrap_or(Value::Null),
        ValueKind::Map => {
            let mut map = Map::new();
            for key in value.try_iter()? {
                map.insert(key.to_string(), from_jinja(&value.get_item(&key)?)?);
            }
            Value::Object(map)
        }
        ValueKind::Seq | ValueKind::Iterable => Value::Array(
            value
                .try_iter()?
                .map(|item| from_jinja(&item))
                .collect::<Result<_, _>>()?,
        ),
        _ => Value::String(value.to_string()),
    })
}

/// `tojson` as Hugging Face defines it: Python's `json.dumps` without HTML escapes, with `, ` and `: ` between things.
fn to_json(value: &Jinja, arguments: Kwargs) -> Result<Jinja, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let ascii: Option<bool> = arguments.get("ensure_ascii")?;
    let _: Option<Jinja> = arguments.get("separators")?;
    let _: Option<bool> = arguments.get("sort_keys")?;
    arguments.assert_all_used()?;
    let json = from_jinja(value)?;
    let mut out = String::new();
    dump(&json, indent, 0, &mut out);
    if ascii == Some(true) {
        out = escape_non_ascii(&out);
    }
    Ok(Jinja::from_safe_string(out))
}

fn escape_non_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// Writes JSON as Python's `json.dumps` does.
pub fn dump(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) {
    let newline = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                newline(out, depth + 1);
                dump(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            out.push('{');
            for (i, (name, item)) in map.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                newline(out, depth + 1);
                out.push_str(&Value::String(name.clone()).to_string());
                out.push_str(": ");
                dump(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// JSON on one line, as models have mostly seen it.
pub fn one_line(value: &Value) -> String {
    let mut out = String::new();
    dump(value, None, 0, &mut out);
    out
}

/// An error with its causes, on one line.
struct Chain<'e>(&'e dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(next) = cause {
            write!(f, ": {next}")?;
            cause = next.source();
        }
        Ok(())
    }
}
