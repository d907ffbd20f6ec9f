"""`ORTModule`: a torch module whose forward and backward run as one ONNX graph."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ontrain.capture import FailingForwardError
from ontrain.errors import CaptureError, GradientError, GraphError, OntrainError, OptionError, nearest
from ontrain.internals import of
from ontrain.limits import TooLargeError
from ontrain.locks import Lock
from ontrain.providers import available_providers
from ontrain.training.environment import warn_of_ignored
from ontrain.training.ortmodule.debug import DebugOptions
from ontrain.training.ortmodule.engine import Engine
from ontrain.training.ortmodule.fallback import Fallback, FallbackPolicy
from ontrain.training.ortmodule.memory_budget import recomputation_of
from ontrain.training.ortmodule.methods import rebound
from ontrain.training.ortmodule.own_mode import enables_gradients
from ontrain.training.ortmodule.put_forward import told_of
from ontrain.training.ortmodule.refusals import TracedError
from ontrain.training.ortmodule.special import with_special_methods

__all__ = ["ORTModule"]

# Hooks of the wrapper itself and what other libraries replace on it.
_OWN = frozenset({"forward", "_original_forward", "_is_full_backward_hook"})
# What every module notes of hooks; those of a wrapper are its own.
_HOOKS = tuple(name for name in vars(nn.Module()) if "_hook" in name)
# What every nn.Module has and an ORTModule shares with the module that it wraps, so that both are one in all that
# torch does to modules: moving, saving, freezing, applying. Hooks of state_dict belong to saving and loading.
_SHARED = (
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set",
    *(name for name in _HOOKS if "state_dict" in name),
)  # fmt: skip
_one_engine = Lock()


class ORTModule(nn.Module):
    """Wraps a module in an unchanged training loop: `model = ORTModule(model)`.

    Parameters, buffers, their names, `state_dict`, `train`, `to` and every other attribute are those of the wrapped
    module. Calling it gives the module's outputs, and `backward` the module's gradients; forward and backward are run
    as one graph by an execution provider. The graph is made at the first call, and again when the structure of a
    call, a mode, or the module itself changes; new shapes need a new plan only.

    Random numbers come from a stream whose seed is drawn from torch's generator at each call: `torch.manual_seed` makes
    runs repeat, though not with the masks that PyTorch would draw.

    Args:
        module: any module that `torch.export` can trace; see `ontrain.capture`.
        debug_options: `DebugOptions`.
        provider: name of the execution provider.
        lazy_outputs: whether outputs beside a loss are computed only when somebody looks at them. None is the
            environment's ONTRAIN_LAZY_OUTPUTS, "1" (the default) or "0".

        memory_budget: working memory that forward and backward may take, as bytes, a text like "2GiB", or a fraction
            of what they take without it: activations that do not fit are computed again in the backward pass. None is
            the environment's ONTRAIN_MEMORY_BUDGET, by default no bound. onnxruntime's ORTMODULE_MEMORY_OPT_LEVEL and
            ORTMODULE_MEMORY_OPT_CONFIG are followed as well.
        fallback: in which cases PyTorch runs the module instead of an error, with a warning that says why. A
            `FallbackPolicy`, or names joined by |. None is the environment's ORTMODULE_FALLBACK_POLICY, by default
            FALLBACK_DISABLE: every refusal is an error.
        breaks: "refuse", or "allow": a module that no graph holds whole, such as one that branches on a value, runs in
            several graphs with PyTorch in between, and a warning says where and why.

    Raises:
        OptionError: `module` is no module, is wrapped already, or is a DataParallel; a budget, policy, value of
            `breaks` or of the environment that is not allowed. At a call: a budget that its batch cannot fit.

    Warns:
        UserWarning: once for each variable of onnxruntime's ORTModule that is set and means nothing here.
    """

    def __init__(
        self, module: nn.Module, debug_options: DebugOptions | None = None, *,
        provider: str = "TorchExecutionProvider", lazy_outputs: bool | None = None,
        memory_budget: int | float | str | None = None, fallback: FallbackPolicy | str | None = None,
        breaks: str = "refuse",
    ) -> None:  # fmt: skip
        _check(module)
        warn_of_ignored()
        if provider not in available_providers():
            raise OptionError(
                f"no execution provider {provider!r}", way_out=f"known: {nearest(provider, available_providers())}"
            )
        super().__init__()
        own = self.__dict__
        own["_fallback"] = Fallback(fallback)
        own["_wrapped"], own["_provider"] = module, provider
        own["_lazy_outputs"] = _lazy_by_environment() if lazy_outputs is None else bool(lazy_outputs)
        own["_memory_budget"], own["_recomputation"] = memory_budget, recomputation_of(memory_budget)
        if not isinstance(debug_options, DebugOptions | None):
            raise OptionError(
                f"debug_options is a {type(debug_options).__name__}", way_out="give a DebugOptions, or None"
            )
        own["_debug_options"] = DebugOptions() if debug_options is None else debug_options
        if breaks not in ("allow", "refuse"):
            raise OptionError(f"breaks is {breaks!r}", way_out='give "allow" or "refuse"')
        own["_breaks"], own["_pieces"] = breaks == "allow", None
        own["_engine"], own["_runs"] = None, 0
        for name in _SHARED:
            own[name] = module.__dict__[name]
        try:
            _check_inside(module)
        except OptionError as error:
            if not self._fallback.wraps_anyway(type(module).__name__, error):
                raise
        own["_enables_gradients"] = enables_gradients(module.forward)
        # On the instance, so that inspect.signature shows the wrapped module's arguments: Hugging Face's Trainer asks.
        own["forward"] = functools.update_wrapper(functools.partial(ORTModule.forward, self), module.forward)

    def __new__(cls, module: object = None, *_: object, **__: object) -> ORTModule:
        """Return a wrapper with the special methods of the module's class."""
        return super().__new__(with_special_methods(cls, type(module)))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the wrapped module's forward returns.

        Raises:
            CaptureError: the module cannot be captured; names the user's line.
            GradientError: an operator has no gradient.
            InputError: an argument does not fit forward's signature, or is on another device than the module.

        Warns:
            UserWarning: PyTorch answers, because `fallback` says so.
        """
        self.__dict__["_runs"] += 1
        fallback = self._fallback
        if fallback.fallen:
            return self._wrapped(*args, **kwargs)
        pieces: Callable[..., Any] | None = self._pieces
        if pieces is not None:
            return pieces(*args, **kwargs)
        policy: FallbackPolicy | None = None
        try:
            return self._run(args, kwargs)
        except TracedError:
            pass
        except OntrainError as error:
            if self._breaks and _held_in_pieces(error):
                pieces = self.__dict__["_pieces"] = self._in_pieces(error)
                return pieces(*args, **kwargs)
            policy = fallback.takes(error)
            if policy is None:
                raise
            refused = error
        # Outside of the handler: an error of the module's own is raised as it is.
        result = self._wrapped(*args, **kwargs)
        if policy is not None:
            fallback.fall(type(self._wrapped).__name__, refused, policy)
        return result

    def _in_pieces(self, reason: OntrainError) -> Callable[..., Any]:
        from ontrain.training.compiled import Pieces  # wraps pieces in ORTModules

        options = {"provider": self._provider, "memory_budget": self._memory_budget}
        return Pieces(self._wrapped, reason, options)

    def _run(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        if self._engine is None:
            with _one_engine:
                if self._engine is None:
                    self.__dict__["_engine"] = Engine(
                        self._wrapped, self._provider, self._debug_options, lazy=self._lazy_outputs,
                        recomputation=self._recomputation, paths=not self._breaks,
                    )  # fmt: skip
        if self._enables_gradients and not torch.is_grad_enabled():
            with torch.enable_grad():
                return self._engine(args, kwargs)
        return self._engine(args, kwargs)

    # While one thread captures, torch has a `nn.Module.__call__` that other threads must not come upon.
    __call__: Callable[..., Any] = nn.Module.__call__

    @property
    def __class__(self) -> type:
        """The wrapped module's class: `isinstance` says of an ORTModule what it says of the module.

        Libraries ask, to know how a model is saved: Hugging Face's Trainer calls `save_pretrained` of a
        `PreTrainedModel` only. `type(model)` is ORTModule, or a subclass with what `model[0]`, `name in model` and the
        like need; `isinstance(model, ORTModule)` holds, too.
        """
        wrapped = self.__dict__.get("_wrapped")
        return ORTModule if wrapped is None else type(wrapped)

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise OptionError(
            f"an ORTModule cannot become a {kind.__name__}",
            reason="torch's fully_shard and parametrizations change the class of what they are given",
            way_out="parametrize the module before it is wrapped, or model.module; for many processes use "
            "DistributedDataParallel(ORTModule(model)) or FullyShardedDataParallel(ORTModule(model))",
        )

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        wrapped: nn.Module = self.__dict__["_wrapped"]
        return wrapped

    # The wrapped module's own ways of doing these may be special, and belong to it.

    @property
    def training(self) -> bool:
        """The wrapped module's flag."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        wrapped = self.__dict__.get("_wrapped")
        if wrapped is not None:
            wrapped.training = mode

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Set training mode on the wrapped module; or whatever its own `train` does, such as a loop of steps."""
        result = rebound(self._wrapped.train, self._wrapped, self)(*args, **kwargs)
        return self if result is self._wrapped else result

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the wrapped module's state_dict."""
        return self._wrapped.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, object], *args: Any, **kwargs: Any) -> Any:
        """Load a state_dict of the wrapped module."""
        return self._wrapped.load_state_dict(state_dict, *args, **kwargs)

    def _register_load_state_dict_pre_hook(self, hook: Any, with_module: bool = False) -> Any:
        # A hook that knew the wrapper could not be copied with the wrapped module.
        return self._wrapped._register_load_state_dict_pre_hook(hook, with_module)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load the wrapped module's own part of a state_dict of a module around this one."""
        self._wrapped._load_from_state_dict(*args, **kwargs)

    def apply(self, fn: Callable[[nn.Module], Any]) -> ORTModule:
        """Apply `fn` to the wrapped module and its submodules."""
        self._wrapped.apply(fn)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> ORTModule:
        self._wrapped._apply(fn, recurse)
        return self

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Iterate over the wrapped module and its submodules."""
        submodules: Iterator[tuple[str, nn.Module]] = self._wrapped.named_modules(*args, **kwargs)
        return submodules

    def extra_repr(self) -> str:
        """Say what is wrapped."""
        return type(self._wrapped).__name__

    def __getattr__(self, name: str) -> Any:
        wrapped = self.__dict__.get("_wrapped")
        if wrapped is None:
            raise AttributeError(name)
        return rebound(getattr(wrapped, name), wrapped, self)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "forward" and name in self.__dict__:
            value = told_of(value, self, lambda: self._runs)
        if name in self.__dict__ or name in _OWN or name in vars(ORTModule):
            object.__setattr__(self, name, value)
        else:
            setattr(self._wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self._wrapped, name)

    # Of nn.Sequential, nn.ModuleList and the like; a module is true whatever its length.

    def __getitem__(self, key: object) -> Any:
        return self._wrapped[key]

    def __setitem__(self, key: object, value: object) -> None:
        self._wrapped[key] = value

    def __len__(self) -> int:
        return len(self._wrapped)

    def __bool__(self) -> bool:
        return True

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._wrapped)})

    def __reduce__(self) -> Any:
        # Graphs and plans are made again where the copy is used.
        options = dict(
            provider=self._provider, lazy_outputs=self._lazy_outputs, memory_budget=self._memory_budget,
            fallback=self._fallback.policy, breaks="allow" if self._breaks else "refuse",
        )  # fmt: skip
        # As its state, which is copied once the copy is known: a hook may be a method of the wrapper.
        hooks = {name: held for name in _HOOKS if (held := self.__dict__[name])}
        debug_options = None if self._debug_options == DebugOptions() else self._debug_options
        return _wrap, (self._wrapped, debug_options, options), hooks or None


# So that `help` and `inspect.signature` show what the constructor takes.
setattr(ORTModule.__new__, "__wrapped__", ORTModule.__init__)  # noqa: B010


def _wrap(module: nn.Module, debug_options: Any, options: dict[str, Any]) -> ORTModule:
    return ORTModule(module, debug_options, **options)


# As of any module, torch.load asks a program to allow the classes of the wrapped module only: a wrapper runs no code.
torch.serialization.add_safe_globals([_wrap, FallbackPolicy])


def _held_in_pieces(error: OntrainError) -> bool:
    """Whether pieces of a module may run where the whole is refused, by the capture or when a batch's plan is made."""
    own = isinstance(error, TooLargeError | FailingForwardError)
    return isinstance(error, CaptureError | GradientError | GraphError) and not own


def _lazy_by_environment() -> bool:
    value = os.environ.get("ONTRAIN_LAZY_OUTPUTS", "1")
    if value not in ("0", "1"):
        raise OptionError(f"ONTRAIN_LAZY_OUTPUTS is {value!r}", way_out="0 computes all outputs, 1 those looked at")
    return value == "1"


def _tree(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    # named_modules would pass over an ORTModule to what it wraps.
    yield name, module
    for key, child in of("torch.nn.Module._modules", module).items():
        if child is not None:
            yield from _tree(child, f"{name}.{key}" if name else key)


def _check(module: object) -> None:
    if isinstance(module, ORTModule):
        raise OptionError("the module is an ORTModule already", way_out="wrap it once: use it as it is")
    if not isinstance(module, nn.Module):
        raise OptionError(f"ORTModule wraps a torch.nn.Module, not a {type(module).__name__}", way_out="give a module")


def _is_sharded(module: nn.Module) -> bool:
    """Whether a module is torch's FullyShardedDataParallel, or has parameters that are parts of a larger tensor."""
    fsdp, distributed = (sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor"))
    if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
        return True
    parameters = of("torch.nn.Module._parameters", module).values()
    return distributed is not None and any(isinstance(parameter, distributed.DTensor) for parameter in parameters)


def _check_inside(module: nn.Module) -> None:
    for name, item in _tree(module):
        if isinstance(item, nn.DataParallel):
            raise OptionError(
                "the module is a DataParallel", reason="its replicas would each need a graph of their own",
                way_out="use torch.nn.parallel.DistributedDataParallel around the ORTModule",
            )  # fmt: skip
        if isinstance(item, nn.parallel.DistributedDataParallel):
            raise OptionError(
                "the module is a DistributedDataParallel", reason="its hooks belong outside of the graph",
                way_out="wrap the other way round: DistributedDataParallel(ORTModule(model))",
            )  # fmt: skip
        if _is_sharded(item):
            raise OptionError(
                f"the submodule {name!r} is sharded over processes" if name else "the module is sharded over processes",
                reason="a graph takes whole parameters, which are gathered outside of it",
                way_out="wrap the other way round: torch.distributed.fsdp.FullyShardedDataParallel(ORTModule(model)); "
                "fully_shard and parallelize_module have no such way",
            )  # fmt: skip
        if isinstance(item, torch.jit.ScriptModule):
            raise OptionError(
                f"the submodule {name!r} is a ScriptModule" if name else "the module is a ScriptModule",
                reason="its forward is no Python that can be traced", way_out="wrap the module that it was made of",
            )  # fmt: skip
        if isinstance(item, ORTModule):
            raise OptionError(
                f"the submodule {name!r} is an ORTModule", reason="a graph holds the whole module",
                way_out="wrap the outermost module only",
            )  # fmt: skip
