"""Differences of kubelets towards a device plugin, from the oldest supported version (decision 20) to 1.37."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Version:
    """A Kubernetes minor version, and the behavior of its kubelet.

    A backported change counts from the minor version in which it first was the default.
    """

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def wipes_every_file(self) -> bool:
        """At start it removes every file but the checkpoint from the plugin folder; later kubelets remove sockets."""
        return self < Version(1, 33)

    @property
    def asks_options(self) -> bool:
        """Register dials back and calls GetDevicePluginOptions before it answers.

        Older kubelets answer at once, dial afterwards, and use the options in the Register request.
        """
        return self >= Version(1, 25)

    @property
    def old_stream_ends_new_plugin(self) -> bool:
        """The end of any stream disconnects the plugin that is then registered under the name."""
        return Version(1, 25) <= self < Version(1, 37)

    @property
    def keeps_pod_admitted_last(self) -> bool:
        """The pod admitted last counts as active until another pod is admitted, or the process ends."""
        return Version(1, 23) <= self < Version(1, 32)

    @property
    def panics_of_a_device_withdrawn(self) -> bool:
        """A device that is no longer listed when its Allocate is answered kills the process.

        Older kubelets allocate it, without a NUMA node.
        """
        return self >= Version(1, 34)

    @property
    def checks_devices_held(self) -> bool:
        """A readmitted pod with allocated devices is refused until they are listed as healthy again (#109595)."""
        return self >= Version(1, 25)

    @property
    def spares_running_containers(self) -> bool:
        """After a kubelet restart, a container that never stopped is readmitted without its plugin (#118559)."""
        return self >= Version(1, 28)

    @property
    def knows_sidecars(self) -> bool:
        """Init containers may be restartable; older kubelets have no `restartPolicy` of a container."""
        return self >= Version(1, 28)

    @property
    def passes_cdi_devices(self) -> bool:
        """The field cdi_devices of an allocation is read by default; older kubelets drop it silently."""
        return self >= Version(1, 29)

    @property
    def dials_as_localhost(self) -> bool:
        """The :authority of calls to the plugin is localhost; in older kubelets it is the socket's path."""
        return self >= Version(1, 26)

    @property
    def lists_terminal_pods(self) -> bool:
        """PodResources v1 List includes ended pods, with the devices that the device manager still keeps for them."""
        return self < Version(1, 34)

    @property
    def describes_one_pod(self) -> bool:
        """PodResources v1 has Get by default."""
        return self >= Version(1, 34)

    @property
    def rejection_prefix(self) -> str:
        """The prefix of a refused pod's status message."""
        return "Pod was rejected: " if self >= Version(1, 26) else "Pod "
