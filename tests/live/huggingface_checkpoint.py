"""Makes a tiny checkpoint of transformers that knows a few answers by heart. Run by huggingface.py in an environment that
has torch and transformers; reads {"folder", "dialogues": [{"messages", "tools", "answer"}]} from standard input.

It is a Llama of some 100,000 parameters with random weights, a tokenizer and a chat template made on the spot, trained
until it repeats each answer.
"""

import json
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

TEMPLATE = """\
{%- if tools %}<|tools|>{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif -%}
{%- for m in messages -%}
<|{{ m.role }}|>
{%- if m.tool_calls -%}
{%- for c in m.tool_calls %}<tool_call>{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}</tool_call>{% endfor -%}
{%- else %}{{ m.content }}{% endif %}<|end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""
MARKS = ["<|end|>", "<|pad|>", "<|tools|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


def tokenizer():
    """Every byte is a token, and so is every mark of the template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=MARKS[0], pad_token=MARKS[1])
    wrapped.add_special_tokens({"additional_special_tokens": MARKS[2:]})
    # As in real checkpoints, the marks of calls are single tokens and part of the text.
    wrapped.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    wrapped.chat_template = TEMPLATE
    wrapped.model_max_length = 4096
    return wrapped


def main():
    wanted = json.load(sys.stdin)
    set_seed(7)
    torch.set_num_threads(2)
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    examples = []
    for dialogue in wanted["dialogues"]:
        options = {"tools": dialogue.get("tools"), "add_generation_prompt": True, "tokenize": False}
        prompt = words(words.apply_chat_template(dialogue["messages"], **options))["input_ids"]
        answer = words(dialogue["answer"] + MARKS[0])["input_ids"]
        ids = torch.tensor([prompt + answer])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        examples.append((ids, labels))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(600):
        worst = 0.0
        for ids, labels in examples:
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            worst = max(worst, loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if worst < 0.01:
            break
    model.save_pretrained(wanted["folder"])
    words.save_pretrained(wanted["folder"])
    print(f"step {step}, loss {worst:.4f}")
    return 0 if worst < 0.2 else 1


if __name__ == "__main__":
    sys.exit(main())
