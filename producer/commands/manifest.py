"""`specmill manifest OUT`."""

import json
from typing import Any

import click

from producer.commands.place import PLACE


@click.command(short_help="Show what a dataset says of itself.")
@click.argument("out", type=PLACE)
@click.option("--files", is_flag=True, help="Also every file of model and head, with its sha256.")
@click.option("--shards", is_flag=True, help="Also every shard: its part file, its rows and their digest.")
@click.option("--json", "as_json", is_flag=True, help="The manifest itself, as one line of JSON.")
def manifest(out: Any, files: bool, shards: bool, as_json: bool) -> None:
    """Show the manifest of the dataset in OUT: settings, digests, versions and where it was computed.

    manifest.json is documented in docs/manifest.schema.json; `specmill verify` checks it.
    """
    from producer.dataset import Dataset
    from producer.manifest_view import manifest_text

    found = Dataset.open(out).manifest
    click.echo(json.dumps(found.encode(), ensure_ascii=False) if as_json else manifest_text(found, files=files, shards=shards))
