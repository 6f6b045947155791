#!/usr/bin/env python3
"""Measures llama.cpp's own server: `llama-speed.py MODEL.gguf PROMPT_FILE [THREADS [TOKENS [REPEATS]]]` prints one line of
JSON with the fastest of the repeats, in the form of decanus-local's example `speed`. Needs the package xllamacpp."""

import json
import pathlib
import subprocess
import sys
import urllib.request


def main():
    model, prompt = sys.argv[1:3]
    threads, tokens, repeats = (int(n) for n in (sys.argv[3:6] + ["1", "64", "3"][len(sys.argv) - 3 :]))
    script = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "llama-server.py"
    server = subprocess.Popen(
        [sys.executable, str(script), model, "--threads", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = json.loads(server.stdout.readline())["url"]
        body = {
            "prompt": pathlib.Path(prompt).read_text(encoding="utf-8"),
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        best = {"threads": threads, "prompt_per_second": 0.0, "generated_per_second": 0.0}
        # The first answer also pages the weights in, and does not count.
        for n in range(repeats + 1):
            timings = ask(url, body)["timings"]
            if n > 0:
                best["prompt_tokens"] = timings["prompt_n"]
                best["generated_tokens"] = timings["predicted_n"]
                best["prompt_per_second"] = max(best["prompt_per_second"], timings["prompt_per_second"])
                best["generated_per_second"] = max(best["generated_per_second"], timings["predicted_per_second"])
        print(json.dumps(best))
    finally:
        server.stdin.close()
        server.wait(timeout=30)


def ask(url, body):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), {"content-type": "application/json"})
    with opener.open(request, timeout=600) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
