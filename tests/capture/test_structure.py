"""How nested arguments and results are taken apart."""

from __future__ import annotations

import types

import torch

from ontrain.capture.structure import flatten


def test_objects_that_name_one_another_are_no_endless_structure():
    parent, child = types.SimpleNamespace(x=torch.ones(2)), types.SimpleNamespace(y=torch.ones(3))
    parent.children, child.parent = [child], parent
    tensors, spec = flatten(parent)
    assert not tensors and spec.kind == "plain"


def test_an_object_held_twice_is_taken_apart_twice():
    shared = types.SimpleNamespace(x=torch.ones(2))
    tensors, spec = flatten(types.SimpleNamespace(a=shared, b=shared))
    assert len(tensors) == 2 and spec.kind == "object"
