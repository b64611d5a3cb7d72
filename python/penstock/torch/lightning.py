"""
Lightning: a strategy that is its own DDPStrategy, but for where gradients meet.

    trainer = Trainer(strategy=ps.torch.lightning.Strategy(), accelerator="cpu", devices=2)
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.strategies import DDPStrategy
except ModuleNotFoundError as error:
    error.add_note("hint: pip install lightning")
    raise

from torch.nn.parallel import DistributedDataParallel

from ..exceptions import OptionError
from ..job import Job
from . import hooks


class Strategy(DDPStrategy):  # type: ignore[misc,unused-ignore]
    """
    A `DDPStrategy` whose models average their gradients through the job.

    Parameters
    ----------
    job
        Default: the open job of each process, or a new `ps.init()`.
    **options
        DDPStrategy's, such as `find_unused_parameters`.

    Raises
    ------
    OptionError
        A communication hook is among the options.

    Examples
    --------
    >>> trainer = Trainer(strategy=ps.torch.lightning.Strategy(), devices=2)  # doctest: +SKIP
    """

    strategy_name = "penstock"

    def __init__(self, *, job: Job | None = None, **options: Any) -> None:
        if options.get("ddp_comm_hook") is not None:
            raise OptionError(
                "expected no ddp_comm_hook: the strategy registers one, and a model has one",
                "use Lightning's own DDPStrategy for another hook",
            )
        super().__init__(**options)
        self._shared_by = job

    def configure_ddp(self) -> None:
        """Wraps the model, and has it share gradients."""
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        hooks.register(self.model, self._shared_by)
