"""kubectl for the demo: apply, ask, wait with a deadline, and follow a pod's log."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

from dev.demo.pods import Manifest

COMMAND_DEADLINE_S = 60.0
START_DEADLINE_S = 90.0
POLL_S = 0.5
LOG_TAIL = 40


class StepFailed(Exception):
    """A step of the demo did not come about; the message says which, with what the cluster says about it."""


class Kubectl:
    """kubectl bound to one cluster."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._command = [str(program), f"--kubeconfig={kubeconfig}"]

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """What `kubectl ARGUMENTS` prints. Raises StepFailed with its error."""
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
        except subprocess.TimeoutExpired as late:
            raise StepFailed(f"kubectl {' '.join(arguments)}: no answer within {COMMAND_DEADLINE_S:.0f} s") from late
        if done.returncode:
            raise StepFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, manifests: Iterable[Manifest]) -> None:
        """Apply what was made here, by server-side apply."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self("apply", "--server-side", "-f", "-", stdin=json.dumps(listed))

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object, or a list of them, as `kubectl get ARGUMENTS` finds it. Raises StepFailed."""
        found: dict[str, Any] = json.loads(self("get", *arguments, "-o", "json"))
        return found

    def wait(self, what: str, ready: Callable[[], bool], deadline_s: float, describe: Callable[[], str]) -> None:
        """Return once `ready()` holds; a StepFailed inside it means not yet.

        Raises StepFailed after `deadline_s` seconds, with what `describe()` says then.
        """
        end = time.monotonic() + deadline_s
        while True:
            try:
                if ready():
                    return
                last = ""
            except StepFailed as error:
                last = f"\n{error}"
            if time.monotonic() > end:
                raise StepFailed(f"{what}: not within {deadline_s:.0f} s{last}\n{describe()}")
            time.sleep(POLL_S)

    def explain_pod(self, namespace: str, name: str) -> str:
        """What the cluster says about a pod: the end of its description, and of each container's log."""
        target = ("-n", namespace, name)
        said = [
            self._try("describe", "pod", *target),
            self._try("logs", *target, "--all-containers", "--prefix", f"--tail={LOG_TAIL}"),
            self._try("logs", *target, "--all-containers", "--prefix", f"--tail={LOG_TAIL}", "--previous"),
        ]
        return "\n".join("\n".join(text.splitlines()[-2 * LOG_TAIL :]) for text in said)

    def explain(self, namespace: str, *resources: str) -> str:
        """What the cluster says about these resources, and about the pods of a namespace that failed or restarted."""
        said = [self._try("describe", *resources), self._try("get", "pods", "-n", namespace, "-o", "wide")]
        try:
            found = self.get("pods", "-n", namespace)["items"]
        except StepFailed as error:
            found, said = [], [*said, str(error)]
        said += [
            self.explain_pod(namespace, pod["metadata"]["name"]) for pod in found if restarts(pod) or not is_ready(pod)
        ]
        return "\n".join(said)

    def log_lines(self, namespace: str, name: str, container: str, deadline_s: float) -> Generator[str, None, None]:
        """Each line that a container logs, as it comes, until it ends, or for `deadline_s` seconds.

        Raises StepFailed when it does not start.
        """
        self.wait(
            f"the start of pod {name}",
            lambda: self.container_state(namespace, name, container).keys() <= {"running", "terminated"},
            START_DEADLINE_S,
            lambda: self.explain_pod(namespace, name),
        )
        command = [*self._command, "logs", "-n", namespace, name, "-c", container, "--follow"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as logs:
            late = threading.Timer(deadline_s, logs.kill)
            late.start()
            try:
                assert logs.stdout is not None
                for line in logs.stdout:
                    yield line.rstrip()
            finally:
                late.cancel()
                logs.kill()

    def container_state(self, namespace: str, name: str, container: str) -> dict[str, Any]:
        """The state of a pod's container, with its kind (waiting, running, terminated) as the key."""
        statuses = self.get("pod", "-n", namespace, name).get("status", {}).get("containerStatuses", [])
        state: dict[str, Any] = next((s["state"] for s in statuses if s["name"] == container), {})
        return state or {"waiting": {}}

    def _try(self, *arguments: str) -> str:
        try:
            return self(*arguments)
        except StepFailed as error:
            return str(error)


def is_ready(resource: dict[str, Any]) -> bool:
    """Whether an object's condition Ready is True."""
    conditions = resource.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def restarts(pod: dict[str, Any]) -> int:
    """How often the containers of a pod were started again."""
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))
