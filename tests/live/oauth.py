#!/usr/bin/env python3
"""`decanus auth` against a real server of OAuth2 and OpenID Connect: node's oidc-provider, with an API behind it.

    oauth.py [DECANUS]

oidc-provider is installed by npm into a folder of its own under the cache (OIDC_PROVIDER names a folder that has it
already). The browser is a few lines of Python that follow redirects and keep cookies; decanus runs in a terminal of its
own. Everything listens on the loopback address. Ends with 1 if something that must work does not.
"""

import http.cookiejar
import json
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import servers

OIDC_PROVIDER = "oidc-provider@9.13.3"
HERE = pathlib.Path(__file__).resolve().parent


def package():
    """The folder in whose node_modules oidc-provider is."""
    if folder := os.environ.get("OIDC_PROVIDER"):
        return pathlib.Path(folder)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "decanus-live" / OIDC_PROVIDER.replace("@", "-")
    if not (folder / "node_modules" / "oidc-provider").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--prefix", folder, "--silent", OIDC_PROVIDER], check=True, timeout=600)
    return folder


class Browser:
    """Follows redirects, keeps cookies, submits the forms of the device flow."""

    def __init__(self):
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )

    def open(self, url, form=None):
        data = None if form is None else urllib.parse.urlencode(form).encode()
        with self.opener.open(url, data, timeout=30) as reply:
            return reply.geturl(), reply.read().decode()

    def submit(self, url, html, **more):
        action = re.search(r'<form[^>]*action="([^"]+)"', html).group(1)
        fields = {}
        for tag in re.findall(r"<input[^>]*>", html):
            name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
            if name:
                fields[name.group(1)] = value.group(1) if value else ""
        return self.open(urllib.parse.urljoin(url, action), fields | more)


class Decanus:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("DECANUS_", "LEGATE_"))}
        self.env |= {"DECANUS_HOME": str(folder / "home"), "DECANUS_ALLOW_PRIVATE_URLS": "127.0.0.1"}

    def run(self, *args, stdin="", code=0):
        done = subprocess.run(
            [self.binary, *args], input=stdin, text=True, capture_output=True, env=self.env, cwd=self.folder, timeout=60
        )
        if done.returncode != code:
            raise SystemExit(f"decanus {' '.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def api(self, url, status):
        out = self.run("tool", "call", "http_request", f"url={url}", "--json")
        result = json.loads(out)["result"]
        assert result["status_code"] == status, result
        return json.loads(result["body"])

    def login(self, name, act):
        """Runs the login in a terminal; `act` gets what it prints until a URL is there."""
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.execve(self.binary, [self.binary, "auth", "login", name, "--timeout", "60s"], self.env)
        printed, acted = "", False
        while True:
            try:
                piece = os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                piece = ""
            if not piece:
                break
            printed += piece
            if not acted and "\n\n" in printed.replace("\r", "").split("http", 1)[-1]:
                acted = True
                act(printed.replace("\r", ""))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0 or "logged in" not in printed:
            raise SystemExit(f"decanus auth login {name}: exit {status}\n{printed}")
        return printed


def main():
    binary = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/release/decanus").resolve()
    port = servers.free_port()
    issuer = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        log = open(folder / "server.log", "w+")
        server = subprocess.Popen(["node", HERE / "oauth.mjs", str(port)], cwd=package(), stdout=log, stderr=log)
        try:
            for _ in range(100):
                try:
                    urllib.request.urlopen(f"{issuer}/.well-known/openid-configuration", timeout=2).close()
                    break
                except OSError:
                    time.sleep(0.1)
            converse(Decanus(str(binary), folder), issuer)
        except BaseException:
            log.seek(0)
            print(log.read(), file=sys.stderr)
            raise
        finally:
            server.terminate()
            server.wait()


def converse(decanus, issuer):
    step = lambda text: print(f"ok  {text}", flush=True)
    decanus.api(f"{issuer}/api/none", 401)

    decanus.run(
        "auth", "set", "machine", "--scheme", "oauth2", "--grant", "client_credentials", "--url", f"{issuer}/api/machine",
        "--client-id", "machine", "--token-url", f"{issuer}/token", stdin="secret&of=the live tests\n",
    )
    assert decanus.api(f"{issuer}/api/machine/x", 200)["client"] == "machine"
    decanus.api(f"{issuer}/api/machines", 401)
    step("client credentials: a token is fetched, and sent at its own path only")

    for alg in ("rs256", "es256"):
        decanus.run(
            "auth", "set", alg, "--scheme", "oidc", "--issuer", issuer, "--client-id", alg, "--client-auth", "none",
            "--url", f"{issuer}/api/{alg}",
        )
        error = decanus.run("tool", "call", "http_request", f"url={issuer}/api/{alg}", code=4)
        assert "log in again" in error, error
        printed = decanus.login(alg, lambda text: Browser().open(re.search(r"http://\S+", text).group(0)))
        assert "of ada" in printed, printed
        assert decanus.api(f"{issuer}/api/{alg}", 200) == {"client": alg, "user": "ada"}
        step(f"authorization code with PKCE and a loopback redirect; the ID token is verified ({alg.upper()})")
        time.sleep(5)
        assert decanus.api(f"{issuer}/api/{alg}", 200)["user"] == "ada"
        time.sleep(5)
        assert decanus.api(f"{issuer}/api/{alg}", 200)["user"] == "ada"
        step("an expired token is renewed, twice, with the refresh token of each answer")

    decanus.run(
        "auth", "set", "device", "--scheme", "oidc", "--issuer", issuer, "--client-id", "rs256", "--client-auth", "none",
        "--grant", "device_code", "--url", f"{issuer}/api/device",
    )

    def allow(text):
        browser = Browser()
        url, html = browser.open(re.search(r"http://\S+", text).group(0))
        code = re.search(r"^\s+([A-Z]{4}-[A-Z]{4})\s*$", text, re.M).group(1)
        url, html = browser.submit(url, html, user_code=code)
        browser.submit(url, html, confirm="yes")

    decanus.login("device", allow)
    assert decanus.api(f"{issuer}/api/device", 200)["user"] == "ada"
    step("device code")

    listed = decanus.run("auth", "list")
    tested = decanus.run("auth", "test", "machine")
    assert "secret&of" not in listed + tested and "••••••••" in listed + tested, listed + tested
    assert "revoked" in decanus.run("auth", "remove", "rs256")
    step("lists are masked; removing revokes")


if __name__ == "__main__":
    main()
