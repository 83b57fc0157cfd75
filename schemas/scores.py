"""`SCORES`: what the target says of rows that exist already (teacher forcing). The request is a shard blob with two more columns.

Those are `sample` int32 and `token_ids` list<int32>; every row is scored on its own.
"""

import pyarrow as pa

from schemas.tables import ERROR

SCORES = pa.schema(
    [
        pa.field("error", ERROR),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("completion", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("tokens_used", pa.int32()),
        pa.field("logprobs", pa.list_(pa.float64())),
        pa.field("shortfall", pa.list_(pa.float64())),
        pa.field("surprise", pa.float64()),
        pa.field("surprise_variance", pa.float64()),
    ]
)
"""Columns, in the order of the rows asked about:

- `error`: why the row cannot be scored, else null: the row error that its prompt ends in, or `NonFiniteLogitsError`.
- `prompt_tokens`: tokens of the encoded prompt.
- `completion`, `finish_reason`: what the tokens decode to, and why the row ends there; null where the tokens do not end a row.
- `tokens_used`: tokens until the row ended; fewer than were given where it goes on behind its end.
- `logprobs`: log p of every token under the sampler config; -inf for a token that is impossible.
- `shortfall`: 0 for a possible token, else by how many nats its logit lies below the last one that the filters keep.
- `surprise`: Σ (log p(token) - Σ p log p) over the possible tokens. Its mean is 0 when the tokens were drawn from p.
- `surprise_variance`: the sum of the conditional variances of its terms.
"""
