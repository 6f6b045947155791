#!/usr/bin/env python3
"""Asks a checkpoint of transformers through the `huggingface` backend, by the decanus binary, and checks what comes back.

    huggingface.py [DECANUS]

DECANUS is the binary; by default target/release/decanus, built if it is not there. torch and transformers are installed by
pip into a virtual environment of their own (see servers.py; HUGGINGFACE_PYTHON names a Python that has them already). The
checkpoint is made on the spot (huggingface_checkpoint.py): a Llama of some 100,000 parameters that knows a few answers by
heart, so that what it says can be checked, tool call and schema too. Ends with 1 if something does not work.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import servers
from servers import Missing, log

TRANSFORMERS = "transformers[torch]==5.5.4"
ECHO = "Use the echo tool to repeat the message: hello"
CALL = '<tool_call>{"name": "echo", "arguments": {"message": "hello"}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"], "additionalProperties": False}


class Live:
    """The checks, in a project of their own."""

    def __init__(self, decanus, python, folder):
        self.decanus, self.python, self.folder = decanus, python, folder
        self.passed = self.failed = 0
        self.environment = servers.clean_environment(folder, HOME=str(folder))
        for name in ("HUGGINGFACE_MODEL", "HF_MODEL", "HF_HOME", "HF_HUB_OFFLINE", "PYTHONPATH"):
            self.environment.pop(name, None)
        own = folder / "home" / "endpoints"
        own.mkdir(parents=True)
        (folder / "endpoints").mkdir()
        (folder / "decanus.toml").write_text("")
        (folder / "schema.json").write_text(json.dumps(SCHEMA))
        self.checkpoint = folder / "tiny"
        common = f"backend: huggingface\npython: {python}\ntemperature: 0\n"
        (own / "tiny.yaml").write_text(f"{common}dir: {self.checkpoint}\n")
        (own / "other.yaml").write_text(f"{common}model: decanus-live/none\n")
        (own / "bare.yaml").write_text(f"backend: huggingface\npython: {sys.executable}\ndir: {self.checkpoint}\n")
        (folder / "endpoints" / "theirs.yaml").write_text(f"{common}dir: {self.checkpoint}\n")

    def check(self, what, good, shown=None):
        if good:
            self.passed += 1
            print(f"ok    {what}", flush=True)
        else:
            self.failed += 1
            print(f"FAIL  {what}{'' if shown is None else f': {shown}'}", flush=True)

    def run(self, *arguments, timeout=300):
        """Exit code, standard output, standard error."""
        command = [self.decanus, *arguments, "-C", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=timeout)
        return done.returncode, done.stdout, done.stderr

    def ask(self, *arguments):
        return self.run("ask", "--no-cache", *arguments)

    def request(self, *arguments):
        """What would be sent."""
        code, output, errors = self.ask("-e", "tiny", "--dry-run", *arguments)
        self.check(f"a dry run of {arguments[-1]!r}", code == 0 and "transformers (" in errors, (code, output, errors))
        return json.loads(output)["chat"]

    def make(self):
        """The checkpoint: what it knows is what the binary will ask."""
        echo = self.request("-t", "echo", ECHO)
        called = [{"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": {"message": "hello"}}}]
        after = echo["messages"] + [
            {"role": "assistant", "content": "", "tool_calls": called},
            {"role": "tool", "name": "echo", "tool_call_id": "call_1", "content": "hello"},
        ]
        dialogues = [
            {"messages": self.request("Say hello.")["messages"], "answer": "Hello from the tiny model."},
            {"messages": self.request("Think first.")["messages"], "answer": "<think>so so</think>Done."},
            {"messages": self.request("Count.")["messages"], "answer": "one two " * 50},
            {"messages": self.request("--schema", "schema.json", "Is red warm?")["messages"], "answer": '{"warm": true}'},
            {"messages": echo["messages"], "tools": echo["tools"], "answer": CALL},
            {"messages": after, "tools": echo["tools"], "answer": "It said hello."},
        ]
        maker = [self.python, str(servers.HERE / "huggingface_checkpoint.py")]
        given = json.dumps({"folder": str(self.checkpoint), "dialogues": dialogues})
        done = subprocess.run(maker, input=given, capture_output=True, text=True, env=self.environment, timeout=900)
        if done.returncode != 0:
            raise Missing(f"no checkpoint could be made: {(done.stdout + done.stderr)[-500:]}")
        log(f"a checkpoint was made: {done.stdout.strip()}")

    def answers(self):
        code, streamed, errors = self.ask("-e", "tiny", "Say hello.")
        self.check("a question is answered", (code, streamed) == (0, "Hello from the tiny model.\n"), (code, streamed, errors))
        self.check("nothing else is said", errors == "", errors)
        code, output, errors = self.ask("-e", "tiny", "--no-stream", "--json", "Think first.")
        result = json.loads(output)
        meta = next(m["content"] for m in result["messages"] if m["role"] == "meta")
        self.check("thoughts are kept apart", result["answer"] == "Done." and "reas=so so" in meta, result)
        usage = result["usage"]
        self.check("tokens are counted", usage["pt"] > 0 and usage["ct"] > 5 and usage["tt"] == usage["pt"] + usage["ct"], usage)
        code, output, errors = self.ask("-e", "tiny", "--events", "Say hello.")
        events = [json.loads(line) for line in output.splitlines()]
        texts = [event["text"] for event in events if event["event"] == "text"]
        self.check("it comes in pieces", len(texts) > 1 and "".join(texts) == "Hello from the tiny model.", events)
        code, output, errors = self.ask("-e", "tiny", "-o", "max_tokens=7", "Say hello.")
        self.check("max_tokens cuts it, with a warning", (code, output) == (0, "Hello f\n") and errors != "", (code, output, errors))
        code, output, errors = self.ask("-e", "tiny", "-o", "stop=[\"tiny\"]", "Say hello.")
        self.check("stop ends it", (code, output.strip()) == (0, "Hello from the"), (code, output, errors))
        code, output, errors = self.ask("-e", "tiny", "--schema", "schema.json", "Is red warm?")
        self.check("an answer fits a schema", code == 0 and json.loads(output) == {"warm": True}, (code, output, errors))

    def tools(self):
        code, output, errors = self.ask("-e", "tiny", "-c", "echo", "-t", "echo", "--json", ECHO)
        result = json.loads(output)
        roles = [m["role"] for m in result["messages"] if m["role"] not in ("meta", "user")]
        self.check("a tool is called", roles == ["function_call", "function_call_output", "assistant"], (code, output, errors))
        self.check("and its output read", result["answer"] == "It said hello." and result["rounds"] == 2, result)
        code, output, errors = self.run("endpoint", "test", "tiny", "--json")
        good = code == 0 and all(check["ok"] for check in json.loads(output)["checks"])
        self.check("endpoint test finds all three", good, (code, output, errors))

    def vectors(self):
        code, output, errors = self.run("endpoint", "embed", "tiny", "red", "a blue sky")
        vectors = [json.loads(line) for line in output.splitlines()]
        good = code == 0 and [len(v) for v in vectors] == [64, 64] and vectors[0] != vectors[1]
        self.check("texts become vectors", good, (code, output[:200], errors))

    def errors(self):
        for what, arguments, expected, words in [
            ("an unknown parameter", ["-e", "tiny", "-o", "frequency_penalty=1"], 3, "['frequency_penalty']"),
            ("a conversation that is too long", ["-e", "tiny", "long " * 2000], 3, "too long"),
            ("a repository that is not there", ["-e", "other"], 2, "not in the cache of Hugging Face"),
            ("a Python without torch", ["-e", "bare"], 2, "pip install torch transformers"),
            ("an interpreter of somebody else", ["-e", "theirs"], 2, "only an endpoint file of your own may"),
        ]:
            code, output, errors = self.ask(*arguments, "Hi.")
            self.check(f"{what} is an error", code == expected and words in errors, (code, output, errors[:600]))

    def workers(self):
        """The processes of our Python that run the worker."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
                if b"huggingface_worker.py" in b" ".join(words) and (entry.parent / "environ").read_bytes().find(
                    f"DECANUS_HOME={self.folder}/home".encode()
                ) >= 0:
                    found.append(int(entry.parent.name))
            except OSError:
                continue
        return found

    def ends(self):
        for number, name in [(signal.SIGINT, "INT"), (signal.SIGKILL, "KILL")]:
            command = [self.decanus, "ask", "--no-cache", "-e", "tiny", "Count.", "-C", str(self.folder)]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.environment)
            child.stdout.read(1)
            running = self.workers()
            child.send_signal(number)
            child.wait(timeout=30)
            end = time.monotonic() + 15
            while self.workers() and time.monotonic() < end:
                time.sleep(0.1)
            self.check(f"after {name} nothing is left", len(running) == 1 and not self.workers(), (running, self.workers()))


def main():
    servers.stop_on_signals()
    decanus = servers.binary(sys.argv[1] if len(sys.argv) > 1 else None)
    with tempfile.TemporaryDirectory(prefix="decanus-live-") as folder:
        try:
            python = os.environ.get("HUGGINGFACE_PYTHON") or servers.environment(TRANSFORMERS, timeout=2400)
            live = Live(decanus, python, pathlib.Path(folder).resolve())
            live.make()
        except Missing as error:
            print(f"transformers: not had: {error}")
            return 1
        for checks in (live.answers, live.tools, live.vectors, live.errors, live.ends):
            try:
                checks()
            except (ValueError, KeyError, StopIteration, subprocess.TimeoutExpired) as error:
                live.check(checks.__name__, False, repr(error))
        print(f"{live.passed} passed, {live.failed} failed")
    return 1 if live.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
