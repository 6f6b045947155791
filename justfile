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
