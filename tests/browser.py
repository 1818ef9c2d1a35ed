"""Drives a real Chromium over its debugging pipe: no driver, no package, no port. Knows nothing of the pages it opens.

Debian's `chromium`, or Chrome. `reason_unavailable` says why there is none; tests skip with it.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ANSWER_SECONDS = 120.0


def reason_unavailable() -> str | None:
    """None where a browser is installed."""
    return None if _executable() else "no Chromium is installed (Debian: apt-get install chromium)"


def _executable() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. Keeps what pages write to the console and what they throw."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._selector = selectors.DefaultSelector()
        self._selector.register(answers, selectors.EVENT_READ)
        self._pending = b""
        self._next = 0
        self._session: str | None = None
        self._loaded: set[str] = set()  # documents, by what the browser calls their loaders
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._ask(f"{domain}.enable")
        self._ask("Page.setLifecycleEventsEnabled", enabled=True)
        self._ask("Emulation.setFocusEmulationEnabled", enabled=True)

    def open(self, address: str) -> None:
        """Loads a page and waits for its load event."""
        self._load("about:blank")  # a page that is left may go on asking for things until it is gone
        self.complaints.clear()
        self.requests.clear()
        self._load(address)

    def _load(self, address: str) -> None:
        answer = self._ask("Page.navigate", url=address)
        assert not answer.get("errorText"), answer
        deadline = time.monotonic() + _ANSWER_SECONDS
        while answer["loaderId"] not in self._loaded:
            assert time.monotonic() < deadline, f"{address} did not load"
            self._take(self._message(deadline))

    def as_new(self) -> None:
        """Window, theme and wishes as every test finds them, whatever one before it has left."""
        self.window(1280, 800)
        self._ask("Emulation.setEmulatedMedia", features=[])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; awaits promises. A throw of the page's fails the test."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = _ANSWER_SECONDS) -> Any:
        """Until the expression is truthy; its value then."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never came true: {expression}\n{self.complaints}"
            time.sleep(0.1)
        return value

    def key(self, key: str) -> None:
        """Presses and releases a key; for a character, types it."""
        text = {"text": key} if len(key) == 1 else {}
        self._ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """`kind`: mouseMoved, mousePressed, mouseReleased; page coordinates inside the window."""
        button = "none" if kind == "mouseMoved" else "left"
        self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=int(button == "left"))

    def window(self, width: int, height: int, scale: float = 1.0) -> None:
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )
        self.wait_for(f"innerWidth === {width} && innerHeight === {height}")

    def drawn(self) -> None:
        """Until the page has seen its size and drawn itself anew."""
        self.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")

    def theme(self, scheme: str) -> None:
        """`scheme`: light or dark, as the system would ask for it."""
        self.media("prefers-color-scheme", scheme)

    def media(self, feature: str, value: str) -> None:
        """One thing that the system tells pages, in place of what was set before."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": feature, "value": value}])

    def allow_clipboard(self) -> None:
        """Pages may read and write the (headless) clipboard from now on."""
        self._ask("Page.bringToFront")
        session, self._session = self._session, None
        self._ask("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self._session = session

    def picture(self, path: Path, whole: bool = True) -> None:
        """A PNG of the whole page, or of what the window shows."""
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._next += 1
        number = self._next
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            answer = self._message(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._take(answer)

    def _take(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Page.lifecycleEvent":
            if parameters["name"] == "load":
                self._loaded.add(parameters["loaderId"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            assert self._selector.select(max(0.0, deadline - time.monotonic())), "the browser does not answer"
            read = os.read(self._answers, 1 << 20)
            assert read, "the browser has ended"
            self._pending += read
        first, self._pending = self._pending.split(b"\0", 1)
        message: dict[str, Any] = json.loads(first)
        return message


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A headless browser with an empty profile in a folder of its own; ended when done."""
    executable = _executable()
    assert executable is not None
    for_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    arguments = [
        executable,
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-extensions",
        "--disable-background-networking",
        "--no-first-run",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ]
    # The browser reads commands from its descriptor 3 and writes answers to 4.
    shell = f'exec "$@" 3<&{for_browser} 4>&{from_browser}'
    with (profile.parent / f"{profile.name}.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *arguments],
            pass_fds=(for_browser, from_browser),
            stdout=log,
            stderr=log,
        )
    os.close(for_browser)
    os.close(from_browser)
    try:
        yield Browser(commands, answers)
    finally:
        os.close(commands)
        os.close(answers)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        if process.poll() is None:
            process.kill()
            process.wait()
