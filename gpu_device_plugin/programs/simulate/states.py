"""The ways in which a pod may take GPUs of a node, as policies try them that look at every state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.worth.shapes import needs_gpus
from gpu_device_plugin.programs.simulate.rooms import allowed_gpus

if TYPE_CHECKING:
    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.programs.simulate.rooms import Bools, Ints, Rooms

_MANY = 1 << 60


def states_after(kind: PodKind, rooms: Rooms, rows: Ints) -> tuple[Ints, Bools]:
    """Return the free shares that a pod may leave, rows x states x GPUs, and which of the states are possible.

    A pod that takes shares of one GPU may take any; of several GPUs a pod gets the fullest ones that have room.
    """
    free, whole = rooms.free[rows], rooms.whole[rows]
    number, gpus = free.shape
    if not kind.gpus:
        return free[:, None, :], np.ones((number, 1), np.bool_)
    fitting = (free >= kind.shares) if kind.shares else (free == whole)
    fitting &= (free > 0) & allowed_gpus(kind, rooms, rows)
    if needs_gpus(kind):
        fitting &= whole > 0
    if kind.shares and kind.gpus == 1:
        states = np.repeat(free[:, None, :], gpus, 1)
        at = np.arange(gpus)
        states[:, at, at] -= kind.shares
        return states, fitting
    order = np.argsort(np.where(fitting, free, _MANY), 1, kind="stable")
    taken = fitting & (np.argsort(order, 1, kind="stable") < kind.gpus)
    states = np.where(taken, free - kind.shares if kind.shares else 0, free)
    return states[:, None, :], (fitting.sum(1) >= kind.gpus)[:, None]
