#!/usr/bin/env python3
"""The same conversation through each dialect, against real servers that run here; prints a table and says what is wrong.

    live.py [--fast] [--model FILE] [DECANUS]

DECANUS is the binary; by default target/release/decanus, built if it is not there. The servers are installed by pip into
virtual environments of their own (see servers.py): llama.cpp's with a model of 135M parameters; without --fast also
LiteLLM's proxy before it, and llm-katan, a mock without a model. Ends with 1 if something that must work does not.
"""

import argparse
import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import servers
from servers import Missing, log

LITELLM = "litellm[proxy]==1.108.7"
KATAN = "llm-katan==0.22.0"
# The servers are ours; the proxy wants one, and its clients the same.
KEY = "sk-of-the-live-tests"
COLUMNS = ["answer", "tool", "turn", "stream", "schema", "embed", "usage"]
# A small model calls a tool when it has seen how, and copies a number. What it can't choose is left to no choice of its.
EXAMPLES, NUMBER = [5, 12, 17], 21
WORKFLOW = """\
title: Sums
tasks:
  double:
    description: Twice a number.
    inputs: {number: {type: integer, required: true}}
    result: integer
    sh: echo $((number * 2))
"""
WITHOUT_EMBEDDINGS = ["anthropic", "gemini"]
COLOURS = ["red", "green", "blue"]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": COLOURS}, "warm": {"type": "boolean"}},
    "required": ["colour", "warm"],
    "additionalProperties": False,
}
# What llama.cpp's server does with a schema in these dialects.
UNFORCED = {
    "responses": "the server ignores `text.format`",
    "anthropic": "the server lets a model that must call a tool talk first",
}


class Row:
    """One dialect at one server."""

    def __init__(self, server, backend, api=None, base="/v1", mock=False, embed=None, headers=None, unforced=None, lacks=None):
        self.server, self.backend, self.api, self.base, self.mock = server, backend, api, base, mock
        # The base and the model that make embeddings, if they are others.
        self.embed = embed
        self.headers = headers
        # Why the server does not make the model keep to a schema.
        self.unforced = unforced
        # Keys of AWS instead of a key, and no streams.
        self.aws = backend == "bedrock"
        # Columns that the server has not got, and why: they are tried all the same, and fail nothing.
        self.lacks = lacks or {}
        self.cells, self.why, self.notes, self.seconds = {}, {}, {}, 0.0

    @property
    def label(self):
        return f"{self.backend}, api: {self.api}" if self.api else self.backend

    @property
    def name(self):
        words = [self.server, self.backend, self.api or ""]
        return "-".join(w for w in words if w).replace(".", "").lower()

    def failed(self):
        return list(self.why)


class Project:
    """A project with an endpoint and a chat for each row, and the real binary."""

    def __init__(self, decanus, folder):
        self.decanus, self.folder = decanus, folder
        self.environment = servers.clean_environment(folder)
        for name in ("endpoints", "chats"):
            (folder / name).mkdir()
        (folder / "decanus.toml").write_text("")
        (folder / "workflows" / "Sums").mkdir(parents=True)
        (folder / "workflows" / "Sums" / "workflow.yaml").write_text(WORKFLOW)
        (folder / "schema.json").write_text(json.dumps(SCHEMA))

    def add(self, row, url, embed_url):
        fields = [f"backend: {row.backend}", "model: smollm2", f"key: {KEY}", "retries: 0"]
        if row.aws:
            fields[2:3] = ["region: eu-west-1", "access_key: AKIDEXAMPLE", f"secret_key: {KEY}"]
        fields += [f"api: {row.api}"] if row.api else []
        fields += [f"headers: {json.dumps(row.headers)}"] if row.headers else []
        answers = [f"url: {url}{row.base}", "temperature: 0", "max_tokens: 60"]
        self.write(f"endpoints/{row.name}.yaml", fields + answers)
        fields[1] = f"model: {row.embed or 'smollm2'}"
        self.write(f"endpoints/{row.name}-embed.yaml", [*fields, f"url: {embed_url}{row.base}"])
        records = ["system: Answer only with one <tool_call>."]
        for number in EXAMPLES:
            call = {"name": "double", "arguments": {"number": number}, "id": f"call_example{number}"}
            output = {"name": "double", "content": str(2 * number), "id": f"call_example{number}"}
            records += [f"user: What is {number} doubled?", f"function_call: {json.dumps(call)}"]
            records += [f"function_call_output: {json.dumps(output)}", f"assistant: {number} doubled is {2 * number}."]
        self.write(f"chats/{row.name}.chat", ["\n\n".join(records)])

        self.write(f"chats/{row.name}-schema.chat", ["\n\n".join(self.schema_example(row))])

    @staticmethod
    def schema_example(row):
        """Answers that fit the schema; where the answer is the input of a tool `response`, calls of it."""
        yield "system: Answer only with " + ("one <tool_call>." if row.backend == "anthropic" else "one line of JSON.")
        for number, colour in enumerate(["blue", "green"]):
            yield f"user: Is {colour} a warm colour?"
            value = {"colour": colour, "warm": False}
            if row.backend == "anthropic":
                call = {"name": "response", "arguments": value, "id": f"call_schema{number}"}
                yield f"function_call: {json.dumps(call)}"
                call = {"name": "response", "content": "Thank you.", "id": f"call_schema{number}"}
                yield f"function_call_output: {json.dumps(call)}"
                yield f"assistant: {colour} is cold."
            else:
                yield f"assistant: {json.dumps(value)}"

    def write(self, name, lines):
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def has_bedrock(self):
        """Whether the binary was built with it."""
        self.write("endpoints/has-bedrock.yaml", ["backend: bedrock", "model: m", "region: eu-west-1"])
        return self.run("ask", "-e", "has-bedrock", "--dry-run", "hi")[0] == 0

    def run(self, *arguments, timeout=120):
        """Exit code, standard output, standard error."""
        command = [self.decanus, "-C", str(self.folder), *arguments]
        if arguments[0] == "endpoint":
            command = [self.decanus, *arguments, "-C", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=timeout)
        return done.returncode, done.stdout, done.stderr


class No(Exception):
    """Something is not as it must be."""


class Shown(Exception):
    """It is as it must be only behind worked examples."""


class HasNone(Exception):
    """The dialect has no such thing."""


def want(good, why):
    if not good:
        raise No(str(why))


class Checks:
    """The columns of one row."""

    def __init__(self, project, row):
        self.project, self.row = project, row
        self.usages = []

    def ask(self, *arguments, codes=(0,)):
        """The one object of an answer. Never out of the cache."""
        how = ["--no-stream"] if self.row.aws and "--no-stream" not in arguments else []
        code, output, errors = self.project.run("ask", "-e", self.row.name, "--no-cache", "--json", *how, *arguments)
        try:
            result = json.loads(output)
        except ValueError:
            raise No(f"no JSON (exit code {code}): {output} {errors}") from None
        want(code in codes, f"exit code {code}: {result.get('error', {}).get('message') or errors}")
        return result

    def answer(self):
        result = self.ask("--no-stream", "Name three colours.")
        self.usages.append(("without a stream", result["usage"]))
        want(result["answer"].strip(), "an empty answer")
        want(result["rounds"] == 1, f"{result['rounds']} rounds")

    def stream(self):
        name = self.row.name
        code, output, errors = self.project.run("ask", "-e", name, "--no-cache", "--events", "Name three colours.")
        events = [json.loads(line) for line in output.splitlines()]
        want(code == 0 and events, f"exit code {code}: {errors}")
        end, texts = events[-1], [e["text"] for e in events if e["event"] == "text"]
        self.usages.append(("in a stream", end.get("usage") or {}))
        want(end["event"] == "end", f"the last event is {end['event']}")
        want(len(texts) >= 2, f"it came in {len(texts)} piece(s)")
        want("".join(texts) == end["answer"], "the pieces are not the answer")

    def tool(self):
        chat = self.project.folder / "chats" / f"{self.row.name}.chat"
        before = chat.read_text()
        how = ["-c", self.row.name, "-t", "Sums", "-o", "tool_choice=required"]
        # A mock calls a tool whenever there is one, with anything: the form of the call is what it can show.
        how += ["-o", "max_rounds=1"] if self.row.mock else []
        result = self.ask(*how, f"What is {NUMBER} doubled?", codes=(0, 4, 5) if self.row.mock else (0,))
        calls = [m["content"] for m in result["messages"] if m["role"] == "function_call"]
        outputs = [m["content"] for m in result["messages"] if m["role"] == "function_call_output"]
        want(calls, f"no call, but: {result['answer']!r}")
        want([c["id"] for c in calls] == [o["id"] for o in outputs], f"not one output for each call: {result['messages']}")
        want(len({c["id"] for c in calls}) == len(calls), f"an id twice: {calls}")
        want({c["name"] for c in calls} == {"double"}, f"another tool: {calls}")
        after = chat.read_text()
        want(after.startswith(before) and len(after) > len(before), "the chat was not appended to")
        if not self.row.mock:
            want(calls[0]["arguments"] == {"number": NUMBER}, f"other arguments: {calls[0]['arguments']}")
            want(outputs[0]["content"] == str(2 * NUMBER), f"its output is {outputs[0]['content']!r}")
            want(result["jobs"], "no job")
            answer = result["answer"]
            want(result["rounds"] >= 2 and str(2 * NUMBER) in answer, f"the answer has not got it: {answer!r}")
            self.usages.append(("with a tool", result["usage"]))

    def turn(self):
        """What was called before is part of the next request."""
        result = self.ask("-c", self.row.name, "Thank you.")
        want(result["answer"].strip(), "an empty answer")

    def schema(self):
        try:
            self.fits()
        except No as error:
            if self.row.unforced is None:
                raise
            # With worked examples even a small model does of itself what the server does not make it do.
            self.fits("-c", f"{self.row.name}-schema")
            raise Shown(f"{self.row.unforced}; it fits behind worked examples. Without them: {error}") from None

    def fits(self, *chat):
        result = self.ask("--schema", "schema.json", *chat, "Is red a warm colour?")
        value = json.loads(result["answer"])
        fits = isinstance(value, dict) and value.keys() == {"colour", "warm"}
        want(fits and value["colour"] in COLOURS and isinstance(value["warm"], bool), f"it does not fit: {value}")

    def embed(self):
        code, output, errors = self.project.run("endpoint", "embed", f"{self.row.name}-embed", "red", "a blue sky")
        if self.row.backend in WITHOUT_EMBEDDINGS and "has no embeddings" in errors:
            raise HasNone
        want(code == 0, f"exit code {code}: {errors}")
        vectors = [json.loads(line) for line in output.splitlines()]
        want(len(vectors) == 2, f"{len(vectors)} vectors")
        want(len(vectors[0]) == len(vectors[1]) > 0 and vectors[0] != vectors[1], "the vectors are no good")
        want(all(isinstance(x, (int, float)) for v in vectors for x in v), "the vectors are not of numbers")

    def usage(self):
        want(self.usages, "there was nothing to count")
        for what, usage in self.usages:
            pt, ct = usage.get("pt", 0), usage.get("ct", 0)
            want(pt > 0 and ct > 0 and usage.get("tt") == pt + ct, f"{what}: {usage}")

    def run(self):
        start = time.monotonic()
        for column in COLUMNS:
            try:
                getattr(self, column)()
                cell = "ok"
            except HasNone:
                cell = "-"
            except Shown as error:
                cell, self.row.notes[column] = "ok*", " ".join(str(error).split())
            except (No, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
                said = " ".join((str(error) if isinstance(error, No) else repr(error)).split())
                if column in self.row.lacks:
                    cell, self.row.notes[column] = "-", self.row.lacks[column]
                else:
                    cell, self.row.why[column] = "no", said
            self.row.cells[column] = cell
        self.row.seconds = time.monotonic() - start


def llama_rows(fast):
    rows = [Row("llama.cpp", name, unforced=UNFORCED.get(name)) for name in ("openai", "responses", "anthropic")]
    vllm = [Row("llama.cpp", "vllm", api, unforced=UNFORCED.get(api)) for api in ("chat", "responses")]
    return rows if fast else [*rows, *vllm]


def litellm_rows():
    unforced = {**UNFORCED, "anthropic": "a tool that is named as the choice is not forced by the server behind it"}
    names = ["openai", "responses", "anthropic"]
    rows = [Row("LiteLLM", name, embed="vectors", unforced=unforced.get(name)) for name in names]
    lacks = {"embed": "it has the routes of generateContent and no batchEmbedContents"}
    return [*rows, Row("LiteLLM", "gemini", base="/v1beta", lacks=lacks)]


def katan_rows(with_bedrock):
    lacks = {"schema": "it is a mock and takes no schema", "embed": "it makes no embeddings"}
    rows = [Row("llm-katan", backend, mock=True, lacks=lacks) for backend in ("openai", "anthropic")]
    # It looks for the key where Google's cloud has it.
    key = {"Authorization": f"Bearer {KEY}"}
    rows.append(Row("llm-katan", "gemini", base="/v1beta", mock=True, headers=key, lacks=lacks))
    if with_bedrock:
        more = {
            "stream": "its ConverseStream is server-sent events under another name",
            "turn": "it calls any tool that is named, and Converse wants those that were called named",
            "embed": "it takes InvokeModel for Titan and answers with a text",
        }
        rows.append(Row("llm-katan", "bedrock", base="", mock=True, lacks=lacks | more))
    return rows


def start_litellm(folder, llama, vectors):
    python = servers.environment(LITELLM)
    model = "  - model_name: {}\n    litellm_params: {{model: openai/smollm2, api_base: {}/v1, api_key: none}}\n"
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n" + model.format("smollm2", llama.url) + model.format("vectors", vectors.url)
        + f"litellm_settings: {{drop_params: true, telemetry: false}}\ngeneral_settings: {{master_key: {KEY}}}\n"
    )
    port = servers.free_port()
    # It would fetch prices and news; what leaves this machine all the same meets a closed port.
    local = {f"LITELLM_LOCAL_{name}": "True" for name in ("MODEL_COST_MAP", "POLICY_TEMPLATES", "BLOG_POSTS")}
    closed = {"HTTP_PROXY": "http://127.0.0.1:1", "HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"}
    env = servers.clean_environment(folder, HOME=str(folder), **local, **closed)
    command = [pathlib.Path(python).with_name("litellm"), "--config", config, "--host", "127.0.0.1", "--port", port]
    return servers.Tethered(command, folder / "litellm.log", port, "/health/liveliness", 240, env)


def start_katan(folder):
    python = servers.environment(KATAN)
    port = servers.free_port()
    command = [pathlib.Path(python).with_name("llm-katan"), "--model", "fake", "--name", "smollm2", "--backend", "echo"]
    command += ["--host", "127.0.0.1", "--port", port, "--providers", "openai,anthropic,vertexai,bedrock"]
    command += ["--stats-file", folder / "katan.json"]
    env = servers.clean_environment(folder, HOME=str(folder))
    return servers.Tethered(command, folder / "llm-katan.log", port, "/health", 60, env)


def table(rows, missing):
    head = ["server", "backend", *COLUMNS, "seconds"]
    lines = [[r.server, r.label, *(r.cells[c] for c in COLUMNS), f"{r.seconds:.1f}"] for r in rows]
    lines += [[server, "not had", *("" for _ in COLUMNS), ""] for server, _, _ in missing]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, ["-" * w for w in widths], *lines]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |")


def report(rows, missing):
    """Prints the table and the reasons; the exit code."""
    print()
    table(rows, missing)
    for row in rows:
        for column, note in row.notes.items():
            print(f"{row.server}, {row.label}, {column}: {row.cells[column]}: {note[:400]}")
    for row in rows:
        for column, why in row.why.items():
            print(f"{row.server}, {row.label}, {column}: no: {why[:600]}")
    bad = any(row.failed() for row in rows)
    for server, why, needed in missing:
        bad |= needed
        print(f"{server}: not had: {why}")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="only llama.cpp's server and three dialects")
    parser.add_argument("--model", help="the model's file; by default that of `decanus model path`")
    parser.add_argument("decanus", nargs="?", help="the binary")
    options = parser.parse_args()
    servers.stop_on_signals()
    decanus = servers.binary(options.decanus)
    start, rows, missing = time.monotonic(), [], []
    with tempfile.TemporaryDirectory(prefix="decanus-live-") as folder, contextlib.ExitStack() as running:
        folder = pathlib.Path(folder)
        project = Project(decanus, folder)

        def started(server):
            running.callback(server.stop)
            return server

        def go(server, url, embed_url, its_rows):
            for row in its_rows:
                project.add(row, url, embed_url)
                Checks(project, row).run()
                rows.append(row)
                good = "ok" if not row.failed() else "no: " + ", ".join(row.failed())
                log(f"{server}, {row.label}: {good} ({row.seconds:.1f} s)")

        try:
            python, model = servers.llama_python(), options.model or servers.model_file(decanus)
            llama = started(servers.Llama(python, model, folder / "llama.log"))
            vectors = started(servers.Llama(python, model, folder / "vectors.log", embeddings=True))
            log(f"llama.cpp's servers: {llama.url}, {vectors.url}")
            go("llama.cpp", llama.url, vectors.url, llama_rows(options.fast))
            if not options.fast:
                try:
                    log("LiteLLM takes a minute to start …")
                    proxy = started(start_litellm(folder, llama, vectors))
                    go("LiteLLM", proxy.url, proxy.url, litellm_rows())
                except Missing as error:
                    missing.append(("LiteLLM", error, False))
        except Missing as error:
            # Without this one nothing is tested.
            missing.append(("llama.cpp", error, True))
        if not options.fast:
            try:
                katan = started(start_katan(folder))
                go("llm-katan", katan.url, katan.url, katan_rows(project.has_bedrock()))
            except Missing as error:
                missing.append(("llm-katan", error, False))
    code = report(rows, missing)
    print(f"\n{time.monotonic() - start:.0f} s")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
