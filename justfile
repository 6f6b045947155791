# Everyday tasks. `just` lists them.

default:
    @just --list

# What CI does
check:
    ./check

# Build, fetch the model, answer a question
demo:
    ./demo

# Tests without llama.cpp: quick
test *ARGS:
    cargo nextest run --release --workspace {{ARGS}}

# Format
fmt:
    cargo fmt --all

# Measure, against the references, and print one table
bench:
    bench/run

# Ask a live llama.cpp server (installs xllamacpp into a virtual environment)
live-llama:
    python3 tests/live/llama-server.py

# One conversation through each dialect against llama.cpp's server, LiteLLM and a mock: a table (installs them by pip)
live *ARGS:
    python3 tests/live/live.py {{ARGS}}

# The part of it that CI runs: llama.cpp's server, three dialects
live-fast *ARGS:
    python3 tests/live/live.py --fast {{ARGS}}

# Ask a tiny checkpoint of transformers that is made on the spot (installs torch and transformers into a virtual environment)
live-huggingface *ARGS:
    python3 tests/live/huggingface.py {{ARGS}}

# The same conversation through Open WebUI before llama.cpp's server (installs both into virtual environments; some GB)
live-openwebui *ARGS:
    python3 tests/live/openwebui.py {{ARGS}}

# Log in to a real server of OpenID Connect in all ways (installs oidc-provider by npm)
live-oauth *ARGS:
    python3 tests/live/oauth.py {{ARGS}}

# Run jobs on a Slurm of two nodes while nodes and the controller die (as root; installs Slurm by apt)
live-slurm *ARGS:
    python3 tests/slurm/run.py {{ARGS}}

# Try inputs that libFuzzer makes up: arguments, urls, pages, chats or events (installs cargo-fuzz)
fuzz TARGET SECONDS="600":
    fuzz/run {{TARGET}} {{SECONDS}}

# Keep the smallest set of inputs that reaches all that `just fuzz` has reached
fuzz-keep TARGET:
    fuzz/run keep {{TARGET}}
