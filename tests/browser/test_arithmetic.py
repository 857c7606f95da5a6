"""The arithmetic page in a real browser: numbers as one types, the timeline, one update, the address."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from browser.conftest import until
from playwright.sync_api import Page, expect

from trueloop.ground.arithmetic import plan
from trueloop.ground.words import number
