"""What the demo shows on a running cluster, step after step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from dev.cluster.layout import REPOSITORY
from dev.demo import pods
from dev.demo.kube import Kubectl, StepFailed, is_ready, restarts
from dev.demo.report import Reads, Story, Visit, parse_visit, render_visit
from dev.demo.store import kill_store, parse_reads, reads_between

SYSTEM = "kvtier-system"
CLASS = "demo"
HTTP_PORT = 9410
READY_DEADLINE_S = 120.0
RESTART_DEADLINE_S = 60.0
FIGURES_DEADLINE_S = 60.0
POD_DEADLINE_S = 900.0
SNAPSHOT_S = 1.5
"""After this time at most the store's metrics show what it did."""
RUNS = 3
"""Each figure is the median of this many."""
OTHERS = (1, 2, 3)
"""Variants of the prompt that, together, are more than the pool's DRAM."""
SAMPLE = REPOSITORY / "samples" / "engine.yaml"
MANIFESTS = Path(__file__).parent / "manifests"

Say = Callable[[str], None]


class Scene:
    """The cluster on which the story plays, with kvtier installed."""

    def __init__(self, kubectl: Kubectl, *, image: str, say: Say) -> None:
        """`image` is the sidecar's."""
        self._kubectl = kubectl
        self._image = image
        self._sample: pods.Manifest = yaml.safe_load(SAMPLE.read_text())
        self._say = say

    def prepare(self, *, environment: Path, model: Path) -> None:
        """Apply the two manifests and what the engines' pods need, and wait until the pool is served."""
        engine = (Path(__file__).parent / pods.ENGINE_SCRIPT).read_text()
        folders = [*pods.folder("environment", environment), *pods.folder("model", model)]
        self._kubectl.apply([pods.namespace(), pods.script(engine), *folders])
        for name in ("tierclass", "cachepool"):
            self._say(f"kubectl apply -f dev/demo/manifests/{name}.yaml")
            self._kubectl("apply", "-f", str(MANIFESTS / f"{name}.yaml"))
        self._kubectl.wait("the pool to be served", self._pool_is_ready, READY_DEADLINE_S, self.explain)

    def tell(self) -> Story:
        """Run the engines' pods and kill the store between them. Raises StepFailed."""
        prompt = [0] * RUNS
        around = [0, *(variant for _ in range(RUNS - 1) for variant in (*OTHERS, 0))]
        self._say("pod 1 computes a long prompt, then saves its KV cache")
        cold = self._visit("engine-1-cold", prompt, "--save")
        self._say("pod 2 has the same prompt, and restores it from DRAM")
        dram = self._visit("engine-2-dram", prompt)
        self._kill()
        self._say("pod 3 still restores it from DRAM")
        after_kill = self._visit("engine-3-after-kill", prompt)
        self._say(
            f"pod 4 computes {len(OTHERS)} others (the same but for the first token: the control), and saves them"
        )
        control = self._visit("engine-4-others", list(OTHERS), "--save")
        self._say("pod 5 restores the first prompt, now pushed out of DRAM, from NVMe; restoring the others in between")
        nvme = self._visit("engine-5-nvme", around)
        return Story(cold, dram, after_kill, control, nvme)

    def tables(self) -> str:
        """What kubectl shows of it, once the nodes' figures have reached the class and the pool."""
        self._kubectl.wait("the figures in the resources", self._figures_agree, FIGURES_DEADLINE_S, self.explain)
        commands = [
            ("get", "nodes"),
            ("get", "tierclass,cachepool,cachenode", "-A"),
            ("get", "pods", "-n", SYSTEM, "-o", "wide"),
            ("get", "pods", "-n", pods.NAMESPACE),
        ]
        return "\n".join(f"$ kubectl {' '.join(command)}\n{self._kubectl(*command)}" for command in commands)

    def explain(self) -> str:
        """What the cluster says about kvtier's resources and pods, for a person who looks for a fault."""
        return self._kubectl.explain(SYSTEM, "tierclass,cachepool,cachenode", "-A")

    def _visit(self, name: str, turns: list[int], *options: str) -> Visit:
        arguments = ["--turns", ",".join(map(str, turns)), *options]
        before = self._reads()
        self._kubectl.apply([pods.engine_pod(self._sample, name, image=self._image, arguments=arguments)])
        figures = self._hear_out(name)
        time.sleep(SNAPSHOT_S)
        try:
            visit = parse_visit(figures, reads_between(before, self._reads()))
        except ValueError as error:
            raise StepFailed(f"pod {name}: {error}") from error
        self._say(f"  => {render_visit(visit)}")
        return visit

    def _hear_out(self, name: str) -> str:
        """Pass on what the pod's engine says, and return its last line, the figures. Raises StepFailed."""
        with closing(self._kubectl.log_lines(pods.NAMESPACE, name, "engine", POD_DEADLINE_S)) as lines:
            for line in lines:
                if line.startswith("{"):
                    return line
                self._say(f"  {line}")
        raise StepFailed(f"pod {name} ended without figures\n{self._kubectl.explain_pod(pods.NAMESPACE, name)}")

    def _kill(self) -> None:
        pod = self._store_pod()
        before = restarts(pod)
        try:
            killed = kill_store(pod["metadata"]["uid"])
        except LookupError as error:
            raise StepFailed(f"{error}\n{self.explain()}") from error
        started = time.monotonic()
        self._say(f"kill -9 {killed}: the store of the node is gone")
        self._kubectl.wait(
            "the store to serve again",
            lambda: restarts(self._store_pod()) > before and is_ready(self._store_pod()),
            RESTART_DEADLINE_S,
            self.explain,
        )
        self._say(f"  restarted and ready after {time.monotonic() - started:.0f} s")

    def _store_pod(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = self._kubectl.get("pods", "-n", SYSTEM, "-l", f"kvtier.io/tier-class={CLASS}")[
            "items"
        ]
        if len(found) != 1:
            raise StepFailed(f"{len(found)} store pods of class {CLASS}, not 1\n{self.explain()}")
        return found[0]

    def _reads(self) -> Reads:
        name = self._store_pod()["metadata"]["name"]
        return parse_reads(
            self._kubectl("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{name}:{HTTP_PORT}/proxy/metrics")
        )

    def _pool_is_ready(self) -> bool:
        return is_ready(self._kubectl.get("cachepool", "-n", pods.NAMESPACE, pods.POOL))

    def _figures_agree(self) -> bool:
        """Whether class, pool and node, of which there is one each, show the same use, and a hit ratio."""
        found = self._kubectl.get("tierclass,cachepool,cachenode", "-A")["items"]
        statuses = [resource.get("status", {}) for resource in found]
        used = {json.dumps([tier["used"] for tier in status.get("tiers", {}).values()]) for status in statuses}
        return len(used) == 1 and all(status.get("hitRatio", "-") != "-" for status in statuses)
