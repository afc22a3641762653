"""Write what is made from the models: CRDs, the chart kvtier-crds, docs/resources.md, faults in docs/operations.md.

`python -m kvtier_crds.generate` writes, `--check` compares and names each file that differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvtier_crds.docs import fill_faults, resources_page
from kvtier_crds.kinds import KINDS
from kvtier_crds.manifest import crd_template, crd_yaml

OPERATIONS = Path("docs/operations.md")
REPOSITORY = Path(__file__).parents[2]


def generated_files(root: Path) -> dict[Path, str]:
    """Every generated file, by its path in the repository `root`; prose around a generated table stays as it is."""
    files = {Path("docs/resources.md"): resources_page(KINDS)}
    if prose := _read(root / OPERATIONS):
        files[OPERATIONS] = fill_faults(prose)
    for kind in KINDS:
        files[Path(f"crds/{kind.plural}.yaml")] = crd_yaml(kind)
        files[Path(f"charts/kvtier-crds/templates/{kind.plural}.yaml")] = crd_template(kind)
    return files


def stale_files(root: Path) -> list[str]:
    """What must change under `root`: files that differ, are missing, or have no kind any more."""
    wanted = generated_files(root)
    stale = [str(path) for path, text in wanted.items() if _read(root / path) != text]
    present = [p.relative_to(root) for folder in _folders(wanted) for p in (root / folder).glob("*.yaml")]
    return sorted(stale + [str(path) for path in present if path not in wanted])


def write_files(root: Path) -> None:
    """Bring `root` up to date."""
    wanted = generated_files(root)
    for name in stale_files(root):
        path = root / name
        if Path(name) in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[Path(name)])
        else:
            path.unlink()
        print(f"wrote {name}" if path.exists() else f"removed {name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m kvtier_crds.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file differs")
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="the repository (default: this one)")
    options = parser.parse_args(arguments)
    if not options.check:
        write_files(options.root)
        return 0
    stale = stale_files(options.root)
    for name in stale:
        print(f"{name} differs from the models in crds/kvtier_crds; run `make crds`", file=sys.stderr)
    return 1 if stale else 0


def _folders(wanted: dict[Path, str]) -> set[Path]:
    """Folders whose YAML is all generated."""
    return {path.parent for path in wanted if path.suffix == ".yaml"}


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
