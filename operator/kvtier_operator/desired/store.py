"""The objects that run a class's stores: a ConfigMap and a DaemonSet. Pure.

Neither has an ownerReference to the TierClass: deleting it in the foreground would take the stores before
they are drained.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import yaml
from kvtier_crds.models import HugePages, Initialize, NvmeDevice, TierClassSpec
from kvtier_crds.names import (
    ARENA_STORE_DIR,
    DEVICE_FOLDER,
    LABEL_TIER_CLASS,
    MANAGER_OPERATOR,
    NODE_SOCKET,
    NODE_SOCKET_DIR,
    STORE_HTTP_PORT,
    STORE_UID,
)

from kvtier_operator.desired.ownership import node_selector
from kvtier_operator.desired.resources import MEAN_PAGE_BYTES, MOVERS, store_resources
from kvtier_operator.names import ANNOTATION_APPLIED_HASH, ANNOTATION_SPEC_HASH, LABEL_MANAGED_BY, store_name
from kvtier_operator.objects import Object
from kvtier_operator.quantities import exact
from kvtier_operator.settings import Settings
from kvtier_operator.view.facts import ClassFacts

ARENA_PATH: Final = "/arena"
ARENA_CLIENT_PATH: Final = "/arena-ro"
MEDIA_ROOT: Final = "/media"
CONFIG_FOLDER: Final = "/etc/kvtier"
CONFIG_FILE: Final = "store.yaml"
CONTAINER: Final = "store"
TERMINATION_GRACE_S: Final = 30

_SLOT_ALIGNMENT: Final = {HugePages.NONE: 4096, HugePages.SIZE_2MI: 2 << 20, HugePages.SIZE_1GI: 1 << 30}
_INITIALIZE: Final = {Initialize.IF_BLANK: "ifBlank", Initialize.ALWAYS: "always"}


def store_config(name: str, spec: TierClassSpec) -> Object:
    """The store's configuration file, as kvtier_agent.config reads it."""
    config: Object = {
        "arena": {
            "path": ARENA_PATH,
            "clientPath": ARENA_CLIENT_PATH,
            "capacity": spec.tiers.dram.capacity_per_node,
            "slotAlignment": _SLOT_ALIGNMENT[spec.tiers.dram.huge_pages],
        },
        "http": {"host": "0.0.0.0", "port": STORE_HTTP_PORT},  # noqa: S104 - the pod's own network
        "movers": MOVERS,
        "meanPage": exact(MEAN_PAGE_BYTES),
        "nodeSocket": NODE_SOCKET,
        "tierClass": name,
    }
    if spec.tiers.nvme:
        config["nvme"] = {
            "capacity": spec.tiers.nvme.capacity_per_node,
            "devices": [_device(device) for device in spec.tiers.nvme.devices],
        }
    return config


def _device(device: NvmeDevice) -> Object:
    if device.device is None:
        return {"name": device.name, "path": f"{MEDIA_ROOT}/{device.name}"}
    return {"name": device.name, "path": device.device, "initialize": _INITIALIZE[device.initialize]}


def store_objects(tier_class: ClassFacts, settings: Settings) -> tuple[Object, Object]:
    """The ConfigMap and the DaemonSet of a class whose spec is readable."""
    assert tier_class.spec is not None
    name = tier_class.meta.name
    text = yaml.safe_dump(store_config(name, tier_class.spec), sort_keys=True)
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(name, settings.namespace),
        "data": {CONFIG_FILE: text},
    }
    pod_spec = _pod_spec(tier_class, settings)
    template = {
        "metadata": {
            "labels": _labels(name),
            "annotations": {ANNOTATION_SPEC_HASH: digest([text, pod_spec])},
        },
        "spec": pod_spec,
    }
    daemon_set = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(name, settings.namespace),
        "spec": {
            "selector": {"matchLabels": {LABEL_TIER_CLASS: name}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": template,
        },
    }
    return _sealed(config_map), _sealed(daemon_set)


def spec_hash(daemon_set: Object) -> str:
    """The hash that a pod of the present specification carries."""
    return str(daemon_set["spec"]["template"]["metadata"]["annotations"][ANNOTATION_SPEC_HASH])


def digest(value: Any) -> str:
    """A short hash of plain data, the same for equal data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _sealed(desired: Object) -> Object:
    """The object with the hash of itself in an annotation."""
    annotations = {ANNOTATION_APPLIED_HASH: digest(desired)}
    return desired | {"metadata": desired["metadata"] | {"annotations": annotations}}


def _metadata(tier_class: str, namespace: str) -> Object:
    return {"name": store_name(tier_class), "namespace": namespace, "labels": _labels(tier_class)}


def _labels(tier_class: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "kvtier",
        "app.kubernetes.io/component": "store",
        LABEL_MANAGED_BY: MANAGER_OPERATOR,
        LABEL_TIER_CLASS: tier_class,
    }


def _pod_spec(tier_class: ClassFacts, settings: Settings) -> Object:
    assert tier_class.spec is not None
    store = settings.store
    spec: Object = {
        "serviceAccountName": store.service_account,
        "automountServiceAccountToken": True,
        "nodeSelector": node_selector(tier_class),
        "terminationGracePeriodSeconds": TERMINATION_GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": STORE_UID,
            "runAsGroup": STORE_UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(tier_class.spec, settings)],
        "volumes": _volumes(tier_class.meta.name, tier_class.spec),
    }
    if tier_class.spec.tolerations:
        spec["tolerations"] = [
            toleration.model_dump(mode="json", by_alias=True, exclude_none=True)
            for toleration in tier_class.spec.tolerations
        ]
    if store.priority_class:
        spec["priorityClassName"] = store.priority_class
    if store.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in store.pull_secrets]
    return spec


def _container(spec: TierClassSpec, settings: Settings) -> Object:
    return {
        "name": CONTAINER,
        "image": settings.store.image,
        "imagePullPolicy": settings.store.pull_policy,
        "command": ["kvtier-store", "--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}"],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}],
        "ports": [{"name": "http", "containerPort": STORE_HTTP_PORT, "protocol": "TCP"}],
        "resources": store_resources(spec.tiers),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "livenessProbe": _probe("/healthz", period_s=10, failures=6, initial_delay_s=10),
        "readinessProbe": _probe("/readyz", period_s=2, failures=2),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(spec),
    }


def _probe(path: str, *, period_s: int, failures: int, initial_delay_s: int = 0) -> Object:
    probe: Object = {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
    return probe | ({"initialDelaySeconds": initial_delay_s} if initial_delay_s else {})


def _volumes(name: str, spec: TierClassSpec) -> list[Object]:
    return [
        _host_folder("arena", ARENA_STORE_DIR),
        _host_folder("node", NODE_SOCKET_DIR),
        *(_host_folder(volume, f"{device.path}/{DEVICE_FOLDER}") for volume, device in _folders(spec)),
        {"name": "config", "configMap": {"name": store_name(name)}},
    ]


def _folders(spec: TierClassSpec) -> list[tuple[str, NvmeDevice]]:
    """The devices that are directories, with their volumes' names; raw devices come over the node socket."""
    devices = spec.tiers.nvme.devices if spec.tiers.nvme else []
    return [(f"media-{number}", device) for number, device in enumerate(devices) if device.path is not None]


def _host_folder(name: str, path: str) -> Object:
    """A folder that kvtier-node makes: the kubelet waits for it and never creates it."""
    return {"name": name, "hostPath": {"path": path, "type": "Directory"}}


def _mounts(spec: TierClassSpec) -> list[Object]:
    return [
        {"name": "arena", "mountPath": ARENA_PATH, "mountPropagation": "HostToContainer"},
        {"name": "arena", "mountPath": ARENA_CLIENT_PATH, "mountPropagation": "HostToContainer", "readOnly": True},
        {"name": "node", "mountPath": NODE_SOCKET_DIR},
        *({"name": volume, "mountPath": f"{MEDIA_ROOT}/{device.name}"} for volume, device in _folders(spec)),
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
    ]
