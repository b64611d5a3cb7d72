"""What stands for `optimizer.state`: it is on the servers, and an edit here would do nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NoReturn

from ...exceptions import OptionError


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise OptionError(
        "optimizer.state is on the servers, and can be neither read nor changed here",
        "optimizer.state_dict() reads it, and optimizer.load_state_dict(...), on every worker, writes it; "
        'with where="gradients" it stays in the script',
    )


class OnServers(defaultdict[Any, Any]):
    """A dictionary, as torch has it, that refuses all that one does with a dictionary."""

    __slots__ = ()
    __bool__ = __len__ = __iter__ = __contains__ = __reversed__ = _refuse
    __getitem__ = __setitem__ = __delitem__ = __or__ = __ror__ = __ior__ = _refuse
    __eq__ = __ne__ = _refuse
    get = setdefault = pop = popitem = clear = update = copy = keys = values = items = _refuse
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<on the servers>"
