"""Device states: in the status, in the condition Degraded, in the metrics."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from kvtier_agent.control import DeviceSnapshot, DeviceState
from kvtier_agent.serve.devices import DEGRADED_LIMIT, STATES, decide_degraded, device_status
from kvtier_crds import models
from kvtier_crds.conditions import CONDITIONS

CHECK = "check the disk (dmesg, smartctl) and replace it if it is worn out; it is taken back by itself"


@pytest.mark.parametrize(
    ("devices", "status", "reason", "message"),
    [
        pytest.param([], "False", "AsExpected", "all devices are in use", id="none"),
        pytest.param(
            [DeviceSnapshot("d0", "ready"), DeviceSnapshot("d1", "opening")],
            "False",
            "AsExpected",
            "all devices are in use",
            id="ready",
        ),
        pytest.param(
            [DeviceSnapshot("d0", "failed", "read at 4096: Input/output error")],
            "True",
            "DeviceFailed",
            f"d0 answers with errors: read at 4096: Input/output error; {CHECK}",
            id="failed",
        ),
        pytest.param(
            [DeviceSnapshot("d0", "slow"), DeviceSnapshot("d1", "failed", "x"), DeviceSnapshot("d2", "failed")],
            "True",
            "DeviceFailed",
            f"d1 answers with errors: x; d2 answers with errors; d0 answers late; {CHECK}",
            id="worst-first-all-named",
        ),
        pytest.param(
            [DeviceSnapshot("d0", "ready", direct_io=False), DeviceSnapshot("d1", "refused", "no superblock")],
            "True",
            "DeviceRefused",
            "d1 is refused: no superblock; follow the message: blank the device, or run the version that wrote it",
            id="fault-before-direct-io",
        ),
        pytest.param(
            [DeviceSnapshot("d0", "ready", direct_io=False), DeviceSnapshot("d1", "opening", direct_io=False)],
            "True",
            "NoDirectIo",
            "no direct I/O on d0: reads pass through the page cache; use a file system with direct I/O, such as ext4 "
            "or xfs",
            id="no-direct-io",
        ),
    ],
)
def test_degraded_names_the_devices_and_what_to_do(
    devices: list[DeviceSnapshot], status: str, reason: str, message: str
) -> None:
    verdict = decide_degraded(devices)
    assert (verdict.status, verdict.reason, verdict.message) == (status, reason, message)


@pytest.mark.parametrize("state", typing.get_args(DeviceState))
def test_every_state_has_a_word_in_the_resource_and_a_listed_reason(state: Any) -> None:
    (degraded,) = [text for text in CONDITIONS if (text.kind, text.type) == ("CacheNode", "Degraded")]
    listed = {(reason.reason, reason.status) for reason in degraded.reasons}
    verdict = decide_degraded([DeviceSnapshot("d0", state, "said")])
    assert (verdict.reason, verdict.status) in listed
    assert verdict.status == ("False" if state in ("ready", "opening") else "True")
    assert ". " not in verdict.message
    assert models.DeviceStatus.model_validate(device_status(DeviceSnapshot("d0", state, "said"))).message == "said"


def test_states_are_those_of_the_resource() -> None:
    assert set(STATES) == set(typing.get_args(DeviceState))
    assert set(STATES.values()) == set(models.DeviceState)


def test_many_long_messages_leave_room_for_the_remedy() -> None:
    verdict = decide_degraded([DeviceSnapshot(f"d{number}", "failed", "x" * 5000) for number in range(32)])
    assert len(verdict.message) == DEGRADED_LIMIT
    assert verdict.message.endswith(CHECK)
