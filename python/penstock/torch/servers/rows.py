"""
Tables of which a worker reads only the rows that its next batch looks up (`sparse_pull=`).

A layer with `sparse=True` (`nn.Embedding`, `nn.EmbeddingBag`) reads few rows of its table in a forward pass,
and the servers have the whole of it. So a step leaves the table as it is; a hook before each forward pass of
the layer pulls those rows that it is about to read and that were not pulled since the last step, and writes
them into the parameter. All other rows are of an earlier step, and nobody reads them:

| who reads | what it reads |
|---|---|
| a forward pass of the layer, in training or evaluation | the rows of this step: pulled before it |
| `state_dict()`, of the model or of a part with the layer | the whole table, pulled for it |
| a copy of the model, or one that is saved as a whole | likewise |
| the script, inside `with optimizer.exact():` and after the job | likewise, in the parameter |
| the script otherwise, as `layer.weight` | rows of different steps |

A gradient that is dense, or names rows that were not pulled when it was computed, is of another use of the
table, in which rows of earlier steps were read: an error. With `check`, so are rows that the script has
written to, where the servers' would replace them: of each row a checksum is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any

import torch

from ...exceptions import JobClosed, OptionError
from ...tensor import Tensor
from ..copies import Ours
from .bits import converted, same_bits
from .exact import INSIDE_EXACT
from .row_sums import RowSums
from .transfer import Seen, Transfer

LAYERS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class Tables:
    """Which layers of a model read rows of their tables."""

    def __init__(self, model: torch.nn.Module, asked: bool | tuple[str, ...]) -> None:
        """
        Raises OptionError if a layer that is named is none, or has no sparse gradients, if one has a
        `max_norm`, or if another module has a table that only rows are to be pulled of.
        """
        self._model = model
        self._all = asked is True
        self._names = () if isinstance(asked, bool) else asked
        for name in self._names:
            self._check(name)
        if self._all and not any(map(_is_table, model.modules())):
            raise OptionError(
                "expected a layer with sparse=True for sparse_pull=True, the model has none (but such with a "
                "forward of their own)"
                if any(map(_is_sparse, model.modules()))
                else "expected a layer with sparse=True for sparse_pull=True, the model has none",
                "build nn.Embedding or nn.EmbeddingBag with sparse=True, or leave sparse_pull out",
            )
        for parameter in model.parameters():
            self.of(parameter)

    def __bool__(self) -> bool:
        return self._all or bool(self._names)

    def __repr__(self) -> str:
        return "all tables" if self._all else repr(list(self._names))

    def of(self, parameter: torch.Tensor) -> list[torch.nn.Module]:
        """
        The layers that read rows of this parameter. Raises OptionError if another module has it too, which
        would read rows that were not pulled, or if a layer changes rows as it reads them.
        """
        if not self:
            return []
        # A module may be registered under several names.
        found: dict[torch.nn.Module, list[str]] = {}
        for name, module in self._model.named_modules(remove_duplicate=False):
            if any(own is parameter for own in module._parameters.values()):
                found.setdefault(module, []).append(name)
        layers = [
            one
            for one, names in found.items()
            if (self._all and _is_table(one)) or not set(self._names).isdisjoint(names)
        ]
        others = [names[0] for one, names in found.items() if one not in layers]
        if layers and others:
            raise OptionError(
                f"`{others[0]}` has the same weight as a layer of which only rows are pulled, and would read "
                "rows that are not",
                "give the names of the layers with a table of their own: sparse_pull=[...]",
            )
        for layer in layers:
            if layer.max_norm is not None:
                raise changes_rows(found[layer][0])
        return layers

    def _check(self, name: str) -> None:
        module = dict(self._model.named_modules(remove_duplicate=False)).get(name)
        if module is None:
            tables = [f"`{one}`" for one, layer in self._model.named_modules() if _is_table(layer)]
            raise OptionError(
                f"expected the name of a layer for sparse_pull, the model has no `{name}`",
                f"layers with sparse=True are {', '.join(tables)}" if tables else None,
            )
        if not isinstance(module, LAYERS) or module._parameters.get("weight") is None:
            raise OptionError(
                f"expected layers with a table for sparse_pull, `{name}` is a {type(module).__name__}",
                "of nn.Embedding and nn.EmbeddingBag rows can be pulled, all else is pulled whole",
            )
        if not _is_sparse(module):
            raise OptionError(
                f"expected layers with sparse=True for sparse_pull, `{name}` has dense gradients",
                f"build it as {type(module).__name__}(..., sparse=True)",
            )
        if not _looks_up(module):
            raise OptionError(
                f"expected layers that look up the rows that they are given, `{name}`, a "
                f"{type(module).__name__}, has a forward of its own, which may read others",
                "leave it out of sparse_pull: it is pulled whole",
            )


def changes_rows(name: str) -> OptionError:
    """That a layer, or the one of a parameter, of this `name` scales rows of its table as it reads them."""
    return OptionError(
        f"expected layers without max_norm for sparse_pull, `{name}` has one: it changes rows in each "
        "forward pass, in its own worker alone, and not on the servers",
        "build it without max_norm and bound norms in the loss; or clamp the table now and then on all "
        "workers, inside `with optimizer.exact():`, and publish() there",
    )


def changed_outside(name: str, hint: str = INSIDE_EXACT) -> OptionError:
    """That the script has written to a parameter, whose value the servers have."""
    return OptionError(
        f"parameter `{name}` was changed outside of step(): the servers do not know of that, and their value "
        "would replace it",
        hint,
    )


def tables_asked(asked: object) -> bool | tuple[str, ...]:
    """What `sparse_pull` says, alike however it is said; raises OptionError if it is none that it may be."""
    if isinstance(asked, bool):
        return asked
    names = [asked] if isinstance(asked, str) else list(asked) if isinstance(asked, Iterable) else [None]
    if all(isinstance(name, str) for name in names):
        return tuple(sorted(set(names)))
    raise OptionError(
        f"expected sparse_pull as True, False, the name of a layer or several, got {asked!r}",
        'such as sparse_pull=["encoder.words"]',
    )


def _is_sparse(module: torch.nn.Module) -> bool:
    return isinstance(module, LAYERS) and module.sparse and module._parameters.get("weight") is not None


def _is_table(module: torch.nn.Module) -> bool:
    return _is_sparse(module) and _looks_up(module)


def _looks_up(module: torch.nn.Module) -> bool:
    """Whether the rows that it reads are known to be those that its first argument names."""
    own = type(module).forward
    return "forward" not in vars(module) and any(own is layer.forward for layer in LAYERS)


class RowsTransfer:
    """Moves the bytes of a table. `inner` moves a whole parameter's."""

    def __init__(
        self, parameter: torch.Tensor, name: str, tensor: Tensor, inner: Transfer, check: bool
    ) -> None:
        self._parameter = parameter
        self.name = name
        self._tensor = tensor
        self._inner = inner
        self._check = check
        self.keeps_sent = inner.keeps_sent
        self._fresh = torch.zeros(len(parameter), dtype=torch.bool, device="cpu")
        """Which rows of the parameter are those that the last step left on the servers."""
        self._places: list[torch.Tensor] = []
        """These rows."""
        self._values: list[torch.Tensor] = []
        """What they held, with `check`."""
        self._sums = RowSums(parameter.detach()) if check else None
        """Of each row, what it held when this, or a publication, wrote to it last."""
        self._torn: torch.Tensor | None = None
        """Rows that are being written to, and whose sums are not noted yet."""
        self._seen = self._place()
        """Where the parameter was, and its version, when no row was other than that."""
        self._whole = False
        """Whether all of them are."""
        self.loaded = False
        """Whether a load has written to the parameter since."""
        self._earlier: torch.Tensor | None = None
        """Which rows were those of the step before `exact()` read all: graphs over them hold behind it."""
        self._is_exact = False
        """Whether it was for `exact()` that all was read."""
        self._unpulled: int | None = None
        """A row that the gradient has of another use of the table."""
        self._coming: tuple[torch.Tensor, torch.Tensor, Future[Any]] | None = None
        """Rows that were asked for ahead, where they are filled in, and what tells that they are."""
        self.left: Callable[[], bool] = lambda: False
        """Whether the gradient has left: the servers may have taken the next step."""
        self.when_whole: Callable[[], None] = lambda: None
        """Is told when all of the parameter was read between two steps."""

    def hold(self, gradient: torch.Tensor) -> None:
        """A dense gradient is refused."""
        raise self._of_another_use(gradient)

    def send(self, gradient: torch.Tensor, *, held: bool = False) -> None:
        """Contributes what it names; one of another use of the table is refused."""
        self.prepare(gradient)
        self._inner.send(gradient, held=held)

    def prepare(self, gradient: torch.Tensor) -> None:
        """What `send` does before it sends anything. Raises OptionError for one of another use."""
        if gradient.layout is torch.strided:
            raise self._of_another_use(gradient)
        if gradient._nnz():
            self.refuse_unpulled()
        # Behind the push it would be the next step's rows that come.
        self._arrive()

    def computed(self, part: torch.Tensor) -> None:
        """Notes if a part of the gradient, as it is computed, names rows that its layer did not pull."""
        before = self._parameter.grad
        if before is None or (before.layout is torch.sparse_coo and not before._nnz()):
            self._unpulled = None  # that was thrown away
        if self._whole or part.layout is not torch.sparse_coo or not part._nnz():
            return
        # Now, and not when it leaves: it may stay for later steps, and rows that were asked for ahead and
        # have not arrived are not what was read.
        named = part._indices()[0].cpu()
        unknown = named[~self._known()[named]]
        if unknown.numel():
            self._unpulled = int(unknown[0])

    def _known(self) -> torch.Tensor:
        """Which rows the layer has pulled since the last step."""
        return self._fresh if self._earlier is None else self._fresh | self._earlier

    def refuse_unpulled(self) -> None:
        """Raises OptionError if the gradient has rows of another use of the table."""
        if self._unpulled is not None:
            raise OptionError(
                f"the gradient of `{self.name}` names row {self._unpulled}, which was not pulled since the "
                "last step(): the table was read otherwise than by a call of its layer, or before that step, "
                "and what was read may be of any earlier one",
                "call the layer, as layer(x), behind each step(), and not layer.forward(x) or F.embedding(x, "
                "layer.weight); or leave it out of sparse_pull (sparse_pull=False): it is pulled whole",
            )

    def _of_another_use(self, gradient: torch.Tensor) -> OptionError:
        return OptionError(
            f"expected a sparse gradient of `{self.name}`, of which only rows are pulled, got one of layout "
            f"{gradient.layout}: it was used otherwise than by its layer, with rows that were not pulled",
            "leave its layer out of sparse_pull",
        )

    def holds(self, gradient: torch.Tensor) -> bool:
        """As of a whole parameter."""
        return self._inner.holds(gradient)

    def settle(self) -> None:
        """As of a whole parameter."""
        self._inner.settle()

    def receive(
        self, into: torch.Tensor, *, moves: bool, seen: Seen | None = None, exact: bool = False
    ) -> None:
        """
        Leaves the parameter as it is: from now on rows are pulled before they are read. With `exact`, all of
        them at once.
        """
        del seen  # it has what was published
        # The bytes change behind autograd's back: a backward through the old value must be noticed as usual.
        torch.autograd.graph.increment_version(into)
        if exact:
            self._earlier = torch.ones_like(self._fresh) if self._whole else self._known().clone()
        elif not self._is_exact:
            self._earlier = None
        self._is_exact = exact
        was_whole = self._whole
        self._forget()
        if exact:
            self._read_whole(into, moves=moves, exact=True)
        elif was_whole:
            self.accept()
        self._seen = self._place()

    def _place(self) -> tuple[int, int]:
        return self._parameter.data_ptr(), self._parameter._version

    def accept(self) -> None:
        """What the parameter holds is what the servers know of."""
        if self._sums is not None and self._sums.fits(self._parameter):
            self._sums.note_all(self._parameter.detach())
        self._torn, self._seen = None, self._place()

    def _forget(self) -> None:
        if self._coming is not None:
            coming, self._coming = self._coming, None
            # It fills memory of ours.
            wait([coming[2]])
        for places in self._places:
            self._fresh[places] = False
        self._places, self._values = [], []
        self._whole = self.loaded = False

    def _read_whole(self, into: torch.Tensor, *, moves: bool, exact: bool) -> None:
        self._arrive()
        self._inner.receive(into, moves=moves, exact=exact)
        self._whole = True

    def whole(self) -> bool:
        """Has all of the parameter be what the last step left, if that can still be known; whether it is."""
        if self._whole:
            return True
        if self.left() or self._tensor._job._core.closed:
            return False
        if not self.unchanged():
            raise changed_outside(self.name)
        with torch.inference_mode(False), torch.no_grad():
            # A step may come between this and the next look: what is compared is a copy.
            self._read_whole(self._parameter, moves=True, exact=False)
        self.when_whole()
        return True

    @property
    def is_whole(self) -> bool:
        """Whether all of its rows are those that the last step left."""
        return self._whole

    def is_of(self, weight: torch.Tensor) -> bool:
        """Whether a layer with this weight reads the table, if by another tensor over the same memory."""
        if weight is self._parameter:
            return True
        try:
            return weight.data_ptr() == self._parameter.data_ptr()
        except RuntimeError:
            return True  # in a transformation of torch.func, of whatever is below

    @torch.inference_mode(False)
    @torch.no_grad()
    def read(self, indices: torch.Tensor) -> None:
        """
        Has the rows that these name be those that the last step left.

        Raises
        ------
        UnknownElement
            The table has no such row.
        OptionError
            The gradient has left, and with it the servers may have taken the next step.
        JobClosed
            The job has ended, and they were not read before.
        """
        if self._whole or indices.is_floating_point() or indices.is_complex():
            return  # torch says what is wrong with the latter
        self._arrive()
        places = self._missing(indices)
        if places.numel() == 0:
            return
        self._refuse_late()
        values = self._room(places)
        self._tensor.pull(out=values, rows=places)
        self._take(places, values)

    @torch.inference_mode(False)
    @torch.no_grad()
    def read_ahead(self, indices: torch.Tensor) -> None:
        """Begins to read rows, which a later `read` finds. Raises as that does."""
        if self._whole:
            return
        self._arrive()
        places = self._missing(indices)
        if places.numel():
            self._refuse_late()
            values = self._room(places)
            self._coming = places, values, self._tensor.pull_async(values, rows=places)

    def _missing(self, indices: torch.Tensor) -> torch.Tensor:
        """Which of these rows were not read since the last step, each once."""
        named = indices.detach().reshape(-1).to("cpu", torch.int64)
        places = named.unique()
        if places.numel() and (places[0] < 0 or places[-1] >= len(self._fresh)):
            self._tensor.pull(rows=named)  # which says so
        missing: torch.Tensor = places[~self._fresh[places]]
        return missing

    def _refuse_late(self) -> None:
        """Raises where rows of the last step cannot be read any more."""
        if self._tensor._job._core.closed:
            raise JobClosed(
                f"rows of `{self.name}` are read that were not before the job ended",
                "end the job by job.close(), which reads the whole of what is left",
            )
        if self.left():
            raise OptionError(
                f"rows of `{self.name}` are read that were not before its gradient left for the servers, "
                "which may have taken the next step",
                "read them after step(), or pass overlap=False to `ps.torch.distribute`",
            )

    def _room(self, places: torch.Tensor) -> torch.Tensor:
        like = self._parameter
        return torch.empty((len(places), *like.shape[1:]), dtype=like.dtype, device="cpu")

    def _arrive(self) -> None:
        """Takes in what was read ahead; raises what that raised."""
        if self._coming is None:
            return
        places, values, done = self._coming
        # Interrupted while it waits, it is waited for again.
        wait([done])
        self._coming = None
        done.result()
        with torch.no_grad():
            self._take(places, values)

    def _take(self, places: torch.Tensor, values: torch.Tensor) -> None:
        data = self._parameter.data
        sums = self._sums if self._sums is not None and self._sums.fits(data) else None
        if sums is not None:
            self._mend_torn(sums)
            if sums.changed(data, places):
                raise changed_outside(self.name)
            self._torn = places
        # By `data`: rows that were read since the step stay as they are, and so do graphs over them.
        values = values.to(data.device)
        data.index_copy_(0, places.to(data.device), values)
        self._fresh[places] = True
        self._places.append(places)
        if self._check:
            self._values.append(values)
        if sums is not None:
            sums.note(places, values)
            self._torn = None

    def received(self, value: torch.Tensor) -> bool:
        """Compares the rows that were read since the last step, and all where torch has counted a write."""
        if self.loaded:
            return False
        if self._whole:
            return self._inner.received(value)
        return self._compare(value, same_bits) and (self._place() == self._seen or self.unchanged())

    def unchanged(self) -> bool:
        """Compares all rows."""
        if self.loaded:
            return False
        if self._whole:
            return self._inner.received(self._parameter)
        if self._sums is None:
            return True
        place, table = self._place(), self._parameter.detach()
        if not self._sums.fits(table):
            return False
        self._mend_torn(self._sums)
        if self._sums.any_changed(table):
            return False
        self._seen = place
        return True

    def _mend_torn(self, sums: RowSums) -> None:
        """Notes what an interrupted write has left."""
        if self._torn is not None:
            data = self._parameter.data
            sums.note(self._torn, data.index_select(0, self._torn.to(data.device)))
            self._torn = None

    def converted(self, value: torch.Tensor) -> bool:
        """Whether these rows are what was read, in another type, or back from one."""
        return self._inner.converted(value) if self._whole else self._compare(value, converted)

    def _compare(self, value: torch.Tensor, same: Callable[[torch.Tensor, torch.Tensor], bool]) -> bool:
        data = value.detach()
        pairs = zip(self._places, self._values, strict=False)
        return all(same(data.index_select(0, places.to(data.device)), held) for places, held in pairs)


class ReadsRows(Ours):
    """The hook of a layer before its forward pass: pulls the rows that are about to be read."""

    def __init__(self, rows: RowsTransfer | None = None) -> None:
        self._rows = rows

    def __call__(self, module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """
        Raises OptionError where it cannot be known which rows the layer reads, or where it reads others'
        memory, which was filled before.
        """
        if self._rows is None:
            return
        if torch.compiler.is_compiling():
            # Rows are pulled by a call that no compiled program can make.
            torch._dynamo.graph_break()
        weight = module._parameters.get("weight")
        if self._rows.is_whole:
            # Inside `exact()` too: what it scales there would be published.
            scales = getattr(module, "max_norm", None) is not None
            if scales and weight is not None and self._rows.is_of(weight):
                raise changes_rows(self._rows.name)
            return
        if weight is None:
            raise OptionError(
                f"a layer reads a table of which only rows are pulled, `{self._rows.name}`, by a weight that "
                "is no parameter of its own, as in a replica of nn.DataParallel: rows are not pulled into it",
                "train one process for each device, under `penstock run`, or leave the layer out of "
                "sparse_pull",
            )
        if not self._rows.is_of(weight):
            return  # the layer was given another one
        self._refuse_other_rows(module)
        indices = given[0] if given else named.get("input")
        if isinstance(indices, torch.Tensor):
            self._rows.read(indices)

    def _refuse_other_rows(self, module: torch.nn.Module) -> None:
        """Raises OptionError where the layer may read other rows than this is told, or changes them."""
        if getattr(module, "max_norm", None) is not None:
            raise changes_rows(self._rows.name if self._rows is not None else "")
        if not _looks_up(module):
            why = "its forward was replaced"
        else:
            # Of ours none changes what a layer is given.
            others = itertools.takewhile(
                lambda hook: hook is not self, reversed(module._forward_pre_hooks.values())
            )
            if all(isinstance(hook, Ours) for hook in others):
                return
            why = "a forward pre-hook was registered on it after `distribute`, and may change its indices"
        name = self._rows.name if self._rows is not None else ""
        raise OptionError(
            f"the layer of `{name}` may read other rows than are pulled for it: {why}",
            "do that before `distribute`, or leave the layer out of sparse_pull",
        )

    def left_behind(self) -> None:
        """The layer is copied, and the copy will pull nothing."""
        if self._rows is not None and not self._rows.whole():
            raise OptionError(
                "expected a model of which only rows are pulled to be copied, or saved as a whole, while the "
                "job is open, and before its gradients leave for the servers",
                "copy it after step(), or save model.state_dict()",
            )
