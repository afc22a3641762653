"""The kubelet's eviction threshold: from its files and flags, else its default."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from kvtier_agent.node.kubelet import DEFAULT, KubeletConfig, Threshold, decide_threshold, option, read_threshold

GIB = 1 << 30


@pytest.mark.parametrize(
    ("configs", "flag", "threshold"),
    [
        pytest.param([], None, DEFAULT, id="nothing-said"),
        pytest.param([{"evictionHard": {"nodefs.available": "5%"}}], None, Threshold(fraction=0.05), id="share"),
        pytest.param([{"evictionHard": {"nodefs.available": "3Gi"}}], None, Threshold(size_bytes=3 * GIB), id="size"),
        pytest.param([{"evictionHard": {"memory.available": "1Gi"}}], None, Threshold(), id="others-alone-mean-none"),
        pytest.param(
            [{"evictionHard": {"memory.available": "1Gi"}, "mergeDefaultEvictionSettings": True}],
            None,
            DEFAULT,
            id="others-beside-the-defaults",
        ),
        pytest.param(
            [{"evictionHard": {"nodefs.available": "5%"}}, {"evictionHard": {"nodefs.available": "1%"}}],
            None,
            Threshold(fraction=0.01),
            id="later-file-wins",
        ),
        pytest.param(
            [{"evictionHard": {"nodefs.available": "5%"}}],
            "memory.available<100Mi,nodefs.available<2Gi",
            Threshold(size_bytes=2 * GIB),
            id="flag-wins",
        ),
    ],
)
def test_threshold_is_what_the_kubelet_takes(
    configs: list[dict[str, object]], flag: str | None, threshold: Threshold
) -> None:
    assert decide_threshold(msgspec.convert(configs, list[KubeletConfig]), flag) == threshold


def test_reserve_is_of_the_file_systems_size() -> None:
    assert Threshold(fraction=0.05).reserve(100 * GIB) == 5 * GIB
    assert Threshold(size_bytes=GIB).reserve(100 * GIB) == GIB


def test_option_takes_both_spellings_and_the_last() -> None:
    assert option(["kubelet", "--config=/a", "--v", "2", "--config", "/b"], "config") == "/b"
    assert option(["kubelet", "--config-dir=/d"], "config") is None


def node_with_kubelet(root: Path, *arguments: str) -> None:
    process = root / "proc/42"
    process.mkdir(parents=True)
    (process / "cmdline").write_bytes("\0".join(["/usr/bin/kubelet", *arguments, ""]).encode())
    (process / "root").symlink_to("../..")
    (root / "proc/43").mkdir()
    (root / "proc/43/cmdline").write_bytes(b"")


def test_running_kubelets_files_are_read_as_it_sees_them(tmp_path: Path) -> None:
    node_with_kubelet(tmp_path, "--config=/etc/kubelet.yaml", "--config-dir=/etc/kubelet.d")
    (tmp_path / "etc/kubelet.d").mkdir(parents=True)
    (tmp_path / "etc/kubelet.yaml").write_text("evictionHard: {nodefs.available: 7%}\n")
    assert read_threshold(host_root=tmp_path, kubelet_dir=tmp_path) == Threshold(fraction=0.07)
    (tmp_path / "etc/kubelet.d/10.conf").write_text("evictionHard: {nodefs.available: 1Gi}\n")
    assert read_threshold(host_root=tmp_path, kubelet_dir=tmp_path) == Threshold(size_bytes=GIB)


def test_kubelet_that_is_not_seen_has_its_usual_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("evictionHard: {nodefs.available: 2Gi}\n")
    assert read_threshold(host_root=tmp_path, kubelet_dir=tmp_path) == Threshold(size_bytes=2 * GIB)


@pytest.mark.parametrize(
    "text", ["evictionHard: {nodefs.available: many}", "evictionHard: 5", ": :", "", None],
    ids=["unknown-unit", "no-map", "no-yaml", "empty", "missing"],
)  # fmt: skip
def test_file_that_cannot_be_read_means_the_default(tmp_path: Path, text: str | None) -> None:
    node_with_kubelet(tmp_path, "--config=/kubelet.yaml")
    if text is not None:
        (tmp_path / "kubelet.yaml").write_text(text)
    assert read_threshold(host_root=tmp_path, kubelet_dir=tmp_path) == DEFAULT
