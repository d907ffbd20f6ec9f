"""The on-device recipe as its user runs it: Python with onnxruntime alone, Node.js, and a page in a real browser."""

from __future__ import annotations

import functools
import http.server
import math
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.training.api import CheckpointState
from tests.recipes.on_device import browser
from tests.training.artifacts.networks import FormerAdamW

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "on_device"
STEPS, RATE, BATCH = 10, 0.002, 32


def run(*command, **settings):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A folder with the recipe and fresh artifacts."""
    recipes = tmp_path_factory.mktemp("recipes")
    shutil.copytree(RECIPE.parent / "harness", recipes / "harness")
    folder = recipes / RECIPE.name
    folder.mkdir()
    for path in RECIPE.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    run(sys.executable, folder / "make_artifacts.py")
    return folder


@pytest.fixture(scope="session")
def with_modules(served, request):
    """The same with onnxruntime-web from the npm registry, fetched once into pytest's cache."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs Node.js with npm")
    cache = request.config.cache.mkdir("on_device")
    shutil.copy(RECIPE / "package.json", cache)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--prefer-offline"]
    done = subprocess.run([npm, "install", *options], cwd=cache, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot fetch onnxruntime-web: {done.stderr.strip().splitlines()[-1:]}")
    (served / "node_modules").symlink_to(cache / "node_modules")
    return served


def shares(printed):
    return [float(share) for share in re.findall(r"right ([\d.]+)", printed)]


def test_digits_are_learned_by_onnxruntime_and_numpy_alone(served):
    blocked = (
        "import sys, runpy; sys.modules.update(dict.fromkeys({names})); runpy.run_path({path!r}, run_name='__main__')"
    )
    names = ["ontrain", "torch", "onnx", "onnx_ir", "safetensors"]
    code = blocked.format(names=names, path=str(served / "train_digits.py"))
    right = shares(run(sys.executable, "-c", code, "--epochs", "4"))
    assert len(right) == 4 and right[-1] > 0.9 > right[0]


@pytest.mark.thorough
def test_digits_are_learned_in_node(with_modules):
    right = shares(run("node", "train_digits.mjs", "--steps", "180", cwd=with_modules))
    assert len(right) == 4 and right[-1] > 0.9 > right[0]


def test_node_trains_the_weights_that_pytorch_trains(with_modules, tmp_path):
    run("node", "train_digits.mjs", "--steps", STEPS, "--rate", RATE, "--save", tmp_path / "trained", cwd=with_modules)
    sys.path.insert(0, str(RECIPE))
    try:
        from make_artifacts import Classifier, load
    finally:
        sys.path.remove(str(RECIPE))
    module, (images, digits, _, _) = Classifier(), load()
    start = CheckpointState.load_checkpoint(with_modules / "artifacts" / "scratch" / "checkpoint")
    module.load_state_dict({name: torch.from_numpy(parameter.data) for name, parameter in start.parameters})
    optimizer = FormerAdamW(module.parameters(), lr=RATE)
    for at in range(0, STEPS * BATCH, BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(images[at : at + BATCH]), digits[at : at + BATCH]).backward()
        optimizer.step()
    trained = CheckpointState.load_checkpoint(tmp_path / "trained")
    assert (trained.updates, trained.learning_rate) == (STEPS, RATE)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(trained.parameters[name].data, parameter.detach(), atol=1e-5, err_msg=name)


def test_node_refuses_a_checkpoint_that_was_altered_and_writes_one_that_python_reads(served, tmp_path):
    if shutil.which("node") is None:
        pytest.skip("needs Node.js")
    script = tmp_path / "again.mjs"
    script.write_text(f"""
import {{ readFileSync, writeFileSync }} from "node:fs";
import {{ readCheckpoint, writeCheckpoint }} from "{served / "ondevice.mjs"}";
const bytes = readFileSync(process.argv[2]);
const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
writeFileSync(process.argv[3], writeCheckpoint(readCheckpoint(buffer)));
new Uint8Array(buffer)[buffer.byteLength - 5] ^= 1;
try {{ readCheckpoint(buffer); }} catch (error) {{ console.log(error.message); }}
""")
    before, after = served / "artifacts" / "scratch" / "checkpoint", tmp_path / "after"
    assert run("node", script, before, after).strip() == "the checkpoint is damaged"
    first, second = (CheckpointState.load_checkpoint(path) for path in (before, after))
    for name, parameter in first.parameters:
        np.testing.assert_array_equal(second.parameters[name].data, parameter.data)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def page(with_modules, tmp_path):
    program = browser.find()
    if program is None:
        pytest.skip("needs Chromium")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(with_modules)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with browser.Page(program, tmp_path, f"http://127.0.0.1:{server.server_port}/") as opened:
            opened.until("document.getElementById('status').textContent === 'ready'")
            yield opened
    finally:
        server.shutdown()
        server.server_close()


def line(start, end, count=8):
    (a, b), (c, d) = start, end
    return [(a + (c - a) * i / count, b + (d - b) * i / count) for i in range(count + 1)]


def strokes(digit, shift):
    """A one with a long upstroke and a zero with a slash, as the people of the data set do not write them."""
    if digit == 1:
        return [line((0.15, 0.8 + shift), (0.5 + shift, 0.1)) + line((0.5 + shift, 0.1), (0.55 + shift, 0.9))]
    turn = [2 * math.pi * i / 16 for i in range(17)]
    ring = [(0.5 + 0.3 * math.sin(t) + shift, 0.5 - 0.4 * math.cos(t)) for t in turn]
    return [line((0.75, 0.1 + shift), (0.25, 0.9 - shift)), ring]


def percent(page, name):
    return float(page.run(f"document.getElementById('{name}').textContent").removesuffix(" %"))


def test_the_page_learns_a_hand_that_draws_with_the_mouse(page, tmp_path):
    for digit in (1, 0):
        for shift in (0.0, 0.03, 0.06):
            for points in strokes(digit, shift):
                page.drag([page.place("#pad", x, y) for x, y in points])
            page.until("document.getElementById('guess').textContent.startsWith('looks like a')")
            page.click(f"#labels [data-digit='{digit}']")
            page.until("document.getElementById('guess').textContent === ''")
    page.until("document.querySelectorAll('#drawings figure').length === 6")
    page.click("#train")
    page.until("document.getElementById('status').textContent === 'learned'")
    # Drawings and digits that took no part in the training.
    assert percent(page, "mine-after") == 100 > percent(page, "mine-before")
    assert percent(page, "others-before") > 95 and percent(page, "others-after") > 93
    assert page.run("document.querySelectorAll('#drawings .wrong').length") == 0
    saved = page.run(
        "fetch(document.getElementById('download').href).then((r) => r.arrayBuffer())"
        ".then((b) => [...new Uint8Array(b)])"
    )
    (tmp_path / "checkpoint").write_bytes(bytes(saved))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert state.updates == 60 and state.trained == ["hidden.weight", "hidden.bias", "output.weight", "output.bias"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("script", "options", "says"),
    [
        ("make_artifacts.py", ("--output", "digits.csv.gz"), "error: .*File exists"),
        ("make_artifacts.py", ("--epochs", "-1"), "'-1' is no whole number from 0"),
        ("train_digits.py", ("--artifacts", "nowhere"), "training_model.onnx is no file: make_artifacts.py writes one"),
        ("train_digits.py", ("--epochs", "-1"), "--epochs counts from 1"),
    ],
)
def test_an_option_at_fault_is_told_in_a_line(served, script, options, says):
    done = subprocess.run([sys.executable, script, *options], cwd=served, capture_output=True, text=True)
    assert done.returncode and re.search(says, done.stderr) and "Traceback" not in done.stderr, done.stderr
