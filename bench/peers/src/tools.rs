//! Calls of a tool that does nothing.

use std::convert::Infallible;
use std::time::Instant;

use rig_core::effect::{EffectKind, Outcome};
use rig_core::serve::adapters::ToolAdapter;
use rig_core::serve::{ErasedHandler, serve_inline};
use rig_core::tool::{DynamicTool, PortableTool, ToolOutput};
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::Failed;

/// What the tool is called with, as a provider sends it.
const SENT: &str = r#"{"text":"some words","count":3}"#;

/// Prints the nanoseconds that so many calls took, so many times.
pub fn measure(library: &str, calls: usize, times: usize) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let taken = match library {
        "rig" => runtime.block_on(rig(calls, times))?,
        "rig-dynamic" => runtime.block_on(rig_dynamic(calls, times))?,
        "rmcp" => runtime.block_on(rmcp(calls, times))?,
        "rmcp-router" => runtime.block_on(rmcp_router(calls, times))?,
        other => return Err(format!("no library is called {other}").into()),
    };
    println!("{}", serde_json::json!(taken));
    Ok(())
}

async fn turns(
    calls: usize,
    times: usize,
    call: impl AsyncFn(usize) -> Result<(), Failed>,
) -> Result<Vec<u64>, Failed> {
    let mut taken = Vec::new();
    for turn in 0..=times {
        let start = Instant::now();
        for n in 0..calls {
            call(n).await?;
        }
        if turn > 0 {
            taken.push(start.elapsed().as_nanos().try_into()?);
        }
    }
    Ok(taken)
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "nothing is done")]
struct Nothing {
    /// Some words.
    text: String,
    /// A number.
    count: Option<i64>,
}

struct Noop;

impl PortableTool for Noop {
    const NAME: &'static str = "noop";
    type Args = Nothing;
    type Output = String;
    type Error = Infallible;

    fn description(&self) -> String {
        "Does nothing.".into()
    }

    fn parameters(&self) -> Value {
        schemars::schema_for!(Nothing).to_value()
    }

    async fn call(&self, _: Nothing) -> Result<String, Infallible> {
        Ok("done".into())
    }
}

/// The handler that rig's runtimes hand a model's call to, and the way in which they do.
async fn rig(calls: usize, times: usize) -> Result<Vec<u64>, Failed> {
    let handler = ErasedHandler::new(ToolAdapter::new(Noop));
    turns(calls, times, async |_| {
        let call = EffectKind::ToolCall {
            name: "noop".into(),
            args: SENT.into(),
        };
        match serve_inline(&handler, call).await {
            Ok(Outcome::ToolResult { result }) if result.output().render() == "done" => Ok(()),
            _ => Err("another result".into()),
        }
    })
    .await
}

/// A tool that is known at run time only.
async fn rig_dynamic(calls: usize, times: usize) -> Result<Vec<u64>, Failed> {
    let parameters = schemars::schema_for!(Nothing).to_value();
    let name = rig_core::tool::tool_name::<Noop>();
    let tool = DynamicTool::new(name, "Does nothing.", parameters, |arguments| {
        Box::pin(async move {
            let _: Nothing =
                serde_json::from_value(arguments).map_err(rig_core::tool::ToolExecutionError::from_error)?;
            Ok(ToolOutput::text("done"))
        })
    });
    turns(calls, times, async |_| {
        let output = tool.execute(serde_json::from_str(SENT)?).await?;
        if output.render() == "done" {
            Ok(())
        } else {
            Err("another result".into())
        }
    })
    .await
}

#[derive(Clone)]
struct Server {
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Server {
    /// Does nothing.
    #[tool]
    async fn noop(&self, arguments: Parameters<Nothing>) -> String {
        drop(arguments);
        "done".into()
    }

    /// Makes as many calls of the other, as many times, by the router alone: only within a request is there what a call of
    /// the router needs.
    #[tool]
    async fn loops(
        &self,
        counts: Parameters<Counts>,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        let Parameters(Counts { calls, times }) = counts;
        let failed = |e: Failed| ErrorData::internal_error(e.to_string(), None);
        let mut taken = Vec::new();
        for turn in 0..=times {
            let start = Instant::now();
            for _ in 0..calls {
                let params = call().map_err(failed)?;
                let asked = ToolCallContext::new(self, params, context.clone());
                let CallToolResponse::Complete(result) = self.tool_router.call(asked).await? else {
                    return Err(failed("another result".into()));
                };
                done(&result).map_err(failed)?;
            }
            if turn > 0 {
                taken.push(start.elapsed().as_nanos() as u64);
            }
        }
        Ok(serde_json::json!(taken).to_string())
    }
}

#[derive(Deserialize, JsonSchema)]
struct Counts {
    calls: usize,
    times: usize,
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Server {}

fn call() -> Result<CallToolRequestParams, Failed> {
    Ok(CallToolRequestParams::new("noop").with_arguments(serde_json::from_str(SENT)?))
}

fn done(result: &CallToolResult) -> Result<(), Failed> {
    match text(result) {
        Some("done") => Ok(()),
        _ => Err("another result".into()),
    }
}

fn text(result: &CallToolResult) -> Option<&str> {
    Some(&result.content.first()?.as_text()?.text)
}

/// A client that is connected to a server by a pipe within this process.
async fn rmcp(calls: usize, times: usize) -> Result<Vec<u64>, Failed> {
    let (here, there) = tokio::io::duplex(64 * 1024);
    let server = tokio::spawn(
        Server {
            tool_router: Server::tool_router(),
        }
        .serve(there),
    );
    let client = ().serve(here).await?;
    let server = server.await??;
    let taken = turns(calls, times, async |_| done(&client.call_tool(call()?).await?)).await?;
    client.cancel().await?;
    server.cancel().await?;
    Ok(taken)
}

async fn rmcp_router(calls: usize, times: usize) -> Result<Vec<u64>, Failed> {
    let (here, there) = tokio::io::duplex(64 * 1024);
    let server = tokio::spawn(
        Server {
            tool_router: Server::tool_router(),
        }
        .serve(there),
    );
    let client = ().serve(here).await?;
    let server = server.await??;
    let counts = serde_json::json!({"calls": calls, "times": times});
    let arguments = serde_json::from_value(counts)?;
    let result = client
        .call_tool(CallToolRequestParams::new("loops").with_arguments(arguments))
        .await?;
    let taken = serde_json::from_str(text(&result).ok_or("no times")?)?;
    client.cancel().await?;
    server.cancel().await?;
    Ok(taken)
}
