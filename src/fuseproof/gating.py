"""The gate of a pytest session: tonight's processes against the history, suspects confirmed by fresh ones, a verdict.

What is decided is decided by `gate.session`; here are the processes that it asks for, and what the session does with the
verdicts: the terminal, JUnit, a JSON file, the history's marks and the exit status.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuseproof import machine, planting
from fuseproof.bookkeeping import Bookkeeper
from fuseproof.config import ConfigError
from fuseproof.confirming import ChildError, Children
from fuseproof.gate.ledger import Ledger
from fuseproof.gate.present import table_lines, to_json
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.gate.waivers import load_waivers
from fuseproof.history import HistoryError
from fuseproof.selection import Selection
from fuseproof.trusted import Trusted, TrustedError, find_trusted
from fuseproof.verdicts.night import Values
from fuseproof.verdicts.recorded import values_of
from fuseproof.verdicts.verdict import SUITE
