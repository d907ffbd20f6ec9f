"""Write the figures of docs/performance.md and README.md from the newest rows of benchmarks/results.

    python -m benchmarks.page [--help]

Only what stands between the two marks of a page is written, there and in the README; the prose around them is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.commands import Command
from benchmarks.half_table import half
from benchmarks.headlines import headlines
from benchmarks.inference_tables import encoders, package_files, small_models
from benchmarks.layers_table import layers
from benchmarks.other_tables import floor, gpu, memory, portable, small, threads
from benchmarks.speed_tables import contended, epochs, losses, steps
from benchmarks.zoo_table import zoo

__all__ = ["PAGES", "PROJECT", "written"]

PROJECT = Path(__file__).parents[1]
BEGIN, END = "<!-- figures: written by python -m benchmarks.page -->", "<!-- end of figures -->"
PAGES: dict[str, tuple[Callable[[], Iterable[str]], ...]] = {
    "docs/performance.md": (
        steps,
        epochs,
        half,
        zoo,
        layers,
        losses,
        contended,
        threads,
        floor,
        memory,
        gpu,
        portable,
        small,
        package_files,
        small_models,
        encoders,
    ),
    "README.md": (headlines,),
}
"""What stands between the marks of each page."""


def written(page: str) -> str:
    """Return the text of a page, by its path in the project, with the figures of the newest rows."""
    before, _, rest = (PROJECT / page).read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    body = "\n".join(line for section in PAGES[page] for line in section())
    return f"{before}{BEGIN}\n{body}\n\n{END}{after}"


def main() -> None:
    """Write the pages."""
    Command(__doc__).parse_args()
    for page in PAGES:
        (PROJECT / page).write_text(written(page))
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
