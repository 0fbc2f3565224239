"""Lengths of the requests that the scenarios serve: short interactive ones and long ones that nobody waits for."""

from typing import Any

from chairlift.workload.distributions import Lognormal

CHAT: dict[str, Any] = {"prompt_tokens": Lognormal(512, 0.8, 4096), "output_tokens": Lognormal(160, 0.7, 1024)}
DOCUMENTS: dict[str, Any] = {"prompt_tokens": Lognormal(3000, 0.5, 12_000), "output_tokens": Lognormal(300, 0.6, 1500)}
