"""Settings of all tests, and one browser for those that look at pages."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.browser import Browser, browser, reason_unavailable

# A slow or busy machine is no failure: hypothesis would call an example that takes 200 ms one. Examples are always the
# same, so that no change is blamed for one that nobody had tried; the profile "search" tries others, and more.
settings.register_profile("search", deadline=None, max_examples=1000)
settings.register_profile("bucketlab", deadline=None, derandomize=True)
settings.load_profile("bucketlab")


@pytest.fixture(scope="session")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if (reason := reason_unavailable()) is not None:
        pytest.skip(reason)
    with browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.fixture
def chromium(one_browser: Browser) -> Browser:
    one_browser.as_new()
    return one_browser


def pytest_configure() -> None:
    """A shell without job control starts background jobs deaf to Ctrl-C, and their children after them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
