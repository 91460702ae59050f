"""Both ends of the two files by which the node agent and a helper program meet: what is wanted, and the helper's state.

Neither end fails over a file: each says what is wrong with it, and goes on with what it last knew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NoReturn

from gpu_device_plugin import files
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.model.contract.helperfiles import HelperFileError, HelperFiles, State, Wanted

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class FileLink(Generic[Wanted, State]):
    """The agent's end: keeps the file of what is wanted in step, and follows the file of the helper's state."""

    _directory: Path
    """No file in it is opened before a method is called."""
    _contract: HelperFiles[Wanted, State]
    _clock: Callable[[], float]
    """Returns the seconds since the machine started."""
    _name: str
    """What the agent calls the helper."""
    _not_there: str
    """The sentence where the helper has written no state."""
    _not_mounted: str
    """The sentence where not even the directory of the files is there."""
    _silent: str
    """The sentence where the helper no longer writes its state."""
    _beat_s: float
    """After so many seconds without a beat the helper does not run any more."""
    _remedy: str = ""
    """The end of the sentence that what is wanted cannot be written."""

    def __post_init__(self) -> None:
        self._wanted_path = self._directory / self._contract.wanted_file
        self._state_path = self._directory / self._contract.state_file
        self.wanted: Wanted = self._contract.nothing
        """What was wanted last, whether the file says it or not."""
        self.unwritten = ""
        """Why the file does not say what is wanted; empty: it does."""
        self.last: State | None = None
        """The newest state that could be read, be the helper running or not; None: there is no such file."""
        self._last_beat_s = 0.0
        self._ours: files.Stamp | None = None
        """Of the file of what is wanted, as we read or wrote it; None: it was not there."""
        self._seen: files.Stamp | None = None
        self._unreadable = ""

    def take_up(self) -> None:
        """Begin with what our predecessor wanted: what it was for may run on."""
        try:
            content, found = files.read_below(self._directory, self._contract.wanted_file, self._contract.largest)
            self.wanted, self._ours = self._contract.read_wanted(content), files.stamp(found)
        except FileNotFoundError:
            pass
        except (OSError, HelperFileError) as error:
            # The helper cannot read it either, and changes nothing until it can.
            self.unwritten = f"{self._wanted_path} cannot be used: {error}"
            _log.warning("what %s was told is unknown, and is written again: %s", self._name, error)

    def want(self, wanted: Wanted) -> None:
        """Have the file say what is wanted: written if it says something else, or was removed or replaced."""
        if wanted == self.wanted and not self.unwritten and self._intact():
            return
        self.wanted = wanted
        try:
            # Nothing that is wanted outlives a power cut, and a call of the kubelet may wait for this.
            text = self._contract.write_wanted(wanted)
            files.replace_below(self._directory, self._contract.wanted_file, text.encode(), lasting=False)
        except OSError as error:
            why = f"the agent cannot write {self._wanted_path} ({error.strerror}){self._remedy}"
            if why != self.unwritten:
                _log.error("%s cannot be told what is wanted", self._name, extra={"why": why})
            self.unwritten = why
        else:
            self.unwritten = ""
            self._ours = files.stamp_of(self._wanted_path)

    def _intact(self) -> bool:
        """Return whether the file is the one that we read or wrote; where nothing is wanted no helper may need one."""
        found = files.stamp_of(self._wanted_path)
        if found is None and self.wanted == self._contract.nothing:
            return not self._state_path.exists()
        if found != self._ours:
            _log.warning("%s was removed or replaced, and is written again", self._wanted_path)
        return found == self._ours

    def read_state(self) -> State | str:
        """Return the helper's state, or the reason why there is none, as a sentence. Read only if it was replaced."""
        try:
            if (found := files.stamp(self._state_path.stat())) != self._seen:
                content, _ = files.read_below(self._directory, self._contract.state_file, self._contract.largest)
                self._seen, self._unreadable = found, ""
                self.last, self._last_beat_s = self._contract.read_state(content)
        except FileNotFoundError:
            self.forget()
            self._unreadable = self._not_there if self._directory.is_dir() else self._not_mounted
        except OSError as error:
            self._seen, self._unreadable = None, f"{self._state_path} cannot be read: {error.strerror}"
        except HelperFileError as error:
            self._unreadable = str(error)
        if self.last is None or self._unreadable:
            return self._unreadable
        # A beat of the future was written before the machine started: both programs read the same clock.
        runs = 0 <= self._clock() - self._last_beat_s <= self._beat_s
        return self.last if runs else self._silent

    def forget(self) -> None:
        """Forget the helper's state, until the next look."""
        self.last = self._seen = None


@dataclass(eq=False, repr=False)
class HelperLink(Generic[Wanted, State]):
    """The helper's end: follows the file of what the agent wants, and writes the file of the state."""

    _directory: Path
    """No file in it is opened before a method is called."""
    _contract: HelperFiles[Wanted, State]
    _clock: Callable[[], float]
    """Returns the seconds since the machine started."""

    def __post_init__(self) -> None:
        self._content: bytes | None = None
        self.wanted: Wanted | None = None
        """None: not known yet."""
        self.refused = ""
        """Why the file of what is wanted cannot be used, as a sentence; empty: it can."""
        self.unwritten = ""
        """Why the state could not be written; empty: it was."""
        self.changed = asyncio.Event()
        """To be set when the state has changed."""

    def read(self) -> None:
        """Read what is wanted. Where that fails, what was wanted before still is: what runs may be needed."""
        path, nothing = self._directory / self._contract.wanted_file, self._contract.nothing
        try:
            content, _ = files.read_below(self._directory, self._contract.wanted_file, self._contract.largest)
            if content != self._content:
                self.wanted, self._content = self._contract.read_wanted(content), content
        except FileNotFoundError:
            if self.wanted not in (None, nothing):
                self._refuse(f"{path} is gone, and nothing changes until the agent writes it again")
                return
            self.wanted, self._content = nothing, None  # no agent was here since the machine started
        except (OSError, HelperFileError) as error:
            self._refuse(f"{path} cannot be used, and nothing changes until it can: {str(error)[:300]}")
            return
        if self.refused:
            _log.info("%s can be used again", path)
            self.refused = ""

    def _refuse(self, why: str) -> None:
        if why != self.refused:
            _log.error("%s", why)
        self.refused = why

    async def publish(self, state: Callable[[], State | None], every_s: float) -> NoReturn:
        """Write the state whenever it has changed, and at least every so many seconds; None is not written."""
        while True:
            self.changed.clear()
            if (now := state()) is not None:
                self.write(now)
            await wait_within(every_s, self.changed.wait())

    def write(self, state: State) -> None:
        """Write the state now."""
        try:
            text = self._contract.write_state(state, self._clock())
            files.replace_below(self._directory, self._contract.state_file, text.encode(), lasting=False)
        except OSError as error:
            unwritten = f"{self._contract.state_file} cannot be written: {error}"
            if unwritten != self.unwritten:
                _log.error("%s", unwritten)
            self.unwritten = unwritten
        else:
            self.unwritten = ""
