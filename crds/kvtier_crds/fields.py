"""What the resource models are built from: the base model, shared field types, and CEL rules.

The keys that begin with `x-kvtier-` are for the generator alone and never reach a CRD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

PATTERN_MESSAGE: Final = "x-kvtier-pattern-message"
RULES: Final = "x-kubernetes-validations"


class Model(BaseModel):
    """Base of every part of a resource: camelCase in YAML, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


@dataclass(frozen=True)
class PatternMessage:
    """Annotation of a string with a pattern: the API server refuses a mismatch with these words.

    A bare `pattern` would be refused with the regular expression, which tells nobody what to write.
    """

    message: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), PATTERN_MESSAGE: self.message}


QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
DNS_LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
ACCOUNT_PATTERN: Final = r"^([*]|[a-z0-9]([-.a-z0-9]*[a-z0-9])?)$"
PATH_PATTERN: Final = r"^(/[-A-Za-z0-9._@+=%]+)+$"
BLOCK_DEVICE_PATTERN: Final = r"^/dev/disk/by-(id|partuuid|partlabel)/[-A-Za-z0-9._:@+=%]+$"
DURATION_PATTERN: Final = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
LABEL_KEY_PATTERN: Final = r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

Quantity = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=20)]
"""A size as a status shows it."""
Size = Annotated[Quantity, PatternMessage("must be a size in bytes such as 8Gi, 500M or 1.5Ti")]
"""A size as a person writes it."""
DnsLabel = Annotated[
    str,
    Field(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=63),
    PatternMessage("must consist of lower-case letters, digits and `-`, and begin and end with a letter or digit"),
]
AccountName = Annotated[
    str,
    Field(pattern=ACCOUNT_PATTERN, min_length=1, max_length=253),
    PatternMessage("must be the name of a service account, or `*` for every one of the namespace"),
]
DevicePath = Annotated[
    str,
    Field(pattern=PATH_PATTERN, max_length=256),
    PatternMessage("must be an absolute path of letters, digits and ._-@+=%, not ending in /, such as /mnt/nvme0"),
]
BlockDevice = Annotated[
    str,
    Field(pattern=BLOCK_DEVICE_PATTERN, max_length=256),
    PatternMessage(
        "must be a name that stays with the disk or partition, below /dev/disk/by-id, /dev/disk/by-partuuid or "
        "/dev/disk/by-partlabel; names such as /dev/nvme0n1 change from boot to boot"
    ),
]
Duration = Annotated[
    str,
    Field(pattern=DURATION_PATTERN, min_length=1, max_length=24),
    PatternMessage("must be a duration such as 36h, 30m or 1h30m: hours, minutes and seconds as whole numbers"),
]
LabelValue = Annotated[
    str,
    Field(pattern=LABEL_VALUE_PATTERN, max_length=63),
    PatternMessage("must be a label value: letters, digits and ._-, beginning and ending with a letter or digit"),
]
Count = Annotated[int, Field(ge=0)]


def rule(expression: str, message: str, path: str | None = None) -> dict[str, Any]:
    """One CEL validation: what must hold, and what to change when it does not.

    `path` names the field to blame when it is not the one that carries the rule.
    """
    return {"rule": expression, "message": message} | ({"fieldPath": path} if path else {})


def rules(*validations: dict[str, Any]) -> dict[str, Any]:
    """`json_schema_extra` that carries CEL validations."""
    return {RULES: list(validations)}


def at_least(limit: str, name: str) -> dict[str, Any]:
    """`json_schema_extra` of a Size that must not be smaller than `limit`."""
    return rules(
        rule(
            f"!isQuantity(self) || quantity(self).compareTo(quantity('{limit}')) >= 0",
            f"{name} must be at least {limit}",
        )
    )


def map_list(*keys: str) -> dict[str, Any]:
    """`json_schema_extra` of a list whose entries are known by `keys`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ATOMIC: Final[dict[str, Any]] = {"x-kubernetes-list-type": "atomic"}
"""`json_schema_extra` of a list that one writer owns whole."""
