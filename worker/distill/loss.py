"""What training minimises: the divergence of the drafts from the trunk's distribution, over all chains that count, depth by depth.

The loss of a draft is p(S) · KL(p / p(S) ‖ q) over the draft vocabulary S, with p the trunk's probabilities over the *whole* vocabulary: a
position where the trunk wants other tokens counts less, as it does for acceptance. With output rows w, the trunk's hidden state h and the
head's r, it is Σ_S p log p - p(S) log p(S) - Σ_S p log q, where

    Σ_S p log p = h · Σ_S p w - p(S) log Z        Σ_S p log q = r · Σ_S p w - p(S) log Σ_S exp(w · r)

and its gradient with respect to r is p(S) Σ_S q w - Σ_S p w. So no array over a vocabulary has to pass through automatic differentiation:
the head's states are computed, loss and gradient follow in closed form, and the head is differentiated against that gradient.

With `overlap_weight` λ the loss is (1 - λ) times that plus λ · p(S) · -log (α / p(S)), α = Σ_S min(p, q) being the draft's acceptance.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from worker.distill.batch import Batch
from worker.distill.exponentials import weighted_rows
from worker.distill.overlap import overlap_and_slope
from worker.distill.recipe import Recipe
from worker.distill.unrolled_head import unroll
from worker.engine.mtp_head import MTPHead

SMALLEST_MASS = 1e-30  # below it p(S) log p(S) is 0


@dataclass(frozen=True, eq=False)
class Teacher:
    """The trunk's distributions at the targets of a batch, reduced to what the loss needs.

    Attributes:
        rows: Σ_S p w, [n, D].
        mass: p(S), [n].
        negentropy: Σ_S p log (p / p(S)), [n].
        hidden: the trunk's hidden states, [n, D].
        log_z: the trunk's normalisers over its whole vocabulary, [n].
    """

    rows: mx.array
    mass: mx.array
    negentropy: mx.array
    hidden: mx.array
    log_z: mx.array

    @classmethod
    def of(cls, batch: Batch, output_rows: mx.array) -> "Teacher":
        """The trunk's distributions over rows [Vd, D] float32 of its output matrix."""
        hidden = flat(batch.hidden)[batch.targets]
        rows, mass, _ = weighted_rows(hidden, output_rows, batch.log_z)
        negentropy = (hidden * rows).sum(axis=-1) - mass * (batch.log_z + mx.log(mx.maximum(mass, SMALLEST_MASS)))
        return cls(rows, mass, negentropy, hidden, batch.log_z)


def loss_and_gradient(head: MTPHead, batch: Batch, teacher: Teacher, output_rows: mx.array, recipe: Recipe) -> tuple[float, Any]:
    """The loss, in nats per chain, and its gradient as a tree like the head's parameters.

    The mean over chains is taken at every depth, then over depths with their weights; with `hidden_weight` the regression onto the trunk's
    hidden states is added.
    """
    losses: list[float] = []

    def surrogate() -> mx.array:
        """A number whose gradient is the loss's; leaves the loss in `losses`."""
        unrolled = unroll(head, batch.hidden, batch.tokens, len(batch.chains))
        states = [flat(state)[chains] for state, chains in zip(unrolled, batch.chains, strict=True)]
        weights = [recipe.depth_decay**k if chains.size else 0.0 for k, chains in enumerate(batch.chains)]
        total = mx.array(0.0)
        for state, targets, weight in zip(states, batch.chain_targets, weights, strict=True):
            if weight:
                drafts = mx.stop_gradient(state)
                depth_loss, slope = _drafts(drafts, teacher, mx.array(targets), output_rows, recipe)
                losses.append(weight / sum(weights) * depth_loss)
                total = total + weight / sum(weights) * (slope * state).sum()
        return total

    _, gradient = nn.value_and_grad(head, surrogate)()
    return sum(losses), gradient


def flat(states: mx.array) -> mx.array:
    """[B, T, D] as [B · T, D], indexed by place."""
    return states.reshape(-1, states.shape[-1])


def _drafts(states: mx.array, teacher: Teacher, at: mx.array, rows: mx.array, recipe: Recipe) -> tuple[float, mx.array]:
    """The mean loss of drafts from states [n, D] against the targets `at`, and its gradient [n, D]."""
    mass, hidden, share = teacher.mass[at], teacher.hidden[at], recipe.overlap_weight
    total, slope = mx.array(0.0), mx.zeros_like(states)
    if share < 1.0:
        weighted, sums, shift = weighted_rows(states, rows)
        wanted = teacher.rows[at]
        divergence = teacher.negentropy[at] - (states * wanted).sum(axis=-1) + mass * (mx.log(sums) + shift)
        total = total + (1.0 - share) * divergence.mean()
        slope = slope + (1.0 - share) * ((mass / sums)[:, None] * weighted - wanted)
    if share:
        overlap, overlap_slope = overlap_and_slope(states, hidden, teacher.log_z[at], rows)
        total = total - share * (mass * mx.log(overlap / mx.maximum(mass, SMALLEST_MASS))).mean()
        slope = slope + share * mass[:, None] * overlap_slope
    if recipe.hidden_weight:
        difference = states - hidden
        size = mx.abs(difference)
        # Smooth L1, averaged over the width.
        total = total + recipe.hidden_weight * mx.where(size < 1.0, 0.5 * size**2, size - 0.5).mean()
        slope = slope + recipe.hidden_weight / states.shape[1] * mx.clip(difference, -1.0, 1.0)
    mx.eval(total, slope)
    return float(total), slope / states.shape[0]
