#!/usr/bin/env python3
"""Writes crates/backend/src/prices.tsv from the table that the Python package litellm carries, which its users keep up to
date: `pip download`s nothing, but reads the installed package. Prices are in US dollars for a million tokens.

    python3 scripts/prices.py > crates/backend/src/prices.tsv
"""

import importlib.metadata
import importlib.util
import json
import pathlib
import re

# Where a provider's own endpoint is, as `url` has it; Bedrock has one in every region.
HOSTS = {
    "anthropic": "api.anthropic.com",
    "bedrock": "bedrock",
    "bedrock_converse": "bedrock",
    "deepseek": "api.deepseek.com",
    "gemini": "generativelanguage.googleapis.com",
    "groq": "api.groq.com",
    "mistral": "api.mistral.ai",
    "openai": "api.openai.com",
    "xai": "api.x.ai",
}
COLUMNS = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost")


def amount(value):
    return "" if value is None else f"{value * 1e6:.6f}".rstrip("0").rstrip(".")


def main():
    package = pathlib.Path(importlib.util.find_spec("litellm").origin).parent
    table = json.loads((package / "model_prices_and_context_window_backup.json").read_text())
    rows = set()
    for name, entry in table.items():
        provider = entry.get("litellm_provider")
        if provider not in HOSTS or entry.get("mode") not in ("chat", "completion", "embedding", "responses"):
            continue
        name = re.sub(r"^(bedrock|" + provider + ")/", "", name)
        if name.startswith("ft:") or (HOSTS[provider] == "bedrock" and "/" in name):
            continue
        if not entry.get("input_cost_per_token") and not entry.get("output_cost_per_token"):
            continue
        first = [entry.get(column) for column in COLUMNS]
        first[0], first[1] = first[0] or 0, first[1] or 0
        rows.add((HOSTS[provider], name, 0, *map(amount, first)))
        # Longer prompts cost more with some models.
        for key in entry:
            long = re.fullmatch(r"input_cost_per_token_above_(\d+)k_tokens", key)
            if long:
                ending = key.removeprefix("input_cost_per_token")
                above = [entry.get(column + ending, value) for column, value in zip(COLUMNS, first)]
                rows.add((HOSTS[provider], name, int(long[1]) * 1000, *map(amount, above)))
    version = importlib.metadata.version("litellm")
    print(f"# US dollars for a million tokens, from litellm {version}: scripts/prices.py writes this file.")
    print("provider\tmodel\tabove\tinput\toutput\tcache_read\tcache_write")
    for row in sorted(rows):
        print("\t".join(map(str, row)))


main()
