"""The tests use the page as an operator would."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import PATIENCE, TOKENS, TOP, Server, heldout, until
from playwright.sync_api import Page, expect
from shiva_client import Client

Open = Callable[..., Page]


def test_sign_in(open_page: Open, loaded: Server) -> None:
    """Without a valid token nothing is shown; with read rights only, there are no buttons."""
    page = open_page(who="")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert "digits" not in page.content()
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("token")
    expect(page.locator("#login-why")).to_contain_text("no identity of this server")
    page.get_by_label("Token").fill(TOKENS["reader"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("rowheader", name="digits/1").first).to_be_visible()
    expect(page.locator("#who")).to_have_text("reader")
    assert page.get_by_role("button", name="Stop sharp").count() == 0
    page.reload()
    expect(page.locator("#who")).to_have_text("reader")  # for as long as the tab is open
    page.get_by_role("button", name="Sign out").click()
    dialog.wait_for()
    page.reload()
    dialog.wait_for()
    assert not any(token in loaded.said() for token in TOKENS.values())


def test_start_and_stop(open_page: Open, loaded: Server) -> None:
    """A container is stopped after a confirmation, with the keyboard only, and started again."""
    page = open_page()
    stop = page.get_by_role("button", name="Stop blurred")
    state = page.get_by_role("region", name="Containers of the configuration").get_by_role("row", name="blurred")
    stop.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Stop blurred?")
    dialog.wait_for()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(stop).to_be_focused()
    assert loaded.replicas("blurred") == 1
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(state).to_contain_text("unavailable")
    assert loaded.replicas("blurred") == 0
    page.get_by_role("button", name="Start blurred").click()
    expect(state).to_contain_text("ready")
    page.get_by_role("link", name="Activity").click()
    audit = page.get_by_role("region", name="Audit")
    expect(audit.get_by_role("row",
      name="operator stopped the container blurred: from ready to unavailable")).to_be_visible()


def test_number_of_processes(open_page: Open, loaded: Server) -> None:
    """A container whose processes follow the load shows their number, bounds, and the reason."""
    page = open_page()
    row = page.get_by_role("region", name="Containers of the configuration").get_by_role("row", name="inked")
    expect(row).to_contain_text("ready")
    before = loaded.config.read_text()
    loaded.config.write_text(before.replace('name = "inked"\n', 'name = "inked"\nreplicas = { min = 2, max = 3 }\n'))
    loaded.ask("/v1/config/reload", {})
    expect(row).to_contain_text("min is 2")
    expect(row).to_contain_text(re.compile(r"; \S+ \(2 to 3\)"))
    until("two replicas", lambda: loaded.replicas("inked") == 2)
    loaded.config.write_text(before)
    loaded.ask("/v1/config/reload", {})
    expect(row).not_to_contain_text("(2 to 3)")
    until("one replica", lambda: loaded.replicas("inked") == 1)
    page.get_by_role("link", name="Activity").click()
    audit = page.get_by_role("region", name="Audit")
    expect(audit.get_by_role("row",
      name="The server scaled the container inked: processes from 1 to 2; why").first).to_be_visible()


def test_load_and_unload(open_page: Open, loaded: Server) -> None:
    """A model is unloaded with the right to do so, after a confirmation, and loaded again."""
    page = open_page("#/model/blurred/1")
    unload, load = (page.get_by_role("button", name=f"{verb} blurred", exact=True) for verb in ("Unload", "Load"))
    dialog = page.get_by_role("dialog", name="Unload blurred?")
    unload.click()
    dialog.get_by_role("button", name="Cancel").click()
    assert loaded.replicas("blurred") == 1
    unload.click()
    dialog.get_by_role("button", name="Unload blurred").click()
    expect(page.locator(".title .dot.bad")).to_have_text("no replica")
    assert loaded.replicas("blurred") == 0
    load.click()
    expect(page.locator(".title .dot.good")).to_be_visible()
    expect(unload).to_be_visible()
    expect(load).to_be_hidden()
    reads = open_page("#/model/blurred/1", who="reader")
    expect(reads.locator(".title .dot.good")).to_be_visible()
    assert reads.get_by_role("button", name="blurred").count() == 0


def test_killed(open_page: Open, loaded: Server) -> None:
    """A model whose container is killed is red within two seconds, and green when it is back."""
    page = open_page()
    row = page.get_by_role("region", name="Models").get_by_role("row", name="digits/1")
    took: list[float] = []
    while len(took) < 10 and min(took, default=9) > 2:  # the machine may have other things to do
        expect(row.locator(".dot.good")).to_be_visible()
        before = time.monotonic()
        loaded.digits.kill()
        row.locator(".dot.bad", has_text="no replica").wait_for()
        took.append(time.monotonic() - before)
        loaded.start_digits()
    expect(row.locator(".dot.good")).to_be_visible()
    print(f"red after {took} s")
    assert min(took) <= 2, took


def test_replaced(open_page: Open, loaded: Server) -> None:
    """A version without replicas is gray while another version answers in its place, and no finding."""
    page = open_page()
    row = page.get_by_role("region", name="Models").get_by_role("row", name="sharp/2")
    second = loaded.run("bin/selection-container", "sharp", "2")
    expect(row.locator(".dot.good")).to_be_visible()
    second.kill()
    expect(row.locator(".dot.off")).to_have_text("replaced by version 1")
    gray = page.locator(".hint").first.evaluate("(node) => getComputedStyle(node).color")
    expect(row.locator("td").first).to_have_css("color", gray)
    expect(row.get_by_role("link")).to_have_css("color", gray)
    expect(page.get_by_role("row", name="sharp/1").first.locator("td").first).not_to_have_css("color", gray)
    page.get_by_label("Which models").select_option("Retired")
    expect(page.get_by_role("region", name="Models").locator("tbody tr")).to_have_count(1)
    assert "sharp/2" not in page.locator(".verdict").inner_text()


def test_share_in_time(open_page: Open, server: Server) -> None:
    """What clients withdrew or got wrong is neither in time nor late, and what they withdrew is no failure."""
    page = open_page()
    seen = page.evaluate("""async () => {
      const { History } = await import('/page/history.js');
      const { without } = await import('/page/outcomes.js');
      const m = { name: 'm', version: '1', streams: 0, queue_rows: 0, oldest_row_seconds: 0, durations: [] };
      const started = new Date(0).toISOString();
      const at = (uptime, counts) => ({ started, uptime_seconds: uptime, models: [{ ...m, ...counts }] });
      const history = new History();
      history.add(at(10, { requests: 0, judged: 0, in_time: 0, failed: 0 }), []);
      const half = history.add(at(20, { requests: 100, judged: 20, in_time: 10, failed: 10 }), []).get('m/1').inTime;
      const none = history.add(at(30, { requests: 150, judged: 20, in_time: 10, failed: 10 }), []).get('m/1').inTime;
      const outcomes = { ok: 5, canceled_queued: 70, canceled_executing: 4, superseded: 20, unavailable: 1 };
      const [failed, withdrawn] = without([{ name: 'm', version: '1', outcomes }]);
      return { half, none, failed: failed.map((r) => r.name), withdrawn: withdrawn.map((r) => r.name) };
    }""")
    assert seen["half"] == 0.5
    assert seen["none"] is None
    assert seen["failed"] == ["unavailable"]
    assert seen["withdrawn"] == ["canceled_queued", "superseded", "canceled_executing"]


def test_try(open_page: Open, loaded: Server) -> None:
    """A picture, a drawing or JSON gives the model's answer and where its time went."""
    page = open_page("#/model/digits/1")
    box = page.get_by_role("region", name="Try it")
    result = page.locator(".result")
    names = dict(line.split() for line in (TOP / "examples/digits/labels.txt").read_text().splitlines())
    box.get_by_role("button", name="Picture").click()
    box.get_by_label("Choose a picture").set_input_files(TOP / "examples/digits/images/03.png")
    box.get_by_role("button", name="Send").click()
    expect(result.locator(".answer")).to_contain_text(f"label: {names['03.png']}")
    expect(result).to_contain_text("in a batch of")
    expect(result).to_contain_text("execute")
    box.get_by_label("Choose a picture").set_input_files(TOP / "examples/digits/labels.txt")
    expect(box.get_by_role("alert")).to_contain_text("not a picture")
    box.get_by_role("button", name="Send").click()
    expect(box.get_by_role("alert")).to_contain_text("Choose a picture first")

    box.get_by_role("button", name="Draw").click()
    paper = box.locator(".paper").bounding_box()
    assert paper
    page.mouse.move(paper["x"] + paper["width"] / 2, paper["y"] + paper["height"] * 0.15)
    page.mouse.down()
    page.mouse.move(paper["x"] + paper["width"] / 2, paper["y"] + paper["height"] * 0.85, steps=5)
    page.mouse.up()
    box.get_by_role("button", name="Send").click()
    expect(result.locator(".answer")).to_contain_text("label: 1")

    box.get_by_role("button", name="JSON").click()
    pixels, label = heldout()[7]
    text = box.get_by_label("Input of digits as JSON")
    text.fill(str([pixels]))
    box.get_by_role("button", name="Send").click()
    expect(result.locator(".answer")).to_contain_text(f"label: {label}")
    text.fill("[[1, 2]]")
    box.get_by_role("button", name="Send").click()
    expect(box.get_by_role("alert")).to_contain_text("[-1, 8, 8]")
    text.fill("[[1, 2")
    box.get_by_role("button", name="Send").click()
    expect(box.get_by_role("alert")).to_contain_text("JSON")


OPEN_SIZES = """
from shiva_container import Image, Tensor, model, serve

@model(name="pixels", version="1", batched=False,
       inputs=[Tensor("image", "UINT8", [-1, -1, 3])], outputs=[Tensor("size", "INT64", [-1])])
def pixels(image):
    return __import__("numpy").array(image.shape, "int64")

@model(name="files", version="1", inputs=[Image("image")], outputs=[Tensor("size", "INT64", [-1])], batched=False)
def files(image):
    return __import__("numpy").array(image.shape, "int64")

@model(name="clock", version="1", inputs=[], outputs=[Tensor("hands", "INT64", [3])])
def clock():
    return __import__("numpy").array([9, 41, 7], "int64")

serve()
"""


def test_try_before_the_inputs_are_known(open_page: Open, loaded: Server) -> None:
    """No picture is offered, nor anything sent, before it is known which input it is for; what was
    chosen or written by then stays."""
    page = open_page("#/")
    shown = page.evaluate("""async () => {
      const { trial } = await import('/page/try.js');
      const begin = () => {
        const box = trial({ state: {} }, 'm', '1'), at = (what) => box.querySelector(what);
        const kinds = () => [...box.querySelectorAll('.tabs button')].filter((b) => !b.hidden).map((b) => b.value);
        const inputs = [{ name: 'image', datatype: 'UINT8', shape: [-1, -1, 3] }];
        const tell = () => box.update({ inputs, batched: false });
        const sends = () => !at('.primary').disabled, kind = () => at('.tabs [aria-pressed=true]').value;
        return { box, at, kinds, tell, sends, kind };
      };
      const none = begin(), file = begin(), text = begin(), seen = [none.kinds()];
      none.box.update(undefined, undefined);
      seen.push(none.kinds(), none.sends());
      none.tell();
      seen.push(none.kinds(), none.kind(), none.sends());

      const chosen = new DataTransfer();
      const picture = await new Promise((made) => document.createElement('canvas').toBlob(made));
      chosen.items.add(new File([picture], 'a.png', { type: 'image/png' }));
      file.at('[type=file]').files = chosen.files;
      file.at('[type=file]').dispatchEvent(new Event('change'));
      seen.push(file.kind(), file.sends());
      file.tell();
      seen.push(file.kind(), file.sends());

      text.at('textarea').value = '[1]';
      text.at('textarea').dispatchEvent(new Event('input'));
      seen.push(text.sends());
      text.tell();
      return [...seen, text.at('textarea').value];
    }""")
    assert shown[:4] == [["json"], ["json"], False, ["draw", "image", "json"]]
    assert shown[4:] == ["draw", True, "json", False, "image", True, True, "[1]"]


def test_try_open_sizes(open_page: Open, loaded: Server, tmp_path: Path) -> None:
    """An unbatched model of open size takes pictures, is told what was shrunk, and an input of pictures gets the file.

    A model without inputs is asked by the button alone.
    """
    (tmp_path / "open.py").write_text(OPEN_SIZES)
    loaded.run(sys.executable, str(tmp_path / "open.py"))
    until("the models", lambda: all(map(loaded.replicas, ("pixels", "files", "clock"))))
    large = tmp_path / "large.png"
    cv2.imwrite(str(large), np.zeros(1500 * 1200 * 3, "uint8").reshape(1200, 1500, 3))
    for name, size, note in (
        ("pixels", "819,1024,3", "1500 x 1200 pixels, and is sent with 1024 x 819"),
        ("files", "1200,1500,3", ""),
    ):
        page = open_page(f"#/model/{name}/1")
        box = page.get_by_role("region", name="Try it")
        box.get_by_role("button", name="Picture", exact=True).click()
        box.get_by_label("Choose a picture").set_input_files(large)
        box.get_by_role("button", name="Send").click()
        expect(page.locator(".result pre")).to_contain_text(size)
        expect(box.get_by_role("note")).to_contain_text(note)
    page = open_page("#/model/clock/1")
    box = page.get_by_role("region", name="Try it")
    expect(box).to_contain_text("This model takes no inputs.")
    expect(page.locator("main")).to_contain_text("takes no inputs · gives hands INT64 [3]")
    expect(box.get_by_role("textbox")).to_have_count(0)
    box.get_by_role("button").click()
    expect(page.locator(".result pre")).to_contain_text("9,41,7")


SPOTTER = """
from shiva_container import Image, Tensor, model, serve
from shiva_container.masks import outlined
import numpy as np

kinds = [("boxes", "FP32", [-1, 4]), ("scores", "FP32", [-1]), ("labels", "BYTES", [-1]),
         ("keypoints", "FP32", [-1, 2, 3]), ("masks", "BYTES", [-1])]

@model(
    name="spotter", version="1", inputs=[Image("image", height=64, width=64, resize="letterbox")],
    outputs=[*(Tensor(*kind, ragged="count") for kind in kinds), Tensor("count", "INT32", [-1])],
)
def spotter(image, batch):
    boxes = np.float32([[8, 24, 40, 56], [40, 0, 64, 64]])
    grids = np.ones((2, 16, 16), np.float32)
    grids[:, :, 6:] = -1
    points = np.float32([[[30, 40, 0.9], [33, 45, 0.1]], [[50, 20, 0.9], [60, 60, 0.9]]])
    fits = batch.fits["image"]
    n = len(fits)
    return (
        [fit.boxes(boxes) for fit in fits], [np.float32([0.91, 0.5])] * n, [np.array(["cat", "dog"], object)] * n,
        [np.concatenate([fit.points(points[..., :2]), points[..., 2:]], axis=2) for fit in fits],
        [outlined(grids, boxes, (64, 64), fit) for fit in fits],
    )

serve()
"""


def test_try_draws_what_a_detector_found(open_page: Open, loaded: Server, tmp_path: Path) -> None:
    """Boxes with names, points and masks lie over the picture, also if it was taken with the camera on its side."""
    (tmp_path / "spotter.py").write_text(SPOTTER)
    loaded.run(sys.executable, str(tmp_path / "spotter.py"))
    until("the model", lambda: loaded.replicas("spotter"))
    file = cv2.imencode(".jpg", np.zeros((640, 320, 3), "uint8"))[1].tobytes()
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    turned = tmp_path / "turned.jpg"  # 640 x 320 as it is shown
    turned.write_bytes(file[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + file[2:])
    page = open_page("#/model/spotter/1")
    box = page.get_by_role("region", name="Try it")
    box.get_by_role("button", name="Picture", exact=True).click()  # it is there when the inputs are known
    box.get_by_label("Choose a picture").set_input_files(turned)
    box.get_by_role("button", name="Send").click()
    drawing = page.locator(".result canvas")
    expect(drawing).to_have_attribute("aria-label", "Found: cat 0.91, dog 0.50")
    seen = drawing.evaluate("""(canvas) => {
      const paper = canvas.getContext('2d');
      const drawn = ([x, y]) => paper.getImageData(x, y, 1, 1).data.slice(0, 3).some((v) => v > 40);
      const points = [[80, 200], [400, 200], [300, 240], [330, 290], [150, 250], [250, 100], [20, 20]];
      return [canvas.width, canvas.height, ...points.map(drawn)];
    }""")
    #              size    sides of the cat   a point  none   mask  outside of it  nothing
    assert seen == [640, 320, True, True, True, False, True, False, False]


def test_newest_answers(open_page: Open, loaded: Server, tmp_path: Path) -> None:
    """Who waits for a camera stands in the first view; its newest answer in that of the model, drawn
    without the picture."""
    (tmp_path / "spotter.py").write_text(SPOTTER)
    loaded.run(sys.executable, str(tmp_path / "spotter.py"))
    until("the model", lambda: loaded.replicas("spotter"))
    picture = cv2.imencode(".jpg", np.full((320, 640, 3), 255, "uint8"))[1]
    page = open_page("#/model/spotter/1")
    with (
        Client(loaded.addresses["tcp"]) as camera,
        Client(loaded.addresses["tcp"]) as robot,
        Client(loaded.addresses["tcp"]) as plain,
    ):
        waiting = robot.submit("spotter/latest", stream="dock <b>9</b>", wait=True, timeout=PATIENCE)
        first = open_page("#/")
        row = first.get_by_role("region", name="Streams").get_by_role("row", name="dock <b>9</b>")
        expect(row).to_contain_text("no frame has come")
        expect(row).to_contain_text("1: anonymous")
        assert camera.infer("spotter", picture, stream="dock <b>9</b>", seq=7)["labels"].tolist() == ["cat", "dog"]
        assert waiting.result().metadata["seq"] == 7
        expect(row).to_contain_text("old")
        expect(row).to_contain_text("anonymous")
        assert "1: " not in row.inner_text()
        box = page.locator("article", has=page.get_by_role("heading", name="dock <b>9</b>"))
        expect(box).to_contain_text("frame 7")
        drawing = box.locator("canvas")
        expect(drawing).to_have_attribute("aria-label", "Found: cat 0.91, dog 0.50")
        seen = drawing.evaluate("""(canvas) => {
          const paper = canvas.getContext('2d'), inked = (x, y) => paper.getImageData(x, y, 1, 1).data[3] > 0;
          return [canvas.width, inked(60, 100), inked(5, canvas.height - 5)];
        }""")
        assert seen[0] == 480 and seen[1:] == [True, False], f"{seen}: the cat is drawn, and no picture"
        assert camera.infer("spotter", picture, stream="dock <b>9</b>", seq=8).metadata["seq"] == 8
        expect(box).to_contain_text("frame 8")  # without being asked again
        assert page.locator("main b").count() == 0
        # An answer of another kind is shown as text.
        plain.infer("digits", np.zeros((8, 8), "uint8"), stream="desk")
        page.goto(f"{loaded.url}/#/model/digits/1")
        until("the first question", lambda: loaded.ask("/v1/models/digits/latest", who="reader") is not None)
        plain.infer("digits", np.zeros((8, 8), "uint8"), stream="desk", seq=3)
        expect(page.get_by_role("region", name="Newest answer of desk")).to_contain_text("scores FP32 [10]: [")
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        # Whoever may not change the server sees the streams of no other identity.
        own = open_page("#/model/digits/1", who="reader")
        expect(own.get_by_text("There is none that you may see.")).to_be_visible()
        assert loaded.ask("/v1/models/digits/latest", who="reader") == {"known": 0, "answers": []}


def test_pipelines(open_page: Open, loaded: Server) -> None:
    """A pipeline is drawn with how its stages do, drawn again when it changes, and says what is wrong with it.

    Its names are text, in the drawing, too.
    """
    name, stage = '<img src=x onerror="document.title=1">', "<b>see"
    path = f"/v1/pipelines/{urllib.parse.quote(name, safe='')}"
    made = {"inputs": ["image"], "outputs": {"<i>kind</i>": f"{stage}.label"}, "stages": [{"name": stage,
      "model": "digits", "inputs": {"image": "image"}}]}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        loaded.ask(path, made, who="reader", method="PUT")
    loaded.ask(path, made, method="PUT")
    page = open_page(who="reader")
    panel = page.locator("details", has=page.get_by_role("heading", name="Pipelines"))
    box = panel.locator("article", has=page.get_by_role("heading", name=name))
    drawing = box.get_by_role("img", name=f"pipeline {name}")
    expect(drawing).to_contain_text("<i>kind</i>")
    expect(drawing.locator(".figures")).to_have_text("no requests")
    with Client(loaded.addresses["tcp"]) as client:
        client.infer(name, np.zeros((8, 8), "uint8"))
    expect(drawing.locator(".figures")).to_contain_text("1 row a request")
    row = box.get_by_role("row", name=stage)
    expect(row.get_by_role("cell").first).to_have_text("1")
    expect(box.locator(".dot.good")).to_have_text("answers")
    made["stages"] = [{"name": stage, "model": "nobody", "inputs": {"image": "image"}}]
    loaded.ask(path, made, method="PUT")
    expect(box.locator(".dot.bad")).to_have_text("refuses requests")
    expect(box.get_by_role("list",
      name="Why requests are refused")).to_contain_text('no model, application or pipeline "nobody"')
    expect(drawing).to_contain_text("nobody")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert box.locator("img, b, i").count() == 0
    loaded.ask(path, method="DELETE")
    expect(panel).to_contain_text("There are no pipelines.")
    expect(drawing).to_have_count(0)


def test_shows(open_page: Open, loaded: Server) -> None:
    """The page has all that operators ask about, and updates it."""
    page = open_page("#/model/sharp/1")
    texts = ["strategy deadline", "Latency", "Share in time", "Latency profile of", "planned with"]
    for text in (*texts, "Rows of the last batches"):
        expect(page.locator("main")).to_contain_text(text)
    expect(page.get_by_role("region", name="Streams").get_by_role("row")).to_have_count(4)
    expect(page.locator(".plot canvas").first).to_be_visible()
    page.goto(f"{loaded.url}/#/")
    expect(page.get_by_role("list", name="Share of each model").get_by_role("listitem")).to_have_count(3)
    expect(page.get_by_text("Shares over time")).to_be_visible()
    version = page.locator("#version")
    before = version.inner_text()
    expect(version).not_to_have_text(before)


def test_before_it_was_opened(open_page: Open, loaded: Server) -> None:
    """Plots begin with the history that the server has kept while no page was open."""

    def told() -> tuple[str, dict[str, Any]]:
        with loaded.open("/v1/watch?since=0") as events:
            first = [events.readline().decode() for _ in range(6)]
        assert [first[0], first[3]] == ["event: past\n", "event: status\n"]
        return "".join(first), json.loads(first[1].removeprefix("data: "))

    text, past = until("two samples of requests", lambda: next((t for t in [told()] if answered(t[1]) > 1), None))
    page = open_page("#/activity")
    page.route(re.compile("/v1/watch"), lambda route: route.fulfill(content_type="text/event-stream", body=text))
    page.goto(f"{loaded.url}/#/model/sharp/1")
    page.reload()
    in_time = page.locator("figure", has_text="Share in time")
    expect(in_time.locator("canvas")).to_be_visible()
    page.unroute_all()
    again = page.evaluate(
        """async (past) => {
      const { History } = await import('/page/history.js');
      const history = new History();
      history.fill(past);
      history.fill(past);
      const { requests, p99 } = history.tracks.get('sharp/1');
      return [history.last(), history.times.length, requests.length, p99.filter((v) => v > 0).length];
    }""",
        past,
    )
    times = past["times"]
    assert again == [times[-1], len(times), len(times), answered(past)]


def answered(past: dict[str, Any]) -> int:
    """The number of samples in which the loaded model has answered."""
    return next((sum(1 for v in m["p99"] if v) for m in past["models"] if m["name"] == "sharp"), 0)


@pytest.mark.parametrize("path", ["#/", "#/model/sharp/1", "#/model/selection", "#/activity", "#/settings",
  "#/metrics"])
def test_accessible(open_page: Open, loaded: Server, path: str) -> None:
    """No rule of axe is broken, light or dark, and nothing is wider than a phone."""
    page = open_page(path)
    page.locator(".panel:visible").first.wait_for()
    for scheme, width in (("light", 1280), ("dark", 390)):
        page.set_viewport_size({"width": width, "height": 800})
        if page.locator("html").get_attribute("data-theme") != scheme:
            page.get_by_role("button", name="Switch between dark and light").click()
        found = Axe().run(page, context={"exclude": ["tbody tr:nth-child(n + 4)"]})  # rows are alike
        assert found.violations_count == 0, f"{path}, {scheme}, {width}: {found.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than {width}"


def test_login_is_accessible(open_page: Open, loaded: Server) -> None:
    page = open_page(who="")
    page.get_by_role("dialog").wait_for()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_day(open_page: Open, server: Server) -> None:
    """The data that a page keeps for a day is bounded, and a restart shows as a gap, not a peak."""
    page = open_page()
    kept = page.evaluate("""async () => {
      const { History } = await import('/page/history.js');
      const history = new History();
      let peak = 0;
      for (let second = 0; second < 86400; second++) {
        const uptime = second % 7200, name = `m${Math.floor(second / 600)}`; // it restarts, and models come and go
        const now = history.add({
          started: new Date(1000 * (second - uptime)).toISOString(), uptime_seconds: uptime,
          models: ['stays', name].map((name) => ({
            name, version: '1', requests: 100 * uptime, failed: 0, judged: 96 * uptime, in_time: 90 * uptime,
            streams: 0, queue_rows: 1, oldest_row_seconds: 0,
            durations: [{ above_seconds: 0.001, up_to_seconds: 0.002, requests: 100 * uptime }],
          })),
        }, [{ name: 'app', learned: { models: [{ model: `v${Math.floor(second / 600)}`, share: 1 }] } }]);
        peak = Math.max(peak, now.get('stays/1').requests ?? 0);
      }
      const lists = [...history.tracks.values(), ...history.shares.values()].flatMap((t) => Object.values(t));
      return {
        peak, times: history.times.length, longest: Math.max(...lists.map((l) => l.length)),
        tracks: history.tracks.size, shares: Object.keys(history.shares.get('app')).length,
        p50: history.tracks.get('stays/1').p50.at(-1),
      };
    }""")
    assert kept["peak"] == pytest.approx(100)
    assert kept["times"] == kept["longest"] == 600  # seconds
    assert kept["tracks"] == 2
    assert kept["shares"] <= 2, "models that left an application are kept"
    assert 0.001 < kept["p50"] < 0.002


def test_events_in_pieces(open_page: Open, server: Server) -> None:
    """Events are read however the network cuts them."""
    page = open_page()
    told = page.evaluate("""async () => {
      const { events } = await import('/page/stream.js');
      const text = 'event: a\\ndata: {"x":"ä€😀"}\\n\\nevent: b\\ndata: 2\\n\\nevent: cut\\ndata: 3';
      const bytes = new TextEncoder().encode(text), all = [];
      for (let size = 1; size <= bytes.length; size++) {
        const told = [];
        const body = new ReadableStream({ start(c) {
          for (let at = 0; at < bytes.length; at += size) c.enqueue(bytes.slice(at, at + size));
          c.close();
        } });
        await events(body, (name, text) => told.push([name, JSON.parse(text)]));
        all.push(JSON.stringify(told));
      }
      return [...new Set(all)];
    }""")
    assert told == ['[["a",{"x":"ä€😀"}],["b",2]]']


def test_names_are_text(open_page: Open, server: Server) -> None:
    """The page shows every name as text, whatever it contains."""
    name = '<img src=x onerror="document.title=1"><b>bold</b>'
    with pytest.raises(urllib.error.HTTPError, match="403"):
        server.ask(f"/v1/apps/{urllib.parse.quote(name, safe='')}", {"models": ["sharp"]}, who="reader", method="PUT")
    page = open_page("#/activity")
    expect(page.get_by_role("region", name="Audit")).to_contain_text(name)
    assert page.locator("main img, main b").count() == 0
    page.goto(f"{server.url}/#/model/{urllib.parse.quote(name, safe='')}/1")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert page.locator("main img, main b").count() == 0


def test_pictures(open_page: Open, loaded: Server, tmp_path: Path) -> None:
    """The pictures of the README are of this run."""
    folder = Path(os.environ.get("PAGE_PICTURES", tmp_path))
    folder.mkdir(exist_ok=True)
    seconds = 20 if "PAGE_PICTURES" in os.environ else 1
    for name, path, scheme, width, height in (
        ("overview", "#/", "light", 1280, 900),
        ("model", "#/model/sharp/1", "dark", 1280, 900),
    ):
        page = open_page(path, unfolded=False, color_scheme=scheme, viewport={"width": width, "height": height})
        if name == "model":
            page.locator("summary", has_text="Try it").click()
            page.locator("summary", has_text="Batches").click()
            page.get_by_role("button", name="Picture").click()
            page.get_by_label("Choose a picture").set_input_files(TOP / "examples/digits/images/03.png")
            page.get_by_role("button", name="Send").click()
            page.locator(".answer").wait_for()
        for row in heldout()[20 : 20 + 3 * seconds : 3]:
            loaded.ask("/v1/apps/selection/feedback", {"input": [row[0]], "label": row[1]})
            page.wait_for_timeout(1000)
        page.evaluate("scrollTo(0, 0)")  # the head goes with it
        page.screenshot(path=folder / f"{name}.png", full_page=True)
        assert (folder / f"{name}.png").stat().st_size > 10_000


def test_restart(open_page: Open, loaded: Server) -> None:
    """An open page shows that the server is unreachable, and continues when it is back."""
    page = open_page()
    page.evaluate("window.same = true")
    loaded.stop()
    expect(page.locator("#notice")).to_contain_text("does not answer")
    expect(page.locator("#health")).to_have_text("no connection")
    expect(page).to_have_title(re.compile(r"^\(!\) "))
    expect(page.get_by_role("region", name="Verdict").locator(".main h2")).to_have_text("The server does not answer.")
    loaded.start()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#health")).not_to_have_text("no connection")
    containers = page.get_by_role("region", name="Connected containers")
    expect(containers.get_by_role("row", name="sharp/1")).to_contain_text("serving")
    assert page.evaluate("window.same"), "the page was loaded again, though it is the same"
    # The restarted server checks the token again.
    page.evaluate("sessionStorage.setItem('shivad.token', 'another')")
    loaded.stop()
    loaded.start()
    page.get_by_role("dialog", name="Sign in").wait_for()
