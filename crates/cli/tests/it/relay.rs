//! Models of another machine: a real sshd on a loopback address, and `relay serve` behind it.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use decanus_testkit::{Outcome, Reply, Sandbox, ScriptedServer};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::*;

const SSHD: &str = "/usr/sbin/sshd";

/// An sshd with keys of its own. It ends with the test.
struct Sshd {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Sshd {
    /// None where no server is installed; the test then says that it was skipped.
    fn start() -> Option<Self> {
        if !Path::new(SSHD).exists() {
            eprintln!("SKIPPED: {SSHD} is missing (Debian: apt-get install openssh-server)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["host", "user", "stranger"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(path(name))
                .status();
            assert!(made.unwrap().success());
        }
        std::fs::copy(path("user.pub"), path("authorized")).unwrap();
        if std::fs::metadata(folder.path()).unwrap().uid() == 0 {
            // Where it gives up its privileges; the system's service makes it otherwise.
            std::fs::create_dir_all("/run/sshd").unwrap();
        }
        // Somebody else may take a free port before sshd does.
        for _ in 0..5 {
            let port = free_port();
            let config = format!(
                "ListenAddress 127.0.0.1:{port}\nHostKey {0}/host\nAuthorizedKeysFile {0}/authorized\n\
                 PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\n\
                 PidFile none\nMaxStartups 100\n",
                folder.path().display()
            );
            std::fs::write(path("config"), config).unwrap();
            let mut child = Command::new(SSHD)
                .args(["-D", "-e", "-f"])
                .arg(path("config"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(std::fs::File::create(path("log")).unwrap())
                .spawn()
                .unwrap();
            let start = Instant::now();
            while child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(20) {
                if std::fs::read_to_string(path("log")).is_ok_and(|log| log.contains("listening on")) {
                    return Some(Self { child, folder, port });
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("{}", std::fs::read_to_string(path("log")).unwrap());
    }

    /// Arguments for ssh, as they stand in an endpoint's file.
    fn options(&self, port: u16, key: &str) -> String {
        let folder = self.folder.path().display();
        format!(
            "[-F, none, -p, \"{port}\", -i, {folder}/{key}, -o, IdentitiesOnly=yes, -o, IdentityAgent=none, \
             -o, StrictHostKeyChecking=no, -o, UserKnownHostsFile={folder}/known]"
        )
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Two machines: the near one with the endpoint `far`, and the far one with a folder of requests.
struct Pair {
    near: Sandbox,
    far: Sandbox,
}

impl Pair {
    fn new(sshd: &Sshd, more: &str) -> Self {
        Self::with(&sshd.options(sshd.port, "user"), more)
    }

    fn with(options: &str, more: &str) -> Self {
        let pair = Self {
            near: Sandbox::new(),
            far: Sandbox::new(),
        };
        let text = format!(
            "backend: relay\nserver: 127.0.0.1\nssh_options: {options}\ndir: {}\n{more}",
            pair.dir().display()
        );
        // The user's own folder: the file of a project may not choose such options.
        let folder = pair.near.home().join("endpoints");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("far.yaml"), text).unwrap();
        pair
    }

    fn dir(&self) -> PathBuf {
        self.far.path("requests")
    }

    fn ask(&self, args: &[&str]) -> Outcome {
        run(&self.near, &[&["ask", "-e", "far"], args].concat())
    }

    fn serve(&self, server: &ScriptedServer) -> Serving {
        serve(&self.far, server, &[])
    }

    /// The requests that lie in the folder, whatever their state.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for folder in [self.dir(), self.dir().join("reply")] {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_type().unwrap().is_file() {
                    left.push(entry.file_name().into_string().unwrap());
                }
            }
        }
        left
    }
}

/// A server of requests that ends with the test.
struct Serving(Option<Running>);

impl Serving {
    fn stop(mut self, signal: Signal) -> Outcome {
        let running = self.0.take().unwrap();
        running.signal(signal);
        running.end()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(running) = self.0.as_mut() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

fn serve(far: &Sandbox, server: &ScriptedServer, args: &[&str]) -> Serving {
    far.endpoint("model", &server.url());
    let all = [&["relay", "serve", "requests", "-e", "model"], args].concat();
    let serving = Serving(Some(Running::start(far, &all)));
    wait_for("the folder", || far.path("requests/failed").exists().then_some(()));
    serving
}

fn serve_once(far: &Sandbox, server: &ScriptedServer) -> Outcome {
    far.endpoint("model", &server.url());
    run(far, &["relay", "serve", "requests", "-e", "model", "--once", "--json"]).exits(0)
}

fn reply(far: &Sandbox, id: &str) -> Value {
    serde_json::from_str(&far.read(format!("requests/reply/{id}.json"))).unwrap()
}

#[test]
fn an_answer_comes_from_another_machine() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::new(&sshd, "temperature: 0\n");
    let server = ScriptedServer::start([Reply::chat_stream(&["Hi", " there."])]);
    let serving = pair.serve(&server);
    let outcome = pair
        .ask(&["--json", "Say 'hi' \"$(id)\" `id`; rm -rf x"])
        .exits(0)
        .json();
    assert_eq!(outcome["answer"], "Hi there.");
    assert_eq!(
        (&outcome["usage"]["pt"], &outcome["usage"]["ct"]),
        (&json!(10), &json!(5))
    );
    let sent = server.requests()[0].json();
    assert_eq!(
        sent["messages"],
        json!([{"role": "user", "content": "Say 'hi' \"$(id)\" `id`; rm -rf x"}])
    );
    assert_eq!((&sent["temperature"], &sent["model"]), (&json!(0), &json!("scripted")));
    // Nothing is left of it, and the folder is its owner's alone.
    assert_eq!(pair.left(), [""; 0]);
    let mode = std::fs::metadata(pair.dir()).unwrap().permissions().mode();
    assert!(pair.dir().join("reply").exists() && mode & 0o700 == 0o700);
    let stopped = serving.stop(Signal::SIGTERM);
    assert_eq!(stopped.code, 143, "{stopped}");
    assert!(stopped.stderr.contains("answered by model"), "{stopped}");
    server.verify();
}

#[test]
fn tools_run_on_the_near_side() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::new(&sshd, "endpoint: model\n");
    pair.near
        .write("workflows/Lab/workflow.yaml", LAB)
        .write("workflows/Lab/greet.sh", GREET);
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("a", "greet", json!({"who": "Ada"}))]),
        Reply::chat_stream(&["She was greeted."]),
    ]);
    let _serving = pair.serve(&server);
    let outcome = pair.ask(&["-t", "Lab", "-c", "a", "Greet Ada"]).exits(0);
    assert_eq!(outcome.stdout, "She was greeted.\n", "{outcome}");
    assert_eq!(greeted(&pair.near), 1);
    assert_paired(&pair.near, "chats/a.chat");
    let requests = server.requests();
    assert!(requests[0].text().contains("Whom to greet"), "{}", requests[0].text());
    let told = requests[1].json();
    assert_eq!(told["messages"][2]["content"], "hello Ada", "{told}");
    assert_eq!(pair.left(), [""; 0]);
    server.verify();
}

/// `plain: true` speaks as the originals do.
#[test]
fn the_original_form_over_the_whole_way() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::new(&sshd, "plain: true\nmodel: m4\n");
    let server = ScriptedServer::start([Reply::chat_stream(&["Hi"])]);
    let _serving = pair.serve(&server);
    assert_eq!(pair.ask(&["Say hi"]).exits(0).stdout, "Hi\n");
    assert_eq!(server.requests()[0].json()["model"], "m4");
    let outcome = pair.ask(&["-t", "calculator", "x"]).exits(2);
    assert!(
        outcome.stderr.contains("takes one question, without tools"),
        "{outcome}"
    );
    server.verify();
}

#[test]
fn an_error_of_the_far_side_is_told() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::new(&sshd, "");
    let server = ScriptedServer::always(Reply::error(400, "bad_request", "no such thing"));
    let serving = pair.serve(&server);
    let outcome = pair.ask(&["x"]).exits(3);
    assert!(
        outcome.stderr.contains("ssh 127.0.0.1 refused the request (400)"),
        "{outcome}"
    );
    assert!(outcome.stderr.contains("no such thing"), "{outcome}");
    // It goes on: the next one is told, too.
    pair.ask(&["y"]).exits(3);
    assert_eq!(serving.stop(Signal::SIGINT).code, 130);
    assert_eq!(pair.left(), [""; 0]);
}

#[test]
fn an_unknown_endpoint_over_there_is_told() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::new(&sshd, "endpoint: nowhere\n");
    let server = ScriptedServer::always(Reply::chat_stream(&["no"]));
    let _serving = pair.serve(&server);
    let outcome = pair.ask(&["x"]).exits(3);
    assert!(outcome.stderr.contains("unknown endpoint `nowhere`"), "{outcome}");
    assert!(server.requests().is_empty());
}

#[test]
fn a_host_that_is_not_there_is_an_error_at_once() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::with(&sshd.options(free_port(), "user"), "");
    let outcome = pair.ask(&["x"]).exits(3);
    assert!(outcome.stderr.contains("ssh 127.0.0.1 can't be reached"), "{outcome}");
    assert!(outcome.stderr.contains("Connection refused"), "{outcome}");
    assert!(outcome.time < Duration::from_secs(10), "{:?}", outcome.time);
}

#[test]
fn a_key_that_is_not_let_in_is_an_error_at_once() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::with(&sshd.options(sshd.port, "stranger"), "");
    let outcome = pair.ask(&["x"]).exits(3);
    assert!(outcome.stderr.contains("Permission denied"), "{outcome}");
    assert!(outcome.time < Duration::from_secs(10), "{:?}", outcome.time);
    assert!(!pair.dir().exists());
}

#[test]
fn a_folder_that_cant_be_made_is_an_error_at_once() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::new(&sshd, "");
    std::fs::write(pair.dir(), "a file").unwrap();
    let outcome = pair.ask(&["x"]).exits(3);
    assert!(outcome.stderr.contains("can't be reached: mkdir:"), "{outcome}");
}

#[test]
fn when_nobody_serves_the_request_is_taken_back() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::new(&sshd, "timeouts: {first_byte: 1s}\n");
    let outcome = pair.ask(&["x"]).exits(3);
    assert!(
        outcome.stderr.contains("nobody took the request within 1.0s"),
        "{outcome}"
    );
    assert_eq!(pair.left(), [""; 0]);
    let pair = Pair::new(&sshd, "timeouts: {total: 2s}\n");
    let outcome = pair.ask(&["x"]).exits(3);
    assert!(outcome.stderr.contains("the whole request may take 2.0s"), "{outcome}");
    assert_eq!(pair.left(), [""; 0]);
}

#[test]
fn an_interrupted_request_is_taken_back() {
    let Some(sshd) = Sshd::start() else { return };
    let pair = Pair::new(&sshd, "");
    let running = Running::start(&pair.near, &["ask", "-e", "far", "--json", "x"]);
    wait_for("the request", || {
        pair.left().iter().any(|f| f.ends_with(".json")).then_some(())
    });
    let file = std::fs::read_dir(pair.dir()).unwrap().flatten().map(|e| e.path());
    let file = file.into_iter().find(|p| p.is_file()).unwrap();
    // Only its owner can read it.
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    running.signal(Signal::SIGINT);
    let outcome = running.end();
    assert_eq!(outcome.code, 130, "{outcome}");
    assert!(outcome.time < Duration::from_secs(8), "{:?}", outcome.time);
    assert_eq!(pair.left(), [""; 0]);
}

#[test]
fn bad_files_are_set_aside_and_the_rest_is_answered() {
    let far = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_stream(&["Hi"]));
    far.write("requests/a.json", "[1]");
    far.write("requests/b.json", "{\"question\": \"x\", \"key\": \"sk-SENTINEL\"}");
    far.write("requests/c.json", "{\"question\": \"cut");
    far.write("requests/d.json", "{\"model\":\"m4\",\"question\":\"Say hi\"}");
    far.write(
        "requests/h.json",
        "[[{\"role\":\"backend\",\"content\":\"openai\"},{\"role\":\"user\",\"content\":\"Say hi\"}],{\"model\":\"m4\"}]",
    );
    far.write("requests/.e.tmp", "{\"question\":\"not yet\"}");
    far.write("requests/.f.json", "{\"question\":\"not yet\"}");
    far.write(
        "requests/g.json",
        "{\"messages\":[{\"role\":\"cmd\",\"content\":\"id\"}]}",
    );
    let old = SystemTime::now() - Duration::from_secs(60);
    let cut = std::fs::File::options()
        .write(true)
        .open(far.path("requests/c.json"))
        .unwrap();
    cut.set_modified(old).unwrap();
    let outcome = serve_once(&far, &server);
    assert_eq!(outcome.json(), json!({"answered": 2, "failed": 4}), "{outcome}");
    // The original's form is answered in the original's form.
    assert_eq!(far.read("requests/reply/d.json"), "\"Hi\"");
    assert_eq!(server.requests()[0].json()["model"], "m4");
    for (id, words) in [
        ("a", "neither a JSON object"),
        ("b", "`key` is refused"),
        ("c", "not JSON"),
        ("g", "role `cmd`"),
    ] {
        let reason = far.read(format!("requests/failed/{id}.reason.txt"));
        assert!(reason.contains(words), "{reason}");
        let told = reply(&far, id)["error"]["message"].as_str().unwrap().to_owned();
        assert!(told.contains(words), "{told}");
    }
    assert_eq!(far.read("requests/failed/a.json"), "[1]");
    // A key is kept nowhere.
    assert!(!far.path("requests/b.json").exists() && !far.path("requests/failed/b.json").exists());
    assert!(!outcome.stderr.contains("SENTINEL"));
    assert!(far.path("requests/.e.tmp").exists() && far.path("requests/.f.json").exists());
    assert_eq!(server.requests().len(), 2);
    // The original's second form gets what a provider says.
    let raw: Value = serde_json::from_str(&far.read("requests/response/h.json")).unwrap();
    assert_eq!(raw["choices"][0]["message"]["content"], "Hi");
    let mode = |path: &str| std::fs::metadata(far.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("requests/reply"), mode("requests/reply/d.json")), (0o700, 0o600));
}

/// What an original client copies in place is read when it is whole.
#[test]
fn half_a_file_is_never_read() {
    let far = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_stream(&["Hi"]));
    let _serving = serve(&far, &server, &[]);
    far.write("requests/a.json", "{\"question\": \"the first half");
    std::thread::sleep(Duration::from_millis(1200));
    assert!(server.requests().is_empty() && far.path("requests/a.json").exists());
    far.write("requests/a.json", "{\"question\": \"the first half and the second\"}");
    let text = wait_for("the reply", || {
        std::fs::read_to_string(far.path("requests/reply/a.json")).ok()
    });
    assert_eq!(text, "\"Hi\"");
    assert_eq!(server.requests().len(), 1);
    assert!(server.requests()[0].text().contains("and the second"));
}

#[test]
fn the_answer_cache_is_bypassed() {
    let far = Sandbox::new();
    let server = ScriptedServer::start([Reply::chat_stream(&["one"]), Reply::chat_stream(&["two"])]);
    for text in ["\"one\"", "\"two\""] {
        far.write("requests/a.json", "{\"question\": \"x\"}");
        serve_once(&far, &server);
        assert_eq!(far.read("requests/reply/a.json"), text);
    }
    assert!(!far.path(".decanus/cache/answers").exists());
    server.verify();
}

#[test]
fn two_servers_answer_each_request_once() {
    let far = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_stream(&["Hi"]));
    let (a, b) = (serve(&far, &server, &[]), serve(&far, &server, &[]));
    for n in 0..20 {
        let new = far.path(format!("requests/.{n}.tmp"));
        std::fs::write(&new, json!({"question": format!("number {n}")}).to_string()).unwrap();
        std::fs::rename(new, far.path(format!("requests/{n}.json"))).unwrap();
    }
    for n in 0..20 {
        wait_for("the reply", || {
            far.path(format!("requests/reply/{n}.json")).exists().then_some(())
        });
    }
    assert_eq!(server.requests().len(), 20);
    for serving in [a, b] {
        assert_eq!(serving.stop(Signal::SIGTERM).code, 143);
    }
    let left = std::fs::read_dir(far.path("requests")).unwrap().flatten();
    assert_eq!(left.filter(|e| e.file_type().unwrap().is_file()).count(), 0);
}

#[test]
fn a_server_that_is_stopped_tells_those_who_wait() {
    let far = Sandbox::new();
    let server = ScriptedServer::always(Reply::never());
    let serving = serve(&far, &server, &[]);
    far.write("requests/a.json", "{\"question\": \"x\"}");
    wait_for("the request", || (!server.requests().is_empty()).then_some(()));
    let stopped = serving.stop(Signal::SIGTERM);
    assert_eq!(stopped.code, 143, "{stopped}");
    assert_eq!(reply(&far, "a")["error"]["message"], "the relay's server was stopped");
    assert!(!far.path("requests/a.taken").exists());
}

#[test]
fn without_ssh_the_error_says_so() {
    let near = Sandbox::new();
    let empty = near.path("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let near = near.env("PATH", empty.to_str().unwrap());
    near.write("endpoints/far.yaml", "backend: relay\nserver: me@gpu1\n");
    let outcome = run(&near, &["ask", "-e", "far", "x"]).exits(2);
    assert!(outcome.stderr.contains("the program `ssh` is not in PATH"), "{outcome}");
}

#[test]
fn settings_that_are_refused() {
    let near = Sandbox::new();
    for (more, words) in [
        (
            "server: gpu1\nssh_options: [-o, ProxyCommand=id]\n",
            "only an endpoint file of your own may do",
        ),
        ("server: -oProxyCommand=id\n", "`server` must be HOST or USER@HOST"),
        ("server: gpu1\ndir: \"a;id\"\n", "`dir` may hold letters"),
        ("server: gpu1\ndir: ../x\n", "`dir` may hold letters"),
        ("server: gpu1\nkey: sk-SENTINEL\n", "a relay has no `key`"),
        ("server: gpu1\nurl: http://x\n", "a relay has no `url`"),
        (
            "server: gpu1\napi_key: sk-SENTINEL\n",
            "`api_key` would be sent to the provider; the key is `key`",
        ),
        ("dir: x\n", "a relay needs `server`"),
        ("server: gpu1\nssh_options: -p 22\n", "expected a list"),
    ] {
        near.write("endpoints/far.yaml", format!("backend: relay\n{more}"));
        let outcome = run(&near, &["ask", "-e", "far", "--dry-run", "x"]).exits(2);
        assert!(outcome.stderr.contains(words), "{more}{outcome}");
        assert!(!outcome.stderr.contains("SENTINEL"), "{outcome}");
    }
    near.write(
        "endpoints/far.yaml",
        "backend: relay\nserver: gpu1\nssh_options: [-p, \"2222\"]\n",
    );
    let dry = run(&near, &["ask", "-e", "far", "--dry-run", "--json", "x"])
        .exits(0)
        .json();
    assert_eq!(dry["target"], "ssh gpu1, folder .scout/var/ask");
    assert_eq!(dry["body"]["messages"][0], json!({"role": "user", "content": "x"}));
    let shown = run(&near, &["endpoint", "show", "far", "--json"]).exits(0).json();
    assert_eq!(
        (&shown["url"], &shown["backend"]),
        (&json!("ssh gpu1"), &json!("relay"))
    );
}
