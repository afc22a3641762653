"""TierClass.status: figures over its nodes, and conditions. Pure.

Ready: the class has a node and every one of them serves. Progressing: something is being rolled out or taken
down. Degraded: something needs a person; of several causes the first in DEGRADED_ORDER is told, with how many
nodes share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.models import Condition, NodeCounts, TierClassStatus
from kvtier_crds.words import Verdict

from kvtier_operator.desired.ownership import Ownership, node_selector
from kvtier_operator.status.conditions import false, stamp, true
from kvtier_operator.status.findings import Finding, Judgement, judge_node
from kvtier_operator.status.selector import explain_selector
from kvtier_operator.status.sums import Asked, ratio, sum_tiers
from kvtier_operator.status.words import count, names
from kvtier_operator.view.facts import CacheNodeFacts, ClassFacts, PodFacts, RoomFacts, View

DEGRADED_ORDER: Final = (
    Reason.INVALID_SPEC,
    Reason.APPLY_FAILED,
    Reason.NODES_CONTESTED,
    Reason.NODE_NOT_READY,
    Reason.NODE_TAINTED,
    Reason.NO_ROOM,
    Reason.DEVICE_PATH_MISSING,
    Reason.DEVICE_UNUSABLE,
    Reason.DISK_SPACE_SHORT,
    Reason.HUGE_PAGES_MISSING,
    Reason.ARENA_UNAVAILABLE,
    Reason.NODE_AGENT_UNAVAILABLE,
    Reason.STORE_FAILING,
    Reason.DEVICE_MISSING,
    Reason.DEVICE_IN_USE,
    Reason.DEVICE_NOT_BLANK,
    Reason.DEVICE_GONE,
    Reason.DEVICE_FAILED,
    Reason.DEVICE_REFUSED,
    Reason.DEVICE_READ_ONLY,
    Reason.DEVICE_FULL,
    Reason.DEVICE_SLOW,
    Reason.NO_DIRECT_IO,
)


@dataclass(frozen=True)
class ClassInput:
    """What a class is judged by, beside the view."""

    pods: Mapping[str, Sequence[PodFacts]]
    """The stores' pods by node."""
    spec_hash: str
    """That a pod of the present specification carries."""
    rooms: Mapping[str, RoomFacts]
    """By node, where a pod found no room."""
    failures: Sequence[str]
    """What the API server answered to the last attempts to apply the class's objects."""


def class_status(
    tier_class: ClassFacts, view: View, ownership: Ownership, given: ClassInput, now: datetime
) -> TierClassStatus:
    """The status of a class whose stored spec can be read and that is not being deleted."""
    name = tier_class.meta.name
    judgements = [
        judge_node(
            view.nodes[node],
            tier_class,
            view,
            [pod for pod in given.pods.get(node, ()) if pod.tier_class == name],
            given.spec_hash,
            given.rooms.get(node),
            now,
        )
        for node in ownership.nodes_of(name)
    ]
    lost = ownership.lost.get(name, {})
    leaving = [
        cache_node.meta.name
        for cache_node in view.cache_nodes.values()
        if cache_node.tier_class == name and ownership.owner.get(cache_node.meta.name) != name
    ]
    verdicts = [
        _ready(tier_class, view, judgements, lost),
        _progressing(judgements, sorted(leaving)),
        _degraded(judgements, lost, given.failures, name),
    ]
    serving = [view.cache_nodes[judgement.node] for judgement in judgements if judgement.ready]
    return TierClassStatus(
        observed_generation=tier_class.meta.generation,
        nodes=_counts(judgements),
        tiers=sum_tiers(cache_node.status.tiers for cache_node in serving),
        hit_ratio=ratio(sum((_asked(cache_node) for cache_node in serving), Asked())),
        conditions=stamp(verdicts, _previous(tier_class), tier_class.meta.generation, now),
    )


def invalid_class_status(tier_class: ClassFacts, now: datetime) -> TierClassStatus:
    """The status of a class whose stored spec does not fit; the rest of it stays as it was."""
    message = f"the stored spec cannot be read, so nothing of this class is changed: {tier_class.fault}; correct it"
    verdicts = [
        false(ConditionType.READY, Reason.INVALID_SPEC, message),
        true(ConditionType.DEGRADED, Reason.INVALID_SPEC, message),
    ]
    kept = tier_class.status or TierClassStatus()
    conditions = stamp(verdicts, kept.conditions, tier_class.meta.generation, now)
    return kept.model_copy(update={"conditions": conditions, "observed_generation": tier_class.meta.generation})


def _previous(tier_class: ClassFacts) -> Sequence[Condition]:
    return tier_class.status.conditions if tier_class.status else []


def _counts(judgements: Sequence[Judgement]) -> NodeCounts:
    ready = sum(judgement.ready for judgement in judgements)
    return NodeCounts(
        desired=len(judgements),
        ready=ready,
        updated=sum(judgement.updated for judgement in judgements),
        summary=f"{ready}/{len(judgements)}",
    )


def _asked(cache_node: CacheNodeFacts) -> Asked:
    pools = cache_node.status.pools
    return Asked(sum(pool.recent_asked for pool in pools), sum(pool.recent_hit for pool in pools))


def _ready(tier_class: ClassFacts, view: View, judgements: Sequence[Judgement], lost: Mapping[str, str]) -> Verdict:
    if not judgements and lost:
        return false(ConditionType.READY, Reason.NODES_CONTESTED, _contested(lost, tier_class.meta.name))
    if not judgements:
        return false(ConditionType.READY, Reason.NO_NODES_SELECTED, explain_selector(node_selector(tier_class), view))
    missing = [judgement for judgement in judgements if not judgement.ready]
    if missing:
        worst = min(missing, key=lambda judgement: not judgement.findings)
        number = f"{len(missing)} of {count(len(judgements), 'node')} " + ("do" if len(missing) > 1 else "does")
        return false(ConditionType.READY, Reason.NODES_NOT_READY, f"{number} not serve: {worst.cause}")
    message = f"every node serves ({len(judgements)} of {len(judgements)})"
    return true(ConditionType.READY, Reason.ALL_NODES_READY, message)


def _progressing(judgements: Sequence[Judgement], leaving: Sequence[str]) -> Verdict:
    outdated = [judgement.node for judgement in judgements if not judgement.updated]
    if outdated:
        message = f"of {count(len(judgements), 'node')}, these await the current specification: {names(outdated)}"
        return true(ConditionType.PROGRESSING, Reason.ROLLING_OUT, message)
    if leaving:
        message = f"nodes that no longer belong here are being drained: {names(leaving)}"
        return true(ConditionType.PROGRESSING, Reason.DRAINING, message)
    return false(ConditionType.PROGRESSING, Reason.ROLLED_OUT, "every node has the current specification")


def _degraded(judgements: Sequence[Judgement], lost: Mapping[str, str], failures: Sequence[str], name: str) -> Verdict:
    findings = [finding for judgement in judgements for finding in judgement.findings]
    if failures:
        findings.append(Finding(Reason.APPLY_FAILED, "", failures[0]))
    if lost:
        findings.append(Finding(Reason.NODES_CONTESTED, "", _contested(lost, name)))
    if not findings:
        return false(ConditionType.DEGRADED, Reason.AS_EXPECTED, "nothing needs attention")
    reason = min((finding.reason for finding in findings), key=_rank)
    alike = [finding for finding in findings if finding.reason is reason]
    others = [finding.node for finding in alike[1:]]
    tail = f" (likewise: {names(others)})" if others else ""
    return true(ConditionType.DEGRADED, reason, alike[0].message + tail)


def _rank(reason: Reason) -> int:
    return DEGRADED_ORDER.index(reason) if reason in DEGRADED_ORDER else len(DEGRADED_ORDER)


def _contested(lost: Mapping[str, str], name: str) -> str:
    winners = sorted(set(lost.values()))
    kind = "TierClass" if len(winners) == 1 else "TierClasses"
    verb = "has" if len(winners) == 1 else "have"
    return (
        f"{kind} {names(winners)}, created earlier, {verb} {names(sorted(lost))}, which {name} selects too; narrow "
        "spec.nodeSelector of one of them"
    )
