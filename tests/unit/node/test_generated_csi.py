"""The committed gRPC code is what its .proto files generate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CSI = Path("kvtier_agent/node/csi")


def test_csi_code_is_what_the_proto_files_generate(tmp_path: Path) -> None:
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    protos = [str(CSI / f"{name}.proto") for name in ("csi", "registration")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *out, *protos], cwd=ROOT / "agent", check=True
    )
    generated = {path.name: path.read_text() for path in (tmp_path / CSI).iterdir()}
    assert len(generated) == 6
    for name, text in generated.items():
        assert (ROOT / "agent" / CSI / name).read_text() == text, f"{name}: generate it as {CSI}/__init__.py says"
