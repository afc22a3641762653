"""`make demo`: from an empty machine to restored prompts. Figures go to .out/demo.json; nothing else is left."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

from dev.cluster import Cluster, CommandFailed, ComponentFailed
from dev.cluster.cgroups import CgroupBusy
from dev.cluster.layout import REPOSITORY
from dev.cluster.preflight import MachineLacks
from dev.cluster.tools import ToolsMissing
from dev.demo.environment import EnvironmentUnavailable, ensure_environment, image_python
from dev.demo.kube import Kubectl, StepFailed
from dev.demo.report import decide_figures, find_faults, render_figures
from dev.demo.story import SYSTEM, Scene
from dev.engine_model import ModelUnavailable, ensure_model
from dev.images.build import Image, build_images

NAME = "demo"
FIGURES = REPOSITORY / ".out" / "demo.json"
EXPECTED = (
    CgroupBusy,
    CommandFailed,
    ComponentFailed,
    EnvironmentUnavailable,
    MachineLacks,
    ModelUnavailable,
    StepFailed,
    ToolsMissing,
)
# SIGINT too: a shell starts background commands with it ignored.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STARTED = time.monotonic()


def say(line: str) -> None:
    """Print a line of progress at once, headed by the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:5.0f} s] {line}", flush=True)


def install(cluster: Cluster, images: dict[str, Image]) -> None:
    """Load the images and install both charts. Raises CommandFailed."""
    say("loading the images into the node")
    for image in images.values():
        cluster.load_image(image.archive)
    charts = REPOSITORY / "charts"
    say("helm install kvtier-crds charts/kvtier-crds")
    cluster.helm("install", "kvtier-crds", str(charts / "kvtier-crds"), "--namespace", SYSTEM, "--create-namespace")
    say("helm install kvtier charts/kvtier")
    built = [f"--set-string=images.{name}.tag={images[name].tag}" for name in ("operator", "agent")]
    cluster.helm("install", "kvtier", str(charts / "kvtier"), "--namespace", SYSTEM, *built)


def run() -> int:
    """The whole demo on a cluster of its own; the exit status."""
    images = build_images(say)
    environment = ensure_environment(image_python())
    model = ensure_model()
    FIGURES.unlink(missing_ok=True)
    with Cluster(REPOSITORY / ".cluster" / NAME, NAME, say=lambda line: say(line.partition("] ")[2])) as cluster:
        try:
            cluster.up(nodes=1)
            install(cluster, images)
            kubectl = Kubectl(cluster.programs["kubectl"], cluster.kubeconfig)
            scene = Scene(kubectl, image=images["sidecar"].reference, say=say)
            scene.prepare(environment=environment, model=model)
            story = scene.tell()
            print(f"\n{scene.tables()}", flush=True)
        finally:
            say("removing the cluster")
            ignore_signals()
    figures = decide_figures(story)
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(figures.as_json())
    print(f"\n{render_figures(figures)}\n\nfigures: {FIGURES.relative_to(REPOSITORY)}")
    faults = find_faults(story)
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


def ignore_signals() -> None:
    """Let nothing interrupt the removal."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """End, so that what was started is removed; a second signal does not cut that short."""
    ignore_signals()
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo, and say in one place what went wrong; the exit status."""
    for number in INTERRUPTS:
        signal.signal(number, interrupt)
    try:
        return run()
    except EXPECTED as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; what it started is removed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
