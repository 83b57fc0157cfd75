"""`counted`: a number of things, as people say it."""


def counted(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`; the noun is given in the singular and has a regular plural."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
