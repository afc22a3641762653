"""What kubectl says about kvtier's resources: conditions by type, and sentences that explain a failure."""

from __future__ import annotations

from typing import Any

from dev.demo.kube import StepFailed
from tests.cluster.installation import Installation


def condition(resource: dict[str, Any], kind: str) -> dict[str, str]:
    """A condition of an object; empty when it has none of that type."""
    conditions: list[dict[str, str]] = resource.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {})


def wait_for_sentence(
    installation: Installation, resource: tuple[str, ...], kind: str, status: str, reason: str, *words: str
) -> str:
    """The message of a condition, once it has that status and reason and every one of `words`.

    `kubectl describe` shows it, and it is one sentence. `resource` is what kubectl takes: kind, name and namespace.
    """
    found: dict[str, str] = {}

    def holds() -> bool:
        found.update(condition(installation.kubectl.get(*resource), kind))
        text = found.get("message", "")
        if (found.get("status"), found.get("reason")) != (status, reason) or not all(word in text for word in words):
            raise StepFailed(f"{kind} says: {found}")
        if text not in installation.kubectl("describe", *resource):  # the sentence may have changed in between
            raise StepFailed(f"kubectl describe does not show: {text}")
        return True

    installation.wait(f"{' '.join(resource)} to be {kind}={status}, {reason}, {', '.join(words)}", holds)
    sentence = found["message"]
    assert ". " not in sentence
    assert "\n" not in sentence
    return sentence


def events(installation: Installation, kind: str, name: str, reason: str, namespace: str = "default") -> list[str]:
    """The messages of an object's Events of that reason."""
    selector = f"involvedObject.kind={kind},involvedObject.name={name},reason={reason}"
    found = installation.kubectl.get("events", "-n", namespace, f"--field-selector={selector}")
    return [event["message"] for event in found["items"]]
