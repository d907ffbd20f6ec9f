"""A headless Chromium, driven over a pipe by its own protocol (https://chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Path of a Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of a browser of its own; close it by `with`.

    Args:
        program: the browser.
        profile: an empty folder for its files.
        url: what to open.
    """

    def __init__(self, program: str, profile: Path, url: str) -> None:
        read_ours, write_theirs = os.pipe()
        read_theirs, write_ours = os.pipe()
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
            "--remote-debugging-pipe", f"--user-data-dir={profile}",
        ]  # fmt: skip
        # The browser reads its commands from descriptor 3 and answers on 4.
        shell = f'exec "$@" 3<&{read_theirs} 4>&{write_theirs}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *command], pass_fds=(read_theirs, write_theirs),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_theirs)
        os.close(write_theirs)
        self._in, self._out = os.fdopen(write_ours, "wb", buffering=0), os.fdopen(read_ours, "rb")
        self._number, self._session, self._rest = 0, None, b""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Emulation.setDeviceMetricsOverride", width=900, height=900, deviceScaleFactor=1, mobile=False)
        self.send("Page.navigate", url=url)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._in.close()
        self._out.close()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events in between are dropped."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._in.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, script: str) -> Any:
        """Return what a script evaluates to in the page, promises awaited."""
        reply = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in reply:
            raise AssertionError(reply["exceptionDetails"])
        return reply["result"].get("value")

    def until(self, condition: str, seconds: int = 120) -> None:
        """Wait in the page until a script evaluates to something true."""
        script = f"""new Promise((resolve) => {{
            const end = Date.now() + {seconds * 1000};
            const look = () => {{
                let found = false;
                try {{ found = Boolean({condition}); }} catch {{}}
                found || Date.now() > end ? resolve(found) : setTimeout(look, 50);
            }};
            look();
        }})"""
        assert self.run(script), f"{condition} did not become true: {self.run('document.body?.innerText')}"

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        self.drag([self.place(selector)])

    def place(self, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
        """Where a point of an element lies on the page, given as shares of its width and height."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoViewIfNeeded();"
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        return box[0] + x * box[2], box[1] + y * box[3]

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Press the mouse at the first point, move over the others, and let go."""
        self._mouse("mouseMoved", points[0], 0)
        self._mouse("mousePressed", points[0], 1)
        for point in points[1:]:
            self._mouse("mouseMoved", point, 1)
        self._mouse("mouseReleased", points[-1], 0)

    def _mouse(self, kind: str, point: tuple[float, float], buttons: int) -> None:
        button = "none" if kind == "mouseMoved" and not buttons else "left"
        self.send("Input.dispatchMouseEvent", type=kind, x=point[0], y=point[1], button=button, buttons=buttons,
                  clickCount=int(kind != "mouseMoved"))  # fmt: skip

    def _message(self) -> bytes:
        while b"\0" not in self._rest:
            more = os.read(self._out.fileno(), 1 << 16)
            if not more:
                raise AssertionError("the browser ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return message
