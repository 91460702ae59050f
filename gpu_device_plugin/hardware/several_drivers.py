"""One driver port over the GPUs of two vendors in one machine."""

from __future__ import annotations

import queue
import threading

from gpu_device_plugin.hardware.driver import HardwareError

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.hardware.driver import Driver, Record

_WAIT_S = 5.0


class SeveralDrivers:
    """NVML, and the drivers of the other GPUs; see `driver.Driver`.

    A driver that hangs makes the others wait: they share one process, which is replaced then.
    """

    def __init__(self, open_nvml: Callable[[], Driver], others: Driver) -> None:
        """Open NVML; `others` are open already. Where NVML cannot be used, they are alone, and its error is told."""
        self._drivers = [others]
        self._failure: HardwareError | None = None
        self._events: queue.Queue[list[Record] | BaseException] | None = None
        try:
            self._drivers.insert(0, open_nvml())
        except HardwareError as error:
            self._failure = error

    def inventory(self) -> Record:
        """List the GPUs; see `Driver.inventory`."""
        listings = []
        for driver in list(self._drivers):
            try:
                listings.append(driver.inventory())
            except HardwareError as error:
                self._failure = self._failure or error
                self._drivers.remove(driver)
        gpus = _numbered(listings)
        if self._failure is not None and not gpus:
            raise self._failure
        unread = [sentence for each in listings for sentence in each["troubles"][: each["left_out"]]]
        if self._failure is not None:
            unread.append(f"GPUs of one driver are left out: {self._failure}")
        lacks = [sentence for each in listings for sentence in each["troubles"][each["left_out"] :]]
        return {
            "gpus": gpus,
            "links": [link for listing in listings for link in listing["links"]],
            "driver_version": next((v for each in listings if (v := each["driver_version"])), None),
            "cgroup": next((v for each in listings if (v := each["cgroup"])), None),
            "left_out": len(unread),
            "troubles": [*unread, *lacks],
        }

    def probe(self) -> list[Record]:
        """Read every GPU; see `Driver.probe`."""
        return [record for driver in self._drivers for record in driver.probe()]

    def use(self, *, utilisation: bool) -> list[Record]:
        """Read the processes on every GPU; see `Driver.use`."""
        return [record for driver in self._drivers for record in driver.use(utilisation=utilisation)]

    def condition(self, groups: list[str]) -> list[Record]:
        """Read the condition of every GPU; see `Driver.condition`."""
        return [record for driver in self._drivers for record in driver.condition(groups)]

    def limits(self, wanted: list[tuple[str, str]]) -> list[Record]:
        """Read the memory limits of cgroups; see `Driver.limits`. Each driver answers for its own GPUs."""
        return [record for driver in self._drivers for record in driver.limits(wanted)]

    def set_limits(self, wanted: list[tuple[str, str, int | None, int]]) -> list[Record]:
        """Set the memory limits of cgroups; see `Driver.set_limits`."""
        return [record for driver in self._drivers for record in driver.set_limits(wanted)]

    def wait_events(self, timeout_s: float) -> list[Record]:
        """Wait for an event of any driver; see `Driver.wait_events`."""
        if self._events is None:
            self._events = queue.Queue(1)  # full, it holds up whoever has more
            for driver in self._drivers:
                threading.Thread(target=self._wait, args=(driver, self._events), name="events", daemon=True).start()
        try:
            found = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if isinstance(found, BaseException):
            raise found
        return found

    @staticmethod
    def _wait(driver: Driver, events: queue.Queue[list[Record] | BaseException]) -> None:
        try:
            while True:
                if records := driver.wait_events(_WAIT_S):
                    events.put(records)
        except BaseException as error:  # noqa: BLE001 - the thread that waits for the events raises it
            events.put(error)


def _numbered(listings: list[Record]) -> list[Record]:
    """Return all GPUs, those of later drivers numbered on from those of earlier ones."""
    gpus: list[Record] = []
    for listing in listings:
        first = 1 + max((gpu["index"] for gpu in gpus), default=-1)
        gpus += [{**gpu, "index": gpu["index"] + first} for gpu in listing["gpus"]]
    return gpus
