"""Calls the function of a `python:` task and stores what it returns.

Started with one argument, a JSON object: {"file", "function", "result", "parameters": [{"name", "from", "as",
"positional", "default"}]}. The job's inputs are in the file that $DECANUS_INPUTS names.
"""

import json
import os
import sys
import types


def fail(text):
    sys.stdout.flush()
    sys.stderr.write(text.rstrip("\n") + "\n")
    sys.stderr.flush()
    sys.exit(1)


def report(error, own):
    """The traceback from the user's first frame on. Its last line is the error."""
    import traceback

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == own:
        frames = frames.tb_next
    fail("".join(traceback.format_exception(type(error), error, frames)))


def load(path):
    """Imports the file under its own name, always from its source."""
    with open(path, "rb") as file:
        source = file.read()
    name = os.path.splitext(os.path.basename(path))[0]
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def convert(value, kind):
    if value is None or kind == "value":
        return value
    from pathlib import Path

    if kind == "path":
        return Path(value)
    if kind == "paths":
        return [Path(item) for item in value]
    with open(value, "rb") as file:  # bytes
        return file.read()


def collect(task, document):
    """The positional and the keyword arguments of the call."""
    positional, keywords = [], {}
    for parameter in task["parameters"]:
        dependency = parameter.get("from")
        if dependency is None:
            value = document["inputs"].get(parameter["name"])
        else:
            found = document["dependencies"][dependency]
            value = found["path"] if parameter["as"] in ("path", "bytes") else found["value"]
            if value is None and parameter["as"] == "value" and os.path.getsize(found["path"]) > 16 << 20:
                fail("ValueError: the result of %s is too large to be passed; annotate `%s` as Path" % (
                    dependency, parameter["name"]))
        if value is None and parameter["default"]:
            if parameter["positional"]:
                break
            continue
        value = convert(value, parameter["as"])
        if parameter["positional"]:
            positional.append(value)
        else:
            keywords[parameter["name"]] = value
    return positional, keywords


def plain(value):
    """What JSON has no word for: paths, dataclasses, sets, numbers and tables of other libraries."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        import dataclasses

        return dataclasses.asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__iter__"):
        return list(value)
    raise TypeError("a %s can't be written as JSON" % type(value).__name__)


def as_json(value):
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain, separators=(",", ":"))


def wrong(value, kind):
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    fail("TypeError: the function returned %s (%s), but the task's result is %s" % (
        type(value).__name__, shown, kind))


def as_text(value, kind):
    if value is None:
        return ""
    if isinstance(value, (dict, list, tuple, set, bytes)):
        wrong(value, kind)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def as_integer(value, kind):
    is_bool = isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    if not is_bool and hasattr(value, "__index__"):
        return str(value.__index__())
    return wrong(value, kind)


def as_float(value, kind):
    if isinstance(value, (str, bytes, bool)) or value is None or not hasattr(value, "__float__"):
        return wrong(value, kind)
    # Whole numbers keep all their digits.
    return str(value) if type(value) is int else repr(float(value))


def as_boolean(value, kind):
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return "true" if value else "false"
    return wrong(value, kind)


def as_list(value, kind):
    if value is None or isinstance(value, (str, bytes, dict)):
        return wrong(value, kind)
    if hasattr(value, "tolist"):
        value = value.tolist()
    try:
        items = list(value)
    except TypeError:
        return wrong(value, kind)
    item = {"integer_array": as_integer, "float_array": as_float, "boolean_array": as_boolean}.get(kind, as_text)
    texts = [item(i, kind) for i in items]
    # A list that would be read back as another one is written as JSON.
    whole = "\n".join(texts)
    if whole.splitlines() != texts or whole.lstrip().startswith("["):
        return as_json(texts)
    return whole


def as_table(value, kind):
    if isinstance(value, str):
        return value
    if hasattr(value, "to_csv"):
        return value.to_csv(sep="\t", index=False)
    if value is None or isinstance(value, (bytes, dict)):
        return wrong(value, kind)
    rows = [row for row in value]
    header = []
    if all(isinstance(row, dict) for row in rows):
        for row in rows:
            header += [key for key in row if key not in header]
        rows = ([header] if header else []) + [[row.get(key) for key in header] for row in rows]
    lines = []
    for row in rows:
        if isinstance(row, (str, bytes)) or not hasattr(row, "__iter__"):
            return wrong(value, "tsv: a list of dicts or of lists")
        cells = ["" if cell is None else str(cell) for cell in row]
        for cell in cells:
            if "\t" in cell or "\n" in cell or "\r" in cell:
                fail("ValueError: a cell of a table can't hold a tab or the end of a line: %r" % cell[:80])
        lines.append("\t".join(cells) + "\n")
    return "".join(lines)


def as_path(value, kind):
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    return wrong(value, kind)


def store(value, kind, path):
    if kind == "binary":
        if not isinstance(value, (bytes, bytearray, memoryview)):
            wrong(value, kind)
        data = bytes(value)
    else:
        writers = {
            "integer": as_integer, "float": as_float, "boolean": as_boolean, "tsv": as_table,
            "file": as_path, "path": as_path, "folder": as_path,
        }
        if kind in ("json", "yaml"):
            text = as_json(value)
        elif kind.endswith("array"):
            text = as_list(value, kind)
        else:
            text = writers.get(kind, as_text)(value, kind)
        data = text.encode("utf-8")
    # Written whole or not at all: a result that is there counts.
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)


def main():
    own = sys._getframe().f_code.co_filename
    task = json.loads(sys.argv[1])
    with open(os.environ["DECANUS_INPUTS"], encoding="utf-8") as file:
        document = json.load(file)
    sys.argv[:] = [task["file"]]
    folder = document["workflow_dir"]
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    sys.path[:0] = [p for p in dict.fromkeys([os.path.dirname(task["file"]), folder, os.path.join(folder, "python")])]
    sys.stdout.reconfigure(line_buffering=True)
    kind, path = task["result"], os.environ["DECANUS_RESULT"]
    try:
        function = getattr(load(task["file"]), task["function"])
        positional, keywords = collect(task, document)
        value = function(*positional, **keywords)
        if hasattr(value, "__await__"):
            import asyncio

            async def wait(awaited):
                return await awaited

            value = asyncio.run(wait(value))
        # A function may also have written the result itself.
        if not (value is None and os.path.lexists(path)):
            store(value, kind, path)
    except SystemExit as error:
        if error.code in (None, 0):
            fail("SystemExit: the function ended the program in place of returning")
        raise
    except Exception as error:
        report(error, own)


main()
