"""`specmill export OUT`."""

from pathlib import Path
from typing import Any

import click

from producer.commands.place import PLACE

EXPORTS = ("jsonl", "openai-batch", "chat", "sharegpt", "csv")


@click.command(short_help="A dataset as JSON lines, OpenAI batch, chat, ShareGPT or CSV.")
@click.argument("out", type=PLACE)
@click.option("--to", type=click.Choice(EXPORTS), show_default="csv for a file whose name ends in .csv, else jsonl", help="The format.")
@click.option("--where", metavar="SQL", help="Only rows for which this holds, such as \"finish_reason = 'stop'\" (DuckDB's SQL).")
@click.option("-o", "--output", "target", type=click.Path(path_type=Path, dir_okay=False), help="The file.  [default: standard output]")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def export(out: Any, to: str | None, where: str | None, target: Path | None, force: bool) -> None:
    """Write the rows of the dataset OUT, in dataset order, in another format.

    \b
    jsonl         every column, one JSON object per row
    csv           every column; lists and structs as JSON text
    openai-batch  one line per record, as the OpenAI batch API answers; a choice per sample
    chat          {"id", "messages": [… the prompt, the answer]}; error rows are left out
    sharegpt      {"id", "conversations": [{"from", "value"}, …]}; error rows are left out
    """
    from producer.counted import counted
    from producer.dataset import Dataset
    from producer.export import export as write

    to = to or ("csv" if target is not None and target.suffix == ".csv" else "jsonl")
    dataset = Dataset.open(out)
    done = write(dataset, to, where, target, replace=force)
    left_out = f", {counted(done.left_out, 'error row')} left out" if done.left_out else ""
    click.echo(counted(done.rows - done.left_out, "row") + (f" to {target}" if target else "") + left_out, err=True)
    for line in dataset.unfinished():
        click.echo(line, err=True)
