"""`trueloop graph SPEC`: print the autograd graph of a loss and the memory that it keeps."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trueloop.app.output_file import check_writable, write_output
from trueloop.app.training.recipe_settings import Setting, apply_overrides
from trueloop.cli.recipe_help import print_recipe_help
from trueloop.cli.recipe_line import flag, load_named_recipe, settings_app
from trueloop.core.errors import InvalidConfig
from trueloop.recipes import registry

MAX_LINES = 60  # maximum number of nodes that are printed without --tree
FLAGS = (
    flag("tree", bool, False, f"Print every node, even if there are more than {MAX_LINES}."),
    flag("svg", Path | None, None, "Write a picture of the graph to this .svg file."),
    flag("config", Path | None, None, "TOML file of settings; flags override the file."),
    flag("json", bool, False, "Print one JSON object instead of the page."),
)


def graph_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Run the forward pass of one batch of a recipe, and print the autograd graph of its loss."""
    if print_recipe_help(
        tokens,
        "graph",
        "Show the autograd graph of a loss: what it saves for backward, and which parameters it does not reach.",
        FLAGS,
        "The command runs the forward pass of one batch and trains nothing.",
        "FILE.py:FUNCTION may also return a ProofTarget with a loss and a batch, as for `trueloop verify`.",
    ):
        return 0
    spec, built, options = load_named_recipe(tokens, "graph", registry.build_from_spec)
    from trueloop.recipes.recipe import Recipe  # imports torch, as `build_from_spec` already did

    recipe = built if isinstance(built, Recipe) else None

    def run(flags: dict[str, Any], overrides: dict[str, Any], settings: Mapping[str, Setting]) -> int:
        from trueloop.app.graph import graph_of, graph_of_target
        from trueloop.autograd.graph_svg import picture
        from trueloop.cli.configfile import read_config
        from trueloop.verification.proof_target import ProofTarget

        svg: Path | None = flags["svg"]
        if svg is not None and check_writable(svg, "picture").suffix != ".svg":
            raise InvalidConfig(f"A picture cannot be written to {str(svg)!r}.", fix="Pass the name of a .svg file.")
        if recipe is None and flags["config"]:
            raise InvalidConfig(f"{spec} returns no Recipe, so it has no settings.", fix="Leave out --config.")
        from_file = read_config(flags["config"], settings) if flags["config"] else {}
        graph = (
            graph_of(apply_overrides(recipe, {**from_file, **overrides}))
            if recipe
            else graph_of_target(ProofTarget.from_user(built))
        )
        if svg is not None:
            write_output(svg, picture(graph), "picture")
        if flags["json"]:
            print(json.dumps({**asdict(graph), "graph_only_b": graph.graph_only_b, "svg": str(svg) if svg else None}))
        else:
            _print_graph(
                recipe.name if recipe else spec, graph, svg, print_tree=flags["tree"] or len(graph.nodes) <= MAX_LINES
            )
        return 0

    return settings_app(f"trueloop graph {spec}", recipe, FLAGS, run)(options, exit_on_error=False, print_error=False)


def _print_graph(name: str, graph: Any, svg: Path | None, *, print_tree: bool) -> None:
    from trueloop.autograd.graph_text import largest_storage_lines, module_lines, overview_lines, tree

    def print_section(title: str, lines: Iterable[str]) -> None:
        print(title, *(f"  {line}" for line in lines), sep="\n")

    print_section(f"Autograd graph of the loss of {name}, for one micro-batch:", overview_lines(graph))
    print_section("\nMemory that only the graph keeps alive, by module:", module_lines(graph))
    print_section("\nThe largest saved tensors, and what holds them:", largest_storage_lines(graph))
    if print_tree:
        print_section("\nNodes, from the loss down:", tree(graph))
    else:
        print(f"\n--tree prints all {len(graph.nodes)} nodes, --svg FILE.svg draws them.")
    if svg is not None:
        print(f"\nPicture: {svg}")
