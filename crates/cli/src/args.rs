//! The command line.

mod jobs;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use decanus::base::settings::Approve;

pub use jobs::{CleanJobs, CleanTasks, Collect, Job, JobProv, ListJobs, Run, Workflow};

use crate::complete;

/// Chats, typed workflows and models, where every step is a file.
#[derive(Parser, Debug)]
#[command(name = "decanus", version, max_term_width = 110, arg_required_else_help = true)]
pub struct Cli {
    /// Run in this project folder; relative paths are relative to it
    #[arg(short = 'C', long = "directory", global = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Print one JSON object (or array) for machines
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Ask a question; the model may call tools
    Ask(Ask),
    /// Talk, a question a line; or check what a chat file means
    Chat(Chat),
    /// The tools in reach: list, look at, call
    #[command(subcommand)]
    Tool(Tool),
    /// The workflows: list, look at, run a task
    #[command(subcommand)]
    Workflow(Workflow),
    /// The jobs: list, look at, print a result, end, remove
    #[command(subcommand)]
    Job(Job),
    /// Where an answer came from: answers with their tokens, calls, jobs, files
    Prov(Prov),
    /// Make the calls of a chat again, without a model, and compare the outputs with those in the chat
    ///
    /// Calls that only look, may be made twice, or are answered by stored jobs are made again with the arguments that the
    /// chat has; what cannot be compared (the time, a random number) and what may change something is reported as recorded
    /// only. Chats of agents that were asked are followed. The chat is not changed, and no model is asked. The exit code is
    /// 4 when an output differs.
    Replay(Replay),
    /// The endpoints: list, look at, test
    #[command(subcommand)]
    Endpoint(Endpoint),
    /// The stored answers: list, remove, explain
    #[command(subcommand)]
    Cache(Cache),
    /// Models on this machine: list, fetch
    #[command(subcommand)]
    Model(Model),
    /// What may run code when a file of this project selects it
    #[command(subcommand)]
    Mcp(Mcp),
    /// Your credentials for URLs that tools ask: list, keep, try, remove, log in
    #[command(subcommand)]
    Auth(Auth),
    /// Answer questions that other machines put into a folder here
    #[command(subcommand)]
    Relay(Relay),
    /// Begin a project: decanus.toml and a first workflow
    Init {
        /// The folder; made when absent
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Check the set-up, and show each setting with its source
    Doctor,
    /// Print what makes a shell complete commands, options, and names of workflows, tasks and inputs
    Completions {
        /// bash, zsh, fish, elvish or powershell
        #[arg(value_parser = shell)]
        shell: String,
    },
}

/// How to ask.
#[derive(Args, Debug)]
pub struct How {
    /// Continue this chat: a path, or a name for chats/NAME.chat; made when absent
    #[arg(short = 'c', long = "chat", value_name = "CHAT")]
    pub chat: Option<String>,
    /// The endpoint to ask
    #[arg(short, long)]
    pub endpoint: Option<String>,
    /// The model to ask
    #[arg(short, long)]
    pub model: Option<String>,
    /// A tool to offer: a built-in's name, WORKFLOW, or WORKFLOW/TASK; may be repeated
    #[arg(short, long = "tool", value_name = "TOOL", add = ArgValueCompleter::new(complete::specs))]
    pub tools: Vec<String>,
    /// An option: tool_choice, max_rounds, limits.NAME, timeout; any other goes to the provider
    #[arg(short, long = "option", value_name = "KEY=VALUE", value_parser = pair)]
    pub options: Vec<(String, String)>,
    /// Which tool calls to ask you for: always (all), destructive (those that may destroy or send something), never
    #[arg(long, value_name = "WHICH")]
    pub approve: Option<Approve>,
    /// Let `cmd` lines of the chat run commands
    #[arg(long)]
    pub allow_cmd: bool,
    /// The JSON schema that the answer must fit; a file
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Show the tokens that were used, and what they cost
    #[arg(long)]
    pub usage: bool,
    /// Ask anew, although the answer to the same request is in the cache
    #[arg(long)]
    pub no_cache: bool,
    /// Show how the model's choices were made
    #[arg(long)]
    pub explain: bool,
    /// Ask for the whole answer at once
    #[arg(long)]
    pub no_stream: bool,
}

#[derive(Args, Debug)]
pub struct Ask {
    #[command(flatten)]
    pub how: How,
    /// Print the exact request and send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print how many tokens the request would have and ask for no answer
    #[arg(long, conflicts_with_all = ["dry_run", "events"])]
    pub count_tokens: bool,
    /// Print one JSON object a line for each thing that happens
    #[arg(long, conflicts_with = "dry_run")]
    pub events: bool,
    /// The question, in one or several words; `-` reads it from standard input
    #[arg(value_name = "QUESTION")]
    pub question: Vec<String>,
}

#[derive(Subcommand, Debug)]
pub enum Cache {
    /// The stored answers, newest first
    List,
    /// Remove stored answers
    Clear {
        /// Only those whose key begins so; without it all
        #[arg(value_name = "KEY")]
        prefix: Option<String>,
    },
    /// Say whether a question would be answered from the cache, and if not, what differs from the nearest request
    Why(Box<Ask>),
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Chat {
    #[command(subcommand)]
    pub command: Option<ChatCommand>,
    #[command(flatten)]
    pub how: How,
}

#[derive(Subcommand, Debug)]
pub enum ChatCommand {
    /// Show what the model would see, the options and tools in force, and what is wrong; nothing is run
    Check {
        /// Chat files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Take `cmd` lines as allowed; they are not run
        #[arg(long)]
        allow_cmd: bool,
    },
}

#[derive(Subcommand, Debug)]
pub enum Tool {
    /// All tools in reach
    List,
    /// One tool with its parameters
    Info {
        /// A tool, or WORKFLOW/TASK
        name: String,
    },
    /// Call a tool exactly as a model would
    Call {
        /// A tool, or WORKFLOW/TASK
        name: String,
        /// Arguments; a repeated key makes a list, JSON an object or list where the tool takes one, KEY=@FILE takes the
        /// value from a file
        #[arg(value_name = "KEY=VALUE", value_parser = pair)]
        values: Vec<(String, String)>,
        /// All arguments as one JSON object
        #[arg(long, value_name = "JSON", conflicts_with = "values")]
        args: Option<String>,
    },
}

#[derive(Args, Debug)]
pub struct Prov {
    /// A chat (a path, or a name for chats/NAME.chat), or a job (a path, WORKFLOW/TASK/NAME, or a digest's first letters)
    #[arg(value_name = "CHAT|JOB")]
    pub target: String,
    /// Draw it: write a Graphviz file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub dot: Option<String>,
    /// Read the files that jobs have read, and say which are no longer what they were
    #[arg(long)]
    pub verify: bool,
    /// Only the requests with their tokens
    #[arg(long, conflicts_with = "dot")]
    pub tokens: bool,
    /// Also every record that speaks of a request, and what providers keep with their answers
    #[arg(long)]
    pub evidence: bool,
}

#[derive(Args, Debug)]
pub struct Replay {
    /// A chat: a path, or a name for chats/NAME.chat
    pub chat: String,
    /// Run nothing: take stored results of jobs, and make only calls of tools that look at what is here
    #[arg(long, conflicts_with_all = ["fresh", "all"])]
    pub check: bool,
    /// Run jobs anew, with all they depend on; in a folder of their own, so that stored results stay as they are
    #[arg(long)]
    pub fresh: bool,
    /// Make all calls again, also those that may change or send something
    #[arg(long)]
    pub all: bool,
    /// A tool that the chat was asked with but does not name itself; may be repeated
    #[arg(short, long = "tool", value_name = "TOOL")]
    pub tools: Vec<String>,
    /// Which tool calls to ask you for: always (all), destructive (those that may destroy or send something), never
    #[arg(long, value_name = "WHICH")]
    pub approve: Option<Approve>,
    /// End a job after this time (500ms, 10s, 2m, 1h); without it only its own limit holds
    #[arg(long, value_parser = duration)]
    pub timeout: Option<Duration>,
}

#[derive(Subcommand, Debug)]
pub enum Endpoint {
    /// All endpoints
    List,
    /// One endpoint, without its key
    Show {
        /// The endpoint
        name: String,
    },
    /// Send a short question, one with a tool, and one for a stream, and say what works
    Test {
        /// The endpoint
        name: String,
    },
    /// Make vectors of texts, one JSON list a line
    Embed {
        /// The endpoint
        name: String,
        /// The texts
        #[arg(required = true)]
        texts: Vec<String>,
    },
    /// Make a picture of what a text says, and write it to a file
    Image {
        /// The endpoint
        name: String,
        /// What the picture is of
        prompt: String,
        /// The file; further pictures get a number. Without it: image.png, or the next that is free
        #[arg(short, long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Another model than the endpoint's
        #[arg(short, long)]
        model: Option<String>,
        /// A parameter of the provider: size=1024x1024
        #[arg(short, long = "option", value_name = "KEY=VALUE")]
        options: Vec<String>,
    },
}

#[derive(Subcommand, Debug)]
pub enum Model {
    /// The catalogue, and what is on this machine
    List,
    /// Fetch a model
    Pull {
        /// A name of the catalogue, hf:ORG/REPO/FILE.gguf, or path:FILE
        name: String,
    },
    /// Print where a model's file is
    Path {
        /// The model
        name: String,
    },
}

#[derive(Subcommand, Debug)]
pub enum Mcp {
    /// Agree to what files of this project select and what runs code; without a name, show what is agreed to
    ///
    /// It is needed once for each: what you type yourself (-t python) needs none. It is kept in your own folder, for this
    /// project only.
    Allow(McpAllow),
}

#[derive(Args, Debug)]
pub struct McpAllow {
    /// run_command or python
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(decanus::NEED_CONSENT))]
    pub names: Vec<String>,
    /// Agree no longer
    #[arg(long, requires = "names")]
    pub remove: bool,
}

#[derive(Subcommand, Debug)]
pub enum Auth {
    /// All credentials; secrets are masked
    List,
    /// Keep a credential; its secret is asked for, or read from standard input, never from the command line
    ///
    /// Without --scheme, a credential that is there gets another secret.
    Set(Box<AuthSet>),
    /// Show what would be sent, masked; tokens are fetched or renewed
    Test {
        /// The credential
        name: String,
    },
    /// Forget a credential, its secret and its tokens
    Remove {
        /// The credential
        name: String,
    },
    /// Get a token by logging in, in a browser here (authorization_code) or anywhere (device_code)
    Login {
        /// The credential
        name: String,
        /// Give up after this time (500ms, 10s, 2m, 1h)
        #[arg(long, value_parser = duration, default_value = "5m")]
        timeout: Duration,
    },
}

#[derive(Args, Debug)]
pub struct AuthSet {
    /// The credential's name
    pub name: String,
    /// api_key, bearer, basic, oauth2, oidc or google_service_account
    #[arg(long, requires = "urls")]
    pub scheme: Option<String>,
    /// Where it is sent: https://HOST/PATH, for all paths below it, or https://*.HOST; may be repeated
    #[arg(long = "url", value_name = "URL", requires = "scheme")]
    pub urls: Vec<String>,
    /// Take the secret from this environment variable, each time, and store none
    #[arg(long, value_name = "VARIABLE", requires = "scheme")]
    pub env: Option<String>,
    /// Read the secret from this file, once
    #[arg(long, value_name = "FILE", conflicts_with = "env")]
    pub file: Option<PathBuf>,
    /// Where an API key goes: header (the default), query, cookie
    #[arg(long = "in", value_name = "PLACE", requires = "scheme")]
    pub place: Option<String>,
    /// The name of that header, member of the query or cookie; X-API-Key without it
    #[arg(long = "name", id = "key_name", value_name = "NAME", requires = "scheme")]
    pub key_name: Option<String>,
    /// What stands before an API key
    #[arg(long, value_name = "TEXT", requires = "scheme")]
    pub prefix: Option<String>,
    /// The user of basic
    #[arg(long, requires = "scheme")]
    pub username: Option<String>,
    /// How OAuth2 gets tokens: authorization_code (the default), device_code, client_credentials
    #[arg(long, requires = "scheme")]
    pub grant: Option<String>,
    /// The OAuth2 client
    #[arg(long, value_name = "ID", requires = "scheme")]
    pub client_id: Option<String>,
    /// How the client shows who it is: basic (the default), post, none (it has no secret)
    #[arg(long, value_name = "HOW", requires = "scheme")]
    pub client_auth: Option<String>,
    /// What is asked for; may be repeated
    #[arg(long = "scope", value_name = "SCOPE", requires = "scheme")]
    pub scopes: Vec<String>,
    /// For whom tokens are
    #[arg(long, requires = "scheme")]
    pub audience: Option<String>,
    /// The user for whom a service account acts
    #[arg(long, requires = "scheme")]
    pub subject: Option<String>,
    /// The issuer of OpenID Connect
    #[arg(long, value_name = "URL", requires = "scheme")]
    pub issuer: Option<String>,
    /// Where tokens come from
    #[arg(long, value_name = "URL", requires = "scheme")]
    pub token_url: Option<String>,
    /// Where a user allows it
    #[arg(long, value_name = "URL", requires = "scheme")]
    pub authorization_url: Option<String>,
    /// Where a device gets its code
    #[arg(long, value_name = "URL", requires = "scheme")]
    pub device_url: Option<String>,
    /// Where tokens are given up
    #[arg(long, value_name = "URL", requires = "scheme")]
    pub revocation_url: Option<String>,
    /// The port of the redirect to this machine; any free one without it
    #[arg(long, requires = "scheme")]
    pub port: Option<u16>,
}

#[derive(Subcommand, Debug)]
pub enum Relay {
    /// Take each request of a folder, ask a model, and put the reply beside it; until INT or TERM
    ///
    /// Requests are DIR/ID.json, replies DIR/reply/ID.json, bad files DIR/failed/ID.json with ID.reason.txt. Only models are
    /// asked: no tool of this machine runs, and stored answers are not used.
    Serve {
        /// The folder; ~/.scout/var/ask without it
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
        /// The endpoint to ask when a request names none
        #[arg(short, long)]
        endpoint: Option<String>,
        /// Deal with the requests that are there, then end
        #[arg(long)]
        once: bool,
    },
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not KEY=VALUE")),
    }
}

fn shell(text: &str) -> Result<String, String> {
    match complete::shells().completer(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!(
            "possible values: {}",
            complete::shells().names().collect::<Vec<_>>().join(", ")
        )),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    decanus::base::units::parse_duration(text)
}
