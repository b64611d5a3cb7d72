"""The systems that train: plain push and pull, and each of Parameter Flow's techniques put to it in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from penstock_bench.flow.tasks import Filters, Task

BROADCAST = ["--propagation", "broadcast"]


@dataclass(frozen=True)
class System:
    """A way to train."""

    name: str
    about: str
    arguments: Callable[[Task], list[str]] = lambda _: []
    """What it adds to the task's own for the script."""
    filtered: bool = False
    """Whether it sends little of each chunk, so that the task's size of a chunk is for it."""
    tree: bool = False
    """Whether workers pass values on."""

    def environment(self, task: Task) -> dict[str, str]:
        """Of servers and workers."""
        chunk = {"PENSTOCK_CHUNK_BYTES": task.chunk} if self.filtered else {}
        return {**chunk, **({"PENSTOCK_TREE": "auto"} if self.tree else {})}

    def missing(self, task: Task) -> str | None:
        """Why it cannot train this task here."""
        if self.name == "sparse" and not task.sparse:
            return f"gradients of {task.name} are dense"
        if (self.name == GLOO or task.name == "cnn") and not find_spec("torch"):
            return "torch is not installed (pip install torch)"
        return None


PLAIN, SPARSE, TUNED, GLOO = "plain", "sparse", "ucc+tuned", "gloo"

SYSTEMS = {
    system.name: system
    for system in (
        System(PLAIN, "dense pushes, and pulls of the whole value"),
        System(SPARSE, "sparse pushes, and pulls of what has changed", lambda _: ["--sparse"]),
        System("filters", "plain, with the task's filters", lambda task: task.tuned.arguments, filtered=True),
        System("ucc", "values are broadcast", lambda _: BROADCAST),
        System("ucc+tree", "and workers pass them on", lambda _: BROADCAST, tree=True),
        System("ucc+low", "and DVF, low", lambda task: [*BROADCAST, *task.low.arguments], filtered=True),
        System("ucc+up", "and DVF, up", lambda task: [*BROADCAST, *task.up.arguments], filtered=True),
        System(
            "ucc+dynamic",
            "and DVF between low and up, as the network asks",
            lambda task: [*BROADCAST, *task.dynamic.arguments],
            filtered=True,
        ),
        System(
            TUNED,
            "and the task's filters",
            lambda task: [*BROADCAST, *task.tuned.arguments],
            filtered=True,
        ),
        System(
            "ucc+tuned+tree",
            "and both",
            lambda task: [*BROADCAST, *task.tuned.arguments],
            filtered=True,
            tree=True,
        ),
        System(GLOO, "all-reduces of dense gradients, and SGD on each worker"),
    )
}
"""By name, in the order of the table."""
SHORT = (PLAIN, SPARSE, "ucc", TUNED, GLOO)
"""What is measured unless the user says."""


def own(filters: str) -> str:
    """
    The name of a system of the user's own: values are broadcast, with these filters, `PUSH/BROADCAST`.

    Raises
    ------
    ValueError
        It is not two filters.

    Examples
    --------
    >>> own("topk:0.1/-")
    'ucc+topk:0.1/-'
    """
    push, _, broadcast = filters.partition("/")
    if not push or not broadcast or "/" in broadcast:
        raise ValueError(f"expected PUSH/BROADCAST, got {filters!r}")
    return f"ucc+{filters}"


def named(name: str) -> System:
    """A system of the table, or one whose name `own` has made."""
    if name in SYSTEMS:
        return SYSTEMS[name]
    filters = Filters(*name.removeprefix("ucc+").split("/"))
    return System(name, "of the user's own", lambda _: [*BROADCAST, *filters.arguments], filtered=True)
