"""The teaching loop on real PyTorch."""

from trueloop.engines.teach.loop import Lesson, teaching_loop

__all__ = ["Lesson", "teaching_loop"]
