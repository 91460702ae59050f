"""A Kubernetes cluster of one node, of real programs, which leaves nothing behind on the machine that it runs on.

Everything runs in namespaces of its own: mounts, because the kubelet's directories cannot be chosen; processes, because
all of them end with the first; network, so that every address and port is free.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.patience import REAL_S, until
from tests.real_node import (
    cgroups,
    child_of,
    containerd_configuration,
    kubelet_configuration,
    make_cgroups,
    removed_cgroups,
)

_until = partial(until, quiet_s=REAL_S, pause_s=0.2)

NODE = "gpu-1"
"""The name and the address of the node in docs/guide.md."""
ADDRESS = "192.168.0.71"

_API = "10.96.0.1"
"""The address of the Service `kubernetes`, at which the API server itself listens: there is no kube-proxy."""
_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_TOOLS = (
    *("etcd", "containerd", "ctr", "runc", "busybox", "openssl", "ldd"),
    *("unshare", "setpriv", "nsenter", "mount", "ip"),
)
_CNI = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
_USERS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "node": (f"system:node:{NODE}", "system:nodes"),
}
"""By the name of the kubeconfig: user and group."""

_PREFIX = "test-cluster-"
"""Of what a cluster has on this machine: a folder and cgroups. The process that started it follows, and a dash."""

_INSIDE = f"""
mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && mount -t tmpfs none /var/log && mount -t tmpfs none /run
# A kubelet sets these for the whole machine; ours sets files that only it sees.
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \\
  kernel/keys/root_maxbytes
do
  mkdir -p /run/sys/$name && cat /proc/sys/$name >/run/sys/$name/value
  mount --bind /run/sys/$name/value /proc/sys/$name
done
ip link set lo up && ip address add {ADDRESS}/32 dev lo && ip address add {_API}/32 dev lo
echo up
while :; do sleep 60 & wait; done # the first process of a PID namespace inherits orphans, and a shell buries them
"""

_CONTAINERD = "/run/containerd/containerd.sock"
_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}

PAUSE = "localhost/pause:1"
"""The image of sandboxes; whoever uses the cluster has to load one of this name first."""


def missing() -> str:
    """Say all that keeps such a cluster from being started here; empty if nothing does."""
    folder = Path(os.environ.get("KUBE_BIN", ""))
    reasons = []
    if "KUBE_BIN" not in os.environ:
        reasons.append(f"KUBE_BIN is unset: it names a folder with {', '.join(_KUBERNETES)}")
    elif absent := [name for name in _KUBERNETES if not os.access(folder / name, os.X_OK)]:
        reasons.append(f"KUBE_BIN={folder} holds no {', '.join(absent)}")
    if absent := [tool for tool in _TOOLS if not shutil.which(tool, path=path())]:
        reasons.append(f"neither KUBE_BIN nor the PATH holds {', '.join(absent)}")
    if not _cni():
        reasons.append(f"none of {', '.join(_CNI)} holds the CNI plugins ptp and host-local")
    if os.geteuid() != 0:
        reasons.append("only root can start a kubelet")
    return "; ".join(reasons)


def missing_cdi() -> str:
    """Say why no container can get anything through CDI here; empty if one can. `missing` comes first."""
    told = subprocess.run(
        ["containerd", "--version"], env={"PATH": path()}, capture_output=True, text=True, check=False
    ).stdout.strip()
    version = re.search(r"([0-9]+)\.([0-9]+)\.([0-9]+)", told)
    if version is None or tuple(map(int, version.groups())) < (1, 7, 2):
        return f"containerd knows no CDI before 1.7.2, and this is: {told}; CONTAINERD_BIN names another"
    return ""


def path() -> str:
    """Return the PATH by which all programs are found."""
    # CONTAINERD_BIN names a folder with a newer containerd than the machine has: DRA needs 1.7.2, which knows CDI.
    ours = [os.environ.get(name, "") for name in ("CONTAINERD_BIN", "KUBE_BIN")]
    return os.pathsep.join([*ours, os.environ["PATH"], "/usr/sbin", "/sbin"])


def _cni() -> str:
    return next((each for each in _CNI if {"ptp", "host-local"} <= {path.name for path in Path(each).glob("*")}), "")


class RealCluster:
    """The programs in KUBE_BIN, running within the `with` block."""

    def __init__(self, *, controllers: bool = True) -> None:
        """Prepare; without `controllers` nobody schedules pods, and nobody but the kubelet changes what is theirs."""
        remove_what_killed_ones_left()
        self._controllers = controllers
        # A process may have several: one whose nodes serve claims beside one of limits.
        self.home = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self.kube = Path(os.environ["KUBE_BIN"]).resolve()
        self._cgroup = self.home.name
        self._holder: subprocess.Popen[bytes] | None = None
        self._inside = 0
        """The namespaces' first process, as seen from outside."""
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._make_a_place()
            self._start_control_plane()
            self._start_containerd()
        except BaseException as error:
            error.add_note(self.logs())
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            if self._inside:
                os.kill(self._inside, signal.SIGKILL)
            self._holder.kill()
            self._holder.communicate()
        for process in self._running.values():
            process.wait()
        _until(lambda: removed_cgroups(self._cgroup), "the cgroups are gone")
        shutil.rmtree(self.home)

    @property
    def entering_network(self) -> list[str]:
        """What stands before a command that is to reach the cluster, and sees this machine's files."""
        return ["nsenter", f"--target={self._inside}", "--net", "--"]

    def _enter(self, *command: str) -> list[str]:
        return ["nsenter", f"--target={self._inside}", "--mount", "--pid", "--net", "--", *command]

    @property
    def environ(self) -> Mapping[str, str]:
        """What kubectl needs of an environment."""
        return {**os.environ, "PATH": path(), "KUBECONFIG": str(self.home / "admin.kubeconfig")}

    def on_node(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Do something on the node, with the files that its programs see."""
        return subprocess.run(
            self._enter(*command), env=self.environ, input=given, capture_output=True, text=True, check=False
        )

    def seen(self, path: str) -> Path:
        """Return where this machine sees a path of the node, whose directories are its own."""
        return Path(f"/proc/{self._inside}/root{path}")

    def load(self, image: Path) -> None:
        """Have the node know an image; and have this machine forget the archive."""
        self._do(*self._ctr(), "image", "import", str(image))
        image.unlink()

    def start_kubelet(self) -> None:
        """Start a kubelet, and wait until it has registered and the node is ready."""
        self._spawn(
            "kubelet",
            *(str(self.kube / "kubelet"), f"--config={self.home}/kubelet.json", f"--hostname-override={NODE}"),
            *(f"--kubeconfig={self.home}/node.kubeconfig", f"--node-ip={ADDRESS}"),
        )
        _until(lambda: self._answers("kubelet", "http://127.0.0.1:10248/healthz"), "the kubelet is well")

    def stop_kubelet(self) -> None:
        """End the kubelet; containers go on."""
        process = self._running.pop("kubelet")
        os.kill(child_of(process.pid), signal.SIGTERM)
        process.wait()

    def logs(self) -> str:
        """Return the last words of every program, for whoever wants to know why something failed."""
        return "\n".join(
            f"--- {each.name}\n{each.read_text('utf-8')[-2000:]}" for each in sorted(self.home.glob("*.log"))
        )

    # --- Starting -----------------------------------------------------------------------------------------------------

    def _make_a_place(self) -> None:
        make_cgroups(self._cgroup)
        namespaces = ["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
        # Whatever becomes of us, the first process goes with us, and all others with the first.
        holding = ["setpriv", "--pdeathsig=KILL", "unshare", *namespaces, "sh", "-ec", _INSIDE]
        self._holder = subprocess.Popen(
            holding, stdout=subprocess.PIPE, env={**os.environ, "PATH": path()}, start_new_session=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"
        self._inside = child_of(self._holder.pid)

    def _start_control_plane(self) -> None:
        home = self.home
        key = home / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = [f'token-of-{name},{user},{name},"{group}"' for name, (user, group) in _USERS.items()]
        (home / "tokens.csv").write_text("\n".join(tokens), encoding="utf-8")
        for name in _USERS:
            (home / f"{name}.kubeconfig").write_text(json.dumps(self._kubeconfig(name)), encoding="utf-8")
        self._spawn("etcd", "etcd", f"--data-dir={home}/etcd", "--unsafe-no-fsync")
        self._spawn(
            "kube-apiserver",
            *(str(self.kube / "kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--secure-port=443"),
            *(f"--advertise-address={ADDRESS}", f"--cert-dir={home}/certificates", "--endpoint-reconciler-type=none"),
            *(f"--token-auth-file={home}/tokens.csv", "--authorization-mode=Node,RBAC", "--allow-privileged=true"),
            *("--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16"),
        )
        _until(lambda: self._kubectl("get", "--raw=/readyz"), "the API server is ready")
        if self._controllers:
            self._start_controllers(key)

    def _start_controllers(self, key: Path) -> None:
        home = self.home
        self._spawn(
            "kube-controller-manager",
            *(str(self.kube / "kube-controller-manager"), f"--kubeconfig={home}/controllers.kubeconfig"),
            *("--leader-elect=false", f"--service-account-private-key-file={key}"),
            f"--root-ca-file={home}/certificates/apiserver.crt",
        )
        self._spawn(
            "kube-scheduler",
            *(str(self.kube / "kube-scheduler"), f"--kubeconfig={home}/scheduler.kubeconfig", "--leader-elect=false"),
            *(f"--{each}-kubeconfig={home}/admin.kubeconfig" for each in ("authentication", "authorization")),
        )

    def _start_containerd(self) -> None:
        (self.home / "cni").mkdir()
        (self.home / "cni" / "pods.conflist").write_text(json.dumps(_NETWORK), encoding="utf-8")
        (self.home / "kubelet.json").write_text(json.dumps(self._kubelet_configuration()), encoding="utf-8")
        configuration = containerd_configuration(
            root=f"{self.home}/containerd",
            state="/run/containerd",
            address=_CONTAINERD,
            sandbox=PAUSE,
            networks=f"{self.home}/cni",
            cni=_cni(),
            # NVIDIA's runtime adds drivers and devices to a container, and here there are none.
            runtimes=("runc", "nvidia"),
        )
        (self.home / "containerd.toml").write_text(configuration, encoding="utf-8")
        self._spawn("containerd", "containerd", "--config", str(self.home / "containerd.toml"))
        _until(lambda: self._try(*self._ctr(), "version"), "containerd answers")

    def _kubeconfig(self, name: str) -> dict[str, Any]:
        server = {"server": f"https://{_API}", "certificate-authority": f"{self.home}/certificates/apiserver.crt"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": server}],
            "users": [{"name": name, "user": {"token": f"token-of-{name}"}}],
            "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": name}}],
            "current-context": "context",
        }

    def _kubelet_configuration(self) -> dict[str, Any]:
        return kubelet_configuration(
            containerd=_CONTAINERD,
            cgroup=self._cgroup,
            # How soon the scheduler hears of a GPU in whole use; by default after 10 s.
            nodeStatusUpdateFrequency="2s",
            registerNode=True,
        )

    def _spawn(self, name: str, *command: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._enter(*command),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.home,
                env=self.environ,
                # Ctrl-C is for us, who end everything in its order.
                start_new_session=True,
            )

    def _answers(self, name: str, url: str) -> bool:
        assert self._running[name].poll() is None, (self.home / f"{name}.log").read_text(encoding="utf-8")[-3000:]
        return self._try("busybox", "wget", "-q", "-O", "-", url)

    def _ctr(self) -> tuple[str, ...]:
        return ("ctr", "-a", _CONTAINERD, "-n", "k8s.io")

    def _kubectl(self, *words: str) -> bool:
        return self._try(str(self.kube / "kubectl"), *words)

    def _try(self, *command: str) -> bool:
        done = subprocess.run(self._enter(*command), env=self.environ, capture_output=True, check=False)
        return done.returncode == 0

    def _do(self, *command: str) -> None:
        done = subprocess.run(self._enter(*command), env=self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def remove_what_killed_ones_left() -> None:
    """Remove the folders and cgroups of clusters whose starter was killed; their programs have died with it."""
    for found in (*Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"), *cgroups(f"{_PREFIX}*")):
        if not Path(f"/proc/{found.name.removeprefix(_PREFIX).partition('-')[0]}").exists():
            _until(lambda name=found.name: removed_cgroups(name), "the cgroups are gone")  # type: ignore[misc]
            shutil.rmtree(Path(tempfile.gettempdir()) / found.name, ignore_errors=True)
