"""Check the contents of a .pt2 archive before torch opens it.

`torch.export.load` (as of torch 2.13) can run code from an archive: it unpickles weights and constants marked
"use_pickle", objects among the constants, and example inputs (these even after ``weights_only=True`` has rejected
them); it looks up operators as attributes of ``torch``, such as ``torch.os.system``; sympy evaluates the sizes as
Python; and the trees of inputs and outputs may import any module. A plain model needs none of this: archives that
contain any of it are rejected, and trueloop never writes such an archive.
"""

import ast
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from trueloop.core.errors import CheckpointError
from trueloop.core.json_text import parse_json
from trueloop.core.untrusted_input import safe_repr

MAX_JSON_BYTES: Final = 256 << 20  # largest size of the graph
_MEMBERS: Final = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|data/(weights|constants)/model_(weights|constants)_config\.json"
    r"|models/model\.json|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder"
    r"|\.data/(version|serialization_id)|\.format_version|\.storage_alignment|version|\.data/storage_alignment"
)
_OPERATORS: Final = re.compile(r"torch\.ops\.\w+(\.\w+){1,2}|torch\.sym_\w+|torch\._check\w*|_operator\.\w+|math\.\w+")
_UNSAFE_OPERATORS: Final = frozenset(("_operator.attrgetter", "_operator.methodcaller", "_operator.call"))
_SYMPY_NAMES: Final = frozenset((
    "Integer", "Rational", "Float", "Symbol", "Add", "Mul", "Pow", "Abs", "Max", "Min", "Mod", "PythonMod",
    "ModularIndexing", "FloorDiv", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv", "TruncToInt",
    "TruncToFloat", "FloorToInt", "CeilToInt", "RoundToInt", "RoundDecimal", "ToFloat", "PowByNatural", "FloatPow",
    "LShift", "RShift", "Where", "Identity", "OpaqueUnaryFn_sqrt", "floor", "ceiling", "Not", "And", "Or", "Eq",
    "Ne", "Lt", "Le", "Gt", "Ge", "Equality", "Unequality", "LessThan", "StrictLessThan", "GreaterThan",
    "StrictGreaterThan", "true", "false",
))  # fmt: skip
_SYNTAX_NODES: Final = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.keyword, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare,
    ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


def refuse_code(path: Path) -> None:
    """Check that torch would not unpickle or evaluate anything in an archive.

    Raises:
        CheckpointError: the archive contains something that torch would run; the message names it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _read_members(path, archive)
            for name in ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json"):
                _check_payloads(path, _read_json(path, archive, members, name))
            _check_graph(path, _read_json(path, archive, members, "models/model.json"))
            inputs = members.get("data/sample_inputs/model.pt")
            if inputs is not None and inputs.file_size:
                raise _rejection(path, "example inputs, which are pickled")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise _rejection(path, f"no readable archive ({error})") from error


def _read_members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, without torch's enclosing folder."""
    members = [(info.filename.partition("/")[2], info) for info in archive.infolist()]
    top_folders = {info.filename.partition("/")[0] for _, info in members}
    duplicate = [name for name, count in Counter(name for name, _ in members).items() if count > 1]
    unknown = [name for name, _ in members if not _MEMBERS.fullmatch(name)]
    if len(top_folders) != 1 or duplicate or unknown:
        raise _rejection(path, f"the member {safe_repr((unknown or duplicate or sorted(top_folders))[0])}")
    return dict(members)


def _read_json(path: Path, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> Any:
    info = members.get(name)
    if info is None or info.file_size > MAX_JSON_BYTES:
        raise _rejection(path, f"no {name}, or one that is too large")
    try:
        return parse_json(archive.read(info))
    except ValueError as error:
        raise _rejection(path, f"a {name} that is not JSON") from error


def _check_payloads(path: Path, config: Any) -> None:
    for payload in _walk_mappings(config):
        file = payload.get("path_name")
        if payload.get("use_pickle") or (file is not None and not re.fullmatch(r"(weight|tensor)_\d+", str(file))):
            raise _rejection(path, f"the pickled object {safe_repr(file)}")


def _check_graph(path: Path, graph: Any) -> None:
    for mapping in _walk_mappings(graph):
        expression, target = mapping.get("expr_str"), mapping.get("target")
        if expression is not None and not _is_arithmetic(expression):
            raise _rejection(path, f"the size {safe_repr(expression)}")
        if "inputs" in mapping and target is not None and not _is_allowed_operator(target):
            raise _rejection(path, f"the operator {safe_repr(target)}")
        for value in mapping.values():
            if isinstance(value, str) and "children_spec" in value and not _is_plain_tree(value):
                raise _rejection(path, f"inputs or outputs of another kind: {safe_repr(value)}")


def _is_plain_tree(text: str) -> bool:
    """Return True for tuples, lists and dictionaries of tensors; for other types, torch imports modules by name."""
    try:
        nodes = list(_walk_mappings(parse_json(text)))
    except ValueError:
        return False
    plain = all(node.get("type") in (None, "builtins.tuple", "builtins.list", "builtins.dict") for node in nodes)
    return plain and not any("__enum__" in str(node.get("context")) for node in nodes)


def _is_allowed_operator(target: Any) -> bool:
    return isinstance(target, str) and bool(_OPERATORS.fullmatch(target)) and target not in _UNSAFE_OPERATORS


def _is_arithmetic(expression: Any) -> bool:
    """Return True if sympy may evaluate an expression: arithmetic with integers, symbols and allowed functions."""
    try:
        tree = ast.parse(str(expression), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, _SYNTAX_NODES) and _is_allowed_node(node) for node in ast.walk(tree))


def _is_allowed_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _SYMPY_NAMES or bool(re.fullmatch(r"[a-z]{1,3}\d+", node.id))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _SYMPY_NAMES
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return bool(re.fullmatch(r"[a-z]{1,3}\d+|-?\d+(\.\d*)?(e-?\d+)?", node.value))
    return True


def _walk_mappings(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a tree of JSON."""
    pending = [tree]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            mapping = cast("dict[str, Any]", part)
            yield mapping
            pending.extend(mapping.values())
        elif isinstance(part, list):
            pending.extend(cast("list[Any]", part))


def _rejection(path: Path, content: str) -> CheckpointError:
    return CheckpointError(
        f"{path} was not opened: it contains {content}.",
        why="torch.export.load would unpickle or evaluate it, which can run any code.",
        fix="Export the model again with trueloop export, or open other archives with torch.export.load.",
    )
