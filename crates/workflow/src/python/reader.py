"""Reads the functions of Python files without running them: hints, defaults and docstrings, by `ast` alone.

Called with paths; prints a JSON list with an object for each: {"functions": [...], "imports": [...]} or
{"error": text, "line": number}. The meaning of what is printed is in python.rs.
"""

import ast
import json
import re
import sys

SCALARS = {
    "str": "string",
    "int": "integer",
    "float": "float",
    "bool": "boolean",
    "bytes": "binary",
    "Path": "file",
    "PurePath": "file",
    "PathLike": "file",
    "dict": "json",
    "Dict": "json",
    "Mapping": "json",
    "MutableMapping": "json",
    "TypedDict": "json",
    "Any": "json",
    "object": "json",
}
LISTS = {"list", "List", "Sequence", "MutableSequence", "Iterable", "Collection", "tuple", "Tuple", "set", "Set"}
ARRAYS = {
    "string": "array",
    "integer": "integer_array",
    "float": "float_array",
    "boolean": "boolean_array",
    "file": "file_array",
}
# Wrappers that say nothing of the type.
PLAIN = {"Final", "ClassVar", "Required", "NotRequired"}


def last_name(node):
    """The last part of `a.b.C`, or None."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return None


def arguments(node):
    """What is in the brackets of a subscript."""
    inner = node.slice
    if type(inner).__name__ == "Index":  # before Python 3.9
        inner = inner.value
    return list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]


def unknown(node):
    return {"unknown": ast.unparse(node)}


def read_hint(node):
    """{"type": ...} with "options", "optional", "description" where they apply, or {"unknown": text}."""
    if isinstance(node, ast.Constant):
        if node.value is None:
            return {"type": "none", "optional": True}
        if isinstance(node.value, str):
            try:
                return read_hint(ast.parse(node.value.strip(), mode="eval").body)
            except SyntaxError:
                return {"unknown": node.value}
        return unknown(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return union(node, [node.left, node.right])
    if isinstance(node, ast.Subscript):
        return subscript(node)
    name = last_name(node)
    if name == "None":
        return {"type": "none", "optional": True}
    if name in SCALARS:
        return {"type": SCALARS[name], "path": name in ("Path", "PurePath", "PathLike")}
    if name in LISTS:
        return {"type": "array"}
    return unknown(node)


def union(node, members):
    optional = False
    hints = []
    for member in members:
        hint = read_hint(member)
        optional = optional or hint.get("optional", False)
        if hint.get("type") != "none":
            hints.append(hint)
    types = [hint.get("type") for hint in hints]
    if not hints:
        return {"type": "none", "optional": True}
    if len(hints) == 1:
        found = hints[0]
    elif all(hint.get("type") == "select" for hint in hints):
        found = {"type": "select", "options": [o for hint in hints for o in hint["options"]]}
    elif set(types) == {"integer", "float"}:
        found = {"type": "float"}
    elif "json" in types and None not in types:
        found = {"type": "json"}
    else:
        return unknown(node)
    return dict(found, optional=True) if optional else found


def subscript(node):
    name = last_name(node.value)
    inner = arguments(node)
    if name == "Optional":
        return dict(read_hint(inner[0]), optional=True)
    if name == "Union":
        return union(node, inner)
    if name == "Annotated":
        found = read_hint(inner[0])
        texts = [a.value for a in inner[1:] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        return dict(found, description=texts[0]) if texts else found
    if name in PLAIN:
        return read_hint(inner[0])
    if name == "Literal":
        try:
            values = [ast.literal_eval(item) for item in inner]
        except ValueError:
            return unknown(node)
        options = [v for v in values if v is not None]
        if not options or not all(isinstance(v, (str, int, float, bool)) for v in options):
            return unknown(node)
        found = {"type": "select", "options": options}
        return dict(found, optional=True) if len(options) < len(values) else found
    if name in ("Dict", "dict", "Mapping", "MutableMapping"):
        return {"type": "json"}
    if name == "PathLike":
        return {"type": "file", "path": True}
    if name in LISTS:
        if name in ("tuple", "Tuple"):
            inner = [i for i in inner if not (isinstance(i, ast.Constant) and i.value is Ellipsis)]
        items = [read_hint(item) for item in inner]
        for item in items:
            if "unknown" in item:
                return unknown(node)
        kinds = {item["type"] for item in items}
        if len(kinds) == 1 and not items[0].get("optional") and items[0]["type"] in ARRAYS:
            return {"type": ARRAYS[items[0]["type"]], "path": items[0].get("path", False)}
        return {"type": "json"}
    return unknown(node)


def read_default(node):
    """{"value": ...} where it can be told without running anything, else {"value": None, "computed": True}."""
    if isinstance(node, ast.Call) and last_name(node.func) in ("Path", "PurePath") and len(node.args) == 1:
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            return {"value": node.args[0].value}
    try:
        value = ast.literal_eval(node)
        value = sorted(value) if isinstance(value, (set, frozenset)) else value
        json.dumps(value, allow_nan=False)
        return {"value": value}
    except (ValueError, TypeError, MemoryError, RecursionError, SyntaxError):
        return {"value": None, "computed": True}


def type_of(value):
    """The hint that a default stands for when there is none."""
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "float"), (str, "string"), (dict, "json")):
        if isinstance(value, kind):
            return {"type": name}
    if isinstance(value, (list, tuple)):
        kinds = {type_of(item).get("type") if type_of(item) else None for item in value}
        kind = kinds.pop() if len(kinds) == 1 else None
        return {"type": ARRAYS.get(kind, "json" if value else "array")}
    return None


def said_type(text):
    """The hint that a docstring's type word stands for, if it is one."""
    words = [w.strip() for w in text.split(",")]
    aliases = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "path": "Path"}
    kinds = [w for w in words if w and w != "optional" and not w.startswith("default")]
    if len(kinds) != 1:
        return None
    try:
        hint = read_hint(ast.parse(aliases.get(kinds[0].lower(), kinds[0]), mode="eval").body)
    except SyntaxError:
        return None
    if hint.get("type") in (None, "none"):
        return None
    return dict(hint, optional=True) if "optional" in words else hint


# Docstrings.

GOOGLE = re.compile(r"^(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters):\s*$")
SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|Returns?|Yields?|Raises|"
    r"Examples?|Notes?|References|See Also|Warnings?|Attributes|Todo|Warns):\s*$"
)
FIELD = re.compile(r"^:(\w+)(?:\s+([^:]*))?:\s*(.*)$")
ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\))?\s*:\s*(.*)$")


def indent(line):
    return len(line) - len(line.lstrip())


def joined(lines):
    """Lines of one paragraph as one text; an empty line stays a paragraph's end."""
    text = "\n".join(line.strip() for line in lines).strip()
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip())


def read_docstring(text):
    """The description, and what is said of each parameter: {name: {"description", "type"}}."""
    lines = text.splitlines()
    about, params, at = [], {}, 0

    def add(name, kind, parts):
        entry = params.setdefault(name, {})
        description = joined(parts)
        if description:
            entry["description"] = description
        if kind:
            entry["type"] = kind.strip()

    def is_rule(index):
        return index < len(lines) and re.match(r"^-{3,}\s*$", lines[index].strip()) is not None

    while at < len(lines):
        line = lines[at]
        bare = line.strip()
        if is_rule(at + 1) and bare:
            # NumPy: a heading that is underlined.
            wanted = bare in ("Parameters", "Other Parameters", "Arguments")
            at += 2
            while at < len(lines) and not (lines[at].strip() and is_rule(at + 1)):
                head = lines[at]
                at += 1
                if not head.strip():
                    continue
                base, parts = indent(head), []
                while at < len(lines) and (not lines[at].strip() or indent(lines[at]) > base):
                    parts.append(lines[at])
                    at += 1
                if wanted:
                    names, _, kind = head.strip().partition(":")
                    for name in names.split(","):
                        add(name.strip().lstrip("*"), kind, parts)
        elif SECTION.match(bare):
            wanted = GOOGLE.match(bare)
            base = indent(line)
            at += 1
            while at < len(lines) and (not lines[at].strip() or indent(lines[at]) > base):
                entry, start = ENTRY.match(lines[at].strip()) if wanted else None, lines[at]
                at += 1
                if not entry:
                    continue
                parts = [entry.group(3)]
                while at < len(lines) and (not lines[at].strip() or indent(lines[at]) > indent(start)):
                    parts.append(lines[at])
                    at += 1
                add(entry.group(1), entry.group(2), parts)
        elif FIELD.match(bare):
            # reStructuredText: `:param type name: text`, `:type name: type`.
            field, argument, rest = FIELD.match(bare).groups()
            base, parts = indent(line), [rest]
            at += 1
            while at < len(lines) and lines[at].strip() and indent(lines[at]) > base:
                parts.append(lines[at])
                at += 1
            words = (argument or "").split()
            if field in ("param", "parameter", "arg", "argument", "key", "keyword") and words:
                add(words[-1].lstrip("*"), " ".join(words[:-1]), parts)
            elif field == "type" and words:
                add(words[-1].lstrip("*"), joined(parts), [])
        else:
            about.append(line)
            at += 1
    paragraphs = re.split(r"\n\s*\n", "\n".join(about).strip())
    return "\n\n".join(p.rstrip() for p in paragraphs if p.strip()), params


def read_parameter(argument, default, said, kind):
    told = said.get(argument.arg, {})
    hint = read_hint(argument.annotation) if argument.annotation is not None else None
    given = read_default(default) if default is not None else None
    if hint is None and "type" in told:
        hint = said_type(told["type"])
    if hint is None and given is not None:
        hint = type_of(given["value"])
    found = {"name": argument.arg, "line": argument.lineno, "kind": kind, "hint": hint or {"type": "string"}}
    description = told.get("description") or found["hint"].get("description")
    if description:
        found["description"] = description
    if given is not None:
        found["default"] = given
    return found


def read_function(node):
    about, said = read_docstring(ast.get_docstring(node) or "")
    listed = node.args
    positional = getattr(listed, "posonlyargs", []) + listed.args
    defaults = [None] * (len(positional) - len(listed.defaults)) + list(listed.defaults)
    params = []
    for at, (argument, default) in enumerate(zip(positional, defaults)):
        kind = "positional" if at < len(getattr(listed, "posonlyargs", [])) else "keyword"
        params.append(read_parameter(argument, default, said, kind))
    for argument, default in zip(listed.kwonlyargs, listed.kw_defaults):
        params.append(read_parameter(argument, default, said, "keyword"))
    found = {"name": node.name, "line": node.lineno, "description": about, "parameters": params,
             "keywords": listed.kwarg is not None}
    if node.returns is not None:
        found["returns"] = dict(read_hint(node.returns), line=node.returns.lineno)
    return found


def read_imports(tree):
    """Every module that an import statement anywhere may mean, as [level, dotted name]."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [[0, alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found.append([node.level, base])
            found += [[node.level, base + "." + a.name if base else a.name] for a in node.names if a.name != "*"]
    return sorted({(level, name) for level, name in found if name})


def definitions(body):
    """The functions of a module, also those within `if` and `try`."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                for found in definitions(getattr(node, part, [])):
                    yield found
            for handler in getattr(node, "handlers", []):
                for found in definitions(handler.body):
                    yield found


def read_file(path):
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(), path)
        # The last definition of a name is the one that counts.
        functions = {node.name: read_function(node) for node in definitions(tree.body)}
        return {"functions": list(functions.values()), "imports": read_imports(tree)}
    except SyntaxError as error:
        return {"error": error.msg, "line": error.lineno or 1}
    except (ValueError, RecursionError, MemoryError, OSError) as error:
        return {"error": str(error) or type(error).__name__, "line": 1}


if __name__ == "__main__":
    json.dump([read_file(path) for path in sys.argv[1:]], sys.stdout)
