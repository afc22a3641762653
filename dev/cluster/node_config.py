"""The configuration files of one node's containerd, kubelet and kube-proxy. Pure."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from dev.cluster import layout
from dev.cluster.layout import NodeLayout
from dev.cluster.machine import Machine

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "kvtier.local/pause:1"


def containerd(node: NodeLayout, machine: Machine) -> str:
    """containerd's configuration, in TOML; version 2 of it is read by containerd 1.6 and newer."""
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = {_toml(not machine.apparmor)}
  # Without CAP_SYS_RESOURCE no score can be set below that of containerd, and runc would fail.
  restrict_oom_score_adj = {_toml(not machine.can_lower_oom_scores)}

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{machine.snapshotter}"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{machine.cni_folder}"
    conf_dir = {json.dumps(str(node.cni))}
"""


def _toml(value: bool) -> str:
    return "true" if value else "false"


def kubelet(node: NodeLayout, number: int, client_authority: Path) -> str:
    """The kubelet's configuration; `client_authority` is the certificate that its clients are checked against."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": str(layout.node_address(number)),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(client_authority)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            # There is no name server: a look-up is refused at once instead of timing out.
            "clusterDNS": [str(layout.CONTROL_PLANE)],
            "clusterDomain": "cluster.local",
            "resolvConf": str(node.resolv_conf),
            # The default place would be made on the machine itself.
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            # Tests that kill containers should not wait out the usual five minutes.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            # The disk is the machine's own: how full it is says nothing about the cluster.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
        }
    )


def kube_proxy(node: NodeLayout, kubeconfig: Path) -> str:
    """kube-proxy's configuration."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "hostnameOverride": node.name,
            "clusterCIDR": str(layout.PODS),
            # The size of the connection table belongs to the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0},
        }
    )
