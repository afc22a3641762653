"""What makes two transformers models share pages: the layout, down to the content of the weights."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import Any, Final

import blake3
import torch
from transformers import PreTrainedModel

from ..protocol.keys import DEFAULT_SEED, Layout
from ..tensors import PageShape

CONNECTOR: Final = "transformers/1"
DIGEST_FILE: Final = "kvtier-weights-digest.json"
WEIGHT_FILES: Final = ("*.safetensors", "*.bin", "*.gguf")
NOT_NUMERIC: Final = frozenset({"_name_or_path", "transformers_version", "use_cache"})
"""Keys of a model's configuration that change no number."""

log = logging.getLogger("kvtier.connectors.transformers")


class UnsupportedModel(ValueError):
    """The model's cache is of a kind that this connector cannot keep."""


def page_shape(model: PreTrainedModel, block_tokens: int) -> PageShape:
    """The dimensions of the model's pages.

    Raises UnsupportedModel when its configuration does not tell them.
    """
    config = model.config.get_text_config(decoder=True)
    try:
        heads = config.num_attention_heads
        return PageShape(
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            block_tokens=block_tokens,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=model.dtype,
        )
    except AttributeError as error:
        raise UnsupportedModel(f"{type(model).__name__}: {error}") from error


def model_layout(model: PreTrainedModel, shape: PageShape, weights_digest: str | None = None) -> Layout:
    """The layout of this model's pages; the digest of its weights is computed unless given."""
    config = model.config.to_dict()
    quantisation = config.get("quantization_config")
    return Layout(
        weights_digest=weights_digest or compute_weights_digest(model),
        config_digest=_digest_of({key: value for key, value in config.items() if key not in NOT_NUMERIC}),
        quantisation=_digest_of(quantisation) if quantisation else "",
        dtype=str(shape.dtype).removeprefix("torch."),
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        block_tokens=shape.block_tokens,
        parallel=(1, 1),
        groups=("full",),
        attention=f"{model.config._attn_implementation}/HND",
        # An adapter can be switched on and off without a trace in the weights.
        lora_digest=None if getattr(model, "peft_config", None) else "",
        hash_algorithm=f"sha256_cbor/{DEFAULT_SEED}",
        connector=CONNECTOR,
    )


def compute_weights_digest(model: PreTrainedModel) -> str:
    """BLAKE3 over names, types, shapes and bytes of all weights, as hex. Reads every byte once."""
    hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
    for name, tensor in sorted(model.state_dict().items()):
        hasher.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def cached_weights_digest(model: PreTrainedModel, folder: Path) -> str:
    """As `compute_weights_digest`, kept in `folder` beside the files that the model was loaded from.

    Only for a model that is unchanged since: what a program did to the weights in memory does not show in the
    files. The kept digest counts as long as the files' names, sizes and times do; a folder that cannot be written
    is hashed each time.
    """
    identity = {"dtype": str(model.dtype), "class": type(model).__name__, "files": _file_identities(folder)}
    kept = folder / DIGEST_FILE
    try:
        found = json.loads(kept.read_text())
        if found["identity"] == identity and isinstance(found["digest"], str):
            return found["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        log.info("hashing the weights, once for these files")
    digest = compute_weights_digest(model)
    try:
        _write_whole(kept, json.dumps({"identity": identity, "digest": digest}))
    except OSError as error:
        log.info("the digest is not kept: %s: %s", kept, error.strerror)
    return digest


def _file_identities(folder: Path) -> dict[str, list[int]]:
    files = sorted(file for pattern in WEIGHT_FILES for file in folder.glob(pattern))
    return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def _write_whole(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def _digest_of(value: Any) -> str:
    return blake3.blake3(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
