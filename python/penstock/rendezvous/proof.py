"""
The handshake and the frames of the TCP rendezvous, without sockets.

```
worker                                        rank 0
  MAGIC (8) | worker's nonce (32)        ->
                                         <-   rank 0's nonce (32)
  rank (4) | size (4) | proof (32)       ->
                                         <-   answer (1) | proof (32), or answer (1) alone
```

A proof is HMAC-SHA256 over the side's label, both nonces, rank and size, keyed with a key that HMAC derives
from the job's secret and name. The secret is never sent, a recorded conversation is of no use in another, and
a side's own proof sent back to it proves nothing, because the labels differ. Then each side sends frames:

```
length (4) | tag (32) | payload (length)
```

whose tag is HMAC-SHA256 over the direction, the frame's number and the payload, keyed for this conversation:
a frame that was changed, repeated or left out ends it. Payloads are readable on the way; endpoint strings are
no secret.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from typing import Literal

MAGIC = b"PSMEET\x00\x01"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
CLAIM = struct.Struct(">II")
CLAIM_BYTES = CLAIM.size + PROOF_BYTES
FRAME = struct.Struct(">I")
FRAME_HEAD_BYTES = FRAME.size + PROOF_BYTES

WELCOME, WRONG_SECRET, WRONG_SIZE, TAKEN = b"W", b"S", b"N", b"T"
"""
Answers to a claim. Only the first is followed by a proof. TAKEN may pass: an earlier connection has yet to
end.
"""

Side = Literal["worker", "root"]


class BadFrame(Exception):  # noqa: N818 (never leaves this package)
    """What came is not the next frame of this conversation."""


def nonce() -> bytes:
    """What makes this conversation unlike every other."""
    return secrets.token_bytes(NONCE_BYTES)


class Conversation:
    """
    What two sides that know the secret derive from both nonces.

    Parameters
    ----------
    side
        Which of the two this is.
    secret, job
        The job's, as in PENSTOCK_SECRET and PENSTOCK_JOB.
    nonces
        The worker's, then rank 0's.
    """

    def __init__(self, side: Side, secret: str, job: str, nonces: bytes) -> None:
        root = _mac(bytes.fromhex(secret), b"penstock rendezvous 1\x00" + job.encode())
        self._nonces = nonces
        self._proving = _mac(root, b"prove\x00")
        self._framing = _mac(root, b"frame\x00" + nonces)
        self._side: Side = side
        self._other: Side = "root" if side == "worker" else "worker"
        self._sent = self._received = 0

    def proof(self, rank: int, size: int) -> bytes:
        """That this side knows the secret."""
        return self._proof(self._side, rank, size)

    def proves(self, proof: bytes, rank: int, size: int) -> bool:
        """Whether the other side knows it."""
        return hmac.compare_digest(proof, self._proof(self._other, rank, size))

    def frame(self, payload: bytes) -> bytes:
        """The next frame to send."""
        tag = self._tag(self._side, self._sent, payload)
        self._sent += 1
        return FRAME.pack(len(payload)) + tag + payload

    def payload(self, tag: bytes, payload: bytes) -> bytes:
        """The payload of the next frame that came. Raises BadFrame."""
        if not hmac.compare_digest(tag, self._tag(self._other, self._received, payload)):
            raise BadFrame
        self._received += 1
        return payload

    def _proof(self, side: Side, rank: int, size: int) -> bytes:
        return _mac(self._proving, side.encode() + b"\x00" + self._nonces + CLAIM.pack(rank, size))

    def _tag(self, side: Side, number: int, payload: bytes) -> bytes:
        return _mac(self._framing, side.encode() + b"\x00" + struct.pack(">Q", number) + payload)


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
