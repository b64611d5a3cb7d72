"""The model of a plan: so many parameters or bytes, a network of the paper, or a torch module."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.arrays import DTYPES, dtype_name
from penstock.exceptions import DtypeError, OptionError
from penstock.plan import networks
from penstock.units import parse_bytes, parse_count

_TORCH_HINT = "give the module and a callable without arguments that returns a torch module: my.models:make"


@dataclass(frozen=True)
class Source:
    """A model, with what is known of its training."""

    name: str
    nbytes: int
    compute: float | None = None
    """Seconds of a step, where the paper has measured them."""
    batch: int | None = None


def element_bytes(dtype: str | None) -> int:
    """
    Bytes of an element; float32's without a name.

    Raises
    ------
    OptionError
        Tensors cannot have that element type.
    """
    try:
        return DTYPES[dtype_name(dtype or "float32")].itemsize
    except DtypeError as error:
        raise OptionError(
            f"--dtype {dtype!r} is not an element type", hint=f"give {', '.join(DTYPES)}"
        ) from error


def of_parameters(text: str, dtype: str | None) -> Source:
    """A model of so many elements."""
    elements = parse_count(text, "--parameters")
    return Source(f"{text} parameters", elements * element_bytes(dtype))


def of_bytes(text: str, dtype: str | None) -> Source:
    """A model of so many bytes, whatever they hold."""
    if dtype is not None:
        raise OptionError(
            "--dtype has no meaning with --bytes", hint="drop it, or give --parameters instead of --bytes"
        )
    return Source("", parse_bytes(text, "--bytes"))


def of_network(name: str, dtype: str | None) -> Source:
    """A network of the paper's table 3; another element type than float32 changes its size, not its time."""
    network = networks.find(name)
    nbytes = network.nbytes * element_bytes(dtype) // DTYPES["float32"].itemsize
    return Source(network.name, nbytes, network.compute, network.batch)


def of_torch(text: str, dtype: str | None) -> Source:
    """
    The trainable parameters of a torch module, each with its own element type unless one is named.

    A parameter that is shared by several layers counts once.

    Raises
    ------
    OptionError
        There is no such module or callable, it fails, or what it returns has no parameters to train.
    """
    found = _load(text)
    module = _call(found, text) if not hasattr(found, "parameters") or isinstance(found, type) else found
    parameters = getattr(module, "parameters", None)
    if not callable(parameters):
        raise OptionError(
            f"--torch {text!r} gave a {type(module).__name__}, not a torch module", hint=_TORCH_HINT
        )
    size = None if dtype is None else element_bytes(dtype)
    try:
        trained = [parameter for parameter in parameters() if parameter.requires_grad]
        nbytes = sum(p.numel() * (p.element_size() if size is None else size) for p in trained)
    except Exception as error:
        raise OptionError(
            f"--torch {text!r}: its parameters cannot be counted: {_said(error)}", hint=_TORCH_HINT
        ) from error
    if nbytes == 0:
        raise OptionError(
            f"--torch {text!r} has no parameters to train",
            hint="only parameters with requires_grad count, since only they have gradients to push",
        )
    return Source(text, nbytes)


def _load(text: str) -> Any:
    """What `module:name` names, found as `python -m` would: from the current folder first."""
    module, colon, path = text.partition(":")
    if not (module and colon and path):
        raise OptionError(f"--torch {text!r} is not of the form module:callable", hint=_TORCH_HINT)
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is the plan's
            found: Any = importlib.import_module(module)
    except BaseException as error:  # a module may do anything, sys.exit() too
        _let_through(error)
        raise OptionError(
            f"--torch {text!r}: the module {module!r} does not import: {_said(error)}", hint=_TORCH_HINT
        ) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    for name in path.split("."):
        if not hasattr(found, name):
            raise OptionError(f"--torch {text!r}: there is no {name!r} in {module!r}", hint=_TORCH_HINT)
        found = getattr(found, name)
    return found


def _call(found: Callable[[], Any], text: str) -> Any:
    if not callable(found):
        raise OptionError(
            f"--torch {text!r} is a {type(found).__name__}, neither a torch module nor callable",
            hint=_TORCH_HINT,
        )
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return found()
    except BaseException as error:
        _let_through(error)
        raise OptionError(f"--torch {text!r} failed: {_said(error)}", hint=_TORCH_HINT) from error


def _let_through(error: BaseException) -> None:
    """Ctrl-C is the user's, not the module's."""
    if isinstance(error, KeyboardInterrupt):
        raise error


def _said(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
