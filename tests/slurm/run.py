#!/usr/bin/env python3
"""Jobs on a real Slurm of two nodes, which start.sh starts on the loopback address and stop.sh stops.

tests/slurm/run.py [BINARY]     the binary is target/release/decanus when none is named

Ends with 1 when something that must work does not, and with 0 and a word when Slurm can't be had here."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORKFLOW = """
tasks:
  base: {inputs: {n: {type: integer, default: 1}}, result: integer, sh: 'D="$DECANUS_WORKFLOW_DIR"; echo x >> "$D/ran"; echo "$n"'}
  left: {depends: [base], result: integer, sh: 'echo $(($(cat "$DECANUS_DEP_base") + 1))'}
  right: {depends: [base], result: integer, resources: {cpus: 2, memory: 100M, time: 5m}, sh: 'echo $(($(cat "$DECANUS_DEP_base") * 2))'}
  both: {depends: [left, right], result: integer, sh: 'echo $(($(cat "$DECANUS_DEP_left") + $(cat "$DECANUS_DEP_right")))'}
  all: {inputs: {ns: {type: integer_array}}, depends: [{task: base, for_each: {ns: n}}], result: integer_array, run: [awk, '1', '{base...}']}
  nap: {inputs: {s: {type: integer, default: 60}, tag: {type: string}}, result: string, sh: 'D="$DECANUS_WORKFLOW_DIR"; echo x >> "$D/ran"; sleep "$s"; echo "$tag"'}
  bad: {sh: 'echo oh no >&2; exit 3'}
"""


class Cluster:
    """A project and the cluster that runs its jobs."""

    def __init__(self, binary, work):
        self.binary = binary
        self.dir = work / "slurm"
        self.project = work / "project"
        self.workflow = self.project / "workflows/W"
        self.workflow.mkdir(parents=True)
        (self.workflow / "workflow.yaml").write_text(WORKFLOW)
        (self.project / "decanus.toml").write_text('executor = "slurm"\n[slurm]\npoll = "500ms"\nsettle = "2s"\n')
        self.env = os.environ | {
            "DECANUS_SLURM": str(self.dir),
            "SLURM_CONF": str(self.dir / "slurm.conf"),
            "DECANUS_HOME": str(work / "home"),
        }

    def script(self, name, *args):
        return subprocess.run([HERE / name, *args], env=self.env, text=True, capture_output=True, check=False)

    def begin(self, *args):
        command = [self.binary, "-C", self.project, *args]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(self, *args, code=0):
        return self.end(self.begin(*args), code)

    @staticmethod
    def end(process, code=0):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == code, f"exit code {process.returncode}, not {code}\n{stdout}{stderr}"
        return stdout, stderr

    def ran(self):
        path = self.workflow / "ran"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def jobs(self, task):
        return [json.loads(path.read_text()) for path in (self.project / ".decanus/jobs/W" / task).glob("*.info")]

    def nap(self, tag):
        """The record of the nap with this tag."""
        return next((job for job in self.jobs("nap") if job["inputs"]["tag"] == tag), {})

    def running(self, tag):
        until(lambda: self.nap(tag).get("pgid"))
        return self.nap(tag)

    def pid(self, daemon):
        return int((self.dir / f"run/{daemon}.pid").read_text())

    def queue(self, *args):
        return subprocess.run(["squeue", "-h", "-r", *args], env=self.env, text=True, capture_output=True, check=True).stdout

    def controller(self):
        started = self.script("start.sh", "2")
        assert started.returncode == 0, started.stderr


def until(there, patience=60):
    end = time.monotonic() + patience
    while not there():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)


def diamond(c):
    out, _ = c.ask("workflow", "run", "W", "both", "n=3")
    assert out == "10\n", out
    (record,) = c.jobs("both")
    assert record["executor"] == "slurm" and record["host"] in ("n1", "n2") and record["scheduler_id"], record
    return f"on {record['host']} as {record['scheduler_id']}"


def array(c):
    before = c.ran()
    began = time.monotonic()
    out, _ = c.ask("workflow", "run", "W", "all", "--json", "ns=" + json.dumps(list(range(1000, 1200))))
    took = time.monotonic() - began
    assert json.loads(out)["result"] == list(range(1000, 1200))
    assert c.ran() - before == 200
    ids = {job["scheduler_id"] for job in c.jobs("base") if job["inputs"]["n"] >= 1000}
    hosts = {job["host"] for job in c.jobs("base")}
    return f"200 jobs in {len(ids)} elements on {len(hosts)} nodes in {took:.1f} s"


def failure(c):
    out, _ = c.ask("workflow", "run", "W", "bad", "--json", code=4)
    assert json.loads(out)["error"]["stderr"] == "oh no", out
    return "its stderr is told"


def interruption(c):
    client = c.begin("workflow", "run", "W", "nap", "tag=int")
    record = c.running("int")
    began = time.monotonic()
    client.send_signal(signal.SIGINT)
    c.end(client, 130)
    until(lambda: record["scheduler_id"] not in c.queue(), 20)
    assert c.nap("int")["status"] == "aborted"
    assert not Path(f"/proc/{record['pgid']}").exists()
    return f"ended within {time.monotonic() - began:.1f} s"


def cancel(c):
    client = c.begin("workflow", "run", "W", "nap", "tag=cancel")
    record = c.running("cancel")
    c.ask("job", "cancel", record["digest"])
    client.communicate(timeout=60)
    assert client.returncode != 0 and c.nap("cancel")["status"] == "aborted"
    return "`job cancel` reaches the node"


def pending(c):
    # Both nodes are full, so that the third waits in the queue.
    full = [c.begin("workflow", "run", "W", "nap", "s=600", f"tag=full{i}") for i in range(4)]
    for i in range(4):
        c.running(f"full{i}")
    client = c.begin("workflow", "run", "W", "nap", "tag=pending")
    until(lambda: c.nap("pending").get("scheduler_id"))
    record = c.nap("pending")
    assert "PENDING" in c.queue("-o", "%i %T"), c.queue()
    c.ask("job", "cancel", record["digest"])
    client.communicate(timeout=60)
    assert c.nap("pending")["status"] == "aborted" and record["scheduler_id"] not in c.queue()
    for process in full:
        process.send_signal(signal.SIGTERM)
    for process in full:
        process.communicate(timeout=60)
    until(lambda: not c.queue(), 30)
    return "one in the queue too"


def join(c):
    before = c.ran()
    client = c.begin("workflow", "run", "W", "nap", "s=6", "tag=join")
    c.running("join")
    client.kill()
    client.communicate()
    out, err = c.ask("workflow", "run", "W", "nap", "s=6", "tag=join")
    assert out == "join\n" and "is with slurm already" in err and c.ran() - before == 1, (out, err)
    return "the body ran once"


def controller_down(c):
    before = c.ran()
    client = c.begin("workflow", "run", "W", "nap", "s=14", "tag=down")
    c.running("down")
    # A controller writes its state down every few seconds; without it, it forgets jobs and ends them.
    time.sleep(6)
    os.kill(c.pid("slurmctld"), signal.SIGKILL)
    time.sleep(4)
    c.controller()
    out, _ = c.end(client)
    assert out == "down\n" and c.ran() - before == 1
    os.kill(c.pid("slurmctld"), signal.SIGKILL)
    client = c.begin("workflow", "run", "W", "nap", "s=1", "tag=up")
    time.sleep(4)
    c.controller()
    out, _ = c.end(client)
    assert out == "up\n" and c.ran() - before == 2
    return "no failure, each body ran once"


def node_dies(c):
    before = c.ran()
    began = time.monotonic()
    client = c.begin("workflow", "run", "W", "nap", "s=7", "tag=node")
    first = c.running("node")
    # The node: its daemon, the keeper of the job, the job itself.
    keeper = int(Path(f"/proc/{first['pid']}/stat").read_text().rsplit(")", 1)[1].split()[1])
    for pid in (c.pid(f"slurmd-{first['host']}"), keeper, first["pid"]):
        os.kill(pid, signal.SIGKILL)
    out, err = c.end(client)
    last = c.nap("node")
    assert out == "node\n" and "handing it over again" in err, (out, err)
    assert last["scheduler_id"] != first["scheduler_id"] and c.ran() - before == 2, last
    started = c.script("start.sh", "2")
    assert started.returncode == 0, started.stderr
    return f"{first['host']} died, done on {last['host']} after {time.monotonic() - began:.0f} s"


CHECKS = [diamond, array, failure, interruption, cancel, pending, join, controller_down, node_dies]


def main():
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/decanus").resolve()
    if not binary.exists():
        sys.exit(f"run.py: {binary} is not there; build it, or name one")
    if os.geteuid() != 0 or not (shutil.which("slurmctld") or shutil.which("apt-get")):
        print("run.py: skipped: Slurm is not installed here, or this is not root")
        return
    work = Path(tempfile.mkdtemp(prefix="decanus-slurm-"))
    work.chmod(0o755)
    cluster = Cluster(binary, work)
    failed = 0
    try:
        started = cluster.script("start.sh", "2")
        if started.returncode != 0:
            sys.exit(f"run.py: Slurm does not start\n{started.stdout}{started.stderr}")
        for check in CHECKS:
            try:
                print(f"ok      {check.__name__:16} {check(cluster)}", flush=True)
            except (AssertionError, subprocess.SubprocessError, StopIteration, OSError) as e:
                failed += 1
                print(f"FAILED  {check.__name__:16} {e}", flush=True)
    finally:
        cluster.script("stop.sh")
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
