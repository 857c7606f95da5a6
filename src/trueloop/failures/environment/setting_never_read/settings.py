"""Finds the hyper-parameters that a program configures, and those that nothing in it reads."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trueloop.analysis.interpreter.qualified_names import HARMLESS_PACKAGES
from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.command_line_options import PARSING
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

_KINDS: Final = {
    "lr": r"(base_|init(ial)?_|max_)?lr|l_?rate|(base_|initial_)?learning_?rate",
    "weight_decay": r"weight_?decay|wd|l2_reg",
    "momentum": r"momentum",
    "dropout": r"drop_?out(_rate|_p|_prob|_probability)?|p_drop(out)?|drop_rate",
    "batch_size": r"(train_)?batch_?size|(train_)?bs",
    "epochs": r"(num_|n_|max_|total_)?n?epochs",
    "max_norm": r"(max_)?(grad(ient)?_)?clip(ping)?(_(grad(ient)?|norm|value|grad_norm|val))?|max_(grad_)?norm",
    "warmup": r"(num_|n_|lr_)?warm_?up(_(steps|epochs|iters|ratio|updates))?",
    "seed": r"(random_|manual_)?seed",
    "label_smoothing": r"(label_)?smoothing",
    "patience": r"(early_stop(ping)?_|lr_)?patience",
    "hidden": r"(n_|num_|d_)?hidden(_(size|dim|units|channels|features))?|d_model|emb(ed)?(ding)?_(size|dim)",
    "num_layers": r"(num_|n_)n?layers|nlayers",
    "accumulation": r"(grad(ient)?_)?acc(um(ulation|ulate)?)?_steps|accumulate_grad_batches",
    "gamma": r"gamma|lr_gamma|lr_decay",
    "step_size": r"(lr_)?step_size|lr_step",
    "weight": r"(\w+_)?(alpha|beta|lambda|coef|coeff|temperature|tau|margin)|(lambda|alpha|beta)_\w+|\w*loss_weight",
}
_NAMES: Final = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _KINDS.items()}
_HARMLESS: Final = re.compile(
    r"_.*|\w*(rank|world|node|[cg]pu|worker|thread|device|cuda|host|port|addr|url|print|verb|debug|log|version|help)\w*|"
    r"\w*(comment|note|prefix|cache|download|pin_?mem)\w*|"
    r"(dist|ddp|kernel|jupyter|wandb|slurm|aws|azure)\w*|f|\w*(name|desc|tag|author|project|entity|title)|mode|config|yes",
    re.IGNORECASE,
)
"""Options without which the program trains the same, or which a launcher passes."""
_KEPT: Final = re.compile(
    r"deprecat|un-?used|not (yet )?(used|implemented|supported)|ignor|obsolete|legacy|dummy|compat|reserved|todo|"
    r"no effect|jupyter|notebook|ipython",  # whose kernels pass "-f file"
    re.IGNORECASE,
)
_CONFIG: Final = re.compile(r"conf|cfg|arg|param|opt|setting|hyper|^hps?$", re.IGNORECASE)
_OBJECTS: Final = frozenset((
    "SimpleNamespace", "Namespace", "dict", "EasyDict", "edict", "AttrDict", "DotDict", "Munch", "Box",
))  # fmt: skip
_SHOWING: Final = frozenset((
    "print", "pprint", "log", "info", "debug", "warning", "write", "format", "dump", "dumps", "save", "save_yaml",
    "str", "repr", "init", "add_text", "add_hparams", "log_params", "log_hyperparams", "type", "len", "isinstance",
))  # fmt: skip
_COPYING: Final = frozenset(("", "vars", "asdict", "items", "sorted", "copy", "to_dict", "deepcopy"))
_ALL_NAMES: Final = frozenset(("globals", "locals", "vars", "exec", "eval"))
_RECORDS: Final = re.compile(r"group|state|ckpt|checkpoint|hist|metric|log|result|defaults", re.IGNORECASE)
_PLAIN_BASES: Final = frozenset(
    ("object", "ABC", "BaseModel", "NamedTuple")
)  # others may read the fields of a subclass
_MODULES: Final = frozenset(("Module", "object", "ABC", "LightningModule"))


class Setting(NamedTuple):
    """A hyper-parameter of a program."""

    node: Any
    """The option, field, item, assignment or parameter."""
    kind: str
    name: str
    shown: str
    value: ast.expr | None = None
    """Its default, if that is known."""
    is_option: bool = False
    """Whether a user of the program gives the value."""
    is_parameter: bool = False
    scope: Any = None
    """The function or class that should read a parameter; None for the whole program."""
    holder: str = ""
    """The variable that holds an item; "" for others."""


@lru_cache(maxsize=4096)  # most names of a program occur many times
def kind_of(name: str) -> str:
    """Return the kind of hyper-parameter that a name stands for: "lr" for "learning_rate"; "" for other names."""
    return next((kind for kind, pattern in _NAMES.items() if pattern.fullmatch(name)), "")


def unread_settings(source: SourceFile) -> Iterator[Setting]:
    """Yield each hyper-parameter that nothing reads."""
    called = {last_name(each.func) for each in source.all_calls}
    for settings, objects in _configurations(source):
        chosen = [each for each in settings if each.kind]
        reads = _reads(source, objects) if chosen and objects else None
        unread = [each for each in chosen if reads is not None and each.name not in reads]
        yield from (each for each in unread if not _is_read_elsewhere(source, each))
    if called.isdisjoint(_ALL_NAMES - {"vars", "eval"}):
        yield from _unread_constants(source)
        yield from _unread_parameters(source)


def _is_read_elsewhere(source: SourceFile, setting: Setting) -> bool:
    """Return True if a file that the program does not run may read a field, or the variable that holds an item.

    A file that parses its own command line reads an option only if it names the file of the option.
    """
    if setting.is_option:
        path = source.module_of(setting.node.lineno).path.replace("\\", "/")
        own = re.compile(rf"\b{re.escape(path.rpartition('/')[2].removesuffix('.py'))}\b")
        read = re.compile(rf"[.'\"]{re.escape(setting.name)}\b(?!\()")

        def may_read(text: str) -> bool:
            return read.search(text) is not None and ("parse_args(" not in text or own.search(text) is not None)

        return source.is_in_other_file(may_read)
    return any(source.is_in_other_file(f".{each}") for each in (setting.name, setting.holder) if each)


# Configuration objects -----------------------------------------------------------------------------------------------


def _configurations(source: SourceFile) -> Iterator[tuple[list[Setting], list[ast.expr]]]:
    """Yield the settings of each kind of configuration object, and the expressions that create the object."""
    calls = source.all_calls
    options = [each for each in calls if last_name(each.func) == "add_argument" and not _is_trial(source, each)]
    if options:
        yield list(_options(options)), [each for each in calls if last_name(each.func) in PARSING]
    for each in source.nodes_of(ast.ClassDef):
        fields = list(_fields(each))
        if fields and {last_name(base) for base in each.bases} <= _PLAIN_BASES | definitions(source).classes.keys():
            names = [node for node in source.nodes_of(ast.Name) if node.id == each.name]
            yield fields, [*(created for node in names for created in _created(source, node))]
    for each in source.nodes_of(ast.Assign):
        target = last_name(each.targets[0])
        if len(each.targets) == 1 and _CONFIG.search(target):
            items = list(_items(each.value, target))
            yield items, [each.value]


def _options(calls: Iterable[ast.Call]) -> Iterator[Setting]:
    for call in calls:
        flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        keywords = {each.arg: each.value for each in call.keywords}
        flag = next((each for each in flags if each.startswith("--")), flags[0] if flags else "")
        dest = keywords.get("dest")
        name = dest.value if isinstance(dest, ast.Constant) else flag.lstrip("-").replace("-", "_")
        hidden = "SUPPRESS" in ast.unparse(keywords["help"]) if "help" in keywords else False
        if isinstance(name, str) and not hidden:
            kind = kind_of(name) or ("" if _is_harmless(name, call) else "option")
            yield Setting(call, kind, name, flag, keywords.get("default"), is_option=True)


def _is_harmless(name: str, call: ast.Call) -> bool:
    """Return True for an option that does not change what is trained, or that the program keeps for others."""
    is_text = any(each.arg == "help" and _KEPT.search(ast.unparse(each.value)) for each in call.keywords)
    return is_text or not name or _HARMLESS.fullmatch(name) is not None


def _fields(definition: ast.ClassDef) -> Iterator[Setting]:
    """Yield the fields of a dataclass, or of a class that is called a configuration."""
    is_data = any("dataclass" in ast.unparse(each) or "attr" in ast.unparse(each) for each in definition.decorator_list)
    is_config = bool(_CONFIG.search(definition.name)) and not definition.name.endswith("Parser")
    if not (is_data or is_config) or any(last_name(each) in ("Module", "Optimizer") for each in definition.bases):
        return
    init = [e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == "__init__" and is_config]
    own = [each for one in init for each in one.body if len(one.args.args) == 1]
    for each in (*definition.body, *own):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None or is_config:
                pass
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
                pass
            case _:
                continue
        yield Setting(each, kind_of(name), name, f"{definition.name}.{name}", value)


def _items(value: ast.expr, target: str) -> Iterator[Setting]:
    """Yield the items of a dictionary or namespace that is assigned to a variable."""
    if isinstance(value, ast.Call) and last_name(value.func) in _OBJECTS:
        for each in value.keywords:
            if each.arg:
                yield Setting(
                    each.value, kind_of(each.arg), each.arg, f"{target}: {each.arg}", each.value, holder=target
                )
        value = value.args[0] if len(value.args) == 1 else value
    for key, item in zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ():
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            name = key.value.replace("-", "_")
            kind = "" if isinstance(item, ast.Dict) else kind_of(name)
            yield Setting(key, kind, key.value, f"{target}[{key.value!r}]", item, holder=target)


def _created(source: SourceFile, node: ast.Name) -> Iterator[ast.expr]:
    """Yield the expression that has an instance of a class, for one mention of the class."""
    parent: Any = source.parents.get(id(node))
    if isinstance(parent, ast.Call) and parent.func is node:
        yield parent
    elif isinstance(parent, ast.arg | ast.AnnAssign) and parent.annotation is node:
        yield parent  # type: ignore[misc]
    elif not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        while isinstance(parent, ast.Tuple | ast.List):
            parent = source.parents.get(id(parent))
        is_factory = isinstance(parent, ast.Call) and all(each is not node for each in parent.args)
        yield node if is_factory or not isinstance(parent, ast.Call) else parent


def _reads(source: SourceFile, objects: list[ast.expr]) -> set[str] | None:
    """Return the names that are read from objects; None if one of them goes, as a whole, where this is not visible."""
    found = {
        each.attr
        for each in source.nodes_of(ast.Attribute)
        if isinstance(each.ctx, ast.Load)
        and not (isinstance(each.value, ast.Name) and each.value.id in ("self", "cls") and _is_plain(source, each))
        and not source.qualified_name(each).startswith("torch.")
        and not (each.attr == "seed" and getattr(source.parents.get(id(each)), "func", None) is each)
    }
    found -= {each for each in found if _is_only_copied(source, each)}
    for each in source.nodes_of(ast.Subscript):
        if isinstance(each.slice, ast.Constant) and isinstance(each.ctx, ast.Load):
            found |= {str(each.slice.value)} if not _RECORDS.search(last_name(each.value)) else set()
    loads = [each for each in source.nodes_of(ast.Name, ast.Attribute) if isinstance(each.ctx, ast.Load)]
    renamed = {one.name for each in source.nodes_of(ast.ImportFrom) for one in each.names if one.asname}
    queue = list[Any](objects)
    seen = set[str | int](map(id, queue))
    for node in queue:
        if isinstance(node, ast.arg | ast.AnnAssign):
            passed: list[Any] | None = [node.arg if isinstance(node, ast.arg) else last_name(node.target)]
        else:
            passed = _passed_on(source, node, found)
        if passed is None or any(each in renamed for each in passed if isinstance(each, str)):
            return None
        names = {each for each in passed if isinstance(each, str)} - seen
        seen |= names
        mentions = [e for e in loads if last_name(e) in names and not _is_variadic(source, e)] if names else []
        mentions = [each for each in mentions if not _is_trial(source, each)]
        for each in (*mentions, *(each for each in passed if not isinstance(each, str))):
            if id(each) not in seen:
                seen.add(id(each))
                queue.append(each)
    return found


def _is_only_copied(source: SourceFile, name: str) -> bool:
    """Return True for ``self.beta = args.beta`` if this, and perhaps a message, is all that reads ``beta``."""
    copies = 0
    for each in definitions(source).attributes.get(name, []):
        match source.parents.get(id(each)):
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr) as target], value=value) if (
                attr == name
            ):
                copies += value is each
                if value is not each and target is not each:
                    return False
            case _:
                if not _is_shown(source, each):
                    return False
    texts = [each for each in source.nodes_of(ast.Constant) if each.value == name] if copies else []
    return copies > 0 and all(_is_shown(source, each) for each in texts) and not source.is_in_other_file(f".{name}")


def _is_trial(source: SourceFile, node: Any) -> bool:
    """Return True for code that an imported file only runs when it is started itself."""
    if source.module_of(node.lineno) is source.modules[0]:
        return False
    around = [each.test for each in enclosing_nodes(source, node) if isinstance(each, ast.If)]
    return any("__name__" in ast.unparse(each) for each in around)


def unparsed_parsers(source: SourceFile) -> Iterator[ast.Assign]:
    """Yield each parser of a script that gets options, and that nothing asks for their values."""
    calls = definitions(source).calls
    if any(each in calls for each in PARSING):
        return
    for statement in source.nodes_of(ast.Assign):
        name = last_name(statement.targets[0])
        if not isinstance(statement.value, ast.Call) or last_name(statement.value.func) != "ArgumentParser":
            continue
        uses = [e for e in source.nodes_of(ast.Name) if e.id == name and isinstance(e.ctx, ast.Load)]
        owners = [source.parents.get(id(each)) for each in uses]
        is_plain = all(isinstance(each, ast.Attribute) and each.attr == "add_argument" for each in owners)
        if uses and is_plain and not source.is_in_other_file("parse_"):
            yield statement


def _is_plain(source: SourceFile, attribute: ast.AST) -> bool:
    """Return False in a method of a configuration class."""
    node = source.parents.get(id(attribute))
    while node is not None and not isinstance(node, ast.ClassDef):
        node = source.parents.get(id(node))
    return node is None or not list(_fields(node))


def _is_variadic(source: SourceFile, node: Any) -> bool:
    """Return True for the ``args`` of ``def f(*args)``."""
    arguments = getattr(function_of(source, node), "args", None)
    names = [each.arg for each in (arguments.vararg, arguments.kwarg) if each] if arguments is not None else []
    return isinstance(node, ast.Name) and node.id in names


def _passed_on(source: SourceFile, node: Any, found: set[str]) -> list[Any] | None:
    """Return the variables and expressions that get an object; None if it goes elsewhere. Adds the names it reads."""
    parent: Any = source.parents.get(id(node))
    passed: list[Any] | None = []
    match parent:
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            passed = [last_name(target)]
        case ast.Assign(targets=targets):
            parts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in targets]
            passed = [last_name(each) for each in parts]
            passed = passed if all(passed) and not any(isinstance(each, ast.Subscript) for each in parts) else None
        case ast.Return():
            name = getattr(function_of(source, node), "name", "")
            passed = list(definitions(source).calls.get(name, [])) if name in definitions(source).functions else None
        case ast.IfExp() | ast.BoolOp():
            passed = [parent]
        case ast.Dict(keys=keys, values=values):
            key = keys[next(number for number, each in enumerate(values) if each is node)] if node in values else None
            passed = _kept_under(source, key)
        case ast.Attribute():
            passed = [] if _is_item(source, parent, found) or _is_shown(source, parent) else None
        case ast.Subscript(slice=key):
            passed = [] if isinstance(key, ast.Constant) and parent.value is node else None
        case ast.Expr() | ast.FormattedValue() | ast.Compare():
            pass
        case _:
            passed = [] if _is_shown(source, node) else _argument(source, node, parent, found)
    return passed


def _kept_under(source: SourceFile, key: ast.expr | None) -> list[Any] | None:
    """Return the expressions that read what a dictionary, such as a checkpoint, has under a key; None if unknown."""
    if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
        return None
    reads = [each for each in source.nodes_of(ast.Subscript) if getattr(each.slice, "value", None) == key.value]
    return [each for each in reads if isinstance(each.ctx, ast.Load)]


def _is_item(source: SourceFile, attribute: ast.Attribute, found: set[str]) -> bool:
    """Return True for ``config.lr`` and ``config.get("lr")``. Adds the name that the latter reads."""
    call, name = source.parents.get(id(attribute)), attribute.attr
    if not isinstance(call, ast.Call) or call.func is not attribute:
        return not name.startswith("_")
    if name in ("get", "pop", "setdefault") and call.args and isinstance(call.args[0], ast.Constant):
        found.add(str(call.args[0].value))
        return True
    return not name.startswith("_") and name not in ("items", "values", "keys", "copy", "update")


def _argument(source: SourceFile, node: Any, parent: Any, found: set[str]) -> list[Any] | None:
    """Return the parameter or object that gets an argument; None if the called function is unknown."""
    keyword = parent.arg if isinstance(parent, ast.keyword) else ""
    call: Any = source.parents.get(id(parent)) if keyword else parent
    if not isinstance(call, ast.Call) or keyword is None:
        return None
    name = last_name(call.func)
    if name in ("getattr", "hasattr", "setattr") and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
        found |= {str(call.args[1].value)} if name == "getattr" else set()
        return []
    if name in _OBJECTS:
        return [call]
    function = called_function(source, call)
    if function is None or any(function.name == each for each in ("wrap", "wrapper")):
        return None
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    position = next((number for number, each in enumerate(call.args) if each is node), len(names))
    passed = keyword or (names[position] if position < len(names) else "")
    known = {each.arg for each in nodes_in(function.args, ast.arg)}
    return [passed] if passed in known else None


def _is_shown(source: SourceFile, node: ast.AST) -> bool:
    """Return True if an object is only printed, logged or saved."""
    parent: Any = source.parents.get(id(node))
    while parent is not None and not isinstance(parent, ast.stmt):
        name = last_name(parent.func) if isinstance(parent, ast.Call) else ""
        if name in _SHOWING:
            of_run = any(
                last_name(each.value) in ("wandb", "run") for each in definitions(source).attributes.get("config", ())
            )
            return name != "init" or not of_run
        if name not in _COPYING:
            return False
        parent = source.parents.get(id(parent))
    return isinstance(parent, ast.For) and all(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and last_name(each.value.func) in _SHOWING
        for each in parent.body
    )


# Constants and parameters --------------------------------------------------------------------------------------------


def _unread_constants(source: SourceFile) -> Iterator[Setting]:
    """Yield each number that is assigned to a variable which nothing reads, the first of each name."""
    seen = set[str]()
    attributes = {each.attr for each in source.nodes_of(ast.Attribute) if isinstance(each.ctx, ast.Load)}
    texts = {each.value for each in source.nodes_of(ast.Constant) if isinstance(each.value, str)}
    aliases = {one.name for each in source.nodes_of(ast.ImportFrom) for one in each.names if one.asname}
    loads = {each.id for each in source.nodes_of(ast.Name) if isinstance(each.ctx, ast.Load)}
    for statement in source.nodes_of(ast.Assign):
        for target, value in assigned_pairs(statement):
            if not isinstance(target, ast.Name) or target.id in seen or not (kind := kind_of(target.id)):
                continue
            owner = function_of(source, statement)
            is_top = isinstance(owner, ast.Module)
            if is_top and isinstance(source.parents.get(id(statement)), ast.ClassDef):
                continue
            seen.add(target.id)
            used = loads | attributes | texts | aliases
            if not _is_number(value) or target.id in used or kind == "weight":
                continue
            is_followed = source.notebook or (len(source.modules) > 1 and not source.is_in_other_file(target.id))
            if not is_top or is_followed or _is_closed(source):
                yield Setting(statement, kind, target.id, target.id, value)


def _is_closed(source: SourceFile) -> bool:
    """Return True if the program is one file or imports only libraries besides its own files."""
    own = {each.path.replace("\\", "/").removesuffix(".py").rpartition("/")[2] for each in source.modules}
    imported = [each.names[0].name for each in source.nodes_of(ast.Import)]
    imported += ["." if each.level else each.module or "" for each in source.nodes_of(ast.ImportFrom)]
    return all(each.partition(".")[0] in HARMLESS_PACKAGES | own or each.rpartition(".")[2] in own for each in imported)


def _is_number(node: ast.expr) -> bool:
    parts = list(nodes_in(node, ast.expr))
    return all(isinstance(each, ast.Constant | ast.BinOp | ast.UnaryOp) for each in parts) and any(
        isinstance(each, ast.Constant) and type(each.value) in (int, float) for each in parts
    )


def _unread_parameters(source: SourceFile) -> Iterator[Setting]:
    """Yield each parameter for a hyper-parameter that its function does not read."""
    for function in source.nodes_of(ast.FunctionDef):
        parameters = (*function.args.args, *function.args.kwonlyargs)
        chosen = [(each, kind) for each in parameters if (kind := kind_of(each.arg)) and kind != "weight"]
        around = source.parents.get(id(function))
        owner: Any = around if isinstance(around, ast.ClassDef) else None
        is_free = owner is None or (function.name == "__init__" and {last_name(e) for e in owner.bases} <= _MODULES)
        if not chosen or not is_free or len(function.body) < 2:
            continue
        names = {each.id for each in nodes_in(function, ast.Name)}
        options = {
            str(argument.value).lstrip("-").replace("-", "_")
            for each in function.decorator_list
            if isinstance(each, ast.Call) and last_name(each.func) == "option"
            for argument in each.args
            if isinstance(argument, ast.Constant)
        }
        for parameter, kind in chosen:
            if parameter.arg not in names and (options or not function.decorator_list):
                is_option = parameter.arg in options
                scope = None if is_option else owner or function
                yield Setting(parameter, kind, parameter.arg, parameter.arg, None, is_option, not is_option, scope)
