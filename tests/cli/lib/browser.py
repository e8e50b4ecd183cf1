"""Drives the page of `sluice serve` in headless Chromium, over the DevTools pipe; standard library only.

    browser.py CHROMIUM URL [FOLDER]      prints one line a case; screenshots go to FOLDER

The pipe (descriptors 3 and 4, messages ended by NUL) needs no port and no WebSocket client.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

WIDE, PHONE = (1280, 800), (390, 844)


class Browser:
    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="sluice-page.")
        in_read, self.to = os.pipe()
        self.of, out_write = os.pipe()

        def place():  # 3 is read by the browser, 4 is written
            a, b = os.dup(in_read), os.dup(out_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--hide-scrollbars", "--user-data-dir=" + self.profile,
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(in_read)
        os.close(out_write)
        self.rest, self.n, self.session, self.problems = b"", 0, None, []

    def message(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.of], [], [], left)[0]:
                return None
            got = os.read(self.of, 1 << 16)
            if not got:
                raise SystemExit("the browser ended")
            self.rest += got
        one, self.rest = self.rest.split(b"\0", 1)
        m = json.loads(one)
        kind, p = m.get("method"), m.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.problems.append(p["exceptionDetails"].get("text", "exception"))
        if kind == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.problems.append(p["entry"]["text"])
        return m

    def call(self, method, **params):
        self.n += 1
        m = {"id": self.n, "method": method, "params": params}
        if self.session:
            m["sessionId"] = self.session
        os.write(self.to, json.dumps(m).encode() + b"\0")
        while True:
            got = self.message(120)
            if got is None:
                raise SystemExit("no answer to " + method)
            if got.get("id") == self.n:
                if "error" in got:
                    raise SystemExit(method + ": " + got["error"]["message"])
                return got["result"]

    def open(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(domain + ".enable")

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && !!document.getElementById('form')")

    def js(self, text):
        r = self.call("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise SystemExit(text + ": " + json.dumps(r["exceptionDetails"])[:400])
        return r["result"].get("value")

    def wait(self, text, tries=2400):
        for _ in range(tries):
            if self.js(text):
                return True
            time.sleep(0.05)
        return False

    def size(self, w, h, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=w, height=h, deviceScaleFactor=1,
                  mobile=w < 500)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def key(self, name, code, text=None):
        press = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        if text:
            press["text"] = text
        self.call("Input.dispatchKeyEvent", type="keyDown", **press)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name,
                  windowsVirtualKeyCode=code)

    def shot(self, folder, name):
        if folder:
            data = self.call("Page.captureScreenshot", format="png")["data"]
            with open(os.path.join(folder, name + ".png"), "wb") as f:
                f.write(base64.b64decode(data))

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


def case(name, good, why=""):
    print("ok " + name if good else "FAIL %s: %s" % (name, str(why)[:300]), flush=True)


# The least contrast of any text on the page, by the formula of WCAG 2: luminance of text and of the
# nearest opaque background.
CONTRAST = r"""(() => {
  const lum = c => { const v = c.map(x => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; });
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const rgb = s => s.match(/[\d.]+/g).map(Number);
  let least = 99, where = '';
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement;
    if (!n.data.trim() || !e.getClientRects().length || ['SCRIPT', 'STYLE'].includes(e.tagName) || e.closest('[disabled]')) continue;
    let b = e, back;
    do { back = rgb(getComputedStyle(b).backgroundColor); b = b.parentElement; } while (b && back.length > 3 && back[3] === 0);
    const [x, y] = [lum(rgb(getComputedStyle(e).color)), lum(back)];
    const ratio = (Math.max(x, y) + .05) / (Math.min(x, y) + .05);
    if (ratio < least) { least = ratio; where = e.tagName + ' ' + n.data.trim().slice(0, 30); }
  }
  return [least, where];
})()"""

OVERFLOW = """[document.documentElement.scrollWidth, innerWidth, document.documentElement.scrollHeight, innerHeight]"""
# Controls that lie (partly) outside of the window, or are too small for a finger.
OUTSIDE = """[...document.querySelectorAll('button, #prompt, summary')].filter(e => {
  const r = e.getBoundingClientRect();
  return !e.closest('#log') && e.getClientRects().length && getComputedStyle(e).visibility === 'visible' &&
    (r.left < 0 || r.right > innerWidth + .5 || r.bottom > innerHeight + .5 || r.height < 20);
}).map(e => e.id || e.textContent)"""


def ask(b, text):
    b.js("document.getElementById('prompt').focus()")
    b.call("Input.insertText", text=text)
    b.key("Enter", 13, "\r")


def layout(b, name, folder):
    w, iw, h, ih = b.js(OVERFLOW)
    case("no_sideways_scrolling_" + name, w <= iw and h <= ih, (w, iw, h, ih))
    outside = b.js(OUTSIDE)
    case("controls_in_sight_" + name, not outside, outside)
    least, where = b.js(CONTRAST)
    case("contrast_" + name, least >= 4.5, "%.2f at %s" % (least, where))
    b.shot(folder, name)


def names(b):
    bad = []
    for n in b.call("Accessibility.getFullAXTree")["nodes"]:
        p = {x["name"]: x["value"].get("value") for x in n.get("properties", [])}
        role = n.get("role", {}).get("value")
        if p.get("focusable") and role != "RootWebArea" and not n.get("name", {}).get("value"):
            bad.append(role)
    return bad


def main(program, url, folder):
    b = Browser(program)
    try:
        b.open()
        b.size(*WIDE)
        b.go(url)
        case("connects", b.wait("document.getElementById('link').textContent === 'connected'"))
        case("shows_memory", b.wait("document.querySelectorAll('#memory th').length > 5"))
        layout(b, "desktop_empty", folder)
        b.js("document.getElementById('settings').open = true; document.getElementById('max_tokens').value = 40;"
             "document.getElementById('temperature').value = 0.6")
        case("all_controls_have_names", not names(b), names(b))
        b.js("document.getElementById('settings').open = false")
        ask(b, "What is a kernel?")
        done = b.wait("!!document.querySelector('article.assistant .note')")
        said = b.js("document.querySelector('article.assistant').innerText")
        case("answers", done and "tokens" in said, said)
        case("streams_text", b.js("(document.querySelector('article.assistant .body, article.assistant .thought')"
                                  " || {textContent: ''}).textContent.length") > 20, said)
        case("tells_a_screen_reader", b.js("document.getElementById('status').textContent")
             .startswith("Answer finished"))
        case("focus_returns", b.js("document.activeElement.id") == "prompt")
        case("shows_speed", b.wait("/tokens/.test(document.getElementById('decode').textContent)"))
        layout(b, "desktop", folder)
        # a second turn, sent back whole
        ask(b, "hello")
        case("second_turn", b.wait("document.querySelectorAll('article.assistant .note').length === 2"))
        # Escape stops a long answer
        b.js("document.getElementById('max_tokens').value = ''; document.getElementById('temperature').value = 2")
        ask(b, "Tell me everything.")
        b.wait("[...document.querySelectorAll('article.assistant')].pop().innerText.length > 40")
        b.key("Escape", 27)
        case("escape_stops", b.wait(
            "/stopped|tokens/.test(([...document.querySelectorAll('article.assistant .note')][2] || {}).textContent)"))
        case("may_ask_again", b.js("!document.getElementById('send').disabled"))
        # markup from a person is text
        b.js("document.getElementById('max_tokens').value = 1")
        ask(b, "<img src=x onerror=alert(1)><b>bold</b>")
        b.wait("document.querySelectorAll('article.assistant .note').length === 4")
        case("markup_is_text", b.js("document.querySelectorAll('#log img, #log b').length") == 0)
        b.size(*PHONE)
        layout(b, "phone", folder)
        b.js("document.getElementById('figures-toggle').click()")
        case("phone_shows_figures", b.js("document.getElementById('memory').getClientRects().length > 0"))
        layout(b, "phone_figures", folder)
        b.js("document.getElementById('figures-toggle').click()")
        b.size(*WIDE, dark=True)
        layout(b, "desktop_dark", folder)
        b.js("document.getElementById('clear').click()")
        case("new_conversation", b.js("document.querySelectorAll('article').length") == 0)
        # order of the tabulator key, from the top
        b.js("document.querySelector('.skip').focus()")
        order = []
        for _ in range(5):
            b.key("Tab", 9)
            order.append(b.js("document.activeElement.id || document.activeElement.tagName"))
        case("tab_order", order == ["log", "SUMMARY", "prompt", "send", "clear"], order)
        case("no_errors_in_the_console", not b.problems, b.problems)
    finally:
        b.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
