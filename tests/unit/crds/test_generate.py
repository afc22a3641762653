"""Generated files and models agree, and a difference is named. Before a real API server: tests/controlplane."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvtier_crds.generate import REPOSITORY, generated_files, main, stale_files


@pytest.fixture
def written(tmp_path: Path) -> Path:
    assert main(["--root", str(tmp_path)]) == 0
    return tmp_path


def test_repository_holds_what_the_models_say() -> None:
    assert stale_files(REPOSITORY) == []


def test_written_files_pass_the_check(written: Path) -> None:
    assert main(["--check", "--root", str(written)]) == 0


@pytest.mark.parametrize("path", sorted(map(str, generated_files())))
def test_changed_file_fails_the_check_by_name(written: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (written / path).write_text((written / path).read_text() + "\n")

    assert main(["--check", "--root", str(written)]) == 1
    assert capsys.readouterr().err == f"{path} differs from the models in crds/kvtier_crds; run `make crds`\n"


def test_missing_file_fails_the_check(written: Path) -> None:
    (written / "crds/tierclasses.yaml").unlink()

    assert main(["--check", "--root", str(written)]) == 1


def test_file_of_a_kind_that_is_gone_is_found_and_removed(written: Path) -> None:
    leftover = written / "charts/kvtier-crds/templates/oldkinds.yaml"
    leftover.write_text("kind: CustomResourceDefinition\n")
    assert main(["--check", "--root", str(written)]) == 1

    assert main(["--root", str(written)]) == 0

    assert not leftover.exists()
