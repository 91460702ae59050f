"""``python -m gpu_device_plugin`` is ``gpu-device-plugin``."""

import sys

from gpu_device_plugin.cli import main

sys.exit(main())
