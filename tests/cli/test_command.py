"""The command `ontrain`, in processes of its own and here: exit codes, tables, JSON, each kind of wrong input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from ontrain.operators.gradients import rules

COMMAND = Path(sys.executable).with_name("ontrain")


def run(*args: object, cwd: Path, module: bool = False) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "ontrain"] if module else [str(COMMAND)]
    done = subprocess.run(
        [*command, *map(str, args)], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "dumb"}, timeout=300, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def write_mlp(path: Path, middle: str, imports: str = '"" : 17') -> None:
    """Eight features, sixteen hidden, four classes; `middle` is the operator between the layers."""
    model = parse_model(f"""
        <ir_version: 8, opset_import: [{imports}]>
        mlp (float[batch, 8] x) => (float[batch, 4] y)
        <float[8,16] first_weight, float[16] first_bias, float[16,4] second_weight, float[4] second_bias>
        {{
            p = MatMul(x, first_weight)
            h = Add(p, first_bias)
            a = {middle}
            q = MatMul(a, second_weight)
            y = Add(q, second_bias)
        }}
    """)
    rng = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        model.graph.initializer.append(
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), value.name)
        )
    onnx.save(model, path)


MODELS = """
import torch
from torch import nn
from ontrain.operators.gradients import rules


def good():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), (torch.zeros(3, 8),)


def by_name():
    return nn.Linear(8, 4), (), {"input": torch.zeros(3, 8)}


def without_gradient():
    del rules["", "Tanh"]
    return good()


def raises():
    raise RuntimeError("no data here")


def wrong_result():
    return nn.Linear(8, 4)


def wrong_module():
    return "module", torch.zeros(1)


def needs_an_argument(size):
    return good()


number = 3
"""


@pytest.fixture
def here(folder, monkeypatch, capsys):
    """Run the command in this process: every start of torch costs seconds."""

    def call(*args: str, cwd: Path = folder) -> tuple[int, str, str]:
        from ontrain.cli import main

        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "argv", ["ontrain", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("cli")
    write_mlp(scratch / "good.onnx", "Relu(h)")
    write_mlp(scratch / "mystery.onnx", "com.example.Mystery(h)", '"" : 17, "com.example" : 1')
    (scratch / "torn.onnx").write_bytes((scratch / "good.onnx").read_bytes()[:200])
    (scratch / "models.py").write_text(MODELS)
    (scratch / "broken.py").write_text("import nothing_of_this_name\n")
    return scratch


def test_a_good_file_gets_a_table_a_cost_and_zero(folder):
    code, out, err = run("check", "good.onnx", "--loss", "SoftmaxCrossEntropy", "--dim", "batch=8", cwd=folder)
    assert (code, err) == (0, "")
    assert "x[8, 8], label[8]" in out
    assert "forward: " in out and "3.072 kFLOP in products" in out  # 2 · 8 · (8 · 16 + 16 · 4)
    assert "4 to train, 212 numbers" in out and out.rstrip().endswith("can be trained")
    (relu,) = [line.split() for line in out.splitlines() if line.startswith("Relu")]
    assert relu[:4] == ["Relu", "1", "TorchExecutionProvider", "rule"]


def test_the_documented_example_prints_what_the_document_says(here, tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    source, printed = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "text"))
    command, *lines = printed.splitlines()
    (tmp_path / "models.py").write_text(source)
    sys.modules.pop("models", None)
    code, out, _ = here(*command.removeprefix("$ ontrain ").split(), cwd=tmp_path)
    del sys.modules["models"]  # the next test has its own
    report = [line.rstrip() for line in out.splitlines()]
    gap = lines.index("…")
    assert code == 0 and report[:gap] == lines[:gap] and report[-1] == lines[-1]


def test_the_module_runs_as_the_command_does(folder):
    code, out, _ = run("check", "good.onnx", cwd=folder, module=True)
    assert code == 0 and "batch taken as 1" in out


def test_an_operator_that_nobody_knows_is_named_by_node_and_the_code_is_one(here):
    code, out, _ = here("check", "mystery.onnx")
    assert code == 1
    assert "com.example.Mystery" in out and "way out:" in out and "cannot be trained" in out


def test_an_operator_without_gradient_blocks_with_the_line_of_the_users_code(here, monkeypatch):
    monkeypatch.setitem(rules, ("", "Tanh"), rules["", "Tanh"])  # the model takes it away; this puts it back
    code, out, _ = here("check", "models:without_gradient")
    assert code == 1
    assert "gradient: Tanh has no gradient" in out
    assert "node: Tanh(" in out and "source: " in out and "reason: no rule is registered" in out


SCHEMA = {
    "schema": int,
    "trainable": bool,
    "subject": str,
    "provider": str,
    "optimizer": str,
    "loss": str,
    "loss_origin": str,
    "sizes": dict,
    "inputs": dict,
    "operators": [
        {"operator": str, "count": int, "provider": str, "gradient": str, "needed": int, "reason": str},
    ],
    "parameters": [{"name": str, "shape": list, "dtype": str, "trainable": bool, "reached": bool}],
    "cost": {
        "forward_flop": int,
        "forward_product_flop": int,
        "backward_flop": int,
        "backward_product_flop": int,
        "parameter_bytes": int,
        "optimizer_bytes": int,
        "working_bytes": int,
        "working_is_planned": bool,
        "total_bytes": int,
    },
    "problems": list,
}
"""What programs rely on: a change here raises the report's "schema"."""


def shape_of(value, wanted):
    if isinstance(wanted, dict):
        return (
            {name: shape_of(value[name], kind) for name, kind in wanted.items()} if set(value) == set(wanted) else value
        )
    if isinstance(wanted, list):
        return [shape_of(entry, wanted[0]) for entry in value[:1]]
    return type(value)


def test_json_keeps_its_schema(here):
    code, out, _ = here("check", "models:by_name", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["schema"] == 1 and shape_of(report, SCHEMA) == SCHEMA
    assert report["inputs"] == {"input": [3, 8]} and report["problems"] == []
    assert {parameter["name"]: parameter["shape"] for parameter in report["parameters"]} == {
        "weight": [4, 8],
        "bias": [4],
    }


def test_json_of_a_model_that_cannot_be_trained_names_the_problem(here):
    code, out, _ = here("check", "mystery.onnx", "--json")
    report = json.loads(out)
    assert code == 1 and report["trainable"] is False and report["cost"] is None
    (problem,) = report["problems"]
    assert set(problem) == {"kind", "message", "node", "source", "reason", "way_out"}
    assert problem["kind"] == "capture" and "Mystery" in problem["node"]


def test_patterns_choose_what_is_trained(here):
    code, out, _ = here("check", "good.onnx", "--trainable", "second_*", "--frozen", "*_bias", "--json")
    parameters = {parameter["name"]: parameter["trainable"] for parameter in json.loads(out)["parameters"]}
    assert code == 0
    assert [name for name, trained in parameters.items() if trained] == ["second_weight"]


WRONG = {
    "no model": ([], "no model is given"),
    "no file": (["nothing.onnx"], "no model file 'nothing.onnx'"),
    "no colon": (["models"], "no model file 'models'"),
    "no module": (["nothing:make"], "no module 'nothing'"),
    "module fails": (["broken:make"], "broken cannot be imported"),
    "no function": (["models:goood"], "'good'"),
    "no callable": (["models:number"], "models:number is a int"),
    "raises": (["models:raises"], "RuntimeError: no data here"),
    "an argument": (["models:needs_an_argument"], "called without arguments"),
    "wrong result": (["models:wrong_result"], "models:wrong_result() returned a Linear"),
    "wrong module": (["models:wrong_module"], "returned a str for the module"),
    "provider": (["good.onnx", "--provider", "TorchProvider"], "'TorchExecutionProvider'"),
    "loss": (["good.onnx", "--loss", "MSEE"], "'MSE'"),
    "dimension": (["good.onnx", "--dim", "bacth=8"], "'batch'"),
    "size": (["good.onnx", "--dim", "batch=many"], "--dim batch=8"),
    "size zero": (["good.onnx", "--dim", "batch=0"], "'batch' is 0"),
    "dim of a module": (["models:good", "--dim", "batch=8"], "--dim is for ONNX files"),
    "pattern": (["good.onnx", "--trainable", "frist_weight"], "first_weight"),
    "optimizer": (["good.onnx", "--optimizer", "Adamw"], "'AdamW'"),
    "both": (["good.onnx", "--operators"], "takes no model"),
    "markdown": (["good.onnx", "--markdown"], "--markdown is for --operators"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_is_one_error_and_two(here, name):
    args, said = WRONG[name]
    code, out, err = here("check", *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err


def test_a_wrong_function_is_two_in_a_process_of_its_own_too(folder):
    code, out, err = run("check", "models:goood", cwd=folder)
    assert (code, out) == (2, "") and "'good'" in err


def test_an_unknown_option_is_two(here):
    assert here("check", "--unknown")[0] == 2


def test_a_torn_file_cannot_be_trained(here):
    code, out, _ = here("check", "torn.onnx")
    assert code == 1 and "is no ONNX model, or is damaged" in out


def test_operators_are_listed_as_text_json_and_markdown(here):
    printed = {}
    for kind in ("", "--json", "--markdown"):
        code, printed[kind], _ = here("check", "--operators", *filter(None, [kind]))
        assert code == 0
    rows = json.loads(printed["--json"])
    assert set(rows[0]) == {"domain", "operator", "since", "providers", "gradient", "reason"}
    assert sum(line.startswith("| ") for line in printed["--markdown"].splitlines()) == len(rows) + 1
    for text in printed.values():
        assert "Gemm" in text and "Attention" in text


BISECTED = """
import onnx_ir as ir
import numpy as np
from onnx.reference import ReferenceEvaluator
from ontrain.graph import Builder, new_model
from ontrain.passes import RewritePass, Simplify, run_passes


class Doubles(RewritePass):
    def rewrite(self, op, node, inputs):
        return [op.Exp(inputs[0]) * 2.0] if node.op_type == "Exp" else None


def number(passes):
    x = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "test")
    model.graph.outputs.append(Builder(model.graph).Exp(x))
    model, _ = run_passes(model, passes)
    return float(ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": np.float32([0, 0])})[0][0])


def wrong():
    return number([Simplify(), Doubles()]) == 1.0


def right():
    return number([Simplify()]) == 1.0
"""


def test_bisect_names_the_pass_and_the_node(here, folder):
    (folder / "doubled.py").write_text(BISECTED)
    code, out, _ = here("bisect", "doubled:wrong")
    assert code == 0
    assert "pass 2: Doubles (forward)" in out and "rewrite 1: Exp(x: float[2])" in out


def test_bisect_of_what_is_right_is_one(here, folder):
    (folder / "doubled.py").write_text(BISECTED)
    code, out, err = here("bisect", "doubled:right")
    assert (code, out) == (1, "") and "passes with all passes on" in err


def test_help_does_not_load_torch(folder):
    (folder / "help.py").write_text(
        "import sys, ontrain.cli\n"
        "sys.argv = ['ontrain', '--help']\n"
        "try:\n    ontrain.cli.main()\nexcept SystemExit:\n    print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, folder / "help.py"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False" and "check" in done.stdout
