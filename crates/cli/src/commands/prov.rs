//! `decanus prov`.

use std::path::Path;

use decanus::base::files::write_atomic;
use decanus::prov::{Graph, ProvError, Tracer};
use decanus::{Decanus, Error};

use crate::args::Prov;
use crate::out::table;
use crate::paths::chat_path;
use crate::{Context, Ended};

pub fn run(args: &Prov, cx: &Context) -> Ended {
    let out = cx.out;
    if out.json && args.dot.as_deref() == Some("-") {
        return Err(Error::usage("--dot - and --json both want standard output")
            .hint("give --dot a file")
            .into());
    }
    let decanus = cx.open()?;
    let graph = graph(&args.target, &decanus)?;
    for problem in &graph.problems {
        let line = problem.line.map(|l| format!(":{l}")).unwrap_or_default();
        let text = format!("{}{line}: {}", problem.file.display(), problem.message);
        out.warn(&text);
    }
    match args.dot.as_deref() {
        Some("-") => {
            out.print(&graph.to_dot());
            return Ok(0);
        }
        Some(file) => {
            draw(&graph, &decanus.project.user_path(file))?;
            if !out.json {
                out.note(&format!("wrote {file}"));
                return Ok(0);
            }
        }
        None => {}
    }
    if out.json {
        out.value(&graph.to_json(args.evidence));
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

/// The graph of what was typed: a chat as `ask -c` finds it, else a job as `job show` finds it. A file that is a job's
/// result stands for the job.
fn graph(typed: &str, decanus: &Decanus) -> Result<Graph, Error> {
    let tracer = Tracer::new(decanus.jobs.clone(), &decanus.project.root).with_workflows(decanus.workflows.clone());
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
