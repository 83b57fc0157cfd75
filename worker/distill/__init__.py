"""Distillation: a small MTP head learns to draft what a frozen trunk would say, from text that the trunk has read.

Words: a **chain** starts at position t with the trunk's hidden state h_t; at **depth** k it reads token x_{t+k} and drafts x_{t+k+1}, fed
with the head's own hidden state from depth k - 1 (with h_t at depth 1). Its **target** is the trunk's distribution at position t + k. The
**overlap** Σ min(p, q) is the probability that a draft from q is accepted against p. The **draft vocabulary** S holds the ids that the
head may draft.

Training on the head's own states, unrolled, follows EAGLE-3 (Li et al., arXiv 2503.01840); the head is that of `worker.engine.mtp_head`.
"""
