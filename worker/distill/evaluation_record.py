"""`Evaluation` and `LearningPoint`: what was found of a head on held-out text, as it lies in files."""

from dataclasses import dataclass

from schemas.wire import Wire


@dataclass(frozen=True)
class Acceptance(Wire):
    """Expected acceptance at one temperature, p over the whole vocabulary and no filters.

    Attributes:
        temperature: of p and q; 0 is greedy, where acceptance is the share of equal choices.
        overlap: by depth, the mean of Σ min(p, q) over all chains of the text, whose earlier drafts are the text's own tokens.
        errors: by depth, the standard error of that mean between rows.
        tokens_per_cycle: 1 + a1 + a1·a2 + …, averaged over chains.
    """

    temperature: float
    overlap: tuple[float, ...]
    errors: tuple[float, ...]
    tokens_per_cycle: float


@dataclass(frozen=True)
class Evaluation(Wire):
    """What was found on some rows.

    Attributes:
        rows: sequences.
        positions: answer tokens that were drafted at depth 1.
        mass: mean probability that the trunk gives the draft vocabulary, at temperature 1.
        acceptance: per temperature.
    """

    rows: int
    positions: int
    mass: float
    acceptance: tuple[Acceptance, ...]

    def at(self, temperature: float) -> Acceptance:
        """The acceptance at a temperature that was asked for."""
        return next(found for found in self.acceptance if found.temperature == temperature)


@dataclass(frozen=True)
class LearningPoint(Wire):
    """One look at the held-out rows while training.

    Attributes:
        step: updates so far.
        epoch: passes over the training rows so far.
        loss: mean training loss since the last point, nats per chain; 0 before the first update.
        overlap: by depth at temperature 1.
        tokens_per_cycle: at temperature 1; the best head is the one that has most.
    """

    step: int
    epoch: float
    loss: float
    overlap: tuple[float, ...]
    tokens_per_cycle: float

    def text(self) -> str:
        """`step 90 (2.1 passes): loss 1.234, acceptance 1: 0.41 2: 0.39, 1.62 tokens/cycle`."""
        depths = " ".join(f"{depth}: {overlap:.3f}" for depth, overlap in enumerate(self.overlap, 1))
        loss = f"loss {self.loss:.3f}, " if self.step else ""
        return f"step {self.step:,} ({self.epoch:.1f} passes): {loss}acceptance {depths}, {self.tokens_per_cycle:.2f} tokens/cycle"
