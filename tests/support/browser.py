"""Debian's Chromium without a window, driven through a pipe (the DevTools protocol): no driver is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

CHROMIUM: Final = shutil.which("chromium")
_FLAGS: Final = (
    "headless", "no-sandbox", "disable-gpu", "disable-background-networking", "disable-dev-shm-usage",
    "no-first-run", "hide-scrollbars", "remote-debugging-pipe", "mute-audio", "disable-extensions",
)  # fmt: skip
SECONDS: Final = 40.0  # that any one answer may take


class Browser:
    """One page of a browser; `complaints` are errors and warnings that it wrote to its console."""

    def __init__(self, folder: Path, width: int = 1500, height: int = 950) -> None:
        to_it, self._out = os.pipe()
        self._in, from_it = os.pipe()
        flags = [f"--{f}" for f in (*_FLAGS, f"user-data-dir={folder / 'profile'}")]
        words = ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "bash", CHROMIUM, *flags, "about:blank"]
        self._process = subprocess.Popen(
            words, pass_fds=(to_it, from_it), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_it)
        os.close(from_it)
        self._number = 0
        self._rest = b""
        self._session = ""
        self.complaints: list[str] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self("Emulation.setDeviceMetricsOverride", **size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: BaseException | TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(SECONDS)
        os.close(self._in)
        os.close(self._out)

    def __call__(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message(time.monotonic() + SECONDS)
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            more = os.read(self._in, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        head, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(head)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        event, method = message.get("params", {}), message.get("method")
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(event["args"])[:2000])
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event["entry"]["text"])

    def open(self, address: str, dark: bool = False) -> None:
        """Go to a page and wait until it has painted."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url="about:blank")
        self("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.painted()

    def painted(self) -> None:
        """Wait until two frames have been drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """Return what an expression gives, its promise fulfilled, as JSON values."""
        found = self("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression holds."""
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.click_at(*box)

    def click_at(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.painted()

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self("Input.insertText", text=text)
        self.painted()

    def key(self, name: str) -> None:
        """Press a key, such as Enter."""
        code = {"Enter": 13, "Escape": 27, "ArrowDown": 40}[name]
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)
        self.painted()

    def screenshot(self, path: Path) -> None:
        """Write a picture of the page."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))
