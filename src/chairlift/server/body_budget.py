"""How much memory the bodies of all requests take together. Knows nothing of how they are read."""

from chairlift.errors import OverloadedError


class BufferedBodies:
    """Counts the bytes of all bodies that are in memory, from the first one's arrival until it is parsed."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Note that so many more have come.

        Raises:
            OverloadedError: there is no room for them; they are not counted.
        """
        if self.num_bytes + num_bytes > self._max_bytes:
            raise OverloadedError(
                f"the request bodies that the server is reading take {self.num_bytes} bytes, and "
                f"--max-buffered-bytes is {self._max_bytes}; try again"
            )
        self.num_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        """Note that so many are gone."""
        self.num_bytes -= num_bytes
