"""Settings of all tests, and one browser for those that look at pages."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.browser import Browser, browser, reason_unavailable

# A slow or busy machine is no failure: hypothesis would call an example that takes 200 ms one.
settings.register_profile("bucketlab", deadline=None)
settings.load_profile("bucketlab")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if (reason := reason_unavailable()) is not None:
        pytest.skip(reason)
    with browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


def pytest_configure() -> None:
    """A shell without job control starts background jobs deaf to Ctrl-C, and their children after them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
