"""Controls a headless Chromium with the DevTools protocol over a pipe."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")
SCREENS = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]
PROBLEMS = (
    *("printed", "requested", "scrolls_sideways", "wide", "faint", "small", "cut_off", "overlaps"),
    *("twice", "dangling"),
)
DEADLINE_S = 60
# The protocol uses the file descriptors 3 and 4.
START = 'exec "$0" "$@" 3<&"$READS" 4>&"$WRITES"'
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


class Browser:
    """A browser with one page. ``open`` discards the recorded console output and requests of the previous page."""

    def __init__(self, folder):
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "-c", START, CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(reads, writes),
            env={**os.environ, "READS": str(reads), "WRITES": str(writes), "HOME": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = None
        self.messages = []
        self.requests = []
        self._loaded = False
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def open(self, path, *, width, scheme):
        """Open a file in a window of this width in pixels, with the color scheme ``"light"`` or ``"dark"``."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.messages, self.requests, self._loaded = [], [], False
        self._call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + DEADLINE_S
        while not self._loaded:
            self._take(self._read(deadline))

    def evaluate(self, expression):
        """Evaluate a JavaScript expression in the page, and return its value."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path):
        """Write a screenshot of the whole page as a PNG file."""
        path.write_bytes(
            base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"])
        )

    def close(self):
        """Terminate the browser, and wait until it has ended."""
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, method, **parameters):
        number = self._send(method, **parameters)
        deadline = time.monotonic() + DEADLINE_S
        while (answer := self._read(deadline)).get("id") != number:
            self._take(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _send(self, method, **parameters):
        message = {"id": next(self._numbers), "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return message["id"]

    def _read(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"Chromium has not answered in {DEADLINE_S} s"
            more = os.read(self._in, 1 << 16)
            assert more, "Chromium has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _take(self, event):
        parameters = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Page.javascriptDialogOpening":
                self.messages.append(parameters["message"])
                self._send("Page.handleJavaScriptDialog", accept=True)
            case "Runtime.consoleAPICalled":
                self.messages.append(str(parameters["args"]))
            case "Runtime.exceptionThrown":
                self.messages.append(parameters["exceptionDetails"]["text"])
            case "Log.entryAdded":
                self.messages.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])


def look_at(browser, path, width, scheme):
    """Return the visible problems of a page, its console output and its requests."""
    browser.open(path, width=width, scheme=scheme)
    browser.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    look = browser.evaluate(Path(__file__).with_name("look.js").read_text())
    requested = [url for url in browser.requests if url != path.as_uri() and not url.startswith("data:")]
    return {**look, "printed": browser.messages, "requested": requested}
