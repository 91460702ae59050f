"""Programs that measure this package and print tables."""

from __future__ import annotations

import os

from gpu_device_plugin import logs

# Before any of them imports grpc: its C core tells of a closed connection between the rows.
logs.quiet_grpc(os.environ)
