//! A question to an SQLite file, which stays as it is.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use decanus_base::units::{show_duration, show_size};
use decanus_chat::Effect;
use decanus_tool::dispatch::interrupted;
use decanus_tool::{FnTool, ToolContext, ToolError, ToolErrorClass};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as Sql, ValueRef};
use rusqlite::{Batch, Connection, ErrorCode, OpenFlags, Statement};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Number, Value, json};

use crate::place::{Place, Reach, failed, shown};
use crate::work::{self, Stop};

const ROWS: usize = 100;
const MAX_ROWS: usize = 1_000;
/// Bytes of all values of a result, and characters of one.
const RESULT: usize = 80_000;
const CELL: usize = 10_000;
/// Bytes of any value while the query runs.
const LENGTH: i32 = 50 << 20;
const TIME: Duration = Duration::from_secs(20);

/// Arguments of `sql_query`.
#[derive(Deserialize, JsonSchema)]
pub struct SqlQuery {
    /// The SQLite file, relative to the project's folder.
    database: String,
    /// One statement that reads, such as SELECT. `SELECT sql FROM sqlite_schema` shows what tables there are.
    query: String,
    /// Values for the ? of the statement, as a list, or for its :names, by name.
    #[schemars(extend("type" = ["array", "object"]))]
    parameters: Option<Value>,
    /// How many rows to give; 100 when left out.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
}

pub(crate) fn tool(place: Arc<Place>) -> FnTool<SqlQuery> {
    FnTool::new(
        "sql_query",
        "Asks an SQLite file of the project by one SQL statement that only reads; gives columns and rows.",
        move |args: SqlQuery, cx: ToolContext| {
            let place = place.clone();
            work::blocking(cx, move |cx, stop| query(&place.reach(cx), &args, &stop.after(TIME)))
        },
    )
    .effect(Effect::ReadOnly)
    .example(
        "How many rows has the table samples of data.db?",
        json!({"database": "data.db", "query": "SELECT count(*) FROM samples"}),
    )
    .example(
        "Which tables are in data.db?",
        json!({"database": "data.db", "query": "SELECT name FROM sqlite_schema WHERE type = 'table'"}),
    )
}

fn query(reach: &Reach, args: &SqlQuery, stop: &Stop) -> Result<Value, ToolError> {
    // SQLite would end there, and run what stands before it.
    if args.query.contains('\0') {
        return Err(ToolError::argument("the query can't hold a NUL character"));
    }
    let (real, mut file, metadata) = reach.file(&args.database)?;
    let mut head = Vec::new();
    let read = Read::take(&mut file, 16).read_to_end(&mut head);
    read.map_err(|e| failed(&args.database, &e))?;
    // An empty file is an empty database.
    if metadata.len() > 0 && head != b"SQLite format 3\0" {
        let name = shown(&args.database);
        return Err(ToolError::argument(format!("`{name}` is not an SQLite database")));
    }
    let say = |e: rusqlite::Error| explain(&e, &args.query, stop);
    let connection = open(&real, stop).map_err(say)?;
    let mut statements = Batch::new(&connection, &args.query);
    let Some(mut statement) = statements.next().map_err(say)? else {
        return Err(ToolError::argument("the query is empty"));
    };
    // What can't be read as a second statement is one more than one, too.
    if !matches!(statements.next(), Ok(None)) {
        return Err(ToolError::argument("the query has more than one statement"));
    }
    if !statement.readonly() {
        return Err(ToolError::argument(
            "the query would change the database, which is only read",
        ));
    }
    bind(&mut statement, args.parameters.as_ref())?;
    let limit = usize::try_from(args.limit.unwrap_or(ROWS as u64)).map_or(MAX_ROWS, |l| l.clamp(1, MAX_ROWS));
    fetch(&mut statement, limit).map_err(say)
}

fn open(path: &Path, stop: &Stop) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(2))?;
    connection.pragma_update(None, "query_only", true)?;
    // What a view or a trigger of a foreign file does is none of ours.
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LENGTH)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.set_limit(Limit::SQLITE_LIMIT_WORKER_THREADS, 0)?;
    connection.authorizer(Some(authorize))?;
    let stop = stop.clone();
    connection.progress_handler(1_000, Some(move || stop.is_set()))?;
    Ok(connection)
}

/// Only what reads is allowed.
fn authorize(asked: AuthContext<'_>) -> Authorization {
    /// Pragmas that tell something, the second with what they are asked about.
    const TELL: [&str; 8] = [
        "table_list",
        "user_version",
        "schema_version",
        "data_version",
        "application_id",
        "encoding",
        "page_count",
        "page_size",
    ];
    const TELL_OF: [&str; 7] = [
        "table_list",
        "table_info",
        "table_xinfo",
        "index_list",
        "index_info",
        "index_xinfo",
        "foreign_key_list",
    ];
    let allowed = match asked.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
        AuthAction::Pragma {
            pragma_name,
            pragma_value,
        } => {
            let known = match pragma_value {
                None => &TELL[..],
                Some(_) => &TELL_OF[..],
            };
            known.iter().any(|k| pragma_name.eq_ignore_ascii_case(k))
        }
        _ => false,
    };
    match allowed {
        true => Authorization::Allow,
        false => Authorization::Deny,
    }
}

fn bind(statement: &mut Statement<'_>, given: Option<&Value>) -> Result<(), ToolError> {
    let wanted = statement.parameter_count();
    let fail = |e: rusqlite::Error| ToolError::argument(format!("parameters: {e}"));
    match given {
        Some(Value::Array(values)) => {
            if values.len() != wanted {
                return Err(ToolError::argument(format!(
                    "the query has {wanted} parameters, and {} were given",
                    values.len()
                )));
            }
            for (index, value) in (1_usize..).zip(values) {
                let value = sql(value, &index.to_string())?;
                statement.raw_bind_parameter(index, value).map_err(fail)?;
            }
        }
        Some(Value::Object(values)) => bind_names(statement, values)?,
        None | Some(Value::Null) if wanted == 0 => {}
        None | Some(Value::Null) => {
            return Err(ToolError::argument(format!(
                "the query has {wanted} parameters, and none were given"
            )));
        }
        Some(_) => {
            return Err(ToolError::argument(
                "parameters has to be a list, or an object of names",
            ));
        }
    }
    Ok(())
}

fn bind_names(statement: &mut Statement<'_>, values: &Map<String, Value>) -> Result<(), ToolError> {
    let plain = |name: &str| name.trim_start_matches([':', '@', '$']).to_owned();
    let mut used = Vec::new();
    for index in 1..=statement.parameter_count() {
        let name = statement.parameter_name(index).map(plain).unwrap_or_default();
        let value = values.iter().find(|(n, _)| plain(n) == name && !name.is_empty());
        let Some((_, value)) = value else {
            let what = if name.is_empty() {
                "a ? of the query has no name; give parameters as a list".to_owned()
            } else {
                format!("no value was given for the parameter :{name}")
            };
            return Err(ToolError::argument(what));
        };
        let value = sql(value, &name)?;
        let bound = statement.raw_bind_parameter(index, value);
        bound.map_err(|e| ToolError::argument(format!("parameters: {e}")))?;
        used.push(name);
    }
    match values.keys().find(|n| !used.contains(&plain(n))) {
        Some(extra) => Err(ToolError::argument(format!(
            "the query has no parameter :{}",
            shown(&plain(extra))
        ))),
        None => Ok(()),
    }
}

fn sql(value: &Value, name: &str) -> Result<Sql, ToolError> {
    Ok(match value {
        Value::Null => Sql::Null,
        Value::Bool(yes) => Sql::Integer((*yes).into()),
        Value::String(text) => Sql::Text(text.clone()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Sql::Integer(whole),
            (None, Some(float)) if float.is_finite() && number.to_string().contains(['.', 'e', 'E']) => {
                Sql::Real(float)
            }
            _ => {
                let number = shown(&number.to_string());
                return Err(ToolError::argument(format!(
                    "parameter {name}: {number} is out of range for SQLite"
                )));
            }
        },
        Value::Array(_) | Value::Object(_) => {
            return Err(ToolError::argument(format!(
                "parameter {name} has to be a text, number, boolean or null"
            )));
        }
    })
}

fn fetch(statement: &mut Statement<'_>, limit: usize) -> rusqlite::Result<Value> {
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut found = Vec::new();
    let mut size = 0;
    let mut truncated = false;
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        if found.len() == limit || size > RESULT {
            truncated = true;
            break;
        }
        let cells: Vec<Value> = (0..columns.len())
            .map(|at| row.get_ref(at).map(json_of))
            .collect::<rusqlite::Result<_>>()?;
        size += cells.iter().map(weight).sum::<usize>();
        found.push(Value::Array(cells));
    }
    Ok(json!({"columns": columns, "rows": found, "truncated": truncated}))
}

fn weight(cell: &Value) -> usize {
    match cell {
        Value::String(text) => text.len() + 3,
        _ => 8,
    }
}

/// A value of SQLite: whole numbers keep all digits, data that is not text is described.
fn json_of(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(whole) => whole.into(),
        ValueRef::Real(float) => match Number::from_f64(float) {
            Some(number) => Value::Number(number),
            None => float.to_string().into(),
        },
        ValueRef::Text(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            match text.char_indices().nth(CELL) {
                Some((at, _)) => format!("{}… ({} in all)", &text[..at], show_size(bytes.len() as u64)).into(),
                None => text.into_owned().into(),
            }
        }
        ValueRef::Blob(bytes) => {
            let hex: String = bytes.iter().take(32).map(|b| format!("{b:02x}")).collect();
            json!({"blob": bytes.len(), "hex": hex})
        }
    }
}

fn explain(error: &rusqlite::Error, query: &str, stop: &Stop) -> ToolError {
    match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) if stop.is_cancelled() => {
            interrupted("it was stopped before it was done")
        }
        Some(ErrorCode::OperationInterrupted) => ToolError::respond(
            ToolErrorClass::Timeout,
            format!("the query took longer than {}", show_duration(TIME)),
        ),
        Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly) => {
            ToolError::argument(format!("{error}: the database is only read"))
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::CannotOpen) => {
            ToolError::respond(ToolErrorClass::Tool, format!("the database can't be read now: {error}"))
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            ToolError::argument(format!("the database is damaged: {error}"))
        }
        _ => match error {
            rusqlite::Error::SqlInputError { msg, offset, .. } => {
                let at = usize::try_from(*offset).ok().and_then(|o| query.get(o..));
                let near = at.filter(|rest| !rest.is_empty());
                let near = near.map(|rest| format!(", at `{}`", decanus_base::text::brief(rest, 40)));
                ToolError::argument(format!("SQL: {msg}{}", near.unwrap_or_default()))
            }
            _ => ToolError::argument(format!("SQL: {error}")),
        },
    }
}
