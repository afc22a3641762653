"""The log: one line per event on standard error, `event=NAME key=value ...`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime


def log(event: str, /, **fields: object) -> None:
    """Write one line. Values with blanks, quotes or controls are JSON strings."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    parts = [f"time={stamp}", f"event={event}", *(f"{key}={_text(value)}" for key, value in fields.items())]
    sys.stderr.write(" ".join(parts) + "\n")
    sys.stderr.flush()


def _text(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
