//! `decanus prov` and `decanus job prov`.

use std::path::Path;

use decanus::base::files::write_atomic;
use decanus::prov::{Graph, ListingOptions, ProvError, Tracer};
use decanus::{Decanus, Error};

use crate::args::{JobProv, Prov};
use crate::out::{Out, table};
use crate::paths::chat_path;
use crate::{Context, Ended};

pub fn run(args: &Prov, cx: &Context) -> Ended {
    let out = cx.out;
    let decanus = cx.open()?;
    refuse_two_for_stdout(args.dot.as_deref(), out)?;
    let graph = graph(&args.target, args.verify, &decanus)?;
    if show_for_programs(&graph, args.dot.as_deref(), args.evidence, &decanus, out)? {
        return Ok(0);
    }
    if args.tokens {
        out.print(&table(&graph.token_rows()));
        out.print(&graph.total_line());
    } else {
        out.print(&graph.to_tree());
    }
    if args.evidence {
        out.line("");
        graph.evidence_lines().iter().for_each(|line| out.line(line));
    }
    Ok(0)
}

/// `decanus job prov`: the same graph from a job, listed.
pub fn of_job(args: &JobProv, decanus: &Decanus, out: Out) -> Ended {
    refuse_two_for_stdout(args.dot.as_deref(), out)?;
    let job = decanus.jobs.find(&args.job, &decanus.project.working_dir)?;
    let graph = tracer(args.verify, decanus).job(&job.path)?;
    if !show_for_programs(&graph, args.dot.as_deref(), false, decanus, out)? {
        out.print(&graph.to_listing(ListingOptions { long: args.long }));
    }
    Ok(0)
}

fn refuse_two_for_stdout(dot: Option<&str>, out: Out) -> Result<(), Error> {
    if out.json && dot == Some("-") {
        return Err(Error::usage("--dot - and --json both want standard output").hint("give --dot a file"));
    }
    Ok(())
}

/// Warns of what could not be read, then writes the drawing and the JSON that were asked for. Whether that was all that
/// was asked for.
fn show_for_programs(
    graph: &Graph,
    dot: Option<&str>,
    evidence: bool,
    decanus: &Decanus,
    out: Out,
) -> Result<bool, Error> {
    for problem in &graph.problems {
        let line = problem.line.map(|l| format!(":{l}")).unwrap_or_default();
        let text = format!("{}{line}: {}", problem.file.display(), problem.message);
        out.warn(&text);
    }
    match dot {
        Some("-") => {
            out.print(&graph.to_dot());
            return Ok(true);
        }
        Some(file) => {
            draw(graph, &decanus.project.user_path(file))?;
            if !out.json {
                out.note(&format!("wrote {file}"));
                return Ok(true);
            }
        }
        None => {}
    }
    if out.json {
        out.value(&graph.to_json(evidence));
    }
    Ok(out.json)
}

fn tracer(verify: bool, decanus: &Decanus) -> Tracer {
    Tracer::new(decanus.jobs.clone(), &decanus.project.root)
        .with_workflows(decanus.workflows.clone())
        .verifying(verify)
}

/// The graph of what was typed: a chat as `ask -c` finds it, else a job as `job show` finds it. A file that is a job's
/// result stands for the job.
fn graph(typed: &str, verify: bool, decanus: &Decanus) -> Result<Graph, Error> {
    let tracer = tracer(verify, decanus);
    let chat = chat_path(typed, &decanus.project);
    if let Ok(path) = &chat
        && path.exists()
    {
        return Ok(tracer.file(path)?);
    }
    match decanus.jobs.find(typed, &decanus.project.working_dir) {
        Ok(job) => Ok(tracer.job(&job.path)?),
        Err(error @ decanus::workflow::FindError::None(_)) => match chat {
            // Whoever writes `.chat` means a chat; anything else may have been meant as either.
            Ok(path) if typed.ends_with(".chat") => Err(Error::of(&ProvError::NoChat(path))),
            Ok(path) => Err(Error::usage(format!(
                "`{typed}` is neither a chat ({} is not there) nor a job",
                path.display()
            ))
            .hint("`decanus job list` shows the jobs; a chat is a path, or NAME for chats/NAME.chat")),
            Err(_) => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

/// Writes the drawing, but never over a file that it is a drawing of.
fn draw(graph: &Graph, file: &Path) -> Result<(), Error> {
    let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    if graph.nodes.iter().any(|n| n.path == real) {
        let text = format!(
            "{}: this file is part of what is drawn, so it is not replaced",
            file.display()
        );
        return Err(Error::usage(text).hint("name another file for --dot"));
    }
    let text = graph.to_dot();
    // A device or a pipe is written to, not replaced.
    let written = if file.exists() && !file.is_file() {
        std::fs::write(file, text).map_err(|e| decanus::base::files::named(e, file))
    } else {
        write_atomic(file, text.as_bytes())
    };
    written.map_err(|e| Error::usage(format!("the drawing can't be written: {e}")))
}
