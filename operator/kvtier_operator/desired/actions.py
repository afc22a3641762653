"""What can be done to the cluster: each step small, safe to repeat, and safe to leave undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from kvtier_operator.objects import Object, Target


@dataclass(frozen=True)
class Apply:
    """Make the object be as `body` says (server-side apply)."""

    target: Target
    body: Object
    subresource: Literal["", "status"] = ""


@dataclass(frozen=True)
class Delete:
    """Delete exactly that object, not a later one of its name."""

    target: Target
    uid: str


@dataclass(frozen=True)
class SetFinalizers:
    """Set the finalizers of exactly that version of the object."""

    target: Target
    finalizers: tuple[str, ...]
    uid: str
    resource_version: str


@dataclass(frozen=True)
class Post:
    """Post an Event. Its name is made from its content: posting it again does nothing."""

    target: Target
    body: Object


Step = Apply | Delete | SetFinalizers | Post


@dataclass(frozen=True)
class Action:
    """A step, and the objects whose own steps must not have failed in the same pass."""

    step: Step
    requires: tuple[Target, ...] = ()


class Stage(Enum):
    """Actions of one stage run side by side; stages run in this order."""

    FINALIZERS = "finalizers"
    EVENTS = "events"
    CONFIGURATION = "configuration"
    OBJECTS = "objects"
    DELETIONS = "deletions"
    STATUSES = "statuses"
    RELEASES = "releases"


Plan = Mapping[Stage, list[Action]]
