"""Traces, profiles and their page, and timings: what ran, in what memory, told of the file's own nodes."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import ontrain
from ontrain.errors import InputError, OntrainError, OptionError
from ontrain.inference.profile import bench, profile
from ontrain.inference.profile_page import profile_page
from ontrain.inference.samples import read_feeds

TORCH, STOCK = "TorchExecutionProvider", "CPUExecutionProvider"
W = np.eye(64, dtype=np.float32)
LINEAR = "(float[n, 64] x) => (float[n, 64] y) { [first] h = MatMul(x, w) [second] y = MatMul(h, w) }"
DATA = "(float[n, 64] x) => (float[n, 64] y, int64[a, b] z) { [first] y = MatMul(x, w) [places] z = NonZero(y) }"


def model(text):
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> m {text}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    return proto


def traced(proto, providers, tmp_path, runs=1):
    options = ontrain.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    session = ontrain.InferenceSession(proto, options, providers)
    for _ in range(runs):
        session.run(None, {"x": np.ones((8, 64), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [event for event in events if event["cat"] == "Node"], [e for e in events if e["name"] == "model_run"]


@pytest.mark.parametrize("provider", [TORCH, STOCK])
@pytest.mark.parametrize("text", [LINEAR, DATA])
def test_a_trace_has_an_event_for_each_node_of_a_run_inside_the_run(provider, text, tmp_path):
    nodes, runs = traced(model(text), [provider], tmp_path, runs=2)
    names = ["first", "second"] if text is LINEAR else ["first", "places"]
    assert [node["name"] for node in nodes] == [f"{name}_kernel_time" for name in names] * 2
    for i, node in enumerate(nodes):
        run = runs[i // 2]
        assert node["ph"] == "X" and node["args"]["provider"] == provider and node["dur"] >= 0
        # onnxruntime writes whole microseconds
        assert run["ts"] - 1 <= node["ts"] and node["ts"] + node["dur"] <= run["ts"] + run["dur"] + 2
    assert nodes[0]["args"]["input_type_shape"][0] == {"float": [8, 64]}
    assert nodes[0]["args"]["output_type_shape"] == [{"float": [8, 64]}]
    assert int(nodes[0]["args"]["output_size"]) == 8 * 64 * 4


def test_a_trace_tells_the_memory_that_holds_values():
    calls = profile(model(LINEAR), providers=[TORCH], sizes={"n": 8}, runs=1).calls
    row = 8 * 64 * 4
    assert [call.memory for call in calls if call.operator != "copy"] == [row, 2 * row]


def test_nodes_that_another_provider_runs_are_told_with_its_name(tmp_path):
    text = """(float[n, 64] x) => (float[n, 64] y) {
        [first] h = MatMul(x, w) [before] k = Tanh(h) [other] y = com.microsoft.SampleOp(k)
    }"""
    proto = model(text)
    proto.opset_import.add(domain="com.microsoft", version=1)
    nodes, _ = traced(proto, [TORCH, STOCK], tmp_path)
    assert {node["name"]: node["args"]["provider"] for node in nodes} == {
        "first_kernel_time": TORCH, "before_kernel_time": TORCH, "other_kernel_time": STOCK,
    }  # fmt: skip


@pytest.mark.parametrize("provider", [TORCH, STOCK])
def test_a_profile_counts_each_node_and_its_shares_are_one(provider):
    result = profile(model(DATA), providers=[provider], sizes={"n": 4}, runs=3)
    assert sorted(node.name for node in result.nodes) == ["first", "places"]
    assert sum(node.share for node in result.nodes) == pytest.approx(1)
    assert [node.microseconds for node in result.nodes] == sorted((n.microseconds for n in result.nodes), reverse=True)
    assert result.inputs == {"x": "float32[4, 64]"} and result.providers == [provider]
    assert result.graph == [("first", "MatMul", []), ("places", "NonZero", [0])]


def test_nodes_without_a_name_or_with_the_same_are_told_apart():
    text = "(float[n, 64] x) => (float[n, 64] y) { [same] h = MatMul(x, w) [same] k = Exp(h) y = Tanh(k) }"
    names = {node.name for node in profile(model(text), providers=[TORCH], runs=1).nodes}
    assert names == {"same", "Exp_1", "Tanh_2"}


def test_bench_compares_with_the_first_provider():
    first, second = bench(model(LINEAR), providers=[STOCK, TORCH], runs=3, sizes={"n": 2})
    assert (first.provider, second.provider, first.ratio) == (STOCK, TORCH, 1.0)
    assert second.ratio == pytest.approx(second.microseconds / first.microseconds)
    assert 0 < first.fastest <= first.microseconds


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"runs": 0}, OptionError, "0 runs"),
        ({"sizes": {"m": 2}}, OptionError, "'m'[^$]*'n'"),
        ({"threads": -1}, OptionError, "-1 threads"),
        ({"sizes": {"n": 10**12}}, InputError, "'x' of shape .* need .* there are"),
        ({"feeds": {"z": np.ones(2)}}, InputError, "'z'"),
    ],
)
def test_what_cannot_be_profiled_is_refused(asked, error, told):
    with pytest.raises(error, match=told):
        profile(model(LINEAR), providers=[TORCH], **asked)
    with pytest.raises(error, match=told):
        bench(model(LINEAR), providers=[TORCH], **asked)


@pytest.mark.parametrize("provider", [TORCH, STOCK])
def test_a_loop_without_end_is_refused_before_a_trace_begins(provider, tmp_path, monkeypatch):
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    m (float[n] x) => (float[n] y) <bool go = {1}> {
        y = Loop(, go, x) <body = b (int64 i, bool c, float[n] s) => (bool more, float[n] t) {
            more = Identity(c)
            t = Add(s, s)
        }>
    }""")
    monkeypatch.setenv("ONTRAIN_LOOP_LIMIT", "50")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # a trace would have no place
    with pytest.raises(OntrainError, match="a Loop runs"):
        profile(proto, providers=[provider], runs=1)


def test_a_provider_that_is_not_here_is_refused_by_name():
    with pytest.raises(OptionError, match="NothingProvider"):
        profile(model(LINEAR), providers=["NothingProvider"])


@pytest.mark.parametrize("damage", ["one array", "cut off", "changed", "empty", "encrypted", "open quote"])
def test_a_file_that_holds_no_feeds_is_refused(damage, tmp_path):
    path = tmp_path / "feeds.npz"
    np.savez_compressed(path, x=np.arange(4000.0))
    content = path.read_bytes()
    if damage == "one array":
        np.save(tmp_path / "one.npy", np.ones(2))
        content = (tmp_path / "one.npy").read_bytes()
    elif damage == "encrypted":
        at = content.index(b"PK\x01\x02") + 8
        content = content[:at] + b"\x01" + content[at + 1 :]
    elif damage == "open quote":
        array = io.BytesIO()
        np.save(array, np.ones(2))
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x.npy", array.getvalue().replace(b"(2,)", b'("2('))
        content = path.read_bytes()
    elif damage == "changed":
        content = content[:200] + b"zzzz" + content[204:]
    else:
        content = content[: len(content) // 2] if damage == "cut off" else b""
    path.write_bytes(content)
    with pytest.raises(InputError, match="no .npz file of arrays"):
        read_feeds(str(path))


def test_an_input_of_strings_needs_feeds():
    proto = model("(string[n] x) => (string[n] y) { y = Identity(x) }")
    with pytest.raises(InputError, match="tensor\\(string\\)[^$]*feeds"):
        profile(proto, providers=[STOCK])
    assert profile(proto, {"x": np.array(["a"], object)}, providers=[STOCK], runs=1).inputs == {"x": "object[1]"}


HOSTILE = 'x</script><script>document.title="broken"</script>'


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    proto = model(DATA)
    proto.graph.node[0].name = f"encoder/layer.0/{HOSTILE}"
    path = tmp_path_factory.mktemp("page") / "profile.html"
    path.write_text(profile_page(profile(proto, providers=[TORCH], runs=2, name="small")), encoding="utf-8")
    return path


def test_the_page_asks_no_other_file(page):
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert text.count("</script>") == 1


def test_a_browser_draws_the_page(page):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>small</title>" in dom
    body = dom[: dom.index("<script>")]
    assert body.count('<td class="bar">') == 2 and body.count('class="node"') == 2 and body.count('class="edge"') == 1
    assert all(f">{part}<" in body for part in ("encoder", "layer", "NonZero"))
    assert re.search(r'id="memory"><svg', body)
