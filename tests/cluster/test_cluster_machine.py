"""What a machine lacks is the first thing said, with the command that mends it. Starts no cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from dev.cluster import layout, machine, tools
from dev.cluster.layout import REPOSITORY, Layout
from tests.clusters import skip_where_impossible

NO_CAPABILITIES = "Name:\tx\nCapEff:\t0000000000000000\n"
ALL_BUT_SYS_RESOURCE = "Name:\tx\nCapEff:\t000001fffeffffff\n"
ALL = "Name:\tx\nCapEff:\t000001ffffffffff\n"


def first_line(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """The first line that a refused `up` prints."""
    up = [*command, sys.executable, "-m", "dev.cluster", "--name=never", "up"]
    done = subprocess.run(up, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1, done.stdout
    return (done.stdout + done.stderr).splitlines()[0]


def path_without(folder: Path, *programs: str) -> str:
    """A PATH with every program of this machine's but those."""
    for entry in [*os.environ["PATH"].split(os.pathsep), "/usr/sbin", "/sbin"]:
        for program in Path(entry).glob("*"):
            link = folder / program.name
            if program.name not in programs and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def test_user_without_root_is_told_to_use_root() -> None:
    skip_where_impossible()
    line = first_line("unshare", "--user")
    assert line.startswith("root is missing: run it as root, for example: sudo ")
    assert line.endswith("-m dev.cluster --name=never up")


def test_machine_without_go_and_programs_is_told_where_go_is(tmp_path: Path) -> None:
    skip_where_impossible()
    bare = {**os.environ, "PATH": path_without(tmp_path, "go", *(p.name for p in tools.PROGRAMS))}
    line = first_line(environment={**bare, "XDG_CACHE_HOME": str(tmp_path / "cache"), "KUBEBUILDER_ASSETS": ""})
    assert line.startswith("go is missing, and kubectl, etcd, ")
    assert line.endswith(tools.GO_INSTALL)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        pytest.param(NO_CAPABILITIES, False, id="none"),
        pytest.param(ALL_BUT_SYS_RESOURCE, False, id="all-but-this"),
        pytest.param(ALL, True, id="all"),
    ],
)
def test_capability_is_read_from_the_effective_set(status: str, outcome: bool) -> None:
    assert machine.has_capability(status, machine.CAP_SYS_RESOURCE) is outcome


@pytest.mark.parametrize("name", ["", "Upper", "-lead", "trail-", "a/b", "x" * 41])
def test_name_that_fits_no_cgroup_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"at most 40 lower-case letters, digits and inner hyphens"):
        Layout(Path("/nowhere"), name)


def test_clusters_of_one_name_in_two_folders_have_two_cgroups() -> None:
    assert Layout(Path("/a"), "dev").cgroup != Layout(Path("/b"), "dev").cgroup


def test_addresses_of_all_nodes_are_apart() -> None:
    numbers = range(1, layout.MOST_NODES + 1)
    assert len({layout.node_address(n) for n in numbers} | {layout.CONTROL_PLANE}) == layout.MOST_NODES + 1
    networks = [layout.pod_network(n) for n in numbers]
    assert len(set(networks)) == layout.MOST_NODES
    assert networks[0][1] == IPv4Address("10.88.1.1")
    assert all(network.subnet_of(layout.PODS) for network in networks)
    with pytest.raises(ValueError, match="at most 200 nodes"):
        layout.node_address(layout.MOST_NODES + 1)
