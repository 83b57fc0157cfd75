"""How model families name and shape their MTP heads, and the way from each to the names of `MTPHead`.

Sources: the weight maps of the original repositories (Qwen3-Next, Qwen3.5, DeepSeek-V3, GLM-4.x, MiMo, Exaone-MoE). Exactness never
depends on what is chosen here; acceptance does, so the disputed choices are fields of the contract and a file's own contract wins.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import mlx.core as mx

from schemas.errors import HeadError
from worker.engine.head_contract import HeadContract

_COPIES = ("embed_tokens.", "shared_head.head.", "lm_head.")  # of the trunk's own matrices, which are used instead


@dataclass(frozen=True)
class HeadLayout:
    """One family's names.

    Attributes:
        name: how messages call it.
        marker: a tensor name that only this layout has, without its prefix.
        prefix: pattern of what stands before every tensor's name; it may capture `layer`.
        names: the family's name → ours, matched at the start.
        contract: the family's default contract.
        ignored: starts of names that are left out.
        blocks: what stands between the prefix and the number of a layer's block, where layers share all the rest; else each layer has a
            prefix of its own.
    """

    name: str
    marker: str
    prefix: str
    names: dict[str, str]
    contract: HeadContract
    ignored: tuple[str, ...] = _COPIES
    blocks: str = ""


LAYOUTS = (
    HeadLayout(
        name="specmill",
        marker="ne.weight",
        prefix="",
        names={"ne.": "ne.", "nh.": "nh.", "fc.": "fc.", "block.": "block.", "norm.": "norm."},
        contract=HeadContract(),
        ignored=(),
    ),
    HeadLayout(
        name="qwen",
        marker="pre_fc_norm_embedding.weight",
        prefix=r"(?:(?:model\.)?(?:language_model\.)?mtp\.)?",
        names={"pre_fc_norm_embedding.": "ne.", "pre_fc_norm_hidden.": "nh.", "fc.": "fc.", "layers.0.": "block.", "norm.": "norm."},
        contract=HeadContract(),
        blocks="layers.",
    ),
    HeadLayout(
        name="deepseek",
        marker="eh_proj.weight",
        prefix=r"(?:model\.layers\.(?P<layer>\d+)\.)?",
        names={
            "enorm.": "ne.",
            "hnorm.": "nh.",
            "eh_proj.": "fc.",
            "shared_head.norm.": "norm.",
            "self_attn.": "block.self_attn.",
            "mlp.": "block.mlp.",
            "input_layernorm.": "block.input_layernorm.",
            "post_attention_layernorm.": "block.post_attention_layernorm.",
        },
        contract=HeadContract(),
    ),
    HeadLayout(
        name="mimo",
        marker="token_layernorm.weight",
        prefix=r"(?:model\.mtp_layers\.(?P<layer>\d+)\.)?",
        names={
            "token_layernorm.": "ne.",
            "hidden_layernorm.": "nh.",
            "input_proj.": "fc.",
            "final_layernorm.": "norm.",
            "self_attn.": "block.self_attn.",
            "mlp.": "block.mlp.",
            "input_layernorm.": "block.input_layernorm.",
            "post_attention_layernorm.": "block.post_attention_layernorm.",
        },
        contract=HeadContract(concat="hidden_embedding"),
    ),
)


def recognise(names: Iterable[str]) -> tuple[HeadLayout, list[str]] | None:
    """The layout of a file's tensors and the prefixes of its MTP layers in their order, or None when none of them belongs to a head.

    Raises:
        HeadError: more than one head.
    """
    known = list(names)
    for layout in LAYOUTS:
        pattern = re.compile(f"(?P<prefix>{layout.prefix}){re.escape(layout.marker)}")
        matches = [match for name in known if (match := pattern.fullmatch(name))]
        numbered = {match.groupdict().get("layer"): match["prefix"] for match in matches}
        if len({match["prefix"] for match in matches}) > 1 and None in numbered:
            every = ", ".join(sorted({repr(match["prefix"]) for match in matches}))
            raise HeadError(f"a file must hold one head; received several in the {layout.name} layout, with the prefixes {every}")
        if matches:
            return layout, [numbered[number] for number in sorted(numbered, key=lambda number: int(number or 0))]
    return None


def layers_of(layout: HeadLayout, prefixes: list[str], weights: dict[str, mx.array]) -> list[dict[str, mx.array]]:
    """The tensors of each MTP layer under our names; what layers share is in each.

    Raises:
        HeadError: a number is missing among the layers.
    """
    if not layout.blocks:
        return [_renamed(layout, prefix, weights) for prefix in prefixes]
    stem = prefixes[0] + layout.blocks
    pattern = re.compile(re.escape(stem) + r"(\d+)\.")
    numbers = {name: int(match[1]) for name in weights if (match := pattern.match(name))}
    count = max(numbers.values(), default=0) + 1
    if numbers and set(numbers.values()) != set(range(count)):
        raise HeadError(f"MTP layers must be numbered from 0 without a gap; received {sorted(set(numbers.values()))}")
    shared = {name: tensor for name, tensor in weights.items() if name not in numbers}
    return [
        _renamed(
            layout,
            prefixes[0],
            shared | {name.replace(f"{stem}{layer}.", f"{stem}0."): weights[name] for name, number in numbers.items() if number == layer},
        )
        for layer in range(count)
    ]


def _renamed(layout: HeadLayout, prefix: str, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """One layer's tensors under our names; tensors of the trunk and copies of its shared matrices are left out, unknown names kept."""
    ours: dict[str, mx.array] = {}
    for name, tensor in weights.items():
        if not name.startswith(prefix) or (own := name.removeprefix(prefix)).startswith(layout.ignored):
            continue
        theirs = next((start for start in layout.names if own.startswith(start)), None)
        ours[own if theirs is None else layout.names[theirs] + own.removeprefix(theirs)] = tensor
    return _stack_experts(ours)


def _stack_experts(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Experts in the form of mlx-lm's `switch_mlp`: fused pairs split (gate first), numbered ones stacked."""
    experts, stacked = "block.mlp.experts.", "block.mlp.switch_mlp."
    mine = {name.removeprefix(experts): weights.pop(name) for name in list(weights) if name.startswith(experts)}
    if "gate_up_proj" in mine:
        half = mine["gate_up_proj"].shape[-2] // 2
        weights[f"{stacked}gate_proj.weight"] = mine["gate_up_proj"][..., :half, :]
        weights[f"{stacked}up_proj.weight"] = mine["gate_up_proj"][..., half:, :]
        weights[f"{stacked}down_proj.weight"] = mine["down_proj"]
        return weights
    numbers = sorted({int(name.split(".")[0]) for name in mine})
    for part in sorted({name.split(".", 1)[1] for name in mine}):
        weights[stacked + part] = mx.stack([mine[f"{number}.{part}"] for number in numbers])
    return weights
