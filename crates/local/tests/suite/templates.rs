//! Templates of models that we can't have here, as data: rendering, and the grammar of their calls.

use decanus_chat::{Arguments, FunctionCall, FunctionCallOutput, Message};
use decanus_local::engine::Engine;
use decanus_local::messages::{Calls, convert};
use decanus_local::native::{Form, compile, tools_for_template};
use decanus_local::template::{CHATML, ChatTemplate};
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;
use serde_json::Value;

use crate::model::{builtins, home, turn, weather};

const QWEN: &str = include_str!("../templates/qwen2.5.jinja");
const LLAMA: &str = include_str!("../templates/llama-3.1.jinja");
const HERMES: &str = include_str!("../templates/hermes.jinja");
const MISTRAL: &str = include_str!("../templates/mistral.jinja");
const NO_SYSTEM: &str = include_str!("../templates/no-system.jinja");

/// A question, a call and its result.
fn round() -> Vec<Value> {
    let arguments = Arguments::from_text(r#"{"operand1":7340017340017340017,"operand2":2.5,"operation":"add"}"#);
    let call = FunctionCall {
        id: "call_1".into(),
        name: "calculator".into(),
        arguments,
    };
    let output = FunctionCallOutput {
        id: "call_1".into(),
        name: "calculator".into(),
        content: "é & <42>".into(),
        ..FunctionCallOutput::default()
    };
    let messages = [
        Message::system("Be brief."),
        Message::user("What is it?"),
        call.to_message(),
        output.to_message(),
    ];
    convert(&messages, Calls::Native, str::to_owned)
}

fn render(template: &str) -> String {
    let template = ChatTemplate::new(template, "<s>", "</s>").unwrap();
    assert!(template.has_tools());
    template
        .render(&round(), &tools_for_template(&builtins()[..1]))
        .unwrap()
}

const ARGUMENTS: &str = r#"{"operand1": 7340017340017340017, "operand2": 2.5, "operation": "add"}"#;

#[test]
fn tool_templates_render_tools_calls_and_results() {
    let qwen = render(QWEN);
    assert!(qwen.starts_with("<|im_start|>system\nBe brief.\n\n# Tools"), "{qwen}");
    assert!(
        qwen.contains("\n{\"type\": \"function\", \"function\": {\"name\": \"calculator\", \"description\": "),
        "{qwen}"
    );
    let call = format!("<tool_call>\n{{\"name\": \"calculator\", \"arguments\": {ARGUMENTS}}}\n</tool_call><|im_end|>");
    assert!(qwen.contains(&call), "{qwen}");
    assert!(
        qwen.ends_with("<tool_response>\né & <42>\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        "{qwen}"
    );

    let llama = render(LLAMA);
    assert!(
        llama.contains("Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nGiven the"),
        "{llama}"
    );
    assert!(
        llama.contains("{\n    \"type\": \"function\",\n    \"function\": {\n        \"name\""),
        "{llama}"
    );
    assert!(
        llama.contains(&format!(
            "{{\"name\": \"calculator\", \"parameters\": {ARGUMENTS}}}<|eot_id|>"
        )),
        "{llama}"
    );

    let hermes = render(HERMES);
    assert!(
        hermes.contains("calculator(operand1: float, operand2: float, operation: str) - "),
        "{hermes}"
    );
    assert!(
        hermes.contains(&format!("\"arguments\": {ARGUMENTS}}}\n</tool_call>")),
        "{hermes}"
    );

    let mistral = render(MISTRAL);
    assert!(
        mistral.contains("[TOOL_CALLS] [{\"name\": \"calculator\", \"arguments\": "),
        "{mistral}"
    );
    assert!(mistral.starts_with("<s>[AVAILABLE_TOOLS] [{\"type\""), "{mistral}");
}

#[test]
fn templates_without_tools_or_system_text_are_known_as_such() {
    assert!(!ChatTemplate::new(CHATML, "", "").unwrap().has_tools());
    let template = ChatTemplate::new(NO_SYSTEM, "<bos>", "").unwrap();
    assert!(!template.has_tools());
    let messages = convert(
        &[Message::system("Be brief."), Message::user("Hi")],
        Calls::LeftOut,
        str::to_owned,
    );
    let text = template.render(&messages, &[]).unwrap();
    assert_eq!(
        text,
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    );
    let error = ChatTemplate::new("{% if %}", "", "").unwrap_err();
    assert!(error.to_string().contains("chat template can't be read"), "{error}");
    let refused = template.render(&convert(&[Message::assistant("x")], Calls::LeftOut, str::to_owned), &[]);
    assert!(refused.unwrap_err().to_string().contains("roles must alternate"));
}

#[test]
fn forms_are_told_by_the_template() {
    assert_eq!([QWEN, HERMES].map(Form::of), [Form::Tagged; 2]);
    assert_eq!((Form::of(MISTRAL), Form::of(LLAMA)), (Form::List, Form::Bare));
}

/// Whether a grammar accepts a text, token by token.
fn accepts(form: Form, written: &str, texts: &[&str]) -> Vec<bool> {
    let _turn = turn();
    let file = decanus_local::models::path(home(), "").unwrap();
    let engine = Engine::open(&file, "grammar").unwrap();
    let tools: Vec<_> = weather().into_iter().chain(builtins()).collect();
    let grammar = form.grammar(&tools, written).unwrap();
    let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    let work = move |session: Result<&mut decanus_local::engine::session::Session<'_>, _>| {
        let session = session.unwrap();
        let accepted: Vec<bool> = texts
            .iter()
            .map(|text| {
                let mut sampler = compile(session.model(), &grammar).unwrap();
                session.tokenize(text).into_iter().all(|token| {
                    let mut one = LlamaTokenDataArray::new(vec![LlamaTokenData::new(token, 1.0, 0.0)], false);
                    one.apply_sampler(&mut sampler);
                    let allowed = one.data[0].logit().is_finite();
                    if allowed {
                        sampler.accept(token);
                    }
                    allowed
                })
            })
            .collect();
        sender.send(accepted).unwrap();
    };
    engine.submit(engine.token(), work).unwrap();
    receiver.recv().unwrap()
}

#[test]
fn once_a_call_has_begun_only_a_valid_one_can_follow() {
    let tagged = accepts(
        Form::Tagged,
        "",
        &[
            "\n{\"name\": \"monthly_mean\", \"arguments\": {\"column\": \"wind\", \"month\": 7}}\n</tool_call>",
            "\n{\"name\": \"monthly_mean\", \"arguments\": {\"column\": \"wind\", \"month\": 7, \"year\": 2012}}\n</tool_call>",
            "{\"name\": \"current_time\", \"arguments\": {}}</tool_call>",
            "{\"name\": \"echo\", \"arguments\": {\"message\": \"a \\\"b\\\" é\"}}</tool_call>",
            "{\"name\": \"monthly_mean\", \"arguments\": {\"column\": \"snow\", \"month\": 7}}",
            "{\"name\": \"monthly_mean\", \"arguments\": {\"month\": 7}}",
            "{\"name\": \"no_such_tool\"",
            "{\"name\": \"calculator\", \"arguments\": {\"operand1\": \"two\"",
            "Hello",
        ],
    );
    assert_eq!(tagged, [true, true, true, true, false, false, false, false, false]);
    let bare = accepts(
        Form::Bare,
        "{\"",
        &["name\": \"echo\", \"parameters\": {\"message\": \"x\"}}", "title\": 1"],
    );
    assert_eq!(bare, [true, false]);
    let list = accepts(
        Form::List,
        "",
        &[
            " [{\"name\": \"echo\", \"arguments\": {\"message\": \"x\"}}, {\"name\": \"current_time\", \"arguments\": {}}]",
            " {\"name\"",
        ],
    );
    assert_eq!(list, [true, false]);
    assert!(Form::Bare.grammar(&builtins(), "{\"na me").is_none());
}
