"""Generated files and models agree, and a difference is named. Before a real API server: tests/controlplane."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvtier_crds.generate import OPERATIONS, REPOSITORY, generated_files, main, stale_files


@pytest.fixture
def written(tmp_path: Path) -> Path:
    assert main(["--root", str(tmp_path)]) == 0
    return tmp_path


def test_repository_holds_what_the_models_say() -> None:
    assert stale_files(REPOSITORY) == []


def test_written_files_pass_the_check(written: Path) -> None:
    assert main(["--check", "--root", str(written)]) == 0


@pytest.mark.parametrize("path", sorted({*map(str, generated_files(REPOSITORY))} - {str(OPERATIONS)}))
def test_changed_file_fails_the_check_by_name(written: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (written / path).write_text((written / path).read_text() + "\n")

    assert main(["--check", "--root", str(written)]) == 1
    assert capsys.readouterr().err == f"{path} differs from the models in crds/kvtier_crds; run `make crds`\n"


def test_table_within_prose_is_filled_and_the_prose_kept(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPOSITORY / OPERATIONS).read_text()
    begin, end = page.index("| reason | of |"), page.index("<!-- end of conditions -->")
    stale = f"Prose of mine.\n{page[:begin]}| old |\n{page[end:]}"
    (written / OPERATIONS).write_text(stale)

    assert main(["--check", "--root", str(written)]) == 1
    assert capsys.readouterr().err == f"{OPERATIONS} differs from the models in crds/kvtier_crds; run `make crds`\n"
    assert main(["--root", str(written)]) == 0

    assert (written / OPERATIONS).read_text() == f"Prose of mine.\n{page}"


def test_page_without_the_marks_of_its_table_is_an_error(written: Path) -> None:
    (written / OPERATIONS).write_text("Prose alone.\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        main(["--check", "--root", str(written)])


def test_missing_file_fails_the_check(written: Path) -> None:
    (written / "crds/tierclasses.yaml").unlink()

    assert main(["--check", "--root", str(written)]) == 1


def test_file_of_a_kind_that_is_gone_is_found_and_removed(written: Path) -> None:
    leftover = written / "charts/kvtier-crds/templates/oldkinds.yaml"
    leftover.write_text("kind: CustomResourceDefinition\n")
    assert main(["--check", "--root", str(written)]) == 1

    assert main(["--root", str(written)]) == 0

    assert not leftover.exists()
