"""How the properties are looked for."""

from __future__ import annotations

from hypothesis import settings

# A test says what holds, not how quickly: the machine that runs it may be busy with something else.
settings.register_profile("unhurried", deadline=None, print_blob=True)
settings.load_profile("unhurried")
