//! Stating a tool's result in fixed words, for models that are too small to be trusted with it.

use decanus_chat::{Arguments, FunctionCall, FunctionCallOutput, Message, Role};
use serde_json::Value;

/// The outputs that wait for an answer: those after the person's last message, with the calls they belong to.
#[derive(Debug, Default)]
pub struct Outstanding {
    outputs: Vec<(Option<FunctionCall>, FunctionCallOutput)>,
}

impl Outstanding {
    /// Finds them. Records that can't be read are passed over.
    pub fn of(messages: &[Message]) -> Self {
        let from = messages
            .iter()
            .rposition(|m| m.role == Role::User)
            .map_or(0, |at| at + 1);
        let turn = &messages[from..];
        // An answer that was given already leaves nothing outstanding.
        let after = turn
            .iter()
            .rposition(|m| m.role == Role::Assistant)
            .map_or(0, |at| at + 1);
        let calls: Vec<FunctionCall> = turn
            .iter()
            .filter(|m| m.role == Role::FunctionCall)
            .filter_map(|m| FunctionCall::from_message(m).ok())
            .collect();
        let outputs = turn[after..]
            .iter()
            .filter(|m| m.role == Role::FunctionCallOutput)
            .filter_map(|m| FunctionCallOutput::from_message(m).ok())
            .map(|output| (calls.iter().find(|c| c.id == output.id).cloned(), output))
            .collect();
        Self { outputs }
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Each of them in a sentence, one a line.
    pub fn state(&self) -> String {
        let lines: Vec<String> = self
            .outputs
            .iter()
            .map(|(call, output)| sentence(call.as_ref(), output))
            .collect();
        lines.join("\n")
    }
}

fn sentence(call: Option<&FunctionCall>, output: &FunctionCallOutput) -> String {
    let name = call.map_or(output.name.as_str(), |c| c.name.as_str());
    let arguments = call.map(|c| in_brackets(&c.arguments)).unwrap_or_default();
    let content = output.content.trim();
    if output.error.is_some() {
        let reason = serde_json::from_str::<Value>(content)
            .ok()
            .and_then(|v| {
                v.get("error_message")
                    .or_else(|| v.get("error"))?
                    .as_str()
                    .map(str::to_owned)
            })
            .unwrap_or_else(|| content.to_owned());
        return format!("The tool {name}{arguments} failed: {}", ended(&reason));
    }
    if content.is_empty() {
        return format!("The tool {name}{arguments} gave no result.");
    }
    // A long or structured result is not made to look like a sentence.
    if content.contains('\n') {
        return format!("The result of {name}{arguments} is:\n{content}");
    }
    format!("The result of {name}{arguments} is {}", ended(content))
}

fn ended(text: &str) -> String {
    if text.ends_with(['.', '!', '?', '…']) {
        text.to_owned()
    } else {
        format!("{text}.")
    }
}

fn in_brackets(arguments: &Arguments) -> String {
    let Arguments::Object(map) = arguments else {
        return String::new();
    };
    if map.is_empty() {
        return String::new();
    }
    let list: Vec<String> = map
        .iter()
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        })
        .collect();
    format!("({})", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(id: &str, arguments: &Value) -> Message {
        let arguments = Arguments::from_value(Some(arguments));
        FunctionCall {
            id: id.into(),
            name: "calculator".into(),
            arguments,
        }
        .to_message()
    }

    fn output(id: &str, content: &str, error: Option<&str>) -> Message {
        FunctionCallOutput {
            id: id.into(),
            name: "calculator".into(),
            content: content.into(),
            error: error.map(str::to_owned),
            ..FunctionCallOutput::default()
        }
        .to_message()
    }

    #[test]
    fn a_result_is_stated_with_its_call() {
        let arguments = json!({"operand1": 21, "operand2": 2, "operation": "multiply"});
        let messages = [
            Message::user("What is 21 times 2?"),
            call("a", &arguments),
            output("a", "42", None),
        ];
        let stated = Outstanding::of(&messages).state();
        assert_eq!(
            stated,
            "The result of calculator(operand1=21, operand2=2, operation=multiply) is 42."
        );
    }

    #[test]
    fn failures_say_why_and_several_outputs_are_lines() {
        let messages = [
            Message::user("x"),
            call("a", &json!({})),
            call("b", &json!({})),
            output("a", "division by zero", Some("ToolExecutionError")),
            output("b", "one\ntwo", None),
        ];
        let stated = Outstanding::of(&messages).state();
        assert_eq!(
            stated,
            "The tool calculator failed: division by zero.\nThe result of calculator is:\none\ntwo"
        );
    }

    #[test]
    fn a_new_question_leaves_earlier_outputs_alone() {
        let messages = [
            Message::user("x"),
            call("a", &json!({})),
            output("a", "1", None),
            Message::user("y"),
        ];
        assert!(Outstanding::of(&messages).is_empty());
        let answered = [
            Message::user("x"),
            call("a", &json!({})),
            output("a", "1", None),
            Message::assistant("1"),
        ];
        assert!(Outstanding::of(&answered).is_empty());
    }
}
