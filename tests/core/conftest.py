"""How the properties are looked for."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A test says what holds, not how quickly: the machine that runs it may be busy with something else.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("unhurried")
