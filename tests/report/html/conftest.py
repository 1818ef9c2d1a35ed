"""One browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser, browser, reason_unavailable


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if (reason := reason_unavailable()) is not None:
        pytest.skip(reason)
    with browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened
