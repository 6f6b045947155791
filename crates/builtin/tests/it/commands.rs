//! `run_command` and `python`.

use std::time::Duration;

use decanus_base::process::start_time;
use decanus_tool::Limits;
use decanus_tool::Run;
use serde_json::{Value, json};

use crate::place::{Lab, Said, approved};

fn allowing(allow: &str) -> Lab {
    let lab = Lab::new();
    lab.write("decanus.toml", format!("[tools.run_command]\nallow = {allow}\n"));
    lab
}

async fn run(lab: &Lab, argv: &[&str]) -> Said {
    lab.call("run_command", json!({"argv": argv})).await
}

#[tokio::test]
async fn nothing_runs_that_was_not_allowed() {
    let lab = Lab::new();
    let (class, said) = run(&lab, &["ls"]).await.unwrap_err();
    assert_eq!(class, "ToolArgumentError");
    assert!(
        said.contains("decanus.toml needs: [tools.run_command] allow = [\"ls\"]"),
        "{said}"
    );
    let lab = allowing("['ls', 'git log', './tool.sh', 'nonesuch']");
    for argv in [
        &["cat", "/etc/passwd"][..],
        &["sh", "-c", "ls"],
        &["/bin/ls"],
        &["git", "status"],
        &["ls; id"],
    ] {
        let (_, said) = run(&lab, argv).await.unwrap_err();
        assert!(
            said.contains("may not be run") || said.contains("only these are allowed"),
            "{said}"
        );
    }
    let (class, said) = run(&lab, &["nonesuch"]).await.unwrap_err();
    assert!(
        class == "ToolError" && said.contains("there is no such program"),
        "{said}"
    );
    for bad in [
        json!({"argv": []}),
        json!({"argv": "ls"}),
        json!({"argv": ["ls", "a\0b"]}),
        json!({}),
    ] {
        lab.refused("run_command", bad).await;
    }
    for dir in ["..", "/etc", "nowhere", ".git"] {
        std::fs::create_dir_all(lab.path(".git")).unwrap();
        lab.refused("run_command", json!({"argv": ["ls"], "dir": dir})).await;
    }
}

#[tokio::test]
async fn a_command_runs_without_a_shell() {
    let lab = allowing("['ls', 'printf', './tool.sh']");
    lab.write("sub/x.txt", "");
    let listed = lab
        .json(
            "run_command",
            json!({"argv": ["ls", "$HOME", ";", "x.txt"], "dir": "sub"}),
        )
        .await;
    assert_eq!(
        (&listed["exit_code"], &listed["stdout"]),
        (&json!(2), &json!("x.txt\n"))
    );
    let errors = listed["stderr"].as_str().unwrap();
    assert!(errors.contains("$HOME") && errors.contains(';'), "{errors}");
    let printed = lab
        .json("run_command", json!({"argv": ["printf", "%s|", "a b", "*"]}))
        .await;
    assert_eq!(printed, json!({"exit_code": 0, "stdout": "a b|*|", "stderr": ""}));
    // A program of the project, which reads an input that is empty.
    lab.write("tool.sh", "#!/bin/sh\ncat; pwd; exit 3\n");
    let said = run(&lab, &["./tool.sh"]).await.unwrap_err().1;
    assert!(
        said.contains("there is no such program"),
        "it can't be executed: {said}"
    );
    executable(&lab, "tool.sh");
    let ended = lab
        .json("run_command", json!({"argv": ["./tool.sh"], "dir": "sub"}))
        .await;
    let place = format!("{}\n", lab.root().join("sub").display());
    assert_eq!(ended, json!({"exit_code": 3, "stdout": place, "stderr": ""}));
    lab.write("tool.sh", "#!/bin/sh\nkill -9 $$\n");
    let ended = lab.json("run_command", json!({"argv": ["./tool.sh"]})).await;
    assert_eq!((&ended["exit_code"], &ended["signal"]), (&Value::Null, &json!(9)));
}

fn executable(lab: &Lab, name: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(lab.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn the_environment_is_clean() {
    // Cargo sets these for tests: one stands for a secret, the other for what was chosen.
    assert!(std::env::var_os("CARGO_PKG_VERSION").is_some() && std::env::var_os("CARGO_PKG_NAME").is_some());
    let lab = allowing("['env']\nenv = ['CARGO_PKG_NAME']");
    let shown = lab.json("run_command", json!({"argv": ["env"]})).await["stdout"].clone();
    let shown = shown.as_str().unwrap();
    assert!(
        shown.contains("PATH=") && shown.contains("CARGO_PKG_NAME=decanus-builtin"),
        "{shown}"
    );
    assert!(
        !shown.contains("CARGO_PKG_VERSION") && !shown.contains("CARGO_MANIFEST_DIR"),
        "{shown}"
    );
}

#[tokio::test]
async fn output_is_bounded() {
    let lab = allowing("['seq', 'yes']");
    let long = lab.json("run_command", json!({"argv": ["seq", "100000"]})).await;
    let text = long["stdout"].as_str().unwrap();
    assert!(text.starts_with("1\n2\n") && text.ends_with("\n100000\n") && text.contains("characters left out"));
    assert!(text.len() < 33_000 && long["truncated"] == true);
    let said = run(&lab, &["yes"]).await.unwrap_err().1;
    assert!(said.contains("wrote more than 10.0 MiB and was stopped"), "{said}");
}

const LINGERS: &str = "#!/bin/sh\nsleep 300 &\necho $! > pid.new\nmv pid.new pid\necho begun\nwait\n";

/// The process that the script left behind is gone, or soon is.
fn is_gone(lab: &Lab) -> bool {
    let pid: u32 = lab.read("pid").trim().parse().unwrap();
    (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        start_time(pid).is_none()
    })
}

#[tokio::test]
async fn what_takes_too_long_is_ended_with_its_children() {
    let lab = allowing("['./lingers.sh']\ntimeout = '500ms'");
    lab.write("lingers.sh", LINGERS);
    executable(&lab, "lingers.sh");
    let (class, said) = run(&lab, &["./lingers.sh"]).await.unwrap_err();
    assert_eq!(class, "ToolTimeoutError");
    assert!(
        said.contains("took longer than 0.5s and was stopped; it wrote: begun"),
        "{said}"
    );
    assert!(is_gone(&lab));
}

#[tokio::test]
async fn a_cancelled_command_is_ended_with_its_children() {
    let lab = allowing("['./lingers.sh']");
    lab.write("lingers.sh", LINGERS);
    executable(&lab, "lingers.sh");
    let run = lab.run();
    let cancel = run.cancel().clone();
    let begun = lab.path("pid");
    let (said, ()) = tokio::join!(
        lab.call_in("run_command", json!({"argv": ["./lingers.sh"]}), &run),
        async {
            while !begun.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            cancel.cancel();
        }
    );
    assert_eq!(said.unwrap_err().0, "Interrupted");
    assert!(is_gone(&lab));
}

fn pythonic(more: &str) -> Lab {
    let lab = Lab::new();
    lab.write("decanus.toml", format!("[tools.python]\nenabled = true\n{more}"));
    lab
}

async fn python(lab: &Lab, script: &str) -> Value {
    lab.json("python", json!({"script": script})).await
}

#[tokio::test]
async fn scripts_run_where_they_are_allowed() {
    let said = Lab::new().refused("python", json!({"script": "print(1)"})).await;
    assert!(
        said.contains("decanus.toml needs: [tools.python] enabled = true"),
        "{said}"
    );
    let lab = pythonic("");
    let printed = python(&lab, "print(6 * 7, 'é')").await;
    assert_eq!(printed, json!({"exit_code": 0, "stdout": "42 é\n", "stderr": ""}));
    let failed = python(&lab, "import sys\nprint('so far')\nsys.exit(3)").await;
    assert_eq!(
        (&failed["exit_code"], &failed["stdout"]),
        (&json!(3), &json!("so far\n"))
    );
    let raised = python(&lab, "1/0").await;
    assert_eq!(raised["exit_code"], 1);
    assert!(
        raised["stderr"].as_str().unwrap().contains("ZeroDivisionError"),
        "{raised}"
    );
    for bad in [
        json!({"script": " \n"}),
        json!({}),
        json!({"script": "#".repeat((1 << 20) + 1)}),
    ] {
        lab.refused("python", bad).await;
    }
    let lab = pythonic("program = 'nonesuch'\n");
    let said = lab.refused("python", json!({"script": "print(1)"})).await;
    assert!(said.contains("there is no `nonesuch`"), "{said}");
}

#[tokio::test]
async fn a_script_has_a_folder_of_its_own_and_no_secrets() {
    let lab = pythonic("");
    let seen = python(
        &lab,
        "import os, json\nopen('made.txt', 'w').write('x')\nprint(json.dumps([os.getcwd(), os.listdir(), dict(os.environ)]))",
    )
    .await;
    let seen: Value = serde_json::from_str(seen["stdout"].as_str().unwrap()).unwrap();
    let folder = std::path::Path::new(seen[0].as_str().unwrap());
    assert!(!folder.starts_with(lab.root()) && !folder.exists(), "{seen}");
    assert_eq!(seen[1], json!(["made.txt"]));
    assert_eq!(seen[2]["HOME"], seen[0]);
    assert!(seen[2].get("CARGO_PKG_VERSION").is_none(), "{seen}");
    assert!(!lab.path("made.txt").exists());
}

#[tokio::test]
async fn limits_of_a_script() {
    let lab = pythonic("memory = '300M'\ntimeout = '2s'\n");
    let eats = python(&lab, "x = bytearray(1 << 30)").await;
    assert!(eats["stderr"].as_str().unwrap().contains("MemoryError"), "{eats}");
    let writes = python(&lab, "with open('x', 'wb') as f:\n    f.write(bytes(70 << 20))").await;
    assert_ne!(writes["exit_code"], 0, "{writes}");
    let (class, said) = lab
        .call("python", json!({"script": "while True: pass"}))
        .await
        .unwrap_err();
    assert!(
        class == "ToolTimeoutError" && said.contains("the script took longer than 2.0s"),
        "{said}"
    );
    // What it started does not stay.
    let script = "import subprocess\np = subprocess.Popen(['sleep', '300'])\nprint(p.pid)";
    let pid: u32 = python(&lab, script).await["stdout"]
        .as_str()
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let gone = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        start_time(pid).is_none()
    });
    assert!(gone);
    // The run's own limit holds where it is shorter.
    let limits = Limits {
        tool_time: Duration::from_millis(700),
        ..Limits::default()
    };
    let run = Run::builder(lab.path("r")).limits(limits).approval(approved()).build();
    let said = lab.call_in("python", json!({"script": "while True: pass"}), &run).await;
    assert_eq!(said.unwrap_err().0, "ToolTimeoutError");
}
