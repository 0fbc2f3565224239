"""Memory sizes as people write them, to bytes and back.

Knows nothing of what the memory is for.
"""

import re
from decimal import Decimal

from chairlift.errors import ConfigurationError

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BYTES_PER_UNIT = {
    "": 1,
    **{unit.lower(): 1024**power for power, unit in enumerate(_BINARY_UNITS)},
    **{unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb", "pb"))},
}
_SHORT_UNITS = {unit: 1024**power for power, unit in enumerate("KMGTP", start=1)}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int, *, setting: str = "size") -> int:
    """Read ``2GiB``, ``500MB``, ``1.5 GiB``, ``2G`` or a plain number of bytes.

    ``GB`` is 1000³ and ``GiB`` is 1024³, in any case of letters; a lone capital (``G``) is binary, as in vLLM. A lone
    small letter is refused because some tools take it as decimal and others as binary.

    Raises:
        ConfigurationError: the text is not a size; the message quotes it and ``setting``.
    """
    found = _SIZE.fullmatch(str(text))
    unit = found.group(2) if found else ""
    bytes_per_unit = _SHORT_UNITS.get(unit) or _BYTES_PER_UNIT.get(unit.lower())
    if found is None or bytes_per_unit is None:
        raise ConfigurationError(
            f"{setting} is {text!r}, but must be a number of bytes such as 2GiB, 500MB or 1073741824"
        )
    return int(Decimal(found.group(1)) * bytes_per_unit)


def format_bytes(num_bytes: int) -> str:
    """Write a size with a binary unit and at most one decimal: ``1.5 GiB``."""
    amount = float(num_bytes)
    unit = _BINARY_UNITS[0]
    for unit in _BINARY_UNITS:
        # 1023.95 would print as 1024.0, so it moves on to the next unit.
        if abs(amount) < 1023.95 or unit == _BINARY_UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.1f}".removesuffix(".0") + f" {unit}"
