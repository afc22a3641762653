"""Why a node selector selects nothing, in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kvtier_operator.status.words import labels, names
from kvtier_operator.view.facts import View


def explain_selector(selector: Mapping[str, str], view: View) -> str:
    """Which label no node has, or that no node has them all."""
    wanted = labels(dict(selector))
    start = f"no node matches spec.nodeSelector ({wanted}): "
    remedy = "; label the nodes, or change spec.nodeSelector"
    if not view.nodes:
        return f"{start}the cluster has no nodes"
    for key, value in sorted(selector.items()):
        present = {node.meta.labels[key] for node in view.nodes.values() if key in node.meta.labels}
        if not present:
            return f"{start}no node has the label {key}{remedy}"
        if value not in present:
            return f"{start}the label {key} exists with {names(sorted(present))}, not with {value}{remedy}"
    return f"{start}each label is on some node, but no node has all of them{remedy}"
