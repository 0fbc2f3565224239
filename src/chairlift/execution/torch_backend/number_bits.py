"""Floats as the whole numbers that compiled code takes.

Knows nothing of what they mean.
"""

import struct


def float_bits(number: float) -> int:
    """Return a float64's bits as int64, the way compiled operations take floats."""
    return struct.unpack("<q", struct.pack("<d", number))[0]
