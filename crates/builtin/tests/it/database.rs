//! `sql_query`.

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::place::Lab;

fn full() -> Lab {
    let lab = Lab::new();
    let connection = Connection::open(lab.path("d.db")).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, mass REAL, raw BLOB);
             INSERT INTO t VALUES (1, 'one', 1.5, x'00ff'), (9223372036854775807, 'big', 1e999, NULL), (3, NULL, 2.0, x'');
             CREATE VIEW v AS SELECT name FROM t;",
        )
        .unwrap();
    lab
}

fn ask(query: &str) -> Value {
    json!({"database": "d.db", "query": query})
}

#[tokio::test]
async fn columns_and_rows() {
    let lab = full();
    let found = lab.json("sql_query", ask("SELECT * FROM t ORDER BY id")).await;
    assert_eq!(found["columns"], json!(["id", "name", "mass", "raw"]));
    assert_eq!(
        found["rows"],
        json!([
            [1, "one", 1.5, {"blob": 2, "hex": "00ff"}],
            [3, null, 2.0, {"blob": 0, "hex": ""}],
            [i64::MAX, "big", "inf", null]
        ])
    );
    assert_eq!(found["truncated"], false);
    // The same column twice is two columns.
    let twice = lab
        .json("sql_query", ask("SELECT 1 AS a, 2 AS a -- and a comment"))
        .await;
    assert_eq!(
        (&twice["columns"], &twice["rows"]),
        (&json!(["a", "a"]), &json!([[1, 2]]))
    );
    for query in [
        "SELECT name FROM v",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT * FROM n;",
        "SELECT sql FROM sqlite_schema",
        "PRAGMA table_info(t)",
        "PRAGMA table_list",
        "PRAGMA user_version",
        "SELECT * FROM pragma_table_info('t')",
        "EXPLAIN QUERY PLAN SELECT * FROM t",
        "VALUES (1), (2)",
        "  SELECT json_extract('{\"a\": 1}', '$.a') ; ",
    ] {
        let found = lab.json("sql_query", ask(query)).await;
        assert!(!found["rows"].as_array().unwrap().is_empty(), "{query}: {found}");
    }
    lab.write("empty.db", "");
    let found = lab
        .json("sql_query", json!({"database": "empty.db", "query": "SELECT 1"}))
        .await;
    assert_eq!(found["rows"], json!([[1]]));
}

#[tokio::test]
async fn parameters() {
    let lab = full();
    let with = |query: &str, parameters: Value| json!({"database": "d.db", "query": query, "parameters": parameters});
    let rows = async |args| lab.json("sql_query", args).await["rows"].clone();
    let injection = "x' OR 1=1 --";
    assert_eq!(
        rows(with("SELECT count(*) FROM t WHERE name = ?", json!([injection]))).await,
        json!([[0]])
    );
    let all = json!([null, true, 9007199254740993_i64, 0.5, "é"]);
    assert_eq!(
        rows(with("SELECT ?, ?, ?, ?, ?", all)).await,
        json!([[null, 1, 9007199254740993_i64, 0.5, "é"]])
    );
    assert_eq!(
        rows(with("SELECT :a + @b + :a", json!({"a": 1, "@b": 2}))).await,
        json!([[4]])
    );
    assert_eq!(rows(with("SELECT ?2, ?1", json!([1, 2]))).await, json!([[2, 1]]));
    for (args, says) in [
        (ask("SELECT ?"), "the query has 1 parameters, and none were given"),
        (
            with("SELECT ?", json!([1, 2])),
            "the query has 1 parameters, and 2 were given",
        ),
        (
            with("SELECT :a", json!({"b": 1})),
            "no value was given for the parameter :a",
        ),
        (
            with("SELECT :a", json!({"a": 1, "b": 1})),
            "the query has no parameter :b",
        ),
        (with("SELECT ?", json!({"a": 1})), "has no name"),
        (with("SELECT ?", json!([[1]])), "parameter 1 has to be a text"),
        (with("SELECT ?", json!([1e300_f64, 2])), "2 were given"),
        (with("SELECT ?", json!([18446744073709551615_u64])), "out of range"),
    ] {
        let said = lab.refused("sql_query", args).await;
        assert!(said.contains(says), "{says}: {said}");
    }
}

#[tokio::test]
async fn nothing_is_changed() {
    let lab = full();
    let before = std::fs::read(lab.path("d.db")).unwrap();
    let other = lab.root().join("other.db");
    for (query, says) in [
        ("DELETE FROM t", "the database is only read"),
        ("INSERT INTO t(name) VALUES ('x')", "the database is only read"),
        ("UPDATE t SET name = 'x' RETURNING *", "the database is only read"),
        ("CREATE TABLE u(a)", "the database is only read"),
        ("CREATE TEMP TABLE u(a)", "the database is only read"),
        ("DROP TABLE t", "the database is only read"),
        ("ATTACH 'other.db' AS o", "only read"),
        (format!("ATTACH '{}' AS o", other.display()).as_str(), "only read"),
        (format!("VACUUM INTO '{}'", other.display()).as_str(), "only read"),
        ("VACUUM", "only read"),
        ("BEGIN IMMEDIATE", "only read"),
        ("SAVEPOINT s", "only read"),
        ("PRAGMA query_only = 0", "only read"),
        ("PRAGMA user_version = 7", "only read"),
        ("PRAGMA journal_mode = WAL", "only read"),
        ("PRAGMA writable_schema = 1", "only read"),
        ("PRAGMA temp_store_directory = '/tmp'", "only read"),
        ("PRAGMA database_list", "only read"),
        ("SELECT load_extension('/tmp/x.so')", ""),
        ("SELECT readfile('/etc/passwd')", "no such function: readfile"),
        ("SELECT writefile('/tmp/x', 'x')", "no such function: writefile"),
        ("CREATE VIRTUAL TABLE f USING fts5(a)", "only read"),
        ("SELECT 1; SELECT 2", "more than one statement"),
        ("SELECT 1; DROP TABLE t", "more than one statement"),
        ("SELECT 1; nonsense", "more than one statement"),
        ("", "the query is empty"),
        ("SELECT 1\0; DROP TABLE t", "the query can't hold a NUL character"),
        (" ; -- nothing", "the query is empty"),
        ("SELEC 1", "SQL: near \"SELEC\": syntax error"),
        ("SELECT nme FROM t", "SQL: no such column: nme, at `nme FROM t`"),
        ("SELECT * FROM nowhere", "SQL: no such table: nowhere"),
        (
            "SELECT abs(CAST('-9223372036854775808' AS INTEGER))",
            "SQL: integer overflow",
        ),
        ("SELECT length(randomblob(100000000))", "SQL: string or blob too big"),
    ] {
        let said = lab.refused("sql_query", ask(query)).await;
        assert!(said.contains(says), "{query}: {said}");
    }
    assert_eq!(std::fs::read(lab.path("d.db")).unwrap(), before);
    assert!(!other.exists());
    let mut names: Vec<_> = std::fs::read_dir(lab.root())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["d.db", "decanus.toml"]);
}

#[tokio::test]
async fn what_is_no_database() {
    let lab = full();
    lab.write("text.db", "hello there, this is text");
    lab.write("broken.db", {
        let mut bytes = std::fs::read(lab.path("d.db")).unwrap();
        bytes[100..].fill(0xaa);
        bytes
    });
    for (name, says) in [
        ("text.db", "`text.db` is not an SQLite database"),
        ("broken.db", "damaged"),
        ("missing.db", "`missing.db` does not exist"),
        (".", "is a folder"),
    ] {
        let args = json!({"database": name, "query": "SELECT * FROM sqlite_schema"});
        let said = lab.refused("sql_query", args).await;
        assert!(said.contains(says), "{says}: {said}");
    }
    assert!(!lab.path("missing.db").exists());
}

const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";

#[tokio::test]
async fn results_are_bounded() {
    let lab = full();
    let found = lab.json("sql_query", ask(&format!("{ENDLESS} SELECT i FROM n"))).await;
    assert_eq!(
        (found["rows"].as_array().unwrap().len(), &found["truncated"]),
        (100, &json!(true))
    );
    let args = json!({"database": "d.db", "query": format!("{ENDLESS} SELECT i FROM n"), "limit": 2});
    assert_eq!(lab.json("sql_query", args).await["rows"], json!([[1], [2]]));
    // A long text is cut, and many of them end the result.
    let long = format!("{ENDLESS} SELECT printf('%.*c', 20000, 'x') FROM n");
    let found = lab.json("sql_query", ask(&long)).await;
    let rows = found["rows"].as_array().unwrap();
    assert!(rows.len() < 12 && found["truncated"] == true, "{}", rows.len());
    assert!(rows[0][0].as_str().unwrap().ends_with("x… (19.5 KiB in all)"));
    lab.refused(
        "sql_query",
        json!({"database": "d.db", "query": "SELECT 1", "limit": 0}),
    )
    .await;
}

#[tokio::test]
async fn an_endless_query_is_stopped() {
    let lab = full();
    let run = lab.run();
    let cancel = run.cancel().clone();
    let args = ask(&format!("{ENDLESS} SELECT count(*) FROM n"));
    let (said, ()) = tokio::join!(lab.call_in("sql_query", args, &run), async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        cancel.cancel();
    });
    assert_eq!(said.unwrap_err().0, "Interrupted");
}

#[tokio::test]
async fn a_database_in_use_is_read() {
    let lab = full();
    let writer = Connection::open(lab.path("d.db")).unwrap();
    writer.pragma_update(None, "journal_mode", "WAL").unwrap();
    writer
        .execute("INSERT INTO t(id, name) VALUES (7, 'seven')", [])
        .unwrap();
    let found = lab.json("sql_query", ask("SELECT name FROM t WHERE id = 7")).await;
    assert_eq!(found["rows"], json!([["seven"]]));
}
