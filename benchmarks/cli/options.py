"""What several commands take."""

from typing import Annotated

import typer

Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
