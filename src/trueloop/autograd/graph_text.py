"""Format a graph as text: saved memory and its holders, unreached parameters, and the tree of operations."""

from collections.abc import Iterator, Sequence
from typing import Final

from trueloop.autograd.backward_graph import node_depths
from trueloop.autograd.graph import Graph, Node, SavedTensor
from trueloop.core.formatting import format_count, format_percent, format_size, replace_unprintable
from trueloop.core.name_patterns import format_names

LARGEST: Final = 10  # number of storages to list


def node_title(node: Node) -> str:
    """Return the title of a node: the parameter of a leaf, or an operation's torch name and module."""
    if node.leaf:
        return node.tensor_name or "a leaf without a name"
    tensor = node.tensor_name and f"= {node.tensor_name}"
    return "  ".join(filter(None, (node.name, tensor, node.module and f"in {node.module}")))


def overview_lines(graph: Graph) -> Iterator[str]:
    """Yield the size of the graph, and the memory that only it keeps alive."""
    operations = sum(not node.leaf for node in graph.nodes)
    more = " and more" if graph.cut else ""
    leaves = len(graph.nodes) - operations
    yield f"{format_count(operations, 'operation')}{more}, {leaves} {'leaf' if leaves == 1 else 'leaves'}"
    if graph.released:
        yield "backward has already run: the saved tensors are freed"
    total = sum(each.size_b for each in graph.memories)
    yield f"saved for backward: {format_size(total)}, of which {format_size(graph.graph_only_b)} only by this graph"
    if graph.hooked:
        yield f"{format_count(graph.hooked, 'tensor')} packed by hooks (checkpointing, offloading), not counted here"
    reached = "every parameter that requires a gradient is reached"
    yield f"never reached by this loss: {format_names(graph.unreachable)}" if graph.unreachable else reached
    if graph.frozen:
        yield f"frozen: {format_names(graph.frozen)}"


def largest_storage_lines(graph: Graph) -> Iterator[str]:
    """Yield the largest storages with all their holders."""
    total = sum(each.size_b for each in graph.memories)
    for memory in graph.memories[:LARGEST]:
        holders = [f"{graph.nodes[index].name} {index} ({name})" for index, name in memory.holders]
        owner = f"{memory.owner}, which stays; " if memory.owner else ""
        share = format_percent(memory.size_b / total if total else 0)
        yield f"{format_size(memory.size_b):>10}  {share:>6}  {owner}{format_names(holders)}"
    others = graph.memories[LARGEST:]
    if others:
        yield f"{format_size(sum(each.size_b for each in others)):>10}  in {len(others)} more"


def module_lines(graph: Graph) -> Iterator[str]:
    """Yield the memory that only the operations of each module hold, the largest first; shared memory counts once."""
    sums: dict[str, int] = {}
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if not node.leaf:
            counts[node.module] = counts.get(node.module, 0) + 1
    for memory in graph.memories:
        module = graph.nodes[memory.holders[0][0]].module
        sums[module] = sums.get(module, 0) + (0 if memory.owner else memory.size_b)
    for module in sorted(counts, key=lambda module: -sums.get(module, 0)):
        name = module or "outside the modules"
        count = format_count(counts[module], "operation")
        yield f"{format_size(sums.get(module, 0)):>10}  {replace_unprintable(name)} ({count})"


def tree(graph: Graph) -> Iterator[str]:
    """Yield the numbered operations, starting at the loss; side branches are indented, the longest path is not.

    A node with several parents is printed below the last of them; below the others its number is printed.
    """
    children = _children(graph)
    heights = _heights(graph, children)
    unvisited_parents = [0] * len(graph.nodes)
    for _parent, child in graph.edges:
        unvisited_parents[child] += 1
    stack: list[tuple[int, str, bool]] = [(0, "", True)]  # node, margin, whether to print more than a reference
    while stack:
        index, margin, with_details = stack.pop()
        node = graph.nodes[index]
        if not with_details:
            yield f"{margin}-> {index} {replace_unprintable(node_title(node))}"
            continue
        yield f"{margin}{index} {replace_unprintable(node_title(node))}"
        yield from (f"{margin}    {_describe_saved(tensor, graph)}" for tensor in node.saved)
        ready: list[int] = []
        referenced: list[int] = []
        for child in children[index]:
            unvisited_parents[child] -= 1
            (referenced if unvisited_parents[child] else ready).append(child)
        ready.sort(key=lambda child: -heights[child])
        stack.extend((child, margin if not rank else f"{margin}| ", True) for rank, child in enumerate(ready))
        stack.extend((child, f"{margin}| ", False) for child in reversed(referenced))


def _describe_saved(tensor: SavedTensor, graph: Graph) -> str:
    if tensor.state != "kept" or tensor.memory is None:
        return f"{tensor.name}: {'freed' if tensor.state == 'freed' else 'packed by a hook'}"
    memory = graph.memories[tensor.memory]
    shape = " × ".join(map(str, tensor.shape)) or "scalar"  # noqa: RUF001 - the multiplication sign
    others = len(memory.holders) - 1
    holder = memory.owner or (f"also held by {format_count(others, 'other')}" if others else "held by nothing else")
    return f"keeps {tensor.name}: {shape} {tensor.dtype}, {format_size(memory.size_b)}, {replace_unprintable(holder)}"


def _children(graph: Graph) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in graph.nodes]
    for parent, child in graph.edges:
        children[parent].append(child)
    return children


def _heights(graph: Graph, children: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of edges of the longest path from each node to a leaf."""
    node_depth = node_depths(len(graph.nodes), graph.edges)
    heights = [0] * len(children)
    for index in sorted(range(len(children)), key=lambda index: -node_depth[index]):
        heights[index] = max((heights[child] + 1 for child in children[index]), default=0)
    return heights
