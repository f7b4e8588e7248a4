"""Hypothesis profiles: quick for a developer, repeatable in CI, long on request."""

import os

from hypothesis import HealthCheck, settings

_SLOW_MACHINE = [HealthCheck.too_slow]
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_MACHINE)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=_SLOW_MACHINE, print_blob=True
)
settings.register_profile(
    "soak", deadline=None, max_examples=5000, suppress_health_check=_SLOW_MACHINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))
