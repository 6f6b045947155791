//! The example project, against a plain computation over the same records.

use std::path::Path;
use std::sync::Arc;

use decanus_workflow::{InputType, JobStore, PathRules, RunOptions, Workflow, parse};
use serde_json::{Value, json};

use crate::sandbox::{counting, map};

/// The example's workflow beside a copy of its data, as `fetch-data.py` leaves it.
fn lab() -> (tempfile::TempDir, Arc<Workflow>, JobStore) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("workflows/Weather");
    std::fs::create_dir_all(&target).unwrap();
    std::fs::create_dir_all(dir.path().join("data")).unwrap();
    for entry in std::fs::read_dir(here.join("../../examples/lab/workflows/Weather"))
        .unwrap()
        .flatten()
    {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
        }
    }
    std::fs::copy(
        here.join("tests/fixtures/seattle-weather.csv"),
        dir.path().join("data/seattle-weather.csv"),
    )
    .unwrap();
    let workflow = Arc::new(parse::load(&target).unwrap());
    let store = JobStore::new(dir.path().join(".decanus/jobs"));
    (dir, workflow, store)
}

fn value(workflow: &Arc<Workflow>, store: &JobStore, task: &str, inputs: Value) -> Value {
    let job = workflow
        .job(task, &map(inputs), &PathRules::trusted("/"), None)
        .unwrap();
    store
        .run_blocking(&job, &RunOptions::default())
        .unwrap()
        .job
        .value()
        .unwrap()
}

fn mean(column: usize, month: u32, year: Option<i32>) -> f64 {
    let text = include_str!("../fixtures/seattle-weather.csv");
    let values: Vec<f64> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect::<Vec<_>>())
        .filter(|cells| cells[0][5..7].parse() == Ok(month))
        .filter(|cells| year.is_none_or(|y| cells[0][..4].parse() == Ok(y)))
        .map(|cells| cells[column].parse().unwrap())
        .collect();
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn means_are_those_of_a_plain_computation() {
    let (_dir, workflow, store) = lab();
    assert_eq!(
        value(
            &workflow,
            &store,
            "monthly_mean",
            json!({"column": "temp_max", "month": 7})
        ),
        json!(25.998)
    );
    for (column, name) in [(1, "precipitation"), (2, "temp_max"), (3, "temp_min"), (4, "wind")] {
        for (month, year) in [(1, None), (2, Some(2012)), (7, None), (12, Some(2015))] {
            let given = value(
                &workflow,
                &store,
                "monthly_mean",
                json!({"column": name, "month": month, "year": year}),
            );
            let expected = mean(column, month, year);
            assert!(
                (given.as_f64().unwrap() - expected).abs() < 0.000_51,
                "{name} {month} {year:?}: {given} {expected}"
            );
        }
    }
}

#[test]
fn comparing_reuses_what_is_there() {
    let (_dir, workflow, store) = lab();
    value(
        &workflow,
        &store,
        "monthly_mean",
        json!({"column": "temp_max", "month": 7}),
    );
    let job = workflow
        .job(
            "compare",
            &map(json!({"column": "temp_max", "month": "7", "year": 2015})),
            &PathRules::trusted("/"),
            None,
        )
        .unwrap();
    let (options, started, reused) = counting();
    let done = store.run_blocking(&job, &options).unwrap();
    let result = done.job.value().unwrap();
    assert_eq!(result["mean_of_all_years"], json!(25.998));
    let (one, all) = (mean(2, 7, Some(2015)), mean(2, 7, None));
    assert!(
        (result["difference"].as_f64().unwrap() - (one - all)).abs() < 0.0011,
        "{result}"
    );
    let count = |n: &std::sync::atomic::AtomicUsize| n.load(std::sync::atomic::Ordering::SeqCst);
    // New: compare, normal and the mean of that year. There already: the mean of all years, and the records.
    assert_eq!((count(&started), count(&reused)), (3, 2));
    assert!(store.run_blocking(&job, &options).unwrap().reused);
    assert_eq!((count(&started), count(&reused)), (3, 3));
}

#[test]
fn models_see_the_inputs_that_matter() {
    let (_dir, workflow, _store) = lab();
    let tools: Vec<_> = workflow
        .exported()
        .into_iter()
        .map(|t| workflow.tool_definition(t))
        .collect();
    assert_eq!(
        tools.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        ["monthly_mean", "compare"]
    );
    for tool in &tools {
        assert_eq!(
            tool.properties().map(|(n, _)| n.as_str()).collect::<Vec<_>>(),
            ["column", "month", "year"]
        );
        // The demo's question proves nothing when the model has been shown its answer.
        let asked = "What was the mean maximum temperature in July?";
        assert!(tool.examples.iter().all(|e| e.request != asked));
    }
    let month = &tools[0].parameters["properties"]["month"];
    assert_eq!(
        (&month["minimum"], &month["maximum"], &month["type"]),
        (&json!(1), &json!(12), &json!("integer"))
    );
    assert_eq!(tools[0].parameters["required"], json!(["column", "month"]));
    assert_eq!(tools[1].parameters["required"], json!(["column", "month", "year"]));
    let records = workflow.task("month_records").unwrap();
    assert_eq!(records.input("data").unwrap().kind, InputType::File);
    assert!(
        workflow.tool_definition(records).parameters["properties"]["data"]
            .get("default")
            .is_none()
    );
}

#[test]
fn missing_data_is_said() {
    let (dir, workflow, _store) = lab();
    std::fs::remove_file(dir.path().join("data/seattle-weather.csv")).unwrap();
    let inputs = map(json!({"column": "wind", "month": 1}));
    let error = workflow
        .job("monthly_mean", &inputs, &PathRules::trusted("/"), None)
        .unwrap_err();
    assert!(error.to_string().contains("seattle-weather.csv"), "{error}");
    let error = workflow.job(
        "monthly_mean",
        &map(json!({"column": "rain", "month": 13})),
        &PathRules::trusted("/"),
        None,
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("`rain` is not one of precipitation, temp_max, temp_min, wind"),
        "{error}"
    );
}
