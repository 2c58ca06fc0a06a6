"""A look at the clock: the time of models beside the prepared float model's, with its interval.

The yardstick is the float model after our float passes, which the runtime then optimizes by itself:
what preparation gains is no gain of quantizing.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.run import Session

BUDGET = 2.0
"""Seconds that all turns together take at most."""
MIN_ROUNDS, FEWEST_ROUNDS, MAX_ROUNDS = 5, 3, 41
"""Rounds before timing may stop as soon as the interval is narrow; before it may stop at all, below
which nothing is told; and at most."""
NARROW = 0.04
"""Width of the interval, as a share of the ratio and beyond what sessions differ by, at which
timing stops."""
SESSIONS_DIFFER = 0.04
"""Share by which the times of two sessions of the same model differ, however often they run: their
weights lie elsewhere in memory. Eight sessions each of six small nets lay up to 6 % apart."""
ROUNDS_DIFFER = 0.01
"""The same where each round opens sessions of its own, whose differences the rounds show."""
_QUICK_TO_OPEN = 0.05
"""Seconds up to which opening a session is so short that each round does it."""
_TURN_SECONDS = 2e-3
"""Seconds of a turn: short runs are repeated until they fill it."""
_LONG_RUN = 0.1
"""Seconds from which a run is so long that what another model left in the caches is not felt."""
_CONFIDENCE = 0.95
_AS_FAST = "as fast as"
PROMPT = 128
"""Tokens of the prompt that language models are timed on, beside one token."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The time of a model beside that of the prepared float model, which ran in turns with it.

    >>> clock = read_clock([(2.0, 1.0), (2.0, 1.1), (2.0, 0.9), (2.2, 1.1), (2.0, 1.0)])
    >>> clock.describe()
    "0.50 of the prepared float model's (0.45 to 0.55), one thread"
    >>> clock.is_faster, clock.is_slower
    (True, False)
    """

    float_ms: float
    """Milliseconds of a run of the prepared float model: the median over rounds."""
    quantized_ms: float
    ratio: float
    """Time of the quantized model over that of the float one: the median over rounds."""
    low: float
    high: float
    """The interval that the ratio lies in, at 95 % confidence."""
    rounds: int
    threads: int | None = 1
    """None: all cores. One thread is timed by what its core works, all cores by the seconds that
    pass."""
    prompt: Clock | None = None
    """Of a language model, whose other figures are those of one token: the same for a prompt."""
    context: int | None = None
    """Number of tokens of that prompt, and in the cache before the one; None: 128, and none."""

    @property
    def is_slower(self) -> bool:
        """Whether the quantized model is slower, beyond the interval."""
        return self.low > 1

    @property
    def is_faster(self) -> bool:
        """Whether the quantized model is faster, beyond the interval."""
        return self.high < 1

    @property
    def where(self) -> str:
        """Where it was timed."""
        if self.threads is None:
            return "all cores"
        return "one thread" if self.threads == 1 else f"{self.threads} threads"

    def describe(self, yardstick: str = "the prepared float model") -> str:
        """Return the time in a line."""
        if self.prompt is not None:
            one, prompt = self._token_and_prompt()
            times = f"{self.figure()} {self.interval()} for {one}, {self.prompt.figure()} "
            times += f"{self.prompt.interval()} for {prompt}"
            return f"of {yardstick}'s {times}, {self.where}"
        return f"{self.figure()} of {yardstick}'s {self.interval()}, {self.where}"

    def figure(self) -> str:
        """Return the ratio alone."""
        return f"{self.ratio:.2f}"

    def interval(self) -> str:
        """Return the interval of the ratio in parentheses."""
        return f"({self.low:.2f} to {self.high:.2f})"

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The interval in milliseconds, where the float model takes what it took."""
        return self.low * self.float_ms, self.high * self.float_ms

    def in_words(self) -> str:
        """Return the ratio as part of a sentence.

        >>> read_clock([(1.0, 2.0)] * 5).in_words(), read_clock([(1.0, 1.0)] * 5).in_words()
        ('2.0 × slower than the prepared float model', 'as fast as the prepared float model')
        """
        if self.prompt is not None:
            one, prompt = self._token_and_prompt()
            times = f"{self._speed()} for {one} and {self.prompt._speed()} for {prompt}"
            return f"{times}, beside the prepared float model"
        words = self._speed()
        than = "than " if words != _AS_FAST else ""
        return f"{words} {than}the prepared float model"

    def in_words_and_figures(self) -> str:
        """Return the same, and the ratios with their intervals.

        >>> read_clock([(2.0, 1.0)] * 5).in_words_and_figures()
        '2.0 × faster than the prepared float model: 0.50 (0.48 to 0.52) of its time, one thread'
        """
        clocks = [self] if self.prompt is None else [self, self.prompt]
        figures = " and ".join(f"{one.figure()} {one.interval()}" for one in clocks)
        return f"{self.in_words()}: {figures} of its time, {self.where}"

    def _token_and_prompt(self) -> tuple[str, str]:
        one = "one token" if self.context is None else f"a token behind {self.context}"
        return one, f"a prompt of {self.context or PROMPT}"

    def _speed(self) -> str:
        if not (self.is_slower or self.is_faster):
            return _AS_FAST
        times = self.ratio if self.is_slower else 1 / self.ratio
        digits = 1 if times >= 1.1 else 2
        return f"{times:.{digits}f} × {'slower' if self.is_slower else 'faster'}"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        optional = {"prompt": self.prompt, "context": self.context}
        left_out = {name for name, value in optional.items() if value is None}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def of_dict(cls, figures: Mapping[str, Any]) -> Clock:
        """Return the clock of plain data.

        >>> clock = read_clock([(2.0, 1.0)] * 5)
        >>> Clock.of_dict(clock.to_dict()) == clock
        True
        """
        prompt = figures.get("prompt")
        return cls(**{**figures, "prompt": prompt and cls.of_dict(prompt)})


_ADVICE = {
    "size": "quantize with --for balanced or --for speed, which leave float what gains no time",
    "balanced": "quantize with --for speed, which leaves float all that gains no time",
    "speed": "keep the float model where time counts",
}


def advise_on_time(purpose: str = "size") -> str:
    """Return what to do about a result that is slower than the prepared float model.

    >>> advise_on_time("balanced")
    'quantize with --for speed, which leaves float all that gains no time'
    """
    return _ADVICE[purpose]


def middle_sized(samples: Sequence[Sample]) -> Sample:
    """Return the sample to time models on: the first of those that half of the others are below.

    >>> middle_sized([{"x": np.zeros(size)} for size in (9, 1, 4)])["x"].size
    4
    """
    sizes = [sum(np.size(array) for array in sample.values()) for sample in samples]
    return samples[sizes.index(sorted(sizes)[len(sizes) // 2])]


def take_turns(runners: Sequence[Callable[[int], _T]], rounds: Iterable[int]) -> Iterator[list[_T]]:
    """Yield what each gives in a round: they run forwards in one and backwards in the next.

    The machine is slower at one time than at another: what ran in one round can be compared.

    >>> ran = []
    >>> [found for found in take_turns([ran.append, lambda number: ran.append(-number)], [1, 2])]
    [[None, None], [None, None]]
    >>> ran
    [1, -1, -2, 2]
    """
    order = list(range(len(runners)))
    for number in rounds:
        found = {place: runners[place](number) for place in order}
        order.reverse()
        yield [found[place] for place in range(len(runners))]


def read_clock(
    rounds: Sequence[tuple[float, float]], threads: int | None = 1, apart: float = SESSIONS_DIFFER
) -> Clock:
    """Return the clock for the seconds of a float run and of a quantized one in each round.

    `apart` is the share that the ratio is uncertain by, however alike the rounds are.
    """
    ratios = sorted(quantized / before for before, quantized in rounds)
    ratio, cut = statistics.median(ratios), _cut(len(ratios))
    return Clock(
        float_ms=1000 * statistics.median(before for before, _ in rounds),
        quantized_ms=1000 * statistics.median(quantized for _, quantized in rounds),
        ratio=ratio,
        low=min(ratios[cut], (1 - apart) * ratio),
        high=max(ratios[-1 - cut], (1 + apart) * ratio),
        rounds=len(ratios),
        threads=threads,
    )


def _cut(count: int) -> int:
    """Return how many values at each end lie outside of the interval of the median.

    The median lies between two order statistics with a probability that is the binomial's, whatever
    the values are distributed like. Of five rounds it is the whole of them (94 %).

    >>> [_cut(count) for count in (3, 5, 9, 17, 41)]
    [0, 0, 1, 4, 13]
    """
    outside, cut = 0.0, 0
    for below in range(count // 2):
        outside += 2 * math.comb(count, below) / 2**count
        if outside > 1 - _CONFIDENCE:
            break
        cut = below
    return cut


def time_models(
    models: Sequence[ir.Model],
    samples: Sequence[Sample],
    *,
    threads: int | None = 1,
    providers: Sequence[str] | None = None,
    budget: float = BUDGET,
    however_long: bool = False,
) -> list[Clock] | None:
    """Time models in turns with the first, the prepared float one, until the ratios are clear.

    Each has a sample. Where runs are so long that too few rounds fit into the budget, it takes the
    fewest `however_long` they are, or returns None.
    Models that are opened quickly are opened anew for each round.
    """
    # Where a run is not told by the time that this process works; Windows counts in 16 ms.
    elsewhere = sys.platform == "win32" or bool(set(providers or ()) - {"CPUExecutionProvider"})
    elapsed = threads is None or elsewhere
    runners: list[_Runner] = []
    for model, sample in zip(models, samples, strict=True):
        runners.append(_Runner(model, sample, threads, providers, elapsed))
        if not however_long and FEWEST_ROUNDS * runners[-1].first_seconds > budget:
            return None
    fewest = FEWEST_ROUNDS if however_long else 0
    apart = ROUNDS_DIFFER if all(runner.reopens for runner in runners) else SESSIONS_DIFFER
    return time_runners(runners, threads=threads, budget=budget, apart=apart, fewest=fewest)


def time_runners(
    runners: Sequence[Callable[[int], float]],
    *,
    threads: int | None = 1,
    budget: float = BUDGET,
    apart: float = SESSIONS_DIFFER,
    fewest: int = 0,
    now: Callable[[], float] = time.perf_counter,
) -> list[Clock] | None:
    """Let what was opened take turns: each gives the seconds of one run; the first is float.

    >>> [clock] = time_runners([lambda number: 2.0, lambda number: 1.0])
    >>> clock.ratio, clock.rounds
    (0.5, 5)
    """
    rounds: list[list[float]] = []
    begun = last = now()
    for found in take_turns(runners, range(MAX_ROUNDS)):
        rounds.append(found)
        spent, longest, last = now() - begun, now() - last, now()
        clocks = read_clocks(rounds, threads, apart)
        narrow = all(one.high - one.low <= (NARROW + 2 * apart) * one.ratio for one in clocks)
        if len(rounds) >= MIN_ROUNDS and narrow:
            break
        if spent + longest > budget and len(rounds) >= fewest:
            break
    return read_clocks(rounds, threads, apart) if len(rounds) >= FEWEST_ROUNDS else None


def read_clocks(
    rounds: Sequence[Sequence[float]], threads: int | None = 1, apart: float = SESSIONS_DIFFER
) -> list[Clock]:
    """Return the clock of each model but the first, from the seconds of all in each round.

    >>> [clock.ratio for clock in read_clocks([(2.0, 1.0, 3.0)] * 5)]
    [0.5, 1.5]
    """
    first, *others = zip(*rounds, strict=True)
    return [read_clock(list(zip(first, other, strict=True)), threads, apart) for other in others]


class _Runner:
    """A model in a session; a call gives the seconds of one run."""

    def __init__(
        self,
        model: ir.Model,
        sample: Sample,
        threads: int | None,
        providers: Sequence[str] | None,
        elapsed: bool,
    ) -> None:
        self._clock = time.perf_counter if elapsed else time.process_time
        self._open = partial(
            Session, model, threads=threads, providers=providers, memory_arena=True
        )
        begun = time.perf_counter()
        self._session = self._open()
        self.reopens = time.perf_counter() - begun <= _QUICK_TO_OPEN
        self._feeds = fit_sample(sample, model)
        seconds = self.first_seconds = self._run(1)
        self._leads = seconds < _LONG_RUN
        if self._leads:  # the first takes memory, and does what is done once
            seconds = self._run(1)
        self._repeated = max(1, math.ceil(_TURN_SECONDS / max(seconds, 1e-6)))

    def __call__(self, number: int) -> float:
        if self.reopens and number:
            self._session = self._open()  # while the old one is open: it lies elsewhere
        if self._leads:
            self._run(1)
        return self._run(self._repeated)

    def _run(self, times: int) -> float:
        """Return the shortest of some runs: other programs make runs longer, never shorter."""
        shortest, start = math.inf, time.perf_counter()
        for _ in range(times):
            begun = self._clock()
            self._session.run(self._feeds)
            shortest = min(shortest, self._clock() - begun)
        # A clock that goes in steps, as in sandboxes, gives 0 for a short run.
        return shortest or (time.perf_counter() - start) / times


def fit_sample(sample: Mapping[str, Any], model: ir.Model) -> dict[str, Any]:
    """Return a sample of the float model as another one reads it: in halves, or packed zeros."""
    inputs, found = {value.name: value for value in model.graph.inputs}, {}
    for name, array in sample.items():
        value = inputs.get(name)
        kind = None if value is None or value.dtype is None else value.dtype.numpy()
        width = None if value is None or not value.shape else value.shape[-1]
        if isinstance(width, int) and np.ndim(array) and array.shape[-1] != width:  # a cache
            array = np.zeros((*array.shape[:-1], width), kind)
        found[name] = np.asarray(array, kind)
    return found
