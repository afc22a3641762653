"""Writes an image of a single layer as an OCI archive, without any tool."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def write_single_file_image(archive: Path, reference: str, program: Path, user: int) -> None:
    """Write to `archive` the image `reference`, which holds and runs the one static `program` as `user`."""
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "User": str(user)},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [_descriptor(LAYER, layer)],
        }
    )
    annotations = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
    entry = {**_descriptor(MANIFEST, manifest), "annotations": annotations}
    files = {f"blobs/sha256/{_digest(blob).split(':')[1]}": (blob, 0o644) for blob in (layer, config, manifest)}
    files["oci-layout"] = (_json({"imageLayoutVersion": "1.0.0"}), 0o644)
    files["index.json"] = (_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}), 0o644)
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(".partial")
    partial.write_bytes(_tar(files))
    partial.rename(archive)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as tar:
        for name, (data, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
    return output.getvalue()
