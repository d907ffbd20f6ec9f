"""The report: one file, no network, every name shown and none executed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.graph import Builder, Role, annotate, new_model, set_role, set_updates
from ontrain.session.report import write_report

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "]]>&lt;&amp;\u2028\u2029\x00\ud800'`${1}",
)
VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Checks that tags nest; collects tags, attributes and the data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + text
        if text.startswith("{"):
            self.texts["data"] = text

    @property
    def data(self) -> Any:
        return json.loads(self.texts["data"])


def small_step() -> ir.Model:
    """w ← w − lr · xᵀ·(x·w), with a source line on the product."""

    def tensor(name: str, shape: list[int | str], role: Role) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        return set_role(value, role)

    x, w = tensor("x", ["batch", 4], Role.INPUT), tensor("w", [4, 2], Role.PARAMETER)
    lr = tensor("lr", [], Role.HYPER)
    model = new_model([x, w, lr], "small step")
    op = Builder(model.graph)
    y = op.MatMul(x, w)
    annotate(y.producer(), "model.py:12: return x @ self.w", "head")
    grad = op.MatMul(op.Transpose(x, perm=[1, 0]), y)
    new = op.Sub(w, op.Mul(lr, op.Mul(grad, 0.5)))
    model.graph.outputs.append(set_updates(new, "w"))
    return model


def chain(length: int) -> ir.Model:
    """Relu after Relu, an Add at every tenth place."""
    x = ir.Value(name="x", shape=ir.Shape([8]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "chain")
    op, value = Builder(model.graph), x
    for i in range(length):
        value = op.Add(value, x) if i % 10 == 0 else op.Relu(value)
    model.graph.outputs.append(value)
    return model


def report(folder: Path, graph: ir.Model | None = None, **changed: Any) -> str:
    path = folder / "report.html"
    rows = [{"step": i, "split": "train", "loss": 5 / i, "ppl": 9.0, "ms": 2.0, "lr": 0.1} for i in range(1, 50)]
    content = {
        "title": "A run",
        "metrics": [*rows, {"step": 49, "split": "valid", "loss": 0.5, "ppl": 1.6}],
        "operators": [{"operator": "MatMul", "calls": 2, "milliseconds": 1.5}],
        "peak_memory": {"arena": 3 << 20},
        "facts": {"torch": "2.x"},
    }
    write_report(path, graph=graph or small_step(), **{**content, **changed})  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium to open the page in")


def opened(chromium: str, page: Path, fragment: str = "", script: str = "") -> str:
    """The page as a browser has built it, after `script` ran at its end; what `script` throws lands in the title."""
    copy = page.with_name("opened.html")
    guard = "<head><script>onerror = message => { document.documentElement.dataset.error = message; };</script>"
    text = page.read_text(encoding="utf-8").replace("<head>", guard, 1)
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}"]
    command = [chromium, *flags, "--virtual-time-budget=3000", "--dump-dom", f"{copy.as_uri()}{fragment}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "data-error" not in done.stdout[:2000], done.stdout[:2000]
    return done.stdout


def found_line(dom: str) -> str:
    match = re.search(r'id="found"[^>]*>([^<]*)<', dom)
    assert match is not None
    return match.group(1)


def test_the_page_is_well_formed_and_holds_every_node(tmp_path: Path) -> None:
    model = chain(300)
    page = Page(report(tmp_path, model))
    assert page.tags.count("script") == 2
    assert len(page.data["graph"]["nodes"]) == 300
    assert page.data["graph"]["nodes"][0][0] == "Add"


def test_the_page_asks_for_nothing_outside_itself(tmp_path: Path) -> None:
    text = report(tmp_path)
    assert "//" not in text
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|sendBeacon|WebSocket", text)
    assert not {name for name, _ in Page(text).attributes} & {"src", "href", "action", "data", "srcset", "poster"}


def test_values_carry_role_shape_constant_and_update(tmp_path: Path) -> None:
    graph = Page(report(tmp_path)).data["graph"]
    values = {name: (shape, remark) for name, shape, remark in graph["values"]}
    assert values["x"] == ("float[batch, 4]", "graph input")
    assert values["w"] == ("float[4, 2]", "parameter")
    assert values[graph["values"][graph["outputs"][0]][0]] == ("float[4, 2]", "new w")
    assert ("float[]", "constant 0.5") in values.values()
    assert graph["nodes"][0][4] == "model.py:12: return x @ self.w (in head)"
    assert graph["nodes"][1][5] == "perm=(1, 0)"


def test_nodes_of_subgraphs_are_listed(tmp_path: Path) -> None:
    model = small_step()
    inner = ir.Graph([], [], nodes=[], name="then")
    x = model.graph.inputs[0]
    negation = ir.Node("", "Neg", [x], num_outputs=1)
    inner.append(negation)
    inner.outputs.append(negation.outputs[0])
    branch = ir.Attr("then_branch", ir.AttributeType.GRAPH, inner)
    model.graph.append(ir.Node("", "If", [x], [branch], num_outputs=1))
    operators = [node[0] for node in Page(report(tmp_path, model)).data["graph"]["nodes"]]
    assert "If" in operators
    assert "Neg" in operators


def test_a_large_constant_is_not_written_out(tmp_path: Path) -> None:
    model = small_step()
    op = Builder(model.graph)
    op.Add(model.graph.inputs[1], op.const(np.full((500, 4, 2), 7.25, np.float32)))
    text = report(tmp_path, model)
    assert "7.25" not in text
    assert "float[500, 4, 2]" in text


def hostile_model() -> ir.Model:
    x = ir.Value(
        name=HOSTILE[0], shape=ir.Shape([HOSTILE[3].replace("\x00", "")]), type=ir.TensorType(ir.DataType.FLOAT)
    )
    model = new_model([x], HOSTILE[1])
    node = ir.Node(HOSTILE[2], HOSTILE[0], [x], [ir.AttrString("a", HOSTILE[2])], num_outputs=1, name=HOSTILE[2])
    node.outputs[0].name = HOSTILE[3]
    annotate(node, HOSTILE[1], HOSTILE[0])
    model.graph.append(node)
    model.graph.outputs.append(node.outputs[0])
    return model


def hostile_report(folder: Path) -> str:
    return report(
        folder,
        hostile_model(),
        title=HOSTILE[0],
        metrics=[{"step": 1, "split": HOSTILE[0], "loss": 1.0}, {"step": 1, "loss": 2.0}],
        operators=[{"operator": name, "calls": 1, "milliseconds": 1.0} for name in HOSTILE],
        peak_memory=dict.fromkeys(HOSTILE, 1),
        facts={name: name for name in HOSTILE},
    )


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    text = hostile_report(tmp_path)
    page = Page(text)
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert "<!--" not in text
    assert page.data["title"] == HOSTILE[0]
    assert [name for name, _ in page.data["facts"]] == list(HOSTILE)
    assert page.data["graph"]["values"][1][0] == HOSTILE[3]


def test_hostile_names_do_nothing_in_a_browser(tmp_path: Path, chromium: str) -> None:
    hostile_report(tmp_path)
    dom = opened(chromium, tmp_path / "report.html")
    head = dom.split("</title>")[0].rsplit("<title>")[1]
    assert head.startswith("&lt;/script&gt;")
    assert "<img" not in dom
    assert found_line(dom) == "1 of 1 nodes"


def test_what_is_not_finite_leaves_a_gap(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 1.0, "ppl": float("inf")}, {"step": 2, "loss": float("nan"), "ppl": 3.0}]
    metrics = Page(report(tmp_path, metrics=rows)).data["metrics"]
    assert metrics == [{"step": 1, "split": "train", "loss": 1.0}, {"step": 2, "split": "train", "ppl": 3.0}]


def test_a_report_of_nothing_still_opens(tmp_path: Path, chromium: str) -> None:
    report(tmp_path, new_model([], "empty"), metrics=[], operators=[], peak_memory={}, facts={})
    dom = opened(chromium, tmp_path / "report.html")
    assert found_line(dom) == "0 of 0 nodes"
    assert dom.count("Not measured in this run.") >= 2


def test_a_failed_write_leaves_the_old_report(tmp_path: Path) -> None:
    before = report(tmp_path)
    with pytest.raises(TypeError):
        report(tmp_path, facts={"not": object()})
    assert (tmp_path / "report.html").read_text() == before
    with pytest.raises(OSError, match="missing"):
        report(tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_search_shows_the_nodes_that_have_all_words(tmp_path: Path, chromium: str) -> None:
    report(tmp_path)
    page = tmp_path / "report.html"
    assert found_line(opened(chromium, page)) == "6 of 6 nodes"
    # Two products, and the node that reads a value named after one.
    assert found_line(opened(chromium, page, "#search=MATMUL")) == "3 of 6 nodes"
    assert found_line(opened(chromium, page, "#search=matmul%20model.py%3A12")) == "1 of 6 nodes"
    assert found_line(opened(chromium, page, "#search=nothing%20like%20it")) == "0 of 6 nodes"
    typed = "$('search').value = 'parameter'; $('search').dispatchEvent(new Event('input'));"
    dom = opened(chromium, page, script=typed)
    assert found_line(dom) == "2 of 6 nodes"
    assert len(re.findall(r'class="node"[^>]* hidden', dom)) == 4
    assert (
        found_line(opened(chromium, page, script="document.querySelector('#operators button').click()"))
        == "2 of 6 nodes"
    )


def test_a_value_leads_to_the_node_that_makes_it_and_to_its_readers(tmp_path: Path, chromium: str) -> None:
    report(tmp_path)
    script = "[...document.querySelectorAll('#n2 button')].find(b => b.textContent.startsWith('matmul')).click();"
    dom = opened(chromium, tmp_path / "report.html", script=script)
    panel = re.sub(r"<[^>]*>", "", dom.split('id="value"')[1].split('id="nodes"')[0])
    assert "made by #0 MatMul" in panel
    assert "read by #2 MatMul" in panel
    assert re.search(r'class="node at" id="n0"', dom)
    dom = opened(chromium, tmp_path / "report.html", "#value=w")
    panel = re.sub(r"<[^>]*>", "", dom.split('id="value"')[1].split('id="nodes"')[0])
    assert "made by parameter" in panel
    assert "read by #0 MatMul, #5 Sub" in panel


def test_three_thousand_nodes_open_and_search(tmp_path: Path, chromium: str) -> None:
    text = report(tmp_path, chain(3000))
    assert len(text) < 1_000_000
    dom = opened(chromium, tmp_path / "report.html", "#search=Add%20float%5B8%5D")
    assert found_line(dom) == "600 of 3000 nodes"  # each Add, and the Relu that reads it
    seen = """
        const box = document.getElementById("n2998").getBoundingClientRect();
        document.body.dataset.inside = box.top > 0 && box.bottom < innerHeight;
    """
    dom = opened(chromium, tmp_path / "report.html", "#value=relu_2998", seen)
    assert re.search(r'class="node at" id="n2998"', dom)
    assert 'data-inside="true"' in dom


def test_curves_are_drawn_for_what_was_measured(tmp_path: Path, chromium: str) -> None:
    report(tmp_path)
    dom = opened(chromium, tmp_path / "report.html")
    charts = dom.split('id="charts"')[1].split('id="operators"')[0]
    assert charts.count("<svg") == 4
    assert charts.count("<polyline") == 4
    hover = "document.querySelector('#charts svg').onmousemove({clientX: 100, clientY: 50});"
    dom = opened(chromium, tmp_path / "report.html", script=hover)
    assert re.search(r'class="tip"[^>]*><div class="quiet">step \d+</div><div[^>]*>train \d', dom)
