"""The control plane: etcd, API server, controller manager and scheduler, in one set of namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dev.cluster import cgroups, network
from dev.cluster import layout as places
from dev.cluster.certificates import Authority, kubeconfig, signing_key
from dev.cluster.layout import Layout
from dev.cluster.processes import CommandFailed, Process, inside, python_program, run, start
from dev.cluster.progress import Progress, wait_until

HOLDER_S = 20.0
ETCD_S = 60.0
API_S = 120.0
MANAGER_S = 60.0
ETCD_URL = "http://127.0.0.1:2379"
API_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
SELF = "kube-apiserver"
COMPONENT_USERS = {
    "kube-controller-manager": "system:kube-controller-manager",
    "kube-scheduler": "system:kube-scheduler",
    "kube-proxy": "system:kube-proxy",
}


@dataclass(frozen=True)
class ControlPlane:
    """Starts the parts of one control plane."""

    layout: Layout
    programs: Mapping[str, Path]
    progress: Progress

    @property
    def cgroup(self) -> str:
        """Where the parts run."""
        return f"{self.layout.cgroup}/system"

    @property
    def server(self) -> str:
        """The API server's URL within the cluster's network."""
        return f"https://{places.CONTROL_PLANE}:{places.API_PORT}"

    def up(self, *, scheduler: bool) -> int:
        """Start everything and return the process that holds the namespaces.

        Raises ComponentFailed when a part does not get ready.
        """
        self.layout.folder.mkdir(parents=True, exist_ok=True)
        cgroups.create(self.cgroup)
        authority = self._certificates()
        holder = hold("control-plane", self.layout.holder, self.layout.logs / "control-plane.log", self.cgroup)
        network.make_bridge(holder)
        self.progress("starting etcd and the API server")
        etcd = self._start(holder, "etcd", etcd_arguments(self.layout.etcd))
        api = self._start(holder, SELF, api_arguments(self.layout.certificates))
        self._forward(holder, authority)
        wait_until("the API server is ready", self._ready, API_S, [api, etcd])
        managers = [self._start(holder, "kube-controller-manager", self._manager_arguments())]
        if scheduler:
            managers.append(self._start(holder, "kube-scheduler", self._scheduler_arguments()))
        # Pods are refused until the controller manager has made the namespace's service account.
        wait_until("the default service account exists", self._default_account, MANAGER_S, managers)
        self.progress("control plane ready")
        return holder

    def kubeconfig_of(self, component: str) -> Path:
        """The kubeconfig of one of the cluster's own components."""
        return self.layout.certificates / f"{component}.kubeconfig"

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints, as administrator. Raises CommandFailed."""
        command = [str(self.programs["kubectl"]), "--request-timeout=10s", *arguments]
        return run(command, timeout_s=20, extra=self.layout.client_environment)

    def _start(self, holder: int, name: str, arguments: list[str]) -> Process:
        command = [*inside(holder), str(self.programs[name]), *arguments]
        return start(name, command, cgroup=self.cgroup, log=self.layout.logs / f"{name}.log")

    def _certificates(self) -> Authority:
        """Issue what the control plane needs; nodes get theirs when they are added."""
        folder = self.layout.certificates
        authority = Authority.create()
        authority.pair.write(folder / "ca")
        signing_key().write(folder / "service-accounts")
        addresses = [places.CONTROL_PLANE, places.API_SERVICE, places.LOOPBACK]
        authority.server(SELF, API_NAMES, addresses).write(folder / "api")
        authority.client("kube-apiserver-kubelet-client", "system:masters").write(folder / "api-to-kubelet")
        for component, user in COMPONENT_USERS.items():
            text = kubeconfig(self.server, authority, authority.client(user))
            self.kubeconfig_of(component).write_text(text)
        return authority

    def _forward(self, holder: int, authority: Authority) -> None:
        """Make the API server reachable on this machine's loopback, and write the administrator's kubeconfig."""
        port_file = self.layout.folder / "api-port"
        port_file.unlink(missing_ok=True)
        target = [str(port_file), str(holder), str(places.CONTROL_PLANE), str(places.API_PORT)]
        log = self.layout.logs / "forward.log"
        forward = start("forward", python_program("forward", *target), cgroup=self.cgroup, log=log)
        wait_until("the API server's port is open", port_file.exists, HOLDER_S, [forward])
        user = authority.client("admin", "system:masters")
        text = kubeconfig(f"https://{places.LOOPBACK}:{port_file.read_text()}", authority, user)
        self.layout.kubeconfig.touch(mode=0o600)
        self.layout.kubeconfig.write_text(text)

    def _ready(self) -> bool:
        return self._succeeds("get", "--raw=/readyz")

    def _default_account(self) -> bool:
        return self._succeeds("get", "serviceaccount", "default", "--namespace=default")

    def _succeeds(self, *arguments: str) -> bool:
        try:
            self.kubectl(*arguments)
        except CommandFailed:
            return False
        return True

    def _manager_arguments(self) -> list[str]:
        folder = self.layout.certificates
        return [
            f"--kubeconfig={self.kubeconfig_of('kube-controller-manager')}",
            f"--root-ca-file={folder / 'ca.crt'}",
            f"--service-account-private-key-file={folder / 'service-accounts.key'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
        ]

    def _scheduler_arguments(self) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig_of('kube-scheduler')}", "--leader-elect=false"]


def hold(hostname: str, pid_file: Path, log: Path, cgroup: str) -> int:
    """Make new namespaces and return the process that holds them."""
    pid_file.unlink(missing_ok=True)
    holder = start(hostname, python_program("hold", str(pid_file), hostname), cgroup=cgroup, log=log)
    wait_until(f"the namespaces of {hostname} exist", pid_file.exists, HOLDER_S, [holder])
    return int(pid_file.read_text())


def etcd_arguments(data: Path) -> list[str]:
    """etcd's arguments. Its state need not outlive the machine, so it does not wait for the disk."""
    return [
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
    ]


def api_arguments(folder: Path) -> list[str]:
    """The API server's arguments; `folder` has the certificates."""
    return [
        f"--etcd-servers={ETCD_URL}",
        f"--advertise-address={places.CONTROL_PLANE}",
        f"--secure-port={places.API_PORT}",
        f"--service-cluster-ip-range={places.SERVICES}",
        f"--client-ca-file={folder / 'ca.crt'}",
        f"--tls-cert-file={folder / 'api.crt'}",
        f"--tls-private-key-file={folder / 'api.key'}",
        f"--kubelet-client-certificate={folder / 'api-to-kubelet.crt'}",
        f"--kubelet-client-key={folder / 'api-to-kubelet.key'}",
        # Node names are in no name service.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'service-accounts.crt'}",
        f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        # kube-proxy runs on nodes only: webhooks are reached at their pods' addresses.
        "--enable-aggregator-routing=true",
        "--allow-privileged=true",
    ]
