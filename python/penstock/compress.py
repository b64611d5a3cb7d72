"""What `compress=` may be: general-purpose compressors behind the encodings, between hosts."""

from typing import Literal

from .exceptions import OptionError

__all__ = ["Compress", "check_compress"]

Compress = Literal["none", "lz4", "zstd", "auto"]

_ALL = ("none", "lz4", "zstd", "auto")


def check_compress(compress: object) -> None:
    """Raises OptionError unless it says how a tensor is compressed between hosts."""
    if not isinstance(compress, str) or compress not in _ALL:
        raise OptionError(
            f'expected compress "none", "lz4", "zstd" or "auto", got {compress!r}',
            '"auto" measures what pays, and is never far behind "none"',
        )
