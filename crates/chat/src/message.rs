//! What a conversation is made of.

use std::fmt;

macro_rules! roles {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal),* $(,)?) => {
        /// What a message is for. A word that is none of these never opens a message in a file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Role { $($(#[doc = $doc])* $name),* }

        impl Role {
            /// All roles.
            pub const ALL: &[Role] = &[$(Role::$name),*];

            /// The word that stands before the colon in a file.
            pub fn as_str(self) -> &'static str {
                match self { $(Role::$name => $word),* }
            }

            /// The role of a word, if it is one.
            pub fn from_word(word: &str) -> Option<Role> {
                match word { $($word => Some(Role::$name),)* _ => None }
            }
        }
    };
}

roles! {
    /// Standing instructions, sent to the model.
    System = "system",
    /// What the person says.
    User = "user",
    /// What the model says.
    Assistant = "assistant",
    /// A tool call that the model made: one line of JSON.
    FunctionCall = "function_call",
    /// The result of a tool call: one line of JSON.
    FunctionCallOutput = "function_call_output",
    /// Bookkeeping of one answer: `key=value` pairs; never sent.
    Meta = "meta",
    /// Opaque parts of an answer, kept for the backend that made them: one line of JSON.
    Provider = "provider",
    /// A call that a provider made itself: one line of JSON; counted, never sent.
    McpCall = "mcp_call",
    /// The whole compiled chat of a file, in this place.
    Import = "import",
    /// The last message of a file's compiled chat, in this place.
    Continue = "continue",
    /// Like `continue`, but never an id of a response.
    Last = "last",
    /// Drops everything above it in its file.
    Clear = "clear",
    /// Forgets the tools declared above it.
    ClearTools = "clear_tools",
    /// Drops the calls and outputs above it from what the model sees.
    ClearCalls = "clear_calls",
    /// Forgets the associations declared above it.
    ClearAssociations = "clear_associations",
    /// Drops all messages of the role that it names.
    CleanRole = "clean_role",
    /// The same as `clean_role`.
    ClearRole = "clear_role",
    /// A remark that nobody but the reader of the file sees.
    Skip = "skip",
    /// A setting of this request: `key value token…`.
    Config = "config",
    /// Runs a task as a job, and shows call and result: `WORKFLOW TASK key=value…`.
    Task = "task",
    /// Runs a task as a job, and shows the result as a file.
    InlineTask = "inline_task",
    /// Runs a task, and shows the result as what the person says.
    ExecTask = "exec_task",
    /// Shows a job's call and result: its path.
    Job = "job",
    /// Shows a job's result as a file: its path.
    InlineJob = "inline_job",
    /// The answer of a step of the job that made the messages above.
    Step = "step",
    /// A text file, in a `<file>` element.
    File = "file",
    /// All text files of a folder, each in a `<file>` element.
    Directory = "directory",
    /// A PDF document for the model.
    Pdf = "pdf",
    /// A picture for the model.
    Image = "image",
    /// Runs a command, and shows its output; only where that was allowed.
    Cmd = "cmd",
    /// A path that may be read and written.
    AllowPath = "allow_path",
    /// A path that may be read.
    AllowReadPath = "allow_read_path",
    /// A setting that holds until the next answer: `key value`.
    Option = "option",
    /// A setting that holds from here on: `key value`.
    StickyOption = "sticky_option",
    /// The endpoint to ask from here on.
    Endpoint = "endpoint",
    /// The model to ask from here on.
    Model = "model",
    /// The backend to ask from here on.
    Backend = "backend",
    /// The agent to ask from here on.
    Agent = "agent",
    /// Whether answers are kept in the cache, until the next answer.
    Persist = "persist",
    /// The form of the next answer: a word, a JSON schema, or the path of one.
    Format = "format",
    /// The provider's id of the response to go on from.
    PreviousResponseId = "previous_response_id",
    /// Tools to offer: `NAME`, or `WORKFLOW [task [input…]]`.
    Tool = "tool",
    /// A workflow's documentation, and its tools.
    Introduce = "introduce",
    /// Tools of an MCP server: `URL [tool…]` or `stdio "COMMAND" [tool…]`.
    Mcp = "mcp",
    /// Tools of a knowledge base: `NAME [database…]`.
    Kb = "kb",
    /// A table of relations as a tool: `NAME PATH key=value…`.
    Association = "association",
    /// Offers the provider's own web search.
    Websearch = "websearch",
    /// Whether an agent may ask others.
    Socialize = "socialize",
}

impl Role {
    /// Whether what is said to or by the model stands in it; all other roles steer, or are bookkeeping.
    pub fn is_utterance(self) -> bool {
        matches!(self, Role::System | Role::User | Role::Assistant)
    }

    /// Whether content is written on the header's own line.
    pub fn is_inline(self) -> bool {
        !self.is_utterance()
    }

    /// Whether content is one JSON object.
    pub fn is_json(self) -> bool {
        matches!(
            self,
            Role::FunctionCall | Role::FunctionCallOutput | Role::Provider | Role::McpCall
        )
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One message. Two messages are equal when role and content are, wherever they were read.
#[derive(Clone, Debug)]
pub struct Message {
    /// What it is for.
    pub role: Role,
    /// The text; for calls and outputs one line of JSON, for meta `key=value` pairs.
    pub content: String,
    /// The line of its header in the file it was read from, counted from 1.
    pub line: Option<usize>,
}

impl Message {
    /// A message that was not read from a file. The content is taken as it is.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            line: None,
        }
    }

    /// A message of the person.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Standing instructions.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.role == other.role && self.content == other.content
    }
}

impl Eq for Message {}
