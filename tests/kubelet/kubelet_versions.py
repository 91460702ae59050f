"""Differences of kubelets towards a device plugin, from the oldest supported version (decision 20) to 1.37.

Each difference is the minor versions of Kubernetes 1 whose kubelets have it. A backported change counts from the minor
version in which it first was the default.
"""

_NEWER = 1000
"""No version after 1.37 is known to end a difference."""

WIPES_EVERY_FILE = range(33)
"""At start it removes every file but the checkpoint from the plugin folder; later kubelets remove sockets."""

ASKS_OPTIONS = range(25, _NEWER)
"""Register dials back and calls GetDevicePluginOptions before it answers.

Older kubelets answer at once, dial afterwards, and use the options in the Register request.
"""

OLD_STREAM_ENDS_NEW_PLUGIN = range(25, 37)
"""The end of any stream disconnects the plugin that is then registered under the name."""

KEEPS_POD_ADMITTED_LAST = range(23, 32)
"""The pod admitted last counts as active until another pod is admitted, or the process ends."""

PANICS_OF_A_DEVICE_WITHDRAWN = range(34, _NEWER)
"""A device that is no longer listed when its Allocate is answered kills the process.

Older kubelets allocate it, without a NUMA node.
"""

CHECKS_DEVICES_HELD = range(25, _NEWER)
"""A readmitted pod with allocated devices is refused until they are listed as healthy again (#109595)."""

SPARES_RUNNING_CONTAINERS = range(28, _NEWER)
"""After a kubelet restart, a container that never stopped is readmitted without its plugin (#118559)."""

KNOWS_SIDECARS = range(28, _NEWER)
"""Init containers may be restartable; older kubelets have no `restartPolicy` of a container."""

PASSES_CDI_DEVICES = range(29, _NEWER)
"""The field cdi_devices of an allocation is read by default; older kubelets drop it silently."""

DIALS_AS_LOCALHOST = range(26, _NEWER)
"""The :authority of calls to the plugin is localhost; in older kubelets it is the socket's path."""

DESCRIBES_ONE_POD = range(34, _NEWER)
"""PodResources v1 has Get by default."""

LISTS_TERMINAL_PODS = range(34)
"""PodResources v1 List includes ended pods, with the devices that the device manager still keeps for them."""

SAYS_WAS_REJECTED = range(26, _NEWER)
"""A refused pod's status message begins with "Pod was rejected: "; with "Pod " in older kubelets."""
