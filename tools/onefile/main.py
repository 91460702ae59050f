"""The start of the kubectl plugin in one file; the archive has it as ``__main__.py``.

Also the oldest Python 3 reads this file, so that it can say which one is needed.
"""

import sys

NEEDED = (3, 11)

if sys.version_info < NEEDED:
    sys.stderr.write(
        "kubectl inspect gpushare: needs Python {}.{} or newer, and this is {}.{} ({}); "
        "install a newer one and run: python3.NN {}\n".format(
            NEEDED[0], NEEDED[1], sys.version_info[0], sys.version_info[1], sys.executable, sys.argv[0]
        )
    )
    sys.exit(2)

from gpu_device_plugin.__main__ import kubectl_plugin  # noqa: E402 - not before the check

sys.exit(kubectl_plugin())
