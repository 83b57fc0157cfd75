"""What the tests of distillation share beside their fixtures."""

from schemas.sampler import SamplerConfig

PROMPTS = [f"{first} {second}" for first in ("Tell me of", "Why is", "List", "Who saw", "no", "2 + 2 =") for second in "abcdefghij"]
SAMPLED = SamplerConfig(temperature=1.0)
