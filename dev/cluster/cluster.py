"""A cluster as its users see it: up, nodes, kubectl, helm, images, down."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from dev.cluster import cgroups, machine, preflight, removal, tools
from dev.cluster.controlplane import ControlPlane
from dev.cluster.layout import REPOSITORY, Layout
from dev.cluster.node import Node, NodeStarter
from dev.cluster.processes import CommandFailed, reap, run
from dev.cluster.progress import Progress
from dev.images.pause import pause_image

WATCHER_S = 60.0


class Cluster:
    """A real Kubernetes cluster on this machine, identified by `folder` and `name`.

    Another process with the same two addresses the same cluster. What `up` started dies with the process that called
    it, unless `keep` is called. One thread at a time; `kubectl`, `helm` and a node's `run` may be called from many.
    """

    def __init__(self, folder: Path, name: str, *, say: Callable[[str], None] | None = None) -> None:
        self._layout = Layout(folder.resolve(), name)
        self._progress = Progress(say)
        self._watcher: subprocess.Popen[str] | None = None
        self._programs: dict[str, Path] = {}
        self._adding = threading.Lock()

    def __enter__(self) -> Self:
        """Start nothing yet; the end of the block takes down what it started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the cluster down, whatever happened."""
        self.down()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; works anywhere on this machine."""
        return self._layout.kubeconfig

    @property
    def folder(self) -> Path:
        """All that the cluster keeps on disk."""
        return self._layout.folder

    @property
    def logs(self) -> Path:
        """One log per component; kept when the cluster goes down."""
        return self._layout.logs

    @property
    def programs(self) -> dict[str, Path]:
        """Kubernetes' programs, etcd and helm by name, built if need be. Raises ToolsMissing."""
        if not self._programs:
            self._programs = tools.ensure_programs()
        return self._programs

    def is_running(self) -> bool:
        """Whether the API server answers."""
        if not cgroups.processes(self._layout.cgroup):
            return False
        with contextlib.suppress(CommandFailed):
            self.kubectl("get", "--raw=/readyz", timeout_s=10)
            return True
        return False

    def up(self, nodes: int = 1) -> None:
        """Start a control plane and `nodes` nodes named n1, n2, ...; what was there before is removed first.

        Raises MachineLacks, ToolsMissing, CommandFailed, or ComponentFailed with the end of the part's log; then, and
        on an interrupt, nothing is left.
        """
        with self._undone_on_failure():
            self._control_plane(scheduler=True)
            for _ in range(nodes):
                self.add_node()

    def control_plane_up(self) -> None:
        """Start etcd, the API server and the controller manager alone. Raises as `up` does."""
        with self._undone_on_failure():
            self._control_plane(scheduler=False)

    def add_node(self, name: str | None = None) -> Node:
        """Start one more node, with all images that were loaded so far, and return it once it is Ready.

        Raises ValueError for a name that is taken, and as `up` does; the other nodes stay.
        """
        with self._adding:
            taken = {node.name: int(node.layout.number_file.read_text()) for node in self.nodes()}
            number = next(n for n in range(1, len(taken) + 2) if n not in taken.values())
            layout = self._layout.node(name or f"n{number}")
            if layout.name in taken:
                raise ValueError(f"the cluster has a node {layout.name} already")
            facts = machine.detect(self.folder)
            plane = ControlPlane(self._layout, self.programs, self._progress)
            self._progress(f"starting node {layout.name}")
            holder = int(self._layout.holder.read_text())
            try:
                node = NodeStarter(plane, holder, self.programs, facts).start(layout, number, self._archives())
            except BaseException:
                self.remove_node(layout.name)
                raise
            self._progress(f"node {layout.name} is Ready")
            return node

    def remove_node(self, name: str) -> None:
        """Cut a node off as if its power had failed; its Node object stays in the cluster."""
        layout = self._layout.node(name)
        cgroups.remove(layout.cgroup)
        reap(layout.cgroup)
        shutil.rmtree(layout.folder, ignore_errors=True)

    def nodes(self) -> list[Node]:
        """The nodes that were added, in the order of their numbers."""
        if not self._layout.nodes.is_dir():
            return []
        found = [Node(self._layout.node(folder.name)) for folder in self._layout.nodes.iterdir()]
        complete = [node for node in found if node.layout.number_file.exists()]
        return sorted(complete, key=lambda node: int(node.layout.number_file.read_text()))

    def node(self, name: str) -> Node:
        """One node. Raises KeyError when there is none of that name."""
        return {node.name: node for node in self.nodes()}[name]

    def load_image(self, archive: Path) -> None:
        """Make the images of an OCI or Docker archive known to every node, and to those that are added later.

        Raises CommandFailed.
        """
        kept = self._layout.images / archive.name
        _link_or_copy(archive, kept)
        for node in self.nodes():
            node.load_image(kept)

    def kubectl(self, *arguments: str, input: str | None = None, timeout_s: float = 60.0) -> str:  # noqa: A002
        """What kubectl prints, as administrator. Raises CommandFailed with its words."""
        command = [str(self.programs["kubectl"]), *arguments]
        return run(command, input=input, timeout_s=timeout_s, extra=self._layout.client_environment)

    def helm(self, *arguments: str, timeout_s: float = 180.0) -> str:
        """What helm prints, as administrator. Raises CommandFailed with its words."""
        command = [str(self.programs["helm"]), *arguments]
        return run(command, timeout_s=timeout_s, extra=self._layout.client_environment)

    @property
    def client_environment(self) -> dict[str, str]:
        """The variables with which kubectl and helm, started by other means, reach the cluster as administrator."""
        return self._layout.client_environment

    def keep(self) -> None:
        """Let the cluster live on when this process ends."""
        self._release_watcher(removal.KEEP)

    def down(self) -> None:
        """End all processes of the cluster and remove all it left, but for its logs. May be repeated.

        Raises CgroupBusy when a process cannot be killed.
        """
        removal.remove(self._layout)
        reap(self._layout.cgroup)
        self._release_watcher(removal.KEEP)

    def _control_plane(self, *, scheduler: bool) -> None:
        """Check the machine, remove what was there, start the control plane."""
        preflight.ensure(preflight.FOR_CLUSTER, self._progress)
        programs = self.programs
        removal.remove(self._layout)
        shutil.rmtree(self.logs, ignore_errors=True)
        self._start_watcher()
        ControlPlane(self._layout, programs, self._progress).up(scheduler=scheduler)
        if scheduler:
            self._layout.images.mkdir()
            _link_or_copy(pause_image(), self._layout.images / "pause.tar")

    def _archives(self) -> list[Path]:
        return sorted(self._layout.images.iterdir())

    def _start_watcher(self) -> None:
        """Start the process that removes the cluster if this one dies."""
        self._release_watcher(removal.KEEP)
        command = [sys.executable, "-m", "dev.cluster.watch", str(self.folder), self._layout.name]
        self._watcher = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def _release_watcher(self, word: str) -> None:
        if self._watcher is not None:
            self._watcher.communicate(word, timeout=WATCHER_S)
            self._watcher = None

    @contextlib.contextmanager
    def _undone_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.down()
            raise


def _link_or_copy(source: Path, target: Path) -> None:
    """Give `target` the content of `source`, which may be deleted later."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
