#!/usr/bin/env python3
"""llama.cpp's own server on a loopback port, for measuring and for live tests.

    llama-server.py MODEL.gguf [--template FILE] [--context N] [--threads N] [--embeddings]

Needs the package xllamacpp. Prints one line of JSON, {"url", "pid"}, when it answers; ends when its standard input does.
"""

import argparse
import json
import os
import socket
import sys
import time
import urllib.request


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--template")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--embeddings", action="store_true", help="serve embeddings (mean pooling), no answers")
    options = parser.parse_args()

    # llama.cpp writes its log to standard output and error: keep ours for the one line that is read.
    ours = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import xllamacpp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    p = xllamacpp.CommonParams()
    p.model.path = options.model
    p.model_alias = ["smollm2"]
    p.hostnames = ["127.0.0.1"]
    p.port = port
    p.n_ctx = options.context
    p.n_parallel = 1
    p.cpuparams.n_threads = options.threads
    p.cpuparams_batch.n_threads = options.threads
    p.use_jinja = True
    p.offline = True
    p.ui = False
    if options.embeddings:
        p.embedding = True
        p.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    if options.template:
        with open(options.template, encoding="utf-8") as file:
            p.chat_template = file.read()
    server = xllamacpp.Server(p)

    url = f"http://127.0.0.1:{port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(300):
        try:
            with opener.open(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    break
        except OSError:
            pass
        time.sleep(0.1)
    else:
        sys.exit("the server does not answer")
    print(json.dumps({"url": url, "pid": os.getpid()}), file=ours, flush=True)
    sys.stdin.read()
    del server
    # Its threads may be in the middle of an answer that nobody waits for.
    os._exit(0)


if __name__ == "__main__":
    main()
