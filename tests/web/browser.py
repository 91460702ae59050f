"""A real Chromium without a screen, driven over the DevTools protocol."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.patience import eventually, patience

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The path of a Chromium; None where there is none."""

KEYS = {
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
    "Home": 36,
    "End": 35,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


class PageError(AssertionError):
    """A script of the page, or one of the test's in it, raised."""


class Tab:
    """One page. `complaints` has what its console, its policy or its scripts complained of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of complaints that belong to what the test does, such as the answer 401."""

    def __repr__(self) -> str:
        """Tell what went wrong, for a test that waits in vain."""
        return f"<Tab: {self.complaints}>"

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol."""
        number = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": params}))
        async with patience(method, self):
            return await answer

    async def listen(self) -> None:
        """Take what the browser says, to the end of the connection."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                answer = self._answers.pop(said["id"])
                if answer.done():
                    continue
                if "error" in said:
                    answer.set_exception(PageError(str(said["error"])))
                else:
                    answer.set_result(said["result"])
            else:
                self._take(said["method"], said["params"])

    def _take(self, method: str, params: dict[str, Any]) -> None:
        complaint = ""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            complaint = details.get("exception", {}).get("description") or details["text"]
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            complaint = " ".join(str(each.get("value", each.get("description"))) for each in params["args"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            complaint = f"{params['entry']['text']} {params['entry'].get('url', '')}"
        elif method == "Page.javascriptDialogOpening":
            complaint = f"a dialog opened: {params['message']}"
        if complaint and not any(each in complaint for each in self.expected):
            self.complaints.append(complaint)

    async def stop_clock(self) -> None:
        """Keep the time of pages that are opened from now on at that of their loading."""
        await self.call("Page.addScriptToEvaluateOnNewDocument", source="Date.now = ((now) => () => now)(Date.now());")

    async def open(self, url: str) -> None:
        """Go to an address and wait until its document is there."""
        # Only a fragment that differs would not load the page again.
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)
        await eventually(
            lambda: self.run("location.href !== 'about:blank' && document.readyState === 'complete'"),
            f"{url} is loaded",
        )

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page; what it promises is waited for."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true in the page, as JavaScript has it: an element is."""
        asked = f"Promise.resolve({script}).then(Boolean)"
        try:
            await eventually(lambda: self.run(asked), script, pause_s=0.03)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; the page says: {await self.text('body')}; it complained of {self.complaints}"
            ) from None

    async def text(self, selector: str) -> str:
        """Return the text that is seen of an element; "" without it."""
        return str(await self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def texts(self, selector: str) -> list[str]:
        """Return the text of all such elements."""
        return list(
            await self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText)")
        )

    async def click(self, selector: str) -> None:
        """Click into the middle of an element, as a person does."""
        found = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"{found} !== null")
        await self.run(f"{found}.scrollIntoView({{block: 'center'}})")
        box = await self.run(
            f"(({{left, width, top, height}}) => [left + width / 2, top + height / 2])({found}.getBoundingClientRect())"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            await self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], **button)

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other: those of KEYS, or `Shift+Tab`."""
        for name in keys:
            shift, _, key = name.rpartition("+")
            held = {"modifiers": 8} if shift else {}
            code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            text = {"text": "\r"} if key == "Enter" else {}
            await self.call("Input.dispatchKeyEvent", type="keyDown", **code, **held, **text)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **code, **held)

    async def key(self, letter: str) -> None:
        """Press the key of a letter or sign, which types it where the focus is in a field."""
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=letter, text=letter)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=letter)

    async def type(self, text: str) -> None:
        """Type a text where the focus is."""
        await self.call("Input.insertText", text=text)

    async def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select."""
        await self.run(
            f"(() => {{ const each = document.querySelector({json.dumps(selector)}); each.value = {json.dumps(value)};"
            "for (const kind of ['input', 'change']) each.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    async def size(self, width: int, height: int) -> None:
        """Set the size of the window."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def prefer(self, **features: str) -> None:
        """Set what the person prefers: `color_scheme="dark"`, `reduced_motion="reduce"`."""
        wished = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=wished)

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the page, PNG: of what is in the window, or of the whole page."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of everything in the accessibility tree."""
        tree = await self.call("Accessibility.getFullAXTree")
        return [
            (each.get("role", {}).get("value", ""), each.get("name", {}).get("value", ""))
            for each in tree["nodes"]
            if not each.get("ignored")
        ]


class Browser:
    """A running Chromium."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self._address = address
        self._session = session

    @contextlib.asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """Open a page of its own, with its own storage. AssertionError at the end: it complained."""
        async with self._connected(self._address) as top:
            context = (await top.call("Target.createBrowserContext"))["browserContextId"]
            try:
                target = (await top.call("Target.createTarget", url="about:blank", browserContextId=context))[
                    "targetId"
                ]
                async with self._connected(
                    self._address.partition("/devtools/")[0] + f"/devtools/page/{target}"
                ) as tab:
                    for domain in ("Page", "Runtime", "Log", "Accessibility"):
                        await tab.call(f"{domain}.enable")
                    await tab.size(1280, 900)
                    yield tab
                    assert tab.complaints == [], tab.complaints
            finally:
                await top.call("Target.disposeBrowserContext", browserContextId=context)

    @contextlib.asynccontextmanager
    async def _connected(self, address: str) -> AsyncIterator[Tab]:
        async with self._session.ws_connect(address, max_msg_size=0) as socket:
            tab = Tab(socket)
            # Not in a group, which would wrap every failure of a test into another error.
            listening = asyncio.create_task(tab.listen(), name=address)
            try:
                yield tab
            finally:
                listening.cancel()
                await asyncio.wait([listening])


@contextlib.asynccontextmanager
async def started(*, language: str = "en-GB") -> AsyncIterator[Browser]:
    """Run a Chromium with a fresh profile. It ends with the block, and with it all that it started."""
    assert CHROMIUM is not None
    profile = await asyncio.to_thread(tempfile.mkdtemp, prefix="page-")
    flags = [
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        f"--lang={language}",
        f"--accept-lang={language}",
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        "--hide-scrollbars",
        "--font-render-hinting=none",
    ]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # it refuses to run as root otherwise
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *flags,
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        said = Path(profile, "DevToolsActivePort")
        port, path = await eventually(lambda: _listening(said), "Chromium listens")
        async with aiohttp.ClientSession() as session:
            yield Browser(f"ws://127.0.0.1:{port}{path}", session)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, profile, ignore_errors=True)


def _listening(said: Path) -> list[str]:
    """Return port and path of its control, once it has written both."""
    lines = said.read_text().split() if said.exists() else []
    return lines if len(lines) == 2 else []
