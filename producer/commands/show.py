"""`specmill show OUT --row ID`."""

from typing import Any

import click

from producer.commands.place import PLACE
from producer.commands.trust import TRUST_REMOTE_CODE


@click.command(short_help="One row of a dataset: prompt, answer, and how speculation went.")
@click.argument("out", type=PLACE)
@click.option("--row", "ids", metavar="ID", multiple=True, help="Record id, else a row's number; repeatable.  [default: one at random]")
@click.option("--sample", type=click.IntRange(min=0), help="Only this sample of the record.  [default: all of them]")
@click.option("--where", metavar="SQL", help="The first row for which this holds instead, such as \"finish_reason = 'length'\".")
@click.option("--origins", is_flag=True, help="Decode the row again here and colour its tokens: accepted, residual, bonus.")
@TRUST_REMOTE_CODE
@click.option("--json", "as_json", is_flag=True, help="The row as one line of JSON.")
def show(
    out: Any, ids: tuple[str, ...], sample: int | None, where: str | None, origins: bool, trust_remote_code: bool, as_json: bool
) -> None:
    """Show rows of the dataset OUT.

    With --origins, and model and head on this machine, tokens are coloured by where they came from: accepted drafts, residual tokens
    behind a rejected one, bonus tokens behind a cycle without one. Else, with the column `logprobs` (`specmill run --logprobs`) and the
    model on this machine, by the probability that the model gave them. Output into a file or a pipe has no colours. A terminal gets very
    long prompts shortened; control characters are always shown escaped.
    """
    if where is not None and ids:
        raise click.UsageError("--row and --where exclude each other")
    import json
    import sys

    from producer.dataset import Dataset
    from producer.plain_console import PlainConsole
    from producer.row_choice import choose_rows
    from producer.row_view import row_view
    from producer.token_origins import token_origins
    from producer.token_pieces import token_pieces
    from producer.visible_text import visible_json
    from schemas.errors import ModelError

    dataset = Dataset.open(out)
    for line in dataset.unfinished():
        click.echo(line, err=True)
    spec = dataset.manifest.spec
    console = PlainConsole(soft_wrap=False)
    for row in choose_rows(dataset, ids, sample, where):
        if as_json:
            click.echo(visible_json(json.dumps(row, ensure_ascii=False)))
            continue
        decoded = token_origins(spec, row, trust_remote_code=trust_remote_code) if origins and row["error"] is None else None
        pieces = None
        if decoded is not None or (row.get("logprobs") is not None and row["error"] is None):
            try:
                pieces = token_pieces(spec.model.name, row["token_ids"], trust_remote_code=trust_remote_code)
            except ModelError as error:
                click.echo(f"tokens are not coloured: {error}", err=True)
        console.print(row_view(row, pieces, decoded, shorten=sys.stdout.isatty()))
