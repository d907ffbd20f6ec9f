"""What a user names is looked for without being imported, and errors say where it was looked for."""

from __future__ import annotations

import sys

import pytest

from ontrain.errors import InputError, OptionError
from ontrain.places import check_module_exists, function_name, model_file, steps_of_run


def test_modules_are_found_without_running_them(tmp_path, monkeypatch):
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    for file in ("outer/__init__.py", "outer/inner/__init__.py", "outer/inner/leaf.py"):
        (tmp_path / file).write_text("raise AssertionError('it was run')\n")
    (tmp_path / "bare").mkdir()  # a namespace package
    (tmp_path / "bare" / "leaf.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for module in ("outer", "outer.inner", "outer.inner.leaf", "bare.leaf", "os.path", "json.decoder", "sys"):
        check_module_exists(module)
    for module in ("outer.nothing", "outer.inner.nothing", "nothing.leaf", "bare.nothing"):
        with pytest.raises(OptionError, match=rf"no module '{module}'[\s\S]*looked in {tmp_path}"):
            check_module_exists(module)
    assert "outer" not in sys.modules


@pytest.mark.parametrize("target", ["models", "models:", ":make", "models:make it", "model.onnx"])
def test_what_names_no_function_is_refused(target):
    with pytest.raises(OptionError, match="names no function"):
        function_name(target)


def test_module_and_function_are_told_apart():
    assert function_name("package.models:make") == ("package.models", "make")


def test_a_file_is_a_file(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    assert model_file(tmp_path / "model.onnx") == tmp_path / "model.onnx"
    with pytest.raises(InputError, match="it is a folder"):
        model_file(tmp_path)


def test_steps_are_the_folders_that_are_numbered(tmp_path):
    for name in ("step_0", "step_12", "step_x", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_3").write_text("a file")
    assert steps_of_run(tmp_path) == {0: tmp_path / "step_0", 12: tmp_path / "step_12"}
    with pytest.raises(InputError, match="holds no run"):
        steps_of_run(tmp_path / "other")
