"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# A slow or busy machine is no failure: hypothesis would call an example that takes 200 ms one.
settings.register_profile("bucketlab", deadline=None)
settings.load_profile("bucketlab")
