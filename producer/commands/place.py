"""`PLACE`: an option or argument that names a folder of this machine, or a place in an object store."""

from typing import Any

import click


class PlaceType(click.Path):
    """A folder as click takes it, or `scheme://…`."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A `Path` or a `RemotePath`."""
        if isinstance(value, str) and "://" in value:
            from schemas.errors import InputError
            from worker.remote_path import place_of

            try:
                return place_of(value)
            except InputError as error:
                self.fail(str(error), param, ctx)
        from pathlib import Path

        return Path(str(super().convert(value, param, ctx))) if isinstance(value, str) else value


PLACE = PlaceType(file_okay=False)
