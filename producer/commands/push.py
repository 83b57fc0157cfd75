"""`specmill push OUT hf://datasets/owner/name`."""

from pathlib import Path

import click


@click.command(short_help="A complete dataset to the Hugging Face hub.")
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("target", metavar="hf://datasets/OWNER/NAME")
@click.option("--private", is_flag=True, help="Where the repository is made now: only you may read it.")
@click.option("--dry-run", is_flag=True, help="List the files and their sizes, and upload nothing.")
def push(out: Path, target: str, private: bool, dry_run: bool) -> None:
    """Upload the dataset OUT in one commit: card, manifest, part files and log.

    The repository is made where there is none. Part files that lie there from an earlier dataset go with the same commit; other files stay.
    `hf auth login` says who you are.
    """
    from producer.counted import counted
    from producer.push import Push

    pushed = Push.of(out, target)
    if dry_run:
        for name in pushed.files:
            click.echo(f"{(out / name).stat().st_size:>12,}  {name}")
        click.echo(f"{pushed.size:>12,}  bytes in {counted(len(pushed.files), 'file')} for {pushed.repo}; nothing was uploaded")
        return
    click.echo(pushed.send(private=private, note=lambda line: click.echo(line, err=True)))
