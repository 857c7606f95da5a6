"""The base of the detectors that judge averages of the trained weights."""

from trueloop.failures.failure import BaseDetector


class AverageDetector(BaseDetector):
    """Judges the averages of the trained weights that a program keeps; a subclass notes that it has seen one."""

    def __init__(self) -> None:
        self._seen = False

    def inconclusive(self) -> str:
        """Return a reason if the program keeps no average."""
        return "" if self._seen else "no average of the trained weights was found"
