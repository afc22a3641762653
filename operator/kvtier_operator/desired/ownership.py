"""Which class has which node. Pure.

A class selects a Linux node that carries all its labels. Where several select one node, the class that was
created first has it, at the same second the first by name. A class that is being deleted takes no node, and
one whose stored spec cannot be read keeps what it has and takes nothing more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from kvtier_operator.view.facts import ClassFacts, NodeFacts, View

OS_LABEL: Final = "kubernetes.io/os"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Ownership:
    """Who has what."""

    owner: Mapping[str, str]
    """Class by node, for every node that some class selects."""
    lost: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By class, the nodes that it selects and another class has: node -> that class."""

    def nodes_of(self, tier_class: str) -> list[str]:
        """The nodes that a class has, by name."""
        return self._by_class.get(tier_class, [])

    @property
    def _by_class(self) -> Mapping[str, list[str]]:
        cached: Mapping[str, list[str]] | None = self.__dict__.get("_nodes")
        if cached is None:
            grouped: dict[str, list[str]] = defaultdict(list)
            for node, tier_class in sorted(self.owner.items()):
                grouped[tier_class].append(node)
            cached = dict(grouped)
            object.__setattr__(self, "_nodes", cached)
        return cached


def node_selector(tier_class: ClassFacts) -> dict[str, str]:
    """The labels that a node of the class must carry."""
    assert tier_class.spec is not None
    return {OS_LABEL: "linux"} | tier_class.spec.node_selector


def selects(selector: Mapping[str, str], node: NodeFacts) -> bool:
    """Whether the node carries every label of the selector."""
    return all(node.meta.labels.get(key) == value for key, value in selector.items())


def decide_owners(view: View) -> Ownership:
    """The class of every node that one selects, and who lost which node to whom."""
    owner = _held_by_unreadable(view)
    lost: dict[str, dict[str, str]] = defaultdict(dict)
    for tier_class in _by_precedence(view.classes.values()):
        selector = node_selector(tier_class)
        for node in view.nodes.values():
            if selects(selector, node):
                winner = owner.setdefault(node.meta.name, tier_class.meta.name)
                if winner != tier_class.meta.name:
                    lost[tier_class.meta.name][node.meta.name] = winner
    return Ownership(owner, dict(lost))


def _by_precedence(classes: Iterable[ClassFacts]) -> list[ClassFacts]:
    able = [tier_class for tier_class in classes if tier_class.spec is not None and not tier_class.deleting]
    return sorted(able, key=lambda tier_class: (tier_class.meta.created or _EPOCH, tier_class.meta.name))


def _held_by_unreadable(view: View) -> dict[str, str]:
    unreadable = {name for name, entry in view.classes.items() if entry.spec is None and not entry.deleting}
    return {
        name: cache_node.tier_class
        for name, cache_node in view.cache_nodes.items()
        if cache_node.tier_class in unreadable and name in view.nodes
    }
