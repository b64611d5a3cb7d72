"""
A health check for orchestrators: `python -m penstock.rendezvous.probe HOST:PORT [CA]`.

Asks a manager's grpc.health.v1 service, over TLS; ends with 0 if it serves. Kubernetes' own gRPC probe speaks
no TLS.
"""

from __future__ import annotations

import sys

from penstock import _core
from penstock.exceptions import PenstockError


def main(arguments: list[str]) -> int:
    """The exit code: 0 if the manager serves, else 1; 2 for a wrong command line."""
    if len(arguments) not in (1, 2):
        sys.stderr.write("error: expected HOST:PORT and, for TLS, the path of a CA\n")
        return 2
    try:
        serves = _core.health(arguments[0], arguments[1] if len(arguments) > 1 else "")
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0 if serves else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
