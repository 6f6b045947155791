"""The far side of decanus' backend `huggingface`: a checkpoint of transformers behind lines of JSON.

`lines` is given by whoever runs this text: the requests, one a line. The first one says what to load and is answered by
`{"ready": …}` or `{"error": …}`. Then comes `{"chat": …}` or `{"embed": …}`, one at a time, answered by lines whose last
one holds `done` or `error`; `{"cancel": true}` ends the answer that is being written. The end of the requests is the
end of this process.
"""

import inspect
import json
import math
import os
import queue
import re
import sys
import threading
import time

# What libraries print must not get between the lines of an answer.
answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
os.dup2(2, 1)
sys.stdout = sys.stderr

# Tokens that begin a tool call although they are special ones, which decoding leaves out.
CALL_MARKS = ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool_call>", "</tool_call>")
# The longest answer when nobody says how long it may be.
LONGEST = 4096
# `model_max_length` of a tokenizer that does not know it.
UNKNOWN_LENGTH = 10**9


class Refusal(Exception):
    """An error with the status that a server would give it."""

    def __init__(self, message, status=400, code=None):
        super().__init__(message)
        self.error = {"message": message, "status": status}
        if code:
            self.error["code"] = code


def say(value):
    try:
        answers.write(json.dumps(value, allow_nan=False) + "\n")
        answers.flush()
    except BrokenPipeError:
        os._exit(0)


def first_words(error):
    """What an exception says, without its pages of advice."""
    text = str(error).strip() or type(error).__name__
    return " ".join(text.split("\n\n")[0].split())[:1000]


def too_long(length, limit):
    message = f"it has {length} tokens, and the model takes {limit}"
    return Refusal(message, code="context_length_exceeded")


class Requests:
    """Reads requests on a thread of its own, so that one can be cancelled while it is answered."""

    def __init__(self, lines):
        self.lines = lines
        self.waiting = queue.Queue()
        self.last = threading.Event()

    def start(self):
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.lines:
            request = json.loads(line)
            if request.get("cancel"):
                self.last.set()
            else:
                self.last = threading.Event()
                self.waiting.put((request, self.last))
        # Nobody is there any more: not even a computation is waited for.
        os._exit(0)


class Worker:
    """A model and its tokenizer."""

    def __init__(self, settings):
        self.settings = settings
        self.name = settings["model"]
        offline = [v for v in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(v, "0") not in ("", "0")]
        self.may_download = settings["download"] and not offline
        self.offline = offline
        if not self.may_download:
            os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            import torch
            import transformers
        except ImportError as error:
            raise Refusal(
                f"{error.name or 'a part of torch or transformers'} is missing in {sys.executable} ({error}); install it "
                f"(`{sys.executable} -m pip install torch transformers`), or name another interpreter with `python` in an "
                "endpoint's file"
            ) from None
        self.torch, self.transformers = torch, transformers
        try:
            self.load()
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(self.why_not(error)) from None

    def load(self):
        torch, transformers, settings = self.torch, self.transformers, self.settings
        if settings["is_path"] and not os.path.isdir(self.name):
            raise Refusal(f"there is no folder {self.name}")
        common = {"trust_remote_code": settings["trust_remote_code"]}
        if not self.may_download:
            common["local_files_only"] = True
        if settings.get("revision"):
            common["revision"] = settings["revision"]
        wanted = dict(common)
        # A checkpoint may be a pickle, and a pickle may be a program.
        loader = getattr(transformers, "PreTrainedModel", None)
        if loader and "weights_only" in inspect.signature(loader.from_pretrained).parameters:
            wanted["weights_only"] = True
        else:
            wanted["use_safetensors"] = True
        if settings.get("dtype"):
            dtype = settings["dtype"]
            if dtype != "auto":
                dtype = getattr(torch, dtype, None)
                if not isinstance(dtype, torch.dtype):
                    raise Refusal(f"`torch_dtype` is {settings['dtype']}, which torch does not have (bfloat16, float32, auto)")
            version = [int(n) for n in re.findall(r"\d+", transformers.__version__)[:2]]
            wanted["dtype" if version >= [4, 56] else "torch_dtype"] = dtype
        if settings.get("device_map"):
            wanted["device_map"] = settings["device_map"]
        name = "AutoModel" if settings["mode"] == "embed" else "AutoModelFor" + settings["task"]
        auto = getattr(transformers, name, None)
        if auto is None:
            raise Refusal(f"`task` is {settings['task']}, and transformers has no {name} (CausalLM, Seq2SeqLM, …)")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.name, **common)
        self.model = auto.from_pretrained(self.name, **wanted)
        if not settings.get("device_map"):
            self.model.to(settings.get("device") or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model.eval()

    def why_not(self, error):
        said = first_words(error)
        if isinstance(error, OSError) and not self.settings["is_path"]:
            cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
            if not self.settings["download"]:
                way = f"fetch it (`hf download {self.name}`), or let decanus do so: `download: true` in the endpoint's file"
                return f"{self.name} is not in the cache of Hugging Face ({cache}), or not all of it; {way}. It says: {said}"
            if self.offline:
                way = f"and {self.offline[0]} is set, so that nothing is fetched"
                return f"{self.name} is not in the cache of Hugging Face ({cache}), {way}. It says: {said}"
        if "trust_remote_code" in said and not self.settings["trust_remote_code"]:
            way = "if you trust it, say `trust_remote_code: true` in an endpoint's file of your own"
            return f"{self.name} brings code of its own, which is not run; {way}"
        if self.settings["is_path"] and not os.path.isfile(os.path.join(self.name, "config.json")):
            return f"{self.name} holds no config.json: it is no checkpoint of transformers. It says: {said}"
        return f"{self.name} can't be loaded: {type(error).__name__}: {said}"

    def about(self):
        model = type(self.model).__name__
        return {"transformers": self.transformers.__version__, "model": model, "device": str(self.model.device)}

    def context(self):
        """How many tokens the model takes, if it says so."""
        config = self.model.config
        for holder in (config, getattr(config, "text_config", None)):
            for name in ("max_position_embeddings", "n_positions"):
                limit = getattr(holder, name, None)
                if isinstance(limit, int) and limit > 0:
                    return limit
        return None

    # ---- answers

    def prompt(self, request):
        """The conversation as the model reads it."""
        tokenizer, tools = self.tokenizer, request.get("tools") or None
        template = request.get("chat_template")
        if not template and not getattr(tokenizer, "chat_template", None):
            raise Refusal(f"the tokenizer of {self.name} has no chat template; give `chat_template`")
        if tools:
            if hasattr(tokenizer, "get_chat_template"):
                shown = tokenizer.get_chat_template(template, tools)
            else:
                shown = str(template or tokenizer.chat_template)
            if "tools" not in shown:
                say({"warning": f"the chat template of {self.name} has no place for tools: the model does not see them"})
        options = request.get("chat_template_kwargs") or {}
        own = [o for o in options if o in ("conversation", "tools", "chat_template", "add_generation_prompt", "tokenize")]
        if own:
            raise Refusal(f"`chat_template_kwargs` can't hold `{own[0]}`")
        try:
            return tokenizer.apply_chat_template(
                request["messages"],
                tools=tools,
                chat_template=template,
                add_generation_prompt=True,
                tokenize=False,
                **options,
            )
        except Exception as error:
            raise Refusal(f"the chat template does not take this conversation: {first_words(error)}") from None

    def ends(self, generation):
        """The tokens that end an answer."""
        ends = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        for source in (generation.get("eos_token_id"), getattr(self.model.generation_config, "eos_token_id", None)):
            ends.update(source if isinstance(source, (list, tuple)) else [source])
        return {end for end in ends if end is not None}

    def chat(self, request, cancelled):
        torch, tokenizer, generation = self.torch, self.tokenizer, dict(request["generation"])
        text = self.prompt(request)
        if text.rstrip().endswith("<think>"):
            say({"thinks": True})
        inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        prompt, limit = inputs["input_ids"].shape[1], self.context()
        of_model = self.model.generation_config
        is_pair = getattr(self.model.config, "is_encoder_decoder", False)
        if limit and prompt >= limit and not is_pair:
            raise too_long(prompt, limit)
        room = LONGEST if not limit or is_pair else limit - prompt
        if "max_new_tokens" not in generation and "max_length" not in generation:
            # The default of transformers is a length of 20, prompt included.
            generation["max_new_tokens"] = getattr(of_model, "max_new_tokens", None) or min(room, LONGEST)
        if "max_new_tokens" in generation and limit and not is_pair:
            generation["max_new_tokens"] = min(generation["max_new_tokens"], room)
        ends = self.ends(generation)
        if getattr(of_model, "pad_token_id", None) is None and tokenizer.eos_token_id is not None:
            generation.setdefault("pad_token_id", tokenizer.eos_token_id)
        stops = generation.get("stop_strings") or []
        stops = [stops] if isinstance(stops, str) else stops
        if stops:
            generation["tokenizer"] = tokenizer
        special = set(getattr(tokenizer, "all_special_tokens", []))
        keep = bool(request.get("tools")) and any(mark in special for mark in CALL_MARKS)
        parses = bool(getattr(tokenizer, "response_schema", None)) and hasattr(tokenizer, "parse_response")
        streams = request["stream"] and not stops and not parses and generation.get("num_beams", 1) == 1
        streamer = self.streamer(ends, keep) if streams else None
        if streamer:
            generation["streamer"] = streamer
        if request.get("seed") is not None:
            self.transformers.set_seed(request["seed"])
        try:
            with torch.inference_mode():
                criteria = self.transformers.StoppingCriteriaList([self.pulse(cancelled)])
                made = self.model.generate(**inputs, **generation, stopping_criteria=criteria)
        except (ValueError, TypeError) as error:
            raise Refusal(first_words(error)) from None
        ids = made[0].tolist()[1 if is_pair else prompt:]
        if streamer is None:
            shown = [one for one in ids if one not in ends]
            if parses:
                self.parsed(tokenizer.decode(ids, skip_special_tokens=False), shown)
            else:
                self.whole(tokenizer.decode(shown, skip_special_tokens=not keep), stops)
        say({"usage": {"prompt_tokens": prompt, "completion_tokens": len(ids)}})
        cut = len(ids) >= generation.get("max_new_tokens", math.inf) and ids[-1] not in ends
        finish = "cancelled" if cancelled.is_set() else "length" if cut else "stop"
        say({"done": {"finish": finish}})

    def whole(self, text, stops):
        for stop in stops:
            text = text.split(stop)[0]
        say({"text": text})

    def parsed(self, text, shown):
        """An answer that the tokenizer itself takes apart, by the schema that came with the checkpoint."""
        try:
            say({"message": self.tokenizer.parse_response(text)})
        except Exception as error:
            print(f"the answer does not fit the response schema: {error}", file=sys.stderr)
            say({"text": self.tokenizer.decode(shown, skip_special_tokens=True)})

    def streamer(self, ends, keep):
        """Gives text out as it comes; none where transformers has nothing for it."""
        base = getattr(self.transformers, "TextIteratorStreamer", None) and getattr(self.transformers, "TextStreamer", None)
        if not base:
            return None

        class Pieces(base):
            def put(self, value):
                if not self.next_tokens_are_prompt and int(value.reshape(-1)[0]) in ends:
                    return
                super().put(value)

            def on_finalized_text(self, text, stream_end=False):
                if text:
                    say({"text": text})

        return Pieces(self.tokenizer, skip_prompt=True, skip_special_tokens=not keep)

    def pulse(self, cancelled):
        """Says with every token whether to stop, and now and then that there still is a next one."""
        torch, said = self.torch, [time.monotonic()]

        class Pulse(self.transformers.StoppingCriteria):
            def __call__(self, input_ids, scores, **_):
                if time.monotonic() - said[0] > 1:
                    said[0] = time.monotonic()
                    say({"alive": int(input_ids.shape[1])})
                return torch.full((input_ids.shape[0],), cancelled.is_set(), dtype=torch.bool, device=input_ids.device)

        return Pulse()

    # ---- embeddings

    def file(self, name):
        """A file of the checkpoint as JSON, if it is here."""
        path = os.path.join(self.name, name)
        if not os.path.isdir(self.name):
            try:
                from huggingface_hub import try_to_load_from_cache

                path = try_to_load_from_cache(self.name, name, revision=self.settings.get("revision"))
            except Exception:
                return None
        if not isinstance(path, str) or not os.path.isfile(path):
            return None
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def pooling(self, request):
        """How the states of a text's tokens become one vector: what is asked for, else what sentence-transformers left."""
        own = self.file("1_Pooling/config.json") or {}
        names = {"pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
        pooling = next((name for key, name in names.items() if own.get(key)), "mean")
        modules = self.file("modules.json") or []
        normalize = any(str(module.get("type", "")).endswith(".Normalize") for module in modules)
        if request.get("normalize") is not None:
            normalize = request["normalize"]
        return request.get("pooling") or pooling, normalize

    def vector(self, states, mask, pooling):
        hidden = states.last_hidden_state
        if pooling == "model":
            pooled = getattr(states, "pooler_output", None)
            if pooled is None:
                raise Refusal(f"`pooling` is model, and {self.name} makes no vector of its own (mean, cls, last)")
            return pooled[0]
        if pooling == "cls":
            return hidden[0, 0]
        if pooling == "last":
            return hidden[0, -1]
        weights = mask[0].unsqueeze(-1).to(hidden.dtype)
        return (hidden[0] * weights).sum(0) / weights.sum()

    def embed(self, request, cancelled):
        torch, tokenizer, limit = self.torch, self.tokenizer, self.context()
        pooling, normalize = self.pooling(request)
        most = getattr(tokenizer, "model_max_length", None) or UNKNOWN_LENGTH
        limit = min(most, limit or most)
        model = self.model.get_encoder() if getattr(self.model.config, "is_encoder_decoder", False) else self.model
        vectors, tokens, said = [], 0, time.monotonic()
        # One by one: padding would change the vectors a little, and many tokenizers have no token for it.
        for position, text in enumerate(request["texts"]):
            if cancelled.is_set():
                break
            cut = {"truncation": True, "max_length": limit} if request.get("truncate") and limit < UNKNOWN_LENGTH else {}
            inputs = tokenizer(text, return_tensors="pt", **cut)
            inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
            length = inputs["input_ids"].shape[1]
            if length == 0:
                raise Refusal(f"text {position + 1} has no tokens")
            if length > limit:
                raise too_long(length, f"{limit} (`truncate: true` cuts a text; this is number {position + 1})")
            tokens += length
            with torch.inference_mode():
                states = model(**inputs)
                vector = self.vector(states, inputs["attention_mask"], pooling).float()
                if normalize:
                    vector = torch.nn.functional.normalize(vector, dim=0)
            vectors.append(vector.tolist())
            if time.monotonic() - said > 1:
                said = time.monotonic()
                say({"alive": position})
        if any(not math.isfinite(number) for vector in vectors for number in vector):
            raise Refusal("a vector holds a number that is not finite", status=500)
        say({"part": vectors, "usage": {"prompt_tokens": tokens, "completion_tokens": 0}})
        say({"done": {}})


def main(lines):
    try:
        worker = Worker(json.loads(lines.readline())["load"])
    except Refusal as refusal:
        say({"error": refusal.error})
        return
    say({"ready": worker.about()})
    requests = Requests(lines)
    requests.start()
    while True:
        request, cancelled = requests.waiting.get()
        try:
            if "chat" in request:
                worker.chat(request["chat"], cancelled)
            else:
                worker.embed(request["embed"], cancelled)
        except Refusal as refusal:
            say({"error": refusal.error})
        except Exception as error:
            # Whatever it is, the next request may work.
            full = "memory" in str(error).lower()
            say({"error": {"message": f"{type(error).__name__}: {first_words(error)}", "status": 507 if full else 500}})
            if full and worker.torch.cuda.is_available():
                worker.torch.cuda.empty_cache()


main(lines)  # noqa: F821
