#!/usr/bin/env python3
"""The conversation of live.py through `backend: openwebui`, against Open WebUI itself with llama.cpp's server behind it.

    openwebui.py [--model FILE] [DECANUS]

Open WebUI is large (some GB with what it needs), so it has a command of its own. It is installed by pip into a virtual
environment of its own (see servers.py; OPENWEBUI_PYTHON names a Python that has it already) and started with an empty
folder for its data, an administrator and an API key. Everything listens on the loopback address. Ends with 1 if
something that must work does not, or if a server can't be had.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import urllib.request

import live
import servers
from servers import Missing, log

OPENWEBUI = "open-webui==0.12.4"
ADMIN = {"email": "admin@live.example", "password": "of-the-live-tests"}


def start(folder, answers, vectors):
    """Open WebUI before two servers that speak OpenAI's protocol."""
    python = os.environ.get("OPENWEBUI_PYTHON") or servers.environment(OPENWEBUI, timeout=2400)
    port = servers.free_port()
    data = folder / "open-webui"
    data.mkdir()
    env = servers.clean_environment(
        folder,
        HOME=str(data),
        DATA_DIR=str(data),
        WEBUI_SECRET_KEY="secret-of-the-live-tests",
        WEBUI_ADMIN_EMAIL=ADMIN["email"],
        WEBUI_ADMIN_PASSWORD=ADMIN["password"],
        ENABLE_API_KEYS="true",
        ENABLE_OLLAMA_API="false",
        OPENAI_API_BASE_URLS=f"{answers.url}/v1;{vectors.url}/v1",
        OPENAI_API_KEYS="none;none",
        # Both servers call their model the same.
        OPENAI_API_CONFIGS=json.dumps({"1": {"prefix_id": "vectors"}}),
        # Without it, a model of its own would be wanted for documents.
        RAG_EMBEDDING_ENGINE="openai",
        # Nothing is fetched and nothing is told.
        OFFLINE_MODE="true",
        HF_HUB_OFFLINE="1",
        DO_NOT_TRACK="true",
        ANONYMIZED_TELEMETRY="false",
    )
    command = [pathlib.Path(python).with_name("open-webui"), "serve", "--host", "127.0.0.1", "--port", port]
    return servers.Tethered(command, folder / "open-webui.log", port, "/health", 300, env)


def call(url, body, token=None):
    """A request to Open WebUI's own API, as its pages make them."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)
    except OSError as error:
        raise Missing(f"{url}: {error}") from None


def api_key(url):
    """An API key of the administrator."""
    token = call(f"{url}/api/v1/auths/signin", ADMIN)["token"]
    return call(f"{url}/api/v1/auths/api_key", {}, token)["api_key"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="the model's file; by default that of `decanus model path`")
    parser.add_argument("decanus", nargs="?", help="the binary")
    options = parser.parse_args()
    servers.stop_on_signals()
    decanus = servers.binary(options.decanus)
    begin, rows, missing = time.monotonic(), [], []
    with tempfile.TemporaryDirectory(prefix="decanus-live-") as folder, contextlib.ExitStack() as running:
        folder = pathlib.Path(folder)
        project = live.Project(decanus, folder)
        row = live.Row("Open WebUI", "openwebui", base="", embed="vectors.smollm2")
        try:
            python, model = servers.llama_python(), options.model or servers.model_file(decanus)
            llama = servers.Llama(python, model, folder / "llama.log")
            running.callback(llama.stop)
            vectors = servers.Llama(python, model, folder / "vectors.log", embeddings=True)
            running.callback(vectors.stop)
            log("Open WebUI takes a minute to start …")
            webui = start(folder, llama, vectors)
            running.callback(webui.stop)
            live.KEY = api_key(webui.url)
            project.add(row, webui.url, webui.url)
            live.Checks(project, row).run()
            rows.append(row)
        except Missing as error:
            missing.append(("Open WebUI", error, True))
    code = live.report(rows, missing)
    print(f"\n{time.monotonic() - begin:.0f} s")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
