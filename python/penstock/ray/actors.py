"""What runs in Ray's actors: a server, or a worker."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from penstock import _core
from penstock.limit import Limit
from penstock.rendezvous.address import endpoint_host
from penstock.rendezvous.servers import Server


class Actor:
    """What both have in common."""

    def host(self) -> tuple[str, str]:
        """The id of the host that Ray put it on, and the address by which Ray's other hosts reach it."""
        return _core.host_id(), str(importlib.import_module("ray").util.get_node_ip_address())


class ServerActor(Actor):
    """One server of the job, as a process beside the actor's."""

    _server: Server | None = None

    def serve(
        self,
        host: str | None,
        index: int,
        servers: int,
        workers: int,
        secret: str,
        job: str,
        settings: Mapping[str, str],
        seconds: float,
    ) -> str:
        """Starts it; returns its endpoint string once it listens."""
        reachable = None if host is None else endpoint_host(host)
        self._server = Server(reachable, index, servers, workers, secret=secret, job=job, settings=settings)
        return self._server.listening(Limit(seconds))

    def end(self) -> None:
        """Ends it, whatever its job does."""
        if self._server is not None:
            self._server.end()


class WorkerActor(Actor):
    """One worker of the job."""

    def work(self, function: Callable[[], Any], environment: Mapping[str, str]) -> Any:
        """Calls the function with the job's environment; leaves the jobs that it left open, as it ended."""
        from penstock import job

        os.environ.update(environment)
        try:
            result = function()
        except BaseException as error:
            job.leave_all(error)
            raise
        job.leave_all(None)
        return result
