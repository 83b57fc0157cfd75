"""`ScriptedEngine`: an engine without a model, for tests and for measuring everything around one.

Its model name carries its script: `scripted`, or `scripted:` and comma-separated options:

    seconds=0.05     wall time per output row
    token_seconds=0.01  more of it per output token
    fail_on=TEXT     a prompt that contains TEXT becomes an error row
    crash_on=TEXT    a prompt that contains TEXT ends the process with exit code 139
    hang_on=TEXT     a prompt that contains TEXT never returns
    start_crash=1    the process ends with exit code 134 before it has loaded the engine
    claims=0.9       the α that it says of every draft; the share that it accepts stays 0.7, so anything else is a broken engine

The environment variable `SPECMILL_SCRIPTED_CHIP` names the chip that it says it runs on, so that one machine can play several.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from sampling.counter_rng import Purpose, uniform
from schemas.errors import BadInputError, ModelError, NonFiniteLogitsError
from schemas.profile import Backend
from schemas.progress import Tally
from schemas.run_spec import RunSpec
from worker.engine.completion import Acceptance, Completion, Request
from worker.engine.engine import OnCycle, Timings

ACCEPTANCE = 0.7  # the scripted α of every draft
VOCABULARY = 1000
CHIP_VARIABLE = "SPECMILL_SCRIPTED_CHIP"
OPTIONS = ("seconds", "token_seconds", "fail_on", "crash_on", "hang_on", "start_crash", "claims")


def is_scripted(model_name: str) -> bool:
    """Whether a model name asks for the scripted engine."""
    return model_name == "scripted" or model_name.startswith("scripted:")


def scripted_backend() -> Backend:
    """What the scripted engine says of this machine."""
    return Backend(device="cpu", chip=os.environ.get(CHIP_VARIABLE) or platform.machine(), mlx="-", blas="", row_invariant=True)


class ScriptedEngine:
    """Tokens are words of the counter RNG, so that every law about seeds holds as it does for a model."""

    def __init__(self, model_name: str) -> None:
        script = model_name.partition(":")[2]
        options = dict(option.partition("=")[::2] for option in script.split(",")) if script else {}
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise ModelError(f"the scripted engine knows the options {', '.join(OPTIONS)}; received {unknown[0]!r}")
        if "start_crash" in options:
            os._exit(134)
        self.seconds = float(options.get("seconds", 0.0))
        self.token_seconds = float(options.get("token_seconds", 0.0))
        self.fail_on = options.get("fail_on")
        self.crash_on = options.get("crash_on")
        self.hang_on = options.get("hang_on")
        self.claims = float(options.get("claims", ACCEPTANCE))
        self.backend = scripted_backend()

    def complete(self, spec: RunSpec, requests: Sequence[Request], timings: Timings, on_cycle: OnCycle) -> list[Completion]:
        """One scripted completion per request, in order."""
        completions: list[Completion] = []

        def heartbeat() -> None:
            on_cycle(lambda: sum((completion.tally() for completion in completions), Tally()))

        for request in requests:
            heartbeat()
            started = time.perf_counter()
            completions.append(self._complete_one(spec, request, heartbeat))
            timings.verify += time.perf_counter() - started
        return completions

    def score(self, spec: RunSpec, rows: pa.Table, on_row: Callable[[], None]) -> pa.Table:  # noqa: ARG002 # the protocol is wider
        """Refused: a script has no probabilities."""
        raise ModelError("the scripted engine has no target distribution; its rows can be regenerated only")

    def _complete_one(self, spec: RunSpec, request: Request, heartbeat: Callable[[], None]) -> Completion:
        text = request.prompt or " ".join(message["content"] for message in request.messages or [])
        if request.bad_input is not None:
            return Completion.failed(request, BadInputError(request.bad_input))
        if self.crash_on and self.crash_on in text:
            os._exit(139)
        if self.fail_on and self.fail_on in text:
            return Completion.failed(request, NonFiniteLogitsError(nan=1, inf=0, size=VOCABULARY))
        completion = _scripted_completion(request.own(spec), request, prompt_tokens=len(text.split()), claims=self.claims)
        deadline = time.monotonic() + self.seconds + self.token_seconds * len(completion.token_ids)
        while (left := deadline - time.monotonic()) > 0 or (self.hang_on and self.hang_on in text):
            time.sleep(max(0.0, min(left, 0.05)) if left > 0 else 0.05)
            heartbeat()
        return completion


def _scripted_completion(spec: RunSpec, request: Request, prompt_tokens: int, claims: float) -> Completion:
    draws = uniform(request.key, np.arange(spec.max_tokens + 1), Purpose.DRAFT).tolist()
    length = 1 + int(draws[-1] * spec.max_tokens)
    tokens = [int(draw * VOCABULARY) for draw in draws[:length]]
    return Completion(
        request=request,
        prompt_tokens=prompt_tokens,
        text=" ".join(f"w{token}" for token in tokens),
        token_ids=tokens,
        finish_reason="stop" if length < spec.max_tokens else "length",
        acceptance=_scripted_acceptance(draws, length, spec.profile.depth, claims),
        logprobs=[-1.0] * length,
    )


def _scripted_acceptance(draws: list[float], length: int, depth: int, claims: float) -> Acceptance:
    acceptance = Acceptance.at_depth(depth)
    position = 0
    while position < length:
        acceptance.cycles += 1
        for draft in range(min(depth, length - position)):
            acceptance.drafted_by_depth[draft] += 1
        accepted = 0
        while accepted < depth and position + accepted < length:
            acceptance.judge(accepted, claims)
            if draws[position + accepted] >= ACCEPTANCE:
                break
            acceptance.accepted_by_depth[accepted] += 1
            accepted += 1
        if position + accepted < length:
            if accepted == depth:
                acceptance.bonus += 1
            else:
                acceptance.residual += 1
        position += accepted + 1
    return acceptance
