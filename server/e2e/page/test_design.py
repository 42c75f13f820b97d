"""What the page promises to those who look at it: what it says first, and that all can read and use it."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import TOKENS, Server, until
from playwright.sync_api import Page, expect

Open = Callable[..., Page]

STATUS = """
  const model = (name, more) => ({ name, version: '1', replicas: 1, failing: 0, absence: '', slo_seconds: 0.1,
    ...more });
  const judge = (more, now = {}, rest = {}) => findings({ status: {
    readiness: { ready: true }, models: [model('a')], warnings: [], clients: [], queue: { oldest_row_seconds: 0 },
      payload_bytes: { used: 0, limit: 10 }, ...more,
  }, now: new Map(Object.entries(now)), minute: { span: 60 }, ...rest }).map((f) => `${f.kind}: ${f.text}`);
"""


def test_verdict(open_page: Open, server: Server) -> None:
    """The worst comes first, in one sentence; what is retired, seldom asked or withdrawn by clients is no finding."""
    page = open_page()
    said: list[list[str]] = page.evaluate(f"""async () => {{
      const {{ findings }} = await import('/page/verdict.js');
      {STATUS}
      const slow = {{ judged: 10, inTime: 0.42, requests: 10 }};
      return [
        judge({{}}),
        judge({{ models: [model('a', {{ replicas: 0, absence: 'replaced by version 2' }})] }}),
        judge({{ warnings: ['the certificate of tcp expires soon.'], models: [model('a'), model('b', {{
          replicas: 0 }}), model('c', {{ replicas: 0 }})] }}),
        judge({{ readiness: {{ ready: false, reason: 'no live replica of a' }} }}),
        judge({{}}, {{ 'a/1': slow }}),
        judge({{}}, {{ 'a/1': {{ ...slow, judged: 0.1 }} }}),
        judge({{}}, {{ 'a/1': slow }}, {{ minute: {{ span: 1 }} }}),
        judge({{}}, {{ 'a/1': slow }}, {{ lost: true }}),
        judge({{}}, {{}}, {{ batches: {{ models: [{{ name: 'a', version: '1', outcomes: {{ ok: 900, queue_rows: 100,
          superseded: 5000 }} }}] }} }}),
        judge({{}}, {{}}, {{ batches: {{ models: [{{ name: 'a', version: '1', outcomes: {{ ok: 900,
          superseded: 5000 }} }}] }} }}),
        judge({{}}, {{}}, {{ pipelines: {{ pipelines: [{{ name: 'p', faults: ['nobody serves x'] }}] }} }}),
        judge({{ warnings: ['w'], queue: {{ oldest_row_seconds: 0 }} }}, {{ 'a/1': slow }}),
        judge({{ payload_bytes: {{ used: 9, limit: 10 }}, queue: {{ oldest_row_seconds: 3 }} }}),
      ];
    }}""")
    assert said == [
        [],
        [],
        ["bad: b/1 and c/1 have no replica: requests for them fail.", "warn: The certificate of tcp expires soon."],
        ["bad: Not ready: no live replica of a."],
        ["bad: a/1 answers only 42\xa0% of its requests in time, within 100\xa0ms."],
        [],
        [],
        ["bad: The server does not answer."],
        ["warn: 10\xa0% of the requests to a/1 fail, most of them by reason of queue rows."],
        [],
        ["bad: Pipeline p refuses requests: nobody serves x."],
        ["bad: a/1 answers only 42\xa0% of its requests in time, within 100\xa0ms.", "warn: W."],
        ["warn: Requests wait for up to 3\xa0s.", "warn: Payloads take 9\xa0B of the 10\xa0B that they may."],
    ]


def test_what_matters_is_first(open_page: Open, loaded: Server) -> None:
    """The verdict is what the page begins with; head, tab and icon show a trouble in every view,
    and its sentence leads there."""
    page = open_page(unfolded=False)
    assert page.evaluate("document.querySelector('main').firstElementChild.firstElementChild.className").startswith(
        "verdict"
    )
    loaded.digits.kill()
    verdict = page.get_by_role("region", name="Verdict")
    expect(verdict.locator(".main h2")).to_have_text("digits/1 has no replica: requests for it fail.")
    expect(page).to_have_title(re.compile(r"^\(!\) "))
    expect(page.locator("link[type='image/svg+xml']")).to_have_attribute("href", "/page/icon-alert.svg")
    verdict.get_by_role("link", name="Look").click()
    expect(page).to_have_url(re.compile("#/model/digits/1$"))
    page.get_by_role("link", name="Activity").click()
    expect(page.locator("#health")).to_have_class("pill bad")
    loaded.start_digits()
    page.get_by_role("link", name="Overview").click()
    expect(verdict.locator(".main h2")).not_to_contain_text("digits/1 has no replica")


def test_hidden(open_page: Open, server: Server) -> None:
    """The head, and with it the icon of the tab, is that of the server also while nobody looks: at once
    as long as the page reads, and once a minute when it has stopped."""
    page = open_page(unfolded=False)
    page.clock.install()
    page.evaluate(
        """() => {
          Object.defineProperty(document, 'hidden', { get: () => !window.looks });
          window.requestAnimationFrame = () => 0; // a hidden page is not drawn
          document.dispatchEvent(new Event('visibilitychange'));
          document.title = '';
        }"""
    )
    title = re.compile("shivad")
    expect(page).to_have_title(title)
    page.clock.fast_forward(11_000)
    page.wait_for_timeout(100)
    page.evaluate("document.title = ''")
    page.wait_for_timeout(2500)
    assert page.title() == "", "a hidden page reads on"
    page.clock.fast_forward(61_000)
    expect(page).to_have_title(title)
    page.evaluate("document.title = ''")
    page.wait_for_timeout(2500)
    assert page.title() == "", "a look does not end"
    page.evaluate("looks = true; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page).to_have_title(title)


def test_folds(open_page: Open, loaded: Server) -> None:
    """What is not the verdict or the models is folded, opens by the keyboard, and stays as it was left."""
    page = open_page(unfolded=False)
    part = {
        name: page.locator("details.panel", has=page.get_by_role("heading", name=name, exact=True))
        for name in ("Models", "Containers", "Applications")
    }
    state = """() => [...document.querySelectorAll('main details.panel')]
      .filter((d) => d.open).map((d) => d.querySelector('h2').textContent)"""
    expect(part["Containers"]).to_contain_text("connected")
    assert page.evaluate(state) == ["Models"]
    part["Containers"].locator("summary").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Connected containers")).to_be_visible()
    part["Models"].locator("summary").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("region", name="Models")).to_be_hidden()
    until(
        "what is open is kept",
        lambda: (
            page.evaluate("JSON.parse(localStorage.getItem('shivad.folds'))") == {"Models": False, "Containers": True}
        ),
    )
    page.reload()
    expect(page.get_by_role("region", name="Connected containers")).to_be_visible()
    assert page.evaluate(state) == ["Containers"]


def test_latency_axis(open_page: Open, loaded: Server) -> None:
    """Latency has a logarithmic axis, and the SLO a line only where that does not flatten the rest."""
    page = open_page("#/model/sharp/1")
    key = page.locator("figure", has_text="Latency").first.locator(".key")
    expect(key).to_contain_text("SLO 50 ms")
    page.goto(f"{loaded.url}/#/model/digits/1")
    expect(page.locator("main")).to_contain_text("The SLO, 30 s, is far above.")
    expect(key).to_contain_text("p99")
    expect(key).not_to_contain_text("SLO")
    apart: list[float] = page.evaluate("""async () => {
      const { plot } = await import('/page/plots.js');
      const real = uPlot;
      let drawn = null;
      window.uPlot = function (...all) { return (drawn = new real(...all)); };
      const node = plot({ title: 't', y: { log: true }, series: [{ label: 's', n: 0 }] });
      document.querySelector('main').append(node);
      node.fill([[1, 2, 3], [1, 10, 100]]);
      while (!drawn?.scales.y.max) await new Promise(requestAnimationFrame);
      const [low, middle, high] = [1, 10, 100].map((v) => drawn.valToPos(v, 'y'));
      return [low - middle, middle - high];
    }""")
    assert apart[0] > 0 and apart[0] == pytest.approx(apart[1], abs=1), "a decade is as high as any other"
    steps = page.evaluate("import('/page/plots.js').then(({ steps }) => [steps(0.001, 0.02), steps(1e-4, 10)])")
    assert steps == [[0.001, 0.002, 0.005, 0.01, 0.02], [0.0001, 0.001, 0.01, 0.1, 1, 10]]


def test_head(open_page: Open, server: Server) -> None:
    """Head and tab say which server this is: host, addresses, version. The icon is there, for a
    page without one, too."""
    page = open_page()
    version = server.ask("/v1/status")["version"]
    expect(page.locator("#host")).to_have_text(socket.gethostname())
    expect(page.locator("#version")).to_contain_text(f"shivad {version}")
    for kind, key in (("Shiva", "tcp"), ("containers", "containers"), ("admin", "admin")):
        expect(page.get_by_role("list", name="Addresses")).to_contain_text(f"{kind} {server.addresses[key]}")
    host = f"{socket.gethostname()} · {server.addresses['admin']} · shivad {version}"
    expect(page).to_have_title(re.compile(re.escape(host) + "$"))
    page.get_by_role("link", name="Settings").click()
    expect(page).to_have_title(re.compile(re.escape(f"Settings · {host}") + "$"))
    icons = page.evaluate("[...document.querySelectorAll('link[rel=icon]')].map((link) => link.href)")
    for address in [*icons, f"{server.url}/favicon.ico"]:
        answer = page.request.get(address)
        assert answer.ok and answer.headers["content-type"].startswith("image/"), address


def names(page: Page) -> list[str]:
    return page.get_by_role("region", name="Models").locator("tbody a").all_inner_texts()


def test_models_are_found(open_page: Open, loaded: Server) -> None:
    """Models are searched, filtered and sorted, by the keyboard, too; the choice stays, and so does the focus."""
    page = open_page()
    rows = page.get_by_role("region", name="Models").locator("tbody tr")
    expect(rows.first).to_contain_text("blurred/1")
    search = page.get_by_label("Search models")
    search.fill("SHARP")
    expect(rows.first).to_contain_text("sharp/1")
    assert all("sharp" in name for name in names(page))
    search.fill("no such")
    expect(page.get_by_text("No model is like this.")).to_be_visible()
    search.fill("")
    expect(rows.first).to_contain_text("blurred/1")
    page.get_by_label("Which models").select_option("With requests")
    expect(page.get_by_role("region", name="Models").get_by_role("row", name="inked/1")).to_have_count(0)
    expect(rows.first).to_contain_text("digits/1")
    link = page.get_by_role("region", name="Models").get_by_role("link", name="digits/1")
    head = page.get_by_role("columnheader", name="Requests")
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(rows.first).to_contain_text("sharp/1")
    page.keyboard.press("Space")
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(rows.first).to_contain_text("digits/1")
    link.focus()
    head.get_by_role("button").evaluate("(button) => button.click()")
    expect(rows.first).to_contain_text("sharp/1")
    expect(link).to_be_focused()
    page.reload()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_label("Which models")).to_have_value("busy")
    page.get_by_role("button", name="Closed because").click()
    expect(page.get_by_role("columnheader", name="Closed because")).to_have_attribute("aria-sort", "ascending")
    ranked = page.evaluate("""async () => {
      const { sorted } = await import('/page/table.js');
      const by = (v) => v, list = [null, 2, 10, undefined, 1];
      return [sorted(list, { by }, false), sorted(list, { by }, true), sorted(['m/10', 'm/9'], { by }, false)];
    }""")
    assert ranked == [[1, 2, 10, None, None], [10, 2, 1, None, None], ["m/9", "m/10"]]


def test_a_week(open_page: Open, server: Server) -> None:
    """What goes is closed, and nothing else moves; what folds costs nothing while it is closed; the
    focus stays on a finding whose figures change."""
    page = open_page(unfolded=False)
    seen: dict[str, Any] = page.evaluate("""async () => {
      const { each, el } = await import('/page/dom.js');
      const { fold } = await import('/page/fold.js');
      const { verdict } = await import('/page/verdict.js');
      const log = [], list = el('ul');
      const make = (k) => {
        const node = el('li', { tabindex: '0' });
        node.close = () => log.push(`closed ${k}`);
        return node;
      };
      const main = document.querySelector('main');
      const fill = (...items) => each(list, items, (k) => k, make);
      main.replaceChildren(list);
      fill('a', 'b', 'c');
      list.children[2].focus();
      const moves = new MutationObserver(() => {});
      moves.observe(list, { childList: true });
      fill('b', 'c');
      const moved = moves.takeRecords().length;
      fill('c', 'b', 'd');
      const held = document.activeElement === list.children[0];

      const part = fold('Nothing that the page has', false);
      let drawn = 0;
      part.fill(() => drawn++);
      part.fill(() => drawn++);
      const closed = drawn;
      const opened = new Promise((done) => part.addEventListener('toggle', done, { once: true }));
      main.append(part);
      part.open = true;
      await opened;

      const box = verdict();
      main.append(box);
      const tell = (n) => box.update({ status: { models: [] }, minute: { span: 60 }, found: [
        { kind: 'bad', text: 'first' }, { kind: 'warn', text: `${n} % fail`, href: '#/model/a/1' }] });
      tell(1);
      box.querySelector('details').open = true;
      const link = box.querySelector('.findings a');
      link.focus();
      tell(2);
      return { log, moved, held, closed, drawn, focus: document.activeElement.textContent };
    }""")
    assert seen == {"log": ["closed a"], "moved": 1, "held": True, "closed": 0, "drawn": 1, "focus": "2 % fail"}


def test_cut_off_address(open_page: Open, server: Server) -> None:
    """An address that was cut off within a letter shows the whole."""
    page = open_page("#/model/%E4%BD")
    expect(page.get_by_role("region", name="Verdict")).to_be_visible()


def test_no_language(open_page: Open, loaded: Server) -> None:
    """Plots are drawn, too, where the browser's language is none that numbers have a form in."""
    page = open_page()
    page.add_init_script("Object.defineProperty(Navigator.prototype, 'language', { get: () => 'C' })")
    page.reload()
    expect(page.locator(".spark canvas")).to_be_visible()
    expect(page.get_by_role("region", name="Models").get_by_role("row", name="sharp/1")).to_be_visible()


def test_many_models(open_page: Open, server: Server) -> None:
    """With ten thousand models the table has a hundred rows, and the search finds the others."""
    page = open_page()
    seen = page.evaluate("""async () => {
      const { models } = await import('/page/models.js');
      const table = models(), one = (i) => ({ name: `m${i}`, version: '1', replicas: 1, failing: 0, absence: '',
        queue_rows: 0, streams: 0 });
      document.body.append(table);
      table.fill(Array.from({ length: 10000 }, (_, i) => one(i)));
      const shown = [table.querySelectorAll('tbody tr').length, table.querySelector('[role=status]').textContent];
      table.querySelector('[type=search]').value = 'M9999';
      table.querySelector('[type=search]').dispatchEvent(new Event('input'));
      shown.push(table.querySelector('tbody').textContent.includes('m9999/1'),
        table.querySelector('[role=status]').textContent);
      table.remove();
      return shown;
    }""")
    assert seen == [100, "the first 100 of 10,000", True, "1 of 10,000 models"]


def test_phone(open_page: Open, loaded: Server) -> None:
    """At 390 px p99 and the share in time are seen first; a table shows that it scrolls, by
    touch and by keyboard, and the name stays."""
    page = open_page(viewport={"width": 390, "height": 844})
    table = page.get_by_role("region", name="Models")
    expect(table.locator("tbody tr").first).to_be_visible()
    heads = table.get_by_role("columnheader").all()
    assert [h.inner_text().strip("▴▾ ") for h in heads[:3]] == ["Model", "p99", "In time"]
    assert page.locator(".tile .label").all_inner_texts()[:2] == ["In time", "p99"]
    for head in heads[:3]:
        box = head.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390
    hint = page.locator(".table", has=table).locator(".hint")
    expect(hint).to_have_text("more to the right →")
    table.focus()
    page.keyboard.press("ArrowRight")
    table.evaluate("(box) => box.scrollTo(box.scrollWidth, 0)")
    expect(hint).to_have_text("← more to the left")
    name = table.get_by_role("link", name="sharp/1").bounding_box()
    assert name and 0 <= name["x"] < 60
    page.goto(f"{loaded.url}/#/settings")
    expect(page.get_by_role("row", name="Memory shared with containers")).to_be_visible()
    wide = "[...document.querySelectorAll('tbody th')].filter((th) => th.scrollWidth > th.clientWidth)"
    assert page.evaluate(f"{wide}.map((th) => th.textContent)") == [], "names that lie over the next column"
    page.goto(f"{loaded.url}/#/")
    page.set_viewport_size({"width": 1280, "height": 844})
    expect(hint).to_be_hidden()
    expect(table).not_to_have_attribute("tabindex", "0")


def test_figures(open_page: Open, server: Server) -> None:
    """Numbers have three digits at most, in a unit that people count in."""
    page = open_page()
    shown = page.evaluate("""async () => {
      const { perSecond, rate, share, took } = await import('/page/format.js');
      return [
        [0, 0.00197, 0.123456, 3.14159, 123.456, 1234567].map(rate), [0, 0.00001, 0.00197, 0.5, 1, 470.12,
          12345].map(perSecond),
        [0, 0.00001, 0.12345, 0.99999, 1].map(share), [0, 1e-8, 0.00123456, 0.5123, 90, 100000].map(took),
      ];
    }""")
    assert shown == [
        ["0", "under 0.01", "0.12", "3.14", "123", "1.23M"],
        ["0", "under 0.01/min", "0.12/min", "30/min", "1/s", "470/s", "12.3k/s"],
        ["0\xa0%", "under 0.01\xa0%", "12.3\xa0%", ">99.9\xa0%", "100\xa0%"],
        ["0\xa0s", "under 1\xa0µs", "1.2\xa0ms", "512\xa0ms", "90\xa0s", "28\xa0h"],
    ]


def test_activity_is_sentences(open_page: Open, loaded: Server) -> None:
    """Who did what is said in sentences; neither they nor the log show JSON."""
    page = open_page("#/activity")
    said: list[str] = page.evaluate(r"""async () => {
      const { sentence } = await import('/page/sentences.js');
      const json = JSON.stringify;
      return [
        { identity: 'ann', action: 'change', what: 'model', name: 'm', before: json({ deadline: '50ms',
          keep: 'all' }), after: json({ deadline: '30ms', keep: 'all' }) },
        { identity: 'ann', action: 'create', what: 'application', name: 'x', after: json({ name: 'x', models: ['a',
          'b'], params: { eta: 0.5 } }) },
        { identity: 'ann', action: 'delete', what: 'pipeline', name: 'p', before: json({ name: 'p' }) },
        { address: '10.0.0.1:4', action: 'PUT', what: 'path', name: '/v1/apps/x', refused: true,
          error: 'it lacks admin:write' },
        { container: 'c', action: 'leave', what: 'container', name: 'm/1', after: json({ rpc: 'v4',
          reason: 'it hung up' }) },
        { identity: 'ann', action: 'reload', what: 'configuration', after: json({ changed: [{ key: 'log.level',
          before: 'info', after: 'debug' }], waiting: [] }) },
        { identity: 'ann', action: 'load', what: 'model', name: 'm', error: 'it has no container' },
        { identity: 'ann', action: 'clear', what: 'cache', name: 'm', before: json({ name: 'm', entries: 3,
          bytes: 99 }) },
        { action: 'retire', what: 'model', name: 'm/1', after: json({ told_goodbye: 1, stay_idle: 0 }) },
        { identity: 'ann', action: 'create', what: 'application', name: 'x', after: '{"name": "x", "mod…' },
      ].map(sentence);
    }""")
    assert said == [
        "ann changed the model m: deadline from 50ms to 30ms",
        "ann created the application x: models a, b; params eta 0.5",
        "ann deleted the pipeline p",
        "Somebody may not send PUT to /v1/apps/x: it lacks admin:write",
        "Container c no longer serves m/1: it hung up",
        "ann reloaded the configuration: log.level from info to debug",
        "ann could not load the model m: it has no container",
        "ann cleared the cache of m: entries 3; bytes 99",
        "The server retired the model m/1: told goodbye 1; stay idle 0",
        "ann created the application x",
    ]
    expect(page.get_by_role("region", name="Audit")).to_contain_text(
        "operator created the application selection: models sharp, inked, blurred"
    )
    expect(page.get_by_role("region", name="Log")).to_contain_text("container process started")
    assert not re.search(r'[{\[]"', page.locator("main").inner_text())


def test_links(open_page: Open, server: Server) -> None:
    """The manual, the metrics and the description of the API are one click away, also where a token is required."""
    page = open_page()
    for name, text in (("Manual", "<h1"), ("API", '"openapi"')):
        address = page.get_by_role("link", name=name, exact=True).get_attribute("href")
        answer = page.request.get(f"{server.url}{address}")
        assert answer.ok and text in answer.text(), name
    page.get_by_role("link", name="Metrics").click()
    metrics = page.get_by_role("region", name="Metrics")
    expect(metrics).to_contain_text("shivad_payload_bytes")
    page.get_by_label("Search metrics").fill("LOG_LINES")
    expect(metrics).not_to_contain_text("shivad_payload_bytes")
    expect(metrics).to_contain_text("shivad_log_lines_lost_total")


def test_settings(open_page: Open, loaded: Server) -> None:
    """Limits, identities and settings are to be read by those who may, without what would let anybody in."""
    page = open_page("#/settings", who="reader")
    expect(page.get_by_role("region", name="Limits").get_by_role("row",
      name="Payload memory")).to_contain_text("4 GiB")
    expect(
        page.get_by_role("region", name="Limits").get_by_role("row", name="Connections through tcp")
    ).to_contain_text("1,024")
    camera = page.get_by_role("region", name="Identities").get_by_role("row", name="camera")
    expect(camera).to_contain_text("requests_per_second 500")
    expect(camera).to_contain_text("1 token")
    settings = page.get_by_role("region", name="Settings")
    page.get_by_label("Search settings").fill("sharp.queue_rows")
    expect(settings.locator("tbody tr")).to_have_count(1)
    expect(settings.get_by_role("row", name="model.sharp.queue_rows")).to_contain_text("64")
    page.get_by_label("Search settings").fill("admin.tls.cert")
    expect(page.get_by_text("No setting is like this.")).to_be_visible()
    page.get_by_label("also those that are not set").check()
    expect(settings.get_by_role("row", name="admin.tls.cert")).to_contain_text("not set")
    page.get_by_label("Search settings").fill("")
    assert "token_sha256" not in page.content()
    page.goto(f"{loaded.url}/#/model/sharp/1")
    expect(
        page.get_by_role("region", name="Settings of sharp").get_by_role("row", name="deadline 50ms")
    ).to_be_visible()
    page = open_page("#/settings", who="")
    page.get_by_label("Token").fill(TOKENS["camera"])
    page.keyboard.press("Enter")
    expect(page.locator("#login-why")).to_contain_text('Identity "camera" lacks the right admin:read')
    assert "payload_bytes" not in page.content()
    assert page.get_by_role("region", name="Limits").count() == 0
    assert (
        page.request.get(f"{loaded.url}/v1/config", headers={"Authorization": f"Bearer {TOKENS['camera']}"}).status
        == 403
    )


def test_words(open_page: Open, loaded: Server) -> None:
    """The words are those of the field, and of the tool."""
    page = open_page()
    expect(
        page.get_by_role("region", name="Connected containers").get_by_role("columnheader", name="In flight")
    ).to_be_visible()
    expect(page.get_by_role("columnheader", name="Closed because")).to_be_visible()
    text = page.locator("main").inner_text()
    page.goto(f"{loaded.url}/#/model/digits/1")
    expect(page.get_by_role("button", name="Clear", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Closed because")).to_be_visible()
    text += page.locator("main").inner_text()
    assert not re.search("in hand|wipe|empty its|closed by|mostly", text, re.IGNORECASE)


@pytest.mark.parametrize("path", ["#/", "#/model/sharp/1", "#/activity", "#/settings"])
def test_zoom_and_forced_colours(open_page: Open, loaded: Server, path: str) -> None:
    """At 200 % and at 400 % nothing is cut off; in forced colours no rule of axe is broken, and
    a state has a shape."""
    page = open_page(path, viewport={"width": 640, "height": 400}, device_scale_factor=2)
    page.locator(".panel:visible").first.wait_for()
    for width in (640, 320):
        page.set_viewport_size({"width": width, "height": 400})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than {width}"
        assert page.evaluate("getComputedStyle(document.querySelector('header')).position") == "static"
    forced = open_page(path, forced_colors="active")
    forced.locator(".panel:visible").first.wait_for()
    found = Axe().run(forced, context={"exclude": ["tbody tr:nth-child(n + 4)"]})
    assert found.violations_count == 0, found.generate_report()
    shapes = forced.evaluate(
        "[...document.querySelectorAll('.dot')].map((dot) => getComputedStyle(dot, '::before').content)"
    )
    assert all(shape.strip('"')[:1] in "○●▲✕" for shape in shapes) and (shapes or path == "#/settings")


@pytest.mark.parametrize("path", ["#/", "#/model/sharp/1", "#/settings"])
def test_keyboard(open_page: Open, loaded: Server, path: str) -> None:
    """All that can be used is reached by Tab, in the order in which it is read, shows the focus, and lets it go."""
    page = open_page(path, unfolded=False)
    page.locator("main summary:visible").first.wait_for()
    page.wait_for_timeout(1500)  # for the first figures, which change what there is
    usable = """const
      name = (n) => n.tagName + ' ' + (n.getAttribute('aria-label') ?? n.textContent).trim().slice(0, 30),
      usable = () => [...document.querySelectorAll('a[href], button, input, select, summary, textarea')]
        .filter((n) => n.checkVisibility() && !n.disabled);"""
    page.evaluate(f"() => {{ {usable} document.activeElement.blur(); window.atFirst = new Set(usable()); }}")
    # The figures go on changing what there is: places are compared at each step, and not by number.
    look = f"""() => {{ {usable}
      const node = document.activeElement, before = window.focused;
      if (node === document.body || node === window.firstFocused) return null;
      window.firstFocused ??= node;
      window.focused = node;
      const follows = !before?.isConnected || before.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING;
      return [name(node), Boolean(follows), getComputedStyle(node).outlineStyle !== 'none'];
    }}"""
    path_taken: list[tuple[str, bool, bool]] = []
    for _ in range(400):
        page.keyboard.press("Tab")
        here = page.evaluate(look)
        if here is None:
            break
        path_taken.append(tuple(here))
    else:
        pytest.fail("the focus does not leave the page")
    assert all(follows for _, follows, _ in path_taken), path_taken
    assert all(shown for _, _, shown in path_taken), path_taken
    wanted = page.evaluate(f"() => {{ {usable} return usable().filter((n) => window.atFirst.has(n)).map(name); }}")
    assert wanted
    reached = {name for name, _, _ in path_taken}
    assert not set(wanted) - reached
